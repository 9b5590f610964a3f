# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import base64
import json

import pytest
from haystack import Pipeline
from haystack.dataclasses import ChatMessage, ChatRole, FileContent, ImageContent, TextContent, ToolCall
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import RemoteCounter, chat, run_of, step

from haystack_compaction import EstimateTokenCounter, pin
from haystack_compaction.compaction_pass import CompactionPass
from haystack_compaction.compactors.truncation import TruncationCompactor
from haystack_compaction.conversation.notes import is_omission_note
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.testing import check_compactor, conversations, provider_fault
from haystack_compaction.tokens.ledger import TokenLedger

SYSTEM = ChatMessage.from_system("Be careful.")
TASK = ChatMessage.from_user("Audit every service.")
STUB_TOKENS = 40

GIANTS = {
    "english": "all checks passed on the pier " * 4000,
    "chinese": "潮水在中午上涨到最高点。" * 4000,
    "base64": base64.b64encode(bytes(range(256)) * 300).decode(),
    "emoji": "🌊👩‍👩‍👧‍👦" * 9000,
    "spaces": "|" + " " * 1_000_000,
    "special tokens": "<|endoftext|>" * 5000,
    "lone surrogates": "\ud83d" * 20_000,
    "json": json.dumps([{"id": number, "ok": True} for number in range(4000)]),
}


def size(messages):
    return EstimateTokenCounter().count(messages)


def compacted(messages, target_tokens, **options):
    return TruncationCompactor(**options).compact(messages, target_tokens, EstimateTokenCounter())


@pytest.mark.parametrize("options", [{}, {"preserve_recent_turns": 1}])
def test_promises(options):
    check_compactor(TruncationCompactor(**options), max_examples=60)


@settings(max_examples=60, deadline=None)
@given(messages=conversations(broken=False), share=st.floats(0, 1))
def test_reaches_every_target_above_the_floor(messages, share):
    def may_stay(message):
        return message.role is ChatRole.SYSTEM or message.meta.get("pinned") or is_omission_note(message)

    floor = sum(size([message]) if may_stay(message) else STUB_TOKENS * len(message) for message in messages)
    target = max(floor, int(size(messages) * share))
    result = compacted(messages, target)
    assert size(messages) <= target if result is None else size(result) <= target


@pytest.mark.parametrize("giant", GIANTS.values(), ids=GIANTS)
@pytest.mark.parametrize("target", [300, 4000])
@pytest.mark.parametrize(
    "place",
    [
        lambda text: [TASK, *step("read", text)],
        lambda text: [ChatMessage.from_user("Look: " + text)],
        lambda text: [TASK, *step("read", "ok", text="I say " + text)],
        lambda text: [TASK, *writing({"path": "a", "content": text})],
        lambda text: [TASK, *writing({"path": "a", "edits": [{"content": [text]}] * 3})],
    ],
    ids=["newest result", "user message", "assistant text", "argument", "nested arguments"],
)
def test_one_giant(giant, target, place):
    messages = [SYSTEM, *place(giant)]
    before = [message.to_dict() for message in messages]
    result = compacted(messages, target)
    assert size(result) <= target
    # What can be kept is kept. Beside a few emoji, a marker takes many characters but few tokens.
    assert size(result) >= target * (0.6 if target > 1000 else 0.25)
    assert len(result) == len(messages)
    assert provider_fault(result) is None
    assert [message.to_dict() for message in messages] == before
    assert "characters removed ...]" in json.dumps([message.to_dict() for message in result])


def writing(arguments, **options):
    call = ToolCall("write", arguments, id="w")
    return [ChatMessage.from_assistant(tool_calls=[call], **options), ChatMessage.from_tool("ok", origin=call)]


def test_head_and_tail_stay_around_a_marker():
    text = "BEGIN " + "x" * 50_000 + " END"
    [_, _, result] = compacted([TASK, *step("read", text)], 500)
    head, _, rest = result.tool_call_result.result.partition("[... ")
    removed, _, tail = rest.partition(" characters removed ...]")
    assert head.startswith("BEGIN x")
    assert tail.endswith("x END")
    assert len(head) + int(removed.replace(",", "")) + len(tail) == len(text)
    assert result.meta["truncated"]["original_tokens"] == size(step("read", text)[1:])


