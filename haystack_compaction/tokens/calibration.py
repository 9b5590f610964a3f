# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Local counts against what the provider reported."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any

from haystack.dataclasses import ChatMessage, FileContent, ImageContent, TextContent, ToolCallResult

from haystack_compaction.tokens.ledger import TokenLedger

# No tokenizer takes less than half of what is counted for a text. A provider that seems to has reported something else,
# only what its prompt cache did not serve, say; then the count is the better witness. What an image costs differs much
# more between providers.
_LOWEST_TEXT_RATIO = 0.5
_LOWEST_ATTACHMENT_RATIO = 0.08

# The other way round the provider is right, as long as what it reports could have fitted the window.
_HIGHEST_RATIO = 30.0

# A conversation to which messages were only added has not become smaller; this leaves room for what is rounded.
_STILL_THERE = 0.95

# So many reports settle whether tokens from the prompt cache are part of what is reported.
_ENOUGH_AGREEMENTS = 2

_PROMPT_KEYS = ("prompt_tokens", "input_tokens", "inputTokens", "prompt_token_count")
_COMPLETION_KEYS = ("completion_tokens", "output_tokens", "outputTokens", "candidates_token_count")
_TOTAL_KEYS = ("total_tokens", "totalTokens", "total_token_count")
_CACHE_KEYS = (
    ("cache_read_input_tokens", "cacheReadInputTokens"),
    ("cache_creation_input_tokens", "cacheWriteInputTokens", "cache_write_input_tokens"),
    ("cached_tokens", "cached_content_token_count"),
)
_DETAIL_KEYS = ("prompt_tokens_details", "input_tokens_details")


@dataclass(frozen=True)
class RequestSize:
    """
    Translates between the size of the messages as counted and the size of the whole request in the provider's tokens.

    The difference between the two is a ratio and not a constant: a tokenizer that needs twice the tokens for Chinese
    does so for every message, also for those that are about to be removed.

    :param ratio: The provider's tokens for each token counted, learned from the usage that it reports.
    :param tools_tokens: The size of the tool schemas as counted, which no compaction makes smaller.
    """

    ratio: float = 1.0
    tools_tokens: int = 0

    def of(self, message_tokens: int) -> int:
        """The size of a request, in the provider's tokens, from the size of its messages as counted."""
        return round(self.ratio * (message_tokens + self.tools_tokens))

    def room_for_messages(self, request_tokens: int) -> int:
        """What the messages may take, as counted, for a request of the given size in the provider's tokens."""
        return max(int(request_tokens / self.ratio) - self.tools_tokens, 0)


@dataclass(frozen=True)
class Calibration:
    """
    What was learned from the usage that a provider reported in a run.

    :param ratio: The provider's tokens for each token counted; None as long as it has reported nothing.
    :param least: What a conversation that only grew since the last report takes at least, in the provider's tokens.
    :param agreements: How many reports in a row grew with the conversation without the tokens from the prompt cache.
    """

    ratio: float | None = None
    least: int = 0
    agreements: int = 0

    def learned(
        self, candidates: Sequence[int], *, counted: int, context_window: int, at_least: int = 0
    ) -> "Calibration":
        """
        Take in what a provider may have meant. Where all of it is beyond reason, the larger of what was known and what
        was counted holds.

        :param candidates: The possible sizes of the same request in tokens, smallest first.
        :param counted: The tokens counted for its messages and tools.
        :param context_window: The model's context window in tokens.
        :param at_least: A size that no provider can have meant less than.
        :returns: What is known now.
        """
        counted = max(counted, 1)
        known = self.ratio or 1.0
        least = max(self.least, at_least, 1)
        credible = [
            tokens
            for tokens in candidates
            if tokens >= least and (tokens <= context_window or tokens <= _HIGHEST_RATIO * counted)
        ]
        # What was answered did fit the window.
        credible = [tokens for tokens in credible if tokens <= context_window] or credible
        if not credible:
            return replace(self, ratio=max(known, 1.0), agreements=0)
        agreements = self.agreements
        if len(candidates) > 1:
            agreements = agreements + bool(self.least) if credible[0] == candidates[0] else 0
        if agreements >= _ENOUGH_AGREEMENTS:
            credible = credible[:1]
        size = min(credible, key=lambda tokens: abs(log(tokens / (known * counted))))
        return Calibration(size / counted, int(_STILL_THERE * credible[0]), agreements)

    def rewritten(self) -> "Calibration":
        """What is still known once the conversation is another one."""
        return replace(self, least=0)


def prompt_sizes(usage: Mapping[str, Any]) -> list[int]:
    """
    Return what a reply's usage may say about the size of its request.

    Providers and proxies disagree on whether the tokens that the prompt cache served are part of the input tokens:
    OpenAI's are, Bedrock's and those of older Anthropic clients are not. Hence more than one answer, see `Calibration`.

    :param usage: The `usage` in the reply's `meta`.
    :returns: The possible sizes in tokens, smallest first; none when the usage says nothing of the request alone.
    """
    prompt = _first_number(usage, _PROMPT_KEYS)
    details = [usage[key] for key in _DETAIL_KEYS if isinstance(usage.get(key), Mapping)]
    cached = sum(max(_first_number(counts, keys) for counts in (usage, *details)) for keys in _CACHE_KEYS)
    if not prompt and not cached:
        return []
    everything = prompt + cached
    # A part cannot be larger than the whole; and where the total has it on top, that settles it, too.
    total = _first_number(usage, _TOTAL_KEYS)
    is_apart = cached > prompt or total == everything + _first_number(usage, _COMPLETION_KEYS)
    return [everything] if is_apart or not cached else [prompt, everything]


def total_size(usage: Mapping[str, Any]) -> int:
    """
    Return the size of a request with its reply, where a usage has only that.

    :param usage: The `usage` in the reply's `meta`.
    :returns: The number of tokens, 0 when the usage does not say.
    """
    return _first_number(usage, _TOTAL_KEYS)


def least_size(messages: Sequence[ChatMessage], ledger: TokenLedger) -> int:
    """
    Return the fewest tokens that any provider can take for the messages.

    :param messages: Any messages.
    :param ledger: What measures them.
    :returns: The number of tokens.
    """
    total = ledger.count(messages)
    texts = ledger.count(list(map(_without_attachments, messages)))
    return int(_LOWEST_TEXT_RATIO * texts + _LOWEST_ATTACHMENT_RATIO * max(total - texts, 0))


def _without_attachments(message: ChatMessage) -> ChatMessage:
    kept = []
    for part in message._content:
        if isinstance(part, ToolCallResult) and not isinstance(part.result, str):
            part = replace(part, result=[block for block in part.result if isinstance(block, TextContent)])
        if not isinstance(part, (ImageContent, FileContent)):
            kept.append(part)
    return message if kept == message._content else replace(message, _content=kept)


def _first_number(usage: Mapping[str, Any], keys: Sequence[str]) -> int:
    numbers = (usage.get(key) for key in keys)
    return next((int(n) for n in numbers if isinstance(n, (int, float)) and not isinstance(n, bool)), 0)
