# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The promises that every compactor keeps, checked on random conversations, whole ones and broken ones."""

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

from haystack.dataclasses import (
    ChatMessage,
    ChatRole,
    ImageContent,
    ReasoningContent,
    TextContent,
    ToolCall,
    ToolCallResult,
)
from haystack.hooks.compaction.types import Compactor as CompactorProtocol
from haystack.token_counters import TokenCounter
from haystack.tools import ToolsType

from haystack_compaction.checks import require_method
from haystack_compaction.compaction_pass import changes_between
from haystack_compaction.conversation.notes import COMPACTION_META_KEY, is_note, is_omission_note, is_pinned, pin
from haystack_compaction.conversation.repair import is_valid
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.conversation.tool_steps import loop_openers
from haystack_compaction.tokens.estimate import EstimateTokenCounter

try:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError('Run `pip install "haystack-compaction[test]"` to use `haystack_compaction.testing`.') from error

# What providers send back instead of a message's content, see DESIGN of the converters: it must go with that content.
_REPLAY_KEYS = ("raw_content_for_server_tools", "thought_signatures")


class PromiseBrokenError(AssertionError):
    """A compactor broke one of its promises. The message names the promise and shows the conversation."""


def check_compactor(compactor: CompactorProtocol, *, max_examples: int = 200) -> None:
    """
    Check the promises of a compactor on random conversations and shrink what breaks one of them.

    The promises, by number: (1) the result is a new list, strictly smaller, of the same message objects in the same
    order, and the input is unchanged; (2) providers accept the result: calls are followed by exactly their results, no
    text is blank, the first message after the head is from the user; (3) calls stay with their results; (4) head,
    pinned messages, the current task and the newest steps stay; (5) there is no more than one omission note, and notes
    are never lost; (6) a rewritten assistant message has neither reasoning nor replay data; (7) nothing crashes it, not
    even a failing counter; (8) the same input gives the same output.

    ### Usage example

    ```python
    from haystack_compaction import SlidingWindowCompactor
    from haystack_compaction.testing import check_compactor

    check_compactor(SlidingWindowCompactor(), max_examples=20)
    ```

    :param compactor: Any object with a `compact` method as in Haystack's `Compactor` protocol.
    :param max_examples: How many random conversations to try, at least 1.
    :raises ValueError: If it has no such method.
    :raises PromiseBrokenError: For the first promise found broken, with the smallest conversation that breaks it.
    """

    require_method("compact", compactor=compactor)

    @settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(messages=conversations(), share=st.sampled_from([0.0, 0.1, 0.3, 0.6, 0.9, 1.0]))
    def check(messages: list[ChatMessage], share: float) -> None:
        target_tokens = int(EstimateTokenCounter().count(messages) * share)
        for promise in _PROMISES:
            promise(_Trial(compactor, messages, target_tokens))

    library_logger = logging.getLogger("haystack_compaction")
    level = library_logger.level
    # The counters below fail on purpose, hundreds of times.
    library_logger.setLevel(logging.CRITICAL)
    try:
        check()
    finally:
        library_logger.setLevel(level)


@st.composite
def conversations(draw: st.DrawFn, *, broken: bool | None = None) -> list[ChatMessage]:
    """
    A hypothesis strategy for conversations as they come from agents, chats and other people's storage.

    :param broken: True for conversations with faults in them (results without calls, calls without results, ids that
        repeat or are missing, messages in between, blank texts), False for none, None for either.
    :returns: Lists of messages, oldest to newest.
    """
    with_faults = draw(st.booleans()) if broken is None else broken
    messages = [ChatMessage.from_system(text) for text in draw(st.lists(_texts(), max_size=2))]
    for block in draw(st.lists(st.sampled_from(_BLOCKS + (_FAULTS if with_faults else [])), max_size=12)):
        messages.extend(block(draw))
    marks = draw(st.lists(st.booleans(), min_size=len(messages), max_size=len(messages))) if draw(st.booleans()) else []
    pinned = {index for index, mark in enumerate(marks) if mark and index % 3 == 0}
    return [pin(message) if index in pinned else message for index, message in enumerate(messages)]


