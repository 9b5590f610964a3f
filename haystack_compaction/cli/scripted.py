# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""A chat generator that follows a script, with a context window as strict as a provider's."""

from collections.abc import Callable
from typing import Any, TypeAlias

from haystack import component
from haystack.dataclasses import ChatMessage
from haystack.tools import ToolsType

from haystack_compaction.tokens.ledger import TokenLedger

#: Given the number of the call, from 0 on, and the messages that the model can see, returns the reply.
Script: TypeAlias = Callable[[int, list[ChatMessage]], ChatMessage]


class ContextLengthError(RuntimeError):
    """What a provider answers to a request that is larger than the model's context window."""


@component
class ScriptedChatGenerator:
    """
    Plays a model for the demo: no key, no network, and the same replies every time.

    :param script: What the model says.
    :param context_window: The largest request that it accepts, in tokens.
    """

    def __init__(self, script: Script, *, context_window: int) -> None:
        self.script = script
        self.context_window = context_window
        self._calls = 0
        self._ledger = TokenLedger()

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: ToolsType | None = None) -> dict[str, Any]:
        """
        Say what the script has next.

        :param messages: The conversation.
        :param tools: The tools whose schemas take room beside it.
        :returns: A dictionary with one message under `replies`, its usage in its `meta`.
        :raises ContextLengthError: If the request is larger than the window.
        """
        prompt_tokens = self._ledger.count(messages, tools)
        if prompt_tokens > self.context_window:
            raise ContextLengthError(
                f"This model's maximum context length is {self.context_window} tokens. However, your messages resulted "
                f"in {prompt_tokens} tokens. Please reduce the length of the messages."
            )
        reply = self.script(self._calls, messages)
        self._calls += 1
        completion_tokens = self._ledger.count([reply])
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        }
        finish_reason = "tool_calls" if reply.tool_calls else "stop"
        reply.meta.update(model="scripted", finish_reason=finish_reason, usage=usage)
        return {"replies": [reply]}

    @component.output_types(replies=list[ChatMessage])
    async def run_async(self, messages: list[ChatMessage], tools: ToolsType | None = None) -> dict[str, Any]:
        """
        Do what `run` does; there is nothing to wait for.

        :param messages: The conversation.
        :param tools: The tools whose schemas take room beside it.
        :returns: A dictionary with one message under `replies`, its usage in its `meta`.
        """
        result: dict[str, Any] = self.run(messages=messages, tools=tools)
        return result
