# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Removes completed tool calls with their results, the least relevant first, and keeps every other message."""

import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from haystack import component
from haystack.dataclasses import ChatMessage, ChatRole, TextContent, ToolCall

from haystack_compaction.checks import given, require_at_least, require_names, require_texts
from haystack_compaction.compactors.base import Compactor, CompactorOptions
from haystack_compaction.compactors.removal import Removal
from haystack_compaction.conversation.identifiers import IdentifierIndex
from haystack_compaction.conversation.notes import COMPACTION_META_KEY, RECALL_TOOL_NAME
from haystack_compaction.conversation.pairing import answered_calls
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.conversation.tool_steps import (
    ToolStep,
    has_replay_data,
    loop_openers,
    older_tool_steps,
    result_of,
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

# So many of the newest messages are asked what they name. What was only named long before them is hardly of use still.
_NAMING_MESSAGES = 1_000
# Where there are many results, only the ends of large ones are searched for names: so many characters in all, though
# of each at least so many.
_SEARCHED_CHARACTERS = 300_000
_LEAST_SEARCHED = 100

_CANONICAL = json.JSONEncoder(sort_keys=True, ensure_ascii=False, default=str)


class _Pair(NamedTuple):
    """A call and the message that answers it, by index; `position` is that of the call among its `siblings`."""

    step: int
    position: int
    result: int
    call: ToolCall
    siblings: int


#: Pairs that can only go together.
_Unit: TypeAlias = tuple[_Pair, ...]


@component
class SelectivePruningCompactor(Compactor):
    """
    Removes completed tool calls together with their results, the least relevant first. Keeps every other message.

    First goes what the tool `recall` told, which the archive still has, then the pairs that a later identical call
    superseded, then errors that a later success of the same tool resolved, then the oldest. Pairs whose identifiers
    (paths, addresses, ids, numbers) later messages use go last. Calls of one message that came with reasoning go
    together, since providers refuse the rest of them without it. Costs no call of a model.

    An assistant message that loses all its calls keeps its text as a message of its own. Where that would come to stand
    right before the calls of another message, which Gemini refuses, the note stands between the two if it is the
    beginning of the current task, and otherwise takes up what such messages said.

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
        included. None removes silently, and with the calls the texts that can't stand without a note.
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
        require_names(keep_tools=keep_tools)
        require_texts(**given(note=note))
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
        batches = [_pairs(conversation.messages, step) for step in steps]
        units = self._units(conversation, steps, batches)
        if not units:
            return None
        pruning = _Pruning(Removal(conversation, self.note, self.strategy), units, ledger)
        if pruning.must_be_complete(target_tokens):
            return pruning.without(len(units))
        pruning.units = _least_relevant_first(conversation, units, batches)
        return pruning.fewest(target_tokens)

    def _units(self, conversation: Conversation, steps: list[ToolStep], batches: list[_Unit]) -> list[_Unit]:
        """The pairs that may go, oldest first; those that can only go together in one unit."""
        older = older_tool_steps(
            conversation, steps, min_keep_steps=self.min_keep_steps, preserve_recent_turns=self.preserve_recent_turns
        )
        removable = {step.assistant for step in older} - loop_openers(conversation)
        units: list[_Unit] = []
        for step, batch in zip(steps, batches, strict=True):
            if step.assistant in removable:
                units.extend(self._units_of_step(conversation.messages[step.assistant], batch))
        return units

    def _units_of_step(self, message: ChatMessage, batch: _Unit) -> list[_Unit]:
        removable = [pair for pair in batch if pair.call.tool_name not in self.keep_tools]
        if len(batch) == 1 or message.reasonings or has_replay_data(message):
            return [batch] if len(removable) == len(batch) else []
        return [(pair,) for pair in removable]


def _pairs(messages: Sequence[ChatMessage], step: ToolStep) -> _Unit:
    """The calls of one step, each with its result."""
    message = messages[step.assistant]
    calls = [part for part in message._content if isinstance(part, ToolCall)]
    if len(calls) == 1:
        return (_Pair(step.assistant, 0, step.results.start, calls[0], 1),)
    positions = answered_calls(message, [messages[index] for index in step.results])
    return tuple(
        _Pair(step.assistant, position, result, calls[position], len(calls))
        for result, position in zip(step.results, positions, strict=True)
    )


class _Pruning:
    """
    Units being removed in a certain order.

    :param removal: What takes messages out of the conversation.
    :param units: The units, in the order in which they go.
    :param ledger: What measures.
    """

    def __init__(self, removal: Removal, units: list[_Unit], ledger: TokenLedger) -> None:
        self.units = units
        self._removal = removal
        self._messages = removal.conversation.messages
        self._ledger = ledger
        # What is left of an assistant message, by its index and the positions of the calls that it has lost.
        # Remembered, so that the ledger meets the same message again.
        self._remains: dict[tuple[int, tuple[int, ...]], ChatMessage | None] = {}
        indexes = {index for unit in units for pair in unit for index in (pair.step, pair.result)}
        self._staying = [message for index, message in enumerate(self._messages) if index not in indexes]
        self._size_added = removal.size_added(ledger, removed_messages=1)

    def must_be_complete(self, target_tokens: int) -> bool:
        """Whether all units must go, whatever their order."""
        return self._ledger.exceeds(self._staying, target_tokens - self._size_added)

    def fewest(self, target_tokens: int) -> list[ChatMessage] | None:
        """The conversation without as many units as must go for the rest to come under the target."""
        units = self._as_messages()
        number = self._ledger.fewest_removals(
            units,
            staying=self._staying,
            size_added=self._size_added,
            target_tokens=target_tokens,
            without=self.without,
            is_measured=True,
        )
        # Messages that lose their calls have a text that stays, which was left out of account so far.
        texts = [rest for rest in self._left(number).values() if rest is not None]
        size = self._ledger.count([*self._staying, *chain.from_iterable(units[number:])]) + self._ledger.count(texts)
        return self._ledger.edited_to_fit(
            chain([0], map(self._saving, self.units[number:])),
            size_before=size + self._size_added,
            target_tokens=target_tokens,
            edited=lambda edits: self.without(number + edits - 1),
        )

    def without(self, number: int) -> list[ChatMessage]:
        """The conversation without the first so many units."""
        pairs = list(chain.from_iterable(self.units[:number]))
        left = self._left(number)
        gone = {pair.result for pair in pairs}.union(index for index, rest in left.items() if rest is None)
        rewritten = {index: rest for index, rest in left.items() if rest is not None}
        calls = Counter([pair.call.tool_name for pair in pairs])
        return self._removal.without(gone, rewritten=rewritten, removed_calls=calls)

    def _left(self, number: int) -> dict[int, ChatMessage | None]:
        """What is left of each message that has lost calls with the first so many units, by its index."""
        lost: defaultdict[int, tuple[int, ...]] = defaultdict(tuple)
        for pair in chain.from_iterable(self.units[:number]):
            lost[pair.step] += (pair.position,)
        return {index: self._rest(index, positions) for index, positions in lost.items()}

    def _as_messages(self) -> list[list[ChatMessage]]:
        """The messages of each unit; a message with calls in several of them goes with the first."""
        seen: set[int] = set()
        units: list[list[ChatMessage]] = []
        for unit in self.units:
            messages = [self._messages[pair.result] for pair in unit]
            step = unit[0].step
            if step not in seen:
                seen.add(step)
                messages.append(self._messages[step])
            units.append(messages)
        return units

    def _saving(self, unit: _Unit) -> int:
        """What the removal of a unit saves; where its message keeps other calls, a little less than that."""
        results = self._ledger.count([self._messages[pair.result] for pair in unit])
        pair = unit[0]
        message = self._messages[pair.step]
        if len(unit) < pair.siblings:
            return results + self._ledger.count([ChatMessage(message._role, [pair.call])])
        rest = self._rest(pair.step, tuple(pair.position for pair in unit))
        return results + self._ledger.count([message]) - self._ledger.count([] if rest is None else [rest])

    def _rest(self, index: int, lost: tuple[int, ...]) -> ChatMessage | None:
        key = index, lost
        if key not in self._remains:
            message = self._messages[index]
            calls = message.tool_calls
            if len(lost) < len(calls):
                kept = [call for position, call in enumerate(calls) if position not in lost]
                self._remains[key] = with_calls(message, kept)
            else:
                # Without a mark, the text would pass for the answer that ends a turn.
                marker = {"strategy": SelectivePruningCompactor.strategy}
                self._remains[key] = with_calls(message, (), {COMPACTION_META_KEY: marker})
        return self._remains[key]


def _least_relevant_first(conversation: Conversation, units: list[_Unit], batches: list[_Unit]) -> list[_Unit]:
    """The units in the order in which they go."""
    superseded, resolved = _outdated(conversation.messages, batches)
    ordered: list[_Unit] = []
    # What the archive told is still there.
    recalled = {pair.result for pair in chain.from_iterable(batches) if pair.call.tool_name == RECALL_TOOL_NAME}
    for outdated in filter(None, (recalled, superseded, superseded | resolved)):
        ordered += (unit for unit in units if all(pair.result in outdated for pair in unit))
        units = [unit for unit in units if not all(pair.result in outdated for pair in unit)]
    messages = conversation.messages
    named = IdentifierIndex(_naming_texts(conversation))

    limit = max(_SEARCHED_CHARACTERS // max(len(units), 1), _LEAST_SEARCHED)

    def use(pair: _Pair) -> int:
        return named.use_of(_ends(_result_text(messages[pair.result]), limit), pair.result)

    return [*ordered, *sorted(units, key=lambda unit: max(map(use, unit)))]


def _outdated(messages: Sequence[ChatMessage], batches: list[_Unit]) -> tuple[set[int], set[int]]:
    """The results that a later identical call superseded, and the errors that a later success of the tool resolved."""
    superseded: set[int] = set()
    resolved: set[int] = set()
    #: Whether one of the later calls like it succeeded.
    succeeded: dict[tuple[str, Hashable], bool] = {}
    successful_tools: set[str] = set()
    for pair in chain.from_iterable(map(reversed, reversed(batches))):
        tool = pair.call.tool_name
        call = tool, _identity(pair.call.arguments)
        failed = result_of(messages[pair.result]).error
        success_later = succeeded.get(call)
        if success_later or (failed and success_later is not None):
            superseded.add(pair.result)
        elif failed and tool in successful_tools:
            resolved.add(pair.result)
        succeeded[call] = success_later or not failed
        if not failed:
            successful_tools.add(tool)
    return superseded, resolved


def _identity(arguments: dict[str, Any]) -> Hashable:
    """What two calls have in common when they are given the same. Most arguments are plain, and need not be written."""
    try:
        return frozenset(arguments.items())
    except (TypeError, AttributeError):
        return _canonical(arguments)


def _naming_texts(conversation: Conversation) -> Iterator[tuple[int, str]]:
    """What user and assistant say and what calls are given, oldest first. What compaction wrote needs nothing."""
    notes = set(conversation.notes)
    user, assistant = ChatRole.USER, ChatRole.ASSISTANT
    first = max(len(conversation.messages) - _NAMING_MESSAGES, 0)
    for index, message in enumerate(conversation.messages[first:], first):
        role = message._role
        if (role is user or role is assistant) and index not in notes:
            for part in message._content:
                if isinstance(part, TextContent):
                    yield index, part.text
                elif isinstance(part, ToolCall):
                    yield index, _shown(part.arguments)


def _shown(arguments: dict[str, Any]) -> str:
    """The arguments in words. Python's own are found several times as fast as JSON."""
    try:
        return str(arguments)
    except Exception:
        return ""


def _canonical(arguments: dict[str, Any]) -> str:
    try:
        return _CANONICAL.encode(arguments)
    except (TypeError, ValueError, RecursionError):
        # Keys that can't be sorted or written: such a call is only identical to itself.
        return str(id(arguments))


def _ends(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit // 2]}\n{text[-limit // 2 :]}"


def _result_text(message: ChatMessage) -> str:
    result = result_of(message).result
    if isinstance(result, str):
        return result
    return "\n".join(block.text for block in result if isinstance(block, TextContent))