class _Trial:
    """One conversation given to one compactor, at most once for each promise that asks."""

    def __init__(self, compactor: CompactorProtocol, messages: list[ChatMessage], target_tokens: int) -> None:
        self.compactor = compactor
        self.messages = messages
        self.target_tokens = target_tokens
        self.counter = EstimateTokenCounter()

    def compacted(
        self, counter: TokenCounter | None = None, messages: list[ChatMessage] | None = None
    ) -> list[ChatMessage] | None:
        given_list = list(self.messages) if messages is None else messages
        try:
            return self.compactor.compact(given_list, self.target_tokens, counter or self.counter)
        except Exception as error:
            raise self.broken(7, f"compact raised {type(error).__name__}: {error}") from error

    def broken(self, promise: int, what: str, result: Sequence[ChatMessage] | None = None) -> PromiseBrokenError:
        shown = [f"Promise {promise} is broken: {what}.", f"Target: {self.target_tokens} tokens. The conversation:"]
        shown.extend(map(_shown, self.messages))
        if result is not None:
            shown.extend(["What the compactor returned:", *map(_shown, result)])
        return PromiseBrokenError("\n".join(shown))


def _smaller_and_untouched(trial: _Trial) -> None:
    given_list = list(trial.messages)
    before = [message.to_dict() for message in given_list]
    result = trial.compacted(messages=given_list)
    if list(map(id, given_list)) != list(map(id, trial.messages)):
        raise trial.broken(1, "the caller's list was changed", result)
    if [message.to_dict() for message in given_list] != before:
        raise trial.broken(1, "a message of the caller was changed", result)
    if result is None:
        return
    if result is given_list:
        raise trial.broken(1, "the caller's own list was returned", result)
    if trial.counter.count(result) >= trial.counter.count(given_list):
        raise trial.broken(1, "the result is not smaller", result)
    positions = {id(message): index for index, message in enumerate(given_list)}
    kept = [positions[id(message)] for message in result if id(message) in positions]
    if len(set(kept)) < len(kept):
        raise trial.broken(1, "a message came twice", result)
    if is_valid(given_list) and kept != sorted(kept):
        raise trial.broken(1, "kept messages changed their order", result)


def _accepted_by_providers(trial: _Trial) -> None:
    result = trial.compacted()
    if result is None:
        return
    fault = provider_fault(result)
    if fault:
        raise trial.broken(2, fault, result)
    first_before, first_after = _first_after_head(trial.messages), _first_after_head(result)
    if first_before is ChatRole.USER and first_after not in (ChatRole.USER, None):
        raise trial.broken(2, f"after the head comes a message from the {first_after}", result)


def provider_fault(messages: Sequence[ChatMessage]) -> str | None:
    """
    Look at a conversation with the eyes of a strict provider.

    A call that is still pending in the very last message is no fault: something is about to run it.

    :param messages: The conversation.
    :returns: What a provider would reject, or None.
    """
    for index, message in enumerate(messages):
        texts = [part for part in message._content if isinstance(part, TextContent)]
        for result in message.tool_call_results:
            if not isinstance(result.result, str):
                texts.extend(part for part in result.result if isinstance(part, TextContent))
        if any(not part.text.strip() for part in texts):
            return f"message {index} has a blank text"
        if not any(not isinstance(part, ReasoningContent) for part in message._content):
            return f"message {index} says nothing"
        if message.role is ChatRole.TOOL and len(message) != 1:
            return f"message {index} holds {len(message)} results"
        if message.tool_calls:
            answers = _answers_after(messages, index)
            pending = not answers and index == len(messages) - 1
            called = sorted(str(call.id) for call in message.tool_calls)
            if not pending and sorted(str(answer.origin.id) for answer in answers) != called:
                return f"the calls of message {index} are not followed by exactly their results"
        if message.role is ChatRole.TOOL:
            caller = index
            while caller > 0 and messages[caller].role is ChatRole.TOOL:
                caller -= 1
            if not messages[caller].tool_calls:
                return f"message {index} is a result without a call"
    return None


