# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What a statement is about: its terms, and the exact values in it."""

import re
from dataclasses import dataclass

# Scripts that put no spaces between words: Thai to Khmer, kana, Han, Hangul. Pairs of characters stand for words.
_UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_BREAKS = r"\s\"'`()<>\[\]{}|;*“”„«»‹›\u3000-\u303f\uff00-\uffef…—–"
_TOKEN = re.compile(rf"[{_UNSPACED}]+|(?:[^{_BREAKS},{_UNSPACED}]|(?<=\d),(?=\d))+")

_EDGES = ".:,=&!?"
_STEM = 6
_MAX_TOKEN = 120


@dataclass(frozen=True, slots=True)
class Content:
    """
    What a statement is about.

    :param terms: Its words, shortened to what their inflections share, and its values. Each once.
    :param values: The terms that are exact: numbers, ids, paths, addresses, names of code. Each with its kind.
    """

    terms: frozenset[str]
    values: dict[str, str]


class Reader:
    """Reads statements. Remembers each token, since most of a conversation's words come again and again."""

    def __init__(self) -> None:
        self._tokens: dict[str, tuple[tuple[str, ...], str]] = {}

    def read(self, statement: str) -> Content:
        """
        Take a statement apart.

        :param statement: A statement on one line.
        :returns: What it is about.
        """
        terms: set[str] = set()
        values: dict[str, str] = {}
        known = self._tokens
        for token in _TOKEN.findall(statement):
            read = known.get(token)
            if read is None:
                read = known[token] = _read_token(token)
            terms.update(read[0])
            if read[1]:
                values[read[0][0]] = read[1]
        return Content(frozenset(terms), values)


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


_KINDS = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("url", r"[a-z][a-z0-9+.-]*://.+"),
        ("email", r"[^@/]+@[^@/]+\.[^@/]+"),
        ("date", r"\d{4}[-/.]\d\d?[-/.]\d\d?(?:[T_].*)?|\d\d?[./-]\d\d?[./-](?:\d{4}|\d\d)"),
        ("time", r"\d\d?:\d\d(?::\d\d)?\S{0,6}"),
        ("path", r"(?:[a-zA-Z]:|~|\.{1,2})?(?:[\\/][^\\/]+)+[\\/]?|[^\\/]+(?:[\\/][^\\/]+)+[\\/]?"),
        ("version", r"[vV]?\d+(?:\.\d+){2,}\S*|[vV]\d+(?:\.\d+)*"),
        ("hash", r"(?=.*\d)(?=.*[a-fA-F])[0-9a-fA-F]{7,}|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"),
        ("amount", r"[$€£¥₹]\d[\d.,]*\w{0,3}|[+-]?\d[\d.,]*(?:%|[$€£¥₹]|[a-zA-Zµ]{1,3})"),
        ("number", r"[+-]?\d[\d.,]*"),
        ("id", r"(?=.*\d).{2,}"),
        (
            "name",
            r"\w+(?:_\w+)+|\w+(?:\.\w+)+|\w+::\S+|[A-Z][A-Z-]{2,}|[a-z]+[A-Z]\w+|[A-Z][a-z]+[A-Z]\w*|-{1,2}[a-z][\w-]+|#\S+|\S+@\S+",
        ),
    )
)


def _kind(token: str) -> str:
    for kind, pattern in _KINDS:
        if pattern.fullmatch(token):
            return kind
    return ""
