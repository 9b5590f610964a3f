# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import json
import sqlite3
from pathlib import Path

import pytest
from commands import error_of, json_of, run, write
from haystack.dataclasses import ChatMessage
from samples import chat

from haystack_compaction import SlidingWindowCompactor
from haystack_compaction.archive import ArchiveWriter, SQLiteArchive

WHOLE = chat(20)
ODD_NAME = "[red]ann\x1b[2J"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive of two conversations, and beside it the second of them as it is now."""
    path = tmp_path / "archive.sqlite"
    opened = SQLiteArchive(path)
    for name, targets in ((ODD_NAME, [600]), ("conversation-7", [800, 400])):
        messages = WHOLE
        writer = ArchiveWriter(opened, name)
        for target in targets:
            result = SlidingWindowCompactor().run(messages=messages, target_tokens=target)
            assert writer.write(messages, result["messages"], result["report"])
            messages = result["messages"]
    opened.close()
    write(tmp_path / "now.jsonl", messages)
    return path


def test_all_conversations(archive: Path) -> None:
    data = json_of("history", archive)
    assert [found["conversation"] for found in data] == [ODD_NAME, "conversation-7"]
    assert [found["passes"] for found in data] == [1, 2]
    assert {found["messages"] for found in data} == {len(WHOLE)}
    assert data[0]["archived"] < data[1]["archived"] < len(WHOLE)
    assert data[0]["freed"] < data[1]["freed"]
    output = run("history", archive).stdout
    assert "2 conversations" in " ".join(output.split())
    assert "[red]ann" in output
    assert "\x1b" not in output
    assert max(map(len, output.splitlines())) <= 80


def test_the_passes_over_one_of_them(archive: Path) -> None:
    passes = json_of("history", archive, "--conversation", "conversation-7")
    assert [record["number"] for record in passes] == [1, 2]
    assert [record["report"]["target_tokens"] for record in passes] == [800, 400]
    # The second pass took the note of the first into its own.
    assert [len(record["replaced_notes"]) for record in passes] == [0, 1]
    output = run("history", archive, "--conversation", "conversation-7").stdout
    assert output.count("sliding_window") == 2
    assert max(map(len, output.splitlines())) <= 80


def test_an_empty_archive(tmp_path: Path) -> None:
    opened = SQLiteArchive(tmp_path / "empty.sqlite")
    assert opened.conversations() == []
    opened.close()
    assert "0 conversations" in " ".join(run("history", tmp_path / "empty.sqlite").stdout.split())


def test_the_whole_conversation_comes_back(archive: Path, tmp_path: Path) -> None:
    result = run("export", archive, "conversation-7", "--messages", tmp_path / "now.jsonl")
    assert (result.exit_code, result.stderr) == (0, "")
    assert [ChatMessage.from_dict(json.loads(line)) for line in result.stdout.splitlines()] == WHOLE


def test_what_is_exported_can_be_read_again(archive: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    arguments = ["export", archive, "conversation-7", "--messages", "-", "--output", whole]
    assert run(*arguments, stdin=(tmp_path / "now.jsonl").read_text()).exit_code == 0
    assert json_of("inspect", whole)["messages"] == len(WHOLE)
    assert "--force" in error_of(*arguments)


def test_without_the_rest_it_says_what_is_missing(archive: Path) -> None:
    result = run("export", archive, "conversation-7")
    exported = len(result.stdout.splitlines())
    assert result.exit_code == 0
    assert f"{len(WHOLE) - exported} messages" in result.stderr
    assert exported == json_of("history", archive)[1]["archived"]


@pytest.mark.parametrize("command", [["history"], ["export"]])
def test_what_is_no_archive_is_refused_and_left_alone(command: list[str], tmp_path: Path) -> None:
    arguments = ["conversation-7"] if command == ["export"] else []
    missing, text, other = tmp_path / "missing", tmp_path / "text", tmp_path / "other.sqlite"
    text.write_text("hello")
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE books (title)")
    connection.close()
    before = other.read_bytes()
    assert "there is no such file" in error_of(*command, missing, *arguments)
    assert "can't be read as an archive" in error_of(*command, text, *arguments)
    assert "is no archive" in error_of(*command, other, *arguments)
    assert "there is no such file" in error_of(*command, tmp_path, *arguments)
    assert other.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"text", "other.sqlite"}


def test_a_conversation_that_is_not_there(archive: Path) -> None:
    for arguments in (["history", archive, "--conversation", "x"], ["export", archive, "x"]):
        assert "holds no conversation 'x'" in error_of(*arguments)


def test_an_archive_of_a_newer_version_is_refused(archive: Path) -> None:
    with sqlite3.connect(archive) as connection:
        connection.execute("PRAGMA user_version = 999")
    connection.close()
    assert "newer version" in error_of("history", archive)
