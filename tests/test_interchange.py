# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Our compactors in Haystack's hook, Haystack's in ours."""

import warnings

import haystack.hooks.compaction as haystacks
import pytest
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage
from haystack.token_counters import ApproximateTokenCounter
from samples import chat, run_of, step
from test_hook import COUNTER, TASK, WINDOW, agent, auditing, state_of

from haystack_compaction import CompactionHook, EstimateTokenCounter, SlidingWindowCompactor, pin
from haystack_compaction.conversation.notes import is_note
from haystack_compaction.testing import provider_fault

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def test_our_compactor_in_haystacks_hook():
    hook = haystacks.CompactionHook(SlidingWindowCompactor(), context_window=WINDOW, token_counter=COUNTER)
    result = agent(auditing(60), hook).run(messages=[TASK])
    assert result["last_message"].text == "All is well."
    assert sum(map(is_note, result["messages"])) == 1


@pytest.mark.parametrize(
    ("name", "options"), [("SlidingWindowCompactor", {}), ("ToolResultPruningCompactor", {"min_tokens": 50})]
)
def test_haystacks_compactors_in_our_hook(name, options):
    hook = CompactionHook(getattr(haystacks, name)(**options), context_window=WINDOW)
    result = agent(auditing(20), hook).run(messages=[TASK])
    assert result["last_message"].text == "All is well."
    assert provider_fault(result["messages"]) is None


def test_swapping_the_import_line_is_the_whole_migration():
    def build(module):
        return module.CompactionHook(
            compactor=module.SlidingWindowCompactor(min_keep_steps=2, omission_note="{num_removed} gone"),
            context_window=WINDOW,
            compact_at=0.8,
            compact_to=0.3,
            token_counter=ApproximateTokenCounter(),
        )

    import haystack_compaction

    for module in (haystacks, haystack_compaction):
        result = agent(auditing(40), build(module), window=None).run(messages=[TASK])
        assert result["last_message"].text == "All is well."
        assert any((message.text or "").endswith(" gone") for message in result["messages"])


def test_notes_are_recognised_both_ways():
    messages, counter = chat(30), EstimateTokenCounter()
    ours, theirs = SlidingWindowCompactor(), haystacks.SlidingWindowCompactor()
    for first, second in ((ours, theirs), (theirs, ours)):
        compacted = first.compact(messages, 900, counter)
        again = second.compact([*compacted[:-1], *chat(10)[1:]], 500, counter)
        assert sum(map(is_note, again)) == 1


def test_what_haystacks_window_drops_our_hook_puts_back():
    task, nudge = ChatMessage.from_user("Audit every service."), ChatMessage.from_user("Remember to save.")
    rule = pin(ChatMessage.from_assistant("Noted: never deploy on a Friday."))
    messages = [*run_of(0)[:1], ChatMessage.from_user("Hi"), rule, task]
    for number in range(30):
        messages += step("read", f"{number} " * 100, call_id="0")
    messages[10:10] = [nudge]
    state = state_of(messages)
    CompactionHook(haystacks.SlidingWindowCompactor(), context_window=WINDOW).run(state)
    kept = state.data["messages"]
    assert len(kept) < len(messages)
    for message in (messages[0], rule, task, nudge):
        assert any(message is other for other in kept)
    assert provider_fault(kept) is None


def test_importing_haystacks_compactors_is_no_part_of_importing_ours():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CompactionHook(SlidingWindowCompactor(), context_window=10)


def test_a_compactor_that_returns_nonsense_is_worked_around():
    class Nonsense:
        def compact(self, messages, target_tokens, token_counter):
            return [message for index, message in enumerate(messages) if index % 3]

        async def compact_async(self, messages, target_tokens, token_counter):
            return self.compact(messages, target_tokens, token_counter)

    messages = run_of(30)
    state = state_of(messages)
    CompactionHook(Nonsense(), context_window=WINDOW).run(state)
    kept = state.data["messages"]
    assert provider_fault(kept) is None
    assert kept[:2] == messages[:2]
    assert COUNTER.count(kept) < COUNTER.count(messages)


def test_a_compactor_that_gains_nothing_is_not_applied():
    class Growing:
        def compact(self, messages, target_tokens, token_counter):
            return [*messages, ChatMessage.from_user("More!")]

    messages = run_of(30)
    state = state_of(messages)
    CompactionHook(Growing(), context_window=WINDOW, last_resort=False).run(state)
    assert state.data["messages"] == messages


def test_an_agent_takes_haystacks_and_our_hook_together():
    hooks = [
        CompactionHook(SlidingWindowCompactor(), context_window=WINDOW),
        haystacks.CompactionHook(haystacks.SlidingWindowCompactor(), context_window=WINDOW),
    ]
    auditor = agent(auditing(40), None, hooks={"before_llm": hooks})
    assert isinstance(auditor, Agent)
    assert auditor.run(messages=[TASK])["last_message"].text == "All is well."


def test_a_summary_that_haystacks_window_deletes_is_put_back():
    marker = {"strategy": "summarization", "removed_messages": 9, "kept_messages": 3}
    summary = ChatMessage.from_user("Decided: deploy on Monday.", meta={"context_compaction": marker})
    first, *rest = run_of(30)
    state = state_of([first, summary, *rest])
    CompactionHook(haystacks.SlidingWindowCompactor(), context_window=WINDOW).run(state)
    assert len(state.data["messages"]) < 30
    assert any(message is summary for message in state.data["messages"])
