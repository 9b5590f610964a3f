# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import asyncio
import copy
import gc
import json
import pickle
import sys
import threading
import weakref
from dataclasses import replace
from itertools import pairwise

import openai
import pytest
from haystack import Pipeline, component
from haystack.components.agents import Agent
from haystack.components.generators.chat import MockChatGenerator, OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, StreamingChunk, ToolCall
from haystack.tools import tool
from haystack.utils import Secret
from samples import ScriptedChatGenerator, chat, run_of, texts
from servers.anthropic_messages import StrictAnthropicServer
from servers.base import ApiError, Call, Reply
from servers.openai_chat import StrictOpenAIServer

from haystack_compaction import CompactionReport, EstimateTokenCounter, SlidingWindowCompactor, pin
from haystack_compaction.chat_generator import CompactingChatGenerator
from haystack_compaction.compaction_pass import run_passes
from haystack_compaction.compactors.summarization import SummarizationCompactor
from haystack_compaction.compactors.truncation import TruncationCompactor
from haystack_compaction.conversation.notes import is_note
from haystack_compaction.errors import ContextWindowError
from haystack_compaction.overflow import is_context_overflow
from haystack_compaction.tokens.ledger import TokenLedger
from haystack_compaction.tokens.request_meter import RequestMeter
from haystack_compaction.window import Window
from haystack_compaction.window_guard import WindowGuard

COUNTER = EstimateTokenCounter()
REPORT = "context_compaction_report"


def openai_generator(server, **options):
    return OpenAIChatGenerator(
        api_key=Secret.from_token("none"), model="scripted", api_base_url=server.base_url, max_retries=0, **options
    )


def anthropic_generator(server, **options):
    integration = pytest.importorskip("haystack_integrations.components.generators.anthropic")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ANTHROPIC_BASE_URL", server.base_url)
        generator = integration.AnthropicChatGenerator(
            api_key=Secret.from_token("none"), model="scripted", max_retries=0, **options
        )
        generator.warm_up()
    return generator


class Silent(StrictOpenAIServer):
    """Refuses without naming any size, as the Responses API does."""

    def too_long(self, tokens, tool_tokens):
        message = "Your input exceeds the context window of this model. Please adjust your input and try again."
        return self.error(message, param="input", code="context_length_exceeded")


async def ask(generator, messages, how, chunks):
    """One call in each of the four ways there are."""

    async def collect(chunk: StreamingChunk):
        chunks.append(chunk.content)

    if how == "sync":
        return generator.run(messages)["replies"][0]
    if how == "streaming":
        return generator.run(messages, streaming_callback=lambda chunk: chunks.append(chunk.content))["replies"][0]
    if how == "async":
        return (await generator.run_async(messages))["replies"][0]
    return (await generator.run_async(messages, streaming_callback=collect))["replies"][0]


# Recovery


@pytest.mark.parametrize("how", ["sync", "streaming", "async", "async streaming"])
async def test_a_refusal_is_recovered_from(how):
    messages, chunks = chat(60), []
    with StrictOpenAIServer(["Half past noon."], context_window=2_000) as server:
        generator = CompactingChatGenerator(
            openai_generator(server), SlidingWindowCompactor(), context_window=1_000_000
        )
        reply = await ask(generator, messages, how, chunks)
        assert reply.text == "Half past noon."
        assert "".join(chunks) == (reply.text if "streaming" in how else "")
        assert len(server.errors) == 1
        # It aims at nine tenths of the limit that the refusal names, in the server's tokens.
        assert 0.75 * 2_000 <= server.usages[0].prompt <= 0.9 * 2_000
        sent = server.requests[-1]["messages"]
        assert (sent[0]["content"], sent[-1]["content"]) == (messages[0].text, "And today?")
        report = reply.meta[REPORT]
        assert report["retries"] == 1
        assert report["tokens_after"] < report["tokens_before"]
    assert messages == chat(60)


def test_a_refusal_that_names_no_size():
    with Silent(["Half past noon."], context_window=2_500) as server:
        generator = CompactingChatGenerator(openai_generator(server), SlidingWindowCompactor(), context_window=100_000)
        messages = chat(55)
        reply = generator.run(messages)["replies"][0]
        assert 1 <= reply.meta[REPORT]["retries"] == len(server.errors) <= 2
        assert server.usages[0].prompt <= 2_500


