# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""When to compact, and what to do when compacting is not enough. The hook and the chat generator share it."""

from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from haystack import logging
from haystack.dataclasses import ChatMessage, ChatRole
from haystack.hooks.compaction.types import Compactor as CompactorProtocol
from haystack.tools import ToolsType

from haystack_compaction.compaction_pass import CompactionPass, Outcome
from haystack_compaction.compactors.base import require_at_least
from haystack_compaction.compactors.truncation import TruncationCompactor
from haystack_compaction.conversation.repair import is_valid, repaired
from haystack_compaction.report import CompactionReport
from haystack_compaction.tokens.calibration import RequestSize, likely_usage, usage_ratio
from haystack_compaction.tokens.ledger import TokenLedger

logger = logging.getLogger(__name__)

# The share of the window that is kept free for the reply unless the user says how much.
_RESERVED_SHARE = 0.05

# As long as no provider has confirmed the local count, it may be too low by this much.
_UNCONFIRMED = 1.15

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


class ContextWindowError(ValueError):
    """What may not be removed or shortened is larger than the model's context window."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """
    A model's context window and how it is to be used.

    :param context_window: The size of the window in tokens, at least 1.
    :param compact_at: The share of the window at which compaction starts, greater than `compact_to` and at most 1.
    :param compact_to: The share of the window that compaction aims for, greater than 0.
    :param reserve_tokens: The tokens kept free for the reply, at least 0 and less than the window; None for 5 % of the
        window, or what `compact_at` leaves of it where that is less.
    :param last_resort: Whether the largest contents are shortened when a request would not fit even so.
    :param repair: Whether a broken history is repaired before a model sees it.
    :raises ValueError: If a setting is out of its range.
    """

    context_window: int
    compact_at: float = 0.7
    compact_to: float = 0.4
    reserve_tokens: int | None = None
    last_resort: bool = True
    repair: bool = True

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
    """

    window: Window
    compactor: CompactorProtocol
    ledger: TokenLedger
    task: ChatMessage | None = None
    #: The provider's tokens for each token counted; None as long as no provider has reported any.
    ratio: float | None = None
    #: The tokens that a provider reported for the conversation through its newest reply, corrected after a compaction.
    reported: int = 0
    _tools_tokens: int = 0
    _has_observed: bool = False
    _newest_reply: ChatMessage | None = None
    #: The same by the user's own counter, where that may only be asked for whole conversations.
    _counters_ratio: float | None = None
    _asked_at: int = 0
    _counted: tuple[list[ChatMessage], int] = field(default_factory=lambda: ([], 0))
    _next_try: float = 0
    _pause: int = 0
    _pauses: int = 0
    _warned: bool = False

    def observe(self, messages: Sequence[ChatMessage], tools: ToolsType | None, context_tokens: int = 0) -> int:
        """
        Take in the conversation as it is before the next request.

        :param messages: The conversation, oldest to newest.
        :param tools: The tools whose schemas are sent along.
        :param context_tokens: What the Agent's state says about the size, 0 where it says nothing.
        :returns: The size of the request in the provider's tokens, as far as they are known.
        """
        self._tools_tokens = self.ledger.count([], tools)
        self._learn(messages, context_tokens)
        counted = self._count(messages)
        if self.ledger.whole_only and self.ratio is None:
            self._ask_counter(messages, counted)
        return self.request.of(counted)

    @property
    def request(self) -> RequestSize:
        """How the size of messages translates into that of a request."""
        return RequestSize(ratio=self.ratio or self._counters_ratio or 1.0, tools_tokens=self._tools_tokens)

    def repaired(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        """
        Return the conversation as a model may see it.

        :param messages: The conversation, oldest to newest.
        :returns: The same list, or a repaired one.
        """
        known, _ = self._counted
        # What was looked at before is not looked at again; a batch of calls may have been answered since.
        start = _newest(known, ChatRole.ASSISTANT) if messages[: len(known)] == known else 0
        if is_valid(messages[max(start, 0) :], keep_pending=False):
            return messages
        valid = repaired(messages, keep_pending=False)
        logger.warning(
            "The history was not one that providers accept; it was repaired: {before} messages before, {after} after.",
            before=len(messages),
            after=len(valid),
        )
        return valid

    def is_due(self, tokens: int) -> bool:
        """
        Return whether something has to be done about the size of the next request.

        :param tokens: The size, from `observe`.
        :returns: Whether `passes` has work to do.
        """
        return self._try_is_due(tokens) or tokens > self.window.usable

    def passes(self, messages: list[ChatMessage], tokens: int) -> Passes:
        """
        Bring the conversation down to the target, and inside the window in any case.

        :param messages: The conversation, oldest to newest. It is left as it is.
        :param tokens: Its size, from `observe`.
        :returns: A generator of the passes to run, which returns the messages to go on with and the report.
        :raises ContextWindowError: If what may not be touched is larger than the window.
        """
        compacted, report = messages, None
        if self._try_is_due(tokens):
            compaction = self._pass(self.compactor, messages, self.window.target)
            compacted, report = yield compaction
            self._remember_model(compaction, report)
            self._remember_try(report)
        left = report.tokens_after if report else tokens
        if self.window.last_resort and left * self._uncertainty > self.window.usable:
            # Some way below the limit, so that the next step does not end here again.
            room = int(0.9 * min(self.window.trigger, self.window.usable) / self._uncertainty)
            compacted, shortened = yield self._pass(TruncationCompactor(), compacted, room)
            report = combined(report, shortened)
            self._require_fit(compacted, report.tokens_after)
        assert report is not None
        self._remember_size(compacted)
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
            self.ratio = usage_ratio(
                [requested],
                counted=counted + self._tools_tokens,
                known=self.ratio,
                # What was refused was larger than the window, whatever its size.
                context_window=max(self.window.context_window, requested),
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
            compacted, shortened = yield self._pass(TruncationCompactor(), compacted, target)
            report = combined(report, shortened)
        self._remember_size(compacted)
        return compacted, report

    def _pass(self, compactor: CompactorProtocol, messages: Sequence[ChatMessage], target: int) -> CompactionPass:
        ledger = self.ledger.calibrated(messages)
        request = RequestSize(self.request.ratio / ledger.scale, round(self._tools_tokens * ledger.scale))
        compaction = CompactionPass(
            compactor,
            messages,
            target,
            ledger,
            request=request,
            task=self.task,
            context_window=self.window.context_window,
        )
        compaction.context.model_is_paused = self._pause > 0
        return compaction

    def _ask_counter(self, messages: Sequence[ChatMessage], counted: int) -> None:
        """Ask a counter that may only be asked for whole conversations, and not more often than it is worth."""
        is_due = self.request.of(counted) >= self.window.trigger
        if not self._asked_at or counted >= _GROWTH_BETWEEN_QUESTIONS * self._asked_at or is_due:
            self._counters_ratio = self.ledger.measure(messages) / max(counted, 1)
            self._asked_at = counted

    def _learn(self, messages: Sequence[ChatMessage], context_tokens: int) -> None:
        """Learn the ratio from a reply that was not there before. An old number teaches nothing about a new size."""
        newest = _newest(messages, ChatRole.ASSISTANT)
        reply = messages[newest] if newest >= 0 else None
        joined_late = not self._has_observed
        is_news = reply is not self._newest_reply
        self._has_observed, self._newest_reply = True, reply
        candidates = [context_tokens] if context_tokens not in (0, self.reported) else []
        usage = reply.meta.get("usage") if reply is not None and is_news and not joined_late else None
        if isinstance(usage, Mapping):
            candidates.extend(likely_usage(usage))
        if not candidates:
            return
        counted = self.ledger.count(through_newest_reply(messages)) + self._tools_tokens
        self.ratio = usage_ratio(
            candidates, counted=counted, known=self.ratio, context_window=self.window.context_window
        )
        self.reported = context_tokens or round(self.ratio * counted)

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
        return _UNCONFIRMED if self.ratio is None and self._counters_ratio is None else 1.0

    def _try_is_due(self, tokens: int) -> bool:
        return tokens >= self.window.trigger and tokens >= self._next_try

    def _remember_size(self, compacted: list[ChatMessage]) -> None:
        self._count(compacted)
        # The usage of the reply that is the newest now is that of the conversation as it was.
        newest = _newest(compacted, ChatRole.ASSISTANT)
        self._newest_reply = compacted[newest] if newest >= 0 else None
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

    def _remember_try(self, report: CompactionReport) -> None:
        """Keep from trying again too soon."""
        under_trigger = report.tokens_after < self.window.trigger
        growth = _GROWTH_BETWEEN_TRIES * self.window.context_window
        self._next_try = 0 if under_trigger else report.tokens_after + growth
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
        certain = self.request.ratio / max(min(self.request.ratio, _CREDIBLE_RATIO), 1)
        if tokens / certain <= self.window.context_window * self._uncertainty:
            return
        sizes = self.ledger.sizes(messages)
        largest = max(range(len(messages)), key=sizes.__getitem__)
        raise ContextWindowError(
            f"The conversation takes {tokens} tokens and does not fit the context window of "
            f"{self.window.context_window}, although everything that may be removed or shortened is. The largest "
            f"message is number {largest} ({messages[largest].role.value}, about {sizes[largest]} tokens): shorten "
            f"it, unpin it, or use a model with a larger window."
        )


def through_newest_reply(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """
    Return the part of a conversation that the usage of its newest reply accounts for.

    :param messages: The conversation, oldest to newest.
    :returns: The messages through the last one from the assistant, or all of them when there is none.
    """
    return messages[: _newest(messages, ChatRole.ASSISTANT) + 1] or messages


def _newest(messages: Sequence[ChatMessage], role: ChatRole) -> int:
    return next((index for index in range(len(messages) - 1, -1, -1) if messages[index].role is role), -1)


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
        reached_target=second.tokens_after <= first.target_tokens,
        stages=stages,
        llm_calls=first.llm_calls + second.llm_calls,
        llm_usage=dict(Counter(first.llm_usage) + Counter(second.llm_usage)),
        duration_seconds=first.duration_seconds + second.duration_seconds,
    )
