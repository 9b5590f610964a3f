# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Which exact things (paths, addresses, ids, numbers) messages name, and when."""

import re
from collections.abc import Iterable, Set

_WORD = r"[A-Za-z0-9_/~][A-Za-z0-9_./@#%+~-]{2,}[A-Za-z0-9_/]"
_WORDS = re.compile(_WORD)
# A word is telling by a digit or a sign in it, by a dot before its last part, or because somebody put it in quotes.
# A quoted key of a JSON object names a field and not a thing.
_TELLING = re.compile(rf"(?=[A-Za-z.#%+~-]*[0-9_/@]|[A-Za-z-]+\.[A-Za-z]){_WORD}|(?<=[\"'`]){_WORD}(?=[\"'`](?!:))")


class IdentifierIndex:
    """
    When messages first and last named each exact thing.

    :param texts: What names something, each text with the index of its message, oldest first.
    """

    def __init__(self, texts: Iterable[tuple[int, str]]) -> None:
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        for index, text in texts:
            for word in _TELLING.findall(text):
                self._last[word] = index
                self._first.setdefault(word, index)

    def named_after(self, text: str, index: int) -> tuple[bool, bool]:
        """
        Return whether later messages name something that a text holds.

        :param text: The text, such as a tool's result.
        :param index: The index of its message.
        :returns: Whether a later message names something in it, and whether nobody had named that before.
        """
        words: Set[str] = self._last.keys() & set(_WORDS.findall(text))
        return any(self._last[word] > index for word in words), any(self._first[word] > index for word in words)