def test_a_refusal_by_anthropic():
    with StrictAnthropicServer(["Half past noon."] * 2, context_window=2_000) as server:
        generator = CompactingChatGenerator(
            anthropic_generator(server), SlidingWindowCompactor(), context_window=1_000_000
        )
        reply = generator.run(chat(60))["replies"][0]
        assert (reply.text, reply.meta[REPORT]["retries"], len(server.errors)) == ("Half past noon.", 1, 1)
        chunks = []
        reply = generator.run(chat(61), streaming_callback=chunks.append)["replies"][0]
        assert (reply.text, reply.meta[REPORT]["retries"]) == ("Half past noon.", 1)
        assert chunks


def test_a_giant_newest_message_is_shortened_when_nothing_else_can_go():
    with StrictOpenAIServer(["Noted."], context_window=2_000) as server:
        generator = CompactingChatGenerator(openai_generator(server), SlidingWindowCompactor(), context_window=100_000)
        reply = generator.run([ChatMessage.from_user("Summarize: " + "the tide rises " * 3_000)])["replies"][0]
        assert reply.text == "Noted."
        assert server.usages[0].prompt <= 2_000
        assert reply.meta[REPORT]["rewritten_messages"] == 1


def test_what_a_refusal_teaches_is_kept_for_the_conversation():
    """A tokenizer that needs three times as many tokens as the estimate says, and a window half as large as told."""
    messages = chat(20)
    with StrictOpenAIServer(lambda index, sent: f"Answer {index}.", context_window=3_000, usage="none") as server:
        server.count = lambda text: 3 * len(text) // 4 + 1
        generator = CompactingChatGenerator(openai_generator(server), SlidingWindowCompactor(), context_window=6_000)
        for turn in range(60):
            messages.append(generator.run(messages)["replies"][0])
            messages.append(ChatMessage.from_user(f"And on day {turn}? " + "when is high tide " * 5))
        assert len(server.usages) == 60
        assert len(server.errors) <= 2


@component
class Refusing:
    """Refuses whatever it is sent, each time with an error of its own."""

    def __init__(self, message="prompt is too long", chunks=0, error=RuntimeError):
        self.message, self.chunks, self.error = message, chunks, error
        self.raised = []
        self.sizes = []

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage], streaming_callback=None):
        for number in range(self.chunks):
            streaming_callback(StreamingChunk(f"{number}"))
        self.sizes.append(COUNTER.count(messages))
        self.raised.append(self.error(self.message))
        raise self.raised[-1]


@pytest.mark.parametrize("max_retries", [0, 1, 2, 5])
def test_when_the_retries_are_used_up_the_provider_has_the_last_word(max_retries):
    refusing = Refusing()
    generator = CompactingChatGenerator(
        refusing, SlidingWindowCompactor(), context_window=100_000, max_retries=max_retries
    )
    with pytest.raises(RuntimeError, match="prompt is too long") as caught:
        generator.run(chat(60))
    assert caught.value is refusing.raised[-1]
    assert len(refusing.sizes) == max_retries + 1
    assert all(after <= 0.7 * before for before, after in pairwise(refusing.sizes))
    if sys.version_info >= (3, 11) and max_retries:
        assert f"sent again {max_retries} times" in caught.value.__notes__[0]


def test_the_error_of_the_real_client_comes_out_as_it_is():
    with StrictOpenAIServer(["never"], context_window=5) as server:
        generator = CompactingChatGenerator(openai_generator(server), context_window=100_000)
        with pytest.raises(openai.BadRequestError) as caught:
            generator.run(chat(30))
        assert caught.value.code == "context_length_exceeded"
        assert len(server.requests) <= 3


def test_it_stops_when_nothing_shrinks():
    refusing = Refusing()
    generator = CompactingChatGenerator(refusing, context_window=100_000, max_retries=5)
    with pytest.raises(RuntimeError):
        generator.run([pin(ChatMessage.from_user("All of this has to stay. " * 50))])
    assert len(refusing.sizes) == 1


