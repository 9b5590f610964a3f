# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The brake, the last resort and its end, and the event loop that nothing may block."""

import asyncio
import threading
import time

import pytest
from haystack import component
from haystack.components.agents import Agent
from haystack.components.agents.state.state import State
from haystack.dataclasses import ChatMessage
from samples import ScriptedChatGenerator, chat, run_of, step
from test_hook import TASK, auditing, read_log

from haystack_compaction import (
    CompactionHook,
    EstimateTokenCounter,
    HybridCompactor,
    ImportanceScoringCompactor,
    SlidingWindowCompactor,
    SummarizationCompactor,
    ToolResultPruningCompactor,
    TruncationCompactor,
    pin,
)
from haystack_compaction.chat_generator import CompactingChatGenerator
from haystack_compaction.compaction_pass import run_passes
from haystack_compaction.conversation.notes import is_note
from haystack_compaction.errors import ContextWindowError
from haystack_compaction.tokens.ledger import TokenLedger
from haystack_compaction.tokens.request_meter import RequestMeter
from haystack_compaction.window import Window
from haystack_compaction.window_guard import WindowGuard

WINDOW = 2_000
COUNTER = EstimateTokenCounter()


class Watched:
    """A compactor that notes the size of what it is given."""

    def __init__(self, compactor=None):
        self.compactor = compactor
        self.sizes = []

    def compact(self, messages, target_tokens, token_counter):
        self.sizes.append(COUNTER.count(messages))
        return self.compactor.compact(messages, target_tokens, token_counter) if self.compactor else None


def state_of(messages):
    return State(schema={}, data={"messages": messages})


def growing(hook, messages, steps, words=9):
    """A run in which the conversation grows a little before each request."""
    state = state_of(messages)
    for number in range(steps):
        hook.run(state)
        state.set("messages", step("read_log", "passed " * words, call_id=f"s{number}"))
    return state.data["messages"]


# The brake


def test_a_compaction_that_did_not_help_waits_until_the_conversation_has_grown():
    watched = Watched()
    hook = CompactionHook(watched, context_window=WINDOW, last_resort=False)
    growing(hook, run_of(6), 60)
    assert len(watched.sizes) > 2
    gaps = [after - before for before, after in zip(watched.sizes, watched.sizes[1:], strict=False)]
    # A provider that reports nothing is taken for one that needs more than what is counted.
    assert min(gaps) >= 0.1 * WINDOW / 1.15


def test_a_floor_above_the_trigger_is_not_compacted_at_every_step():
    watched = Watched(SlidingWindowCompactor())
    hook = CompactionHook(watched, context_window=WINDOW)
    floor = [pin(ChatMessage.from_user("This has to stay. " * 300)), *run_of(2)]
    assert COUNTER.count(floor) > 0.7 * WINDOW
    growing(hook, floor, 60)
    assert 2 <= len(watched.sizes) <= 15


def test_after_the_last_resort_the_compactor_is_tried_again_in_time():
    """What was shortened is small again, and that is what the next step is measured by."""
    watched = Watched(SlidingWindowCompactor())
    hook = CompactionHook(watched, context_window=WINDOW)
    state = state_of([*run_of(3), *step("read_log", "all checks passed " * 5_000, call_id="big")])
    hook.run(state)
    assert COUNTER.count(state.data["messages"]) < 0.7 * WINDOW
    for number in range(12):
        state.set("messages", step("read_log", "passed " * 60, call_id=f"s{number}"))
        hook.run(state)
    assert len(watched.sizes) >= 2


def test_a_target_out_of_reach_is_warned_of_once_and_with_the_reason(caplog):
    floor = [pin(ChatMessage.from_user("This has to stay. " * 200)), *run_of(2)]
    growing(CompactionHook(SlidingWindowCompactor(), context_window=WINDOW), floor, 80)
    warnings = [record.getMessage() for record in caplog.records if "Could not reach" in record.getMessage()]
    assert len(warnings) == 1
    assert "target of 800 tokens" in warnings[0]
    assert "what may not be removed" in warnings[0] or "nothing that it may remove" in warnings[0]


def test_each_run_has_its_own_brake():
    watched = Watched()
    hook = CompactionHook(watched, context_window=WINDOW, last_resort=False)
    for _ in range(3):
        hook.run(state_of(run_of(20)))
    assert len(watched.sizes) == 3


