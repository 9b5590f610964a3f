# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What is left after a compaction, in the provider's tokens, whatever it writes in and however it reports."""

import pytest
from haystack.components.agents.state.state import State
from haystack.dataclasses import ChatMessage, ImageContent, ToolCall
from survival import provider_tokens, text_of

from haystack_compaction import CompactionHook, SlidingWindowCompactor
from haystack_compaction.tokens.calibration import Calibration, prompt_sizes, total_size

WINDOW = 20_000
TARGET = int(0.4 * WINDOW)


class Provider:
    """Prices requests, and keeps what it knows of the last one in its cache."""

    def __init__(self, image_tokens=765):
        self.image_tokens = image_tokens
        self.cached = []

    def tokens(self, messages):
        return sum(map(self._tokens, messages))

    def _tokens(self, message):
        parts = [message.text or "", *(str(call.arguments) for call in message.tool_calls)]
        parts += [result.result for result in message.tool_call_results if isinstance(result.result, str)]
        images = len(message.images) + sum(
            isinstance(part, ImageContent)
            for result in message.tool_call_results
            if not isinstance(result.result, str)
            for part in result.result
        )
        return 4 + sum(map(provider_tokens, parts)) + images * self.image_tokens

    def reply(self, message, usage, messages):
        """The message with what a client reports for it."""
        prompt, completion = self.tokens(messages), self.tokens([message])
        shared = 0
        for known, sent in zip(self.cached, messages, strict=False):
            if known is not sent:
                break
            shared += self.tokens([sent])
        self.cached = list(messages)
        reported = usage(prompt, completion, shared)
        return ChatMessage.from_assistant(tool_calls=message.tool_calls, meta={"usage": reported} if reported else {})


def full(prompt, completion, cached):
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def openai_full(prompt, completion, cached):
    return {**full(prompt, completion, cached), "prompt_tokens_details": {"cached_tokens": cached}}


def openai_net(prompt, completion, cached):
    return {**full(prompt - cached, completion, cached), "prompt_tokens_details": {"cached_tokens": cached}}


def bedrock(prompt, completion, cached):
    rest = (prompt - cached) // 2
    return {
        "prompt_tokens": prompt - cached - rest,
        "completion_tokens": completion,
        "total_tokens": prompt - cached - rest + completion,
        "cacheReadInputTokens": cached,
        "cacheWriteInputTokens": rest,
    }


def anthropic_net(prompt, completion, cached):
    rest = (prompt - cached) // 2
    return {
        "input_tokens": prompt - cached - rest,
        "output_tokens": completion,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": rest,
    }


def anthropic_added(prompt, completion, cached):
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": (prompt - cached) // 2,
    }


def total_only(prompt, completion, cached):
    return {"prompt_tokens": None, "total_tokens": prompt + completion}


def much_thinking(prompt, completion, cached):
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion + 6_000,
        "total_tokens": prompt + completion + 6_000,
    }


def missing(prompt, completion, cached):
    return None


def silently_net(prompt, completion, cached):
    """What the cache served is nowhere to be seen."""
    return {"prompt_tokens": prompt - cached, "completion_tokens": completion}


class Late:
    """Reports in the first replies and never again."""

    def __init__(self, replies):
        self.left = replies

    def __call__(self, prompt, completion, cached):
        self.left -= 1
        return full(prompt, completion, cached) if self.left >= 0 else None


def run(provider, usage, outputs, steps=200):
    """The true sizes of a run after its compactions, and the largest there was."""
    hook = CompactionHook(SlidingWindowCompactor(), context_window=WINDOW)
    task = ChatMessage.from_user("Audit every service.")
    state = State(schema={"context_tokens": {"type": int}}, data={"messages": [task], "context_tokens": 0})
    left, largest = [], 0
    for number in range(steps):
        before = len(state.data["messages"])
        hook.run(state)
        messages = state.data["messages"]
        size = provider.tokens(messages)
        largest = max(largest, size)
        if len(messages) < before:
            left.append(size)
        call = ToolCall("check", {"service": number}, id=f"c{number}")
        reply = provider.reply(ChatMessage.from_assistant(tool_calls=[call]), usage, messages)
        reported = reply.meta.get("usage", {})
        # What Haystack's Agent makes of it.
        tokens = (reported.get("prompt_tokens") or reported.get("input_tokens") or 0) + (
            reported.get("completion_tokens") or reported.get("output_tokens") or 0
        )
        if tokens:
            state.set("context_tokens", tokens)
        state.set("messages", [reply, ChatMessage.from_tool(outputs(number), origin=call)])
        if len(left) == 3:
            break
    return left, largest


