# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Running a generator to its end: each thing that it yields is answered, and the answer is sent to it."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

_YieldT = TypeVar("_YieldT")
_ReturnT = TypeVar("_ReturnT")


def run_to_end(generator: Generator[_YieldT, Any, _ReturnT], answer: Callable[[_YieldT], Any]) -> _ReturnT:
    """
    Run a generator to its end.

    :param generator: The generator.
    :param answer: Returns what to send for each thing that it yields.
    :returns: What the generator returns.
    """
    step = _advance(generator, None)
    while not isinstance(step, _Finished):
        step = _advance(generator, answer(step))
    return step.value


async def run_to_end_async(
    generator: Generator[_YieldT, Any, _ReturnT], answer: Callable[[_YieldT], Awaitable[Any]]
) -> _ReturnT:
    """
    Run a generator to its end without blocking the event loop: it does its own work in a thread.

    :param generator: The generator.
    :param answer: Returns what to send for each thing that it yields.
    :returns: What the generator returns.
    """
    step = await asyncio.to_thread(_advance, generator, None)
    while not isinstance(step, _Finished):
        step = await asyncio.to_thread(_advance, generator, await answer(step))
    return step.value


@dataclass(frozen=True)
class _Finished(Generic[_ReturnT]):
    """The end of a generator, as an object, since `StopIteration` cannot leave an awaited thread."""

    value: _ReturnT


def _advance(generator: Generator[_YieldT, Any, _ReturnT], sent: Any) -> "_YieldT | _Finished[_ReturnT]":
    try:
        return generator.send(sent)
    except StopIteration as finished:
        return _Finished(finished.value)
