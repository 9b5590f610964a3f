# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Blank text blocks, which providers reject, and what stands in for them."""

from collections.abc import Sequence
from dataclasses import replace

from haystack.dataclasses import ChatMessage, ChatRole, ReasoningContent, TextContent, ToolCallResult
from haystack.dataclasses.chat_message import ChatMessageContentT, ToolCallResultContentT

_EMPTY = "(empty message)"
_NO_OUTPUT = "(no output)"


def fill_blank_texts(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """
    Remove blank text blocks, and give a message or a tool's result that has nothing else a short text instead.

    Anthropic answers 400 to a blank text block wherever it stands, and clients make one of a tool's result that is an
    empty string; OpenAI to an assistant message with neither content nor tool calls.

    :param messages: The conversation, oldest to newest. It is left as it is.
    :returns: A new list. Messages without a blank text block are the same objects.
    """
    return [_filled(message) if has_blank_texts([message]) else message for message in messages]


def has_blank_texts(messages: Sequence[ChatMessage]) -> bool:
    """Whether `fill_blank_texts` would change the conversation."""
    for message in messages:
        content = message._content
        if not content:
            return True
        for part in content:
            if type(part) is TextContent:
                if not part.text or part.text.isspace():
                    return True
            elif type(part) is ToolCallResult and _has_blank(part.result):
                return True
    return False


def _has_blank(result: ToolCallResultContentT) -> bool:
    if isinstance(result, str):
        return not result or result.isspace()
    return not result or any(map(_is_blank, result))


def _is_blank(part: object) -> bool:
    return isinstance(part, TextContent) and (not part.text or part.text.isspace())


def _filled(message: ChatMessage) -> ChatMessage:
    if message.role is ChatRole.TOOL:
        return replace(message, _content=[_filled_result(part) for part in message._content])
    parts = [part for part in message._content if not _is_blank(part)]
    says_something = any(not isinstance(part, ReasoningContent) for part in parts)
    return replace(message, _content=parts if says_something else [*parts, TextContent(_EMPTY)])


def _filled_result(part: ChatMessageContentT) -> ChatMessageContentT:
    if not isinstance(part, ToolCallResult) or not _has_blank(part.result):
        return part
    blocks = [block for block in part.result if not isinstance(block, str) and not _is_blank(block)]
    return replace(part, result=blocks or _NO_OUTPUT)
