# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What a conversation says, statement by statement."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from haystack.dataclasses import ChatMessage, ChatRole, TextContent, ToolCallResult

from haystack_compaction.conversation.notes import is_note
from haystack_compaction.salience.sentences import sentences
from haystack_compaction.salience.terms import Content, Reader

_ARGUMENT_CHARACTERS = 60
_OUTCOME_CHARACTERS = 100


class Voice(Enum):
    """Who says something."""

    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    CALL = "call"


@dataclass(slots=True, eq=False)
class Statement:
    """
    A sentence, a line or an object that somebody says.

    :param text: The statement, on one line.
    :param voice: Who says it. A call and its outcome, put into words, count as said too.
    :param message: The index of the message in which it is said; -1 for what an earlier digest holds.
    :param content: What it is about.
    :param times: How often it is said.
    :param corrects: Whether it puts an earlier statement right.
    """

    text: str
    voice: Voice
    message: int
    content: Content
    times: int = 1
    corrects: bool = False


class Listener:
    """Collects what a conversation says. Remembers each word it has read."""

    def __init__(self) -> None:
        self._reader = Reader()

    def statements(self, messages: Sequence[ChatMessage]) -> list[Statement]:
        """
        Collect what a conversation says. What compaction wrote into it is left out.

        :param messages: The messages, oldest to newest.
        :returns: The statements in order.
        """
        return [
            statement
            for index, message in enumerate(messages)
            if not is_note(message)
            for statement in self._said_by(message, index)
        ]

    def hear(self, line: str, voice: Voice, message: int, times: int = 1) -> Statement:
        """
        Take one statement in.

        :param line: The statement, on one line.
        :param voice: Who says it.
        :param message: The index of its message.
        :param times: How often it was said.
        :returns: The statement.
        """
        return Statement(line, voice, message, self._reader.read(line), times)

    def _said_by(self, message: ChatMessage, index: int) -> Iterator[Statement]:
        voice = Voice.USER if message._role is ChatRole.USER else Voice.ASSISTANT
        for part in message._content:
            if isinstance(part, TextContent):
                for line in sentences(part.text):
                    yield self.hear(line, voice, index)
            elif isinstance(part, ToolCallResult):
                lines = sentences(_result_text(part))
                yield self.hear(_call_line(part, lines), Voice.CALL, index)
                for line in lines:
                    yield self.hear(line, Voice.TOOL, index)


def _result_text(result: ToolCallResult) -> str:
    if isinstance(result.result, str):
        return result.result
    return "\n".join(part.text for part in result.result if isinstance(part, TextContent))


def _call_line(result: ToolCallResult, lines: list[str]) -> str:
    """A call with its outcome, as one would note it down."""
    arguments = ", ".join(
        f"{name}={_short(str(value), _ARGUMENT_CHARACTERS)}" for name, value in result.origin.arguments.items()
    )
    outcome = _short(lines[0], _OUTCOME_CHARACTERS) if lines else "nothing"
    return f"{result.origin.tool_name}({arguments}): {'failed: ' if result.error else ''}{outcome}"


def _short(text: str, characters: int) -> str:
    text = " ".join(text[: 4 * characters].split())
    return text if len(text) <= characters else f"{text[: characters - 1]}…"
