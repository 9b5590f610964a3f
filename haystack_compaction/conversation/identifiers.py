# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Which exact things (paths, addresses, ids, numbers) messages name, and when."""

import re
from collections.abc import Iterable, Set

# A thing is known by its name from the first digit, slash or at sign on ("12345" of "ORD-12345"): a search for these
# passes over prose several times as fast as one for words does.
_SIGNED = re.compile(r"[0-9/@][A-Za-z0-9_./@#%+~-]{2,}[A-Za-z0-9_/]")
# A plain word names a thing where it is put in quotes, here with the opening one.
_QUOTES = "\"'`"
_QUOTED = re.compile(rf"[{_QUOTES}][A-Za-z][A-Za-z0-9_.-]+[A-Za-z0-9_]")
# A quoted key of a JSON object names a field and not a thing.
_QUOTED_NAME = re.compile(rf"[{_QUOTES}]([A-Za-z][A-Za-z0-9_.-]+[A-Za-z0-9_])[{_QUOTES}](?!:)")


def identifiers_in(text: str) -> set[str]:
    """
    Return the exact things that a text names.

    ### Usage example

    ```python
    from haystack_compaction.conversation.identifiers import identifiers_in

    assert identifiers_in("Copy /srv/a.log of ORD-12345 to 'old'.") == {"/srv/a.log", "12345", "old"}
    ```

    :param text: Any text.
    :returns: Their names, from the first digit, slash or at sign on.
    """
    names = set(_SIGNED.findall(text))
    return names.union(_QUOTED_NAME.findall(text)) if _has_quotes(text) else names


class IdentifierIndex:
    """
    When messages first and last named each exact thing.

    :param texts: What names something, each text with the index of its message, oldest first.
    """

    def __init__(self, texts: Iterable[tuple[int, str]]) -> None:
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        first, last = self._first, self._last
        for index, text in texts:
            names = _SIGNED.findall(text)
            if _has_quotes(text):
                names += [quote + name for name in _QUOTED_NAME.findall(text) for quote in _QUOTES]
            for name in names:
                last[name] = index
                first.setdefault(name, index)

    def use_of(self, text: str, index: int) -> int:
        """
        Return how much later messages have made of a text.

        :param text: The text, such as a tool's result.
        :param index: The index of its message.
        :returns: 0 when they name nothing in it, 1 when they do, 2 when nobody had named that before.
        """
        held = set(_SIGNED.findall(text))
        if _has_quotes(text):
            held.update(_QUOTED.findall(text))
        names: Set[str] = self._last.keys() & held
        if not names or max(map(self._last.__getitem__, names)) <= index:
            return 0
        return 2 if max(map(self._first.__getitem__, names)) > index else 1


def _has_quotes(text: str) -> bool:
    """Whether it is worth a search that takes much longer than this look."""
    return '"' in text or "'" in text or "`" in text
