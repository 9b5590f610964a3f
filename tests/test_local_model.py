# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
What only a real model and a real server can show: bad summaries, refusals, and usage with cached tokens.

What the model writes differs from computer to computer, so nothing here depends on it.
"""

import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from haystack import component
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, StreamingChunk, ToolCall
from haystack.tools import tool
from local_model import LocalModelServer, reason_to_skip
from samples import texts

from haystack_compaction import (
    CompactingChatGenerator,
    CompactionHook,
    SlidingWindowCompactor,
    SummarizationCompactor,
)
from haystack_compaction.compaction_pass import changes_between
from haystack_compaction.conversation.notes import is_summary
from haystack_compaction.conversation.repair import is_valid
from haystack_compaction.overflow import is_context_overflow, overflow_sizes

SKIP = reason_to_skip()
pytestmark = pytest.mark.skipif(SKIP is not None, reason=str(SKIP))

WINDOW = 2_048
SUMMARY_TOKENS = 200
SUMMARIZER = {"approximate_summary_tokens": SUMMARY_TOKENS, "summarizer_context_window": WINDOW, "timeout": 300.0}
TARGET = 500
REPORT = "context_compaction_report"

# The number of the token that ends a message, which the model is kept from writing.
NEVER_ENDS = {"2": -100}

BOOKING = re.compile(r"\bFB\d+")
HARBOURS = ["Bergen", "Bodo", "Dover", "Gdynia", "Kiel", "Larne", "Narvik", "Oban", "Turku", "Visby"]


@pytest.fixture(scope="module")
def server() -> Iterator[LocalModelServer]:
    with LocalModelServer(context_window=WINDOW) as running:
        yield running


def bookings(turns: int) -> list[ChatMessage]:
    """A chat with a system prompt, so many complete turns of about 40 tokens, and an open question."""
    messages = [ChatMessage.from_system("You book seats on ferries.")]
    for guest in range(turns):
        harbour = HARBOURS[guest % len(HARBOURS)]
        done = f"Guest {guest} has seat {guest + 11} on the ferry to {harbour}, booking FB{1000 + 37 * guest}."
        messages += [
            ChatMessage.from_user(f"A seat to {harbour} for guest {guest}, please."),
            ChatMessage.from_assistant(done),
        ]
    return [*messages, ChatMessage.from_user("How many seats is that?")]


def prompt_tokens(reply: ChatMessage) -> int:
    return int(reply.meta["usage"]["prompt_tokens"])


@component
class Recording:
    """Remembers what went to a chat generator and what came back, and adds a tool call to the replies on request."""

    def __init__(self, chat_generator: OpenAIChatGenerator, *, tool_name: str | None = None) -> None:
        self.chat_generator = chat_generator
        self.tool_name = tool_name
        self.requests: list[list[ChatMessage]] = []
        self.replies: list[ChatMessage] = []

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, Any]:
        return self._recorded(messages, self.chat_generator.run(messages, tools=tools)["replies"][0])

    @component.output_types(replies=list[ChatMessage])
    async def run_async(self, messages: list[ChatMessage], tools: Any = None) -> dict[str, Any]:
        return self._recorded(messages, (await self.chat_generator.run_async(messages, tools=tools))["replies"][0])

    def _recorded(self, messages: list[ChatMessage], reply: ChatMessage) -> dict[str, Any]:
        if self.tool_name is not None:
            call = ToolCall(self.tool_name, {"page": len(self.replies)}, id=f"call_{len(self.replies)}")
            reply = ChatMessage.from_assistant(reply.text, tool_calls=[call], meta=reply.meta)
        self.requests.append(list(messages))
        self.replies.append(reply)
        return {"replies": [reply]}


# Summaries


def check_summarized(messages: list[ChatMessage], result: dict[str, Any], model: Recording) -> None:
    """What holds whatever the model has written."""
    compacted, report = result["messages"], result["report"]
    assert report.compacted
    assert report.reached_target
    assert report.tokens_after <= TARGET < report.tokens_before
    assert is_valid(compacted)
    changes = changes_between(messages, compacted)
    assert changes.kept == [message for message in messages if any(message is kept for kept in changes.kept)]
    assert list(map(is_summary, changes.added)) == [True]
    assert (compacted[0], compacted[-1]) == (messages[0], messages[-1])
    assert report.llm_calls == len(model.replies)
    assert report.llm_usage["prompt_tokens"] == sum(map(prompt_tokens, model.replies))
    assert all(prompt_tokens(reply) + SUMMARY_TOKENS <= WINDOW for reply in model.replies)


def check_digest(note: str, messages: list[ChatMessage], model: Recording) -> None:
    """It names bookings, only such as there are, and has nothing of what the model has written."""
    named = set(BOOKING.findall(note))
    assert named
    assert named <= set(BOOKING.findall(" ".join(texts(messages))))
    written = [(reply.text or "").strip() for reply in model.replies]
    # A word or two may well stand in both.
    assert not any(text in note for text in written if len(text) > 20)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.7, "seed": 1}], ids=["likeliest", "free"])
def test_whatever_the_model_writes_is_a_summary_or_the_digest_stands_in(server, sampling, caplog):
    messages = bookings(30)
    model = Recording(server.chat_generator(max_tokens=SUMMARY_TOKENS // 2, **sampling))
    result = SummarizationCompactor(model, **SUMMARIZER).run(messages, target_tokens=TARGET)
    check_summarized(messages, result, model)
    assert 1 <= len(model.replies) <= 2
    note = result["messages"][1].text
    if "A digest stands in" in caplog.text:
        check_digest(note, messages, model)
    else:
        assert model.replies[-1].meta["finish_reason"] == "stop"
        assert model.replies[-1].text.strip() in note


@pytest.mark.parametrize("how", ["sync", "async"])
async def test_a_summary_that_was_cut_off_is_never_used(server, how, caplog):
    messages, model = bookings(30), Recording(server.chat_generator(max_tokens=12, logit_bias=NEVER_ENDS))
    compactor = SummarizationCompactor(model, **SUMMARIZER)
    if how == "sync":
        result = compactor.run(messages, target_tokens=TARGET)
    else:
        result = await compactor.run_async(messages, target_tokens=TARGET)
    check_summarized(messages, result, model)
    assert [reply.meta["finish_reason"] for reply in model.replies] == ["length", "length"]
    assert "cut off" in caplog.text
    check_digest(result["messages"][1].text, messages, model)


async def test_what_is_too_much_for_one_prompt_is_asked_for_in_parts(server):
    messages, model = bookings(30), Recording(server.chat_generator(max_tokens=16))
    options = {**SUMMARIZER, "summarizer_context_window": 1_200}
    result = await SummarizationCompactor(model, **options).run_async(messages, target_tokens=TARGET)
    check_summarized(messages, result, model)
    assert sum("part 2 of" in request[-1].text for request in model.requests) in (1, 2)


# Refusals


def test_the_refusal_is_recognised_and_its_sizes_are_read(server):
    with pytest.raises(openai.BadRequestError) as refusal:
        server.chat_generator().run(bookings(90))
    assert is_context_overflow(refusal.value)
    requested, limit = overflow_sizes(refusal.value)
    assert limit == WINDOW < requested


def test_another_bad_request_is_no_refusal(server):
    twice = [ChatMessage.from_user("Hello"), *[ChatMessage.from_assistant("Hello.")] * 2]
    generator = CompactingChatGenerator(server.chat_generator(), context_window=100_000)
    with pytest.raises(openai.BadRequestError) as error:
        generator.run(twice)
    assert not is_context_overflow(error.value)


@pytest.mark.parametrize("how", ["sync", "streaming", "async", "async streaming"])
async def test_a_refusal_is_recovered_from(server, how):
    messages, chunks = bookings(90), []

    async def collect(chunk: StreamingChunk) -> None:
        chunks.append(chunk)

    generator = CompactingChatGenerator(server.chat_generator(), SlidingWindowCompactor(), context_window=100_000)
    if how.startswith("async"):
        replies = await generator.run_async(messages, streaming_callback=collect if "streaming" in how else None)
    else:
        replies = generator.run(messages, streaming_callback=chunks.append if "streaming" in how else None)
    reply = replies["replies"][0]
    assert reply.text
    assert bool(chunks) == ("streaming" in how)
    report = reply.meta[REPORT]
    assert report["retries"] == 1
    assert report["tokens_after"] < WINDOW < report["tokens_before"]
    if "streaming" not in how:
        assert 0.7 * WINDOW <= prompt_tokens(reply) <= 0.9 * 1.08 * WINDOW


def test_what_a_refusal_taught_holds_for_the_rest_of_the_conversation(server):
    messages = bookings(90)
    generator = CompactingChatGenerator(server.chat_generator(), context_window=100_000)
    assert generator.run(messages)["replies"][0].meta[REPORT]["retries"] == 1
    for seat in range(3):
        messages = [*messages, ChatMessage.from_assistant("Noted."), ChatMessage.from_user(f"Is seat {seat} taken?")]
        reply = generator.run(messages)["replies"][0]
        assert REPORT not in reply.meta or reply.meta[REPORT]["retries"] == 0
        assert prompt_tokens(reply) < WINDOW


# An Agent


@tool
def read_page(page: int) -> str:
    """Read a page of the log."""
    return "\n".join(f"page {page} line {line}: pier {line % 7} reports calm sea, no delay" for line in range(9))


def test_an_agent_stays_in_the_window_by_the_servers_own_count(server):
    steps, compact_at, compact_to = 12, 0.7, 0.4
    model = Recording(server.chat_generator(), tool_name="read_page")
    hook = CompactionHook(SlidingWindowCompactor(), context_window=WINDOW, compact_at=compact_at, compact_to=compact_to)
    agent = Agent(
        chat_generator=model,
        tools=[read_page],
        system_prompt="You watch the weather.",
        hooks={"before_llm": [hook]},
        max_agent_steps=steps,
    )
    agent.run([ChatMessage.from_user("Read the log page by page and tell me of every storm.")])
    assert len(model.replies) == steps
    sizes = list(map(prompt_tokens, model.replies))
    compactions = [number for number in range(1, steps) if sizes[number] < sizes[number - 1]]
    assert 1 <= len(compactions) <= 4
    # The trigger is met by an estimate of the newest results; everything before them the server has counted itself.
    assert max(sizes) <= 1.08 * compact_at * WINDOW
    assert all(sizes[number] <= 1.08 * compact_to * WINDOW for number in compactions)
    for request in model.requests:
        assert is_valid(request)
        assert request[0].text == "You watch the weather."
        assert any((message.text or "").startswith("Read the log") for message in request)
    cached = [reply.meta["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in model.replies]
    for number in set(range(1, steps)) - set(compactions):
        # What is not compacted is what was sent before, and some more.
        assert cached[number] >= 0.9 * sizes[number - 1]