@pytest.mark.parametrize("chunks", [0, 2])
def test_a_call_is_not_repeated_once_a_part_of_it_was_streamed(chunks):
    refusing, received = Refusing(chunks=chunks), []
    generator = CompactingChatGenerator(refusing, SlidingWindowCompactor(), context_window=100_000)
    with pytest.raises(RuntimeError):
        generator.run(chat(60), streaming_callback=received.append)
    assert len(refusing.sizes) == (1 if chunks else 3)
    assert len(received) == chunks


def test_a_callback_that_the_wrapped_generator_was_built_with_counts_too():
    refusing, received = Refusing(chunks=1), []
    refusing.streaming_callback = received.append
    with pytest.raises(RuntimeError):
        CompactingChatGenerator(refusing, context_window=100_000).run(chat(60))
    assert (len(refusing.sizes), len(received)) == (1, 1)


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (
            429,
            {"message": "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 42362."},
            openai.RateLimitError,
        ),
        (401, {"message": "Incorrect API key provided."}, openai.AuthenticationError),
        (400, {"message": "max_tokens is too large: 99999.", "param": "max_tokens"}, openai.BadRequestError),
        (500, {"message": "The server had an error."}, openai.InternalServerError),
    ],
)
async def test_other_errors_pass_through(status, body, error, how):
    def fail(index, messages):
        raise ApiError(status, {"error": body})

    with StrictOpenAIServer(fail) as server:
        generator = CompactingChatGenerator(openai_generator(server), context_window=100_000)
        with pytest.raises(error) as caught:
            await ask(generator, chat(10), how, [])
        assert len(server.requests) == 1
        assert not hasattr(caught.value, "__notes__")


def test_an_error_after_a_refusal_is_not_taken_for_another():
    class Failing(Refusing):
        def run(self, messages, streaming_callback=None):
            if self.sizes:
                self.sizes.append(0)
                raise ValueError("something else")
            return super().run(messages)

    failing = Failing()
    generator = CompactingChatGenerator(failing, SlidingWindowCompactor(), context_window=100_000)
    with pytest.raises(ValueError, match="something else"):
        generator.run(chat(60))
    assert len(failing.sizes) == 2


def says_no(error):
    return "no" in str(error)


def test_what_counts_as_a_refusal_can_be_replaced():
    refusing = Refusing("no")
    with pytest.raises(RuntimeError):
        CompactingChatGenerator(refusing, context_window=100_000, is_context_overflow=says_no).run(chat(60))
    assert len(refusing.sizes) == 3
    refusing = Refusing()
    with pytest.raises(RuntimeError):
        CompactingChatGenerator(refusing, context_window=100_000, is_context_overflow=says_no).run(chat(60))
    assert len(refusing.sizes) == 1


# Agents


@tool
def read_log(number: int, size: int = 60) -> str:
    """Read one of the logs."""
    return f"log {number}: " + "all checks passed " * size


def auditing(steps, *, size=60, parallel=1):
    def script(index, messages):
        if index >= steps:
            return "All is well."
        return Reply(tool_calls=[Call("read_log", {"number": index, "size": size}) for _ in range(parallel)])

    return script


def agent(generator):
    return Agent(chat_generator=generator, tools=[read_log], system_prompt="You are careful.", max_agent_steps=200)


TASK = ChatMessage.from_user("Audit every service.")


@pytest.mark.parametrize("usage", ["full", "net_of_cache", "none", "total_only"])
@pytest.mark.parametrize("told", [3_000, 30_000])
def test_an_agent_far_beyond_the_window(told, usage):
    with StrictOpenAIServer(auditing(40), context_window=3_000, usage=usage) as server:
        result = agent(CompactingChatGenerator(openai_generator(server), context_window=told)).run(messages=[TASK])
        assert result["last_message"].text == "All is well."
        # Nothing tells such usage from that of a smaller request. What comes of it is recovered from.
        is_misleading = usage == "net_of_cache"
        assert len(server.errors) <= (0 if told == 3_000 and not is_misleading else 1)
        assert all(any(m["content"] == TASK.text for m in request["messages"]) for request in server.requests)
        # The agent's own history stays whole.
        assert len(result["messages"]) == 2 + 2 * 40 + 1


async def test_an_async_agent():
    with StrictOpenAIServer(auditing(40), context_window=3_000) as server:
        generator = CompactingChatGenerator(openai_generator(server), context_window=30_000)
        result = await agent(generator).run_async(messages=[TASK])
        assert result["last_message"].text == "All is well."


