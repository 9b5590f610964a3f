# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from haystack.dataclasses import ChatMessage, ImageContent, ToolCall
from hypothesis import given
from hypothesis import strategies as st

from haystack_compaction.cli.transcripts import Transcript, TranscriptError, read_transcript, read_transcripts


def openai_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
OPENAI: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is this?"}, IMAGE], "name": "ann"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Look.",
        "tool_calls": [openai_call("0", "zoom", '{"by": 2}'), openai_call("1", "crop", "")],
    },
    {"role": "tool", "tool_call_id": "0", "content": "zoomed ✓"},
    {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "cropped"}]},
    {"role": "assistant", "content": None, "tool_calls": [openai_call("0", "ocr", "{}")], "extra": [1.0, {"x": None}]},
    {"role": "tool", "tool_call_id": "0", "content": ""},
    {"role": "assistant", "content": None, "refusal": "I can't read it."},
    {"role": "user", "content": [AUDIO, {"type": "file", "file": {"file_id": "f-1"}}]},
]

CALL = ToolCall("search", {"query": "tides"}, id="c1")
HAYSTACK = [
    message.to_dict()
    for message in (
        ChatMessage.from_system("Be brief."),
        ChatMessage.from_user("When is high tide?", meta={"pinned": True}),
        ChatMessage.from_assistant(tool_calls=[CALL], reasoning="A search."),
        ChatMessage.from_tool("06:12", origin=CALL),
        ChatMessage.from_assistant("At 06:12. \u2028 Ça va?"),
    )
]


def write(folder: Path, text: str | bytes, name: str = "chat.json") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def lines(items: list[Any]) -> str:
    return "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items)


def error_of(folder: Path, text: str | bytes, **options: Any) -> str:
    with pytest.raises(TranscriptError) as raised:
        read_transcript(write(folder, text), **options)
    return str(raised.value)


def written(transcript: Transcript, messages: list[ChatMessage], folder: Path) -> str:
    transcript.write(messages, folder / "out.json", force=True)
    return (folder / "out.json").read_text("utf-8")


@pytest.mark.parametrize("messages", [OPENAI, HAYSTACK], ids=["openai", "haystack"])
@pytest.mark.parametrize(
    "render",
    [
        lambda items: json.dumps(items, ensure_ascii=False),
        lambda items: json.dumps(items, ensure_ascii=False, separators=(",", ":")),
        lambda items: json.dumps(items, ensure_ascii=False, indent=2) + "\n",
        lambda items: json.dumps(items, ensure_ascii=False, indent="\t"),
        lambda items: json.dumps({"model": "m", "messages": items, "tools": [{"a": 1}]}, ensure_ascii=False, indent=4),
        lines,
    ],
    ids=["list", "compact", "indented", "tabs", "object", "lines"],
)
def test_what_was_kept_is_written_exactly_as_it_was_read(messages: list[Any], render: Any, tmp_path: Path) -> None:
    text = render(messages)
    transcript = read_transcript(write(tmp_path, text))
    assert len(transcript.messages) == len(messages)
    assert written(transcript, transcript.messages, tmp_path) == text


def test_a_part_of_the_messages_is_written_with_all_their_fields(tmp_path: Path) -> None:
    transcript = read_transcript(write(tmp_path, json.dumps({"id": 7, "messages": OPENAI})))
    note = ChatMessage.from_user("[3 messages were removed]", meta={"context_compaction": {"strategy": "s"}})
    result = json.loads(written(transcript, [transcript.messages[0], note, *transcript.messages[5:]], tmp_path))
    expected_note = {"role": "user", "content": "[3 messages were removed]"}
    assert result == {"id": 7, "messages": [OPENAI[0], expected_note, *OPENAI[5:]]}


def test_results_in_openai_format_know_the_tool_that_they_come_from(tmp_path: Path) -> None:
    messages = read_transcript(write(tmp_path, json.dumps(OPENAI))).messages
    origins = [message.tool_call_results[0].origin for message in messages if message.tool_call_results]
    # The id "0" is used twice: position decides.
    assert [origin.tool_name for origin in origins] == ["zoom", "crop", "ocr"]
    assert origins[0].arguments == {"by": 2}
    assert messages[2].texts == []
    assert messages[2].reasoning is not None
    assert isinstance(messages[1].image, ImageContent)
    assert messages[1].image.detail == "low"
    assert messages[7].text == "I can't read it."


def test_a_late_result_is_found_by_its_id(tmp_path: Path) -> None:
    late = [OPENAI[2], OPENAI[3], OPENAI[5], OPENAI[6], {"role": "tool", "tool_call_id": "1", "content": "late"}]
    messages = read_transcript(write(tmp_path, json.dumps(late))).messages
    assert messages[-1].tool_call_results[0].origin.tool_name == "crop"


