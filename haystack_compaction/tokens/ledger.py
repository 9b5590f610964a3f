# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Each message counted once, however often its size is asked for."""

import threading
import weakref
from asyncio import CancelledError
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from math import ceil
from typing import Any, SupportsIndex, TypeVar

from haystack import logging
from haystack.dataclasses import ChatMessage
from haystack.token_counters import ApproximateTokenCounter, TokenCounter
from haystack.tools import ToolsType, flatten_tools_or_toolsets
from haystack.tools.tool import Tool

from haystack_compaction.conversation.repair import is_valid, repaired
from haystack_compaction.tokens.approximate import approximate_count
from haystack_compaction.tokens.estimate import EstimateTokenCounter
from haystack_compaction.tokens.message_counter import MessageTokenCounter

logger = logging.getLogger(__name__)

# Haystack's local counters join the rendered messages with a line break and round once at the end. With a little more
# for each message, the sum of single counts is an upper bound of what they return for the whole.
_JOINING_COUNTERS = frozenset(
    {"haystack.token_counters.approximate_counter", "haystack.token_counters.tiktoken_counter"}
)

# Up to this many messages a joining counter is simply asked for the whole, which is exact and costs little.
_SMALL = 1_000

_MAX_ENTRIES = 1_000_000

# A few tokens either way, a choice that rests on an estimate of the note is checked.
_CLOSE = 3

# What a message takes that neither the counter nor the estimate can count.
_UNCOUNTABLE = 100

_ItemT = TypeVar("_ItemT", ChatMessage, Tool)


