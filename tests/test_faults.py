# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Counter, compactor, model, archive, callback, tracer raise at random moments; the run goes on and loses nothing."""

from contextlib import contextmanager
from random import Random

import pytest
from haystack import component
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.tracing import Span, Tracer, disable_tracing, enable_tracing
from samples import ScriptedChatGenerator, chat, texts
from test_hook import TASK, auditing, read_log

from haystack_compaction import (
    CompactionHook,
    EstimateTokenCounter,
    HybridCompactor,
    ImportanceScoringCompactor,
    SlidingWindowCompactor,
    SummarizationCompactor,
    pin,
)
from haystack_compaction.archive import DocumentStoreArchive, full_transcript
from haystack_compaction.chat_generator import CompactingChatGenerator
from haystack_compaction.conversation.pairing import pairs_are_intact

WINDOW = 2_500
STEPS = 40
COUNTER = EstimateTokenCounter()
RULE = pin(ChatMessage.from_user("Never restart a service."))
SEEDS = range(6)


class InjectedError(Exception):
    """What is injected."""


class Faults:
    """Raises at moments that a seed decides."""

    def __init__(self, seed, share=0.3):
        self.random = Random(seed)
        self.share = share
        self.raised = 0

    def maybe(self):
        if self.random.random() < self.share:
            self.raised += 1
            raise InjectedError("at a random moment")


class Counter(EstimateTokenCounter):
    def __init__(self, faults, additive=True):
        super().__init__()
        self.faults = faults
        self.additive = additive

    def count(self, messages, tools=None):
        self.faults.maybe()
        return super().count(messages, tools)


class FaultyCompactor:
    """Somebody's compactor, which fails before or after its work, or forgets half of the conversation."""

    def __init__(self, faults):
        self.faults = faults
        self.compactor = SlidingWindowCompactor()

    def compact(self, messages, target_tokens, token_counter):
        self.faults.maybe()
        compacted = self.compactor.compact(messages, target_tokens, token_counter)
        if self.faults.random.random() < 0.3:
            self.faults.raised += 1
            return messages[len(messages) // 2 :]
        self.faults.maybe()
        return compacted


@component
class FaultyModel:
    """Raises, or says nothing, or less than nothing."""

    def __init__(self, faults):
        self.faults = faults

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]):
        self.faults.maybe()
        text = self.faults.random.choice(["", "ok", "## Work\n- All services up to here pass.", "\ud800", "{" * 5_000])
        meta = {"usage": self.faults.random.choice([None, {}, {"prompt_tokens": "many"}, {"total_tokens": 10}])}
        return {"replies": [ChatMessage.from_assistant(text, meta=meta)] if self.faults.random.random() < 0.8 else []}


class FaultyArchive:
    """Each of its methods fails now and then, before or after its work."""

    def __init__(self, faults):
        self.faults = faults
        self.archive = DocumentStoreArchive(InMemoryDocumentStore())

    def append(self, conversation_id, record):
        self.faults.maybe()
        number = self.archive.append(conversation_id, record)
        self.faults.maybe()
        return number

    def outline(self, conversation_id):
        self.faults.maybe()
        return self.archive.outline(conversation_id)

    def read_range(self, conversation_id):
        return self.archive.read_range(conversation_id)


class FaultyTracer(Tracer):
    def __init__(self, faults):
        self.faults = faults

    @contextmanager
    def trace(self, operation_name, tags=None, parent_span=None):
        yield FaultySpan(self.faults)

    def current_span(self):
        return FaultySpan(self.faults)


class FaultySpan(Span):
    def __init__(self, faults):
        self.faults = faults

    def set_tag(self, key, value):
        # Haystack itself does not survive a tracer that fails under its own calls.
        if "compaction" in key:
            self.faults.maybe()


@pytest.fixture
def faulty_tracer():
    faults = Faults(0, share=0.5)
    enable_tracing(FaultyTracer(faults))
    yield faults
    disable_tracing()


def usage(messages):
    return {"prompt_tokens": COUNTER.count(messages), "completion_tokens": 20}


