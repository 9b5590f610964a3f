# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import tool
from samples import ScriptedChatGenerator, chat, run_of

from haystack_compaction import CompactionHook, EstimateTokenCounter, SlidingWindowCompactor, SummarizationCompactor
from haystack_compaction.cli.replaying import (
    Bill,
    Prices,
    Replay,
    Request,
    bill_with_compaction,
    bill_without_compaction,
)
from haystack_compaction.tokens.ledger import TokenLedger

WINDOW = 2_000
COUNTER = EstimateTokenCounter()


@tool
def read_log(number: int) -> str:
    """Read one of the logs."""
    return f"log {number}: " + "all checks passed " * 60


def hook(**options: Any) -> CompactionHook:
    return CompactionHook(SlidingWindowCompactor(), context_window=WINDOW, **options)


def run_an_agent(steps: int, compaction_hook: CompactionHook | None) -> tuple[list[ChatMessage], list[int]]:
    """The transcript of a run whose model says the same whatever it sees, and the sizes of its requests."""
    sizes: list[int] = []

    def reply(number: int, messages: list[ChatMessage]) -> ChatMessage:
        sizes.append(COUNTER.count(messages, [read_log]))
        if number == steps:
            said = ChatMessage.from_assistant("All is well.")
        else:
            said = ChatMessage.from_assistant(tool_calls=[ToolCall("read_log", {"number": number}, id=f"c{number}")])
        written = COUNTER.count([said])
        usage = {"prompt_tokens": sizes[-1], "completion_tokens": written, "total_tokens": sizes[-1] + written}
        return replace(said, _meta={"usage": usage})

    agent = Agent(
        chat_generator=ScriptedChatGenerator(reply),
        tools=[read_log],
        system_prompt="You are careful.",
        hooks={"before_llm": [compaction_hook]} if compaction_hook else {},
        max_agent_steps=steps + 1,
    )
    return agent.run(messages=[ChatMessage.from_user("Audit every service.")])["messages"], sizes


@pytest.mark.parametrize("options", [{}, {"compact_at": 0.9, "compact_to": 0.2}, {"reserve_tokens": 900}])
def test_a_replayed_run_is_the_run_that_an_agent_makes(options: dict[str, Any]) -> None:
    transcript, uncompacted = run_an_agent(40, None)
    _, sizes = run_an_agent(40, hook(**options))
    replay = Replay(transcript, [read_log], hook(**options))
    requests = list(replay)
    assert replay.error is None
    assert [request.tokens for request in requests] == sizes
    assert [request.uncompacted for request in requests] == uncompacted
    assert len(replay) == 41
    assert sum(request.freed > 0 for request in requests) >= 3


def test_what_a_request_has_in_common_with_the_one_before_it_is_cached() -> None:
    requests = list(Replay(run_of(30), [], hook()))
    assert requests[0].cached == requests[0].uncompacted_cached == 0
    head_and_task = TokenLedger().count(run_of(0))
    for before, request in pairwise(requests):
        assert request.uncompacted_cached == before.uncompacted
        # A compaction leaves the system prompt and the task in front of its note.
        assert request.cached == (head_and_task if request.freed else before.tokens)


def test_passes_say_what_they_did() -> None:
    requests = list(Replay(run_of(30), [], hook()))
    passes = [request for request in requests if request.report]
    assert passes
    for request in passes:
        assert request.report is not None
        assert request.freed == request.before - request.tokens > 0
        assert request.report.compacted
    assert requests[0].to_dict()["report"] is None
    assert passes[0].to_dict()["freed"] == passes[0].freed


def test_each_question_after_an_answer_is_a_run_of_its_own() -> None:
    """The task of the first run would otherwise stay the task for ever, and never be removed."""
    messages = chat(40)
    replay = Replay(messages, [], hook())
    requests = list(replay)
    assert len(requests) == 40
    assert max(request.tokens for request in requests) <= WINDOW
    assert messages[1] not in replay.final
    assert replay.final[-1] is messages[-1]
    # Whatever is left of the transcript is left in its own objects.
    assert all(any(message is original for original in messages) for message in replay.final[2:])


def test_a_transcript_that_ends_with_a_reply() -> None:
    messages = chat(5)[:-1]
    replay = Replay(messages, [], hook())
    assert len(list(replay)) == 5
    assert replay.final == messages


def test_the_providers_usage_sets_the_scale() -> None:
    transcript, uncompacted = run_an_agent(10, None)
    doubled = [
        replace(m, _meta={"usage": {"prompt_tokens": 2 * m.meta["usage"]["prompt_tokens"]}}) if m.meta else m
        for m in transcript
    ]
    replay = Replay(doubled, [read_log], CompactionHook(SlidingWindowCompactor(), context_window=100_000))
    assert replay.ratio == pytest.approx(2, rel=0.01)
    assert [request.tokens for request in replay] == pytest.approx([2 * size for size in uncompacted], rel=0.01)


def test_what_can_not_be_made_to_fit_ends_the_run() -> None:
    messages = run_of(3)
    messages[0] = replace(messages[0], _meta={"pinned": True}, _content=ChatMessage.from_user("Rule. " * 9999)._content)
    replay = Replay(messages, [], hook())
    assert list(replay) == []
    assert replay.error is not None
    assert replay.error.startswith("request 1: The conversation takes")


def request(step: int, *, uncompacted: int, tokens: int, cached: int) -> Request:
    return Request(step, step, uncompacted, uncompacted - 10 if step > 1 else 0, tokens, tokens, cached)


def test_the_bill() -> None:
    requests = [
        request(1, uncompacted=100, tokens=100, cached=0),
        request(2, uncompacted=110, tokens=110, cached=100),
        request(3, uncompacted=120, tokens=50, cached=20),
    ]
    assert bill_without_compaction(requests, Prices()) == Bill(330, pytest.approx(100 + 10 + 10 + 10 + 11))
    assert bill_with_compaction(requests, Prices()) == Bill(260, pytest.approx(100 + 10 + 10 + 30 + 2))
    dear = Prices(cached=0.5, written=1.25)
    assert bill_with_compaction(requests, dear).with_cache == pytest.approx(1.25 * 140 + 0.5 * 120)


def test_the_bill_has_the_calls_of_a_summarizer_in_it() -> None:
    generator = ScriptedChatGenerator(
        lambda index, messages: ChatMessage.from_assistant(
            "- All of the logs were read, and all checks passed.",
            meta={"usage": {"prompt_tokens": 1_000, "completion_tokens": 20}},
        )
    )
    requests = list(Replay(run_of(30), [], CompactionHook(SummarizationCompactor(generator), context_window=WINDOW)))
    calls = len(generator.requests)
    assert calls >= 1
    bill = bill_with_compaction(requests, Prices())
    assert bill.without_cache == sum(request.tokens for request in requests) + 1_000 * calls
