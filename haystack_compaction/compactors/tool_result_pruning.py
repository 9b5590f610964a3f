# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Replaces older tool results by a line that says what was there, and shortens oversized arguments of older calls."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from haystack import component
from haystack.dataclasses import ChatMessage, FileContent, ImageContent, TextContent, ToolCall, ToolCallResult

from haystack_compaction.checks import require_at_least, require_names, require_texts
from haystack_compaction.compactors.base import Compactor, CompactorOptions
from haystack_compaction.conversation.notes import COMPACTION_META_KEY
from haystack_compaction.conversation.shortening import described, json_text, strings_in, with_short_strings
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.conversation.tool_steps import (
    ToolStep,
    calls_need_reasoning,
    has_replay_data,
    is_recalled,
    loop_openers,
    older_tool_steps,
    result_of,
    tool_steps,
    with_calls,
)
from haystack_compaction.tokens.ledger import TokenLedger

if TYPE_CHECKING:
    from typing_extensions import Unpack

_DEFAULT_PLACEHOLDER = (
    '[Result of `{tool_name}` removed to save space: {num_tokens} tokens, beginning with "{first_line}". '
    "The call has been made.]"
)
_FIELDS = re.compile(r"\{(tool_name|num_tokens|first_line)\}")
# So many edits are prepared and counted at a time.
_BATCH = 50
_FIRST_LINE_CHARACTERS = 100
# A string in the arguments of an older call is cut down to this many characters.
_STRING_CHARACTERS = 200


