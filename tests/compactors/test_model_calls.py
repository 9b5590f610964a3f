# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import asyncio
import threading

import pytest
from haystack.dataclasses import ChatMessage

from haystack_compaction.compactors.model_calls import ModelCaller
from haystack_compaction.pass_context import PassContext, entered

PROMPTS = [[ChatMessage.from_user(f"Prompt {number}")] for number in range(20)]


class Echo:
    """Says what it was asked. Notes how many calls there were, and how many at a time."""

    def __init__(self, release=None):
        self.release = release
        self.calls = self.running = self.most_running = 0
        self._lock = threading.Lock()

    def run(self, messages):
        with self._lock:
            self.calls += 1
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        if self.release is not None:
            self.release.wait(5)
        with self._lock:
            self.running -= 1
        if messages[-1].text.endswith("13"):
            raise ValueError("an unlucky number")
        return {"replies": [ChatMessage.from_assistant(messages[-1].text, meta={"usage": {"total_tokens": 3}})]}


class AsyncEcho(Echo):
    async def run_async(self, messages):
        self.calls += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0.01 if self.release is None else 5)
        self.running -= 1
        if messages[-1].text.endswith("13"):
            raise ValueError("an unlucky number")
        return {"replies": [ChatMessage.from_assistant(messages[-1].text, meta={"usage": {"total_tokens": 3}})]}


def ask(generator, how, *, timeout=5.0):
    caller = ModelCaller(generator, timeout=timeout)
    context = PassContext()
    with entered(context):
        replies = caller.ask(PROMPTS) if how == "sync" else asyncio.run(caller.ask_async(PROMPTS))
    return replies, context


CALLED = [(Echo, "sync"), (Echo, "async"), (AsyncEcho, "async")]


@pytest.mark.parametrize(("model", "how"), CALLED, ids=["sync", "async in threads", "async"])
def test_replies_come_in_the_order_of_the_prompts_and_at_most_eight_at_a_time(model, how):
    generator = model()
    replies, context = ask(generator, how)
    texts = [reply.text if isinstance(reply, ChatMessage) else str(reply) for reply in replies]
    assert texts == [f"Prompt {n}" if n != 13 else "an unlucky number" for n in range(20)]
    assert generator.most_running <= 8
    assert (context.llm_calls, context.model_failures) == (20, 1)
    assert context.llm_usage == {"total_tokens": 3 * 19}


@pytest.mark.parametrize(("model", "how"), CALLED, ids=["sync", "async in threads", "async"])
def test_what_was_not_begun_in_time_is_never_asked(model, how):
    release = threading.Event()
    generator = model(release)
    before = set(threading.enumerate())
    replies, context = ask(generator, how, timeout=0.05)
    assert [str(reply) for reply in replies] == ["no reply within 0.05 seconds"] * 20
    assert context.model_failures == 20
    release.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
    assert generator.calls == 8
