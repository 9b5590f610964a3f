# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Strategies that call a model are generators: they yield a batch of prompts and are sent the replies."""

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from haystack.components.generators.chat.types import ChatGenerator
from haystack.dataclasses import ChatMessage

from haystack_compaction.pass_context import current_pass
from haystack_compaction.stepping import run_to_end, run_to_end_async

#: A prompt is what a chat generator takes, a batch is as many of them as can be answered at the same time.
Prompt: TypeAlias = list[ChatMessage]
#: A reply is the model's message, or what went wrong instead.
Reply: TypeAlias = ChatMessage | Exception
#: Yields batches of prompts, is sent one reply for each prompt, and returns the conversation to go on with.
Rewriting: TypeAlias = Generator[list[Prompt], list[Reply], list[ChatMessage] | None]

_MAX_WORKERS = 8

# Ctrl-C can be missed in the moment in which a wait begins, so that it begins anew after so many seconds.
_LONGEST_WAIT = 0.5


class ModelCaller:
    """
    Answers batches of prompts with a chat generator. Nothing that the generator does raises out of it.

    While a model that failed is being left alone, see `PassContext.model_is_paused`, every reply is an error.

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
        if current_pass().model_is_paused:
            return _paused(prompts)
        replies: list[Reply] = [self._too_late()] * len(prompts)
        free_workers = threading.Semaphore(_MAX_WORKERS)
        deadline = time.monotonic() + self.timeout

        def answer(position: int, prompt: Prompt) -> None:
            with free_workers:
                # Nobody waits for what is only begun by then, and it would be paid for.
                if time.monotonic() >= deadline:
                    return
                try:
                    replies[position] = self._call(prompt)
                except Exception as error:
                    replies[position] = error

        # Threads of our own, since a pool would keep the process alive for a call that hangs.
        workers = [
            threading.Thread(target=contextvars.copy_context().run, args=(answer, position, prompt), daemon=True)
            for position, prompt in enumerate(prompts)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            while worker.is_alive() and (left := deadline - time.monotonic()) > 0:
                worker.join(min(left, _LONGEST_WAIT))
        return _recorded(list(replies))

    async def ask_async(self, prompts: list[Prompt]) -> list[Reply]:
        """
        Answer a batch concurrently, as many prompts at a time as `ask` does.

        :param prompts: The prompts.
        :returns: One reply for each prompt, in order.
        """
        if current_pass().model_is_paused:
            return _paused(prompts)
        free_workers = asyncio.Semaphore(_MAX_WORKERS)
        deadline = time.monotonic() + self.timeout

        async def answer(prompt: Prompt) -> ChatMessage:
            async with free_workers:
                if time.monotonic() >= deadline:
                    raise self._too_late()
                return await self._call_async(prompt)

        async def reply(prompt: Prompt) -> Reply:
            try:
                return await asyncio.wait_for(answer(prompt), self.timeout)
            except asyncio.TimeoutError:
                return self._too_late()
            except Exception as error:
                return error

        return _recorded(await asyncio.gather(*map(reply, prompts)))

    def _too_late(self) -> TimeoutError:
        return TimeoutError(f"no reply within {self.timeout} seconds")

    def _call(self, prompt: Prompt) -> ChatMessage:
        return _first_reply(self.chat_generator.run(messages=prompt))

    async def _call_async(self, prompt: Prompt) -> ChatMessage:
        run_async = getattr(self.chat_generator, "run_async", None)
        if run_async is None:
            return await _in_daemon_thread(lambda: self._call(prompt))
        return _first_reply(await run_async(messages=prompt))


def drive(rewriting: Rewriting, model: ModelCaller | None) -> list[ChatMessage] | None:
    """
    Run a strategy to its end.

    :param rewriting: The strategy at work.
    :param model: What answers its prompts; a strategy that asks nothing needs none.
    :returns: What the strategy returned.
    """
    return run_to_end(rewriting, _ask_none if model is None else model.ask)


async def drive_async(rewriting: Rewriting, model: ModelCaller | None) -> list[ChatMessage] | None:
    """
    Run a strategy to its end without blocking the event loop: neither by its own work nor by the model's.

    :param rewriting: The strategy at work.
    :param model: What answers its prompts; a strategy that asks nothing needs none.
    :returns: What the strategy returned.
    """
    return await run_to_end_async(rewriting, _ask_none_async if model is None else model.ask_async)


async def _in_daemon_thread(call: Callable[[], ChatMessage]) -> ChatMessage:
    """Like `asyncio.to_thread`, but neither event loop nor process waits at its end for a call that hangs."""
    loop = asyncio.get_running_loop()
    reply: asyncio.Future[ChatMessage] = loop.create_future()

    def settle(done: Callable[[], None]) -> None:
        if not reply.done():
            done()

    def work() -> None:
        done: Callable[[], None]
        try:
            done = partial(reply.set_result, call())
        except Exception as error:
            done = partial(reply.set_exception, error)
        # The loop may be gone by the time that a call comes back.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, done)

    threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True).start()
    return await reply


def _paused(prompts: list[Prompt]) -> list[Reply]:
    return [RuntimeError("the model failed not long ago and is left alone for a while") for _ in prompts]


def _ask_none(prompts: list[Prompt]) -> list[Reply]:
    return [RuntimeError("this compactor has no chat generator") for _ in prompts]


async def _ask_none_async(prompts: list[Prompt]) -> list[Reply]:
    return _ask_none(prompts)


def _first_reply(result: dict[str, Any]) -> ChatMessage:
    reply: ChatMessage = result["replies"][0]
    return reply


def _recorded(replies: list[Reply]) -> list[Reply]:
    context = current_pass()
    for reply in replies:
        context.model_failures += isinstance(reply, Exception)
        context.record_llm_call(reply.meta.get("usage") if isinstance(reply, ChatMessage) else None)
    return replies
