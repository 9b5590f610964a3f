# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Who wants to know of compactions is told, by a callback, in the Agent's result, in its token usage."""

import asyncio

import pytest
from haystack import component
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage
from samples import ScriptedChatGenerator
from test_hook import TASK, auditing, read_log

from haystack_compaction import (
    CompactingChatGenerator,
    CompactionHook,
    CompactionReport,
    SlidingWindowCompactor,
    SummarizationCompactor,
)

STEPS = 40


def told_in_sync(reports):
    return reports.append


def told_in_async(reports):
    async def tell(report):
        await asyncio.sleep(0)
        reports.append(report)

    return tell


def told_by_an_object(reports):
    class Teller:
        async def __call__(self, report):
            reports.append(report)

    return Teller()


TELLERS = [told_in_sync, told_in_async, told_by_an_object]


def agent(hook, **options):
    return Agent(
        chat_generator=ScriptedChatGenerator(auditing(STEPS)),
        tools=[read_log],
        hooks={"before_llm": [hook]},
        max_agent_steps=100,
        **options,
    )


def hook_telling(tell, **options):
    return CompactionHook(SlidingWindowCompactor(), context_window=2_500, on_compaction=tell, **options)


def check(reports):
    assert len(reports) > 2
    assert all(isinstance(report, CompactionReport) for report in reports)
    assert all(report.tokens_after < report.tokens_before for report in reports)


@pytest.mark.parametrize("teller", TELLERS)
def test_a_run(teller):
    reports = []
    agent(hook_telling(teller(reports))).run(messages=[TASK])
    check(reports)


@pytest.mark.parametrize("teller", TELLERS)
async def test_an_async_run(teller):
    reports = []
    await agent(hook_telling(teller(reports))).run_async(messages=[TASK])
    check(reports)


@pytest.mark.parametrize("teller", TELLERS)
async def test_a_sync_run_inside_an_event_loop(teller):
    reports = []
    agent(hook_telling(teller(reports))).run(messages=[TASK])
    check(reports)


@pytest.mark.parametrize("teller", TELLERS)
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_chat_generator(teller, is_async):
    reports = []
    inner = ScriptedChatGenerator(lambda index, messages: ChatMessage.from_assistant("At noon. " * 50))
    generator = CompactingChatGenerator(inner, context_window=1_000, on_compaction=teller(reports))
    messages = []
    for _ in range(20):
        messages.append(ChatMessage.from_user("When is high tide? " * 20))
        outcome = await generator.run_async(messages) if is_async else generator.run(messages)
        messages.append(outcome["replies"][0])
    check(reports)


def test_a_compaction_that_came_to_nothing_is_told_too():
    class Idle:
        def compact(self, messages, target_tokens, token_counter):
            return None

    reports = []
    hook = CompactionHook(Idle(), context_window=2_500, last_resort=False, on_compaction=reports.append)
    agent(hook).run(messages=[TASK])
    assert reports
    assert not any(report.compacted or report.reached_target for report in reports)


def test_reports_in_the_agents_result():
    options = {"state_schema": {"compactions": {"type": list[CompactionReport]}}}
    reports = []
    result = agent(hook_telling(reports.append, reports_key="compactions"), **options).run(messages=[TASK])
    assert result["compactions"] == reports
    check(reports)


async def test_a_key_that_the_agent_does_not_have_is_refused():
    fault = "`reports_key='compactions'` is no key of the Agent's `state_schema`"
    with pytest.raises(ValueError, match=fault):
        agent(hook_telling(None, reports_key="compactions")).run(messages=[TASK])
    with pytest.raises(ValueError, match=fault):
        await agent(hook_telling(None, reports_key="compactions")).run_async(messages=[TASK])


def test_the_usage_of_a_summarizer_counts_in_the_agents():
    @component
    class Summarizer:
        @component.output_types(replies=list[ChatMessage])
        def run(self, messages: list[ChatMessage]):
            usage = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}}
            text = "## Work\n- The logs of all services up to here were read, and all of them pass their checks."
            return {"replies": [ChatMessage.from_assistant(text, meta={"usage": usage})]}

    reports = []
    hook = CompactionHook(SummarizationCompactor(Summarizer()), context_window=2_500, on_compaction=reports.append)
    own = {"prompt_tokens": 1_000, "completion_tokens": 1}
    result = agent(hook)
    result.chat_generator.reply = auditing(STEPS, usage=lambda messages: own)
    used = result.run(messages=[TASK])["token_usage"]
    calls = sum(report.llm_calls for report in reports)
    assert calls > 1
    assert used["prompt_tokens"] == 1_000 * (STEPS + 1) + 100 * calls
    assert used["completion_tokens"] == STEPS + 1 + 7 * calls
    assert used["prompt_tokens_details"] == {"cached_tokens": 64 * calls}


def say(report):
    """A callback that can be written down."""


def test_the_callback_survives_serialization(monkeypatch):
    monkeypatch.setenv("HAYSTACK_DESERIALIZATION_ALLOWLIST", __name__)
    hook = CompactionHook.from_dict(hook_telling(say, reports_key="compactions").to_dict())
    assert hook.on_compaction is say
    assert hook.reports_key == "compactions"