def test_legacy_function_calls(tmp_path: Path) -> None:
    legacy = [
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": None, "function_call": {"name": "clock", "arguments": "{}"}},
        {"role": "function", "name": "clock", "content": "noon"},
    ]
    transcript = read_transcript(write(tmp_path, json.dumps(legacy)))
    result = transcript.messages[2].tool_call_results[0]
    assert (result.origin.tool_name, result.result) == ("clock", "noon")
    copies = [ChatMessage.from_dict(message.to_dict()) for message in transcript.messages]
    assert json.loads(written(transcript, copies, tmp_path)) == legacy


def test_messages_that_were_rewritten_are_converted(tmp_path: Path) -> None:
    transcript = read_transcript(write(tmp_path, json.dumps(OPENAI)))
    copies = [ChatMessage.from_dict(message.to_dict()) for message in transcript.messages]
    result = json.loads(written(transcript, copies, tmp_path))
    assert result[:2] == OPENAI[:2]
    assert result[2]["tool_calls"][0] == OPENAI[2]["tool_calls"][0]
    assert result[3:5] == OPENAI[3:5]
    assert result[8]["content"][1] == OPENAI[8]["content"][1]


def test_pins_in_the_meta_of_openai_messages_are_read(tmp_path: Path) -> None:
    item = {"role": "user", "content": "x", "tool_calls": [], "meta": {"pinned": True}}
    assert read_transcript(write(tmp_path, json.dumps([item]))).messages[0].meta["pinned"] is True


def test_older_haystack_formats(tmp_path: Path) -> None:
    old = [
        {"role": "system", "content": "Be brief.", "name": None, "meta": {}},
        {"_role": "user", "_content": [{"text": "Hello"}], "_name": None, "_meta": {"a": 1}},
    ]
    transcript = read_transcript(write(tmp_path, json.dumps(old)))
    assert [message.text for message in transcript.messages] == ["Be brief.", "Hello"]
    assert transcript.messages[1].meta == {"a": 1}
    assert json.loads(written(transcript, transcript.messages, tmp_path)) == old


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    assert len(read_transcript(write(tmp_path, b"\xef\xbb\xbf" + json.dumps(OPENAI).encode())).messages) == 9


def test_lone_surrogates_survive(tmp_path: Path) -> None:
    text = '[{"role": "user", "content": "\\ud83d?"}]'
    transcript = read_transcript(write(tmp_path, text))
    assert written(transcript, transcript.messages, tmp_path) == text