def test_an_agent_on_anthropic():
    with StrictAnthropicServer(auditing(40), context_window=3_000) as server:
        generator = CompactingChatGenerator(anthropic_generator(server), context_window=30_000)
        result = agent(generator).run(messages=[TASK])
        assert result["last_message"].text == "All is well."
        assert len(server.errors) == 1


@pytest.mark.parametrize("told", [3_000, 300_000])
@pytest.mark.parametrize("parallel", [1, 10])
def test_giant_results(told, parallel):
    with StrictOpenAIServer(auditing(3, size=8_000, parallel=parallel), context_window=3_000) as server:
        result = agent(CompactingChatGenerator(openai_generator(server), context_window=told)).run(messages=[TASK])
        assert result["last_message"].text == "All is well."
        assert all(usage.prompt <= 3_000 for usage in server.usages)


def test_compactions_in_a_long_run_are_few():
    with StrictOpenAIServer(auditing(60), context_window=3_000) as server:
        agent(CompactingChatGenerator(openai_generator(server), context_window=3_000)).run(messages=[TASK])
        requests = [request["messages"] for request in server.requests]
        rewrites = sum(later[: len(earlier)] != earlier for earlier, later in pairwise(requests))
        assert rewrites <= 15


# Memory


def summarizing(calls):
    def write(number, messages):
        calls.append(messages)
        return ChatMessage.from_assistant(f"Summary {number}: the tide was asked about, day after day, and answered.")

    return SummarizationCompactor(ScriptedChatGenerator(write))


@pytest.mark.parametrize("pass_on", [list, copy.deepcopy], ids=["the same messages", "copies of them"])
def test_a_prefix_is_summarized_once(pass_on):
    calls = []
    model = ScriptedChatGenerator(lambda number, messages: ChatMessage.from_assistant(f"Answer {number}."))
    generator = CompactingChatGenerator(model, summarizing(calls), context_window=3_000)
    messages = chat(80)
    for turn in range(10):
        messages.append(generator.run(pass_on(messages))["replies"][0])
        messages.append(ChatMessage.from_user(f"And on day {turn}?"))
        if turn == 0:
            calls_at_first = len(calls)
    assert len(calls) == calls_at_first > 0
    assert messages[1].meta.get(REPORT) is None
    # From one request to the next only the new messages are added.
    for earlier, later in pairwise(model.requests):
        assert later[: len(earlier)] == earlier
        assert len(later) == len(earlier) + 2


def test_the_same_call_again_costs_no_summary():
    calls = []
    model = ScriptedChatGenerator(lambda number, messages: ChatMessage.from_assistant("Yes."))
    generator = CompactingChatGenerator(model, summarizing(calls), context_window=3_000)
    generator.run(chat(80))
    calls_at_first = len(calls)
    generator.run(chat(80))
    assert model.requests[0] == model.requests[1]
    assert len(calls) == calls_at_first > 0


@pytest.mark.parametrize("failure", [None, OSError("the summarizer is gone")])
def test_what_does_not_help_is_not_tried_at_every_call(failure):
    tries = []

    class Helpless:
        def compact(self, messages, target_tokens, token_counter):
            tries.append(len(messages))
            if failure:
                raise failure

    model = ScriptedChatGenerator(lambda number, messages: ChatMessage.from_assistant("Yes."))
    generator = CompactingChatGenerator(model, Helpless(), context_window=10_000)
    messages = chat(140)
    assert COUNTER.count(messages) > 0.7 * 10_000
    for _ in range(20):
        messages.extend([*generator.run(messages)["replies"], ChatMessage.from_user("And now?")])
    assert len(tries) == 1


def test_a_compaction_survives_a_failing_call():
    calls, failures = [], [ConnectionError("gone")]

    def reply(number, messages):
        if failures:
            raise failures.pop()
        return ChatMessage.from_assistant("Yes.")

    generator = CompactingChatGenerator(ScriptedChatGenerator(reply), summarizing(calls), context_window=3_000)
    with pytest.raises(ConnectionError):
        generator.run(chat(80))
    calls_at_first = len(calls)
    assert generator.run(chat(80))["replies"][0].text == "Yes."
    assert len(calls) == calls_at_first > 0


