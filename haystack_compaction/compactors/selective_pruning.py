# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Removes completed tool calls with their results, the least relevant first, and keeps every other message."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from haystack import component
from haystack.dataclasses import ChatMessage, TextContent, ToolCall

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


class _Relevance(IntEnum):
    """How much a pair is still needed; the least goes first."""

    SUPERSEDED = 0
    RESOLVED_ERROR = 1
    UNUSED = 2
    #: Later messages name what it names.
    MENTIONED = 3
    #: Later messages name something that nobody had named before it.
    SOURCE = 4


@dataclass(frozen=True)
class _Pair:
    """A call and the message that answers it, by index; `position` is that of the call in its message."""

    step: int
    position: int
    result: int
    call: ToolCall


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
        units = self._units(conversation)
        if not units:
            return None
        removal = Removal(conversation, self.note, self.strategy)
        calls = _calls(units)
        size_added = removal.size_added(ledger, removed_messages=2 * calls.total(), removed_calls=calls)
        remains: _Remains = {}
        fewest = ledger.fewest_edits(
            self._savings(conversation, units, ledger),
            size_before=ledger.count(conversation.messages) + size_added,
            target_tokens=target_tokens,
            edited=lambda number: _without(removal, units[:number], remains),
        )
        return _without(removal, units[:fewest], remains)

    def _units(self, conversation: Conversation) -> list[list[_Pair]]:
        """The pairs that may go, in the order in which they go; those that can only go together in one list."""
        steps = tool_steps(conversation)
        pairs = {step.index: _pairs(conversation.messages, step) for step in steps}
        openers = loop_openers(conversation)
        older = older_tool_steps(
            conversation,
            steps,
            min_keep_steps=self.min_keep_steps,
            preserve_recent_turns=self.preserve_recent_turns,
        )
        units = [
            unit
            for step in older
            if step.index not in openers
            for unit in self._units_of_step(conversation.messages[step.index], pairs[step.index])
        ]
        relevance = _relevance(conversation, [pair for step in steps for pair in pairs[step.index]])
        return sorted(units, key=lambda unit: (max(relevance[pair.result] for pair in unit), unit[0].result))

    def _units_of_step(self, message: ChatMessage, pairs: list[_Pair]) -> list[list[_Pair]]:
        removable = [pair for pair in pairs if pair.call.tool_name not in self.keep_tools]
        if not message.reasonings and not has_replay_data(message):
            return [[pair] for pair in removable]
        return [pairs] if len(removable) == len(pairs) else []

    def _savings(self, conversation: Conversation, units: list[list[_Pair]], ledger: TokenLedger) -> list[int]:
        """What the removal of each unit saves. Of a message that keeps other calls or a text, its share is a guess."""
        sizes = ledger.sizes(conversation.messages)
        calls: Counter[int] = Counter(pair.step for unit in units for pair in unit)
        return [sum(sizes[pair.result] + sizes[pair.step] // calls[pair.step] for pair in unit) for unit in units]


def _without(removal: Removal, units: list[list[_Pair]], remains: _Remains) -> list[ChatMessage]:
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


def _calls(units: Iterable[list[_Pair]]) -> Counter[str]:
    return Counter(pair.call.tool_name for unit in units for pair in unit)


def _pairs(messages: Sequence[ChatMessage], step: ToolStep) -> list[_Pair]:
    message = messages[step.index]
    positions = answered_calls(message, [messages[index] for index in step.results])
    calls = message.tool_calls
    return [
        _Pair(step.index, position, result, calls[position])
        for result, position in zip(step.results, positions, strict=True)
    ]


def _relevance(conversation: Conversation, pairs: list[_Pair]) -> dict[int, _Relevance]:
    """How relevant each pair still is, by the index of its result."""
    index = IdentifierIndex(conversation)
    relevance: dict[int, _Relevance] = {}
    # What newer pairs called and whether that went well, hence the walk from the newest to the oldest.
    called: set[tuple[str, str]] = set()
    succeeded: set[tuple[str, str]] = set()
    successful_tools: set[str] = set()
    for pair in reversed(pairs):
        tool = pair.call.tool_name
        call = tool, _canonical(pair.call.arguments)
        message = conversation.messages[pair.result]
        failed = any(result.error for result in message.tool_call_results)
        if call in (called if failed else succeeded):
            relevance[pair.result] = _Relevance.SUPERSEDED
        elif failed and tool in successful_tools:
            relevance[pair.result] = _Relevance.RESOLVED_ERROR
        else:
            named, new = index.named_after(_result_text(message), pair.result)
            relevance[pair.result] = _Relevance.SOURCE if new else _Relevance(_Relevance.UNUSED + named)
        called.add(call)
        if not failed:
            succeeded.add(call)
            successful_tools.add(tool)
    return relevance


def _canonical(arguments: dict[str, Any]) -> str:
    try:
        return json.dumps(arguments, sort_keys=True, default=str)
    except (TypeError, ValueError, RecursionError):
        # Keys that can't be sorted or written: such a call is only identical to itself.
        return str(id(arguments))


def _result_text(message: ChatMessage) -> str:
    texts: list[str] = []
    for part in message.tool_call_results:
        blocks = [TextContent(part.result)] if isinstance(part.result, str) else part.result
        texts.extend(block.text for block in blocks if isinstance(block, TextContent))
    return "\n".join(texts)
