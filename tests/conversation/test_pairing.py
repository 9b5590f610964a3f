# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

from difflib import SequenceMatcher

import pytest
from haystack.dataclasses import ChatMessage, ChatRole, TextContent, ToolCall, ToolCallResult
from hypothesis import given
from hypothesis import strategies as st
from samples import step, texts

from haystack_compaction import pin, repair_tool_pairs
from haystack_compaction.conversation.repair import is_valid, repaired, repaired_messages
from haystack_compaction.testing import provider_fault


def call(call_id: str | None, name: str = "search") -> ToolCall:
    return ToolCall(tool_name=name, arguments={}, id=call_id)


def result(call_id: str | None, text: str = "found", name: str = "search") -> ChatMessage:
    return ChatMessage.from_tool(text, origin=call(call_id, name))


def calling(*call_ids: str | None) -> ChatMessage:
    return ChatMessage.from_assistant(tool_calls=[call(call_id) for call_id in call_ids])


USER = ChatMessage.from_user("Go on.")


def test_an_intact_conversation_keeps_its_objects():
    messages = [USER, *step("search", "one"), *step("search", "two"), ChatMessage.from_assistant("Done.")]
    repaired = repair_tool_pairs(messages)
    assert repaired is not messages
    assert list(map(id, repaired)) == list(map(id, messages))


def test_the_same_id_in_every_step_pairs_by_position():
    messages = [USER]
    for number in range(5):
        messages += step("search", f"result {number}", call_id="0")
    assert texts(repair_tool_pairs(messages)) == texts(messages)


def test_ids_that_are_left_out_pair_by_position():
    messages = [USER, calling(None, None), result(None, "first"), result(None, "second")]
    assert list(map(id, repair_tool_pairs(messages))) == list(map(id, messages))


def test_an_id_left_out_on_one_side_is_filled_in():
    repaired = repair_tool_pairs([USER, calling("a"), result(None)])
    assert repaired[2].tool_call_result.origin.id == "a"


def test_a_user_message_between_call_and_result_moves_behind_the_result():
    messages = [calling("a", "b"), result("a"), USER, result("b")]
    assert repair_tool_pairs(messages) == [messages[0], messages[1], messages[3], USER]


def test_a_result_that_comes_after_a_later_call_finds_its_own_by_id():
    messages = [USER, calling("a"), calling("b"), result("b", "of b"), result("a", "of a")]
    assert texts(repair_tool_pairs(messages))[1:] == ["", "of a", "", "of b"]


def test_a_result_without_a_call_is_dropped():
    assert repair_tool_pairs([USER, result("x"), *step("search", "y"), result("z")])[1:] == step("search", "y")


def test_a_second_result_for_the_same_call_is_dropped():
    messages = [USER, calling("a"), result("a", "first"), result("a", "second"), USER]
    assert texts(repair_tool_pairs(messages)) == ["Go on.", "", "first", "Go on."]


def test_a_call_without_a_result_gets_one_that_says_so():
    repaired = repair_tool_pairs([calling("a", "b"), result("a"), USER])
    assert [message.role for message in repaired] == [ChatRole.ASSISTANT, ChatRole.TOOL, ChatRole.TOOL, ChatRole.USER]
    assert repaired[2].tool_call_result.origin.id == "b"
    assert repaired[2].tool_call_result.error


def test_calls_at_the_very_end_are_left_to_whoever_runs_them():
    messages = [USER, calling("a")]
    assert repair_tool_pairs(messages) == messages
    assert len(repair_tool_pairs(messages, keep_pending=False)) == 3


def test_several_results_in_one_message_become_one_message_each_and_stay_pinned():
    both = ChatMessage(
        _role=ChatRole.TOOL, _content=[ToolCallResult("1", call("a"), False), ToolCallResult("2", call("b"), False)]
    )
    repaired = repair_tool_pairs([USER, calling("a", "b"), pin(both)])
    assert [message.tool_call_result.result for message in repaired[2:]] == ["1", "2"]
    assert all(message.meta["pinned"] for message in repaired[2:])


@pytest.mark.parametrize("calls", [["0", "0"], [None, None], ["0", None]])
def test_a_batch_without_distinct_ids_is_answered_call_by_call(calls):
    messages = [USER, calling(*calls), *(result(call_id, f"r{n}") for n, call_id in enumerate(calls)), USER]
    assert texts(repair_tool_pairs(messages))[2:4] == ["r0", "r1"]
    assert provider_fault(repair_tool_pairs(messages)) is None


def test_the_input_is_left_as_it_is():
    messages = [USER, result("x"), calling("a"), USER, result("a")]
    before = [message.to_dict() for message in messages]
    repair_tool_pairs(messages)
    assert [message.to_dict() for message in messages] == before


def test_thousands_of_orphans_take_no_quadratic_time():
    """Counts the work through the ids that are compared, as a clock would fail on a busy machine."""
    comparisons = 0

    class CountedId(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal comparisons
            comparisons += 1
            return str.__eq__(self, other)

    messages = [USER]
    for number in range(2_000):
        messages.append(calling(CountedId(f"call {number}")))
    for number in range(2_000):
        messages.append(result(CountedId(f"other {number}")))
    repair_tool_pairs(messages)
    assert comparisons < 40_000


def test_what_a_result_consists_of_is_kept():
    parts = ChatMessage.from_tool([TextContent("a"), TextContent("b")], origin=call("x"), error=True, meta={"k": 1})
    repaired = repair_tool_pairs([USER, calling("x"), USER, parts])
    assert repaired[2] is parts


@pytest.mark.parametrize("result", ["", " \n", [], [TextContent("")]], ids=repr)
def test_a_result_without_any_output_says_so(result):
    """Clients make a text block of it, and Anthropic takes no blank one."""
    call, answer = step("run", "x")
    empty = ChatMessage.from_tool(result, origin=answer.tool_call_result.origin)
    messages = [ChatMessage.from_user("Go on."), call, empty]
    assert not is_valid(messages)
    fixed = repaired(messages)
    assert fixed[2].tool_call_result.result == "(no output)"
    assert is_valid(fixed)
    assert repaired_messages(messages, fixed) == 1


@pytest.mark.parametrize(
    ("after", "number"),
    [
        (["a", "b", "c", "d"], 0),
        (["a", "b", "d"], 1),
        (["a", "new", "c", "d"], 1),
        (["a", "b", "c", "new", "d", "new"], 2),
        (["a", "c", "b", "d"], 2),
        ([], 4),
    ],
)
def test_how_many_messages_a_repair_touched(after, number):
    messages = {name: ChatMessage.from_user(name) for name in "abcd"}
    repaired_ones = [messages.get(name) or ChatMessage.from_user(name) for name in after]
    assert repaired_messages(list(messages.values()), repaired_ones) == number


@given(st.lists(st.integers(0, 30), unique=True), st.lists(st.integers(0, 30), unique=True))
def test_the_number_of_repairs_is_that_of_a_shortest_edit(before, after):
    messages = [ChatMessage.from_user(str(number)) for number in range(31)]
    number = repaired_messages([messages[place] for place in before], [messages[place] for place in after])
    opcodes = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    by_difflib = sum(max(b - a, d - c) for tag, a, b, c, d in opcodes if tag != "equal")
    # difflib looks for long blocks first, and so may miss the longest common part.
    assert number <= by_difflib
    assert (number == 0) == (before == after)
    assert number >= abs(len(before) - len(after))
