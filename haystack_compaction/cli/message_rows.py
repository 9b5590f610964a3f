# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""A conversation before and after a compaction, as rows of one table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from haystack.dataclasses import (
    ChatMessage,
    FileContent,
    ImageContent,
    ReasoningContent,
    TextContent,
    ToolCall,
    ToolCallResult,
)

from haystack_compaction.cli.console import one_line
from haystack_compaction.compaction_pass import changes_between
from haystack_compaction.tokens.ledger import TokenLedger

_MAX_SUMMARY = 300


@dataclass(frozen=True)
class MessageRow:
    """
    A message and what became of it.

    :param number: Where it stands in the conversation before, from 1 on; None when it was added.
    :param fate: What became of it.
    :param role: Its role.
    :param summary: Its first words, in one line that is safe to print.
    :param tokens: Its size, in tokens; after the compaction if it was rewritten.
    :param tokens_before: Its size before it was rewritten, otherwise None.
    """

    number: int | None
    fate: Literal["kept", "removed", "rewritten", "added"]
    role: str
    summary: str
    tokens: int
    tokens_before: int | None = None


def message_rows(before: Sequence[ChatMessage], after: Sequence[ChatMessage]) -> list[MessageRow]:
    """
    Return both conversations in one list: in the order of the one after, with removed messages where they stood.

    :param before: The conversation as it was.
    :param after: The conversation as it is now.
    :returns: One row a message.
    """
    return list(_rows(before, after))


def summary(message: ChatMessage) -> str:
    """
    Return a message's first words.

    :param message: The message.
    :returns: One line that is safe to print; the names of tools stand in front of their arguments and results.
    """
    return one_line(" ".join(map(_part_summary, message._content)), limit=_MAX_SUMMARY)


def _rows(before: Sequence[ChatMessage], after: Sequence[ChatMessage]) -> Iterator[MessageRow]:
    ledger = TokenLedger()
    changes = changes_between(before, after)
    number_of = {id(message): number for number, message in enumerate(before, 1)}
    removed = {id(message) for message in changes.removed}
    original_of = {id(new): old for old, new in changes.rewritten}
    shown = 0

    def size(message: ChatMessage) -> int:
        return ledger.count([message])

    def removed_up_to(end: int) -> Iterator[MessageRow]:
        for number, message in enumerate(before[shown:end], shown + 1):
            if id(message) in removed:
                yield MessageRow(number, "removed", message.role.value, summary(message), size(message))

    for message in after:
        original = original_of.get(id(message), message)
        number = number_of.get(id(original))
        if number is not None:
            yield from removed_up_to(number)
            shown = max(shown, number)
        if number is None:
            yield MessageRow(None, "added", message.role.value, summary(message), size(message))
        elif original is message:
            yield MessageRow(number, "kept", message.role.value, summary(message), size(message))
        else:
            yield MessageRow(
                number, "rewritten", message.role.value, summary(message), size(message), tokens_before=size(original)
            )
    yield from removed_up_to(len(before))


def _part_summary(part: object) -> str:
    if isinstance(part, TextContent):
        return one_line(part.text, limit=_MAX_SUMMARY)
    if isinstance(part, ReasoningContent):
        return f"(thinking: {one_line(part.reasoning_text, limit=80)})"
    if isinstance(part, ToolCall):
        arguments = ", ".join(f"{key}={value}" for key, value in part.arguments.items())
        return f"{part.tool_name}({one_line(arguments, limit=200)})"
    if isinstance(part, ImageContent):
        return "(image)"
    if isinstance(part, FileContent):
        return f"(file {part.filename or ''})"
    if isinstance(part, ToolCallResult):
        texts = [TextContent(part.result)] if isinstance(part.result, str) else part.result
        return f"{part.origin.tool_name}: {' '.join(map(_part_summary, texts))}"
    return f"({type(part).__name__})"
