# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What a statement is about: its terms, and the exact values in it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

# Scripts that put no spaces between words: Thai to Khmer, kana, Han, Hangul. Pairs of characters stand for words.
_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_BREAKS = r"\s\"'`()<>\[\]{}|;*“”„«»‹›\u3000-\u303f\uff00-\uffef…—–"
_IN_WORDS = f"[^{_BREAKS},{_UNSPACED}]+"
# The name in "name=value" is a token of its own, unlike one within an address.
_TOKEN = re.compile(rf"[{_UNSPACED}]+|\w+(?==[^=])|{_IN_WORDS}(?:(?<=\d),(?=\d){_IN_WORDS})*")

_EDGES = ".:,=&!?"
_STEM = 6
_MAX_TOKEN = 120


@dataclass(frozen=True, slots=True)
class Content:
    """
    What a statement is about.

    :param words: Its words, shortened to what their inflections share. Each once.
    :param values: What is exact in it: numbers, ids, paths, addresses, names of code. Each with its kind.
    :param terms: Words and values.
    """

    words: frozenset[str]
    values: dict[str, str]
    terms: frozenset[str]


class Reader:
    """Reads statements. Remembers what it has read, since most of a conversation comes again and again."""

    def __init__(self) -> None:
        self._statements: dict[str, Content] = {}
        #: The terms of what stands between spaces, and the values among them with their kinds.
        self._terms: dict[str, tuple[str, ...]] = {}
        self._values: dict[str, list[tuple[str, str]]] = {}

    def read(self, statement: str) -> Content:
        """
        Take a statement apart.

        :param statement: A statement on one line.
        :returns: What it is about.
        """
        content = self._statements.get(statement)
        if content is None:
            content = self._statements[statement] = self._taken_apart(statement)
        return content

    def _taken_apart(self, statement: str) -> Content:
        pieces = set(statement.split())
        self._learn(pieces.difference(self._terms))
        terms = frozenset(chain.from_iterable(map(self._terms.__getitem__, pieces)))
        exact = pieces & self._values.keys()
        if not exact:
            return Content(terms, {}, terms)
        values = dict(sorted(chain.from_iterable(map(self._values.__getitem__, exact))))
        return Content(terms.difference(values), values, terms)

    def _learn(self, pieces: Iterable[str]) -> None:
        for piece in pieces:
            tokens = list(map(_read_token, _TOKEN.findall(piece)))
            self._terms[piece] = tuple(chain.from_iterable(terms for terms, _ in tokens))
            values = [(terms[0], kind) for terms, kind in tokens if kind]
            if values:
                self._values[piece] = values


def tokens(statement: str) -> list[str]:
    """
    Cut a statement into words and values.

    :param statement: A statement on one line.
    :returns: The words and values as they stand there, in order.
    """
    return [token.strip(_EDGES) for token in _TOKEN.findall(statement)]


def terms_of(words: str) -> frozenset[str]:
    """
    Return the terms of a list of words.

    :param words: The words, with spaces between them.
    :returns: What each of them is called as a term.
    """
    return Reader().read(words).terms


def _read_token(token: str) -> tuple[tuple[str, ...], str]:
    """The terms of a token, and its kind if it is a value."""
    if token[0] > "\u0dff" and _is_unspaced(token[0]):
        return tuple({token[index : index + 2] for index in range(max(len(token) - 1, 1))}), ""
    token = token.strip(_EDGES)[:_MAX_TOKEN]
    kind = _kind(token)
    if kind:
        return (token.casefold(),), kind
    if len(token) < 2:
        return (), ""
    return (token.casefold()[:_STEM],), ""


def _is_unspaced(character: str) -> bool:
    return not character >= "\uff00" and ("\u0e00" <= character <= "\u17ff" or "\u3040" <= character <= "\uffff")


# Tried one after the other. None of them may take more than the square of the time on a token that it does not match.
_KINDS = {
    "url": r"[a-z][a-z0-9+.-]*://.+",
    "email": r"[^@/]+@[^@/]+\.[^@/]+",
    "date": r"\d{4}[-/.]\d\d?[-/.]\d\d?(?:[T_].*)?|\d\d?[./-]\d\d?[./-](?:\d{4}|\d\d)",
    "time": r"\d\d?:\d\d(?::\d\d)?\S{0,6}",
    "path": r"(?:[a-zA-Z]:|~|\.{1,2})?(?:[\\/][^\\/]+)+[\\/]?|[^\\/]+(?:[\\/][^\\/]+)+[\\/]?",
    "version": r"[vV]?\d+(?:\.\d+){2,}\S*|[vV]\d+(?:\.\d+)*",
    "hash": r"(?=.*\d)(?=.*[a-fA-F])[0-9a-fA-F]{7,}|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    "amount": r"[$€£¥₹]\d[\d.,]*\w{0,3}|[+-]?\d[\d.,]*(?:%|[$€£¥₹]|[a-zA-Zµ]{1,3})",
    "number": r"[+-]?\d[\d.,]*",
    "id": r"(?=.*\d).{2,}",
    "name": r"\w+_\w+|\w+(?:\.\w+)+|\w+::\S+|[A-Z][A-Z-]{2,}|[a-z]+[A-Z]\w+|[A-Z][a-z]+[A-Z]\w*"
    r"|-{1,2}[a-z][\w-]+|#\S+|\S+@\S+",
}
_KIND = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS.items()))


def _kind(token: str) -> str:
    if token.isalpha() and token[1:].islower():
        # A plain word, as most tokens are.
        return ""
    match = _KIND.fullmatch(token)
    return match.lastgroup or "" if match else ""