def _units_stay_whole(trial: _Trial) -> None:
    result = trial.compacted()
    if result is None or not is_valid(trial.messages):
        return
    present = set(map(id, result))
    rewritten = {id(before): after for before, after in changes_between(trial.messages, result).rewritten}
    for index, message in enumerate(trial.messages):
        if not message.tool_calls or id(message) not in present:
            continue
        for answer in range(index + 1, index + 1 + len(_answers_after(trial.messages, index))):
            if id(trial.messages[answer]) not in present and id(trial.messages[answer]) not in rewritten:
                raise trial.broken(3, f"message {index} stayed without its result, message {answer}", result)


def _floor_stays(trial: _Trial) -> None:
    result = trial.compacted()
    if result is None or not is_valid(trial.messages):
        return
    conversation = Conversation(trial.messages)
    present = set(map(id, result))
    rewritten = {id(before) for before, _ in changes_between(trial.messages, result).rewritten}
    expected: dict[int, str] = {}
    if getattr(trial.compactor, "preserve_system_prompt", True):
        expected.update(dict.fromkeys(conversation.head, "the head"))
    completed = conversation.steps[:-1] if trial.messages[-1].tool_calls else conversation.steps
    newest = getattr(trial.compactor, "min_keep_steps", 0)
    expected.update(
        {index: "one of the newest steps" for step in completed[len(completed) - newest :] for index in step}
    )
    if conversation.task_index is not None:
        expected[conversation.task_index] = "the current task"
    for index, what in expected.items():
        message = trial.messages[index]
        if id(message) not in present and id(message) not in rewritten and not is_note(message):
            raise trial.broken(4, f"{what}, message {index}, is gone", result)
    for index, message in enumerate(trial.messages):
        if is_pinned(message) and id(message) not in present:
            raise trial.broken(4, f"message {index} is pinned and gone", result)


def _notes_add_up(trial: _Trial) -> None:
    result = trial.compacted()
    if result is None:
        return
    notes_before = [message for message in trial.messages if is_note(message)]
    notes_after = [message for message in result if is_note(message)]
    omission_notes = [note for note in notes_after if is_omission_note(note) and not is_pinned(note)]
    wrote_one = any(id(note) not in set(map(id, trial.messages)) for note in omission_notes)
    if len(omission_notes) > 1 and wrote_one:
        raise trial.broken(5, "there is more than one omission note", result)
    if notes_before and not notes_after:
        raise trial.broken(5, "the notes of earlier passes are gone", result)
    if sum(map(_removed_messages, notes_after)) < sum(map(_removed_messages, notes_before)):
        raise trial.broken(5, "the notes count fewer removed messages than before", result)


def _rewritten_without_replay_data(trial: _Trial) -> None:
    result = trial.compacted()
    if result is None:
        return
    known = {id(message) for message in trial.messages}
    contents = [_said(message) for message in trial.messages]
    openers = loop_openers(Conversation(result))
    for index, message in enumerate(result):
        if id(message) in known or message.role is not ChatRole.ASSISTANT or _said(message) in contents:
            continue
        # The running tool loop must begin with its signed thinking, whatever else of that message was rewritten.
        replays = message.reasonings and index not in openers
        if replays or any(key in message.meta for key in _REPLAY_KEYS):
            raise trial.broken(6, f"message {index} of the result replays content that it no longer has", result)


