# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import asyncio
import copy
import logging
import pickle
import threading

import pytest
from haystack.components.agents import Agent
from haystack.components.agents.state.state import State
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.hooks import hook as haystack_hook
from haystack.tools import tool
from haystack.tracing import disable_tracing, enable_tracing
from samples import ScriptedChatGenerator, chat, run_of, texts

from haystack_compaction import CompactionHook, EstimateTokenCounter, SlidingWindowCompactor, TiktokenCounter
from haystack_compaction.conversation.notes import is_note

WINDOW = 2_000
COUNTER = EstimateTokenCounter()


@tool
def read_log(number: int) -> str:
    """Read one of the logs."""
    return f"log {number}: " + "all checks passed " * 60


def auditing(steps: int, *, usage=None, after_end=None):
    """Replies that read one log after the other, and then answer."""

    def reply(number, messages):
        meta = {"usage": usage(messages)} if usage else {}
        if number < steps:
            call = ToolCall("read_log", {"number": number}, id=f"c{number}")
            return ChatMessage.from_assistant(tool_calls=[call], meta=meta)
        return ChatMessage.from_assistant("All is well.", meta=meta)

    return reply


def agent(reply, compaction_hook, *, window=WINDOW, hooks=None):
    generator = ScriptedChatGenerator(reply, window=window, count=COUNTER.count)
    hooks = {"before_llm": [compaction_hook] if compaction_hook else [], **(hooks or {})}
    return Agent(
        chat_generator=generator,
        tools=[read_log],
        system_prompt="You are careful.",
        hooks={point: registered for point, registered in hooks.items() if registered},
        max_agent_steps=200,
    )


def window_hook(**options):
    return CompactionHook(SlidingWindowCompactor(), context_window=WINDOW, **options)


TASK = ChatMessage.from_user("Audit every service.")


def test_a_run_far_beyond_the_window_ends_well_and_never_forgets_its_task():
    auditor = agent(auditing(80), window_hook())
    result = auditor.run(messages=[TASK])
    assert result["last_message"].text == "All is well."
    assert result["step_count"] == 81
    assert all("Audit every service." in texts(request) for request in auditor.chat_generator.requests)
    assert sum(map(is_note, result["messages"])) == 1


def test_without_the_hook_the_same_run_dies():
    with pytest.raises(RuntimeError, match="context_length_exceeded"):
        agent(auditing(80), None).run(messages=[TASK])


async def test_an_async_run():
    result = await agent(auditing(40), window_hook()).run_async(messages=[TASK])
    assert result["last_message"].text == "All is well."


def test_one_hook_serves_concurrent_runs():
    shared = window_hook()
    results = {}

    def work(number):
        task = ChatMessage.from_user(f"Audit service {number}.")
        auditor = agent(auditing(20 + number), shared)
        auditor.run(messages=[task])
        results[number] = auditor.chat_generator.requests

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(6):
        assert len(results[number]) == 21 + number
        for request in results[number]:
            assert [text for text in texts(request) if text.startswith("Audit")] == [f"Audit service {number}."]


async def test_one_hook_serves_concurrent_async_runs():
    shared = window_hook()
    agents = [agent(auditing(20), shared) for _ in range(5)]
    results = await asyncio.gather(*(auditor.run_async(messages=[TASK]) for auditor in agents))
    assert [result["last_message"].text for result in results] == ["All is well."] * 5


