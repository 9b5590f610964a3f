# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The default counter: fast, without a vocabulary, right in every script."""

from haystack_compaction.tokens.message_counter import MessageTokenCounter
from haystack_compaction.tokens.text_estimate import estimate_text_tokens


class EstimateTokenCounter(MessageTokenCounter):
    """
    Estimates tokens from the kinds of characters in a text and how they follow each other.

    Within 15 % of `o200k_base` on average for prose in any script, code, JSON and base64, and more than ten times as
    fast as `tiktoken`; `docs/token-estimates.md` has the measurements. Needs no download.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction.tokens.estimate import EstimateTokenCounter

    tokens = EstimateTokenCounter().count([ChatMessage.from_user("How high is the tide at noon?")])
    assert 8 <= tokens <= 16
    ```

    :param tokens_per_image: Tokens charged for an image, at least 0.
    :param tokens_per_file: Tokens charged for a file whose text can't be read here, at least 0.
    :raises ValueError: If one of the two is negative.
    """

    def count_text(self, text: str) -> int:
        """
        Return the estimated number of tokens of a text.

        :param text: Any text, in any language.
        :returns: The estimated number of tokens, 0 for an empty text.
        """
        return estimate_text_tokens(text)