def test_two_conversations_in_two_threads():
    model = ScriptedChatGenerator(lambda number, messages: ChatMessage.from_assistant(f"Reply to {messages[-1].text}"))
    generator = CompactingChatGenerator(model, SlidingWindowCompactor(), context_window=1_500)
    wrong = []

    def talk(name):
        messages = [ChatMessage.from_system(f"You are {name}.")]
        for turn in range(60):
            messages.append(ChatMessage.from_user(f"{name} {turn}: " + "when is high tide " * 8))
            reply = generator.run(messages)["replies"][0]
            if not reply.text.startswith(f"Reply to {name} {turn}"):
                wrong.append(reply)
            messages.append(reply)

    threads = [threading.Thread(target=talk, args=(name,)) for name in ("Ada", "Grace", "Mary")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(model.requests) == 180
    for request in model.requests:
        name = request[0].text.split()[2].rstrip(".")
        assert all(name in message.text for message in request if not is_note(message))
        assert COUNTER.count(request) <= 1_500


async def test_concurrent_calls_of_one_conversation():
    model = ScriptedChatGenerator(lambda number, messages: ChatMessage.from_assistant("Yes."))
    generator = CompactingChatGenerator(model, SlidingWindowCompactor(), context_window=3_000)
    messages = chat(80)
    results = await asyncio.gather(*(generator.run_async(messages) for _ in range(8)))
    assert [result["replies"][0].text for result in results] == ["Yes."] * 8
    assert all(COUNTER.count(request) <= 3_000 * 0.7 for request in model.requests)


def test_conversations_are_forgotten_in_the_end():
    model = ScriptedChatGenerator(lambda number, messages: ChatMessage.from_assistant("Yes."))
    generator = CompactingChatGenerator(model, context_window=3_000)
    first = [ChatMessage.from_user("The first of many.")]
    gone = weakref.ref(first[0])
    generator.run(first)
    del first
    for number in range(200):
        generator.run([ChatMessage.from_user(f"Conversation {number}")])
    model.requests.clear()
    gc.collect()
    assert gone() is None


# What usage teaches


def test_the_first_reply_already_says_how_large_tokens_are():
    def reply(number, messages):
        usage = {"prompt_tokens": 2 * COUNTER.count(messages), "completion_tokens": 1}
        return ChatMessage.from_assistant("Yes.", meta={"usage": usage})

    model = ScriptedChatGenerator(reply)
    generator = CompactingChatGenerator(model, SlidingWindowCompactor(), context_window=4_000)
    messages = [ChatMessage.from_user("When is high tide? " * 350)]
    messages.extend([*generator.run(messages)["replies"], ChatMessage.from_user("And tomorrow?")])
    assert 0.35 * 4_000 < COUNTER.count(messages) < 0.6 * 4_000
    generator.run(messages)
    assert 2 * COUNTER.count(model.requests[-1]) <= 0.4 * 4_000


def test_the_usage_of_a_reply_that_was_shortened_is_not_read_again():
    guard = WindowGuard(Window(context_window=1_000), TruncationCompactor(), RequestMeter(TokenLedger()))
    messages = [ChatMessage.from_user("Tell me all about tides.")]
    guard.observe(messages, None)
    told = ChatMessage.from_assistant("The tide rises and falls. " * 120)
    usage = {"prompt_tokens": COUNTER.count(messages), "completion_tokens": COUNTER.count([told])}
    messages.append(replace(told, _meta={"usage": usage}))
    messages.append(ChatMessage.from_user("And the moon?"))
    compacted, report = run_passes(guard.passes(messages, guard.observe(messages, None)))
    assert report.rewritten_messages == 1
    guard.observe([*compacted, ChatMessage.from_user("Please.")], None)
    assert guard.meter.calibration.ratio == pytest.approx(1.0, rel=0.05)


# The wrapper


@component
class Plain:
    """A chat generator that takes nothing but messages, and knows no async."""

    def __init__(self):
        self.threads = []

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]):
        self.threads.append(threading.get_ident())
        return {"replies": [ChatMessage.from_assistant(f"You said: {messages[-1].text}")]}


