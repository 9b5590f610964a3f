# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
An Agent that looks up what was compacted away, and a result that holds the whole conversation.

The hook archives messages before they are dropped. The tool `recall` searches them and reads them back; which
conversation it reads comes from `hook_context`, never from the model. `TranscriptHook` puts the full conversation on
the result.

With a real model: replace `ScriptedChatGenerator(reply)` by
`haystack.components.generators.chat.OpenAIChatGenerator(model="gpt-5.4-nano")`, set OPENAI_API_KEY, and set
`context_window` to that of the model.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import tool
from scripted import ScriptedChatGenerator

from haystack_compaction import CompactionHook, EstimateTokenCounter, SlidingWindowCompactor
from haystack_compaction.archive import SQLiteArchive, TranscriptHook, recall_tool

WINDOW = 4_000


@tool
def read_log(service: Annotated[int, "The number of the service"]) -> str:
    """Read the newest log of a service."""
    finding = "certificate expires on 2027-01-09; " if service == 3 else "all checks passed; "
    return f"service {service}: {finding}" + "nothing else to report; " * 60


def reply(number: int, messages: list[ChatMessage]) -> ChatMessage:
    """Read one log after the other, look up what is no longer there, then answer."""
    size = EstimateTokenCounter().count(messages)
    if size > WINDOW:
        raise RuntimeError(f"the context of {size} tokens does not fit the window of {WINDOW}")
    if number < 30:
        return ChatMessage.from_assistant(tool_calls=[ToolCall("read_log", {"service": number}, id=f"call_{number}")])
    if number == 30:
        return ChatMessage.from_assistant(tool_calls=[ToolCall("recall", {"query": "certificate expires"}, id="look")])
    found = messages[-1].tool_call_result
    print(f"recall: {str(found.result)[:400] if found else ''}\n")
    return ChatMessage.from_assistant("Service 3: its certificate expires on 2027-01-09.")


with TemporaryDirectory() as folder:
    archive = SQLiteArchive(str(Path(folder) / "conversations.sqlite"))
    agent = Agent(
        chat_generator=ScriptedChatGenerator(reply),
        tools=[read_log, recall_tool(archive)],
        hooks={
            "before_llm": [CompactionHook(SlidingWindowCompactor(), context_window=WINDOW, archive=archive)],
            "after_run": [TranscriptHook(archive)],
        },
        state_schema={"transcript": {"type": list[ChatMessage]}},
        max_agent_steps=50,
    )
    result = agent.run(
        messages=[ChatMessage.from_user("Audit all thirty services. Which certificate expires first?")],
        hook_context={"conversation_id": "audit-2026-11"},
    )
    print(result["last_message"].text)
    print(f"{len(result['messages'])} messages in the conversation, {len(result['transcript'])} in the transcript")
    archive.close()
