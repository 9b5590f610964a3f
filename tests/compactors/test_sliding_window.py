# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import pytest
from haystack.dataclasses import ChatMessage
from haystack.token_counters import ApproximateTokenCounter
from samples import chat, run_of, step, texts

from haystack_compaction import EstimateTokenCounter, SlidingWindowCompactor, pin
from haystack_compaction.conversation.notes import COMPACTION_META_KEY, is_note

COUNTER = EstimateTokenCounter()


def size(messages):
    return COUNTER.count(messages)


def notes(messages):
    return [message for message in messages if is_note(message)]


def compact(messages, target, **options):
    return SlidingWindowCompactor(**options).compact(messages, target, COUNTER)


def test_a_conversation_that_fits_is_left_alone():
    messages = chat(5)
    assert compact(messages, size(messages)) is None


def test_the_newest_turns_that_fit_are_kept():
    messages = chat(20)
    kept = compact(messages, size(messages) // 2)
    assert size(kept) <= size(messages) // 2
    note = notes(kept)[0]
    assert kept[0] is messages[0]
    assert kept[1] is note
    assert list(map(id, kept[2:])) == list(map(id, messages[-len(kept) + 2 :]))
    # One turn more would not have fitted.
    turn = messages[-len(kept) : -len(kept) + 2]
    assert size(kept) + size(turn) > size(messages) // 2


def test_it_stops_at_the_first_turn_that_does_not_fit():
    large = [ChatMessage.from_user("large " * 500), ChatMessage.from_assistant("Yes.")]
    messages = [*chat(3)[:-1], *large, *chat(2)[1:]]
    kept = compact(messages, 400)
    assert [text for text in texts(kept) if text.startswith("Question")] == texts(chat(2)[1::2])[:2]


def test_steps_go_oldest_first_once_the_task_alone_is_too_big():
    messages = run_of(20)
    kept = compact(messages, size(messages) // 3)
    assert size(kept) <= size(messages) // 3
    assert [message.role.value for message in kept[:4]] == ["system", "user", "user", "assistant"]
    assert kept[1] is messages[1]
    assert is_note(kept[2])
    assert list(map(id, kept[3:])) == list(map(id, messages[-len(kept) + 3 :]))


def test_turns_go_before_any_step():
    messages = [*chat(5)[:-1], *run_of(4)[1:]]
    kept = compact(messages, size(run_of(4)) + 50)
    assert list(map(id, kept[2:])) == list(map(id, messages[-9:]))
    assert is_note(kept[1])


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_the_newest_steps_stay_whatever_the_target(steps):
    messages = run_of(6)
    kept = compact(messages, 1, min_keep_steps=steps)
    assert list(map(id, kept[3:])) == list(map(id, messages[len(messages) - 2 * steps :]))


def test_recent_turns_stay_whatever_the_target():
    messages = chat(10)
    kept = compact(messages, 1, preserve_recent_turns=3)
    assert list(map(id, kept[2:])) == list(map(id, messages[-7:]))


def test_the_head_may_go_if_asked():
    messages = chat(10)
    kept = compact(messages, size(messages) // 2, preserve_system_prompt=False)
    assert kept[0] is notes(kept)[0]
    assert messages[0] not in kept
    assert messages[0] in compact(messages, size(messages) // 2)


def test_all_leading_system_messages_stay():
    messages = [ChatMessage.from_system("One."), ChatMessage.from_system("Two."), *chat(10)[1:]]
    assert compact(messages, 1)[:2] == messages[:2]


def test_a_late_system_message_stays():
    late = ChatMessage.from_system("From now on answer in French.")
    assert late in compact([*chat(5)[:-1], late, *chat(5)[1:]], 1)


def test_the_note_tells_how_many_messages_are_gone():
    kept = compact(chat(10), 1, omission_note="{num_removed} gone, {not} {{touched}} {}")
    assert notes(kept)[0].text == "20 gone, {not} {{touched}} {}"
    assert notes(kept)[0].meta[COMPACTION_META_KEY] == {
        "strategy": "sliding_window",
        "removed_messages": 20,
        "kept_messages": 2,
        "kind": "omission",
    }


def test_without_a_note_messages_go_silently():
    messages = chat(10)
    assert compact(messages, 1, omission_note=None) == [messages[0], messages[-1]]


def test_a_later_pass_folds_the_earlier_note_and_adds_up():
    conversation, removed = chat(10), 0
    for _ in range(4):
        before = len([message for message in conversation if not is_note(message)])
        conversation = compact(conversation, size(conversation) // 2)
        removed += before - len([message for message in conversation if not is_note(message)])
        assert [note.meta[COMPACTION_META_KEY]["removed_messages"] for note in notes(conversation)] == [removed]
        conversation = [*conversation[:-1], *chat(6)[1:]]


def test_swapping_a_note_for_a_note_is_no_progress():
    kept = compact(chat(10), 1)
    assert compact(kept, 1) is None


def test_nothing_that_may_go_is_none():
    assert compact([ChatMessage.from_system("s " * 100), ChatMessage.from_user("u " * 100)], 1) is None
    assert compact([], 0) is None


def test_pinned_messages_stay_where_they_were():
    messages = chat(10)
    messages[3] = pin(messages[3])
    kept = compact(messages, 1)
    assert [kept[0], kept[2], kept[3]] == [messages[0], messages[3], messages[-1]]


def test_a_nudge_never_takes_the_place_of_the_task():
    task, nudge = ChatMessage.from_user("Audit every service."), ChatMessage.from_user("Remember to save.")
    messages = [task, *step("a", "x " * 300), *step("a", "y " * 300), nudge, *step("a", "z " * 300)]
    kept = compact(messages, 1)
    assert task in kept
    assert nudge in kept


SUMMARY = ChatMessage.from_user(
    "Decided: deploy on Monday. " * 20,
    meta={COMPACTION_META_KEY: {"strategy": "summarization", "removed_messages": 12, "kept_messages": 3}},
)


def test_a_summary_is_kept_while_it_fits():
    messages = [chat(0)[0], SUMMARY, *chat(10)[1:]]
    kept = compact(messages, size([SUMMARY]) + 100)
    assert SUMMARY in kept


def test_a_summary_that_does_not_fit_lives_on_in_the_note():
    messages = [chat(0)[0], SUMMARY, *chat(10)[1:]]
    for _ in range(2):
        kept = compact(messages, 60)
        assert SUMMARY not in kept
        assert "Decided: deploy on Monday." in notes(kept)[0].text
        assert notes(kept)[0].meta[COMPACTION_META_KEY]["removed_messages"] >= 12 + 20
        messages = [*kept[:-1], *chat(10)[1:]]


def test_the_thinking_that_opens_the_running_loop_stays():
    opener = step("a", "x " * 300, reasoning="Signed thought.")
    messages = [*run_of(0), *opener, *(message for n in range(5) for message in step("a", f"{n} " * 300))]
    kept = compact(messages, 1)
    assert kept[3] is opener[0]
    assert len(kept) == 2 + 1 + 2 + 2


def test_the_caller_keeps_what_it_has():
    messages = run_of(10)
    before = list(messages)
    kept = compact(messages, 10)
    assert messages == before
    assert kept is not messages
    assert all(any(message is original for original in messages) for message in kept if not is_note(message))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_keep_steps": -1}, "`min_keep_steps` must be at least 0, got -1"),
        ({"preserve_recent_turns": -1}, "`preserve_recent_turns` must be at least 0, got -1"),
        ({"target_tokens": 0}, "`target_tokens` must be at least 1, got 0"),
        ({"trigger_threshold_tokens": 0}, "`trigger_threshold_tokens` must be at least 1, got 0"),
        ({"trigger_threshold_tokens": 10, "target_tokens": 20}, "target_tokens=20 and trigger_threshold_tokens=10"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SlidingWindowCompactor(**options)


def test_the_task_outlives_many_passes_with_nudges():
    task = ChatMessage.from_user("THE TASK")
    conversation = [task]
    for number in range(30):
        conversation += step("a", f"{number} " + "x " * 150, call_id="0")
        if number % 4 == 2:
            conversation.append(ChatMessage.from_user(f"Nudge {number}"))
        conversation = compact(conversation, 250) or conversation
        assert any(message is task for message in conversation)


@pytest.mark.parametrize("counter", [COUNTER, ApproximateTokenCounter(), ApproximateTokenCounter(0.5)])
def test_what_fits_exactly_is_left_alone(counter):
    for messages in (chat(5), chat(60), run_of(9)):
        assert SlidingWindowCompactor().compact(messages, counter.count(messages), counter) is None
        assert SlidingWindowCompactor().compact(messages, counter.count(messages) - 1, counter) is not None


@pytest.mark.parametrize("counter", [COUNTER, ApproximateTokenCounter(), ApproximateTokenCounter(50.0)])
@pytest.mark.parametrize("share", [0.31, 0.5, 0.77])
def test_as_many_turns_as_fit_are_kept_by_the_counter_itself(counter, share):
    messages = chat(30)
    target = int(counter.count(messages) * share)
    kept = SlidingWindowCompactor().compact(messages, target, counter)
    assert counter.count(kept) <= target
    turns = (len(kept) - 3) // 2
    one_more = [messages[0], kept[1], *messages[-2 * turns - 3 :]]
    assert counter.count(one_more) > target


def test_the_same_message_many_times_is_compacted_like_any_other():
    messages = [ChatMessage.from_user("q " * 100), ChatMessage.from_assistant("a " * 100)] * 10
    kept = compact([*messages, ChatMessage.from_user("t")], 400)
    assert size(kept) <= 400


@pytest.mark.parametrize("target", range(600, 680, 7))
def test_the_number_in_the_note_never_tips_the_scale(target):
    kept = compact(chat(21), target, omission_note="{num_removed} gone")
    assert size(kept) <= target
