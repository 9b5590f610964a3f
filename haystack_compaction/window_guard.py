# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""When to compact, and what to do when compacting is not enough. The hook and the chat generator share it."""

import copy
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from haystack import logging
from haystack.dataclasses import ChatMessage
from haystack.hooks.compaction.types import Compactor as CompactorProtocol
from haystack.tools import ToolsType

from haystack_compaction.archive.recall import reference_tokens
from haystack_compaction.archive.writer import ArchiveWriter, not_archived
from haystack_compaction.compaction_pass import CompactionPass, Outcome, changes_between
from haystack_compaction.compactors.sliding_window import SlidingWindowCompactor
from haystack_compaction.compactors.truncation import TruncationCompactor
from haystack_compaction.conversation.marks import MarkedMessages
from haystack_compaction.conversation.merging import NoteMerger
from haystack_compaction.conversation.notes import is_pinned
from haystack_compaction.conversation.pins import PinRules
from haystack_compaction.conversation.repair import is_valid, repaired, repaired_messages
from haystack_compaction.errors import ContextWindowError
from haystack_compaction.report import CompactionReport, combined
from haystack_compaction.tokens.calibration import RequestSize
from haystack_compaction.tokens.request_meter import RequestMeter, newest_reply_index
from haystack_compaction.window import Window

logger = logging.getLogger(__name__)

# Up to this many of the provider's tokens for each token counted are taken for granted.
_CREDIBLE_RATIO = 2.0

# How much a conversation must have grown, as a share of the window, before a compaction that did not get under the
# trigger is tried again. Every try rewrites the beginning of the request and so costs the provider's prompt cache.
_GROWTH_BETWEEN_TRIES = 0.1

# How near to the limit that a refusal names the next try goes, and what it keeps of a request where none is named.
_OF_NAMED_LIMIT = 0.9
_OF_REFUSED_SIZE = 0.7

# After a model failed, so many compactions at the most do without it.
_LONGEST_PAUSE = 8

#: The passes of one step, one after the other; is sent what each came to, and returns what to go on with.
Passes: TypeAlias = Generator[CompactionPass, Outcome, Outcome]


@dataclass
class WindowGuard:
    """
    Keeps the requests of one run inside the window, and remembers what that takes from one request to the next.

    :param window: The window.
    :param compactor: What rewrites the conversation when it has grown too large.
    :param meter: What measures requests.
    :param task: The user message that the run was started with, where that is known.
    :param pinned: Rules by which messages are pinned, besides the compactor's own.
    :param writer: What archives messages before they are dropped.
    """

    window: Window
    compactor: CompactorProtocol
    meter: RequestMeter
    task: ChatMessage | None = None
    pinned: PinRules | None = None
    writer: ArchiveWriter | None = None
    #: What folds notes into user messages, where that is wanted.
    notes: NoteMerger = field(default_factory=NoteMerger)
    #: The tokens of a note's line about the tool that reads the archive, 0 without that tool.
    _reference_tokens: int = 0
    _next_try: float = 0
    _pause: int = 0
    _pauses: int = 0
    _warned: bool = False
    #: Whether a compaction was due and the archive could not take it.
    _is_held_back: bool = False
    _repaired_messages: int = 0
    _was_repaired: bool = False

    def fork(self) -> "WindowGuard":
        """
        Return a guard that knows the same and learns on its own.

        :returns: A new guard.
        """
        return replace(self, meter=copy.copy(self.meter))

    def observe(self, messages: Sequence[ChatMessage], tools: ToolsType | None, context_tokens: int = 0) -> int:
        """
        Take in the conversation as it is before the next request.

        :param messages: The conversation, oldest to newest.
        :param tools: The tools whose schemas are sent along.
        :param context_tokens: What the Agent's state says about the size, 0 where it says nothing.
        :returns: The size of the request in the provider's tokens, as far as they are known.
        """
        self._reference_tokens = reference_tokens(tools, self.meter.ledger) if self.writer else 0
        return self.meter.observe(
            messages,
            tools,
            context_tokens,
            context_window=self.window.context_window,
            trigger=self.window.trigger,
        )

    def repaired(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        """
        Return the conversation as a model may see it.

        :param messages: The conversation, oldest to newest.
        :returns: The same list, or a repaired one.
        """
        known = self.meter.known
        # What was looked at before is not looked at again; a batch of calls may have been answered since.
        start = newest_reply_index(known) if messages[: len(known)] == known else 0
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
        self._follow_task(messages, valid)
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
        left = self.meter.credible(report.tokens_after, compacted) if report else tokens
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
        self._follow_task(messages, compacted)
        self.meter.go_on_with(compacted)
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
        if requested:
            self.meter.learn_from_refusal(messages, requested, context_window=self.window.context_window)
        sent = self.meter.request.of(self.meter.ledger.count(messages))
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
        self.meter.go_on_with(compacted)
        return compacted, report

    def archive_repair(self, messages: Sequence[ChatMessage], valid: Sequence[ChatMessage]) -> None:
        """
        Archive what a repair took out of the history, so that it is lost for the model only.

        :param messages: The conversation as it came.
        :param valid: What `repaired` made of it.
        """
        if self.writer is None or set(map(id, messages)) <= set(map(id, valid)):
            return
        tokens = self.meter.request.of(self.meter.ledger.count(valid))
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

    def _follow_task(self, before: list[ChatMessage], after: list[ChatMessage]) -> None:
        """A task that was repaired or shortened is still the task."""
        if self.task is not None and not any(message is self.task for message in after):
            versions = {id(original): version for original, version in changes_between(before, after).rewritten}
            self.task = versions.get(id(self.task), self.task)

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
        ledger = self.meter.ledger.calibrated(messages)
        beside_messages = self.meter.tools_tokens + self._reference_tokens
        request = RequestSize(self.meter.request.ratio / ledger.scale, round(beside_messages * ledger.scale))
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

    @property
    def _uncertainty(self) -> float:
        # While the archive fails, messages stay as long as they may fit, and not as long as they certainly do.
        return 1.0 if self._is_held_back else self.meter.uncertainty

    def _try_is_due(self, tokens: int) -> bool:
        # Before contents are shortened, what can be removed goes.
        is_pressing = self.window.last_resort and tokens > self.window.usable
        return tokens >= self.window.trigger and (tokens >= self._next_try or is_pressing)

    def _needs_last_resort(self, tokens: int) -> bool:
        return self.window.last_resort and tokens * self._uncertainty > self.window.usable

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
        certain = tokens * min(_CREDIBLE_RATIO / self.meter.request.ratio, 1)
        if certain <= self.window.context_window * self._uncertainty:
            return
        sizes = self.meter.ledger.sizes(messages)
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
            self.meter.request.ratio
            * sum(size for message, size in zip(marked, sizes, strict=True) if is_pinned(message))
        )
        excess = pinned - self.window.context_window
        if excess <= 0:
            return ""
        return f" The pinned messages alone take {pinned} tokens, {excess} more than the window."