def _survives_a_failing_counter(trial: _Trial) -> None:
    for fails_at in (1, 2, 5):
        result = trial.compacted(_FailingCounter(fails_at))
        if result is not None and provider_fault(result):
            raise trial.broken(7, "a failing counter led to an invalid conversation", result)
    counter = _WholeConversationsOnly()
    trial.compacted(counter)
    if counter.fragment is not None:
        raise trial.broken(7, "a counter that validates was given a fragment", counter.fragment)


def _deterministic(trial: _Trial) -> None:
    first, second = trial.compacted(), trial.compacted(EstimateTokenCounter())
    if _plain(first) != _plain(second):
        raise trial.broken(8, "two runs had two results", second)


_PROMISES: list[Callable[[_Trial], None]] = [
    _smaller_and_untouched,
    _accepted_by_providers,
    _units_stay_whole,
    _floor_stays,
    _notes_add_up,
    _rewritten_without_replay_data,
    _deterministic,
    _survives_a_failing_counter,
]


class _FailingCounter(TokenCounter):
    """A counter that works and then does not."""

    def __init__(self, fails_at: int) -> None:
        self.calls_left = fails_at

    def count(self, messages: list[ChatMessage], tools: ToolsType | None = None) -> int:
        self.calls_left -= 1
        if self.calls_left <= 0:
            raise RuntimeError("the counting service is down")
        return EstimateTokenCounter().count(messages, tools)

    def to_dict(self) -> dict[str, Any]:
        return {}


class _WholeConversationsOnly(TokenCounter):
    """A counter like a provider's API, which rejects what it would not accept as a request."""

    def __init__(self) -> None:
        #: What it was given and had to reject. Kept, since a compactor works around a counter that raises.
        self.fragment: list[ChatMessage] | None = None

    def count(self, messages: list[ChatMessage], tools: ToolsType | None = None) -> int:
        if provider_fault(messages) or (messages and messages[-1].tool_calls):
            self.fragment = messages
            raise ValueError("this is no request that a provider would take")
        return EstimateTokenCounter().count(messages, tools) * 2

    def to_dict(self) -> dict[str, Any]:
        return {}


def _texts() -> st.SearchStrategy[str]:
    words = st.sampled_from(
        [
            "tide",
            "deploy",
            "never",
            "/etc/app.conf",
            "<|endoftext|>",
            "潮汐",
            "مد",
            "42",
            "\ud83d",
            "{num_removed}",
            "{}",
        ]
    )
    # The length is what makes some messages worth removing.
    return st.builds(lambda some, times: " ".join(some) * times, st.lists(words, min_size=1, max_size=4), _TIMES)


_TIMES = st.sampled_from([1, 1, 5, 40])
_IDS = st.sampled_from(["0", "1", "call_a", None])


def _user(draw: st.DrawFn) -> list[ChatMessage]:
    return [ChatMessage.from_user(draw(_texts()))]


def _assistant(draw: st.DrawFn) -> list[ChatMessage]:
    return [ChatMessage.from_assistant(draw(_texts()), meta=draw(_META))]


def _step(draw: st.DrawFn) -> list[ChatMessage]:
    calls = [
        ToolCall(draw(st.sampled_from(["search", "read"])), {"q": draw(_texts())}, id=f"{position}")
        for position in range(draw(st.integers(1, 3)))
    ]
    message = ChatMessage.from_assistant(
        draw(st.none() | _texts()), tool_calls=calls, reasoning=draw(st.none() | st.just("so")), meta=draw(_META)
    )
    return [message, *(ChatMessage.from_tool(draw(_texts()), origin=call, error=draw(st.booleans())) for call in calls)]


def _turn(draw: st.DrawFn) -> list[ChatMessage]:
    return [*_user(draw), *(_step(draw) if draw(st.booleans()) else []), *_assistant(draw)]


def _picture(draw: st.DrawFn) -> list[ChatMessage]:
    image = ImageContent("aGk=", mime_type="image/png", validation=False)
    return [ChatMessage.from_user(content_parts=[draw(_texts()), image])]


