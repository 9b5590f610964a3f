# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
An Agent with the default stages of `HybridCompactor`, and a second, small model that writes the summaries.

The stages are tried gentlest first, and each only as far as needed: stale tool results go, then what is old is
summarized. If the summarizer fails, refuses or is cut off, a digest written without a model takes its place.

With a real model: replace the two `ScriptedChatGenerator` by
`haystack.components.generators.chat.OpenAIChatGenerator` with the models of your choice, a small one for `summarizer`,
set OPENAI_API_KEY, and set `context_window` to that of the Agent's model.
"""

from typing import Annotated

from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import tool
from scripted import ScriptedChatGenerator

from haystack_compaction import CompactionHook, EstimateTokenCounter, HybridCompactor

WINDOW = 5_000


@tool
def read_minutes(week: Annotated[int, "The number of the week"]) -> str:
    """Read the minutes of the harbour's weekly meeting."""
    return f"Minutes of week {week}: " + f"crane {week} is in use, berth {week} is dredged; " * 25


def reply(number: int, messages: list[ChatMessage]) -> ChatMessage:
    """Read the minutes week by week and comment on each, then answer."""
    size = EstimateTokenCounter().count(messages)
    if size > WINDOW:
        raise RuntimeError(f"the context of {size} tokens does not fit the window of {WINDOW}")
    print(f"step {number + 1}: {len(messages)} messages, {size} tokens")
    if number == 30:
        return ChatMessage.from_assistant("Thirty weeks read. Nothing was lost.")
    comment = f"Week {number - 1} went as planned: its crane and its berth were in use all the time. " * 5
    return ChatMessage.from_assistant(
        comment if number else None, tool_calls=[ToolCall("read_minutes", {"week": number}, id=f"call_{number}")]
    )


def summarize(number: int, messages: list[ChatMessage]) -> ChatMessage:
    """Say what a model would say about the transcript in the prompt."""
    print(f"  summary {number + 1} asked for")
    return ChatMessage.from_assistant(
        "The user wants the minutes of all thirty weeks read. Each week so far went as planned: the crane with the "
        "number of the week was in use, and so was the berth."
    )


summarizer = ScriptedChatGenerator(summarize)
agent = Agent(
    chat_generator=ScriptedChatGenerator(reply),
    tools=[read_minutes],
    system_prompt="You are the harbour's secretary.",
    hooks={"before_llm": [CompactionHook(HybridCompactor(chat_generator=summarizer), context_window=WINDOW)]},
    max_agent_steps=40,
)
result = agent.run(messages=[ChatMessage.from_user("Read the minutes of all thirty weeks. What was decided?")])
print(result["last_message"].text)

print("\nWhat the model saw at the end:\n")
for message in result["messages"][:4]:
    print(f"{message.role.value}: {message.text}\n")
