# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
An Agent that reads forty logs in a window that holds eight.

With a real model: replace `ScriptedChatGenerator(reply)` by
`haystack.components.generators.chat.OpenAIChatGenerator(model="gpt-5.4-nano")`, set OPENAI_API_KEY, and set
`context_window` to that of the model.
"""

from typing import Annotated

from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import tool
from scripted import ScriptedChatGenerator

from haystack_compaction import CompactionHook, EstimateTokenCounter, SlidingWindowCompactor

WINDOW = 4_000


@tool
def read_log(service: Annotated[int, "The number of the service"]) -> str:
    """Read the newest log of a service."""
    return f"service {service}: " + "all checks passed, nothing to report; " * 40


def reply(number: int, messages: list[ChatMessage]) -> ChatMessage:
    """Read one log after the other, then answer."""
    size = EstimateTokenCounter().count(messages)
    if size > WINDOW:
        raise RuntimeError(f"the context of {size} tokens does not fit the window of {WINDOW}")
    print(f"step {number + 1}: {len(messages)} messages, {size} tokens")
    if number < 40:
        return ChatMessage.from_assistant(tool_calls=[ToolCall("read_log", {"service": number}, id=f"call_{number}")])
    return ChatMessage.from_assistant("All forty services are fine.")


agent = Agent(
    chat_generator=ScriptedChatGenerator(reply),
    tools=[read_log],
    system_prompt="You audit services.",
    hooks={"before_llm": [CompactionHook(SlidingWindowCompactor(), context_window=WINDOW)]},
    max_agent_steps=50,
)
result = agent.run(messages=[ChatMessage.from_user("Audit all forty services and say which ones have a problem.")])
print(result["last_message"].text)
