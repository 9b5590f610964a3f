# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import pytest
from commands import TOOLS
from haystack.dataclasses import (
    ChatMessage,
    ChatRole,
    FileContent,
    ImageContent,
    ReasoningContent,
    TextContent,
    ToolCall,
    ToolCallResult,
)
from hypothesis import given
from hypothesis import strategies as st
from samples import chat, run_of

from haystack_compaction import SlidingWindowCompactor
from haystack_compaction.cli.tool_schemas import tools_from
from haystack_compaction.cli.window_parts import PARTS, window_parts
from haystack_compaction.tokens.ledger import TokenLedger

CALL = ToolCall("read", {"path": "/srv/a.log"}, id="1")
IMAGE = ImageContent("AAAA", "image/png", validation=False)
TEXTS = st.text(max_size=30).map(TextContent)
BLOCKS = TEXTS | st.just(IMAGE) | st.just(FileContent("AAAA", "application/pdf", validation=False))
PARTS_OF_MESSAGES = (
    BLOCKS
    | st.builds(ToolCall, st.sampled_from(["read", "write"]), st.just({"of": 1}))
    | st.builds(ToolCallResult, st.text(max_size=30) | st.lists(BLOCKS, max_size=4), st.just(CALL), st.booleans())
    | st.text(max_size=30).map(ReasoningContent)
)
MESSAGES = st.builds(ChatMessage, st.sampled_from(ChatRole), st.lists(PARTS_OF_MESSAGES, min_size=1, max_size=4))


@given(st.lists(MESSAGES, max_size=6))
def test_the_parts_add_up_to_the_whole(messages: list[ChatMessage]) -> None:
    tools = tools_from(TOOLS)
    parts = window_parts(messages, tools)
    assert sum(part.tokens for part in parts) == TokenLedger().count(messages, tools)
    assert [part.name for part in parts] == [name for name in PARTS if name in {part.name for part in parts}]


def test_each_piece_is_in_its_part() -> None:
    messages = [
        ChatMessage.from_system("Be careful."),
        ChatMessage.from_user("Read it.", meta={"pinned": True}),
        ChatMessage.from_assistant("I will.", tool_calls=[CALL], reasoning="A file, then."),
        ChatMessage.from_tool([TextContent("What is in it. " * 20), IMAGE], origin=CALL),
    ]
    parts = {part.name: part for part in window_parts(messages, tools_from(TOOLS))}
    assert [*parts] == [
        "system",
        "tool schemas",
        "user",
        "assistant",
        "reasoning",
        "call arguments",
        "tool results",
        "images and files",
    ]
    assert parts["tool results"].by_tool == {"read": parts["tool results"].tokens}
    assert parts["tool schemas"].by_tool == {"read_log": parts["tool schemas"].tokens}
    assert parts["images and files"].tokens > 700
    assert {part.count for part in parts.values()} == {1}


def test_what_compaction_wrote_is_a_part_of_its_own() -> None:
    compacted = SlidingWindowCompactor().run(messages=chat(20), target_tokens=300)["messages"]
    assert [part.count for part in window_parts(compacted) if part.name == "notes"] == [1]


def test_the_largest_tool_comes_first() -> None:
    parts = window_parts([*run_of(3), *run_of(1)])
    assert [*parts[-1].by_tool] == ["read_log"]
    small = ToolCall("aaa", {})
    messages = [ChatMessage.from_tool("x", origin=small), ChatMessage.from_tool("long text " * 9, origin=CALL)]
    assert [*window_parts(messages)[0].by_tool] == ["read", "aaa"]


@pytest.mark.parametrize("tools", [(), tools_from(TOOLS)])
def test_nothing(tools: list[object]) -> None:
    assert [part.name for part in window_parts([], tools)] == (["tool schemas"] if tools else [])