@component
class ToolResultPruningCompactor(Compactor):
    """
    Replaces the content of older tool results by a placeholder, in place, so that the conversation keeps its shape.

    Results go oldest first, those of the tool `recall` before all others, until the target is reached. When they are
    not enough, long strings in the arguments of the same older calls are cut, a file that was written, say; the
    arguments stay valid JSON with all their keys. Results that were pruned before are left alone. Costs no call of a
    model.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage, ToolCall
    from haystack_compaction.compactors.tool_result_pruning import ToolResultPruningCompactor

    messages = [ChatMessage.from_user("Which of the files mentions tides?")]
    for number in range(10):
        call = ToolCall(tool_name="read_file", arguments={"path": f"notes_{number}.txt"}, id=f"call_{number}")
        messages.append(ChatMessage.from_assistant(tool_calls=[call]))
        messages.append(ChatMessage.from_tool("Wind and weather. " * 100, origin=call))

    result = ToolResultPruningCompactor().run(messages=messages, target_tokens=2000)
    assert result["report"].tokens_after <= 2000
    print(result["messages"][2].tool_call_result.result)
    ```

    :param min_keep_steps: How many of the newest tool-calling steps of the whole conversation stay as they are, at
        least 1, so that the model sees the results it has not acted on yet.
    :param min_tokens: Only messages that take more than this many tokens are rewritten, at least 0.
    :param placeholder: The text left in place of a result. `{tool_name}`, `{num_tokens}` (the result's size) and
        `{first_line}` (the beginning of its text) are replaced; any other brace is left alone.
    :param skip_meta_keys: Results whose `meta` has any of these keys are left alone. The default covers results that
        Haystack's `ToolResultOffloadHook` replaced by a reference the model needs.
    :param keep_tools: The names of tools whose calls and results are left alone.
    :param options: The options that every compactor takes, see `Compactor`.
    :raises ValueError: If an option is out of its range.
    """

    strategy = "tool_result_pruning"

    def __init__(
        self,
        *,
        min_keep_steps: int = 1,
        min_tokens: int = 200,
        placeholder: str = _DEFAULT_PLACEHOLDER,
        skip_meta_keys: Sequence[str] = ("tool_result_offloaded",),
        keep_tools: Sequence[str] = (),
        **options: "Unpack[CompactorOptions]",
    ) -> None:
        Compactor.__init__(self, **options)
        require_at_least(1, min_keep_steps=min_keep_steps)
        require_at_least(0, min_tokens=min_tokens)
        require_texts(placeholder=placeholder)
        require_names(skip_meta_keys=skip_meta_keys, keep_tools=keep_tools)
        self.min_keep_steps = min_keep_steps
        self.min_tokens = min_tokens
        self.placeholder = placeholder
        # Text and names of fields by turns.
        self._pieces = _FIELDS.split(placeholder)
        self.skip_meta_keys = tuple(skip_meta_keys)
        self.keep_tools = tuple(keep_tools)

    def rewrite(self, conversation: Conversation, target_tokens: int, ledger: TokenLedger) -> list[ChatMessage] | None:
        """
        Rewrite the fewest messages that bring the conversation under the target: results first, each oldest first.

        :param conversation: The conversation, valid and taken apart.
        :param target_tokens: The size to come under, in the ledger's tokens.
        :param ledger: What knows the size of each message.
        :returns: The messages to go on with, or None when nothing may be rewritten.
        """
        messages, sizes = conversation.messages, ledger.sizes(conversation.messages)
        made: list[tuple[int, ChatMessage]] = []

        def savings() -> Iterator[int]:
            edits = self._edits(conversation, sizes)
            while batch := list(islice(edits, _BATCH)):
                for (index, message), size in zip(batch, ledger.sizes([message for _, message in batch]), strict=True):
                    # A placeholder can be larger than a small result.
                    if size < sizes[index]:
                        made.append((index, message))
                        yield sizes[index] - size

        def edited(number: int) -> list[ChatMessage]:
            compacted = list(messages)
            for index, message in made[:number]:
                compacted[index] = message
            return compacted

        return ledger.edited_to_fit(savings(), size_before=sum(sizes), target_tokens=target_tokens, edited=edited)

    def _edits(self, conversation: Conversation, sizes: list[int]) -> Iterator[tuple[int, ChatMessage]]:
        """The messages that may be rewritten, by index and as they would be, in the order in which they are."""
        messages = conversation.messages
        steps = older_tool_steps(
            conversation,
            tool_steps(conversation),
            min_keep_steps=self.min_keep_steps,
            preserve_recent_turns=self.preserve_recent_turns,
        )
        results = chain.from_iterable(step.results for step in steps)
        for index in sorted(results, key=lambda index: not is_recalled(result_of(messages[index]))):
            if sizes[index] > self.min_tokens and self._is_prunable(messages[index]):
                yield index, self._pruned(messages[index], sizes[index])
        openers = loop_openers(conversation)
        for step in steps:
            index = step.assistant
            if sizes[index] > self.min_tokens and index not in openers and self._is_shrinkable(messages, step):
                yield index, self._shrunk(messages[index], sizes[index])

    def _is_prunable(self, message: ChatMessage) -> bool:
        if message.meta and not message.meta.keys().isdisjoint((COMPACTION_META_KEY, *self.skip_meta_keys)):
            return False
        return result_of(message).origin.tool_name not in self.keep_tools

    def _is_shrinkable(self, messages: Sequence[ChatMessage], step: ToolStep) -> bool:
        message = messages[step.assistant]
        if COMPACTION_META_KEY in message.meta or calls_need_reasoning(message):
            return False
        if step.in_current_task and has_replay_data(message):
            return False
        calls = message.tool_calls
        return any(map(_has_long_strings, calls)) and not any(call.tool_name in self.keep_tools for call in calls)

    def _pruned(self, message: ChatMessage, size: int) -> ChatMessage:
        result = result_of(message)
        pruned = ToolCallResult(self._placeholder(result, size), result.origin, result.error)
        return ChatMessage(message.role, [pruned], message.name, {**message.meta, **self._mark(size)})

    def _placeholder(self, result: ToolCallResult, size: int) -> str:
        values = {
            "tool_name": result.origin.tool_name,
            "num_tokens": str(size),
            "first_line": _first_line(result),
        }
        pieces = list(self._pieces)
        pieces[1::2] = [values[field] for field in pieces[1::2]]
        return "".join(pieces)

    def _shrunk(self, message: ChatMessage, size: int) -> ChatMessage:
        calls = [
            replace(call, arguments=with_short_strings(call.arguments, _STRING_CHARACTERS))
            if _has_long_strings(call)
            else call
            for call in message.tool_calls
        ]
        shrunk = with_calls(message, calls, self._mark(size))
        assert shrunk is not None
        return shrunk

    def _mark(self, size: int) -> dict[str, Any]:
        return {COMPACTION_META_KEY: {"strategy": self.strategy, "original_tokens": size}}


def _has_long_strings(call: ToolCall) -> bool:
    """Whether there is something to cut. Arguments that are no JSON, since they contain themselves, say, stay."""
    if json_text(call.arguments) is None:
        return False
    return any(len(string) > _STRING_CHARACTERS for string in strings_in(call.arguments))


def _first_line(result: ToolCallResult) -> str:
    """The beginning of what a result says, on one line; what it shows where it says nothing."""
    if isinstance(result.result, str):
        return _beginning(result.result)
    lines = (_beginning(part.text) for part in result.result if isinstance(part, TextContent))
    media = (described(part) for part in result.result if isinstance(part, (ImageContent, FileContent)))
    return next(filter(None, chain(lines, media)), "")[:_FIRST_LINE_CHARACTERS]


def _beginning(text: str) -> str:
    return text.lstrip()[:_FIRST_LINE_CHARACTERS].partition("\n")[0].rstrip()