async def test_only_what_was_given_is_passed_on():
    plain = Plain()
    generator = CompactingChatGenerator(plain, context_window=1_000)
    assert generator.run([ChatMessage.from_user("Hi")])["replies"][0].text == "You said: Hi"
    # Without `run_async` of its own it runs in a thread, so that it blocks nobody.
    await generator.run_async([ChatMessage.from_user("Hi")])
    assert plain.threads[0] == threading.get_ident() != plain.threads[1]
    with pytest.raises(TypeError, match="generation_kwargs"):
        generator.run([ChatMessage.from_user("Hi")], generation_kwargs={"seed": 1})


def test_what_was_given_is_passed_on():
    with StrictOpenAIServer(["Yes."]) as server:
        generator = CompactingChatGenerator(openai_generator(server), context_window=100_000)
        generator.run("Is it high tide?", None, {"seed": 7}, tools=[read_log], tools_strict=True)
        request = server.requests[0]
        assert request["messages"] == [{"role": "user", "content": "Is it high tide?"}]
        assert request["seed"] == 7
        assert request["tools"][0]["function"]["strict"] is True


def test_a_call_that_needs_nothing_is_left_alone():
    reply = ChatMessage.from_assistant("Yes.")
    model = ScriptedChatGenerator(lambda number, messages: reply)
    generator = CompactingChatGenerator(model, context_window=100_000)
    assert generator.run(chat(3))["replies"][0] is reply
    assert REPORT not in reply.meta
    assert generator.run([])["replies"] == [reply]


def test_the_report_is_one_that_can_be_read_back():
    reply = ChatMessage.from_assistant("Yes.", meta={"model": "scripted"})
    model = ScriptedChatGenerator(lambda number, messages: reply)
    said = CompactingChatGenerator(model, SlidingWindowCompactor(), context_window=3_000).run(chat(80))["replies"][0]
    assert REPORT not in reply.meta
    assert said.meta["model"] == "scripted"
    report = json.loads(json.dumps(said.meta[REPORT]))
    assert report.pop("retries") == 0
    assert CompactionReport.from_dict(report).strategy == "sliding_window"
    assert not is_note(said)


def test_the_schemas_of_the_tools_take_room():
    messages = chat(40)
    window = int(COUNTER.count(messages) / 0.7) + 2
    model = ScriptedChatGenerator(lambda number, messages: ChatMessage.from_assistant("Yes."))
    CompactingChatGenerator(model, SlidingWindowCompactor(), context_window=window).run(messages)
    CompactingChatGenerator(model, SlidingWindowCompactor(), context_window=window).run(messages, tools=[read_log])
    model.tools = [read_log]
    CompactingChatGenerator(model, SlidingWindowCompactor(), context_window=window).run(messages)
    assert [len(request) < len(messages) for request in model.requests] == [False, True, True]


def test_a_broken_history_is_repaired():
    orphan = ChatMessage.from_tool("sunny", origin=ToolCall("weather", {}, id="gone"))
    messages = [*chat(2)[:-1], orphan, ChatMessage.from_user("And today?")]
    with StrictOpenAIServer(["Sunny."] * 2) as server:
        generator = CompactingChatGenerator(openai_generator(server), context_window=100_000)
        assert generator.run(messages)["replies"][0].text == "Sunny."
        with pytest.raises(openai.BadRequestError):
            CompactingChatGenerator(openai_generator(server), context_window=100_000, repair=False).run(messages)


def test_what_fails_in_compacting_ends_no_call():
    class Broken(EstimateTokenCounter):
        def count(self, messages, tools=None):
            raise OSError("no")

    class Failing:
        def compact(self, messages, target_tokens, token_counter):
            raise OSError("no")

    model = ScriptedChatGenerator(lambda number, messages: ChatMessage.from_assistant("Yes."))
    for options in ({"token_counter": Broken()}, {"compactor": Failing()}):
        generator = CompactingChatGenerator(model, context_window=3_000, last_resort=False, **options)
        assert generator.run(chat(80))["replies"][0].text == "Yes."


