# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""How large the next request is, by what is counted here and by what the provider has reported of earlier ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from haystack.dataclasses import ChatMessage, ChatRole
from haystack.tools import ToolsType

from haystack_compaction.tokens.calibration import Calibration, RequestSize, least_size, prompt_sizes, total_size
from haystack_compaction.tokens.estimate import EstimateTokenCounter
from haystack_compaction.tokens.ledger import TokenLedger

# As long as no provider has confirmed the local count, it may be too low by this much.
_UNCONFIRMED = 1.4

# What is taken for a token of the estimate when a provider turns out to report no usage at all. There are tokenizers
# that need more, and hardly any that need less.
_UNREPORTED = 1.15

# A lower ratio is believed only as far as images and files account for it.
_DOUBTFUL_RATIO = 0.5

# How much a conversation must have grown before a counter that may be a provider's API is asked again.
_GROWTH_BETWEEN_QUESTIONS = 1.25


@dataclass
class RequestMeter:
    """
    Measures the requests of one run, and learns from each reply what a token is to the provider.

    :param ledger: What measures messages.
    """

    ledger: TokenLedger
    calibration: Calibration = field(default_factory=Calibration)
    #: The tokens that a provider reported for the conversation through its newest reply, corrected after a compaction.
    reported: int = 0
    #: The tokens of the schemas that are sent along, as counted.
    tools_tokens: int = 0
    #: The ratio by the user's own counter, where that may only be asked for whole conversations.
    _counters_ratio: float | None = None
    _ratio_by_default: float = 1.0
    _asked_at: int = 0
    _has_observed: bool = False
    _newest_reply: ChatMessage | None = None
    _counted: tuple[list[ChatMessage], int] = field(default_factory=lambda: ([], 0))

    def observe(
        self,
        messages: Sequence[ChatMessage],
        tools: ToolsType | None,
        context_tokens: int,
        *,
        context_window: int,
        trigger: float,
    ) -> int:
        """
        Take in the conversation as it is before the next request.

        :param messages: The conversation, oldest to newest.
        :param tools: The tools whose schemas are sent along.
        :param context_tokens: What the Agent's state says about the size, 0 where it says nothing.
        :param context_window: The model's context window in tokens.
        :param trigger: The size from which on it matters to be exact, in tokens.
        :returns: The size of the request in the provider's tokens, as far as they are known.
        """
        self.tools_tokens = self.ledger.count([], tools)
        self._learn(messages, context_tokens, context_window)
        counted = self._count(messages)
        if self.ledger.whole_only and self.calibration.ratio is None:
            self._ask_counter(messages, counted, trigger)
        return self.credible(self.request.of(counted), messages)

    @property
    def request(self) -> RequestSize:
        """How the size of messages translates into that of a request."""
        ratio = self.calibration.ratio or self._counters_ratio or self._ratio_by_default
        return RequestSize(ratio=ratio, tools_tokens=self.tools_tokens)

    @property
    def uncertainty(self) -> float:
        """How many times its measured size a request may have; 1 once a provider or the user's counter confirmed it."""
        is_confirmed = self.calibration.ratio is not None or self._counters_ratio is not None
        return 1.0 if is_confirmed else _UNCONFIRMED / self._ratio_by_default

    @property
    def known(self) -> list[ChatMessage]:
        """The conversation as it was measured last."""
        return self._counted[0]

    def credible(self, tokens: int, messages: Sequence[ChatMessage]) -> int:
        """
        Return the size of a request, no smaller than any provider could make it.

        :param tokens: The size as it was learned.
        :param messages: The messages of the request.
        :returns: That size, or a larger one.
        """
        if self.request.ratio >= _DOUBTFUL_RATIO:
            return tokens
        return max(tokens, least_size(messages, self.ledger))

    def learn_from_refusal(self, messages: Sequence[ChatMessage], requested: int, *, context_window: int) -> None:
        """
        Take in the size of a request that the provider has refused as too long.

        :param messages: The messages of the request.
        :param requested: Its size in the provider's tokens.
        :param context_window: The model's context window in tokens.
        """
        self.calibration = self.calibration.learned(
            [requested],
            counted=self.ledger.count(messages) + self.tools_tokens,
            # What was refused was larger than the window, whatever its size.
            context_window=max(context_window, requested),
            at_least=least_size(messages, self.ledger),
        )

    def go_on_with(self, compacted: list[ChatMessage]) -> None:
        """
        Take note that a compaction has rewritten the conversation.

        :param compacted: The conversation as it is now.
        """
        self._count(compacted)
        # The usage of the reply that is the newest now is that of the conversation as it was.
        newest = newest_reply_index(compacted)
        self._newest_reply = compacted[newest] if newest >= 0 else None
        self.calibration = self.calibration.rewritten()
        if self.reported:
            self.reported = self.request.of(self.ledger.count(through_newest_reply(compacted)))

    def _learn(self, messages: Sequence[ChatMessage], context_tokens: int, context_window: int) -> None:
        """Learn the ratio from a reply that was not there before. An old number teaches nothing about a new size."""
        newest = newest_reply_index(messages)
        reply = messages[newest] if newest >= 0 else None
        is_news = self._has_observed and reply is not self._newest_reply
        self._has_observed, self._newest_reply = True, reply
        usage = reply.meta.get("usage") if reply is not None and is_news else None
        usage = usage if isinstance(usage, Mapping) else {}
        request = messages[:newest]
        if newest > 0 and (sizes := prompt_sizes(usage)):
            # What was thought before a reply was written counts as a part of it, but is not sent again.
            self._calibrate(sizes, request, context_window)
        elif total := total_size(usage):
            self._calibrate([total], through_newest_reply(messages), context_window)
        elif context_tokens not in (0, self.reported):
            self._calibrate([context_tokens], through_newest_reply(messages), context_window)
        else:
            if is_news and isinstance(self.ledger.token_counter, EstimateTokenCounter):
                self._ratio_by_default = _UNREPORTED
            return
        self.reported = context_tokens or self.request.of(self.ledger.count(through_newest_reply(messages)))

    def _calibrate(self, candidates: Sequence[int], messages: Sequence[ChatMessage], context_window: int) -> None:
        """Take in what a provider may have reported for these messages."""
        counted = self.ledger.count(messages) + self.tools_tokens
        known, _ = self._counted
        has_only_grown = list(messages[: len(known)]) == known[: len(messages)]
        calibration = self.calibration if has_only_grown else self.calibration.rewritten()
        is_doubtful = min(candidates) < _DOUBTFUL_RATIO * counted
        self.calibration = calibration.learned(
            candidates,
            counted=counted,
            context_window=context_window,
            at_least=least_size(messages, self.ledger) if is_doubtful else 0,
        )

    def _ask_counter(self, messages: Sequence[ChatMessage], counted: int, trigger: float) -> None:
        """Ask a counter that may only be asked for whole conversations, and not more often than it is worth."""
        is_due = self.request.of(counted) >= trigger
        if not self._asked_at or counted >= _GROWTH_BETWEEN_QUESTIONS * self._asked_at or is_due:
            self._counters_ratio = self.ledger.measure(messages) / max(counted, 1)
            self._asked_at = counted

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


def through_newest_reply(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """
    Return the part of a conversation that the usage of its newest reply accounts for.

    :param messages: The conversation, oldest to newest.
    :returns: The messages through the last one from the assistant, or all of them when there is none.
    """
    return messages[: newest_reply_index(messages) + 1] or messages


def newest_reply_index(messages: Sequence[ChatMessage]) -> int:
    """
    Return where the last message from the assistant stands.

    :param messages: The conversation, oldest to newest.
    :returns: Its index, -1 where there is none.
    """
    indexes = range(len(messages) - 1, -1, -1)
    return next((index for index in indexes if messages[index].role is ChatRole.ASSISTANT), -1)
