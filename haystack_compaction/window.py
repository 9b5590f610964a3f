# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""When to compact, and what to do when compacting is not enough. The hook and the chat generator share it."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from haystack import logging
from haystack.dataclasses import ChatMessage, ChatRole
from haystack.hooks.compaction.types import Compactor as CompactorProtocol
from haystack.tools import ToolsType

from haystack_compaction.archive.recall import reference_tokens
from haystack_compaction.archive.writer import ArchiveWriter, not_archived
from haystack_compaction.compaction_pass import CompactionPass, Outcome
from haystack_compaction.compactors.base import require_at_least
from haystack_compaction.compactors.sliding_window import SlidingWindowCompactor
from haystack_compaction.compactors.truncation import TruncationCompactor
from haystack_compaction.conversation.marks import MarkedMessages
from haystack_compaction.conversation.merging import NoteMerger
from haystack_compaction.conversation.notes import is_pinned
from haystack_compaction.conversation.pins import PinRules
from haystack_compaction.conversation.repair import is_valid, repaired, repaired_messages
from haystack_compaction.errors import ContextWindowError
from haystack_compaction.report import CompactionReport
from haystack_compaction.tokens.calibration import Calibration, RequestSize, least_size, prompt_sizes, total_size
from haystack_compaction.tokens.estimate import EstimateTokenCounter
from haystack_compaction.tokens.ledger import TokenLedger
from haystack_compaction.usage import added_usage

logger = logging.getLogger(__name__)

# The share of the window that is kept free for the reply unless the user says how much.
_RESERVED_SHARE = 0.05

# As long as no provider has confirmed the local count, it may be too low by this much.
_UNCONFIRMED = 1.4

# What is taken for a token of the estimate when a provider turns out to report no usage at all. There are tokenizers
# that need more, and hardly any that need less.
_UNREPORTED = 1.15

# A lower ratio is believed only as far as images and files account for it.
_DOUBTFUL_RATIO = 0.5

# Up to this many of the provider's tokens for each token counted are taken for granted.
_CREDIBLE_RATIO = 2.0

# How much a conversation must have grown, as a share of the window, before a compaction that did not get under the
# trigger is tried again. Every try rewrites the beginning of the request and so costs the provider's prompt cache.
_GROWTH_BETWEEN_TRIES = 0.1

# How much a conversation must have grown before a counter that may be a provider's API is asked again.
_GROWTH_BETWEEN_QUESTIONS = 1.25

# How near to the limit that a refusal names the next try goes, and what it keeps of a request where none is named.
_OF_NAMED_LIMIT = 0.9
_OF_REFUSED_SIZE = 0.7

# After a model failed, so many compactions at the most do without it.
_LONGEST_PAUSE = 8


