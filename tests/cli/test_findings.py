# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

from haystack.dataclasses import ChatMessage, ToolCall
from samples import run_of, step

from haystack_compaction.cli.findings import Fault, faults, repetitions
from haystack_compaction.conversation.pairing import repair_tool_pairs

CALL = ToolCall("read", {"path": "a"}, id="c1")
OTHER = ToolCall("read", {"path": "b"}, id="c2")
USER = ChatMessage.from_user("Are you there?")


def called(*calls: ToolCall) -> ChatMessage:
    return ChatMessage.from_assistant(tool_calls=list(calls))


def test_nothing_is_wrong_with_a_run() -> None:
    assert faults(run_of(5)) == []
    # Something is about to run them.
    assert faults([USER, called(CALL, OTHER)]) == []


def test_a_call_without_a_result() -> None:
    messages = [USER, called(CALL, OTHER), ChatMessage.from_tool("x", origin=CALL), USER]
    assert faults(messages) == [Fault(2, "a call of read without a result")]


def test_a_result_without_a_call() -> None:
    [fault] = faults([USER, ChatMessage.from_tool("x", origin=CALL), USER])
    assert fault.message == 2
    assert "no call is waiting for" in fault.what


def test_a_result_away_from_its_call() -> None:
    messages = [USER, called(CALL), USER, ChatMessage.from_tool("x", origin=CALL), USER]
    assert faults(messages) == [Fault(4, "a result that does not stand right after its call")]


def test_a_result_with_the_id_of_no_call() -> None:
    messages = [USER, called(CALL), ChatMessage.from_tool("x", origin=ToolCall("read", {}, id=None), error=True), USER]
    assert [fault.message for fault in faults(messages)] == [3]


def test_blank_texts_and_the_order_of_what_is_found() -> None:
    messages = [USER, ChatMessage.from_tool("x", origin=CALL), ChatMessage.from_user("  "), called(CALL), USER]
    assert [fault.message for fault in faults(messages)] == [2, 3, 4]
    assert faults(messages)[1] == Fault(3, "a blank text")


def test_what_was_repaired_is_no_longer_wrong() -> None:
    messages = [USER, called(CALL), USER, ChatMessage.from_tool("x", origin=CALL), called(OTHER), USER]
    assert faults(repair_tool_pairs(messages)) == []


def test_repeated_calls() -> None:
    messages = [USER, *step("read", "same " * 50), *step("read", "other"), *step("read", "same " * 50)]
    messages += [*step("list", "same " * 50), *step("read", "same " * 50)]
    [repetition] = repetitions(messages)
    assert (repetition.tool_name, repetition.messages) == ("read", [2, 6, 10])
    assert repetition.tokens > 70


def test_the_repetition_that_takes_most_room_comes_first() -> None:
    messages = [USER, *2 * step("read", "small"), *2 * step("list", "large " * 50)]
    assert [repetition.tool_name for repetition in repetitions(messages)] == ["list", "read"]