def _late_system(draw: st.DrawFn) -> list[ChatMessage]:
    return [ChatMessage.from_system(draw(_texts()))]


def _earlier_note(draw: st.DrawFn) -> list[ChatMessage]:
    strategy = draw(st.sampled_from(["sliding_window", "summarization"]))
    marker = {"strategy": strategy, "removed_messages": draw(st.integers(1, 9)), "kept_messages": 3}
    return [ChatMessage.from_user(draw(_texts()), meta={COMPACTION_META_KEY: marker})]


def _call_without_result(draw: st.DrawFn) -> list[ChatMessage]:
    return [ChatMessage.from_assistant(tool_calls=[ToolCall("search", {"q": draw(_texts())}, id=draw(_IDS))])]


def _result_without_call(draw: st.DrawFn) -> list[ChatMessage]:
    return [ChatMessage.from_tool(draw(_texts()), origin=ToolCall("search", {}, id=draw(_IDS)))]


def _interrupted_step(draw: st.DrawFn) -> list[ChatMessage]:
    call, *results = _step(draw)
    return [call, *results[:1], *_user(draw), *results[1:]]


def _results_in_one_message(draw: st.DrawFn) -> list[ChatMessage]:
    calls = [ToolCall("read", {}, id=draw(_IDS)) for _ in range(2)]
    results = [ToolCallResult(draw(_texts()), origin=call, error=False) for call in calls]
    return [ChatMessage.from_assistant(tool_calls=calls), ChatMessage(_role=ChatRole.TOOL, _content=results)]


def _blank(draw: st.DrawFn) -> list[ChatMessage]:
    text = draw(st.sampled_from(["", " ", "\n\t"]))
    calls = [ToolCall("read", {}, id="b")] if draw(st.booleans()) else []
    nothing: st.SearchStrategy[str | list[TextContent]] = st.sampled_from(["", [TextContent("")]])
    answers = [ChatMessage.from_tool(draw(nothing), origin=call) for call in calls]
    return [
        draw(st.sampled_from([ChatMessage.from_user(text), ChatMessage.from_system(text)])),
        ChatMessage.from_assistant(draw(st.sampled_from([text, None])), tool_calls=calls),
        *answers,
    ]


_META: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [{}, {}, {"raw_content_for_server_tools": [{"type": "text"}]}, {"thought_signatures": ["s"]}]
)
_BLOCKS = [_turn, _turn, _step, _step, _user, _assistant, _picture, _late_system, _earlier_note]
_FAULTS = [_call_without_result, _result_without_call, _interrupted_step, _results_in_one_message, _blank]


def _answers_after(messages: Sequence[ChatMessage], index: int) -> list[ToolCallResult]:
    answers: list[ToolCallResult] = []
    for message in messages[index + 1 :]:
        if message.role is not ChatRole.TOOL:
            break
        answers.extend(message.tool_call_results)
    return answers


def _first_after_head(messages: Sequence[ChatMessage]) -> ChatRole | None:
    return next((message.role for message in messages if message.role is not ChatRole.SYSTEM), None)


def _said(message: ChatMessage) -> list[str]:
    return [
        str(part)
        for part in message._content
        if not isinstance(part, ReasoningContent) and not (isinstance(part, TextContent) and not part.text.strip())
    ]


def _removed_messages(note: ChatMessage) -> int:
    marker = note.meta[COMPACTION_META_KEY]
    return int(marker.get("removed_messages", 0)) if isinstance(marker, dict) else 0


def _plain(messages: list[ChatMessage] | None) -> list[dict[str, Any]] | None:
    return None if messages is None else [message.to_dict() for message in messages]


def _shown(message: ChatMessage) -> str:
    text = json.dumps(message.to_dict(), default=str)
    return f"  {text if len(text) <= 400 else text[:400] + '...'}"