class TokenLedger(TokenCounter):
    """
    A `TokenCounter` that remembers the size of each message and tool it has seen.

    Messages are remembered by identity and weakly: an entry goes with its message. A message that somebody changes in
    place after it was counted keeps its first size; Haystack warns about such changes.

    Counters differ in what they may be asked. A local counter whose total is the sum over the messages is asked for
    each message once. It says so with an attribute `additive = True`, as the counters of this package do; Haystack's
    own local counters are known. Any other counter may be a provider's API, which rejects a lone tool result and costs
    a request, so it is only ever asked for whole conversations (`measure`). Sizes of single messages then are the local
    estimate, brought to the counter's scale by `calibrated`.

    A counter that fails is reported once in the log, and the local estimate stands in for it.

    :param token_counter: The counter to remember for.
    :param max_entries: How many messages and tools are remembered at most; the oldest are forgotten first.
    """

    #: A ledger can be asked for anything.
    additive = True

    def __init__(self, token_counter: TokenCounter | None = None, *, max_entries: int = _MAX_ENTRIES) -> None:
        self.token_counter = EstimateTokenCounter() if token_counter is None else token_counter
        self.max_entries = max_entries
        #: The counter's tokens for each token of the local estimate, where that stands in for single messages.
        self.scale = 1.0
        self._joins = type(self.token_counter).__module__ in _JOINING_COUNTERS
        #: Whether the counter is only ever asked for whole conversations.
        self.whole_only = not self._joins and not getattr(self.token_counter, "additive", False)
        self._join_tokens = ceil(1 / getattr(self.token_counter, "chars_per_token", 1)) if self._joins else 0
        estimate = EstimateTokenCounter()
        counters = [estimate] if self.whole_only else [self.token_counter, estimate]
        self._message_counts = [_message_count(counter) for counter in counters]
        self._tool_counts = [_tool_count(counter) for counter in counters]
        self._memory = _Memory(max_entries)
        # What the counter said of whole conversations, in a ledger that lives for one compaction.
        self._answers: list[tuple[list[ChatMessage], int]] | None = None

    @classmethod
    def of(cls, token_counter: TokenCounter | None) -> "TokenLedger":
        """
        Return the counter itself where it is a ledger already, and a new ledger for it otherwise.

        :param token_counter: A counter, a ledger, or None for the default counter.
        :returns: A ledger.
        """
        return token_counter if isinstance(token_counter, TokenLedger) else cls(token_counter)

    def calibrated(self, messages: Sequence[ChatMessage]) -> "TokenLedger":
        """
        Return a ledger whose sizes are on the scale of the counter, for the length of one compaction.

        It asks the counter for no conversation twice, and so holds on to those that it has asked for.

        :param messages: A whole conversation. A counter that may only be asked for such is asked for it once.
        :returns: A ledger with the same memory, or this one where its sizes are the counter's own.
        """
        if not self.whole_only or self._answers is not None:
            return self
        ledger = TokenLedger(self.token_counter)
        ledger._memory, ledger._answers = self._memory, []
        ledger.scale = ledger.measure(messages) / max(self._counted(messages, None), 1) or 1.0
        return ledger

    def count(self, messages: Sequence[ChatMessage], tools: ToolsType | None = None) -> int:
        """
        Return the size of the messages and the schemas of the tools, from memory where possible.

        :param messages: Any messages, a whole conversation or a part of one.
        :param tools: Tools whose schemas are sent along.
        :returns: The number of tokens.
        """
        total = self._counted(messages, tools)
        return total if self.scale == 1.0 else round(total * self.scale)

    def sizes(self, messages: Sequence[ChatMessage]) -> list[int]:
        """
        Return the size of each message.

        :param messages: Any messages.
        :returns: The number of tokens of each, in order.
        """
        sizes = self._unscaled_sizes(messages)
        return sizes if self.scale == 1.0 else [round(size * self.scale) for size in sizes]

    def measure(self, messages: Sequence[ChatMessage], tools: ToolsType | None = None) -> int:
        """
        Return the size by the counter's own word, which for a provider's counter is a request.

        :param messages: A whole conversation. A counter that may validate what it is given gets a repaired copy.
        :param tools: Tools whose schemas are sent along.
        :returns: The number of tokens.
        """
        if not self.whole_only and not (self._joins and len(messages) <= _SMALL):
            return self.count(messages, tools)
        whole = repaired(messages, keep_pending=False) if self.whole_only else list(messages)
        if self._answers is None or tools:
            return self._asked(whole, tools)
        for asked, tokens in self._answers:
            if asked == whole:
                return tokens
        self._answers.append((whole, self._asked(whole, tools)))
        return self._answers[-1][1]

    def exceeds(self, messages: Sequence[ChatMessage], tokens: int) -> bool:
        """
        Return whether the messages are larger than so many tokens. Counts no more of them than it takes to know.

        :param messages: A whole conversation.
        :param tokens: The size to compare with.
        :returns: Whether they are larger.
        """
        if self.whole_only:
            return self.measure(messages) > tokens
        # An upper bound that is this near to the limit says nothing.
        slack = self._join_tokens * len(messages)
        total = self._total_beyond(reversed(messages), tokens + slack)
        if tokens < total <= tokens + slack:
            return self._asked(list(messages), None) > tokens
        return total > tokens

    def is_smaller(self, after: Sequence[ChatMessage], before: Sequence[ChatMessage]) -> bool:
        """
        Return whether a conversation has become smaller.

        :param after: The whole conversation as it is now.
        :param before: The whole conversation as it was.
        :returns: Whether what is gone is larger than what is new.
        """
        if self.whole_only:
            # What was broken was measured in a repaired form, which can be larger than what the caller has.
            intact = is_valid(before, keep_pending=False) or len(after) < len(before)
            return intact and self.measure(after) < self.measure(before)
        ids_before, ids_after = set(map(id, before)), set(map(id, after))
        if (self._joins and len(before) <= _SMALL) or len(ids_before) < len(before):
            return self.measure(after) < self.measure(before)
        new = self.count([message for message in after if id(message) not in ids_before])
        return self._total_beyond((message for message in before if id(message) not in ids_after), new) > new

    def fewest_removals(
        self,
        units: Sequence[Sequence[ChatMessage]],
        *,
        staying: Sequence[ChatMessage],
        size_added: int,
        target_tokens: int,
        without: Callable[[int], Sequence[ChatMessage]],
        is_measured: bool = False,
    ) -> int:
        """
        Return how many units must be removed, in the order given, for the rest to fit the target.

        Where the counter can be asked for parts, only what stays is counted. Otherwise the estimate says where to look
        first, and the counter is asked for the whole conversations on both sides of the answer.

        :param units: What may be removed, in the order in which it goes.
        :param staying: All other messages of the conversation.
        :param size_added: About how many tokens removing anything at all adds, such as those of a note.
        :param target_tokens: The size to come under.
        :param without: Returns the conversation without the first so many units.
        :param is_measured: Whether the caller measures the result anyway, and so it may be one that is just too large.
        :returns: The smallest sufficient number, at least 1, or the number of all units when even that is not enough.
        """
        room = (target_tokens - size_added - self.count(staying)) / self.scale
        sizes = self._memory.sizes_of(chain.from_iterable(reversed(units)), self._count_message, room)
        number, size, start = len(units), 0, 0
        while number > 1 and (size := sum(sizes[start : start + len(units[number - 1])])) <= room:
            room -= size
            number -= 1
            start += len(units[number])
        # The size that a note adds depends a little on the number.
        is_close = not is_measured and min(abs(room), abs(room - size)) <= _CLOSE
        if self.whole_only or is_close or (self._joins and sum(map(len, units)) + len(staying) <= _SMALL):
            return _smallest_fitting(number, len(units), lambda guess: self.measure(without(guess)) <= target_tokens)
        return number

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

    def __reduce__(self) -> tuple[Any, ...]:
        """What is remembered is no part of a copy: it is about other objects."""
        return _new_ledger, (self.token_counter, self.max_entries)

    def _counted(self, messages: Sequence[ChatMessage], tools: ToolsType | None) -> int:
        """The unscaled total."""
        total = sum(self._unscaled_sizes(messages))
        if tools:
            total += sum(self._memory.sizes_of(flatten_tools_or_toolsets(tools), self._count_tool))
        return total

    def _unscaled_sizes(self, messages: Sequence[ChatMessage]) -> list[int]:
        try:
            # In the common case every message is known, and this is the whole cost of a step without a compaction.
            return list(map(self._memory.sizes.__getitem__, map(id, messages)))
        except KeyError:
            return self._memory.sizes_of(messages, self._count_message)

    def _total_beyond(self, messages: Iterable[ChatMessage], limit: float) -> int:
        """The total, counted no further than it takes to go beyond the limit."""
        total = sum(self._memory.sizes_of(messages, self._count_message, limit / self.scale))
        return total if self.scale == 1.0 else round(total * self.scale)

    def _count_message(self, message: ChatMessage) -> int:
        return self._counted_alone(self._message_counts, message)

    def _count_tool(self, tool: Tool) -> int:
        return self._counted_alone(self._tool_counts, tool)

    def _counted_alone(self, counts: Iterable[Callable[[_ItemT], int]], item: _ItemT) -> int:
        """The size of one message or one tool, from the counter where it may be asked, else from the estimate."""
        for count in counts:
            try:
                return _checked(count(item)) + self._join_tokens
            except BaseException as error:
                self._log_failure(error)
        return _UNCOUNTABLE

    def _asked(self, messages: list[ChatMessage], tools: ToolsType | None) -> int:
        """What the counter itself says of a whole conversation."""
        try:
            return _checked(self.token_counter.count(messages, tools))
        except BaseException as error:
            self._log_failure(error)
            return self.count(messages, tools)

    def _log_failure(self, error: BaseException) -> None:
        """Report a failure, once. A library's panic, such as tiktoken's, is no `Exception` but a failure even so."""
        if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, CancelledError)):
            raise error
        if not self._memory.failure_logged:
            self._memory.failure_logged = True
            logger.warning(
                "{counter} failed ({error}); the local estimate stands in for it.",
                counter=type(self.token_counter).__name__,
                error=f"{type(error).__name__}: {error}",
            )


