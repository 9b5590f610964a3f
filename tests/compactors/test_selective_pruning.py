# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import pytest
from haystack import Pipeline
from haystack.dataclasses import ChatMessage, ChatRole, ToolCall, ToolCallResult
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import RemoteCounter, run_of, texts

from haystack_compaction import EstimateTokenCounter, pin
from haystack_compaction.compactors.selective_pruning import SelectivePruningCompactor
from haystack_compaction.compactors.tool_result_pruning import ToolResultPruningCompactor
from haystack_compaction.compactors.truncation import TruncationCompactor
from haystack_compaction.conversation.notes import is_omission_note
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.testing import check_compactor, provider_fault

FILLER = "all quiet on the pier " * 40


def pair(tool, result=FILLER, *, text=None, error=False, call_id="0", **arguments):
    call = ToolCall(tool_name=tool, arguments=arguments, id=call_id)
    return [
        ChatMessage.from_assistant(text, tool_calls=[call]),
        ChatMessage.from_tool(result, origin=call, error=error),
    ]


def batch(*tools, text=None, reasoning=None, meta=None, ids="abcdefghij"):
    calls = [ToolCall(tool, {"of": tool}, id=ids[position]) for position, tool in enumerate(tools)]
    assistant = ChatMessage.from_assistant(text, tool_calls=calls, reasoning=reasoning, meta=meta or {})
    return [assistant, *(ChatMessage.from_tool(f"{call.tool_name}: {FILLER}", origin=call) for call in calls)]


def size(messages):
    return EstimateTokenCounter().count(messages)


def compacted(messages, target_tokens=1, **options):
    return SelectivePruningCompactor(**options).compact(messages, target_tokens, EstimateTokenCounter())


def calls_in(messages):
    return [call.tool_name for message in messages for call in message.tool_calls]


def first_to_go(messages, **options):
    """The names of the calls that go when a little has to go."""
    result = compacted(messages, size(messages) - 1, note=None, **options)
    kept = calls_in(result)
    return [name for name in calls_in(messages) if name not in kept or kept.remove(name)]


TASK = ChatMessage.from_user("Find the leak.")
NEWEST = pair("newest", "fine")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"min_keep_steps": 0, "note": None},
        {"min_keep_steps": 2, "preserve_recent_turns": 1, "keep_tools": ("read",)},
    ],
)
def test_promises(options):
    check_compactor(SelectivePruningCompactor(**options), max_examples=60)


def test_removes_pairs_and_nothing_else():
    messages = [
        ChatMessage.from_system("Be careful."),
        ChatMessage.from_user("What is in the log?"),
        *pair("read_log"),
        ChatMessage.from_assistant("It is quiet."),
        TASK,
        *pair("search"),
        *NEWEST,
    ]
    result = compacted(messages, note=None)
    assert result == [messages[0], messages[1], messages[4], TASK, *NEWEST]
    assert all(any(message is original for original in messages) for message in result)


