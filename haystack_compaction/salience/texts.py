# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What of a conversation is read: all that is said, or the most unusual of it where that would be too much."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from math import inf

from haystack.dataclasses import ChatMessage, ChatRole, TextContent, ToolCallResult

from haystack_compaction.conversation.notes import is_note, told_by
from haystack_compaction.salience.sentences import clipped

# A conversation of up to so many characters is read word by word. Of a longer one, so many of its most unusual lines
# are, and what is usual is learned from a sample.
_READ_WHOLE_CHARACTERS = 800_000
_READ_CHARACTERS = 50_000
_SAMPLE_CHARACTERS = 150_000

# A text longer than this is looked at line by line when unusual lines are sought.
_LONG_TEXT = 1_000

_ARGUMENT_CHARACTERS = 60
_OUTCOME_CHARACTERS = 100

#: What stands between the name of a tool and what went wrong.
FAILED = " failed: "

_PAIRS = re.compile("..")


class Voice(Enum):
    """Who says something, with the heading that it stands under in a digest."""

    USER = "## User said"
    ASSISTANT = "## Assistant said"
    CALL = "## Work done"
    TOOL = "## Tools returned"
    PROBLEM = "## Open problems"

    # Each is there once. The hash of `Enum` is one of the name, and takes several times as long.
    __hash__ = object.__hash__


# Whose unusual words are worth more.
_HEED = {Voice.USER: 2.0, Voice.ASSISTANT: 1.0, Voice.TOOL: 1.0, Voice.PROBLEM: 1.5}


@dataclass(slots=True)
class Texts:
    """
    Texts, in order. Lists side by side, because the garbage collector would look at each of so many tuples.

    :param messages: The index of the message that each text is of.
    :param voices: Who says it; None for what a note tells.
    :param texts: What is said.
    :param results: The result of a tool that each text is of, if it is.
    """

    messages: list[int] = field(default_factory=list)
    voices: list[Voice | None] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    results: list[ToolCallResult | None] = field(default_factory=list)

    def add(self, message: int, voice: Voice | None, text: str, result: ToolCallResult | None = None) -> None:
        """Add a text at the end."""
        self.messages.append(message)
        self.voices.append(voice)
        self.texts.append(text)
        self.results.append(result)

    def __iter__(self) -> Iterator[tuple[int, Voice | None, str, ToolCallResult | None]]:
        return zip(self.messages, self.voices, self.texts, self.results, strict=True)


def texts_to_read(messages: Sequence[ChatMessage]) -> Texts:
    """
    Return what is said in a conversation, or the most unusual parts of it where it is too much to read.

    :param messages: The messages, oldest to newest.
    :returns: The texts.
    """
    texts = Texts()
    for index, message in enumerate(messages):
        _add_texts(texts, message, index)
    characters = sum(map(len, texts.texts))
    return texts if characters <= _READ_WHOLE_CHARACTERS else _unusual(texts, characters)


def call_line(result: ToolCallResult) -> str:
    """
    Write down a call with its outcome, as one would note it.

    :param result: The result, which has the call with it.
    :returns: The line.
    """
    arguments = ", ".join(
        [f"{name}={_short(str(value), _ARGUMENT_CHARACTERS)}" for name, value in result.origin.arguments.items()]
    )
    outcome = _short(_result_text(result).lstrip().partition("\n")[0], _OUTCOME_CHARACTERS) or "nothing"
    return f"{result.origin.tool_name}({arguments}): {outcome}"


def _add_texts(texts: Texts, message: ChatMessage, index: int) -> None:
    if message._meta and is_note(message):
        texts.add(index, None, told_by(message))
        return
    voice = Voice.USER if message._role is ChatRole.USER else Voice.ASSISTANT
    for part in message._content:
        if isinstance(part, TextContent):
            texts.add(index, voice, clipped(part.text))
        elif isinstance(part, ToolCallResult):
            text = clipped(_result_text(part))
            if part.error:
                texts.add(index, Voice.PROBLEM, f"{part.origin.tool_name}{FAILED}{text}")
            else:
                texts.add(index, Voice.TOOL, text, part)


def _unusual(texts: Texts, characters: int) -> Texts:
    """The texts and lines with the most words that are not usual, for their length, and all notes."""
    sample = texts.texts[:: 1 + characters // _SAMPLE_CHARACTERS]
    usual = {word for word, count in Counter(chain.from_iterable(map(_words, sample))).items() if count > 1}
    parts = Texts()
    for index, voice, text, result in texts:
        for part in text.splitlines() if voice and len(text) > _LONG_TEXT else (text,):
            parts.add(index, voice, part, result)
    worth = [
        _HEED[voice] * len(set(_words(text)).difference(usual)) / (len(text) + 40) if voice else inf
        for voice, text in zip(parts.voices, parts.texts, strict=True)
    ]
    room = _READ_CHARACTERS
    kept: list[int] = []
    for position in sorted(range(len(worth)), key=worth.__getitem__, reverse=True):
        room -= len(parts.texts[position])
        if room < 0 and kept:
            break
        kept.append(position)
    unusual = Texts()
    for position in sorted(kept):
        unusual.add(parts.messages[position], parts.voices[position], parts.texts[position], parts.results[position])
    return unusual


def _words(line: str) -> list[str]:
    """Words by the spaces between them, or pairs of characters where there are none. Rough, and fast."""
    words = line.split()
    return words if len(words) * 20 > len(line) or line.isascii() else [*words, *_PAIRS.findall(line)]


def _result_text(result: ToolCallResult) -> str:
    if isinstance(result.result, str):
        return result.result
    return "\n".join(part.text for part in result.result if isinstance(part, TextContent))


def _short(text: str, characters: int) -> str:
    if len(text) <= characters and text.isprintable():
        return text
    text = " ".join(text[: 4 * characters].split())
    return text if len(text) <= characters else f"{text[: characters - 1]}…"
