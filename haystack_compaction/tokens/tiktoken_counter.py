# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Exact BPE counting that no input can crash."""

import threading
from typing import TYPE_CHECKING, Any

from haystack import logging
from haystack.core.serialization import default_to_dict

from haystack_compaction.tokens.message_counter import MessageTokenCounter
from haystack_compaction.tokens.text_estimate import estimate_text_tokens

if TYPE_CHECKING:
    import tiktoken

logger = logging.getLogger(__name__)

# A text that the encoder refuses as a whole, such as a million spaces, is counted in pieces of this many characters.
_PIECE = 10_000


class TiktokenCounter(MessageTokenCounter):
    """
    Counts the tokens of texts exactly, with OpenAI's byte-pair encoder `tiktoken`.

    Special tokens inside a text, such as `<|endoftext|>`, are counted as the plain text they are there. The vocabulary
    is downloaded on first use and cached by `tiktoken`; where that fails, the counter says so once and estimates.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction.tokens.tiktoken_counter import TiktokenCounter

    counter = TiktokenCounter(encoding="o200k_base")
    tokens = counter.count([ChatMessage.from_user("How high is the tide at noon?")])
    ```

    :param encoding: The name of a `tiktoken` encoding.
    :param tokens_per_image: Tokens charged for an image, at least 0.
    :param tokens_per_file: Tokens charged for a file whose text can't be read here, at least 0.
    :raises ValueError: If one of the two is negative.
    """

    def __init__(
        self, encoding: str = "o200k_base", *, tokens_per_image: int = 765, tokens_per_file: int = 1000
    ) -> None:
        super().__init__(tokens_per_image=tokens_per_image, tokens_per_file=tokens_per_file)
        self.encoding = encoding
        self._lock = threading.Lock()
        self._loaded = False
        self._encoder: tiktoken.Encoding | None = None

    def warm_up(self) -> None:
        """Load the vocabulary, once."""
        with self._lock:
            if not self._loaded:
                self._encoder = self._load()
                self._loaded = True

    def count_text(self, text: str) -> int:
        """
        Return the number of tokens of a text.

        :param text: Any text.
        :returns: The number of tokens, 0 for an empty text.
        """
        if not self._loaded:
            self.warm_up()
        if self._encoder is None:
            return estimate_text_tokens(text)
        tokens = self._encoded_length(text)
        if tokens is not None:
            return tokens
        pieces = (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))
        lengths = ((piece, self._encoded_length(piece)) for piece in pieces)
        return sum(estimate_text_tokens(piece) if length is None else length for piece, length in lengths)

    def to_dict(self) -> dict[str, Any]:
        """
        Serialize the counter.

        :returns: A dictionary that `from_dict` takes.
        """
        return default_to_dict(
            self, encoding=self.encoding, tokens_per_image=self.tokens_per_image, tokens_per_file=self.tokens_per_file
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """The vocabulary and the lock are no part of a copy."""
        return TiktokenCounter.from_dict, (self.to_dict(),)

    def _load(self) -> "tiktoken.Encoding | None":
        try:
            import tiktoken

            return tiktoken.get_encoding(self.encoding)
        except Exception as error:
            logger.warning(
                "The vocabulary '{encoding}' could not be loaded ({error}); tokens are estimated instead. Where there "
                "is no network, point TIKTOKEN_CACHE_DIR to a folder that has the vocabulary.",
                encoding=self.encoding,
                error=f"{type(error).__name__}: {error}",
            )
            return None

    def _encoded_length(self, text: str) -> int | None:
        assert self._encoder is not None
        try:
            return len(self._encoder.encode(text, disallowed_special=()))
        except (KeyboardInterrupt, SystemExit):
            raise
        # The encoder is written in Rust, and its panic is no `Exception`.
        except BaseException:
            return None
