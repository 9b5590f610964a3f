# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Conversations that many tests need, and chat generators that need no model."""

from collections.abc import Callable, Sequence
from typing import Any

from haystack import component
from haystack.dataclasses import ChatMessage, ToolCall

from haystack_compaction.testing import provider_fault


def step(name: str, result: str, *, call_id: str = "0", text: str | None = None, reasoning: str | None = None):
    """An assistant message with one call, and its result."""
    call = ToolCall(tool_name=name, arguments={"of": result[:10]}, id=call_id)
    return [
        ChatMessage.from_assistant(text, tool_calls=[call], reasoning=reasoning),
        ChatMessage.from_tool(result, origin=call),
    ]


def chat(turns: int, *, words: int = 40) -> list[ChatMessage]:
    """A chat with a system prompt and so many complete turns, ending with a question that is still open."""
    messages = [ChatMessage.from_system("You answer questions about tides.")]
    for turn in range(turns):
        messages.append(ChatMessage.from_user(f"Question {turn}: " + "when is high tide " * (words // 8)))
        messages.append(ChatMessage.from_assistant(f"Answer {turn}: " + "at half past noon " * (words // 8)))
    return [*messages, ChatMessage.from_user("And today?")]


def run_of(steps: int, *, words: int = 100) -> list[ChatMessage]:
    """An agent's run: a task and so many completed steps."""
    messages = [ChatMessage.from_system("You are careful."), ChatMessage.from_user("Audit every service.")]
    for number in range(steps):
        messages.extend(step("read_log", f"log {number}: " + "all checks passed " * (words // 3), call_id=f"c{number}"))
    return messages


def texts(messages: Sequence[ChatMessage]) -> list[str]:
    """What each message says, results of tools included."""
    return [
        message.text or " ".join(str(result.result) for result in message.tool_call_results) for message in messages
    ]


class RemoteCounter:
    """A counter like a provider's API: it counts its requests, and takes nothing but valid conversations."""

    def __init__(self, count: Callable[[list[ChatMessage]], int] = lambda messages: 10 * len(messages)) -> None:
        self.requests = 0
        #: Kept, since a compactor works around a counter that raises.
        self.rejected: list[list[ChatMessage]] = []
        self._count = count

    def count(self, messages: list[ChatMessage], tools: Any = None) -> int:
        self.requests += 1
        if provider_fault(messages) or messages[-1].tool_calls:
            self.rejected.append(messages)
            raise ValueError("this is no request that a provider would take")
        return self._count(messages)

    def to_dict(self) -> dict[str, Any]:
        return {}


@component
class ScriptedChatGenerator:
    """A chat generator that asks a function what to reply, and can refuse what does not fit a window."""

    def __init__(
        self,
        reply: Callable[[int, list[ChatMessage]], ChatMessage],
        *,
        window: int | None = None,
        count: Callable[[list[ChatMessage], Any], int] | None = None,
    ) -> None:
        self.reply = reply
        self.window = window
        self.count = count
        self.requests: list[list[ChatMessage]] = []

    @component.output_types(replies=list[ChatMessage])
    def run(
        self,
        messages: list[ChatMessage],
        streaming_callback: Any = None,
        generation_kwargs: dict[str, Any] | None = None,
        *,
        tools: Any = None,
    ) -> dict[str, Any]:
        size = self.count(messages, tools) if self.count else 0
        if self.window is not None and size > self.window:
            raise RuntimeError(f"context_length_exceeded: {size} tokens, the maximum is {self.window}")
        self.requests.append(list(messages))
        return {"replies": [self.reply(len(self.requests) - 1, messages)]}

    @component.output_types(replies=list[ChatMessage])
    async def run_async(
        self,
        messages: list[ChatMessage],
        streaming_callback: Any = None,
        generation_kwargs: dict[str, Any] | None = None,
        *,
        tools: Any = None,
    ) -> dict[str, Any]:
        return self.run(messages, streaming_callback, generation_kwargs, tools=tools)
