# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
What a compaction costs beside counting the conversation once, and what the hook costs while nothing is due.

Run `python benchmarks/speed.py`. Every figure is the best of several runs, in processor time.
"""

import gc
import logging
import platform
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import haystack.hooks.compaction as haystacks
from haystack.components.agents.state.state import State
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.token_counters import ApproximateTokenCounter, TokenCounter

from haystack_compaction import (
    CompactionHook,
    EstimateTokenCounter,
    HybridCompactor,
    ImportanceScoringCompactor,
    SelectivePruningCompactor,
    SlidingWindowCompactor,
    SummarizationCompactor,
    ToolResultPruningCompactor,
    TruncationCompactor,
)

LARGE, SMALL = 12_000, 1_200
SHARES = (0.2, 0.5, 0.8)

# What would take longer than this many seconds is measured at the small size only.
PATIENCE = 3.0

#: Compacts messages to so many tokens by a counter.
Strategy = Callable[[list[ChatMessage], int, TokenCounter], object]


class CannedModel:
    """Answers every prompt with the same summary."""

    def run(self, messages: list[ChatMessage], **options: Any) -> dict[str, Any]:
        summary = "The user asks how services do, one by one. The services looked at so far pass all of their checks."
        return {"replies": [ChatMessage.from_assistant(summary)]}

    async def run_async(self, messages: list[ChatMessage], **options: Any) -> dict[str, Any]:
        return self.run(messages, **options)


def main() -> None:
    """Run the benchmark and print its tables."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    print(f"haystack-ai {version('haystack-ai')}, Python {platform.python_version()}, {platform.machine()}\n")
    print(
        f"A cold `compact` of {LARGE:,} messages down to a share of their tokens, as a multiple of counting them once"
    )
    print(
        f"with the same counter; growth is the time over that of {SMALL:,} messages. In brackets: what would take too"
    )
    print(
        f"long, and so is the multiple at {SMALL:,} messages; ten times the messages make it about ten times as large."
    )
    for counter in (ApproximateTokenCounter(), EstimateTokenCounter()):
        print_table(counter)
    print(f"\nThe hook below its trigger at {LARGE:,} messages, second call on, without usage from the provider.\n")
    print("| ours | Haystack's | ratio |\n|---|---|---|")
    print(idle_row())


def print_table(counter: TokenCounter) -> None:
    """One row for each strategy."""
    conversations = {length: conversation(length) for length in (SMALL, LARGE)}
    counting = {length: seconds(lambda: counter.count(messages)) for length, messages in conversations.items()}
    tokens = {length: counter.count(messages) for length, messages in conversations.items()}
    print(f"\n{type(counter).__name__}: counting takes {counting[LARGE] / LARGE * 1e6:.1f} µs a message\n")
    print("| strategy | " + " | ".join(f"to {share:.0%}" for share in SHARES) + " | growth |")
    print("|---" * (len(SHARES) + 2) + "|")
    for name, strategy in strategies().items():
        cells: list[str] = []
        growth: list[float] = []
        for share in SHARES:
            cost = {SMALL: cost_of(strategy, conversations[SMALL], int(tokens[SMALL] * share), counter)}
            if cost[SMALL] * (LARGE / SMALL) ** 2 > PATIENCE and name.startswith("Haystack"):
                cells.append(f"({cost[SMALL] / counting[SMALL]:.0f})")
                continue
            cost[LARGE] = cost_of(strategy, conversations[LARGE], int(tokens[LARGE] * share), counter)
            cells.append(f"{cost[LARGE] / counting[LARGE]:.2f}")
            growth.append(cost[LARGE] / cost[SMALL])
        print(f"| {name} | {' | '.join(cells)} | {f'{max(growth):.1f}' if growth else '-'} |", flush=True)


def strategies() -> dict[str, Strategy]:
    """What is compared; each is made anew for every run, so that it remembers nothing."""
    model = CannedModel()
    compactors: dict[str, Callable[[], Any]] = {
        "sliding_window": SlidingWindowCompactor,
        "selective_pruning": SelectivePruningCompactor,
        "tool_result_pruning": lambda: ToolResultPruningCompactor(min_tokens=50),
        "summarize_older, canned model": lambda: SummarizationCompactor(model, summarizer_context_window=10**7),
        "summarize_older, digest": SummarizationCompactor,
        "importance_scoring, built-in scorer": ImportanceScoringCompactor,
        "hybrid": HybridCompactor,
        "truncation": TruncationCompactor,
        "Haystack's sliding window": haystacks.SlidingWindowCompactor,
        "Haystack's tool result pruning": lambda: haystacks.ToolResultPruningCompactor(min_tokens=50),
    }
    with suppress(AttributeError):
        # Haystack has it from 3.2 on.
        summarizer = haystacks.SummarizationCompactor
        compactors["Haystack's summarization, canned model"] = lambda: summarizer(chat_generator=model)
    named = {name: compacting_with(make) for name, make in compactors.items()}
    with suppress(ImportError):
        named["LangChain's trim_messages"] = langchain_trim()
    return named


def compacting_with(make: Callable[[], Any]) -> Strategy:
    return lambda messages, target_tokens, counter: make().compact(messages, target_tokens, counter)


def langchain_trim() -> Strategy:
    """LangChain's `trim_messages`, on messages that stand for ours and are counted as ours."""
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage, trim_messages

    kinds = {"system": SystemMessage, "user": HumanMessage, "assistant": AIMessage}
    known: dict[int, list[Any]] = {}

    def converted(message: ChatMessage, index: int) -> Any:
        if message.tool_call_result:
            result = message.tool_call_result
            return ToolMessage(str(result.result), tool_call_id=result.origin.id or "", id=str(index))
        calls = [{"name": call.tool_name, "args": call.arguments, "id": call.id} for call in message.tool_calls]
        return kinds[message.role.value](message.text or "", id=str(index), **({"tool_calls": calls} if calls else {}))

    def trim(messages: list[ChatMessage], target_tokens: int, counter: TokenCounter) -> object:
        theirs = known.setdefault(id(messages), []) or [converted(m, index) for index, m in enumerate(messages)]
        known[id(messages)] = theirs
        return trim_messages(
            theirs,
            max_tokens=target_tokens,
            token_counter=lambda some: counter.count([messages[int(message.id)] for message in some]),
            strategy="last",
            start_on="human",
            include_system=True,
        )

    return trim


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


def cost_of(strategy: Strategy, messages: list[ChatMessage], target_tokens: int, counter: TokenCounter) -> float:
    return seconds(lambda: strategy(messages, target_tokens, counter), repeats=3)


def seconds(work: Callable[[], object], *, repeats: int = 7) -> float:
    """The best of several runs, which is the one that was disturbed least."""
    best = float("inf")
    for _ in range(repeats):
        gc.collect()
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
    return best


def idle_row() -> str:
    messages = conversation(LARGE)

    def cost(hook: CompactionHook | haystacks.CompactionHook) -> float:
        state = State(schema={}, data={"messages": messages})
        hook.run(state)
        return seconds(lambda: hook.run(state), repeats=10)

    ours = cost(CompactionHook(SlidingWindowCompactor(), context_window=10**9))
    theirs = cost(haystacks.CompactionHook(haystacks.SlidingWindowCompactor(), context_window=10**9))
    return f"| {ours * 1e3:.2f} ms | {theirs * 1e3:.2f} ms | {theirs / ours:.0f} |"


if __name__ == "__main__":
    main()