def test_a_batch_of_ten_parallel_results():
    calls = [ToolCall("read", {"n": number}, id="0") for number in range(10)]
    giants = [ChatMessage.from_tool(f"{number} " + GIANTS["english"], origin=call) for number, call in enumerate(calls)]
    result = compacted([TASK, ChatMessage.from_assistant(tool_calls=calls), *giants], 5000)
    assert 4000 <= size(result) <= 5000
    assert [message.tool_call_result.result[0] for message in result[2:]] == list("0123456789")
    assert provider_fault(result) is None


def test_the_largest_contents_are_cut_and_the_small_ones_stay():
    messages = [TASK, *step("a", "short"), *step("b", GIANTS["english"]), *step("c", "x " * 300), *step("d", "new")]
    result = compacted(messages, 2000)
    changed = [index for index, message in enumerate(result) if message is not messages[index]]
    assert changed == [4]


def test_the_newest_step_and_the_task_come_last():
    task = ChatMessage.from_user("Audit this: " + "service " * 1000)
    messages = [
        ChatMessage.from_user("Hi " * 2000),
        ChatMessage.from_assistant("Ho " * 2000),
        task,
        *step("a", "x " * 3000),
        *step("b", "y " * 3000),
    ]
    newest = [task, *messages[-2:]]
    result = compacted(messages, size(newest) + 500)
    assert all(any(message is one for one in result) for message in newest)
    assert size(compacted(messages, 800)) <= 800


def test_recent_turns_come_last_too():
    messages = chat(4, words=4000)
    result = compacted(messages, size(messages[5:]) + 400, preserve_recent_turns=2)
    assert result[5:] == messages[5:]
    assert size(compacted(messages, 500, preserve_recent_turns=2)) <= 500


def test_system_and_pinned_messages_stay():
    late = ChatMessage.from_system("Late. " * 500)
    pinned = pin(ChatMessage.from_user("Never deploy. " * 500))
    messages = [ChatMessage.from_system("Rule. " * 500), pinned, ChatMessage.from_assistant("ok " * 500), late, TASK]
    result = compacted(messages, 10)
    assert [result[index] is messages[index] for index in range(5)] == [True, True, False, True, True]


def test_a_truncated_user_message_is_still_the_task():
    messages = [ChatMessage.from_user("Hi"), ChatMessage.from_assistant("Ho"), ChatMessage.from_user("Audit " * 5000)]
    result = compacted(messages, 300)
    assert "context_compaction" not in result[2].meta
    assert result[2].meta["truncated"] == {"original_tokens": size(messages[2:])}
    assert Conversation(result).task_index == 2


def test_the_mark_of_the_running_task_ends_with_the_pass():
    task = ChatMessage.from_user("Audit " * 5000)
    truncated, _ = CompactionPass(TruncationCompactor(), [task], 300, TokenLedger(), task=task).run()
    assert set(truncated[0].meta) == {"truncated"}


def test_the_report_knows_what_was_rewritten():
    report = TruncationCompactor().run(messages=chat(3, words=400), target_tokens=200)["report"]
    assert (report.rewritten_messages, report.removed_messages, report.reached_target) == (6, 0, True)


def test_repeated_truncation_keeps_one_marker():
    result = [TASK, *step("read", "a" * 40_000 + "z" * 40_000)]
    for target in (3000, 1000, 300, 150):
        result = compacted(result, target)
        head, _, rest = result[2].tool_call_result.result.partition("[... ")
        removed, _, tail = rest.partition(" characters removed ...]")
        assert set(head) == {"a"}
        assert set(tail) == {"z"}
        assert len(head) + int(removed.replace(",", "")) + len(tail) == 80_000
    assert result[2].meta["truncated"]["original_tokens"] == size(step("read", "a" * 40_000 + "z" * 40_000)[1:])


