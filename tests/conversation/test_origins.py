# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import pytest
from haystack.dataclasses import ChatMessage, ToolCall

from haystack_compaction import HybridCompactor, SummarizationCompactor, ToolResultPruningCompactor
from haystack_compaction.conversation.origins import with_origins


def result(call_id, content):
    return ChatMessage.from_openai_dict_format({"role": "tool", "tool_call_id": call_id, "content": content})


def call(name, call_id, **arguments):
    return ToolCall(tool_name=name, arguments=arguments, id=call_id)


def names(messages):
    return [part.origin.tool_name for message in messages for part in message.tool_call_results]


def from_openai():
    """A conversation as Haystack reads it from OpenAI's format."""
    messages = [ChatMessage.from_user("Which of the files mentions tides?")]
    for number in range(6):
        tool = "list_orders" if number % 2 else "read_file"
        messages.append(ChatMessage.from_assistant(tool_calls=[call(tool, f"call_{number}", number=number)]))
        messages.append(result(f"call_{number}", "Wind and weather. " * 100))
    return messages


def test_a_conversation_whose_results_have_names_is_handed_through():
    messages = [ChatMessage.from_user("Hi"), ChatMessage.from_tool("noon", origin=call("look_up", "call_1"))]
    assert with_origins(messages) is messages


def test_calls_of_one_message_are_told_apart_by_id():
    calls = [call("read_file", "a"), call("list_orders", "b")]
    messages = [ChatMessage.from_assistant(tool_calls=calls), result("b", "7017"), result("a", "tides")]
    assert names(with_origins(messages)) == ["list_orders", "read_file"]
    assert names(messages) == ["", ""]


def test_ids_that_repeat_are_taken_in_order():
    calls = [call("read_file", "0"), call("list_orders", "0")]
    messages = [ChatMessage.from_assistant(tool_calls=calls), result("0", "tides"), result("0", "7017")]
    assert names(with_origins(messages * 2)) == ["read_file", "list_orders"] * 2


def test_a_result_without_a_call_stays_as_it_is():
    messages = [ChatMessage.from_assistant(tool_calls=[call("read_file", "a")]), result("b", "7017")]
    assert with_origins(messages)[1] == messages[1]


def test_a_named_result_beside_a_nameless_one_takes_its_own_call():
    calls = [call("read_file", "0"), call("list_orders", "0")]
    messages = [
        ChatMessage.from_assistant(tool_calls=calls),
        ChatMessage.from_tool("tides", origin=calls[0]),
        result("0", "7017"),
    ]
    assert names(with_origins(messages)) == ["read_file", "list_orders"]


def test_a_placeholder_names_the_tool():
    pruned = ToolResultPruningCompactor().run(messages=from_openai(), target_tokens=500)["messages"]
    assert "`read_file`" in pruned[2].tool_call_result.result


def test_tools_to_keep_are_kept():
    messages = from_openai()
    pruned = ToolResultPruningCompactor(keep_tools=["list_orders"]).run(messages=messages, target_tokens=500)[
        "messages"
    ]
    assert pruned[4] is messages[4]
    assert pruned[2] is not messages[2]


@pytest.mark.parametrize("compactor", [SummarizationCompactor(min_keep_steps=1), HybridCompactor()])
def test_a_digest_names_tools_and_arguments(compactor):
    compacted = compactor.run(messages=from_openai(), target_tokens=600)["messages"]
    digest = "\n".join(message.text for message in compacted if message.meta.get("context_compaction"))
    assert "read_file(number=" in digest
    assert "list_orders x" in digest


def test_what_is_kept_is_the_same_object():
    messages = from_openai()
    compacted = SummarizationCompactor().run(messages=messages, target_tokens=600)["messages"]
    assert compacted[-1] is messages[-1]
