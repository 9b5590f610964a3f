# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import json

import pytest
from haystack import Pipeline
from haystack.dataclasses import ChatMessage, ChatRole, FileContent, ImageContent, TextContent, ToolCall, ToolCallResult
from haystack.hooks.compaction import ToolResultPruningCompactor as HaystacksCompactor
from samples import run_of, step

from haystack_compaction import EstimateTokenCounter, pin
from haystack_compaction.compactors.tool_result_pruning import ToolResultPruningCompactor
from haystack_compaction.testing import check_compactor, provider_fault

LONG = "first of many lines\n" + "all checks passed " * 200
TASK = ChatMessage.from_user("Audit every service.")
NEWEST = step("newest", "fine", call_id="n")


def size(messages):
    return EstimateTokenCounter().count(messages)


def compacted(messages, target_tokens=1, **options):
    return ToolResultPruningCompactor(**options).compact(messages, target_tokens, EstimateTokenCounter())


def results(messages):
    return [result.result for message in messages for result in message.tool_call_results]


def writing_step(arguments, *, reasoning=None, meta=None, extra=None):
    call = ToolCall("write_file", arguments, id="w", extra=extra)
    message = ChatMessage.from_assistant(tool_calls=[call], reasoning=reasoning, meta=meta or {})
    return [message, ChatMessage.from_tool("ok", origin=call)]


@pytest.mark.parametrize(
    "options", [{}, {"min_tokens": 0}, {"min_tokens": 0, "placeholder": "", "preserve_recent_turns": 1}]
)
def test_promises(options):
    check_compactor(ToolResultPruningCompactor(**options), max_examples=60)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_prunes_the_results_that_haystack_prunes(share):
    messages = run_of(20)
    target, placeholder = int(size(messages) * share), "[{tool_name}]"
    ours = compacted(messages, target, placeholder=placeholder, min_tokens=50)
    theirs = HaystacksCompactor(placeholder=placeholder, min_tokens=50).compact(
        messages, target, EstimateTokenCounter()
    )
    assert ours == theirs


def test_results_become_placeholders_in_place():
    messages = [TASK, *step("read_log", LONG), *NEWEST]
    messages[2] = ChatMessage.from_tool(LONG, origin=messages[1].tool_calls[0], error=True, meta={"source": "disk"})
    result = compacted(messages)
    tokens = size([messages[2]])
    pruned = result[2].tool_call_result
    assert "read_log" in pruned.result
    assert f"{tokens} tokens" in pruned.result
    assert '"first of many lines"' in pruned.result
    assert pruned.error
    assert pruned.origin is messages[2].tool_call_result.origin
    assert result[2].meta == {
        "source": "disk",
        "context_compaction": {"strategy": "tool_result_pruning", "original_tokens": tokens},
    }
    assert [result[0], result[1], *result[3:]] == [messages[0], messages[1], *NEWEST]
    assert messages[2].tool_call_result.result == LONG


def test_the_default_placeholder_invites_no_second_call():
    [pruned, _] = results(compacted([TASK, *step("charge_card", LONG), *NEWEST]))
    assert "call `" not in pruned.lower()
    assert "again" not in pruned


def test_only_known_fields_of_a_placeholder_are_replaced():
    messages = [TASK, *step("read", "{num_tokens} {tool_name} " + LONG), *NEWEST]
    [pruned, _] = results(compacted(messages, placeholder='{"tool": "{tool_name}", "was": "{first_line}", "x": {}}'))
    assert pruned == '{"tool": "read", "was": "{num_tokens} {tool_name} first of many lines", "x": {}}'


def test_stops_at_the_target_oldest_first():
    messages = [TASK, *step("a", LONG), *step("b", LONG), *NEWEST]
    assert results(compacted(messages, size(messages) - 1))[1:] == [LONG, "fine"]


def test_what_is_left_alone():
    offloaded = step("read", LONG)
    offloaded[1] = ChatMessage.from_tool(LONG, origin=offloaded[0].tool_calls[0], meta={"tool_result_offloaded": True})
    pinned = step("read", LONG)
    pinned[1] = pin(pinned[1])
    small = step("read", "short")
    messages = [TASK, *offloaded, *pinned, *small, *step("kept", LONG), *step("newest", LONG)]
    assert compacted(messages, keep_tools=["kept"]) is None
    assert results(compacted(messages, keep_tools=["kept"], skip_meta_keys=()))[0] != LONG


def test_what_was_pruned_stays_as_it_is():
    once = compacted([TASK, *step("a", LONG), *NEWEST])
    again = compacted([*once, *step("b", LONG), *NEWEST])
    assert again[2] is once[2]
    assert compacted(again, min_tokens=0, keep_tools=["newest"]) is None