@given(content=st.text(min_size=1), indent=st.sampled_from([None, 1, 3]))
def test_any_text_survives(content: str, indent: int | None, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    for items in ([{"role": "user", "content": content}], [ChatMessage.from_user(content).to_dict()]):
        transcript = read_transcript(write(folder, json.dumps(items, indent=indent)))
        assert transcript.messages[0].text == content
        assert json.loads(written(transcript, transcript.messages, folder)) == items


@pytest.mark.parametrize("render", [lines, json.dumps], ids=["lines", "list"])
def test_one_of_several_conversations_is_picked(render: Any, tmp_path: Path) -> None:
    rows = [{"id": number, "messages": [{"role": "user", "content": f"row {number}"}]} for number in (1, 2, 3)]
    assert "3 conversations" in error_of(tmp_path, render(rows))
    assert "--row" in error_of(tmp_path, render(rows))
    assert "no row 4" in error_of(tmp_path, render(rows), row=4)
    transcript = read_transcript(write(tmp_path, render(rows)), row=2)
    assert json.loads(written(transcript, transcript.messages, tmp_path)) == rows[1]


def test_the_only_conversation_of_a_file_needs_no_row(tmp_path: Path) -> None:
    path = write(tmp_path, lines([{"id": 1, "messages": HAYSTACK}]))
    assert len(read_transcript(path).messages) == len(read_transcript(path, row=1).messages) == 5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xff\xfe[\x00", "is not UTF-8: byte 1"),
        ('[{"role": "user",\n "content" "x"}]', "is not JSON: line 2, column 12"),
        ('{"role": "user", "content": "x"}\n{"role": \n', "is not JSON lines: line 2, column"),
        ("[" * 100_000, "nested too deeply"),
        ("[" + "1" * 5000 + "]", "can't be read as JSON"),
        ("12", "no list of messages"),
        ('"text"', "no list of messages"),
        ('{"chat": []}', "no list of messages"),
        ('{"messages": {}}', "`messages` are no list"),
        ('{"messages": []}', "holds no messages"),
        ("[]", "holds no messages"),
        ('[{"role": "user", "content": "x"}, 3]', "message 2: is no object"),
        ('[{"content": "x"}]', "message 1: has no `role`"),
        ('[{"role": "user", "content": "x"}, {"role": "alien", "content": "x"}]', "message 2: unknown role 'alien'"),
        ('[{"role": "user"}]', "message 1: has no `content`"),
        ('[{"role": "user", "content": null}]', "message 1: has no `content`"),
        ('[{"role": "user", "content": 5}]', "message 1: its `content` must be a text or a list of parts"),
        ('[{"role": "user", "content": [{"type": "text"}]}]', "message 1: a part of its `content`"),
        ('[{"role": "assistant", "content": null}]', "message 1: has neither `content` nor `tool_calls`"),
        ('[{"role": "assistant", "tool_calls": [{"id": "1"}]}]', "message 1: a tool call has no `function`"),
        ('[{"role": "assistant", "tool_calls": [{"function": {}}]}]', "message 1: a tool call has no function `name`"),
        (
            '[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{\\"a\\": "}}]}]',
            "message 1: the arguments of its call of 'f' are not JSON",
        ),
        (
            '[{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}]',
            "message 1: the arguments of its call of 'f' must be an object, not a list",
        ),
        ('[{"role": "tool", "tool_call_id": 4, "content": "x"}]', "message 1: its `tool_call_id` must be a text"),
        ('[{"role": "alien", "content": [{"text": "x"}]}]', "message 1: is no message in Haystack's format"),
        ('[{"role": "user", "content": []}, {"_role": "user", "_content": []}]', "message 1: has no `content`"),
        ('[{"role": "user", "content": [{"text": 5}]}]', "message 1: its text must be a text"),
        ('[{"role": "user", "content": [{"nonsense": 5}]}]', "message 1: is no message in Haystack's format"),
        (
            '[{"role": "assistant", "content": [{"tool_call": {"tool_name": "f", "arguments": "{}"}}]}]',
            "message 1: a tool call needs",
        ),
    ],
)  # fmt: skip
def test_bad_files_are_refused_with_the_reason(text: str | bytes, reason: str, tmp_path: Path) -> None:
    assert reason in error_of(tmp_path, text)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.json", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(TranscriptError, match=reason):
            read_transcript(path)


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps(OPENAI))
    transcript = read_transcript(path)
    with pytest.raises(TranscriptError, match="--force"):
        transcript.write(transcript.messages[:1], path)
    assert json.loads(path.read_text()) == OPENAI
    path.chmod(0o600)
    transcript.write(transcript.messages[:1], path, force=True)
    assert json.loads(path.read_text()) == OPENAI[:1]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_no_regular_file_is_never_replaced(tmp_path: Path) -> None:
    transcript = read_transcript(write(tmp_path, json.dumps(OPENAI)))
    os.mkfifo(tmp_path / "pipe")
    for path, reason in (
        (tmp_path / "pipe", "no regular file"),
        (tmp_path, "is a directory"),
        (tmp_path / "no" / "out.json", "folder does not exist"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        with pytest.raises(TranscriptError, match=reason):
            transcript.write(transcript.messages, path, force=True)


def test_a_link_keeps_pointing_to_its_file(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps(OPENAI))
    (tmp_path / "link.json").symlink_to(path)
    transcript = read_transcript(path)
    transcript.write(transcript.messages[:2], tmp_path / "link.json", force=True)
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads(path.read_text()) == OPENAI[:2]


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, json.dumps(OPENAI))
    transcript = read_transcript(path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(TranscriptError, match="No space left"):
        transcript.write(transcript.messages[:1], path, force=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["chat.json"]
    assert json.loads(path.read_text()) == OPENAI


def test_all_conversations_of_a_file(tmp_path: Path) -> None:
    rows = [{"messages": OPENAI}, {"messages": HAYSTACK}, HAYSTACK]
    several = write(tmp_path, "\n".join(map(json.dumps, rows)))
    assert [len(transcript.messages) for transcript in read_transcripts(several)] == [9, 5, 5]
    one = write(tmp_path, json.dumps(OPENAI))
    assert [len(transcript.messages) for transcript in read_transcripts(one)] == [9]
    bad = write(tmp_path, json.dumps([{"messages": OPENAI}, {"messages": [{"role": "user"}]}]))
    with pytest.raises(TranscriptError, match="row 2: message 1: has no `content`"):
        read_transcripts(bad)


def test_tools_beside_the_messages(tmp_path: Path) -> None:
    assert read_transcript(write(tmp_path, json.dumps({"messages": OPENAI, "tools": [1]}))).tools == [1]
    assert read_transcript(write(tmp_path, json.dumps(OPENAI))).tools is None


def test_the_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(HAYSTACK).encode())))
    assert len(read_transcript(Path("-")).messages) == 5
