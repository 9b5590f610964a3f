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

from haystack_compaction.compaction_pass import CompactionPass, Outcome
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

# How much a conversation must have grown, as a share of the window, before a compaction that did not get under the
# trigger is tried again. Every try rewrites the beginning of the request and so costs the provider's prompt cache.
_GROWTH_BETWEEN_TRIES = 0.1

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
    :param reserve_tokens: The tokens kept free for the reply, at least 0 and less than the window; None for 5 %.
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
        if self.context_window < 1:
            raise ValueError(f"`context_window` must be at least 1 token, got {self.context_window}.")
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
        reserved = self.reserve_tokens
        return self.context_window - (int(self.context_window * _RESERVED_SHARE) if reserved is None else reserved)

    @property
    def trigger(self) -> float:
        """The size of a request from which on it is compacted, in tokens."""
        return min(self.context_window * self.compact_at, self.usable)

    @property
    def target(self) -> int:
        """The size of a request that compaction aims for, in tokens."""
        return int(min(self.context_window * self.compact_to, self.usable))


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
    _newest_reply: ChatMessage | None = None
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
        tokens = self.request.of(self._count(messages))
        if self.ledger.whole_only and self.ratio is None and tokens >= self.window.trigger / 2:
            tokens = self.request.of(self.ledger.measure(messages))
        return tokens

    @property
    def request(self) -> RequestSize:
        """How the size of messages translates into that of a request."""
        return RequestSize(ratio=self.ratio or 1.0, tools_tokens=self._tools_tokens)

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
        return self._try_is_due(tokens) or self._overflows(tokens)

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
            compaction.context.model_is_paused = self._pause > 0
            compacted, report = yield compaction
            self._remember_try(compaction, report)
        if self.window.last_resort and self._overflows(report.tokens_after if report else tokens):
            # Some way below the limit, so that the next step does not end here again.
            room = int(0.9 * min(self.window.trigger, self.window.usable) / self._uncertainty)
            compacted, shortened = yield self._pass(TruncationCompactor(), compacted, room)
            report = _combined(report, shortened)
            self._require_fit(compacted, report.tokens_after)
        assert report is not None
        self._count(compacted)
        if self.reported:
            self.reported = self.request.of(self.ledger.count(through_newest_reply(compacted)))
        return compacted, report

    def _pass(self, compactor: CompactorProtocol, messages: Sequence[ChatMessage], target: int) -> CompactionPass:
        return CompactionPass(
            compactor,
            messages,
            target,
            self.ledger,
            request=self.request,
            task=self.task,
            context_window=self.window.context_window,
        )

    def _learn(self, messages: Sequence[ChatMessage], context_tokens: int) -> None:
        """Learn the ratio from a reply that was not there before. An old number teaches nothing about a new size."""
        newest = _newest(messages, ChatRole.ASSISTANT)
        reply = messages[newest] if newest >= 0 else None
        joined_late = self._newest_reply is None
        is_news = reply is not self._newest_reply
        self._newest_reply = reply
        candidates = [context_tokens] if context_tokens not in (0, self.reported) else []
        usage = reply.meta.get("usage") if reply is not None and is_news and not joined_late else None
        if isinstance(usage, Mapping):
            candidates.extend(likely_usage(usage))
        if not candidates:
            return
        counted = self.ledger.count(through_newest_reply(messages)) + self._tools_tokens
        self.ratio = usage_ratio(candidates, counted=counted, known=self.ratio)
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
        return _UNCONFIRMED if self.ratio is None else 1.0

    def _try_is_due(self, tokens: int) -> bool:
        return tokens >= self.window.trigger and tokens >= self._next_try

    def _overflows(self, tokens: int) -> bool:
        return tokens * self._uncertainty > self.window.usable

    def _remember_try(self, compaction: CompactionPass, report: CompactionReport) -> None:
        """Keep from trying again too soon, with the compactor or with its model."""
        under_trigger = report.tokens_after < self.window.trigger
        growth = _GROWTH_BETWEEN_TRIES * self.window.context_window
        self._next_try = 0 if under_trigger else report.tokens_after + growth
        if compaction.context.model_failures:
            self._pause = min(2**self._pauses, _LONGEST_PAUSE)
            self._pauses += 1
        elif report.llm_calls:
            self._pauses = 0
        else:
            self._pause = max(self._pause - 1, 0)
        if not report.reached_target and not self._warned:
            self._warned = True
            logger.warning(
                "Could not reach the target of {target} tokens, {after} are left: {reason}.",
                target=report.target_tokens,
                after=report.tokens_after,
                reason=report.reason,
            )

    def _require_fit(self, messages: Sequence[ChatMessage], tokens: int) -> None:
        if tokens <= self.window.context_window * self._uncertainty:
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


def _combined(first: CompactionReport | None, last_resort: CompactionReport) -> CompactionReport:
    """One report of a compaction and of the last resort after it."""
    if first is None:
        return last_resort
    stages: list[dict[str, Any]] = [*(first.stages or [first.to_dict()]), last_resort.to_dict()]
    return replace(
        first,
        compacted=first.compacted or last_resort.compacted,
        tokens_after=last_resort.tokens_after,
        rewritten_messages=first.rewritten_messages + last_resort.rewritten_messages,
        reached_target=last_resort.tokens_after <= first.target_tokens,
        duration_seconds=first.duration_seconds + last_resort.duration_seconds,
        stages=stages,
    )
