# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Advancing a generator without blocking the event loop."""

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

_YieldT = TypeVar("_YieldT")
_ReturnT = TypeVar("_ReturnT")


@dataclass(frozen=True)
class Finished(Generic[_ReturnT]):
    """
    The end of a generator, as an object, since `StopIteration` cannot leave an awaited thread.

    :param value: What the generator returned.
    """

    value: _ReturnT


async def advance_in_thread(
    generator: Generator[_YieldT, Any, _ReturnT], sent: Any = None
) -> "_YieldT | Finished[_ReturnT]":
    """
    Run a generator up to its next `yield`, in a thread.

    :param generator: The generator.
    :param sent: What to send it; None to start it.
    :returns: What it yielded, or that it has finished.
    """
    return await asyncio.to_thread(_advance, generator, sent)


def _advance(generator: Generator[_YieldT, Any, _ReturnT], sent: Any) -> "_YieldT | Finished[_ReturnT]":
    try:
        return generator.send(sent)
    except StopIteration as finished:
        return Finished(finished.value)