@pytest.mark.parametrize(
    "arguments",
    [
        {"rows": list(range(30_000))},
        {f"key_{number}": number for number in range(5000)},
        {"path": "kept.txt", "table": [["cell", number] for number in range(5000)]},
        {"deep": json.loads("[" * 300 + '"' + "x" * 20_000 + '"' + "]" * 300)},
    ],
    ids=["long list", "many keys", "table", "deep"],
)
def test_arguments_without_long_strings(arguments):
    result = compacted([TASK, *writing(arguments)], 400)
    assert size(result) <= 400
    shortened = result[1].tool_calls[0].arguments
    assert json.loads(json.dumps(shortened)) == shortened
    assert shortened.get("path") == arguments.get("path")


def test_arguments_that_are_no_json_crash_nothing():
    loop = {}
    loop["self"] = loop
    messages = [TASK, *writing(loop), *step("a", GIANTS["english"])]
    assert size(compacted(messages, 1000)) <= 1000


def test_images_and_files_become_placeholders_oldest_first():
    messages = [TASK]
    for number in range(10):
        image = ImageContent("aGk=", mime_type="image/png", meta={"file_path": f"{number}.png"}, validation=False)
        call = ToolCall("screenshot", {}, id=str(number))
        messages += [
            ChatMessage.from_assistant(tool_calls=[call]),
            ChatMessage.from_tool([TextContent("Seen."), image], origin=call),
        ]
    target = size(messages) // 2
    result = compacted(messages, target)
    assert target * 0.8 <= size(result) <= target
    replaced = [isinstance(result[index].tool_call_result.result[1], TextContent) for index in range(2, 21, 2)]
    assert replaced == sorted(replaced, reverse=True)
    assert replaced[0]
    assert not replaced[-1]
    assert result[2].tool_call_result.result[1].text == "[Image 0.png image/png removed]"


def test_files_of_the_user():
    file = FileContent("aGk=", mime_type="application/pdf", filename="tides.pdf", validation=False)
    result = compacted([ChatMessage.from_user(content_parts=["Read this.", file])], 50)
    assert result[0].texts == ["Read this.", "[File tides.pdf application/pdf removed]"]


def test_reasoning_goes_with_the_calls_it_led_to_but_not_from_the_start_of_the_running_loop():
    meta = {"raw_content_for_server_tools": [{}]}
    opener = writing({"text": GIANTS["english"]}, reasoning="opener", meta=meta)
    later = writing({"text": GIANTS["english"]}, reasoning="later", meta=meta)
    result = compacted([TASK, *opener, *later], 500)
    assert [len(message.reasonings) for message in result] == [0, 1, 0, 0, 0]
    assert all("raw_content_for_server_tools" not in message.meta for message in result)


def test_giant_reasoning_goes():
    messages = [TASK, *step("a", "x"), *step("b", "y", reasoning=GIANTS["english"])]
    assert size(compacted(messages, 200)) <= 200


def test_never_a_half_character():
    result = compacted([TASK, *step("read", "\ud83d\ude00" * 9000)], 500)
    text = result[2].tool_call_result.result
    head, tail = text.split("[... ")[0], text.split("...]")[1]
    assert head[-1] == "\ude00"
    assert tail[0] == "\ud83d"


def test_nothing_to_do():
    assert compacted([SYSTEM, TASK], 10_000) is None
    assert compacted([SYSTEM, TASK], 1) is None
    assert compacted([], 1) is None


def test_a_counter_for_whole_conversations():
    provider = RemoteCounter(lambda messages: 3 * size(messages))
    result = TruncationCompactor().compact([*run_of(20), *step("a", GIANTS["chinese"])], 6000, provider)
    assert 3 * size(result) <= 6000
    assert provider.requests <= 15
    assert provider.rejected == []


def test_in_yaml():
    pipeline = Pipeline()
    pipeline.add_component("compactor", TruncationCompactor(preserve_recent_turns=2))
    again = Pipeline.loads(pipeline.dumps()).get_component("compactor")
    assert again.preserve_recent_turns == 2
    assert again.run(messages=run_of(20), target_tokens=900)["report"].tokens_after <= 900