def test_what_can_never_fit_is_said_before_anything_is_sent():
    model = ScriptedChatGenerator(lambda number, messages: ChatMessage.from_assistant("Yes."))
    generator = CompactingChatGenerator(model, context_window=100)
    with pytest.raises(ContextWindowError, match="message is number 0"):
        generator.run([pin(ChatMessage.from_user("All of this has to stay. " * 50))])
    assert not model.requests


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context_window": 0}, "`context_window` must be at least 1.*got 0"),
        ({"max_retries": -1}, "`max_retries` must be at least 0, got -1"),
        ({"compact_to": 0.9}, "compact_to=0.9 and compact_at=0.7"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CompactingChatGenerator(Plain(), **{"context_window": 1_000, **options})


async def test_it_warms_up_and_closes_what_it_holds():
    done = []

    class Resource(Plain):
        def warm_up(self):
            done.append("warm_up")

        async def warm_up_async(self):
            done.append("warm_up_async")

        def close(self):
            done.append("close")

        async def close_async(self):
            done.append("close_async")

    generator = CompactingChatGenerator(Resource(), SlidingWindowCompactor(), context_window=1_000)
    generator.warm_up()
    await generator.warm_up_async()
    generator.close()
    await generator.close_async()
    assert done == ["warm_up", "warm_up_async", "close", "close_async"]


def test_a_pipeline_with_it_survives_yaml():
    wrapped = OpenAIChatGenerator(api_key=Secret.from_env_var("SOME_KEY", strict=False), model="scripted")
    generator = CompactingChatGenerator(
        wrapped,
        SlidingWindowCompactor(min_keep_steps=3),
        context_window=5_000,
        compact_at=0.8,
        compact_to=0.3,
        reserve_tokens=100,
        last_resort=False,
        repair=False,
        max_retries=4,
        is_context_overflow=is_context_overflow,
    )
    pipeline = Pipeline()
    pipeline.add_component("llm", generator)
    loaded = Pipeline.loads(pipeline.dumps()).get_component("llm")
    assert loaded.to_dict() == generator.to_dict()
    assert isinstance(loaded.chat_generator, OpenAIChatGenerator)
    assert loaded.compactor.min_keep_steps == 3
    assert loaded.is_context_overflow is is_context_overflow
    assert (loaded.window, loaded.max_retries) == (generator.window, 4)
    plain = CompactingChatGenerator(wrapped, context_window=5_000)
    assert CompactingChatGenerator.from_dict(plain.to_dict()).to_dict() == plain.to_dict()


def test_in_a_pipeline_it_goes_on_from_what_it_compacted():
    with StrictOpenAIServer(lambda index, messages: f"Answer {index}.", context_window=2_000) as server:
        pipeline = Pipeline()
        generator = CompactingChatGenerator(openai_generator(server), SlidingWindowCompactor(), context_window=50_000)
        pipeline.add_component("llm", generator)
        messages = chat(60)
        for turn in range(5):
            result = pipeline.run({"llm": {"messages": messages, "tools_strict": False}})
            messages = [*messages, *result["llm"]["replies"], ChatMessage.from_user(f"And on day {turn}?")]
        assert len(server.errors) == 1


def test_a_run_of_tool_steps_without_an_agent():
    model = ScriptedChatGenerator(lambda number, messages: ChatMessage.from_assistant("All is well."))
    generator = CompactingChatGenerator(model, SlidingWindowCompactor(), context_window=2_000)
    generator.run(run_of(40))
    assert "Audit every service." in texts(model.requests[0])


def test_a_counter_and_a_compactor_that_are_falsy_are_used_all_the_same():
    class Empty:
        def __len__(self):
            return 0

    class EmptyCounter(Empty, EstimateTokenCounter):
        pass

    class EmptyCompactor(Empty, SlidingWindowCompactor):
        pass

    counter, compactor = EmptyCounter(), EmptyCompactor()
    model = ScriptedChatGenerator(lambda number, messages: ChatMessage.from_assistant("Yes."))
    generator = CompactingChatGenerator(model, compactor, context_window=1_000, token_counter=counter)
    assert generator.token_counter is counter
    assert generator.compactor is compactor


def test_a_copy_begins_without_what_is_known():
    generator = CompactingChatGenerator(MockChatGenerator("Hi."), context_window=500)
    generator.run(messages=chat(20))
    for copied in (copy.deepcopy(generator), pickle.loads(pickle.dumps(generator))):
        assert copied.run(messages=chat(20))["replies"][0].text == "Hi."
