# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""A chat generator that replies from a script, so that the examples run without a key."""

from collections.abc import Callable
from typing import Any

from haystack import component
from haystack.core.serialization import default_from_dict, default_to_dict
from haystack.dataclasses import ChatMessage
from haystack.tools import ToolsType
from haystack.utils.callable_serialization import deserialize_callable, serialize_callable


@component
class ScriptedChatGenerator:
    """Replies with what a function says, given the number of the call and the conversation."""

    def __init__(self, reply: Callable[[int, list[ChatMessage]], ChatMessage]) -> None:
        self.reply = reply
        self.calls = 0

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: ToolsType | None = None) -> dict[str, Any]:
        """Reply to the conversation."""
        self.calls += 1
        return {"replies": [self.reply(self.calls - 1, messages)]}

    def to_dict(self) -> dict[str, Any]:
        """Serialize the generator."""
        return default_to_dict(self, reply=serialize_callable(self.reply))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ScriptedChatGenerator":
        """Deserialize the generator."""
        data["init_parameters"]["reply"] = deserialize_callable(data["init_parameters"]["reply"])
        generator: ScriptedChatGenerator = default_from_dict(cls, data)
        return generator