def test_stops_at_the_target():
    messages = run_of(10)
    result = compacted(messages, size(messages) // 2, note=None)
    assert size(result) <= size(messages) // 2
    assert size(result) + size(messages[2:4]) > size(messages) // 2


def test_what_an_identical_call_superseded_goes_first():
    messages = [
        TASK,
        *pair("old"),
        *pair("read", path="a", deep=True),
        *pair("read", path="b"),
        *pair("read", deep=True, path="a"),
        *NEWEST,
    ]
    result = compacted(messages, size(messages) - 1, note=None)
    assert result == [*messages[:3], *messages[5:]]


def test_a_later_failure_supersedes_no_success():
    messages = [TASK, *pair("old"), *pair("read", path="a"), *pair("read", "no", error=True, path="a"), *NEWEST]
    assert first_to_go(messages) == ["old"]


def test_resolved_errors_go_before_older_results():
    messages = [
        TASK,
        *pair("old"),
        *pair("unresolved", "failed " + FILLER, error=True),
        *pair("deploy", "failed " + FILLER, error=True, to="a"),
        *pair("deploy", to="b"),
        *NEWEST,
    ]
    result = compacted(messages, size(messages) - 1, note=None)
    assert messages[5] not in result
    assert calls_in(result) == ["old", "unresolved", "deploy", "newest"]


@pytest.mark.parametrize(
    ("result", "use"),
    [
        ("wrote /srv/tides/2031.csv. " + FILLER, ChatMessage.from_assistant("I will read /srv/tides/2031.csv")),
        ('{"id": "ORD-48213"} ' + FILLER, ChatMessage.from_user("Cancel ORD-48213, please.")),
        ("see https://example.com/a?b " + FILLER, pair("fetch", url="https://example.com/a")[0]),
        (
            "id 550e8400-e29b-41d4-a716-446655440000 " + FILLER,
            pair("get", id="550e8400-e29b-41d4-a716-446655440000")[0],
        ),
        ('{"key": "harbour.north"} ' + FILLER, ChatMessage.from_assistant("The key is `harbour.north`.")),
    ],
    ids=["path", "id", "url", "uuid", "quoted key"],
)
def test_what_later_messages_use_goes_last(result, use):
    answer = [ChatMessage.from_tool("ok", origin=call) for call in use.tool_calls]
    messages = [TASK, *pair("source", result), *pair("unused"), use, *answer, *NEWEST]
    assert first_to_go(messages) == ["unused"]


def test_a_source_stays_longer_than_a_mention():
    messages = [
        ChatMessage.from_user("Look at ORD-1111."),
        *pair("source", "it refers to ORD-2222 " + FILLER),
        *pair("mention", "this is ORD-1111 " + FILLER),
        ChatMessage.from_assistant("ORD-1111 belongs to ORD-2222."),
        *NEWEST,
    ]
    assert first_to_go(messages) == ["mention"]


def test_an_assistant_message_keeps_its_text():
    messages = [
        ChatMessage.from_user("Look."),
        *batch("a", "b", text="I look at both.", reasoning="hm", meta={"thought_signatures": ["s"], "model": "m"}),
        ChatMessage.from_assistant("Done."),
        TASK,
        *NEWEST,
    ]
    result = compacted(messages, note=None)
    assert texts(result) == ["Look.", "I look at both.", "Done.", TASK.text, "", "fine"]
    assert not result[1].reasonings
    assert result[1].meta == {"model": "m", "context_compaction": {"strategy": "selective_pruning"}}
    assert messages[1].reasonings
    assert messages[1].meta["thought_signatures"]


def test_the_note_keeps_texts_apart_from_the_calls_that_follow_them():
    """Gemini refuses calls right behind what the assistant said before."""
    messages = [TASK, *pair("a", text="First a."), *pair("b", text="Then b."), *pair("c", text="Then c."), *NEWEST]
    result = compacted(messages, size(messages) // 2)
    assert texts(result)[:3] == [TASK.text, "First a.", "Then b."]
    assert is_omission_note(result[3])
    assert result[4:] == messages[5:]


def test_a_later_pass_keeps_them_apart():
    messages = [TASK, *pair("a", text="First a."), *pair("b", text="Then b."), *NEWEST]
    first = compacted(messages, size(messages) - 1)
    second = compacted([*first, *pair("c")])
    assert texts(second)[:3] == [TASK.text, "First a.", "Then b."]
    assert is_omission_note(second[3])
    assert calls_in(second) == ["c"]


def scattered():
    """A task of which only the third call goes, as a later identical one superseded it, and a turn that loses one."""
    return [
        ChatMessage.from_user("Hi"),
        *pair("a", text="A turn."),
        *pair("b"),
        ChatMessage.from_assistant("Ok"),
        TASK,
        *pair("first"),
        *pair("second", text="Second."),
        *pair("third"),
        *pair("a"),
        *pair("second"),
    ]


def test_the_note_tells_what_else_was_said_right_before_calls():
    result = compacted(scattered(), size(scattered()) - size(pair("second")) - 50)
    assert calls_in(result) == ["b", "first", "third", "a", "second"]
    note = next(message for message in result if is_omission_note(message))
    assert "The assistant said between them:\nA turn.\nSecond." in note.text
    assert not {"A turn.", "Second."} & set(texts(result))
    again = compacted([*result, *pair("more")], size(result))
    assert "The assistant said between them:\nA turn.\nSecond." in "".join(texts(again))


def test_without_a_note_there_is_no_place_for_it():
    result = compacted(scattered(), size(scattered()) - size(pair("second")) - 50, note=None)
    assert not {"A turn.", "Second."} & set(texts(result))


def test_a_text_that_lost_its_calls_ends_no_turn():
    messages = [TASK, *pair("a", text="First a."), *pair("b", text="Then b."), *NEWEST]
    result = compacted(messages, min_keep_steps=0)
    conversation = Conversation([*result, ChatMessage.from_user("Go on.")])
    assert conversation.messages[conversation.task_index] is TASK


def test_pairs_of_a_batch_go_one_by_one():
    messages = [TASK, *batch("a", "b", "c", text="All three."), *NEWEST]
    result = compacted(messages, size(messages) - 1, note=None)
    assert calls_in(result) == ["b", "c", "newest"]
    assert result[1].text == "All three."
    assert result[2] is messages[3]
    assert provider_fault(result) is None
    assert calls_in(messages) == ["a", "b", "c", "newest"]


def test_calls_that_came_with_reasoning_go_together():
    messages = [
        ChatMessage.from_user("Hi"),
        *batch("a", "b", reasoning="hm"),
        ChatMessage.from_assistant("Ok"),
        TASK,
        *NEWEST,
    ]
    assert first_to_go(messages) == ["a", "b"]
    assert compacted(messages, note=None, keep_tools=("b",)) is None


def test_the_running_loop_begins_with_its_thinking():
    messages = [TASK, *batch("opener", text="First.", reasoning="hm"), *batch("next"), *batch("more"), *NEWEST]
    assert calls_in(compacted(messages, note=None)) == ["opener", "newest"]


def begins_with_thinking(messages):
    """Whether the running tool loop does, as Anthropic sees it: a user message joins the results right before it."""
    start, previous = 0, None
    for index, message in enumerate(messages):
        if message.role is ChatRole.USER and previous not in (ChatRole.USER, ChatRole.TOOL):
            start = index
        previous = message.role
    replies = [message for message in messages[start:] if message.role is ChatRole.ASSISTANT]
    return not any(reply.tool_calls for reply in replies) or bool(replies[0].reasonings)


@st.composite
def thinking_runs(draw):
    messages = [TASK]
    for number in range(draw(st.integers(1, 7))):
        text, reasoning = draw(st.sampled_from([None, "I look."])), draw(st.sampled_from([None, "hm"]))
        messages += batch(*"ab"[: draw(st.integers(1, 2))], text=text, reasoning="hm" if number == 0 else reasoning)
        messages += draw(st.sampled_from([[], [], [ChatMessage.from_user("Go on.")]]))
    return messages


@pytest.mark.parametrize(
    "compactor",
    [SelectivePruningCompactor(), ToolResultPruningCompactor(min_tokens=0), TruncationCompactor()],
    ids=lambda compactor: compactor.strategy,
)
@settings(max_examples=60, deadline=None)
@given(messages=thinking_runs(), share=st.floats(0, 1))
def test_running_loops_keep_the_thinking_they_begin_with(compactor, messages, share):
    assert begins_with_thinking(messages)
    result = compactor.compact(messages, int(size(messages) * share), EstimateTokenCounter())
    assert result is None or begins_with_thinking(result)


def test_a_nudge_stays_with_the_results_before_it():
    nudge = ChatMessage.from_user("Go on.")
    messages = [TASK, *batch("opener", reasoning="hm"), *batch("next", text="Next."), nudge, *batch("after"), *NEWEST]
    result = compacted(messages, note=None)
    assert result[:-2] == messages[:6]


def test_newest_steps_of_the_whole_conversation_stay():
    messages = [
        ChatMessage.from_user("Hi"),
        *pair("a"),
        *pair("b"),
        ChatMessage.from_assistant("Ok"),
        ChatMessage.from_user("And?"),
    ]
    assert calls_in(compacted(messages)) == ["b"]
    assert calls_in(compacted(messages, min_keep_steps=0)) == []
    assert compacted(messages, min_keep_steps=2) is None


def test_kept_tools_pins_and_recent_turns_stay():
    messages = [
        ChatMessage.from_user("One"),
        *pair("a"),
        *pair("kept"),
        ChatMessage.from_assistant("1"),
        ChatMessage.from_user("Two"),
        *pair("b"),
        ChatMessage.from_assistant("2"),
        TASK,
        *pair("c"),
        *NEWEST,
    ]
    messages[2] = pin(messages[2])
    assert calls_in(compacted(messages, keep_tools=("kept",))) == ["a", "kept", "newest"]
    assert calls_in(compacted(messages, preserve_recent_turns=1)) == ["a", "b", "newest"]


def test_the_note_names_the_calls():
    messages = [ChatMessage.from_system("Be brief."), ChatMessage.from_user("Hi")]
    for number in range(3):
        messages += pair("read_file", path=str(number))
    messages += [*pair("search", q="a"), *pair("search", q="b"), ChatMessage.from_assistant("Ok"), TASK, *NEWEST]
    result = compacted(messages)
    note = result[1]
    assert note.role is ChatRole.USER
    assert "read_file x3, search x2" in note.text
    assert note.meta["context_compaction"]["strategy"] == "selective_pruning"
    assert note.meta["context_compaction"]["removed_messages"] == 10
    assert result[0] is messages[0]


def test_the_note_stands_with_the_task_when_its_steps_went():
    result = compacted([ChatMessage.from_user("Hi"), ChatMessage.from_assistant("Hello"), TASK, *pair("a"), *NEWEST])
    assert result[2] is TASK
    assert is_omission_note(result[3])


def test_a_second_pass_folds_the_first_note():
    first = compacted([TASK, *pair("a"), *NEWEST])
    second = compacted([*first, *pair("a"), *pair("b")])
    notes = [message for message in second if is_omission_note(message)]
    assert len(notes) == 1
    assert notes[0].meta["context_compaction"]["removed_messages"] == 6
    assert notes[0].meta["context_compaction"]["removed_calls"] == {"a": 2, "newest": 1}


@pytest.mark.parametrize("call_id", ["0", None])
def test_real_transcripts_repeat_ids_or_leave_them_out(call_id):
    messages = [
        TASK,
        *pair("a", "A" + FILLER, call_id=call_id),
        *pair("b", "B" + FILLER, call_id=call_id),
        *pair("c", "C", call_id=call_id),
    ]
    result = compacted(messages, note=None)
    assert texts(result) == [TASK.text, "", "C"]


def test_equal_ids_in_one_batch():
    messages = [TASK, *batch("a", "b", "c", ids="000"), *NEWEST]
    result = compacted(messages, size(messages) - 1, note=None)
    assert calls_in(result) == ["b", "c", "newest"]
    assert texts(result)[2].startswith("b: ")


def test_two_results_in_one_message():
    calls = [ToolCall("a", {}, id="1"), ToolCall("b", {}, id="2")]
    results = [ToolCallResult(FILLER, origin=call, error=False) for call in calls]
    messages = [
        TASK,
        ChatMessage.from_assistant(tool_calls=calls),
        ChatMessage(_role=ChatRole.TOOL, _content=results),
        *NEWEST,
    ]
    result = compacted(messages, size(messages) - 1, note=None)
    assert calls_in(result) == ["b", "newest"]
    assert provider_fault(result) is None


def test_nothing_to_do():
    assert compacted([TASK, *NEWEST], 10_000) is None
    assert compacted([TASK, *NEWEST]) is None
    assert compacted([]) is None


def test_a_counter_for_whole_conversations_is_asked_a_few_times():
    messages, provider = run_of(200), RemoteCounter(lambda messages: 3 * size(messages))
    target = 3 * size(messages) // 2
    result = SelectivePruningCompactor(note=None).compact(messages, target, provider)
    assert 3 * size(result) <= target < 3 * (size(result) + size(messages[2:4]))
    assert provider.requests <= 20
    assert provider.rejected == []


def test_in_yaml():
    pipeline = Pipeline()
    pipeline.add_component("compactor", SelectivePruningCompactor(keep_tools=["read"], note="{num_removed} gone"))
    again = Pipeline.loads(pipeline.dumps()).get_component("compactor")
    assert (again.keep_tools, again.note, again.min_keep_steps) == (("read",), "{num_removed} gone", 1)
    report = again.run(messages=run_of(20), target_tokens=500)["report"]
    assert report.strategy == "selective_pruning"
    assert report.compacted


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="`min_keep_steps` must be at least 0, got -1"):
        SelectivePruningCompactor(min_keep_steps=-1)
