# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Reading and writing transcripts, in Haystack's format and in OpenAI's."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from haystack.dataclasses import ChatMessage, TextContent, ToolCall, ToolCallResult

from haystack_compaction.cli.openai_messages import OpenAIReader, to_openai

#: The name that stands for the standard input.
STANDARD_INPUT = "-"

_INDENT = re.compile(r"\s*[\[{]\r?\n([ \t]+)\S")
_FIRST_KEY = re.compile(r'"\s*:( ?)')


class TranscriptError(ValueError):
    """A transcript that can't be read or written. The message is one line, for the person who named the file."""


@dataclass
class Transcript:
    """
    A conversation from a file, and what it takes to write another version of it in the same format.

    :param messages: The messages, oldest to newest.
    """

    messages: list[ChatMessage]
    _originals: dict[int, Any] = field(repr=False)
    _convert: Callable[[ChatMessage], dict[str, Any]] = field(repr=False)
    _layout: "_Layout" = field(repr=False)

    @property
    def tools(self) -> Any:
        """The tools that stand in the file beside the messages, as they stand there; None where there are none."""
        return (self._layout.container or {}).get("tools")

    def write(self, messages: Sequence[ChatMessage], path: Path, *, force: bool = False) -> None:
        """
        Write a version of this conversation in the format that it came in.

        Messages of this transcript are written exactly as they were read, others are converted. The file appears
        complete or not at all.

        :param messages: What to write.
        :param path: The file to write to.
        :param force: Whether a file that is there may be overwritten.
        :raises TranscriptError: If it can't be written.
        """
        check_writable(path, force=force)
        items = [self._originals.get(id(message)) or self._convert(message) for message in messages]
        # A lone surrogate has no UTF-8, but Python's way to escape it is JSON's, too.
        data = self._layout.text_of(items).encode("utf-8", "backslashreplace")
        replace_file(path, data)


@dataclass(frozen=True)
class _Layout:
    """How a transcript was laid out in its file."""

    #: The object that held the messages under "messages"; None for a bare list.
    container: Mapping[str, Any] | None
    #: Whether each message stands on a line of its own, with nothing around.
    lines: bool
    indent: str | None
    key_separator: str
    final_newline: bool

    def text_of(self, items: list[Any]) -> str:
        """The text of a file that holds these messages."""
        if self.lines:
            return "".join(self._dumped(item) + "\n" for item in items)
        whole = items if self.container is None else {**self.container, "messages": items}
        return self._dumped(whole) + ("\n" if self.final_newline else "")

    def _dumped(self, value: Any) -> str:
        item_separator = "," if self.indent is not None or self.key_separator == ":" else ", "
        separators = (item_separator, self.key_separator)
        return json.dumps(value, ensure_ascii=False, indent=self.indent, separators=separators)


def read_transcript(path: Path, *, row: int | None = None) -> Transcript:
    """
    Read a transcript, whose format is found out from what it holds.

    :param path: A file with a list of messages, an object with such a list under "messages", or one message a line;
        each message as `ChatMessage.to_dict()` or in OpenAI's format. A file may hold several conversations, too.
        `-` is the standard input.
    :param row: Which of several conversations to read, from 1 on.
    :returns: The transcript.
    :raises TranscriptError: If the file can't be read or a message is wrong.
    """
    file = _File.read(path)
    number = len(file.conversations)
    if row is None and number > 1:
        raise TranscriptError(f"holds {number} conversations; pick one with --row N, where N is 1 to {number}")
    if row is not None and not 1 <= row <= number:
        raise TranscriptError(f"has no row {row}; it holds {number} conversation(s)")
    return file.transcript((row or 1) - 1)


def read_transcripts(path: Path) -> list[Transcript]:
    """
    Read all conversations of a file.

    :param path: See `read_transcript`.
    :returns: The transcripts, at least one.
    :raises TranscriptError: If the file can't be read or a message is wrong.
    """
    file = _File.read(path)
    if len(file.conversations) == 1:
        return [file.transcript(0)]
    return [_in_row(number, file) for number in range(1, len(file.conversations) + 1)]


def _in_row(number: int, file: "_File") -> Transcript:
    try:
        return file.transcript(number - 1)
    except TranscriptError as error:
        raise TranscriptError(f"row {number}: {error}") from error


@dataclass(frozen=True)
class _File:
    """What a file holds: conversations, each a list of messages or an object with such a list."""

    text: str
    conversations: list[Any]
    #: Whether values stand in lines, and whether each of them is a message.
    lines: bool
    one_message_a_line: bool

    @classmethod
    def read(cls, path: Path) -> "_File":
        text = _text(path)
        values, lines = _values(text)
        if isinstance(values, dict) and "messages" not in values and _is_message(values):
            values, lines = [values], True
        several = isinstance(values, list) and bool(values) and not _is_message(values[0])
        conversations = values if several and any(map(_is_conversation, values)) else [values]
        return cls(text, conversations, lines, lines and conversations is not values)

    def transcript(self, index: int) -> Transcript:
        conversation = self.conversations[index]
        if not _is_conversation(conversation):
            raise TranscriptError("holds no list of messages, and no object with such a list under `messages`")
        container = conversation if isinstance(conversation, dict) else None
        items = conversation if container is None else container["messages"]
        if not isinstance(items, list):
            raise TranscriptError("its `messages` are no list")
        if not items:
            raise TranscriptError("holds no messages")
        for number, item in enumerate(items, 1):
            if not isinstance(item, dict):
                raise TranscriptError(f"message {number}: is no object with a `role` and a `content`")
        read, convert = (
            (_from_haystack, ChatMessage.to_dict) if _is_haystack(items) else (OpenAIReader().read, to_openai)
        )
        messages = [_read_message(number, item, read) for number, item in enumerate(items, 1)]
        originals = {id(message): item for message, item in zip(messages, items, strict=True)}
        return Transcript(messages, originals, convert, self._layout(container))

    def _layout(self, container: Mapping[str, Any] | None) -> _Layout:
        indent, first_key = _INDENT.match(self.text), _FIRST_KEY.search(self.text)
        return _Layout(
            container=container,
            lines=self.one_message_a_line,
            indent=indent.group(1) if indent and not self.lines else None,
            key_separator=":" + (first_key.group(1) if first_key else " "),
            final_newline=self.text.endswith("\n"),
        )