@dataclass(frozen=True, kw_only=True)
class Window:
    """
    A model's context window and how it is to be used.

    :param context_window: The size of the window in tokens, at least 1.
    :param compact_at: The share of the window at which compaction starts, greater than `compact_to` and at most 1.
    :param compact_to: The share of the window that compaction aims for, greater than 0.
    :param reserve_tokens: The tokens kept free for the reply, at least 0 and less than the window; None for 5 % of the
        window, or what `compact_at` leaves of it where that is less.
    :param last_resort: Whether the largest contents are shortened, or the oldest messages removed where that is not
        enough, when a request would not fit even so.
    :param repair: Whether a broken history is repaired before a model sees it.
    :param merge_notes: Whether a note goes into the user message beside it, for templates that want roles to alternate.
    :raises ValueError: If a setting is out of its range.
    """

    context_window: int
    compact_at: float = 0.7
    compact_to: float = 0.4
    reserve_tokens: int | None = None
    last_resort: bool = True
    repair: bool = True
    merge_notes: bool = False

    def __post_init__(self) -> None:
        require_at_least(1, context_window=self.context_window)
        if not 0 < self.compact_to < self.compact_at <= 1:
            raise ValueError(
                f"`compact_to` and `compact_at` must satisfy 0 < compact_to < compact_at <= 1, got "
                f"compact_to={self.compact_to} and compact_at={self.compact_at}. A conversation that is compacted to "
                f"its own trigger would be compacted again at every step."
            )
        if self.reserve_tokens is not None and not 0 <= self.reserve_tokens < self.context_window:
            raise ValueError(
                f"`reserve_tokens` must be at least 0 and less than the window of {self.context_window}, got "
                f"{self.reserve_tokens}."
            )

    @property
    def usable(self) -> int:
        """The largest request that leaves room for the reply, in tokens."""
        if self.reserve_tokens is not None:
            return self.context_window - self.reserve_tokens
        # Who asks for compaction at 97 % of the window wants it at 97 % and not earlier.
        return int(self.context_window * max(1 - _RESERVED_SHARE, self.compact_at))

    @property
    def trigger(self) -> float:
        """The size of a request from which on it is compacted, in tokens."""
        return min(self.context_window * self.compact_at, self.usable)

    @property
    def target(self) -> int:
        """The size of a request that compaction aims for, in tokens."""
        return int(min(self.context_window * self.compact_to, self.usable))

    def narrowed(self, tokens: int) -> "Window":
        """
        Return the window as it is once a provider has said that it is smaller.

        :param tokens: What a request may take at most, in tokens.
        :returns: A window no larger than that, used in the same way.
        """
        size = max(min(self.context_window, tokens), 1)
        reserved = self.reserve_tokens
        return replace(self, context_window=size, reserve_tokens=reserved if (reserved or 0) < size else None)


#: The passes of one step, one after the other; is sent what each came to, and returns what to go on with.
Passes: TypeAlias = Generator[CompactionPass, Outcome, Outcome]