def survives(hook, *, reports_usage):
    """A run whose every request fits, is valid, and has what must stay; returns what the Agent did."""
    script = auditing(STEPS, usage=usage if reports_usage else None)
    generator = ScriptedChatGenerator(script, window=WINDOW, count=COUNTER.count)
    agent = Agent(
        chat_generator=generator,
        tools=[read_log],
        system_prompt="You are careful.",
        hooks={"before_llm": [hook]},
        max_agent_steps=STEPS + 5,
    )
    messages = [*chat(4)[1:-1], RULE, ChatMessage.from_assistant("Understood."), TASK]
    result = agent.run(messages=messages, hook_context={"conversation_id": "audit"})
    assert result["last_message"].text == "All is well."
    for number, request in enumerate(generator.requests):
        sent = texts(request)
        assert sent[0] == "You are careful."
        assert RULE.text in sent
        assert sent.count(TASK.text) == 1
        assert pairs_are_intact(request)
        # The newest result is what the model waits for.
        assert number == 0 or sent[-1].startswith(f"log {number - 1}: ")
    return result


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("additive", [True, False], ids=["local", "a provider's"])
def test_a_counter_that_fails(seed, additive, caplog):
    faults = Faults(seed)
    hook = CompactionHook(SlidingWindowCompactor(), context_window=WINDOW, token_counter=Counter(faults, additive))
    survives(hook, reports_usage=seed % 2)
    assert faults.raised
    assert 1 <= caplog.text.count("the local estimate stands in") <= 2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_compactor_that_fails(seed):
    faults = Faults(seed)
    survives(CompactionHook(FaultyCompactor(faults), context_window=WINDOW), reports_usage=seed % 2)
    assert faults.raised


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("build", [SummarizationCompactor, ImportanceScoringCompactor, HybridCompactor])
def test_a_model_that_fails(seed, build):
    faults = Faults(seed)
    model = FaultyModel(faults)
    compactor = build([SummarizationCompactor(model)]) if build is HybridCompactor else build(model)
    survives(CompactionHook(compactor, context_window=WINDOW), reports_usage=seed % 2)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", ["keep", "drop"])
def test_an_archive_that_fails(seed, policy):
    faults = Faults(seed)
    archive = FaultyArchive(faults)
    hook = CompactionHook(SlidingWindowCompactor(), context_window=WINDOW, archive=archive, on_archive_failure=policy)
    result = survives(hook, reports_usage=True)
    assert faults.raised
    # What could not be archived at the end waits in memory for a pass that never came.
    faults.share = 0
    known = set(texts(full_transcript(archive, "audit", result["messages"])))
    pending = [log for log in map(f"log {{}}: {'all checks passed ' * 60}".format, range(STEPS)) if log not in known]
    assert len(pending) <= STEPS // 2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_callback_that_fails(seed):
    faults = Faults(seed, share=0.5)
    survives(
        CompactionHook(SlidingWindowCompactor(), context_window=WINDOW, on_compaction=lambda report: faults.maybe()),
        reports_usage=seed % 2,
    )
    assert faults.raised


@pytest.mark.parametrize("reports_usage", [False, True])
def test_a_tracer_that_fails(faulty_tracer, reports_usage):
    survives(CompactionHook(SlidingWindowCompactor(), context_window=WINDOW), reports_usage=reports_usage)
    assert faulty_tracer.raised


@pytest.mark.parametrize("seed", SEEDS)
def test_all_of_them_at_once(faulty_tracer, seed):
    faults = Faults(seed)
    hook = CompactionHook(
        HybridCompactor([FaultyCompactor(faults), SummarizationCompactor(FaultyModel(faults))]),
        context_window=WINDOW,
        token_counter=Counter(faults, additive=bool(seed % 2)),
        archive=FaultyArchive(faults),
        on_compaction=lambda report: faults.maybe(),
    )
    survives(hook, reports_usage=seed % 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_around_a_chat_generator(seed):
    faults = Faults(seed)
    inner = ScriptedChatGenerator(
        lambda index, messages: ChatMessage.from_assistant(f"Answer {index}: " + "at half past noon " * 20),
        window=WINDOW,
        count=COUNTER.count,
    )
    generator = CompactingChatGenerator(
        inner,
        HybridCompactor([FaultyCompactor(faults), SummarizationCompactor(FaultyModel(faults))]),
        context_window=WINDOW,
        token_counter=Counter(faults),
        archive=FaultyArchive(faults),
        on_compaction=lambda report: faults.maybe(),
    )
    messages = [ChatMessage.from_system("You answer questions about tides."), RULE]
    for number in range(60):
        messages.append(ChatMessage.from_user(f"Question {number}: " + "when is high tide " * 20))
        messages.append(generator.run(messages)["replies"][0])
        sent = texts(inner.requests[-1])
        assert sent[0] == "You answer questions about tides."
        assert RULE.text in sent
        assert sent[-1].startswith(f"Question {number}: ")
