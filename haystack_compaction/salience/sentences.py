# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Cutting any text, in any script, into sentences small enough to be kept or dropped one by one."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

# What of one text is looked at: its beginning and its end. A longer text is a dump whose middle nobody quotes.
_HEAD_CHARACTERS = 24_000
_TAIL_CHARACTERS = 8_000

_MAX_SENTENCE = 280
_MAX_JSON_DEPTH = 12

# Opens with one set of characters, which is what the search for the next of them is fast for.
_END = re.compile(
    r"[\r\n\u2028\u2029。！？；｡.!?]"
    r"(?:(?<![.!?])|[\"')\]”»]\s+|(?<=\w\w.)\s+(?=\S)|(?<=[^\s.].)\s+(?=[^\W\d_a-z]))"
)
_LIST_MARKS = ("- ", "* ", "• ")
_PIECE = re.compile(rf".{{1,{_MAX_SENTENCE}}}(?:[\s,;:、，：]|$)|.{{1,{_MAX_SENTENCE}}}", re.DOTALL)


def sentences(text: str) -> list[str]:
    """
    Cut a text into sentences of prose, lines of a listing, objects of a JSON document.

    Knows the punctuation of Latin, Chinese and Japanese script.

    :param text: Any text.
    :returns: The sentences in order, each on one line, none blank.
    """
    if text.lstrip()[:1] in ("{", "["):
        try:
            return [piece for line in _json_lines(json.loads(text)) for piece in _pieces(line)]
        except (ValueError, RecursionError):
            pass
    ends = [0, *(end.end() for end in _END.finditer(text)), len(text)]
    return [piece for start, end in pairwise(ends) for piece in _pieces(text[start:end])]


def clipped(text: str) -> str:
    """
    Shorten a very long text to its two ends.

    :param text: Any text.
    :returns: The text itself, or what is worth looking at of it.
    """
    if len(text) <= _HEAD_CHARACTERS + _TAIL_CHARACTERS:
        return text
    return f"{text[:_HEAD_CHARACTERS]}\n{text[-_TAIL_CHARACTERS:]}"


def _pieces(sentence: str) -> list[str]:
    sentence = " ".join(sentence.split())
    while sentence.startswith(_LIST_MARKS):
        sentence = sentence[2:]
    if len(sentence) <= _MAX_SENTENCE:
        return [sentence] if sentence else []
    return [piece.strip() for piece in _PIECE.findall(sentence) if piece.strip()]


def _json_lines(value: Any, path: str = "", depth: int = 0) -> Iterator[str]:
    """One line for the plain values of each object, so that an id stays with what it is the id of."""
    if depth > _MAX_JSON_DEPTH:
        yield f"{path}: {value}"
    elif isinstance(value, dict):
        plain = [f"{key}: {_plain(item)}" for key, item in value.items() if not isinstance(item, dict | list)]
        if plain:
            yield (f"{path}: " if path else "") + ", ".join(plain)
        for key, item in value.items():
            if isinstance(item, dict | list):
                yield from _json_lines(item, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(value, list):
        plain = [_plain(item) for item in value if not isinstance(item, dict | list)]
        if plain:
            yield (f"{path}: " if path else "") + ", ".join(plain)
        for item in value:
            if isinstance(item, dict | list):
                yield from _json_lines(item, path, depth + 1)
    else:
        yield from (_plain(value).splitlines() or [""]) if not path else [f"{path}: {_plain(value)}"]


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
