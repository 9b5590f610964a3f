# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

from dataclasses import replace

from haystack.dataclasses import ChatMessage, FileContent, ImageContent, TextContent, ToolCall
from hypothesis import given
from hypothesis import strategies as st
from samples import chat, run_of, step

from haystack_compaction import SlidingWindowCompactor, ToolResultPruningCompactor, pin
from haystack_compaction.cli.html.conversation import conversation_view
from haystack_compaction.cli.html.data import Block, Part, Row
from haystack_compaction.tokens.ledger import TokenLedger


def rows(before: list[ChatMessage], after: list[ChatMessage]) -> tuple[Row, ...]:
    return conversation_view("view", before, after, TokenLedger()).rows


def signs(before: list[ChatMessage], after: list[ChatMessage]) -> str:
    return "".join(
        {"kept": "=", "removed": "-", "rewritten": "~", "added": "+"}[row.status] for row in rows(before, after)
    )


def blocks(messages: list[ChatMessage]) -> list[Block]:
    return [row.before for row in rows(messages, messages) if row.before]


def test_removed_messages_stand_where_they_were_and_a_note_where_it_is() -> None:
    before = chat(3)
    after = SlidingWindowCompactor().run(messages=before, target_tokens=60)["messages"]
    assert signs(before, after) == "=+" + "-" * (len(before) - len(after) + 1) + "=" * (len(after) - 2)
    note = rows(before, after)[1].after
    assert note is not None
    assert (note.kind, note.role, note.index) == ("note", "user", 1)


def test_a_rewritten_message_stands_beside_what_it_was() -> None:
    before = run_of(12, words=300)
    after = ToolResultPruningCompactor().run(messages=before, target_tokens=1500)["messages"]
    pairs = [row for row in rows(before, after) if row.status == "rewritten"]
    assert pairs
    for row in pairs:
        assert row.before is not None
        assert row.after is not None
        assert row.before.index == row.after.index
        assert row.before.tokens > row.after.tokens
        assert row.before.parts[0].text.startswith("log ")


def test_sizes_are_those_of_the_ledger() -> None:
    messages, ledger = chat(4), TokenLedger()
    view = conversation_view("view", messages, messages, ledger)
    assert sum(row.before.tokens for row in view.rows if row.before) == ledger.count(messages)


def test_steps_are_counted_and_results_belong_to_them() -> None:
    assert [block.step for block in blocks(run_of(2))] == [None, None, 1, 1, 2, 2]


def test_the_task_and_pins_are_marked() -> None:
    messages = chat(1)
    messages[1] = pin(messages[1])
    assert [block.marks for block in blocks(messages)] == [(), ("pinned",), (), ("current task",)]


def test_every_part_is_shown() -> None:
    call = ToolCall(tool_name="draw", arguments={"größe": 2, "when": {"a": [1]}}, id="1")
    picture = ImageContent(base64_image="aGk=", mime_type="image/png", validation=False)
    file = FileContent(base64_data="aGk=", mime_type="text/plain", filename="notes.txt", validation=False)
    messages = [
        ChatMessage.from_user(content_parts=[TextContent("Look:"), picture, file]),
        ChatMessage.from_assistant("I draw.", tool_calls=[call], reasoning="What would they like?"),
        ChatMessage.from_tool([TextContent("Here"), picture], origin=call),
    ]
    user, assistant, tool = (block.parts for block in blocks(messages))
    assert user == (
        Part("text", "Look:"),
        Part("attachment", "", "image image/png"),
        Part("attachment", "", "file notes.txt"),
    )
    assert set(assistant) == {
        Part("reasoning", "What would they like?"),
        Part("text", "I draw."),
        Part("call", '{\n  "größe": 2,\n  "when": {\n    "a": [\n      1\n    ]\n  }\n}', "draw"),
    }
    assert tool == (Part("result", "Here\n(image image/png)", "draw"),)


def test_arguments_that_are_no_json_are_shown() -> None:
    call = ToolCall(tool_name="put", arguments={"what": {1, 2}}, id="1")
    assert "{1, 2}" in blocks([ChatMessage.from_assistant(tool_calls=[call])])[0].parts[0].text


def test_a_conversation_that_no_provider_takes_is_shown() -> None:
    _, orphan = step("read", "result")
    assert [block.kind for block in blocks([pin(orphan), orphan])] == ["tool", "tool"]
    assert rows([], []) == ()


@given(st.lists(st.integers(0, 5), max_size=12), st.data())
def test_every_message_is_in_its_column_once_whatever_a_compactor_returns(
    picks: list[int], data: st.DataObject
) -> None:
    pool = [*chat(2), *step("read", "result")][:6]
    before = [pool[pick] for pick in picks]
    version = st.sampled_from(pool).map(lambda message: replace(message, _meta={"version": 2}))
    after = data.draw(st.lists(st.one_of(st.sampled_from(pool), version), max_size=12))
    found = rows(before, after)
    assert sorted(row.before.index for row in found if row.before) == list(range(len(before)))
    assert [row.after.index for row in found if row.after] == list(range(len(after)))


@given(st.lists(st.booleans(), min_size=8, max_size=8))
def test_the_order_of_the_conversation_before_is_kept_where_messages_were_only_removed(keep: list[bool]) -> None:
    before = chat(4)[:8]
    after = [message for message, kept in zip(before, keep, strict=True) if kept]
    found = rows(before, after)
    assert [row.before.index for row in found if row.before] == list(range(8))
    assert [row.status == "kept" for row in found] == keep