@component
class Unreachable:
    """A model that is down, for so many requests."""

    def __init__(self, failures=10**9):
        self.failures = failures
        self.requests = 0

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]):
        self.requests += 1
        if self.requests <= self.failures:
            raise ConnectionError("down")
        return {"replies": [ChatMessage.from_assistant("## Work\n- All services up to here pass their checks.")]}


def compactions(hook, number):
    """Run the hook until it has compacted so often; whether the model was asked, each time."""
    guard = WindowGuard(hook.window, hook.compactor, RequestMeter(TokenLedger()))
    asked = []
    model = hook.model
    for _ in range(number):
        messages = [*chat(40), *run_of(10)[1:]]
        before = model.requests
        compacted, report = run_passes(guard.passes(messages, guard.observe(messages, None)))
        assert report.reached_target
        assert len(compacted) < len(messages)
        asked.append(model.requests > before)
    return asked


def with_model(build, **options):
    model = Unreachable(**options)
    hook = CompactionHook(build(model), context_window=3_000)
    hook.model = model
    return hook


@pytest.mark.parametrize(
    "build",
    [
        lambda model: SummarizationCompactor(model, approximate_summary_tokens=200),
        ImportanceScoringCompactor,
        lambda model: HybridCompactor([SummarizationCompactor(model, approximate_summary_tokens=200)]),
    ],
    ids=["summarization", "importance", "hybrid"],
)
def test_a_model_that_fails_is_asked_again_after_one_two_four_and_eight_compactions(build):
    asked = compactions(with_model(build), 30)
    assert [number for number, was_asked in enumerate(asked) if was_asked] == [0, 2, 5, 10, 19, 28]


def test_a_model_that_is_back_is_asked_every_time():
    asked = compactions(
        with_model(lambda model: SummarizationCompactor(model, approximate_summary_tokens=200), failures=1), 8
    )
    assert asked == [True, False, True, True, True, True, True, True]


# The last resort and its end


def test_what_is_too_big_is_named():
    pinned = pin(ChatMessage.from_user("This has to stay. " * 2_000))
    messages = [ChatMessage.from_system("Be brief."), pinned, ChatMessage.from_assistant("Yes."), TASK]
    with pytest.raises(ContextWindowError, match=r"message is number 1 \(user, about \d+ tokens\).*unpin it"):
        CompactionHook(SlidingWindowCompactor(), context_window=WINDOW).run(state_of(messages))


def test_a_system_prompt_larger_than_the_window_is_named():
    messages = [ChatMessage.from_system("Be careful. " * 3_000), TASK]
    with pytest.raises(ContextWindowError, match=r"message is number 0 \(system"):
        CompactionHook(SlidingWindowCompactor(), context_window=WINDOW).run(state_of(messages))


async def test_it_ends_an_async_run_too():
    messages = [ChatMessage.from_system("Be careful. " * 3_000), TASK]
    with pytest.raises(ContextWindowError):
        await CompactionHook(SlidingWindowCompactor(), context_window=WINDOW).run_async(state_of(messages))


@pytest.mark.parametrize("usage", [None, 0.7, 1, 1.4])
def test_a_giant_task_is_shortened_and_ends_no_run(usage):
    """A provider that needs more tokens than are counted, or fewer."""
    task = ChatMessage.from_user("Audit every service. " + "Here is what is known of it. " * 3_000)

    def reported(messages):
        return {"prompt_tokens": usage * COUNTER.count(messages)} if usage else None

    generator = ScriptedChatGenerator(
        auditing(8, usage=reported if usage else None), window=WINDOW, count=COUNTER.count
    )
    hook = CompactionHook(SlidingWindowCompactor(), context_window=int(WINDOW * (usage or 1)))
    result = Agent(chat_generator=generator, tools=[read_log], hooks={"before_llm": [hook]}).run(messages=[task])
    assert result["last_message"].text == "All is well."


@pytest.mark.parametrize(
    "compactor", [TruncationCompactor(), ToolResultPruningCompactor()], ids=lambda one: one.strategy
)
def test_where_contents_are_not_what_is_too_much_the_oldest_steps_go(compactor):
    """Hundreds of tiny steps, and a compactor that removes no messages."""
    hook = CompactionHook(compactor, context_window=WINDOW)
    messages = growing(hook, [TASK], 300, words=2)
    assert COUNTER.count(messages) <= WINDOW
    assert messages[0] is TASK
    assert sum(map(is_note, messages)) == 1