@pytest.mark.parametrize("point", ["before_run", "before_tool", "after_tool", "on_exit", "after_run"])
def test_the_agent_refuses_it_at_any_other_point(point):
    with pytest.raises(ValueError, match="before_llm"):
        agent(auditing(1), None, hooks={point: [window_hook()]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context_window": 0}, "`context_window` must be at least 1, got 0"),
        ({"compact_at": 0.4, "compact_to": 0.4}, "compact_to=0.4 and compact_at=0.4"),
        ({"compact_to": 0}, "0 < compact_to < compact_at <= 1"),
        ({"compact_at": 1.1}, "compact_at=1.1"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CompactionHook(SlidingWindowCompactor(), **{"context_window": WINDOW, **options})


def state_of(messages, **data):
    schema = {name: {"type": type(value)} for name, value in data.items()}
    return State(schema=schema, data={"messages": messages, **data})


def test_it_compacts_at_the_trigger_and_not_before():
    messages = run_of(30)
    tokens = COUNTER.count(messages)
    for context_window, due in ((int(tokens / 0.7) + 2, False), (int(tokens / 0.7) - 2, True)):
        state = state_of(messages)
        CompactionHook(SlidingWindowCompactor(), context_window=context_window).run(state)
        assert (len(state.data["messages"]) < len(messages)) is due
        if due:
            assert COUNTER.count(state.data["messages"]) <= context_window * 0.4


def test_the_schemas_of_tools_count():
    messages = run_of(30)
    tokens = COUNTER.count(messages)
    hook = CompactionHook(SlidingWindowCompactor(), context_window=int(tokens / 0.7) + 2)
    state = state_of(messages, tools=[read_log])
    hook.run(state)
    assert len(state.data["messages"]) < len(messages)


@pytest.mark.parametrize("ratio", [0.7, 1.0, 1.6, 3.0])
def test_the_target_is_met_in_the_tokens_that_the_provider_reports(ratio):
    """Whatever the provider's tokenizer makes of a text, what remains is what was asked for, in its own tokens."""
    messages = run_of(60)
    reported = int(COUNTER.count(messages[:-1]) * ratio)
    hook = CompactionHook(SlidingWindowCompactor(), context_window=int(reported / 0.75))
    state = state_of(messages, context_tokens=reported)
    hook.run(state)
    remaining = COUNTER.count(state.data["messages"]) * ratio
    target = hook.context_window * 0.4
    assert 0.85 * target <= remaining <= 1.02 * target
    assert state.data["context_tokens"] == pytest.approx(COUNTER.count(state.data["messages"][:-1]) * ratio, rel=0.01)


@pytest.mark.parametrize("reported", [62, 10_000_000])
def test_a_report_beyond_reason_is_not_believed(reported):
    messages = run_of(60)
    hook = CompactionHook(SlidingWindowCompactor(), context_window=int(COUNTER.count(messages) / 0.75))
    state = state_of(messages, context_tokens=reported)
    hook.run(state)
    assert 0.8 * hook.context_window * 0.4 <= COUNTER.count(state.data["messages"]) <= hook.context_window * 0.4


def test_a_report_that_has_become_stale_does_not_lead_to_an_undercount():
    hook = window_hook()
    messages = run_of(5)
    state = state_of(messages, context_tokens=COUNTER.count(messages[:-1]))
    hook.run(state)
    # The provider falls silent: the number in the state stays, the conversation grows.
    state.data["messages"] = [*messages, *run_of(30)[2:]]
    hook.run(state)
    assert COUNTER.count(state.data["messages"]) <= WINDOW * 0.4


def test_usage_from_the_provider_drives_a_whole_run():
    def usage(messages):
        # A tokenizer that needs twice as many tokens as the estimate says.
        return {"prompt_tokens": 2 * COUNTER.count(messages), "completion_tokens": 30}

    auditor = agent(auditing(60, usage=usage), window_hook(), window=WINDOW // 2)
    assert auditor.run(messages=[TASK])["last_message"].text == "All is well."


def test_a_nudge_from_an_exit_hook_does_not_displace_the_task():
    nudges = []

    @haystack_hook
    def keep_going(state: State) -> None:
        if len(nudges) < 12:
            nudges.append(1)
            state.set("messages", [ChatMessage.from_user(f"Nudge {len(nudges)}: look at one more log.")])
            state.set("continue_run", True)

    def reply(number, messages):
        if number % 6 == 5:
            return ChatMessage.from_assistant("I think I am done.")
        return ChatMessage.from_assistant(tool_calls=[ToolCall("read_log", {"number": number}, id=f"c{number}")])

    auditor = agent(reply, window_hook(), hooks={"on_exit": [keep_going]})
    auditor.run(messages=[*chat(3)[1:-1], TASK])
    assert len(nudges) == 12
    for request in auditor.chat_generator.requests:
        assert "Audit every service." in texts(request)
    assert "Nudge 12: look at one more log." in texts(auditor.chat_generator.requests[-1])


def test_messages_in_the_result_are_the_originals_and_carry_no_mark():
    result = agent(auditing(30), window_hook()).run(messages=[TASK])
    assert any(message is TASK for message in result["messages"])
    assert all(set(message.meta) <= {"context_compaction"} for message in result["messages"])


def test_a_compactor_that_fails_ends_no_run(caplog):
    class Failing:
        def compact(self, messages, target_tokens, token_counter):
            raise OSError("no disk")

        async def compact_async(self, messages, target_tokens, token_counter):
            raise OSError("no disk")

    hook = CompactionHook(Failing(), context_window=WINDOW)
    result = agent(auditing(30), hook, window=None).run(messages=[TASK])
    assert len(result["messages"]) == 2 + 61
    assert "Failing failed" in caplog.text


def test_a_counter_that_fails_ends_no_run():
    class Broken(EstimateTokenCounter):
        def count(self, messages, tools=None):
            raise ValueError("no")

    result = agent(auditing(40), window_hook(token_counter=Broken())).run(messages=[TASK])
    assert result["last_message"].text == "All is well."


def test_it_logs_one_line_with_the_sizes(caplog):
    caplog.set_level(logging.INFO, logger="haystack_compaction")
    state = state_of(run_of(30), step_count=7)
    window_hook().run(state)
    lines = [record.getMessage() for record in caplog.records if "Compacted" in record.getMessage()]
    assert len(lines) == 1
    after = COUNTER.count(state.data["messages"])
    for part in ("step 7", f"from {COUNTER.count(run_of(30))}", f"to {after} tokens", f"target {int(WINDOW * 0.4)}"):
        assert part in lines[0]


def test_it_tags_the_trace():
    from haystack.tracing import Span, Tracer

    class Recorded(Span):
        def __init__(self):
            self.tags = {}

        def set_tag(self, key, value):
            self.tags[key] = value

    class Recorder(Tracer):
        def __init__(self):
            self.span = Recorded()

        def trace(self, operation_name, tags=None, parent_span=None):
            raise NotImplementedError

        def current_span(self):
            return self.span

    recorder = Recorder()
    enable_tracing(recorder)
    try:
        window_hook().run(state_of(run_of(30)))
    finally:
        disable_tracing()
    tags = {key.removeprefix("haystack.agent.hook.compaction."): value for key, value in recorder.span.tags.items()}
    assert tags["strategy"] == "sliding_window"
    assert tags["triggered"] is tags["compacted"] is True
    assert tags["estimated_context_tokens"] == COUNTER.count(run_of(30))
    assert tags["target_tokens"] == int(WINDOW * 0.4)
    assert tags["context_tokens"] <= tags["target_tokens"]


def test_below_the_trigger_nothing_is_counted_twice():
    class Counting(EstimateTokenCounter):
        asked = 0

        def count(self, messages, tools=None):
            self.asked += len(messages)
            return super().count(messages, tools)

    counter, messages = Counting(), run_of(50)
    hook = CompactionHook(SlidingWindowCompactor(), context_window=1_000_000, token_counter=counter)
    for _ in range(5):
        hook.run(state_of(messages))
    assert counter.asked == len(messages)


def test_round_trip_with_an_agent():
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.utils import Secret

    hook = CompactionHook(
        SlidingWindowCompactor(min_keep_steps=4), context_window=9_000, compact_at=0.8, compact_to=0.3
    )
    generator = OpenAIChatGenerator(api_key=Secret.from_env_var("NO_KEY", strict=False))
    restored = Agent.from_dict(Agent(chat_generator=generator, hooks={"before_llm": [hook]}).to_dict())
    (again,) = restored.hooks["before_llm"]
    assert again.to_dict() == hook.to_dict()
    assert again.compactor.min_keep_steps == 4


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda hook: pickle.loads(pickle.dumps(hook))])
def test_a_hook_that_has_worked_can_be_copied(copied):
    hook = window_hook(token_counter=TiktokenCounter("no_such_encoding"))
    hook.run(state_of(run_of(30)))
    again = copied(hook)
    state = state_of(run_of(30))
    again.run(state)
    assert len(state.data["messages"]) < 30


class PerMessage:
    """A counter of somebody's own, far from our estimate."""

    def count(self, messages, tools=None):
        return 100 * len(messages)


class Characters:
    def count(self, messages, tools=None):
        return sum(len(message.text or "") for message in messages)


@pytest.mark.parametrize("counter", [PerMessage(), Characters()])
@pytest.mark.parametrize("reports_usage", [False, True])
def test_a_counter_of_ones_own_decides(counter, reports_usage):
    messages = [ChatMessage.from_user("q" * 300) if n % 2 else ChatMessage.from_assistant("a" * 300) for n in range(60)]
    total = counter.count(messages)
    hook = CompactionHook(
        SlidingWindowCompactor(omission_note=None), context_window=int(total / 0.71), token_counter=counter
    )
    state = state_of(messages, context_tokens=counter.count(messages[:-1]) if reports_usage else 0)
    hook.run(state)
    left = counter.count(state.data["messages"])
    assert 0.9 * hook.context_window * 0.4 <= left <= hook.context_window * 0.4
    if reports_usage:
        assert state.data["context_tokens"] == pytest.approx(left, rel=0.1)


def test_usage_counts_however_little_the_messages_say():
    messages = [*chat(10, words=8)]
    state = state_of(messages, context_tokens=9_000)
    CompactionHook(SlidingWindowCompactor(), context_window=10_000).run(state)
    assert len(state.data["messages"]) < len(messages)


@pytest.mark.parametrize("compact_at", [0.9, 1.0])
def test_nothing_happens_below_the_share_that_was_asked_for(compact_at):
    messages = run_of(30)
    tokens = COUNTER.count(messages)
    state = state_of(messages)
    CompactionHook(SlidingWindowCompactor(), context_window=int(tokens / compact_at) + 5, compact_at=compact_at).run(
        state
    )
    assert state.data["messages"] is messages


async def test_a_compactor_with_no_more_than_compact_runs_in_async_too():
    class Plain:
        def compact(self, messages, target_tokens, token_counter):
            return SlidingWindowCompactor().compact(messages, target_tokens, token_counter)

    state = state_of(run_of(30))
    await CompactionHook(Plain(), context_window=WINDOW).run_async(state)
    assert len(state.data["messages"]) < 30


@pytest.mark.parametrize("bad", [None, "many", float("nan"), -1])
def test_a_counter_that_returns_nonsense_ends_no_run(bad):
    class Nonsense:
        additive = True

        def count(self, messages, tools=None):
            return bad

    result = agent(auditing(40), window_hook(token_counter=Nonsense())).run(messages=[TASK])
    assert result["last_message"].text == "All is well."


@pytest.mark.parametrize("compactor", ["sliding_window", None, SlidingWindowCompactor])
def test_what_is_no_compactor_is_refused(compactor):
    with pytest.raises(ValueError, match="`compactor` must be a compactor"):
        CompactionHook(compactor, context_window=WINDOW)
