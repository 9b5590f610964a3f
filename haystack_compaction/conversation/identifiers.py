# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Which exact things (paths, addresses, ids, numbers) messages name, and when."""

import re
from collections.abc import Iterable, Set
from itertools import chain

# A thing is known by its name from the first digit, slash or at sign on ("12345" of "ORD-12345"): a search for these
# passes over prose several times as fast as one for words does.
_SIGNED = re.compile(r"[0-9/@][A-Za-z0-9_./@#%+~-]{2,}[A-Za-z0-9_/]")
# A plain word names a thing where it is put in quotes, here with the opening one.
_QUOTES = "\"'`"
_QUOTED = re.compile(rf"[{_QUOTES}][A-Za-z][A-Za-z0-9_.-]+[A-Za-z0-9_]")
# A quoted key of a JSON object names a field and not a thing.
_QUOTED_NAME = re.compile(rf"[{_QUOTES}]([A-Za-z][A-Za-z0-9_.-]+[A-Za-z0-9_])[{_QUOTES}](?!:)")


class IdentifierIndex:
    """
    When messages first and last named each exact thing.

    :param texts: What names something, each text with the index of its message, oldest first.
    """

    def __init__(self, texts: Iterable[tuple[int, str]]) -> None:
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        for index, text in texts:
            quoted = [quote + name for name in _QUOTED_NAME.findall(text) for quote in _QUOTES]
            for name in chain(_SIGNED.findall(text), quoted):
                self._last[name] = index
                self._first.setdefault(name, index)

    def named_after(self, text: str, index: int) -> tuple[bool, bool]:
        """
        Return whether later messages name something that a text holds.

        :param text: The text, such as a tool's result.
        :param index: The index of its message.
        :returns: Whether a later message names something in it, and whether nobody had named that before.
        """
        names: Set[str] = self._last.keys() & {*_SIGNED.findall(text), *_QUOTED.findall(text)}
        return any(self._last[name] > index for name in names), any(self._first[name] > index for name in names)
