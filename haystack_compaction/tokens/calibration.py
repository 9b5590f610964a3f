# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Local counts against what the provider reported."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

# A provider that seems to use less than a third of what was counted has reported something else: only what its prompt
# cache did not serve, say. Then the count is the better witness. The other way round the provider is right, as long as
# what it reports could have fitted the window.
_LOWEST_RATIO = 0.33
_HIGHEST_RATIO = 30.0

_PROMPT_KEYS = ("prompt_tokens", "input_tokens", "inputTokens", "prompt_token_count")
_COMPLETION_KEYS = ("completion_tokens", "output_tokens", "outputTokens", "candidates_token_count")
_CACHE_KEYS = (
    ("cache_read_input_tokens", "cacheReadInputTokens"),
    ("cache_creation_input_tokens", "cacheWriteInputTokens", "cache_write_input_tokens"),
)


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


def likely_usage(usage: Mapping[str, Any]) -> list[int]:
    """
    Return what a reply's usage may say about the size of its request and itself.

    Providers disagree on whether the tokens that their prompt cache served are part of the input tokens: OpenAI's are,
    Bedrock's and those of older Anthropic clients are not. Hence more than one answer, see `usage_ratio`.

    :param usage: The `usage` in the reply's `meta`.
    :returns: The possible sizes in tokens, none when the usage says nothing.
    """
    prompt = _first_number(usage, _PROMPT_KEYS)
    completion = _first_number(usage, _COMPLETION_KEYS)
    if not prompt:
        total = _first_number(usage, ("total_tokens", "totalTokens"))
        return [total] if total else []
    cached = sum(_first_number(usage, keys) for keys in _CACHE_KEYS)
    return [prompt + completion, prompt + completion + cached] if cached else [prompt + completion]


def usage_ratio(candidates: Sequence[int], *, counted: int, context_window: int, known: float | None = None) -> float:
    """
    Return the provider's tokens for each token counted.

    :param candidates: What the provider may have meant, in tokens; the one nearest to what is known counts.
    :param counted: The tokens counted for the same messages and tools.
    :param context_window: The model's context window in tokens.
    :param known: The ratio known so far, if any.
    :returns: The ratio. Where every candidate is beyond reason, the known one, or 1.
    """
    expected = (known or 1.0) * max(counted, 1)
    reported = min((tokens for tokens in candidates if tokens > 0), key=lambda tokens: abs(log(tokens / expected)))
    ratio = reported / max(counted, 1)
    absurd = ratio < _LOWEST_RATIO or (ratio > _HIGHEST_RATIO and reported > context_window)
    return known or 1.0 if absurd else ratio


def _first_number(usage: Mapping[str, Any], keys: Sequence[str]) -> int:
    numbers = (usage.get(key) for key in keys)
    return next((int(n) for n in numbers if isinstance(n, (int, float)) and not isinstance(n, bool)), 0)
