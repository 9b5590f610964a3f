# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Removes completed tool calls with their results, the least relevant first, and keeps every other message."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from haystack import component
from haystack.dataclasses import ChatMessage, ChatRole, TextContent, ToolCall, ToolCallResult

from haystack_compaction.compactors.base import Compactor, CompactorOptions, require_at_least
from haystack_compaction.compactors.removal import Removal
from haystack_compaction.conversation.identifiers import IdentifierIndex
from haystack_compaction.conversation.pairing import answered_calls
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.conversation.tool_steps import (
    ToolStep,
    has_replay_data,
    loop_openers,
    older_tool_steps,
    tool_steps,
    with_calls,
)
from haystack_compaction.tokens.ledger import TokenLedger

if TYPE_CHECKING:
    from typing_extensions import Unpack

_DEFAULT_NOTE = (
    "[{num_removed} earlier messages with completed tool calls and their results were removed to save space. "
    "What the calls did still holds.]"
)


_CANONICAL = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=str)


class _Pair(NamedTuple):
    """A call and the message that answers it, by index; `position` is that of the call among its `siblings`."""

    step: int
    position: int
    result: int
    call: ToolCall
    siblings: int


_step_of = attrgetter("step")

#: Pairs that can only go together.
_Unit: TypeAlias = tuple[_Pair, ...]

# What is left of an assistant message, by its index and the positions of the calls that it has lost. Remembered, so
# that the ledger meets the same message again.
_Remains: TypeAlias = dict[tuple[int, frozenset[int]], ChatMessage | None]


@component
class SelectivePruningCompactor(Compactor):
    """
    Removes completed tool calls together with their results, the least relevant first. Keeps every other message.

    First go the pairs that a later identical call superseded, then errors that a later success of the same tool
    resolved, then the oldest. Pairs whose identifiers (paths, addresses, ids, numbers) later messages use go last. An
    assistant message that loses all its calls keeps its text. Calls of one message that came with reasoning go
    together, since providers refuse the rest of them without it. Costs no call of a model.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage, ToolCall
    from haystack_compaction.compactors.selective_pruning import SelectivePruningCompactor

    messages = [ChatMessage.from_user("Which of the files mentions tides?")]
    for number in range(10):
        call = ToolCall(tool_name="read_file", arguments={"path": f"notes_{number}.txt"}, id=f"call_{number}")
        messages.append(ChatMessage.from_assistant(tool_calls=[call]))
        messages.append(ChatMessage.from_tool("Wind and weather. " * 50, origin=call))

    result = SelectivePruningCompactor().run(messages=messages, target_tokens=600)
    assert result["report"].tokens_after <= 600
    print(result["messages"][1].text)
    ```

    :param min_keep_steps: How many of the newest tool-calling steps of the whole conversation stay as they are, at
        least 0. A step is an assistant message with the results of its calls.
    :param keep_tools: The names of tools whose calls are never removed.
    :param note: The text of the note, from the user's role, that stands where pairs were removed; a line that names the
        removed calls is added to it. `{num_removed}` is replaced by the number of messages, those of earlier passes
        included. None removes silently.
    :param options: The options that every compactor takes, see `Compactor`.
    :raises ValueError: If an option is out of its range.
    """

    strategy = "selective_pruning"

    def __init__(
        self,
        *,
        min_keep_steps: int = 1,
        keep_tools: Sequence[str] = (),
        note: str | None = _DEFAULT_NOTE,
        **options: "Unpack[CompactorOptions]",
    ) -> None:
        Compactor.__init__(self, **options)
        require_at_least(0, min_keep_steps=min_keep_steps)
        self.min_keep_steps = min_keep_steps
        self.keep_tools = tuple(keep_tools)
        self.note = note

    def rewrite(self, conversation: Conversation, target_tokens: int, ledger: TokenLedger) -> list[ChatMessage] | None:
        """
        Remove the fewest pairs, in the order of their relevance, that bring the conversation under the target.

        :param conversation: The conversation, valid and taken apart.
        :param target_tokens: The size to come under, in the ledger's tokens.
        :param ledger: What knows the size of each message.
        :returns: The messages to go on with, or None when no pair may be removed.
        """
        steps = tool_steps(conversation)
        pairs = [pair for step in steps for pair in _pairs(conversation.messages, step)]
        removal = Removal(conversation, self.note, self.strategy)
        units: list[_Unit] = []
        remains: _Remains = {}

        def savings() -> Iterator[int]:
            sizes = ledger.sizes(conversation.messages)
            for unit in _least_relevant_first(conversation, self._units(conversation, steps, pairs), pairs):
                units.append(unit)
                yield _saving(removal, unit, sizes, remains, ledger)

        return ledger.edited_to_fit(
            savings(),
            size_before=ledger.count(conversation.messages) + removal.size_added(ledger, removed_messages=1),
            target_tokens=target_tokens,
            edited=lambda number: _without(removal, units[:number], remains),
        )

    def _units(self, conversation: Conversation, steps: list[ToolStep], pairs: list[_Pair]) -> list[_Unit]:
        """The pairs that may go, oldest first; those that can only go together in one unit."""
        older = older_tool_steps(
            conversation, steps, min_keep_steps=self.min_keep_steps, preserve_recent_turns=self.preserve_recent_turns
        )
        removable = {step.assistant for step in older} - loop_openers(conversation)
        units: list[_Unit] = []
        for index, group in groupby(pairs, key=_step_of):
            if index in removable:
                units.extend(self._units_of_step(conversation.messages[index], tuple(group)))
        return units

    def _units_of_step(self, message: ChatMessage, pairs: _Unit) -> list[_Unit]:
        removable = [pair for pair in pairs if pair.call.tool_name not in self.keep_tools]
        if len(pairs) == 1 or not (message.reasonings or has_replay_data(message)):
            return [(pair,) for pair in removable]
        return [pairs] if len(removable) == len(pairs) else []


