# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
No run dies of its context.

Set SURVIVAL=all for every compactor in every scenario: more than 700 runs, a quarter of an hour of one core. Those of
one compactor are `-k "hybrid:"`, with its name.
"""

import os

import pytest
from haystack.dataclasses import ChatMessage
from samples import step
from survival import WINDOW, Scenario, compactors, scenarios, verdict_on

from haystack_compaction import CompactionHook, SlidingWindowCompactor, SummarizationCompactor

EVERYTHING = os.environ.get("SURVIVAL") == "all"


def cases():
    """Every compactor in a share of the scenarios, such that together they are in all of them but the longest."""
    share = 1 if EVERYTHING else len(compactors())
    chosen = [scenario for scenario in scenarios() if EVERYTHING or scenario.steps < 200]
    return [
        pytest.param(name, scenario, id=f"{name}: {scenario}")
        for number, name in enumerate(compactors())
        for scenario in chosen[number % share :: share]
    ]


@pytest.mark.parametrize(("name", "scenario"), cases())
def test_no_run_dies_of_its_context(name, scenario):
    if scenario.server == "anthropic":
        pytest.importorskip("haystack_integrations.components.generators.anthropic")
    hook = CompactionHook(compactors()[name](), context_window=WINDOW, reserve_tokens=scenario.reserve_tokens)
    verdict = verdict_on(scenario, hook)
    assert verdict.is_alive, verdict
    assert len(verdict.sizes) == scenario.steps + 1


@pytest.mark.parametrize("name", compactors())
def test_sixty_steps_rewrite_the_history_at_most_a_dozen_times(name):
    scenario = Scenario(kind="mixed", sizes=(150, 400, 60, 250), steps=60)
    verdict = verdict_on(scenario, CompactionHook(compactors()[name](), context_window=WINDOW))
    assert verdict.is_alive, verdict
    assert 3 <= verdict.rewrites <= 12


def test_two_hundred_steps():
    scenario = Scenario(sizes=(20, 100, 40), steps=200)
    verdict = verdict_on(scenario, CompactionHook(SlidingWindowCompactor(), context_window=WINDOW))
    assert verdict.is_alive, verdict
    assert verdict.rewrites <= 12


def test_the_room_for_the_reply_stays_free():
    scenario = Scenario(sizes=(150, 400, 60, 250))
    late = {"context_window": WINDOW, "compact_at": 0.95}
    verdict = verdict_on(scenario, CompactionHook(SlidingWindowCompactor(), **late, reserve_tokens=2_000))
    assert verdict.is_alive, verdict
    assert WINDOW - 3_000 < max(verdict.sizes) <= WINDOW - 2_000
    assert max(verdict_on(scenario, CompactionHook(SlidingWindowCompactor(), **late)).sizes) > WINDOW - 1_000


BROKEN = {
    "a result without its call": step("check", "fine", call_id="0")[1:],
    "a call without its result": step("check", "fine", call_id="0")[:1],
    "a result away from its call": [
        step("check", "fine", call_id="0")[0],
        ChatMessage.from_user("Are you there?"),
        step("check", "fine", call_id="0")[1],
    ],
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_history_is_repaired_before_a_model_sees_it(kind, caplog):
    """Whether or not anything is compacted."""
    scenario = Scenario(sizes=(20,), steps=2)
    hook = CompactionHook(SlidingWindowCompactor(), context_window=WINDOW)
    verdict = verdict_on(scenario, hook, BROKEN[kind])
    assert verdict.is_alive, verdict
    assert len(verdict.sizes) == 3
    assert "it was repaired in" in caplog.text
    unrepaired = CompactionHook(SlidingWindowCompactor(), context_window=WINDOW, repair=False)
    assert not verdict_on(scenario, unrepaired, BROKEN[kind]).is_alive


@pytest.mark.parametrize("compactor", [SlidingWindowCompactor(), SummarizationCompactor()], ids=str)
def test_without_the_last_resort_the_provider_has_the_last_word(compactor):
    """What the others prove is not that the provider takes anything."""
    scenario = Scenario(sizes=(20, 20_000))
    verdict = verdict_on(scenario, CompactionHook(compactor, context_window=WINDOW, last_resort=False))
    assert "maximum context length" in str(verdict.died_of)
    assert len(verdict.refused) == 1