@dataclass
class WindowGuard:
    """
    Keeps the requests of one run inside the window, and remembers what that takes from one request to the next.

    :param window: The window.
    :param compactor: What rewrites the conversation when it has grown too large.
    :param ledger: What measures messages.
    :param task: The user message that the run was started with, where that is known.
    :param pinned: Rules by which messages are pinned, besides the compactor's own.
    :param writer: What archives messages before they are dropped.
    """

    window: Window
    compactor: CompactorProtocol
    ledger: TokenLedger
    task: ChatMessage | None = None
    pinned: PinRules | None = None
    writer: ArchiveWriter | None = None
    calibration: Calibration = field(default_factory=Calibration)
    #: What folds notes into user messages, where that is wanted.
    notes: NoteMerger = field(default_factory=NoteMerger)
    #: The tokens that a provider reported for the conversation through its newest reply, corrected after a compaction.
    reported: int = 0
    _tools_tokens: int = 0
    #: The tokens of a note's line about the tool that reads the archive, 0 without that tool.
    _reference_tokens: int = 0
    _has_observed: bool = False
    _ratio_by_default: float = 1.0
    _newest_reply: ChatMessage | None = None
    #: The same by the user's own counter, where that may only be asked for whole conversations.
    _counters_ratio: float | None = None
    _asked_at: int = 0
    _counted: tuple[list[ChatMessage], int] = field(default_factory=lambda: ([], 0))
    _next_try: float = 0
    _pause: int = 0
    _pauses: int = 0
    _warned: bool = False
    #: Whether a compaction was due and the archive could not take it.
    _is_held_back: bool = False
    _repaired_messages: int = 0
    _was_repaired: bool = False

    def observe(self, messages: Sequence[ChatMessage], tools: ToolsType | None, context_tokens: int = 0) -> int:
        """
        Take in the conversation as it is before the next request.

        :param messages: The conversation, oldest to newest.
        :param tools: The tools whose schemas are sent along.
        :param context_tokens: What the Agent's state says about the size, 0 where it says nothing.
        :returns: The size of the request in the provider's tokens, as far as they are known.
        """
        self._tools_tokens = self.ledger.count([], tools)
        self._reference_tokens = reference_tokens(tools, self.ledger) if self.writer else 0
        self._learn(messages, context_tokens)
        counted = self._count(messages)
        if self.ledger.whole_only and self.calibration.ratio is None:
            self._ask_counter(messages, counted)
        return self._credible(self.request.of(counted), messages)

    @property
    def request(self) -> RequestSize:
        """How the size of messages translates into that of a request."""
        ratio = self.calibration.ratio or self._counters_ratio or self._ratio_by_default
        return RequestSize(ratio=ratio, tools_tokens=self._tools_tokens)

    def repaired(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        """
        Return the conversation as a model may see it.

        :param messages: The conversation, oldest to newest.
        :returns: The same list, or a repaired one.
        """
        known, _ = self._counted
        # What was looked at before is not looked at again; a batch of calls may have been answered since.
        start = _newest_reply_index(known) if messages[: len(known)] == known else 0
        if is_valid(messages[max(start, 0) :], keep_pending=False):
            return messages
        valid = repaired(messages, keep_pending=False)
        number = repaired_messages(messages, valid)
        # A tool that mostly returns nothing would fill the log.
        log = logger.info if self._was_repaired else logger.warning
        self._was_repaired = True
        log(
            "The history was not one that providers accept; it was repaired in {number} places: {before} messages "
            "before, {after} after.",
            number=number,
            before=len(messages),
            after=len(valid),
        )
        self._repaired_messages += number
        return valid

    def is_due(self, tokens: int) -> bool:
        """
        Return whether something has to be done about the size of the next request.

        :param tokens: The size, from `observe`.
        :returns: Whether `passes` has work to do.
        """
        return self._try_is_due(tokens) or (tokens >= self.window.trigger and self._needs_last_resort(tokens))

    def passes(self, messages: list[ChatMessage], tokens: int) -> Passes:
        """
        Bring the conversation down to the target, and inside the window in any case.

        :param messages: The conversation, oldest to newest. It is left as it is.
        :param tokens: Its size, from `observe`.
        :returns: A generator of the passes to run, which returns the messages to go on with and the report.
        :raises ContextWindowError: If what may not be touched is larger than the window.
        """
        compacted, report = messages, None
        next_try = self._next_try
        if self._try_is_due(tokens):
            compaction = self._pass(self.compactor, messages, self.window.target)
            compacted, report = yield compaction
            self._remember_model(compaction, report)
            # What did not help is not tried again until the conversation has grown.
            next_try = 0 if report.tokens_after < self.window.trigger else float("inf")
        left = self._credible(report.tokens_after, compacted) if report else tokens
        needs_last_resort = self._needs_last_resort(left)
        if needs_last_resort:
            # Some way below the limit, so that the next step does not end here again.
            room = int(0.9 * min(self.window.trigger, self.window.usable / self._uncertainty))
            compacted, resort = yield from self._last_resort(compacted, room)
            report = combined(report, resort)
        assert report is not None
        self._next_try = min(next_try, report.tokens_after + _GROWTH_BETWEEN_TRIES * self.window.context_window)
        self._warn_once(report)
        if needs_last_resort:
            self._require_fit(compacted, report.tokens_after)
        compacted, report = self._archived(messages, compacted, report, fits=tokens <= self.window.usable)
        self._remember_size(compacted)
        report = replace(report, repaired_messages=self._repaired_messages)
        self._repaired_messages = 0
        return compacted, report

    def passes_after_refusal(
        self, messages: list[ChatMessage], requested: int | None = None, limit: int | None = None
    ) -> Passes:
        """
        Bring down a conversation that the provider has refused as too long, and learn from the refusal.

        :param messages: The conversation as it was sent, oldest to newest. It is left as it is.
        :param requested: The size of the request in the provider's tokens, where the refusal names it.
        :param limit: The largest request that the provider takes, where the refusal names it.
        :returns: A generator of the passes to run, which returns the messages to go on with and the report.
        """
        counted = self.ledger.count(messages)
        if requested:
            self.calibration = self.calibration.learned(
                [requested],
                counted=counted + self._tools_tokens,
                # What was refused was larger than the window, whatever its size.
                context_window=max(self.window.context_window, requested),
                at_least=least_size(messages, self.ledger),
            )
        sent = self.request.of(counted)
        target = int(_OF_REFUSED_SIZE * sent)
        if limit:
            named = int(_OF_NAMED_LIMIT * limit)
            # Without the provider's own size of the request nobody knows what the limit is in our tokens.
            target = named if requested and limit < requested else min(named, target)
        self.window = self.window.narrowed(limit or sent)
        self._next_try = 0
        compaction = self._pass(self.compactor, messages, target)
        compacted, report = yield compaction
        self._remember_model(compaction, report)
        if self.window.last_resort and report.tokens_after > target:
            compacted, resort = yield from self._last_resort(compacted, target)
            report = combined(report, resort)
        compacted, report = self._archived(messages, compacted, report, fits=False)
        self._remember_size(compacted)
        return compacted, report

    def archive_repair(self, messages: Sequence[ChatMessage], valid: Sequence[ChatMessage]) -> None:
        """
        Archive what a repair took out of the history, so that it is lost for the model only.

        :param messages: The conversation as it came.
        :param valid: What `repaired` made of it.
        """
        if self.writer is None or set(map(id, messages)) <= set(map(id, valid)):
            return
        tokens = self.request.of(self.ledger.count(valid))
        report = CompactionReport(
            strategy="repair",
            compacted=False,
            tokens_before=tokens,
            tokens_after=tokens,
            target_tokens=self.window.target,
            messages_before=len(messages),
            messages_after=len(valid),
            repaired_messages=self._repaired_messages,
            reason="the history was not one that providers accept",
        )
        self.writer.write(messages, valid, report, fits=False)

    def _archived(
        self, messages: list[ChatMessage], compacted: list[ChatMessage], report: CompactionReport, *, fits: bool
    ) -> Outcome:
        """Archive what a compaction takes out of the conversation. What can't be archived is kept while it fits."""
        if self.writer is None or not report.compacted:
            return compacted, report
        report = replace(report, conversation_id=self.writer.conversation_id)
        if self._reference_tokens:
            compacted = self.writer.with_references(messages, compacted)
        self._is_held_back = not self.writer.write(messages, compacted, report, fits=fits)
        if not self._is_held_back:
            return compacted, report
        self._next_try = report.tokens_before + _GROWTH_BETWEEN_TRIES * self.window.context_window
        return messages, not_archived(report)

    def _last_resort(self, messages: Sequence[ChatMessage], target: int) -> Passes:
        """Shorten contents; where these are not what is too much, let the oldest messages go first."""
        shortened, report = yield self._pass(TruncationCompactor(), messages, target)
        if report.reached_target:
            return shortened, report
        newest, removal = yield self._pass(SlidingWindowCompactor(), messages, target)
        if removal.reached_target:
            return newest, removal
        shortened, report = yield self._pass(TruncationCompactor(), newest, target)
        return shortened, combined(removal, report)

    def _pass(self, compactor: CompactorProtocol, messages: Sequence[ChatMessage], target: int) -> CompactionPass:
        ledger = self.ledger.calibrated(messages)
        beside_messages = self._tools_tokens + self._reference_tokens
        request = RequestSize(self.request.ratio / ledger.scale, round(beside_messages * ledger.scale))
        compaction = CompactionPass(
            compactor,
            messages,
            target,
            ledger,
            request=request,
            task=self.task,
            pins=self._pins,
            context_window=self.window.context_window,
        )
        compaction.context.model_is_paused = self._pause > 0
        return compaction

    @property
    def _pins(self) -> list[PinRules]:
        # The compactor's own hold for the last resort, too.
        rules = (self.pinned, getattr(self.compactor, "pinned", None))
        return [rule for rule in rules if isinstance(rule, PinRules)]

    def _ask_counter(self, messages: Sequence[ChatMessage], counted: int) -> None:
        """Ask a counter that may only be asked for whole conversations, and not more often than it is worth."""
        is_due = self.request.of(counted) >= self.window.trigger
        if not self._asked_at or counted >= _GROWTH_BETWEEN_QUESTIONS * self._asked_at or is_due:
            self._counters_ratio = self.ledger.measure(messages) / max(counted, 1)
            self._asked_at = counted

    def _learn(self, messages: Sequence[ChatMessage], context_tokens: int) -> None:
        """Learn the ratio from a reply that was not there before. An old number teaches nothing about a new size."""
        newest = _newest_reply_index(messages)
        reply = messages[newest] if newest >= 0 else None
        is_news = self._has_observed and reply is not self._newest_reply
        self._has_observed, self._newest_reply = True, reply
        usage = reply.meta.get("usage") if reply is not None and is_news else None
        usage = usage if isinstance(usage, Mapping) else {}
        request = messages[:newest]
        if newest > 0 and (sizes := prompt_sizes(usage)):
            # What was thought before a reply was written counts as a part of it, but is not sent again.
            self._calibrate(sizes, request)
        elif total := total_size(usage):
            self._calibrate([total], through_newest_reply(messages))
        elif context_tokens not in (0, self.reported):
            self._calibrate([context_tokens], through_newest_reply(messages))
        else:
            if is_news and isinstance(self.ledger.token_counter, EstimateTokenCounter):
                self._ratio_by_default = _UNREPORTED
            return
        self.reported = context_tokens or self.request.of(self.ledger.count(through_newest_reply(messages)))

    def _calibrate(self, candidates: Sequence[int], messages: Sequence[ChatMessage]) -> None:
        """Take in what a provider may have reported for these messages."""
        counted = self.ledger.count(messages) + self._tools_tokens
        known, _ = self._counted
        has_only_grown = list(messages[: len(known)]) == known[: len(messages)]
        calibration = self.calibration if has_only_grown else self.calibration.rewritten()
        is_doubtful = min(candidates) < _DOUBTFUL_RATIO * counted
        self.calibration = calibration.learned(
            candidates,
            counted=counted,
            context_window=self.window.context_window,
            at_least=least_size(messages, self.ledger) if is_doubtful else 0,
        )

    def _credible(self, tokens: int, messages: Sequence[ChatMessage]) -> int:
        """The size of a request, no smaller than any provider could make it."""
        if self.request.ratio >= _DOUBTFUL_RATIO:
            return tokens
        return max(tokens, least_size(messages, self.ledger))

    def _count(self, messages: Sequence[ChatMessage]) -> int:
        """The size of the conversation. Mostly only its end is new, so only that is looked at."""
        known, total = self._counted
        # Lists of the same objects compare at the speed of memory.
        if self.ledger.whole_only or messages[: len(known)] != known:
            total = self.ledger.count(messages)
        else:
            total += self.ledger.count(messages[len(known) :])
        self._counted = (list(messages), total)
        return total

    @property
    def _uncertainty(self) -> float:
        is_confirmed = self.calibration.ratio is not None or self._counters_ratio is not None
        # While the archive fails, messages stay as long as they may fit, and not as long as they certainly do.
        return 1.0 if is_confirmed or self._is_held_back else _UNCONFIRMED / self._ratio_by_default

    def _try_is_due(self, tokens: int) -> bool:
        # Before contents are shortened, what can be removed goes.
        is_pressing = self.window.last_resort and tokens > self.window.usable
        return tokens >= self.window.trigger and (tokens >= self._next_try or is_pressing)

    def _needs_last_resort(self, tokens: int) -> bool:
        return self.window.last_resort and tokens * self._uncertainty > self.window.usable

    def _remember_size(self, compacted: list[ChatMessage]) -> None:
        self._count(compacted)
        # The usage of the reply that is the newest now is that of the conversation as it was.
        newest = _newest_reply_index(compacted)
        self._newest_reply = compacted[newest] if newest >= 0 else None
        self.calibration = self.calibration.rewritten()
        if self.reported:
            self.reported = self.request.of(self.ledger.count(through_newest_reply(compacted)))

    def _remember_model(self, compaction: CompactionPass, report: CompactionReport) -> None:
        """Keep from asking a model again too soon that has failed."""
        if compaction.context.model_failures:
            self._pause = min(2**self._pauses, _LONGEST_PAUSE)
            self._pauses += 1
        elif report.llm_calls:
            self._pauses = 0
        else:
            self._pause = max(self._pause - 1, 0)

    def _warn_once(self, report: CompactionReport) -> None:
        if not report.reached_target and not self._warned:
            self._warned = True
            logger.warning(
                "Could not reach the target of {target} tokens, {after} are left: {reason}.",
                target=report.target_tokens,
                after=report.tokens_after,
                reason=report.reason,
            )

    def _require_fit(self, messages: Sequence[ChatMessage], tokens: int) -> None:
        # A ratio that is far from 1 is no ground for ending a run: the provider may still take the request.
        certain = tokens * min(_CREDIBLE_RATIO / self.request.ratio, 1)
        if certain <= self.window.context_window * self._uncertainty:
            return
        sizes = self.ledger.sizes(messages)
        largest = max(range(len(messages)), key=sizes.__getitem__)
        raise ContextWindowError(
            f"The conversation takes {tokens} tokens and does not fit the context window of "
            f"{self.window.context_window}, although everything that may be removed or shortened is. The largest "
            f"message is number {largest} ({messages[largest].role.value}, about {sizes[largest]} tokens): shorten "
            f"it, unpin it, or use a model with a larger window.{self._excess_of_pins(messages, sizes)}"
        )

    def _excess_of_pins(self, messages: Sequence[ChatMessage], sizes: Sequence[int]) -> str:
        marked = MarkedMessages(messages, pins=self._pins).messages
        pinned = round(
            self.request.ratio * sum(size for message, size in zip(marked, sizes, strict=True) if is_pinned(message))
        )
        excess = pinned - self.window.context_window
        if excess <= 0:
            return ""
        return f" The pinned messages alone take {pinned} tokens, {excess} more than the window."


def through_newest_reply(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """
    Return the part of a conversation that the usage of its newest reply accounts for.

    :param messages: The conversation, oldest to newest.
    :returns: The messages through the last one from the assistant, or all of them when there is none.
    """
    return messages[: _newest_reply_index(messages) + 1] or messages


def _newest_reply_index(messages: Sequence[ChatMessage]) -> int:
    """The index of the last message from the assistant, -1 where there is none."""
    indexes = range(len(messages) - 1, -1, -1)
    return next((index for index in indexes if messages[index].role is ChatRole.ASSISTANT), -1)


def combined(first: CompactionReport | None, second: CompactionReport) -> CompactionReport:
    """
    Make one report of two compactions of the same conversation.

    :param first: The report of the first, if there was one.
    :param second: The report of the one that went on from there.
    :returns: What both came to; each of them is a stage.
    """
    if first is None:
        return second
    stages: list[dict[str, Any]] = [*(first.stages or [first.to_dict()]), second.to_dict()]
    # What a token is may have been learned anew in between.
    scale = second.tokens_before / max(first.tokens_after, 1)
    return replace(
        first,
        compacted=first.compacted or second.compacted,
        tokens_before=round(first.tokens_before * scale),
        tokens_after=second.tokens_after,
        messages_after=second.messages_after,
        removed_messages=first.removed_messages + second.removed_messages,
        rewritten_messages=first.rewritten_messages + second.rewritten_messages,
        repaired_messages=first.repaired_messages + second.repaired_messages,
        reached_target=second.tokens_after <= first.target_tokens,
        stages=stages,
        llm_calls=first.llm_calls + second.llm_calls,
        llm_usage=added_usage(first.llm_usage, second.llm_usage),
        duration_seconds=first.duration_seconds + second.duration_seconds,
    )
