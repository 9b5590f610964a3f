# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
How many Agent runs die of their context in a window of 8,000 tokens, with our hook and with Haystack's.

Run `python benchmarks/survival.py`. The runs go against strict servers on the loopback, those of the tests; what
happens in them is in `tests/survival.py`. A run is dead when the provider refuses a request, when a hook raises, or
when a request lacks the task.
"""

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import haystack.hooks.compaction as haystacks

from haystack_compaction import CompactionHook

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from survival import WINDOW, Scenario, compactors, model, scenarios, verdict_on


def main() -> None:
    """Run the benchmark and print its table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    arguments = _arguments()
    chosen = [scenario for scenario in scenarios() if scenario.steps < 200 or arguments.all]
    print(f"{'hook':<10}{'compactor':<32}{'runs':>5}{'dead':>6}{'seconds':>9}")
    for hook, compactor, build in _hooks():
        started = time.perf_counter()
        dead = [scenario for scenario in chosen if not verdict_on(scenario, build(scenario)).is_alive]
        print(f"{hook:<10}{compactor:<32}{len(chosen):>5}{len(dead):>6}{time.perf_counter() - started:>9.1f}")
        for scenario in dead if arguments.detail else []:
            print(f"{'':<10}  {scenario}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also the runs of 200 steps, which take minutes")
    parser.add_argument("--detail", action="store_true", help="name the runs that die")
    return parser.parse_args()


def _hooks() -> list[tuple[str, str, Callable[[Scenario], Any]]]:
    def ours(compactor: Any) -> Callable[[Scenario], Any]:
        return lambda scenario: CompactionHook(
            compactor(), context_window=WINDOW, reserve_tokens=scenario.reserve_tokens
        )

    def theirs(compactor: Any) -> Callable[[Scenario], Any]:
        return lambda scenario: haystacks.CompactionHook(compactor(), context_window=WINDOW)

    haystack = {
        "sliding_window": haystacks.SlidingWindowCompactor,
        "tool_result_pruning": haystacks.ToolResultPruningCompactor,
        "summarization by a model": lambda: haystacks.SummarizationCompactor(model("The first services pass.")),
    }
    return [
        *(("Haystack", name, theirs(compactor)) for name, compactor in haystack.items()),
        *(("ours", name, ours(compactor)) for name, compactor in compactors().items()),
    ]


if __name__ == "__main__":
    main()