def test_recent_turns_stay():
    messages = [
        TASK,
        *step("a", LONG),
        ChatMessage.from_assistant("Ok"),
        TASK,
        *step("b", LONG),
        ChatMessage.from_assistant("Ok"),
        TASK,
        *NEWEST,
    ]
    assert results(compacted(messages, preserve_recent_turns=1))[1:] == [LONG, "fine"]


def test_every_result_of_a_message_with_several():
    calls = [ToolCall("read", {}, id="1"), ToolCall("list", {}, id="2")]
    several = ChatMessage(
        _role=ChatRole.TOOL, _content=[ToolCallResult(LONG, origin=call, error=False) for call in calls]
    )
    result = compacted([TASK, ChatMessage.from_assistant(tool_calls=calls), several, *NEWEST])
    assert provider_fault(result) is None
    assert [LONG in text for text in results(result)] == [False, False, False]
    assert ["`read`" in results(result)[0], "`list`" in results(result)[1]] == [True, True]


def test_images_and_files_inside_results():
    call = ToolCall("screenshot", {}, id="0")
    image = ImageContent("aGk=", mime_type="image/png", meta={"file_path": "pier.png"}, validation=False)
    file = FileContent("aGk=", mime_type="application/pdf", filename="tides.pdf", validation=False)
    messages = [
        TASK,
        ChatMessage.from_assistant(tool_calls=[call]),
        ChatMessage.from_tool([image, file], origin=call),
        *NEWEST,
    ]
    [pruned, _] = results(compacted(messages))
    assert "[Image pier.png image/png removed]" in pruned
    messages[2] = ChatMessage.from_tool([TextContent("A pier."), image], origin=call)
    assert "A pier." in results(compacted(messages))[0]


def test_long_arguments_shrink_inside_valid_json():
    arguments = {"path": "a.txt", "mode": 7, "edits": [{"new": "x" * 3000, "line": None}], "none": {}}
    messages = [TASK, *step("start", "go"), *writing_step(arguments), *NEWEST]
    result = compacted(messages)
    shrunk = result[3].tool_calls[0].arguments
    assert {**shrunk, "edits": None} == {**arguments, "edits": None}
    assert shrunk["edits"][0]["line"] is None
    assert len(shrunk["edits"][0]["new"]) == 200
    assert "[... 2,834 characters removed ...]" in shrunk["edits"][0]["new"]
    assert json.loads(json.dumps(shrunk)) == shrunk
    assert arguments["edits"][0]["new"] == "x" * 3000
    assert result[3].meta["context_compaction"]["original_tokens"] == size([messages[3]])
    assert compacted(result, min_tokens=20) is None


def test_shrunk_calls_lose_the_reasoning_and_replay_data_that_came_with_them():
    old = writing_step({"text": "x" * 3000}, reasoning="hm", meta={"thought_signatures": ["s"]})
    result = compacted([TASK, *old, ChatMessage.from_assistant("Ok"), TASK, *NEWEST])
    assert not result[1].reasonings
    assert "thought_signatures" not in result[1].meta


@pytest.mark.parametrize(
    "options",
    [{"reasoning": "opener"}, {"meta": {"thought_signatures": ["s"]}}, {"reasoning": "r", "extra": {"call_id": "1"}}],
)
def test_calls_that_must_stay_as_they_are(options):
    messages = [TASK, *writing_step({"text": "x" * 3000}, **options), *NEWEST]
    assert compacted(messages) is None


def test_arguments_that_contain_themselves_crash_nothing():
    loop = {"text": "x" * 3000}
    loop["self"] = loop
    result = compacted([TASK, *step("a", LONG), *writing_step(loop), *NEWEST])
    assert result[3].tool_calls[0].arguments is loop


def test_results_go_before_arguments():
    messages = [TASK, *step("a", "x"), *writing_step({"text": "x" * 3000}), *step("b", LONG), *NEWEST]
    result = compacted(messages, size(messages) - 1)
    assert result[3] is messages[3]
    assert result[6] is not messages[6]


def test_in_yaml():
    pipeline = Pipeline()
    pipeline.add_component(
        "compactor", ToolResultPruningCompactor(min_tokens=5, skip_meta_keys=["a"], keep_tools=["b"])
    )
    again = Pipeline.loads(pipeline.dumps()).get_component("compactor")
    assert (again.min_tokens, again.skip_meta_keys, again.keep_tools) == (5, ("a",), ("b",))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_keep_steps": 0}, "`min_keep_steps` must be at least 1, got 0"),
        ({"min_tokens": -1}, "`min_tokens` must be at least 0"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ToolResultPruningCompactor(**options)