def test_it_can_be_turned_off():
    messages = [ChatMessage.from_system("Be careful. " * 3_000), TASK]
    state = state_of(messages)
    CompactionHook(SlidingWindowCompactor(), context_window=WINDOW, last_resort=False).run(state)
    assert state.data["messages"] is messages


def test_above_a_brake_without_a_last_resort_nothing_is_done():
    guard = WindowGuard(Window(context_window=WINDOW, last_resort=False), Watched(), RequestMeter(TokenLedger()))
    messages = run_of(30)
    tokens = guard.observe(messages, None)
    assert guard.is_due(tokens)
    run_passes(guard.passes(messages, tokens))
    assert not guard.is_due(guard.observe(messages, None))


# The event loop


class Slow:
    """A counter that asks a provider, and says which thread it was asked in."""

    def __init__(self):
        self.threads = []

    def count(self, messages, tools=None):
        self.threads.append(threading.current_thread())
        return COUNTER.count(messages, tools)


@pytest.mark.parametrize(
    "usage", [None, lambda messages: {"prompt_tokens": COUNTER.count(messages)}], ids=["silent", "usage"]
)
async def test_a_counter_of_a_provider_never_runs_on_the_event_loop(usage):
    counter = Slow()
    hook = CompactionHook(SlidingWindowCompactor(), context_window=WINDOW, token_counter=counter)
    generator = ScriptedChatGenerator(auditing(20, usage=usage))
    agent = Agent(chat_generator=generator, tools=[read_log], hooks={"before_llm": [hook]})
    await agent.run_async(messages=[TASK])
    assert len(generator.requests) == 21
    assert counter.threads
    assert threading.main_thread() not in counter.threads


async def test_nor_around_a_chat_generator():
    counter = Slow()
    generator = CompactingChatGenerator(
        ScriptedChatGenerator(lambda index, messages: ChatMessage.from_assistant("Noon.")),
        SlidingWindowCompactor(),
        context_window=1_000,
        token_counter=counter,
    )
    await generator.run_async(chat(60))
    assert counter.threads
    assert threading.main_thread() not in counter.threads


def test_a_model_that_hangs_keeps_no_event_loop_waiting():
    released = threading.Event()

    @component
    class Hanging:
        @component.output_types(replies=list[ChatMessage])
        def run(self, messages: list[ChatMessage]):
            released.wait(30)
            return {"replies": []}

    compactor = SummarizationCompactor(Hanging(), approximate_summary_tokens=200, timeout=0.05)
    started = time.monotonic()
    try:
        compacted = asyncio.run(compactor.compact_async(chat(60), 1_000, COUNTER))
        waited = time.monotonic() - started
    finally:
        released.set()
    assert COUNTER.count(compacted) <= 1_000
    assert waited < 20


@pytest.mark.parametrize("parts", [["Write the report.", " "], ["Write the report. " * 900]], ids=["blank", "huge"])
@pytest.mark.parametrize("compactor", [SlidingWindowCompactor(), HybridCompactor()])
def test_a_task_that_was_repaired_or_shortened_is_still_the_task(parts, compactor):
    state = State(schema={"messages": {"type": list[ChatMessage]}}, data={"step_count": 0})
    messages = [ChatMessage.from_user("Hi. " * 40), ChatMessage.from_assistant("Hello. " * 40)]
    state.data["messages"] = [*messages, ChatMessage.from_user(content_parts=parts)]
    hook = CompactionHook(compactor, context_window=2_000)
    for number in range(30):
        hook.run(state)
        said = [message.text or "" for message in state.data["messages"]]
        assert any("Write the report." in text for text in said)
        # An `on_exit` hook that wants more makes the Agent go on after a finished answer.
        state.data["step_count"] = number + 1
        answer = [ChatMessage.from_assistant("Done so far. " * 30), ChatMessage.from_user("Please go on.")]
        state.data["messages"] = [*state.data["messages"], *answer]


def test_a_compactor_that_returns_anything_does_not_keep_the_last_resort_from_its_work():
    class Garbage:
        def compact(self, messages, target_tokens, token_counter):
            return [{"role": "user"}]

    state = State(schema={"messages": {"type": list[ChatMessage]}}, data={"messages": chat(60)})
    CompactionHook(Garbage(), context_window=1_000).run(state)
    assert EstimateTokenCounter().count(state.data["messages"]) < 1_000
