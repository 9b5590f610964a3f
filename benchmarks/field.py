# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
What a compaction costs in each library, how the cost grows, and what a step costs at which nothing is due.

Run `python benchmarks/field.py`. Libraries that are not installed are left out. Every figure is the best of several
runs, in processor time; nobody's time goes into turning messages into those of a library.
"""

import argparse

from haystack.dataclasses import ChatMessage
from measure import conversation, header, quiet, row, seconds
from peers import Peer, all_peers

LARGE, SMALL = 12_000, 1_200

# What would take longer than this many seconds is measured at the small size only.
PATIENCE = 8.0

_COLUMNS = ["compactor", "compaction", "of counting", "growth", "idle step", "calls of a model"]


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=LARGE)
    large = parser.parse_args().messages
    quiet()
    print(f"Bringing {large:,} messages down to half of their tokens; *of counting* is a multiple of the time that the")
    print("same library takes to count them once with its default counter, *growth* the time over that of a tenth of")
    print(
        "the messages. In brackets: would take too long, so that it was measured at a tenth of the messages. The idle"
    )
    print("step is what happens before a call of the model when nothing is due. The model is canned.\n")
    print(header(_COLUMNS))
    long, short = conversation(large), conversation(large // 10)
    for peer in all_peers():
        print(row(_cells(peer, long, short)), flush=True)


def _cells(peer: Peer, long: list[ChatMessage], short: list[ChatMessage]) -> list[str]:
    quick, quick_of_counting = _cost(peer, short)
    idle = f"{_idle_cost(peer, long) * 1e3:.2f} ms"
    # It may grow with the square of the messages.
    if quick * (len(long) / len(short)) ** 2 > PATIENCE and _growth(peer, short) ** 2 * quick > PATIENCE:
        return [str(peer), f"({quick * 1e3:,.0f} ms)", f"({quick_of_counting:.1f})", "-", idle, str(peer.calls)]
    slow, of_counting = _cost(peer, long)
    return [str(peer), f"{slow * 1e3:,.0f} ms", f"{of_counting:.1f}", f"{slow / quick:.0f}", idle, str(peer.calls)]


def _growth(peer: Peer, messages: list[ChatMessage]) -> float:
    """How the time grows from a tenth of the messages to all of them."""
    return _cost(peer, messages)[0] / _cost(peer, conversation(len(messages) // 10))[0]


def _cost(peer: Peer, messages: list[ChatMessage]) -> tuple[float, float]:
    """The time of a compaction, and what multiple of counting it is."""
    target = peer.count(peer.converted(messages)) // 2
    prepare = lambda: peer.converted(messages)  # noqa: E731
    counting = seconds(peer.count, prepare, repeats=3)
    compacting = seconds(lambda converted: peer.compacted(converted, target), prepare, repeats=3)
    return compacting, compacting / counting


def _idle_cost(peer: Peer, messages: list[ChatMessage]) -> float:
    step = peer.idle_step(peer.converted(messages))
    # What is remembered of the messages is not forgotten from step to step.
    step()
    return seconds(lambda _: step(), repeats=5)


if __name__ == "__main__":
    main()
