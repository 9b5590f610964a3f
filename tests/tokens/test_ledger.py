# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import gc
import threading

import pytest
from haystack.dataclasses import ChatMessage
from haystack.token_counters import ApproximateTokenCounter
from haystack.tools import tool
from samples import RemoteCounter, chat, run_of

from haystack_compaction import EstimateTokenCounter, SlidingWindowCompactor
from haystack_compaction.tokens.ledger import TokenLedger


class CountingCounter(EstimateTokenCounter):
    """Remembers what it was asked."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def count(self, messages, tools=None):
        self.asked.extend(map(id, messages))
        return super().count(messages, tools)


@tool
def read_log(name: str) -> str:
    """Read a log."""
    return name


def test_each_message_is_counted_once():
    counter, messages = CountingCounter(), run_of(20)
    ledger = TokenLedger(counter)
    for _ in range(3):
        ledger.count(messages)
        ledger.sizes(messages)
        ledger.count(messages[3:9], [read_log])
        ledger.measure(messages)
    assert sorted(counter.asked) == sorted(map(id, messages))


def test_a_compaction_counts_each_message_at_most_once():
    counter, messages = CountingCounter(), run_of(200)
    target = EstimateTokenCounter().count(messages) // 3
    assert SlidingWindowCompactor().compact(messages, target, counter) is not None
    asked = [key for key in counter.asked if key in set(map(id, messages))]
    assert len(asked) == len(set(asked))


def test_totals_agree_with_the_counter():
    counter, messages = EstimateTokenCounter(), run_of(5)
    ledger = TokenLedger(counter)
    assert ledger.count(messages, [read_log]) == counter.count(messages, [read_log])
    assert sum(ledger.sizes(messages)) == counter.count(messages)


def test_an_entry_goes_with_its_message():
    ledger = TokenLedger()
    messages = run_of(50)
    ledger.count(messages)
    assert len(ledger._memory.sizes) == len(messages)
    del messages
    gc.collect()
    assert len(ledger._memory.sizes) == len(ledger._memory._references) == 0


def test_no_more_is_remembered_than_allowed():
    ledger, messages = TokenLedger(max_entries=10), run_of(50)
    total = ledger.count(messages)
    assert len(ledger._memory.sizes) == 10
    assert ledger.count(messages) == total


def test_many_threads_see_the_same_sizes():
    ledger, messages = TokenLedger(max_entries=300), run_of(200)
    expected = EstimateTokenCounter().count(messages)
    totals = []

    def work():
        for _ in range(20):
            totals.append(ledger.count([*messages, ChatMessage.from_user("x")][:-1]))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(totals) == {expected}
    assert len(totals) == 160


def test_haystacks_joining_counters_are_never_undercounted():
    for counter in (ApproximateTokenCounter(), ApproximateTokenCounter(chars_per_token=1.0)):
        for messages in (chat(30), run_of(30)):
            assert TokenLedger(counter).count(messages) >= counter.count(messages)


def test_a_remote_counter_is_given_whole_conversations_only_and_seldom():
    counter, messages = RemoteCounter(), run_of(100)
    compacted = SlidingWindowCompactor().compact(messages, 500, counter)
    assert counter.count(compacted) <= 500
    assert counter.requests <= 12
    assert counter.rejected == []


@pytest.mark.parametrize("target", [60, 150, 400, 990])
def test_a_remote_counter_decides_exactly(target):
    counter, messages = RemoteCounter(), chat(50)
    compacted = SlidingWindowCompactor().compact(messages, target, counter)
    # One turn more, that is two messages, would be too many.
    assert target - 20 < counter.count(compacted) <= target


def test_a_remote_counter_that_fails_is_worked_around(caplog):
    class Failing:
        def count(self, messages, tools=None):
            raise ConnectionError("down")

    messages = chat(50)
    compacted = SlidingWindowCompactor().compact(messages, 300, Failing())
    assert EstimateTokenCounter().count(compacted) <= 300
    assert caplog.text.count("ConnectionError") == 1


@pytest.mark.parametrize("target", [1, 300, 5_000])
def test_a_remote_counter_is_asked_once_for_each_conversation(target):
    """However many checks a pass makes, it asks for no conversation twice."""
    asked = []

    class Recorder(RemoteCounter):
        def count(self, messages, tools=None):
            asked.append(tuple(map(id, messages)))
            return super().count(messages, tools)

    SlidingWindowCompactor(token_counter=Recorder(), omission_note=None).run(messages=chat(50), target_tokens=target)
    assert len(set(asked)) == len(asked) > 0
