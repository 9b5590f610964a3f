# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Strategies that call a model are generators: they yield a batch of prompts and are sent the replies."""

import asyncio
import contextvars
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

from haystack.components.generators.chat.types import ChatGenerator
from haystack.dataclasses import ChatMessage

from haystack_compaction.pass_context import current_pass

#: A prompt is what a chat generator takes, a batch is as many of them as can be answered at the same time.
Prompt: TypeAlias = list[ChatMessage]
#: A reply is the model's message, or what went wrong instead.
Reply: TypeAlias = ChatMessage | Exception
#: Yields batches of prompts, is sent one reply for each prompt, and returns the conversation to go on with.
Rewriting: TypeAlias = Generator[list[Prompt], list[Reply], list[ChatMessage] | None]

_MAX_WORKERS = 8


class ModelCaller:
    """
    Answers batches of prompts with a chat generator. Nothing that the generator does raises out of it.

    :param chat_generator: The chat generator.
    :param timeout: How long a batch may take, in seconds.
    """

    def __init__(self, chat_generator: ChatGenerator, *, timeout: float) -> None:
        self.chat_generator = chat_generator
        self.timeout = timeout

    def ask(self, prompts: list[Prompt]) -> list[Reply]:
        """
        Answer a batch, several prompts at a time.

        :param prompts: The prompts.
        :returns: One reply for each prompt, in order.
        """
        replies: list[Reply] = [TimeoutError(f"no reply within {self.timeout} seconds")] * len(prompts)
        free_workers = threading.Semaphore(_MAX_WORKERS)

        def answer(position: int, prompt: Prompt) -> None:
            with free_workers:
                try:
                    replies[position] = self._call(prompt)
                except Exception as error:
                    replies[position] = error

        deadline = time.monotonic() + self.timeout
        # Threads of our own, since a pool would keep the process alive for a call that hangs.
        workers = [
            threading.Thread(target=contextvars.copy_context().run, args=(answer, position, prompt), daemon=True)
            for position, prompt in enumerate(prompts)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(max(deadline - time.monotonic(), 0))
        return _recorded(list(replies))

    async def ask_async(self, prompts: list[Prompt]) -> list[Reply]:
        """
        Answer a batch concurrently.

        :param prompts: The prompts.
        :returns: One reply for each prompt, in order.
        """
        return _recorded(await asyncio.gather(*map(self._reply_async, prompts)))

    def _call(self, prompt: Prompt) -> ChatMessage:
        return _first_reply(self.chat_generator.run(messages=prompt))

    async def _reply_async(self, prompt: Prompt) -> Reply:
        try:
            return await asyncio.wait_for(self._call_async(prompt), self.timeout)
        except Exception as error:
            return error

    async def _call_async(self, prompt: Prompt) -> ChatMessage:
        run_async = getattr(self.chat_generator, "run_async", None)
        if run_async is None:
            return await asyncio.to_thread(self._call, prompt)
        return _first_reply(await run_async(messages=prompt))


def drive(rewriting: Rewriting, model: ModelCaller | None) -> list[ChatMessage] | None:
    """
    Run a strategy to its end.

    :param rewriting: The strategy at work.
    :param model: What answers its prompts; a strategy that asks nothing needs none.
    :returns: What the strategy returned.
    """
    try:
        prompts = next(rewriting)
        while True:
            prompts = rewriting.send(_ask_none(prompts) if model is None else model.ask(prompts))
    except StopIteration as finished:
        compacted: list[ChatMessage] | None = finished.value
        return compacted


async def drive_async(rewriting: Rewriting, model: ModelCaller | None) -> list[ChatMessage] | None:
    """
    Run a strategy to its end without blocking the event loop: neither by its own work nor by the model's.

    :param rewriting: The strategy at work.
    :param model: What answers its prompts; a strategy that asks nothing needs none.
    :returns: What the strategy returned.
    """
    replies: list[Reply] | None = None
    while True:
        step = await asyncio.to_thread(_advance, rewriting, replies)
        if isinstance(step, _Finished):
            return step.compacted
        replies = _ask_none(step) if model is None else await model.ask_async(step)


@dataclass
class _Finished:
    compacted: list[ChatMessage] | None


def _advance(rewriting: Rewriting, replies: list[Reply] | None) -> list[Prompt] | _Finished:
    """One step of a generator. Its end is an object here, since `StopIteration` cannot leave an awaited thread."""
    try:
        return next(rewriting) if replies is None else rewriting.send(replies)
    except StopIteration as finished:
        return _Finished(finished.value)


def _ask_none(prompts: list[Prompt]) -> list[Reply]:
    return [RuntimeError("this compactor has no chat generator") for _ in prompts]


def _first_reply(result: dict[str, Any]) -> ChatMessage:
    reply: ChatMessage = result["replies"][0]
    return reply


def _recorded(replies: list[Reply]) -> list[Reply]:
    context = current_pass()
    for reply in replies:
        context.record_llm_call(reply.meta.get("usage") if isinstance(reply, ChatMessage) else None)
    return replies
