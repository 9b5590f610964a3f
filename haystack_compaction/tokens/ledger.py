# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Each message counted once, however often its size is asked for."""

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from haystack import logging
from haystack.dataclasses import ChatMessage
from haystack.token_counters import TokenCounter
from haystack.tools import ToolsType, flatten_tools_or_toolsets
from haystack.tools.tool import Tool

from haystack_compaction.conversation.repair import repaired
from haystack_compaction.tokens.estimate import EstimateTokenCounter

logger = logging.getLogger(__name__)

# Haystack's local counters join the rendered messages with a line break and round once at the end. One token more a
# message makes the sum of single counts an upper bound of what they return for the whole.
_JOINING_COUNTERS = frozenset(
    {"haystack.token_counters.approximate_counter", "haystack.token_counters.tiktoken_counter"}
)
_JOIN_TOKENS = 1

_MAX_ENTRIES = 1_000_000

_ItemT = TypeVar("_ItemT", ChatMessage, Tool)


class TokenLedger(TokenCounter):
    """
    A `TokenCounter` that remembers the size of each message and tool it has seen.

    Messages are remembered by identity and weakly: an entry goes with its message. A message that somebody changes in
    place after it was counted keeps its first size; Haystack warns about such changes.

    Counters differ in what they may be asked. A local counter whose total is the sum over the messages is asked for
    each message once. It says so with an attribute `additive = True`, as the counters of this package do; Haystack's
    own local counters are known. Any other counter may be a provider's API, which rejects a lone tool result and costs
    a request, so it is only ever asked for whole conversations (`measure`), and sizes of single messages are the local
    estimate, scaled to what it said last.

    A counter that fails is reported once in the log, and the local estimate stands in for it.

    :param token_counter: The counter to remember for.
    :param max_entries: How many messages and tools are remembered at most; the oldest are forgotten first.
    """

    #: A ledger can be asked for anything.
    additive = True

    def __init__(self, token_counter: TokenCounter | None = None, *, max_entries: int = _MAX_ENTRIES) -> None:
        self.token_counter = token_counter if token_counter is not None else EstimateTokenCounter()
        self.max_entries = max_entries
        #: Whether the counter is only ever asked for whole conversations.
        self.whole_only = not _is_additive(self.token_counter)
        self._join_tokens = _JOIN_TOKENS if type(self.token_counter).__module__ in _JOINING_COUNTERS else 0
        self._estimate = EstimateTokenCounter()
        self._scale = 1.0
        self._sizes: dict[int, int] = {}
        # By the identity of the reference, which is all that is left of a message when it goes.
        self._references: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._forget = _forgetter(weakref.ref(self))
        self._lock = threading.Lock()
        self._failure_logged = False

    @classmethod
    def of(cls, token_counter: TokenCounter | None) -> "TokenLedger":
        """
        Return the counter itself where it is a ledger already, and a new ledger for it otherwise.

        :param token_counter: A counter, a ledger, or None for the default counter.
        :returns: A ledger.
        """
        return token_counter if isinstance(token_counter, TokenLedger) else cls(token_counter)

    def count(self, messages: Sequence[ChatMessage], tools: ToolsType | None = None) -> int:
        """
        Return the size of the messages and the schemas of the tools, from memory where possible.

        :param messages: Any messages, a whole conversation or a part of one.
        :param tools: Tools whose schemas are sent along.
        :returns: The number of tokens.
        """
        total = self._counted(messages, tools)
        return total if self._scale == 1.0 else round(total * self._scale)

    def sizes(self, messages: Sequence[ChatMessage]) -> list[int]:
        """
        Return the size of each message.

        :param messages: Any messages.
        :returns: The number of tokens of each, in order.
        """
        sizes = self._each(messages, self._count_message)
        return sizes if self._scale == 1.0 else [round(size * self._scale) for size in sizes]

    def measure(self, messages: Sequence[ChatMessage], tools: ToolsType | None = None) -> int:
        """
        Return the size by the counter's own word, which for a provider's counter is a request.

        :param messages: A whole conversation. The counter is given a repaired copy if it is broken.
        :param tools: Tools whose schemas are sent along.
        :returns: The number of tokens.
        """
        if not self.whole_only:
            return self.count(messages, tools)
        local = max(self._counted(messages, tools), 1)
        try:
            measured = self.token_counter.count(repaired(messages, keep_pending=False), tools)
        except Exception as error:
            self._log_failure(error)
            return round(local * self._scale)
        if measured > 0:
            self._scale = measured / local
        return measured

    def exceeds(self, messages: Sequence[ChatMessage], tokens: int) -> bool:
        """
        Return whether the messages are larger than so many tokens. Counts no more of them than it takes to know.

        :param messages: A whole conversation.
        :param tokens: The size to compare with.
        :returns: Whether they are larger.
        """
        if self.whole_only:
            return self.measure(messages) > tokens
        return self._rest_after(reversed(messages), tokens) < 0

    def is_smaller(self, after: Sequence[ChatMessage], before: Sequence[ChatMessage]) -> bool:
        """
        Return whether a conversation has become smaller.

        :param after: The whole conversation as it is now.
        :param before: The whole conversation as it was.
        :returns: Whether what is gone is larger than what is new.
        """
        if self.whole_only:
            return self.measure(after) < self.measure(before)
        ids_before, ids_after = set(map(id, before)), set(map(id, after))
        new = [message for message in after if id(message) not in ids_before]
        return self._rest_after((message for message in before if id(message) not in ids_after), self.count(new)) < 0

    def fewest_removals(
        self,
        units: Sequence[Sequence[ChatMessage]],
        *,
        staying: Sequence[ChatMessage],
        size_added: int,
        target_tokens: int,
        without: Callable[[int], Sequence[ChatMessage]],
    ) -> int:
        """
        Return how many units must be removed, in the order given, for the rest to fit the target.

        Where the counter can be asked for parts, only what stays is counted. Otherwise the estimate says where to look
        first, and the counter is asked for the whole conversations on both sides of the answer.

        :param units: What may be removed, in the order in which it goes.
        :param staying: All other messages of the conversation.
        :param size_added: The tokens that removing anything at all adds, such as those of a note.
        :param target_tokens: The size to come under.
        :param without: Returns the conversation without the first so many units.
        :returns: The smallest sufficient number, at least 1, or the number of all units when even that is not enough.
        """
        room = target_tokens - size_added - self.count(staying)
        number = len(units)
        while number > 1 and (size := self.count(units[number - 1])) <= room:
            room -= size
            number -= 1
        if not self.whole_only:
            return number
        return _smallest_fitting(number, len(units), lambda guess: self.measure(without(guess)) <= target_tokens)

    def edited_to_fit(
        self,
        savings: Iterable[int],
        *,
        size_before: int,
        target_tokens: int,
        edited: Callable[[int], list[ChatMessage]],
    ) -> list[ChatMessage] | None:
        """
        Make as few edits, in the order given, as it takes for the conversation to fit the target.

        What an edit saves may be a guess, and no more of them are asked for than are needed: where they say that it
        fits, the conversation is measured, and its size is what the next savings come off.

        :param savings: The tokens that each edit is expected to save, in the order in which they are made.
        :param size_before: The size that they come off.
        :param target_tokens: The size to come under.
        :param edited: Returns the conversation with the first so many edits made.
        :returns: The conversation with all edits made when even that is not enough; None when there are none.
        """
        number, size, conversation = 0, size_before, None
        for saving in savings:
            number += 1
            size -= saving
            if size <= target_tokens:
                conversation = edited(number)
                size = self.measure(conversation)
                if size <= target_tokens:
                    break
        else:
            return edited(number) if number else None
        if not self.whole_only:
            return conversation
        return edited(_smallest_fitting(number, number, lambda guess: self.measure(edited(guess)) <= target_tokens))

    def to_dict(self) -> dict[str, Any]:
        """
        Serialize the counter that this ledger remembers for; what it remembers is not kept.

        :returns: The counter's dictionary.
        """
        return self.token_counter.to_dict()

    def _counted(self, messages: Sequence[ChatMessage], tools: ToolsType | None) -> int:
        """The unscaled total."""
        try:
            # In the common case every message is known, and this is the whole cost of a step without a compaction.
            total = sum(map(self._sizes.__getitem__, map(id, messages)))
        except KeyError:
            total = sum(self._each(messages, self._count_message))
        return total + sum(self._each(flatten_tools_or_toolsets(tools), self._count_tool)) if tools else total

    def _each(self, items: Sequence[_ItemT], count_one: Callable[[_ItemT], int]) -> list[int]:
        """The unscaled size of each item, from memory where it is known."""
        sizes = [self._known_or_counted(item, count_one) for item in items]
        self._forget_oldest()
        return sizes

    def _rest_after(self, messages: Iterable[ChatMessage], tokens: int) -> int:
        """What of the tokens is left after the messages are taken off; negative as soon as they are not enough."""
        for message in messages:
            size = self._known_or_counted(message, self._count_message)
            tokens -= size if self._scale == 1.0 else round(size * self._scale)
            if tokens < 0:
                break
        self._forget_oldest()
        return tokens

    def _known_or_counted(self, item: _ItemT, count_one: Callable[[_ItemT], int]) -> int:
        key = id(item)
        size = self._sizes.get(key)
        if size is None:
            size = count_one(item)
            reference = weakref.ref(item, self._forget)
            self._references[id(reference)] = (reference, key)
            self._sizes[key] = size
        return size

    def _forget_oldest(self) -> None:
        if len(self._references) > self.max_entries:
            with self._lock:
                for reference, _ in list(self._references.values())[: len(self._references) - self.max_entries]:
                    self._forget(reference)

    def _count_message(self, message: ChatMessage) -> int:
        if self.whole_only:
            return self._estimate.count([message])
        try:
            return self.token_counter.count([message]) + self._join_tokens
        except (KeyboardInterrupt, SystemExit):
            raise
        # A counter may be backed by a library whose panics are no `Exception`, as tiktoken's are.
        except BaseException as error:
            self._log_failure(error)
            return self._estimate.count([message])

    def _count_tool(self, tool: Tool) -> int:
        if self.whole_only:
            return self._estimate.count([], [tool])
        try:
            return self.token_counter.count([], [tool])
        except Exception as error:
            self._log_failure(error)
            return self._estimate.count([], [tool])

    def _log_failure(self, error: BaseException) -> None:
        if not self._failure_logged:
            self._failure_logged = True
            logger.warning(
                "{counter} failed ({error}); the local estimate stands in for it.",
                counter=type(self.token_counter).__name__,
                error=f"{type(error).__name__}: {error}",
            )


def _forgetter(ledger_reference: "weakref.ref[TokenLedger]") -> Callable[[weakref.ref[Any]], None]:
    """What removes an entry when its message goes. Holds the ledger weakly, so that no cycle keeps it alive."""

    def forget(reference: "weakref.ref[Any]") -> None:
        ledger = ledger_reference()
        if ledger is not None:
            _, key = ledger._references.pop(id(reference), (None, None))
            ledger._sizes.pop(key, None)  # type: ignore[arg-type]

    return forget


def _is_additive(token_counter: TokenCounter) -> bool:
    return bool(getattr(token_counter, "additive", False)) or type(token_counter).__module__ in _JOINING_COUNTERS


def _smallest_fitting(guess: int, largest: int, fits: Callable[[int], bool]) -> int:
    """The smallest number from 1 to `largest` that fits, looked for from `guess` outwards in doubling strides."""
    stride = 1
    if fits(guess):
        low, high = 0, guess
        while high - stride > 0 and fits(high - stride):
            high, stride = high - stride, stride * 2
        low = max(high - stride, 0)
    else:
        low, high = guess, min(guess + stride, largest)
        while high < largest and not fits(high):
            low, stride = high, stride * 2
            high = min(high + stride, largest)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
