# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What a conversation says, statement by statement."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf

from haystack.dataclasses import ChatMessage, ChatRole, TextContent, ToolCallResult

from haystack_compaction.conversation.notes import is_note, told_by
from haystack_compaction.salience.sentences import clipped, sentences
from haystack_compaction.salience.terms import Content, Reader

# A conversation of up to so many characters is read word by word. Of a longer one, so many of its most unusual lines
# are, and what is usual is learned from a sample.
_READ_WHOLE_CHARACTERS = 800_000
_READ_CHARACTERS = 50_000
_SAMPLE_CHARACTERS = 150_000

# A text longer than this is looked at line by line when unusual lines are sought.
_LONG_TEXT = 1_000

_ARGUMENT_CHARACTERS = 60
_OUTCOME_CHARACTERS = 100

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


QUESTION_MARKS = ("?", "？")
BULLET = "- "
# Whose unusual words are worth more.
_HEED = {Voice.USER: 2.0, Voice.ASSISTANT: 1.0, Voice.CALL: 0.2, Voice.TOOL: 1.0, Voice.PROBLEM: 1.5}

_VOICES = {voice.value: voice for voice in Voice}
_FAILED = " failed: "
_CALLS = re.compile(r"(?:Tool calls among them|Calls): (.+?)\.?$")
_CALL = re.compile(r"(\S+) x(\d{1,9})(?:, |$)")
_TIMES = re.compile(r" \(x(\d{1,9})\)$")
_ALIKE = re.compile(r" \(and (\d{1,9}) more like it, with other values\)$")


@dataclass(slots=True, eq=False)
class Statement:
    """
    A sentence, a line or an object that somebody says.

    :param text: The statement, on one line.
    :param voice: Who says it. A call and its outcome, put into words, count as said too.
    :param message: The index of the message in which it is said; -1 for what an earlier digest holds.
    :param content: What it is about.
    :param times: How often it is said.
    :param alike: How many others it stands for that say the same with other values.
    :param corrects: Whether it puts an earlier statement right.
    :param weight: How much it is worth.
    """

    text: str
    voice: Voice
    message: int
    content: Content
    times: int = 1
    alike: int = 0
    corrects: bool = False
    weight: float = 0.0

    def line(self) -> str:
        """The statement as it stands in a digest."""
        times = f" (x{self.times})" if self.times > 1 else ""
        alike = f" (and {self.alike} more like it, with other values)" if self.alike else ""
        return f"{BULLET}{self.text}{times}{alike}"

    @property
    def said(self) -> int:
        """How often it or the like of it is said."""
        return self.times + self.alike


class Listener:
    """Collects what a conversation says and which calls it holds. Remembers each word it has read."""

    def __init__(self) -> None:
        self._reader = Reader()
        #: How often each tool was called, by the index of the message that has the result.
        self.calls: dict[int, dict[str, int]] = {}
        self._succeeded: dict[str, int] = {}

    def statements(self, messages: Sequence[ChatMessage]) -> list[Statement]:
        """
        Collect what a conversation says.

        :param messages: The messages, oldest to newest.
        :returns: The statements in order.
        """
        for index, message in enumerate(messages):
            if message._role is ChatRole.TOOL:
                self._hear_results(message, index)
        said: list[Statement] = []
        for index, voice, text in _to_read(messages):
            if voice is None:
                said += self.statements_of_note(text, index)
            else:
                said += [Statement(line, voice, index, self._reader.read(line)) for line in sentences(text)]
        return said

    def statements_of_note(self, text: str, message: int) -> Iterator[Statement]:
        """
        Collect what a digest or a summary says. The sections of a digest tell who said it; any other text counts as
        the user's word, since whoever wrote it has weighed it already.

        :param text: The digest or summary.
        :param message: The index of its message.
        :returns: The statements in order.
        """
        voice = Voice.USER
        for line in text.splitlines():
            line = line.strip()
            if line.startswith("#"):
                voice = _VOICES.get(line, Voice.USER)
                continue
            line = line.removeprefix(BULLET)
            if calls := _CALLS.match(line):
                self._add_calls(message, {tool: int(number) for tool, number in _CALL.findall(calls[1])})
                continue
            line, alike = _without_number(_ALIKE, line, default=0)
            line, times = _without_number(_TIMES, line, default=1)
            if line:
                yield Statement(line, voice, message, self._reader.read(line), times, alike)

    def is_solved(self, statement: Statement) -> bool:
        """
        Return whether a problem is none any more.

        :param statement: A statement.
        :returns: Whether it tells of a tool that failed and has succeeded since.
        """
        if statement.voice is not Voice.PROBLEM:
            return False
        tool = statement.text.partition(_FAILED)[0]
        return self._succeeded.get(tool, -1) > statement.message

    def terms(self, text: str) -> frozenset[str]:
        """
        Return what a text is about.

        :param text: Any text.
        :returns: Its terms.
        """
        return frozenset().union(*(self._reader.read(line).terms for line in sentences(text)))

    def _hear_results(self, message: ChatMessage, index: int) -> None:
        for part in message._content:
            if isinstance(part, ToolCallResult):
                tool = part.origin.tool_name
                self._add_calls(index, {tool: 1})
                if not part.error:
                    self._succeeded[tool] = index

    def _add_calls(self, message: int, calls: dict[str, int]) -> None:
        earlier = self.calls.setdefault(message, calls)
        if earlier is not calls:
            for tool, number in calls.items():
                earlier[tool] = earlier.get(tool, 0) + number


