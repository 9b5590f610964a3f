# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import pytest
from haystack.dataclasses import ChatMessage, ChatRole, TextContent, ToolCall
from haystack.token_counters import ApproximateTokenCounter
from hypothesis import given
from hypothesis import strategies as st

from haystack_compaction.testing import conversations
from haystack_compaction.tokens.approximate import approximate_count
from haystack_compaction.tokens.ledger import TokenLedger

CALL = ToolCall("search", {"query": 'Ebbe "und" Flut', "limit": 10}, id="call_1")


@given(messages=conversations(broken=True), characters_per_token=st.sampled_from([1.0, 2.5, 4.0]))
def test_agrees_with_the_counter(messages, characters_per_token):
    counter = ApproximateTokenCounter(chars_per_token=characters_per_token)
    count = approximate_count(counter)
    assert list(map(count, messages)) == [counter.count([message]) for message in messages]


@pytest.mark.parametrize(
    "message",
    [
        ChatMessage.from_assistant("Two at once.", tool_calls=[CALL, CALL]),
        ChatMessage.from_assistant(tool_calls=[CALL]),
        ChatMessage.from_assistant("Done.", reasoning="It is full moon."),
        ChatMessage.from_tool("no such port", origin=CALL, error=True),
        ChatMessage.from_tool([TextContent("high"), TextContent("low")], origin=CALL),
        ChatMessage(_role=ChatRole.USER, _content=[TextContent("one"), TextContent("two")]),
        ChatMessage(_role=ChatRole.USER, _content=[]),
    ],
)
def test_agrees_on_every_shape(message):
    counter = ApproximateTokenCounter(chars_per_token=1.0)
    assert approximate_count(counter)(message) == counter.count([message])


def test_a_counter_that_writes_otherwise_is_asked(monkeypatch):
    counter = ApproximateTokenCounter()
    monkeypatch.setattr(ApproximateTokenCounter, "count", lambda self, messages, tools=None: 7 * len(messages))
    assert approximate_count(counter)(ChatMessage.from_user("Hello")) == 7


def test_a_subclass_is_asked():
    class Doubling(ApproximateTokenCounter):
        def count(self, messages, tools=None):
            return 2 * super().count(messages, tools)

    message = ChatMessage.from_user("How high is the tide at noon?" * 20)
    doubled, single = (TokenLedger(counter).measure([message]) for counter in (Doubling(), ApproximateTokenCounter()))
    assert doubled == 2 * single
