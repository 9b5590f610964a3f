# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Tool calls and the results that answer them: are they intact, and if not, how to make them so."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from haystack.dataclasses import ChatMessage, ChatRole, ToolCall, ToolCallResult

from haystack_compaction.conversation.notes import COMPACTION_META_KEY

_MISSING_RESULT = "[No result of this call was recorded.]"
_STAND_IN = {"strategy": "repair_tool_pairs"}


def repair_tool_pairs(messages: Sequence[ChatMessage], *, keep_pending: bool = True) -> list[ChatMessage]:
    """
    Bring tool calls and their results into the order that chat-completion providers demand.

    Afterwards every assistant message with tool calls is followed at once by exactly one result for each of its calls,
    one result a message, and no result stands anywhere else. Results are paired by position first (the batch of
    calls they follow) and by id second, because real transcripts repeat ids or leave them out. A result away from
    its call moves to it; a result without a call is dropped; a call without a result gets one that says so, flagged
    as an error.

    The rule is the one OpenAI and Anthropic enforce with an error 400:
    https://platform.openai.com/docs/guides/function-calling and
    https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/implement-tool-use

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage, ToolCall
    from haystack_compaction import repair_tool_pairs

    call = ToolCall(tool_name="search", arguments={"query": "tides"}, id="call_1")
    broken = [
        ChatMessage.from_user("When is high tide?"),
        ChatMessage.from_assistant(tool_calls=[call]),
        ChatMessage.from_user("Are you still there?"),
        ChatMessage.from_tool("06:12", origin=call),
    ]
    assert [message.role.value for message in repair_tool_pairs(broken)] == ["user", "assistant", "tool", "user"]
    ```

    :param messages: The conversation, oldest to newest. It is left as it is.
    :param keep_pending: Whether an assistant message at the very end whose calls have no results yet stays as it is,
        because something is about to run them. With `False` these calls get results too, so that the conversation can
        be sent to a model right now.
    :returns: A new list. Messages that were in order are the same objects.
    """
    if pairs_are_intact(messages, keep_pending=keep_pending):
        return list(messages)
    batches = _pair(messages)
    repaired: list[ChatMessage] = []
    for index, message in enumerate(messages):
        if message.role is ChatRole.TOOL:
            continue
        repaired.append(message)
        batch = batches.get(index)
        pending = batch is not None and not batch.results and index == len(messages) - 1
        if batch is not None and not (pending and keep_pending):
            repaired.extend(batch.result_messages())
    return repaired


def pairs_are_intact(messages: Sequence[ChatMessage], *, keep_pending: bool = True) -> bool:
    """Whether `repair_tool_pairs` would leave the conversation as it is."""
    assistant, tool = ChatRole.ASSISTANT, ChatRole.TOOL
    open_ids: list[str | None] = []
    for message in messages:
        # Haystack's own fields rather than its properties, each of which builds a list: this runs before every call
        # of a model, over the whole conversation.
        role, content = message._role, message._content
        if role is tool:
            part = content[0] if len(content) == 1 else None
            if not isinstance(part, ToolCallResult) or part.origin.id not in open_ids:
                return False
            open_ids.remove(part.origin.id)
        elif open_ids:
            return False
        elif role is assistant:
            open_ids = [part.id for part in content if isinstance(part, ToolCall)]
    return not open_ids or (keep_pending and messages[-1].role is assistant)


def stands_in(message: ChatMessage) -> bool:
    """Whether `repair_tool_pairs` wrote the message, in place of a result that is missing."""
    return bool(message.meta) and message.meta.get(COMPACTION_META_KEY) == _STAND_IN


def answered_calls(message: ChatMessage, results: Sequence[ChatMessage]) -> list[int]:
    """
    Say which call each result answers.

    :param message: An assistant message with calls.
    :param results: The messages that answer them, in intact pairs.
    :returns: For each result the position of its call among the message's calls.
    """
    if len(results) == 1:
        return [0]
    batch = _Batch(message.tool_calls)
    for answer in results:
        for result in answer.tool_call_results:
            batch.take(result, answer, by_position=True)
    return list(batch.results)


@dataclass
class _Batch:
    """The calls of one assistant message and, by position of the call, the messages that answer them."""

    calls: list[ToolCall]
    results: dict[int, ChatMessage] = field(default_factory=dict)

    def take(self, result: ToolCallResult, message: ChatMessage, *, by_position: bool) -> bool:
        """Accept the result if one of the open calls is the one that it answers."""
        position = self._open_call(result.origin, by_position=by_position)
        if position is None:
            return False
        call = self.calls[position]
        if result.origin.id != call.id:
            result = replace(result, origin=call)
        alone = len(message) == 1 and message.tool_call_result is result
        self.results[position] = message if alone else replace(message, _content=[result])
        return True

    def result_messages(self) -> list[ChatMessage]:
        """One message a call: those that were there in the order they came, then stand-ins for the missing ones."""
        missing = [call for position, call in enumerate(self.calls) if position not in self.results]
        return [*self.results.values(), *map(_missing_result, missing)]

    def _open_call(self, origin: ToolCall, *, by_position: bool) -> int | None:
        open_calls = [position for position in range(len(self.calls)) if position not in self.results]
        same_id = [position for position in open_calls if self.calls[position].id == origin.id]
        if by_position and not same_id:
            # An id that was left out on one side says nothing: the name decides, and after it the order.
            same_id = [position for position in open_calls if None in (self.calls[position].id, origin.id)]
        same_name = [position for position in same_id if self.calls[position].tool_name == origin.tool_name]
        return next(iter([*same_name, *same_id]), None)


def _pair(messages: Sequence[ChatMessage]) -> dict[int, _Batch]:
    """Assign each result to the call that it answers. Batches are keyed by the index of their assistant message."""
    batches: dict[int, _Batch] = {}
    latest: _Batch | None = None
    # A stack of batches for each id, since an id may come again; each entry is looked at once.
    batches_by_id: dict[str | None, list[_Batch]] = {}
    for index, message in enumerate(messages):
        if message.role is ChatRole.ASSISTANT and message.tool_calls:
            latest = batches[index] = _Batch(message.tool_calls)
            for call in message.tool_calls:
                batches_by_id.setdefault(call.id, []).append(latest)
        elif message.role is ChatRole.TOOL:
            for result in message.tool_call_results:
                if latest is not None and latest.take(result, message, by_position=True):
                    continue
                earlier = batches_by_id.get(result.origin.id, []) if result.origin.id is not None else []
                while earlier and not earlier.pop().take(result, message, by_position=False):
                    pass
    return batches


def _missing_result(call: ToolCall) -> ChatMessage:
    return ChatMessage.from_tool(_MISSING_RESULT, origin=call, error=True, meta={COMPACTION_META_KEY: dict(_STAND_IN)})