#: The index of a message, who speaks (None for a note), and what is said.
_Text = tuple[int, Voice | None, str]


def _to_read(messages: Sequence[ChatMessage]) -> list[_Text]:
    """All texts of a conversation, or the most unusual parts of them where they are too much to read."""
    texts = [text for index, message in enumerate(messages) for text in _texts(message, index)]
    characters = sum([len(text) for _, _, text in texts])
    return texts if characters <= _READ_WHOLE_CHARACTERS else _unusual(texts, characters)


def _texts(message: ChatMessage, index: int) -> Iterator[_Text]:
    if message._meta and is_note(message):
        yield index, None, told_by(message)
        return
    voice = Voice.USER if message._role is ChatRole.USER else Voice.ASSISTANT
    for part in message._content:
        if isinstance(part, TextContent):
            yield index, voice, clipped(part.text)
        elif isinstance(part, ToolCallResult):
            text = clipped(_result_text(part))
            if part.error:
                yield index, Voice.PROBLEM, f"{part.origin.tool_name}{_FAILED}{text}"
            else:
                yield index, Voice.CALL, _call_line(part, text)
                yield index, Voice.TOOL, text


def _unusual(texts: list[_Text], characters: int) -> list[_Text]:
    """The texts and lines with the most words that are not usual, for their length, and all notes."""
    counts = Counter(word for _, _, text in texts[:: 1 + characters // _SAMPLE_CHARACTERS] for word in _words(text))
    usual = {word for word, count in counts.items() if count > 1}
    parts = [
        (index, voice, part)
        for index, voice, text in texts
        for part in (text.splitlines() if voice and len(text) > _LONG_TEXT else (text,))
    ]
    worth = [
        _HEED[voice] * len(set(_words(text)).difference(usual)) / (len(text) + 40) if voice else inf
        for _, voice, text in parts
    ]
    room = _READ_CHARACTERS
    kept: list[int] = []
    for position in sorted(range(len(parts)), key=worth.__getitem__, reverse=True):
        room -= len(parts[position][2])
        if room < 0 and kept:
            break
        kept.append(position)
    return [parts[position] for position in sorted(kept)]


def _words(line: str) -> list[str]:
    """Words by the spaces between them, or pairs of characters where there are none. Rough, and fast."""
    words = line.split()
    return words if len(words) * 20 > len(line) or line.isascii() else [*words, *_PAIRS.findall(line)]


def _result_text(result: ToolCallResult) -> str:
    if isinstance(result.result, str):
        return result.result
    return "\n".join(part.text for part in result.result if isinstance(part, TextContent))


def _call_line(result: ToolCallResult, text: str) -> str:
    """A call with its outcome, as one would note it down."""
    arguments = ", ".join(
        [f"{name}={_short(str(value), _ARGUMENT_CHARACTERS)}" for name, value in result.origin.arguments.items()]
    )
    outcome = _short(text.lstrip().partition("\n")[0], _OUTCOME_CHARACTERS) or "nothing"
    return f"{result.origin.tool_name}({arguments}): {outcome}"


def calls_line(calls: Mapping[str, int]) -> str:
    """
    Write down how often each tool was called.

    :param calls: The number of calls by the name of the tool.
    :returns: The line as it stands in a digest.
    """
    return f"{BULLET}Calls: " + ", ".join(f"{tool} x{number}" for tool, number in calls.items())


def _short(text: str, characters: int) -> str:
    text = " ".join(text[: 4 * characters].split())
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def _without_number(pattern: re.Pattern[str], line: str, *, default: int) -> tuple[str, int]:
    """A line without the number at its end, and the number."""
    number = pattern.search(line)
    return (line, default) if number is None else (line[: number.start()], int(number[1]))
