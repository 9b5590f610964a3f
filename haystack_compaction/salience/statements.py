# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What a conversation says, statement by statement."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from haystack.dataclasses import ChatMessage, ChatRole, ToolCallResult

from haystack_compaction.salience.sentences import sentences
from haystack_compaction.salience.terms import Content, Reader, tokens
from haystack_compaction.salience.texts import FAILED, Voice, call_line, texts_to_read

QUESTION_MARKS = ("?", "？")
BULLET = "- "

_VOICES = {voice.value: voice for voice in Voice}
_CALLS = re.compile(r"(?:Tool calls among them|Calls): (.+?)\.?$")
_CALL = re.compile(r"(\S+) x(\d{1,9})(?:, |$)")
_LINE = re.compile(
    r"(.*?)(?: \(x(\d{1,9})\))?(?: \(and (\d{1,9}) more like it, with other values(?:: (.+))?\))?", re.DOTALL
)
BETWEEN_VALUES = "; "


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
    :param others: The values of these others, as far as they are known, newest first.
    :param corrects: Whether it puts an earlier statement right.
    :param weight: How much it is worth.
    """

    text: str
    voice: Voice
    message: int
    content: Content
    times: int = 1
    alike: int = 0
    others: tuple[str, ...] = ()
    corrects: bool = False
    weight: float = 0.0

    def line(self) -> str:
        """The statement as it stands in a digest."""
        times = f" (x{self.times})" if self.times > 1 else ""
        values = f": {BETWEEN_VALUES.join(self.others)}" if self.others else ""
        alike = f" (and {self.alike} more like it, with other values{values})" if self.alike else ""
        return f"{BULLET}{self.text}{times}{alike}"

    @property
    def said(self) -> int:
        """How often it or the like of it is said."""
        return self.times + self.alike

    def after(self, earlier: "Statement") -> "Statement":
        """
        Stand for an earlier statement of the same text, too.

        :param earlier: The earlier statement.
        :returns: A statement that counts both.
        """
        others = tuple(dict.fromkeys((*self.others, *earlier.others)))
        return replace(self, times=self.times + earlier.times, alike=self.alike + earlier.alike, others=others)

    def for_all(self, older: Sequence["Statement"]) -> "Statement":
        """
        Stand for older statements that differ in values only, too.

        :param older: The older statements, oldest first.
        :returns: A statement that counts all of them, with their values.
        """
        mine = tokens(self.text)
        others = [*self.others]
        # A question states nothing.
        for statement in [] if self.text.endswith(QUESTION_MARKS) else reversed(older):
            differing = (theirs for own, theirs in zip(mine, tokens(statement.text), strict=False) if theirs != own)
            others += [" ".join(differing), *statement.others]
        return replace(
            self,
            alike=self.alike + sum(statement.said for statement in older),
            others=tuple(dict.fromkeys(filter(None, others))),
        )


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
        noted: ToolCallResult | None = None
        for index, voice, text, result in texts_to_read(messages):
            if voice is None:
                said += self.statements_of_note(text, index)
                continue
            if result is not None and result is not noted:
                noted = result
                # One statement, whatever sentences its arguments have.
                line = " ".join(call_line(result).split())
                said.append(Statement(line, Voice.CALL, index, self._reader.read(line)))
            said += self._statements(text, voice, index)
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
            said = _LINE.fullmatch(line)
            if said and said[1]:
                text, times, alike, values = said.groups()
                others = tuple(values.split(BETWEEN_VALUES)) if values else ()
                content = self._reader.read(text)
                yield Statement(text, voice, message, content, int(times or 1), int(alike or 0), others)

    def is_solved(self, statement: Statement) -> bool:
        """
        Return whether a problem is none any more.

        :param statement: A statement.
        :returns: Whether it tells of a tool that failed and has succeeded since.
        """
        if statement.voice is not Voice.PROBLEM:
            return False
        tool = statement.text.partition(FAILED)[0]
        return self._succeeded.get(tool, -1) > statement.message

    def terms(self, text: str) -> frozenset[str]:
        """
        Return what a text is about.

        :param text: Any text.
        :returns: Its terms.
        """
        return frozenset().union(*(self._reader.read(line).terms for line in sentences(text)))

    def _statements(self, text: str, voice: Voice, message: int) -> list[Statement]:
        lines = Counter(sentences(text))
        return [Statement(line, voice, message, self._reader.read(line), times) for line, times in lines.items()]

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


def calls_line(calls: Mapping[str, int]) -> str:
    """
    Write down how often each tool was called.

    :param calls: The number of calls by the name of the tool.
    :returns: The line as it stands in a digest.
    """
    return f"{BULLET}Calls: " + ", ".join(f"{tool} x{number}" for tool, number in calls.items())
