# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The run that the benchmark of the bill sends Agents through, and the account that it keeps."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import bill
from bill import Account, account_of
from long_run import LongRun

from haystack_compaction import CompactionHook, SlidingWindowCompactor

STEPS = 20
UNLIMITED = 10**9


@pytest.fixture(scope="module")
def run() -> LongRun:
    return LongRun(0, "small", STEPS)


@pytest.fixture(scope="module")
def whole(run: LongRun) -> Account:
    return account_of(run, None, context_window=UNLIMITED)


def test_a_seed_always_makes_the_same_run(run: LongRun) -> None:
    again = LongRun(0, "small", STEPS)
    assert (again.facts, again.steps) == (run.facts, run.steps)
    assert LongRun(1, "small", STEPS).steps != run.steps


def test_without_compaction_everything_is_known_and_read_from_the_cache(whole: Account) -> None:
    assert whole.known
    assert all(whole.known)
    assert whole.known_at_end
    assert all(whole.known_at_end)
    assert (whole.compactions, whole.summaries, whole.died) == (0, 0, False)


def test_every_token_is_written_once_and_then_read_at_a_tenth(
    run: LongRun, whole: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bill_at(read: float, written: float) -> float:
        monkeypatch.setattr(bill, "READ", read)
        monkeypatch.setattr(bill, "WRITTEN", written)
        return account_of(run, None, context_window=UNLIMITED).billed

    everything, written_once = bill_at(1, 1), bill_at(0, 1)
    assert whole.billed == pytest.approx(1.25 * written_once + 0.1 * (everything - written_once))
    # So many requests, each of which sends again what the ones before it sent.
    assert 5 * written_once < everything < (STEPS + 1) * written_once


def test_a_small_window_needs_compaction_and_forgets(run: LongRun) -> None:
    assert account_of(run, None, context_window=3_000).died
    small = account_of(
        run, lambda model: CompactionHook(SlidingWindowCompactor(), context_window=3_000), context_window=3_000
    )
    assert not small.died
    assert small.compactions > 0
    assert sum(small.known_at_end) < len(small.known_at_end)