USAGES = [full, openai_full, openai_net, bedrock, anthropic_net, anthropic_added, total_only, much_thinking]


@pytest.mark.parametrize("usage", USAGES, ids=lambda usage: usage.__name__)
@pytest.mark.parametrize("kind", ["english", "chinese", "russian", "json", "base64"])
def test_what_remains_is_what_was_asked_for(kind, usage):
    left, largest = run(Provider(), usage, lambda number: text_of(kind, 300))
    assert len(left) == 3
    assert all(0.7 * TARGET <= size <= 1.08 * TARGET for size in left), left
    assert largest <= 0.8 * WINDOW


@pytest.mark.parametrize("usage", USAGES, ids=lambda usage: usage.__name__)
@pytest.mark.parametrize("image_tokens", [85, 258, 765, 1600])
def test_screenshots(image_tokens, usage):
    picture = ImageContent("aGk=", mime_type="image/png", validation=False)
    left, largest = run(Provider(image_tokens), usage, lambda number: [picture], steps=400)
    assert len(left) == 3
    assert all(0.7 * TARGET <= size <= 1.08 * TARGET for size in left), left
    assert largest <= 0.8 * WINDOW


@pytest.mark.parametrize("image_tokens", [85, 1600])
def test_screenshots_that_give_way_to_text(image_tokens):
    picture = ImageContent("aGk=", mime_type="image/png", validation=False)
    left, largest = run(
        Provider(image_tokens),
        full,
        lambda number: [picture] if number % 60 < 40 else text_of("english", 900),
        steps=150,
    )
    assert left
    assert largest <= WINDOW


@pytest.mark.parametrize("kind", ["english", "chinese", "russian", "json", "base64"])
@pytest.mark.parametrize(
    "usage", [missing, silently_net, Late(1), Late(10)], ids=["missing", "net", "late 1", "late 10"]
)
def test_a_report_that_is_missing_stale_or_too_low_leads_to_no_undercount(kind, usage):
    left, largest = run(Provider(), usage, lambda number: text_of(kind, 300))
    assert left
    assert largest <= WINDOW


def test_languages_in_turn():
    kinds = ["english", "chinese", "base64", "json", "russian"]
    left, largest = run(Provider(), full, lambda number: text_of(kinds[number // 12 % 5], 500))
    assert len(left) == 3
    assert all(0.6 * TARGET <= size <= 1.4 * TARGET for size in left), left
    assert largest <= WINDOW


@pytest.mark.parametrize(
    ("usage", "sizes"),
    [
        ({}, []),
        ({"prompt_tokens": None, "total_tokens": 90}, []),
        ({"prompt_tokens": True}, []),
        ({"prompt_tokens": 90}, [90]),
        ({"inputTokens": 90, "cacheReadInputTokens": 0}, [90]),
        ({"prompt_tokens": 90, "prompt_tokens_details": {"cached_tokens": 80}}, [90, 170]),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 80}}, [90]),
        ({"prompt_tokens": 62, "cacheReadInputTokens": 90_000, "cacheWriteInputTokens": 1_000}, [91_062]),
        ({"prompt_tokens": 62, "cacheReadInputTokens": 30, "completion_tokens": 5, "total_tokens": 97}, [92]),
        (
            {"prompt_tokens": 90, "cached_content_token_count": 40, "prompt_tokens_details": [{"modality": "TEXT"}]},
            [90, 130],
        ),
    ],
)
def test_what_a_usage_may_mean(usage, sizes):
    assert prompt_sizes(usage) == sizes


def test_a_total_is_all_that_some_report():
    assert total_size({"total_tokens": 12}) == 12
    assert total_size({}) == 0


def test_the_larger_of_reported_and_counted_wins_when_they_disagree_beyond_reason():
    def ratio(reported, counted, known=None, **options):
        return Calibration(known).learned([reported], counted=counted, context_window=200_000, **options).ratio

    assert ratio(62, 91_000, at_least=45_000) == 1.0
    assert ratio(62, 91_000, at_least=45_000, known=1.7) == 1.7
    assert ratio(62, 91_000, at_least=45_000, known=0.8) == 1.0
    assert ratio(10_000_000, 1_000) == 1.0
    # However little the messages say, what fits the window may have been sent.
    assert ratio(90_000, 1_000) == 90.0
