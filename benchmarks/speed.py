# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What a compaction costs beside counting the conversation once, and what the hook costs while nothing is due."""

import gc
import platform
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version

import haystack.hooks.compaction as haystacks
from haystack.components.agents.state.state import State
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.token_counters import ApproximateTokenCounter, TokenCounter

from haystack_compaction import CompactionHook, EstimateTokenCounter, SlidingWindowCompactor

LARGE, SMALL = 12_000, 1_200


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


def seconds(work: Callable[[], object], *, repeats: int = 5) -> float:
    """The best of several runs, which is the one that was disturbed least."""
    best = float("inf")
    for _ in range(repeats):
        gc.collect()
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


def compaction_costs(length: int, share: float, counter: TokenCounter) -> tuple[float, float, float]:
    """Seconds for counting once, for our sliding window and for Haystack's."""
    messages = conversation(length)
    target = int(counter.count(messages) * share)
    return (
        seconds(lambda: counter.count(messages)),
        seconds(lambda: SlidingWindowCompactor().compact(messages, target, counter)),
        seconds(lambda: haystacks.SlidingWindowCompactor().compact(messages, target, counter)),
    )


def compaction_row(share: float, counter: TokenCounter) -> str:
    _, small, _ = compaction_costs(SMALL, share, counter)
    counting, ours, theirs = compaction_costs(LARGE, share, counter)
    figures = f"{ours / counting:.2f} | {theirs / counting:.2f} | {ours / small:.1f}"
    return f"| {type(counter).__name__} | {share:.0%} | {figures} |"


def idle_row() -> str:
    messages = conversation(LARGE)

    def cost(hook: CompactionHook | haystacks.CompactionHook) -> float:
        state = State(schema={}, data={"messages": messages})
        hook.run(state)
        return seconds(lambda: hook.run(state), repeats=10)

    ours = cost(CompactionHook(SlidingWindowCompactor(), context_window=10**9))
    theirs = cost(haystacks.CompactionHook(haystacks.SlidingWindowCompactor(), context_window=10**9))
    return f"| {ours * 1e3:.2f} ms | {theirs * 1e3:.2f} ms | {theirs / ours:.0f} |"


def main() -> None:
    warnings.simplefilter("ignore")
    print(f"haystack-ai {version('haystack-ai')}, Python {platform.python_version()}, {platform.machine()}\n")
    print(
        f"A cold `compact` of {LARGE:,} messages, as a multiple of counting them once with the same counter; growth is"
    )
    print(f"the time over that of {SMALL:,} messages.\n")
    print("| counter | target | ours | Haystack's | growth of ours |\n|---|---|---|---|---|")
    for counter in (ApproximateTokenCounter(), EstimateTokenCounter()):
        for share in (0.2, 0.5, 0.8):
            print(compaction_row(share, counter))
    print(f"\nThe hook below its trigger at {LARGE:,} messages, second call on, without usage from the provider.\n")
    print("| ours | Haystack's | ratio |\n|---|---|---|")
    print(idle_row())


if __name__ == "__main__":
    main()
