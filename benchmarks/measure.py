# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What the benchmarks share: a clock, a plain conversation, a model that always says the same, and tables."""

import gc
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from haystack import component
from haystack.dataclasses import ChatMessage, ToolCall


@component
class CannedModel:
    """Answers every prompt with the same text, and counts them."""

    def __init__(self, text: str = "The user asks how services do, one by one. Those looked at so far pass.") -> None:
        self.text = text
        self.calls = 0

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]) -> dict[str, Any]:
        self.calls += 1
        return {"replies": [ChatMessage.from_assistant(self.text)]}


def conversation(length: int) -> list[ChatMessage]:
    """Turns of four messages: a question, a call, its result, an answer."""
    messages = [ChatMessage.from_system("You look after services. " * 10)]
    for turn in range(length // 4):
        call = ToolCall("search", {"query": f"state of service {turn}", "limit": 10}, id=f"call_{turn}")
        messages += [
            ChatMessage.from_user(f"Question {turn}: please find out how service {turn} does, and report in detail."),
            ChatMessage.from_assistant("Let me look.", tool_calls=[call]),
            ChatMessage.from_tool(f"line {turn} of the output, with numbers such as 1234 and words\n" * 6, origin=call),
            ChatMessage.from_assistant(f"Service {turn} is fine: all of its checks pass, nothing is left to report."),
        ]
    return [*messages, ChatMessage.from_user("And all of them together?")]


def seconds(work: Callable[[Any], object], prepare: Callable[[], Any] = lambda: None, *, repeats: int = 7) -> float:
    """
    The best of several runs in processor time, which is the one that was disturbed least.

    :param work: What is timed, given what was prepared for it.
    :param prepare: What comes before each run.
    """
    best = float("inf")
    for _ in range(repeats):
        prepared = prepare()
        gc.collect()
        started = time.process_time()
        work(prepared)
        best = min(best, time.process_time() - started)
    return best


def quiet() -> None:
    """Keep what libraries warn of and log out of the results."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)


def header(columns: Sequence[str]) -> str:
    """The first two lines of a table."""
    return f"{row(columns)}\n{'|---' * len(columns)}|"


def row(cells: Sequence[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"
