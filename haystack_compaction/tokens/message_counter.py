# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What of a message is counted. How many tokens a text has is left to the subclass."""

import base64
import binascii
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from haystack.core.serialization import default_from_dict, default_to_dict
from haystack.dataclasses import (
    ChatMessage,
    FileContent,
    ImageContent,
    ReasoningContent,
    TextContent,
    ToolCall,
    ToolCallResult,
)
from haystack.tools import ToolsType, flatten_tools_or_toolsets

# OpenAI charges three tokens for the frame of a message and one for its role, see
# https://cookbook.openai.com/examples/how_to_count_tokens_with_tiktoken
_MESSAGE_FRAME = 4
_CALL_FRAME = 4
_TOOL_FRAME = 8
_LOW_DETAIL_IMAGE = 85

# Kept, since `json.dumps` builds an encoder for every call that asks for one that is not the default.
_encode = json.JSONEncoder(ensure_ascii=False, default=str).encode

_TEXT_MIME_TYPES = ("text/", "application/json", "application/xml", "application/x-yaml")


class MessageTokenCounter(ABC):
    """
    A Haystack `TokenCounter` whose total is the sum over the messages, whatever they are.

    Counted are texts, tool calls with their arguments, tool results, reasoning, images and files, and a few tokens for
    each message's frame. Subclasses say how many tokens a text has.

    :param tokens_per_image: Tokens charged for an image, at least 0. The default is what OpenAI charges for 1024 x
        1024 pixels in high detail; an image with `detail="low"` costs at most 85.
    :param tokens_per_file: Tokens charged for a file whose text can't be read here, such as a PDF, at least 0.
    :raises ValueError: If one of the two is negative.
    """

    #: The count of a list is the sum of the counts of its messages, so a ledger may count them one by one.
    additive = True

    def __init__(self, *, tokens_per_image: int = 765, tokens_per_file: int = 1000) -> None:
        for name, value in (("tokens_per_image", tokens_per_image), ("tokens_per_file", tokens_per_file)):
            if value < 0:
                raise ValueError(f"`{name}` must be at least 0, got {value}.")
        self.tokens_per_image = tokens_per_image
        self.tokens_per_file = tokens_per_file

    @abstractmethod
    def count_text(self, text: str) -> int:
        """
        Return the number of tokens of a text.

        :param text: Any text.
        :returns: The number of tokens, 0 for an empty text.
        """

    def count(self, messages: Sequence[ChatMessage], tools: ToolsType | None = None) -> int:
        """
        Return the number of tokens that the messages and the schemas of the tools take.

        :param messages: The messages to measure.
        :param tools: Tools whose schemas are sent along with the messages.
        :returns: The number of tokens, 0 when there is nothing to measure.
        """
        total = sum(map(self.count_message, messages))
        for tool in flatten_tools_or_toolsets(tools) if tools else []:
            total += _TOOL_FRAME + self.count_text(as_json(tool.tool_spec))
        return total

    def count_message(self, message: ChatMessage) -> int:
        """
        Return the number of tokens that one message takes, as `count` does for a list of it alone.

        :param message: The message to measure.
        :returns: The number of tokens.
        """
        total = _MESSAGE_FRAME
        for part in message._content:
            if type(part) is TextContent:
                total += self.count_text(part.text)
            else:
                total += self._count_part(part)
        return total

    def to_dict(self) -> dict[str, Any]:
        """
        Serialize the counter.

        :returns: A dictionary that `from_dict` takes.
        """
        return default_to_dict(self, tokens_per_image=self.tokens_per_image, tokens_per_file=self.tokens_per_file)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "MessageTokenCounter":
        """
        Deserialize the counter.

        :param data: What `to_dict` returned.
        :returns: The counter.
        """
        counter: MessageTokenCounter = default_from_dict(cls, data)
        return counter

    def _count_part(self, part: object) -> int:
        if isinstance(part, TextContent):
            return self.count_text(part.text)
        if isinstance(part, ToolCallResult):
            if isinstance(part.result, str):
                return self.count_text(part.result)
            return sum(map(self._count_part, part.result))
        if isinstance(part, ToolCall):
            return _CALL_FRAME + self.count_text(part.tool_name) + self.count_text(as_json(part.arguments))
        if isinstance(part, ReasoningContent):
            return self.count_text(part.reasoning_text)
        if isinstance(part, ImageContent):
            return min(self.tokens_per_image, _LOW_DETAIL_IMAGE) if part.detail == "low" else self.tokens_per_image
        if isinstance(part, FileContent):
            return self._count_file(part)
        return self.count_text(str(part))

    def _count_file(self, part: FileContent) -> int:
        if not (part.mime_type or "").startswith(_TEXT_MIME_TYPES):
            return self.tokens_per_file
        try:
            return self.count_text(base64.b64decode(part.base64_data).decode("utf-8", "replace"))
        except binascii.Error:
            return self.tokens_per_file


def as_json(value: Any) -> str:
    """
    Write the arguments of a call, or the schema of a tool, the way it is counted.

    :param value: Any value, even one that JSON has no form for.
    :returns: Its text.
    """
    for written in (_encode, str):
        # Keys that are no strings, a structure that contains itself or is too deep, an object that cannot be shown.
        with suppress(Exception):
            return written(value)
    return ""
