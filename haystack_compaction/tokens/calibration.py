# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Local counts against what the provider reported."""

from dataclasses import dataclass

# A provider that seems to use less than half or more than eight times of what was counted has reported something else:
# only what its prompt cache did not serve, say. Then the local count is the better witness.
_LOWEST_RATIO = 0.5
_HIGHEST_RATIO = 8.0


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


def usage_ratio(*, reported: int, counted: int) -> float:
    """
    Return the provider's tokens for each token counted.

    :param reported: The tokens that the provider reported for a request and its reply.
    :param counted: The tokens counted for the same messages and tools.
    :returns: The ratio, or 1 when the two disagree beyond reason.
    """
    if reported <= 0 or counted <= 0:
        return 1.0
    ratio = reported / counted
    return ratio if _LOWEST_RATIO <= ratio <= _HIGHEST_RATIO else 1.0
