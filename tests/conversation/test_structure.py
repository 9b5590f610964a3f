# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

from haystack.dataclasses import ChatMessage, ToolCall
from samples import chat, run_of, step

from haystack_compaction import pin
from haystack_compaction.conversation.notes import CURRENT_TASK_META_KEY, is_note, is_omission_note, omission_note
from haystack_compaction.conversation.structure import Conversation

SYSTEM = ChatMessage.from_system("Be careful.")
TASK = ChatMessage.from_user("Audit every service.")
NUDGE = ChatMessage.from_user("Remember to save.")


def answer(text: str = "Done.") -> ChatMessage:
    return ChatMessage.from_assistant(text)


def test_head_turns_and_task_of_a_chat():
    conversation = Conversation(chat(3))
    assert conversation.head == range(1)
    assert conversation.turns == [range(1, 3), range(3, 5), range(5, 7)]
    assert conversation.task_index == 7
    assert conversation.steps == []


def test_steps_of_a_run():
    conversation = Conversation(run_of(3))
    assert (conversation.task_index, conversation.turns) == (1, [])
    assert conversation.steps == [range(2, 4), range(4, 6), range(6, 8)]


def test_what_an_assistant_says_before_any_user_message_is_the_oldest_turn():
    assert Conversation([SYSTEM, answer("Welcome!"), *chat(1)[1:]]).turns == [range(1, 2), range(2, 4)]


def test_a_conversation_without_a_user_message_is_all_task():
    conversation = Conversation([SYSTEM, *step("search", "a"), *step("search", "b")])
    assert conversation.task_index is None
    assert conversation.steps == [range(1, 3), range(3, 5)]


def test_empty_and_system_only_conversations():
    assert Conversation([]).task_index is None
    assert Conversation([SYSTEM, SYSTEM]).head == range(2)


def test_a_user_message_inside_a_tool_loop_is_a_nudge_and_both_stay():
    conversation = Conversation([SYSTEM, TASK, *step("search", "a"), NUDGE, *step("search", "b"), *step("search", "c")])
    assert conversation.task_index == 1
    assert conversation.steps == [range(2, 4), range(4, 7), range(7, 9)]
    assert conversation.protected == {4}


def test_of_many_nudges_the_newest_and_the_unanswered_stay():
    messages = [TASK, *step("a", "1"), NUDGE, *step("a", "2"), NUDGE, *step("a", "3"), NUDGE, NUDGE]
    assert Conversation(messages).protected == {9, 10}


def test_a_user_message_after_an_answer_is_a_new_task():
    conversation = Conversation([TASK, *step("search", "a"), answer(), ChatMessage.from_user("Thanks. And now?")])
    assert conversation.turns == [range(4)]
    assert conversation.task_index == 4


def test_the_marked_task_stays_the_task_when_a_hook_answers_an_answer():
    marked = ChatMessage.from_user("Audit every service.", meta={CURRENT_TASK_META_KEY: True})
    conversation = Conversation([SYSTEM, *chat(1)[1:3], marked, *step("a", "1"), answer(), NUDGE, *step("a", "2")])
    assert conversation.task_index == 3
    assert conversation.turns == [range(1, 3)]
    assert conversation.protected == {7}


def test_late_system_messages_are_protected():
    assert Conversation([SYSTEM, TASK, answer(), SYSTEM, *chat(1)[1:]]).protected == {3}


def test_notes_belong_to_no_unit_and_are_no_task():
    note = omission_note("{num_removed} gone", strategy="sliding_window", removed_messages=4, kept_messages=2)
    conversation = Conversation([SYSTEM, note, TASK, answer(), TASK, note, *step("a", "1")])
    assert conversation.notes == [1, 5]
    assert conversation.task_index == 4
    assert conversation.removable_turns(preserve_recent_turns=0) == [[2, 3]]
    assert conversation.removable_steps(min_keep_steps=0) == [[6, 7]]


def test_a_pinned_result_keeps_its_step_and_the_message_that_it_answers():
    call, result = step("search", "a")
    conversation = Conversation([TASK, call, pin(result), answer(), TASK, answer(), TASK])
    assert conversation.protected == {0, 1, 2}
    assert conversation.removable_turns(preserve_recent_turns=0) == [[3], [4, 5]]


def test_a_pin_in_the_head_holds_even_where_the_head_may_go():
    conversation = Conversation([pin(SYSTEM), SYSTEM, TASK])
    assert conversation.removable([conversation.head]) == [[1]]


def test_the_newest_turns_and_steps_are_not_removable():
    assert Conversation(chat(3)).removable_turns(preserve_recent_turns=2) == [[1, 2]]
    assert Conversation(run_of(3)).removable_steps(min_keep_steps=2) == [[2, 3]]
    assert Conversation(run_of(3)).removable_steps(min_keep_steps=9) == []


def test_a_step_that_waits_for_its_results_is_no_completed_step():
    waiting = ChatMessage.from_assistant(tool_calls=[ToolCall("search", {}, id="w")])
    assert Conversation([TASK, *step("a", "1"), waiting]).removable_steps(min_keep_steps=0) == [[1, 2]]
    assert Conversation([TASK, *step("a", "1"), waiting]).removable_steps(min_keep_steps=1) == []


def test_the_reasoning_that_opens_a_tool_loop_outlives_the_steps_that_lean_on_it():
    thinking = step("a", "1", reasoning="Let me think.")
    messages = [TASK, *thinking, *step("a", "2"), *step("a", "3"), *step("a", "4")]
    assert Conversation(messages).removable_steps(min_keep_steps=1) == [[3, 4], [5, 6]]
    assert Conversation(messages).removable_steps(min_keep_steps=0) == [[3, 4], [5, 6], [7, 8], [1, 2]]


def test_steps_that_all_think_go_in_order():
    messages = [TASK, *(message for number in range(3) for message in step("a", str(number), reasoning="So."))]
    assert Conversation(messages).removable_steps(min_keep_steps=1) == [[1, 2], [3, 4]]


def test_haystacks_notes_are_recognised():
    window = ChatMessage.from_user("[3 gone]", meta={"context_compaction": {"strategy": "sliding_window"}})
    summary = ChatMessage.from_user("So far: ...", meta={"context_compaction": {"strategy": "summarization"}})
    pruned = ChatMessage.from_tool("", origin=ToolCall("a", {}), meta={"context_compaction": {"strategy": "x"}})
    assert [is_note(message) for message in (window, summary, pruned)] == [True, True, False]
    assert [is_omission_note(message) for message in (window, summary)] == [True, False]


def test_pinning_copies_and_survives_storage():
    pinned = pin(TASK)
    assert "pinned" not in TASK.meta
    assert ChatMessage.from_dict(pinned.to_dict()) == pinned


def test_a_nudge_stays_a_nudge_after_the_steps_before_it_are_gone():
    note = omission_note("{num_removed} gone", strategy="sliding_window", removed_messages=4, kept_messages=2)
    conversation = Conversation([SYSTEM, TASK, note, NUDGE, *step("a", "1")])
    assert conversation.task_index == 1
    assert conversation.protected == {3}


def test_a_user_message_after_the_note_of_removed_turns_is_the_task():
    note = omission_note("{num_removed} gone", strategy="sliding_window", removed_messages=4, kept_messages=2)
    assert Conversation([SYSTEM, note, TASK, NUDGE]).task_index == 3