def _pairs(messages: Sequence[ChatMessage], step: ToolStep) -> list[_Pair]:
    message = messages[step.assistant]
    calls = message.tool_calls
    positions = [0] if len(calls) == 1 else answered_calls(message, [messages[index] for index in step.results])
    return [
        _Pair(step.assistant, position, result, calls[position], len(calls))
        for result, position in zip(step.results, positions, strict=True)
    ]


def _least_relevant_first(conversation: Conversation, units: list[_Unit], pairs: list[_Pair]) -> Iterator[_Unit]:
    """The units in the order in which they go. What is named by whom is only looked up as far as somebody asks."""
    canonical = [_canonical(pair.call.arguments) for pair in pairs]
    superseded, resolved = _outdated(conversation.messages, pairs, canonical)
    for outdated in (superseded, superseded | resolved):
        yield from (unit for unit in units if all(pair.result in outdated for pair in unit))
        units = [unit for unit in units if not all(pair.result in outdated for pair in unit)]
    named = IdentifierIndex(_naming_texts(conversation, pairs, canonical))
    mentioned: list[_Unit] = []
    sources: list[_Unit] = []
    for unit in units:
        uses = [named.named_after(_result_text(conversation.messages[pair.result]), pair.result) for pair in unit]
        if any(first for _, first in uses):
            sources.append(unit)
        elif any(later for later, _ in uses):
            mentioned.append(unit)
        else:
            yield unit
    yield from mentioned
    yield from sources


def _outdated(messages: Sequence[ChatMessage], pairs: list[_Pair], canonical: list[str]) -> tuple[set[int], set[int]]:
    """The results that a later identical call superseded, and the errors that a later success of the tool resolved."""
    superseded: set[int] = set()
    resolved: set[int] = set()
    called: set[tuple[str, str]] = set()
    succeeded: set[tuple[str, str]] = set()
    successful_tools: set[str] = set()
    for pair, arguments in zip(reversed(pairs), reversed(canonical), strict=True):
        tool = pair.call.tool_name
        call = tool, arguments
        failed = any(part.error for part in messages[pair.result]._content if isinstance(part, ToolCallResult))
        if call in (called if failed else succeeded):
            superseded.add(pair.result)
        elif failed and tool in successful_tools:
            resolved.add(pair.result)
        called.add(call)
        if not failed:
            succeeded.add(call)
            successful_tools.add(tool)
    return superseded, resolved


def _naming_texts(conversation: Conversation, pairs: list[_Pair], canonical: list[str]) -> Iterator[tuple[int, str]]:
    """What user and assistant say and what calls are given, oldest first. What compaction wrote needs nothing."""
    notes = set(conversation.notes)
    arguments: dict[int, list[str]] = defaultdict(list)
    for pair, text in zip(pairs, canonical, strict=True):
        arguments[pair.step].append(text)
    for index, message in enumerate(conversation.messages):
        if message._role in (ChatRole.USER, ChatRole.ASSISTANT) and index not in notes:
            texts = [part.text for part in message._content if isinstance(part, TextContent)]
            yield index, "\n".join(texts + arguments.get(index, []))


def _saving(removal: Removal, unit: _Unit, sizes: list[int], remains: _Remains, ledger: TokenLedger) -> int:
    """What the removal of a unit saves; where its message keeps other calls, a little less than that."""
    results = sum(sizes[pair.result] for pair in unit)
    pair = unit[0]
    message = removal.conversation.messages[pair.step]
    if len(unit) < pair.siblings:
        return results + ledger.count([ChatMessage(_role=message.role, _content=[pair.call])])
    rest = _rest(message, pair.step, frozenset(pair.position for pair in unit), remains)
    return results + sizes[pair.step] - sum(ledger.sizes([] if rest is None else [rest]))


def _without(removal: Removal, units: list[_Unit], remains: _Remains) -> list[ChatMessage]:
    """The conversation without the given units."""
    gone = {pair.result for unit in units for pair in unit}
    lost: dict[int, list[int]] = {}
    for unit in units:
        for pair in unit:
            lost.setdefault(pair.step, []).append(pair.position)
    rewritten: dict[int, ChatMessage] = {}
    for index, positions in lost.items():
        rest = _rest(removal.conversation.messages[index], index, frozenset(positions), remains)
        if rest is None:
            gone.add(index)
        else:
            rewritten[index] = rest
    return removal.without(gone, rewritten=rewritten, removed_calls=_calls(units))


def _rest(message: ChatMessage, index: int, lost: frozenset[int], remains: _Remains) -> ChatMessage | None:
    if (index, lost) not in remains:
        kept = [call for position, call in enumerate(message.tool_calls) if position not in lost]
        remains[index, lost] = with_calls(message, kept)
    return remains[index, lost]


def _calls(units: Iterable[_Unit]) -> Counter[str]:
    return Counter(pair.call.tool_name for unit in units for pair in unit)


def _canonical(arguments: dict[str, Any]) -> str:
    try:
        return _CANONICAL.encode(arguments)
    except (TypeError, ValueError, RecursionError):
        # Keys that can't be sorted or written: such a call is only identical to itself.
        return str(id(arguments))


def _result_text(message: ChatMessage) -> str:
    texts: list[str] = []
    for part in message._content:
        if isinstance(part, ToolCallResult):
            result = part.result
            texts.extend(
                [result] if isinstance(result, str) else (b.text for b in result if isinstance(b, TextContent))
            )
    return "\n".join(texts)
