# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
What a compaction costs beside counting the conversation once with the same counter.

Run `python benchmarks/speed.py`. Every figure is the best of several runs, in processor time.
"""

import argparse
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from contenders import Make, haystack_compactors, our_compactors
from haystack.dataclasses import ChatMessage
from haystack.token_counters import ApproximateTokenCounter, TokenCounter
from measure import CannedModel, conversation, header, quiet, row, seconds
from peers import langchain_message

from haystack_compaction import EstimateTokenCounter

LARGE = 12_000
SHARES = (0.2, 0.5, 0.8)

# What would take longer than this many seconds is measured at the small size only.
PATIENCE = 3.0

#: Compacts messages to so many tokens by a counter.
Strategy = Callable[[list[ChatMessage], int, TokenCounter], object]


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=LARGE)
    large = parser.parse_args().messages
    quiet()
    print(f"A cold `compact` of {large:,} messages down to a share of their tokens, as a multiple of counting them")
    print("once with the same counter; *growth* is the time over that of a tenth of the messages. In brackets: what")
    print(
        "would take too long, and so is the multiple at a tenth of the messages; at all of them it is about ten times"
    )
    print("as large.")
    for counter in (ApproximateTokenCounter(), EstimateTokenCounter()):
        _print_table(counter, conversation(large), conversation(large // 10))


def _print_table(counter: TokenCounter, long: list[ChatMessage], short: list[ChatMessage]) -> None:
    """One row for each strategy."""
    counting_long, counting_short = (seconds(lambda _, some=some: counter.count(some)) for some in (long, short))
    tokens_long, tokens_short = counter.count(long), counter.count(short)
    print(f"\n{type(counter).__name__}: counting takes {counting_long / len(long) * 1e6:.1f} µs a message\n")
    print(header(["strategy", *(f"to {share:.0%}" for share in SHARES), "growth"]))
    for name, strategy in strategies().items():
        cells: list[str] = []
        growth: list[float] = []
        for share in SHARES:
            quick = _cost(strategy, short, int(tokens_short * share), counter)
            if quick * (len(long) / len(short)) ** 2 > PATIENCE and name.startswith("Haystack"):
                cells.append(f"({quick / counting_short:.0f})")
                continue
            slow = _cost(strategy, long, int(tokens_long * share), counter)
            cells.append(f"{slow / counting_long:.2f}")
            growth.append(slow / quick)
        print(row([name, *cells, f"{max(growth):.1f}" if growth else "-"]), flush=True)


def strategies() -> dict[str, Strategy]:
    """What is compared."""
    named = {
        **our_compactors(min_tokens=50, summarizer_context_window=10**7),
        **{f"Haystack's {name}": make for name, make in haystack_compactors(min_tokens=50).items()},
    }
    strategies = {name: compacting_with(make) for name, make in named.items()}
    with suppress(ImportError):
        strategies["LangChain's trim_messages"] = langchain_trim()
    return strategies


def compacting_with(make: Make) -> Strategy:
    return lambda messages, target_tokens, counter: make(CannedModel()).compact(messages, target_tokens, counter)


def langchain_trim() -> Strategy:
    """LangChain's `trim_messages`, on messages that stand for ours and are counted as ours."""
    from langchain_core.messages import trim_messages

    known: dict[int, list[Any]] = {}

    def trim(messages: list[ChatMessage], target_tokens: int, counter: TokenCounter) -> object:
        if id(messages) not in known:
            known[id(messages)] = [langchain_message(message, str(index)) for index, message in enumerate(messages)]
        return trim_messages(
            known[id(messages)],
            max_tokens=target_tokens,
            token_counter=lambda some: counter.count([messages[int(message.id)] for message in some]),
            strategy="last",
            start_on="human",
            include_system=True,
        )

    return trim


def _cost(strategy: Strategy, messages: list[ChatMessage], target_tokens: int, counter: TokenCounter) -> float:
    return seconds(lambda _: strategy(messages, target_tokens, counter), repeats=3)


if __name__ == "__main__":
    main()