def check_writable(path: Path, *, force: bool) -> None:
    """
    Refuse a file that must not be written.

    :param path: The file.
    :param force: Whether a file that is there may be overwritten.
    :raises TranscriptError: If it is there already, or can't be a file.
    """
    # Unlike those of `Path`, these functions don't raise for a name that the file system refuses.
    if os.path.isdir(path):
        raise TranscriptError("is a directory")
    if os.path.lexists(path) and not force:
        raise TranscriptError("exists already; give --force to overwrite it")
    if os.path.exists(path) and not os.path.isfile(path):
        raise TranscriptError("is no regular file")
    if not os.path.isdir(path.parent):
        raise TranscriptError("its folder does not exist")


def _text(path: Path) -> str:
    try:
        data = sys.stdin.buffer.read() if str(path) == STANDARD_INPUT else path.read_bytes()
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TranscriptError(f"is not UTF-8: byte {error.start + 1} can't be decoded") from error
    except OSError as error:
        raise TranscriptError(f"can't be read: {error.strerror or error}") from error
    if not text.strip():
        raise TranscriptError("is empty")
    return text


def _values(text: str) -> tuple[Any, bool]:
    """What the file holds, and whether it holds a list of them in lines."""
    try:
        return _parsed(text), False
    except json.JSONDecodeError as error:
        # A complete value and then more of them: JSON lines.
        if not error.msg.startswith("Extra data"):
            raise TranscriptError(f"is not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from error
    values = []
    # Not `splitlines`, which also splits at line ends that JSON allows inside a text.
    for number, line in enumerate(text.split("\n"), 1):
        try:
            values += [_parsed(line)] if line.strip() else []
        except json.JSONDecodeError as error:
            raise TranscriptError(f"is not JSON lines: line {number}, column {error.colno}: {error.msg}") from error
    return values, True


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise TranscriptError(f"can't be read as JSON: {reason}") from error


def _is_conversation(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, dict) and "messages" in value)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and ("role" in value or "_role" in value)


def _is_haystack(items: list[dict[str, Any]]) -> bool:
    """Whether the messages are Haystack's. Those that are only a role and a text could be either's."""
    if any("_role" in item or "_content" in item or _has_haystack_parts(item.get("content")) for item in items):
        return True
    openai_keys = {"tool_calls", "tool_call_id", "function_call"}
    if any(openai_keys & set(item) or isinstance(item.get("content"), list) for item in items):
        return False
    return any(isinstance(item.get("meta"), dict) for item in items)


def _has_haystack_parts(content: Any) -> bool:
    """Every part of OpenAI's content has a type; Haystack's are named by their only key."""
    return isinstance(content, list) and any(isinstance(part, dict) and "type" not in part for part in content)


def _read_message(number: int, item: dict[str, Any], read: Callable[[dict[str, Any]], ChatMessage]) -> ChatMessage:
    try:
        return read(item)
    except ValueError as error:
        raise TranscriptError(f"message {number}: {error}") from error


def _from_haystack(item: dict[str, Any]) -> ChatMessage:
    try:
        message = ChatMessage.from_dict(item)
    except Exception as error:
        known = [role for role in ("role", "_role") if item.get(role)]
        raise ValueError(
            f"is no message in Haystack's format: {error or type(error).__name__}" if known else "has no `role`"
        ) from error
    if not message._content:
        raise ValueError("has no `content`")
    if not isinstance(message.meta, dict):
        raise ValueError("its `meta` must be an object")
    for part in message._content:
        _check_part(part)
    return message


def _check_part(part: object) -> None:
    """`from_dict` takes a value of any type, which would only fail later and without the message's number."""
    if isinstance(part, TextContent) and not isinstance(part.text, str):
        raise ValueError(f"its text must be a text, not {part.text!r}")
    if isinstance(part, ToolCall) and not (isinstance(part.tool_name, str) and isinstance(part.arguments, dict)):
        raise ValueError("a tool call needs a `tool_name` that is a text and `arguments` that are an object")
    if isinstance(part, ToolCallResult):
        if not isinstance(part.result, (str, list, tuple)):
            raise ValueError("the `result` of a tool must be a text or a list of parts")
        _check_part(part.origin)
        for nested in () if isinstance(part.result, str) else part.result:
            _check_part(nested)


def replace_file(path: Path, data: bytes) -> None:
    """
    Write a file that appears complete or not at all.

    :param path: The file. Where it is a link, what it leads to is written.
    :param data: What to write.
    :raises TranscriptError: If it can't be written. Then everything is as it was.
    """
    try:
        _replace(Path(os.path.realpath(path)), data)
    except OSError as error:
        raise TranscriptError(f"can't be written: {error.strerror or error}") from error


def _replace(path: Path, data: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_bytes(data)
        if path.exists():
            shutil.copymode(path, unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
