# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Telling others that a compaction took place."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

from haystack import logging

from haystack_compaction.report import CompactionReport

logger = logging.getLogger(__name__)

#: Called with the report of each compaction that was tried. What it returns is of no importance.
OnCompaction: TypeAlias = Callable[[CompactionReport], "Awaitable[Any] | Any"]


@dataclass(frozen=True)
class CompactionEvent:
    """
    The call of a callback, as a step among passes, see `run_passes`. A callback that fails is logged.

    :param callback: The callback, a function or a coroutine function.
    :param report: What it is called with.
    """

    callback: OnCompaction
    report: CompactionReport

    def run(self) -> None:
        """Call it. A coroutine is run to its end on an event loop of its own."""
        try:
            if inspect.isawaitable(awaitable := self.callback(self.report)):
                # In a thread, since the caller's may have a running event loop.
                with ThreadPoolExecutor(max_workers=1) as executor:
                    executor.submit(asyncio.run, _awaited(awaitable)).result()
        except Exception:
            self._log()

    async def run_async(self) -> None:
        """Call it without blocking the event loop."""
        try:
            if inspect.iscoroutinefunction(self.callback):
                await self.callback(self.report)
            elif inspect.isawaitable(awaitable := await asyncio.to_thread(self.callback, self.report)):
                await awaitable
        except Exception:
            self._log()

    def _log(self) -> None:
        logger.exception("The callback {callback} failed; the run goes on without it.", callback=self.callback)


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