def _message_count(counter: TokenCounter) -> Callable[[ChatMessage], int]:
    """What counts a single message, without a list around it where the counter is known and no subclass of that."""
    if isinstance(counter, MessageTokenCounter) and type(counter).count is MessageTokenCounter.count:
        return counter.count_message
    if type(counter) is ApproximateTokenCounter:
        return approximate_count(counter)
    return lambda message: counter.count([message])


def _tool_count(counter: TokenCounter) -> Callable[[Tool], int]:
    return lambda tool: counter.count([], [tool])


def _new_ledger(token_counter: TokenCounter, max_entries: int) -> TokenLedger:
    return TokenLedger(token_counter, max_entries=max_entries)


class _Memory:
    """Sizes by the identity of what they are the size of, each as long as that lives."""

    def __init__(self, max_entries: int) -> None:
        self.sizes: dict[int, int] = {}
        self.failure_logged = False
        self._max_entries = max_entries
        # By the identity of the reference, since that is all that is left of an object when it goes. The identity that
        # the object had stands apart: a pair of the two would be one more thing that the garbage collector looks at.
        self._references: dict[int, weakref.ref[Any]] = {}
        self._keys: dict[int, int] = {}
        self._forget = _forgetter(weakref.ref(self))
        self._lock = threading.Lock()

    def sizes_of(
        self, items: Iterable[_ItemT], count_one: Callable[[_ItemT], int], limit: float = float("inf")
    ) -> list[int]:
        """The size of each item, through the one with which their sum exceeds the limit."""
        known = self.sizes
        sizes = []
        new: list[Any] = []
        try:
            for item in items:
                size = known.get(id(item))
                if size is None:
                    size = count_one(item)
                    new.append(item)
                    known[id(item)] = size
                sizes.append(size)
                limit -= size
                if limit < 0:
                    break
        finally:
            # All at once, since that takes a fraction of the time.
            if new:
                self._follow(new)
        return sizes

    def _follow(self, items: list[Any]) -> None:
        """Forget the size of each item when it goes."""
        references = list(map(weakref.ref, items, repeat(self._forget)))
        self._references.update(zip(map(id, references), references, strict=True))
        self._keys.update(zip(map(id, references), map(id, items), strict=True))
        if len(self._references) > self._max_entries:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        with self._lock:
            for reference in list(self._references.values())[: len(self._references) - self._max_entries]:
                self._forget(reference)


def _forgetter(memory_reference: "weakref.ref[_Memory]") -> Callable[[weakref.ref[Any]], None]:
    """What removes an entry when its object goes. Holds the memory weakly, so that no cycle keeps it alive."""

    def forget(reference: "weakref.ref[Any]") -> None:
        memory = memory_reference()
        if memory is not None and memory._references.pop(id(reference), None) is not None:
            memory.sizes.pop(memory._keys.pop(id(reference), 0), None)

    return forget


def _checked(tokens: Any) -> int:
    """What a counter returned, unless it is no number of tokens."""
    if type(tokens) is int and tokens >= 0:
        return tokens
    if not isinstance(tokens, (int, float, SupportsIndex)) or not 0 <= tokens < float("inf"):  # type: ignore[operator]
        raise ValueError(f"a token counter must return a number of at least 0, got {tokens!r}")
    return int(tokens)


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
