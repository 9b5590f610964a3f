# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What the README and the page on migration say of Haystack 3.4's own compaction."""

from importlib.metadata import version

import haystack.hooks.compaction as haystacks
import pytest
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import tool

import haystack_compaction
from haystack_compaction import EstimateTokenCounter

pytestmark = pytest.mark.skipif(not version("haystack-ai").startswith("3.4."), reason="the pages speak of Haystack 3.4")

BOTH = [pytest.param(haystacks, id="haystack"), pytest.param(haystack_compaction, id="ours")]
WINDOW = 4_000


@tool
def read_log() -> str:
    """Read the newest log."""
    return "all checks passed\n" * 3_000


def sizes_of_requests(hook):
    """How large the requests of a run are whose one tool result is larger than the window."""
    sizes = []

    def reply(messages):
        sizes.append(EstimateTokenCounter().count(messages))
        if len(sizes) == 1:
            return ChatMessage.from_assistant(tool_calls=[ToolCall("read_log", {}, id="call_1")])
        return "Done."

    agent = Agent(chat_generator=MockChatGenerator(response_fn=reply), tools=[read_log], hooks={"before_llm": [hook]})
    agent.run(messages=[ChatMessage.from_user("Read the log.")])
    return sizes


@pytest.mark.parametrize("package", BOTH)
def test_a_request_that_is_too_large_even_so(package):
    hook = package.CompactionHook(package.SlidingWindowCompactor(), context_window=WINDOW)
    assert (max(sizes_of_requests(hook)) <= WINDOW) == (package is haystack_compaction)


@pytest.mark.parametrize("package", BOTH)
def test_a_broken_pair_in_the_history(package):
    call = ToolCall("read_log", {}, id="call_1")
    history = [
        ChatMessage.from_user("Read the log."),
        ChatMessage.from_assistant(tool_calls=[call]),
        ChatMessage.from_user("Never mind. When is high tide?"),
    ]
    sent = []
    agent = Agent(
        chat_generator=MockChatGenerator(response_fn=lambda messages: sent.extend(messages) or "At noon."),
        tools=[read_log],
        hooks={"before_llm": [package.CompactionHook(package.SlidingWindowCompactor(), context_window=WINDOW)]},
    )
    agent.run(messages=history)
    assert any(message.tool_call_results for message in sent) == (package is haystack_compaction)


@pytest.mark.parametrize("package", BOTH)
def test_a_summary_that_was_cut_off(package):
    cut_off = ChatMessage.from_assistant("The user asked about", meta={"finish_reason": "length"})
    history = [ChatMessage.from_user("What is a tide? " * 200), ChatMessage.from_assistant("Water, moving. " * 200)]
    compacted = package.SummarizationCompactor(MockChatGenerator(cut_off)).compact(
        [*history, ChatMessage.from_user("Thanks!")], 400, EstimateTokenCounter()
    )
    is_taken = any("The user asked about" in (message.text or "") for message in compacted)
    assert is_taken == (package is haystacks)


@pytest.mark.parametrize("package", BOTH)
def test_a_message_that_a_hook_slips_in_and_the_task(package):
    calls = [ToolCall("read_log", {"page": number}, id=f"call_{number}") for number in range(20)]
    task, nudge = (
        ChatMessage.from_user("Audit the logs, never restart."),
        ChatMessage.from_user("Remember to be brief."),
    )
    messages = [task]
    for call in calls:
        messages += [ChatMessage.from_assistant(tool_calls=[call]), ChatMessage.from_tool("fine " * 50, origin=call)]
    messages[-4:-4] = [nudge]
    compacted = package.SlidingWindowCompactor().compact(messages, 400, EstimateTokenCounter())
    assert (task in compacted) == (package is haystack_compaction)
    assert nudge in compacted
