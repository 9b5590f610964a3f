# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What is special about the archive in a file."""

import multiprocessing
import os
import pickle
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from archive.programs import Run, archive_all
from haystack.dataclasses import ChatMessage

from haystack_compaction.archive import ArchiveError, SQLiteArchive, full_transcript, sqlite

KILLS = int(os.environ.get("ARCHIVE_KILLS", "5"))
SECRET = "zebrafish-4711"


def without_fts5(monkeypatch):
    monkeypatch.setattr(sqlite, "_CREATE_INDEX", sqlite._CREATE_INDEX.replace("fts5", "no_such_module"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "archive.sqlite"


@pytest.mark.parametrize("path", [":memory:", Path(":memory:")])
def test_memory_is_refused_with_what_to_use(path):
    with pytest.raises(ValueError, match="InMemoryDocumentStore"):
        SQLiteArchive(path)


def test_a_negative_timeout_is_refused(path):
    with pytest.raises(ValueError, match="at least 0, got -1"):
        SQLiteArchive(path, busy_timeout=-1)


def test_nothing_is_created_before_it_is_used(path):
    SQLiteArchive(path)
    assert not path.exists()


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
def test_only_its_owner_can_read_it(path):
    before = os.umask(0)
    try:
        archive = SQLiteArchive(path)
        archive_all(archive, "a", [ChatMessage.from_user("hi")])
    finally:
        os.umask(before)
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == ["archive.sqlite", "archive.sqlite-shm", "archive.sqlite-wal"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    archive.close()


def test_what_is_deleted_is_not_in_the_file(path):
    archive = SQLiteArchive(path)
    archive_all(archive, "a", [ChatMessage.from_user(f"{SECRET} {number}") for number in range(50)])
    archive_all(archive, "b", [ChatMessage.from_user("something else")])
    word = SECRET.split("-")[0].encode()
    assert any(word in file.read_bytes() for file in path.parent.iterdir())
    archive.delete("a")
    assert not any(word in file.read_bytes() for file in path.parent.iterdir())
    assert len(archive.search("b", "something")) == 1
    archive.close()


def test_pickled(path):
    archive = SQLiteArchive(path, busy_timeout=3)
    archive_all(archive, "a", [ChatMessage.from_user("hi")])
    again = pickle.loads(pickle.dumps(archive))
    assert again.to_dict() == archive.to_dict()
    assert again.read("a", 0) == archive.read("a", 0)
    again.close()
    archive.close()


def test_a_file_of_a_newer_version_is_refused_and_left_alone(path):
    archive = SQLiteArchive(path)
    archive_all(archive, "a", [ChatMessage.from_user("hi")])
    archive.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ArchiveError, match="its schema is 99"):
        archive.read("a", 0)


def test_a_file_of_an_older_version_is_migrated(path, monkeypatch):
    archive = SQLiteArchive(path)
    archive_all(archive, "a", [ChatMessage.from_user("hi")])
    archive.close()
    monkeypatch.setattr(sqlite, "_MIGRATIONS", [*sqlite._MIGRATIONS, ["ALTER TABLE passes ADD COLUMN colour TEXT"]])
    assert archive.read("a", 0).message.text == "hi"
    archive.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        assert connection.execute("SELECT colour FROM passes").fetchone() == (None,)
    connection.close()


def test_a_migration_that_fails_changes_nothing(path, monkeypatch):
    archive = SQLiteArchive(path)
    archive_all(archive, "a", [ChatMessage.from_user("hi")])
    archive.close()
    known = sqlite._MIGRATIONS
    monkeypatch.setattr(sqlite, "_MIGRATIONS", [*known, ["DROP TABLE passes", "nonsense"]])
    with pytest.raises(sqlite3.OperationalError):
        archive.passes("a")
    monkeypatch.setattr(sqlite, "_MIGRATIONS", known)
    assert len(archive.passes("a")) == 1
    archive.close()


def test_without_fts5_it_searches_all_the_same_and_with_it_again_it_catches_up(path, monkeypatch):
    with monkeypatch.context() as context:
        without_fts5(context)
        archive = SQLiteArchive(path)
        archive_all(
            archive, "a", [ChatMessage.from_user("the blue invoice"), ChatMessage.from_user("a red one 高潮时间")]
        )
        assert [found.position for found in archive.search("a", "invoice")] == [0]
        assert [found.position for found in archive.search("a", "时间")] == [1]
        archive.close()
    assert [found.position for found in archive.search("a", "invoice red")][:2] != []
    archive.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM search WHERE search MATCH 'invoice'").fetchone() == (1,)
    connection.close()


@pytest.mark.parametrize("query", ["👍🏽", "100%_!", '"\\'])
def test_signs_are_found_though_they_are_not_in_the_index(path, query):
    archive = SQLiteArchive(path)
    texts = ["fine 👍🏽", "rate: 100%_! sure", 'he said "\\ and left', "nothing"]
    archive_all(archive, "a", list(map(ChatMessage.from_user, texts)))
    index = next(index for index, text in enumerate(texts) if query in text)
    assert [found.position for found in archive.search("a", query)] == [index]
    archive.close()


def test_a_pass_that_fails_leaves_nothing_behind(path, monkeypatch):
    archive = SQLiteArchive(path)
    run = Run(archive, messages=[ChatMessage.from_user(str(number)) for number in range(4)])
    run.replace_with(run.messages[1:])
    with monkeypatch.context() as context:
        context.setattr(sqlite, "_indexed", lambda text: object())
        with pytest.raises(ArchiveError):
            run.replace_with(run.messages[2:])
    assert archive.outline("a").pass_number == 1
    assert len(archive.read_range("a")) == 1
    run.replace_with(run.messages[2:])
    assert len(archive.read_range("a")) == 3
    archive.close()


def write_conversations(path, writer, passes):
    archive = SQLiteArchive(path)
    run = Run(archive, f"writer {writer}")
    shared = Run(archive, "shared")
    for number in range(passes):
        run.messages += [ChatMessage.from_user(f"writer{writer} message {number}.{part}") for part in range(3)]
        run.replace_with(run.messages[-1:])
        shared.messages.append(ChatMessage.from_user(f"shared {writer}.{number}"))
        shared.replace_with([])
        assert archive.search(f"writer {writer}", f"writer{writer}")
    archive.close()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_eight_threads_and_three_processes(path, method):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    context = multiprocessing.get_context(method)
    passes, archive = 5, SQLiteArchive(path)
    assert archive.conversations() == []
    failures = []

    def in_thread(writer):
        try:
            run = Run(archive, f"writer {writer}")
            shared = Run(archive, "shared")
            for number in range(passes):
                run.messages += [ChatMessage.from_user(f"writer{writer} message {number}.{part}") for part in range(3)]
                run.replace_with(run.messages[-1:])
                shared.messages.append(ChatMessage.from_user(f"shared {writer}.{number}"))
                shared.replace_with([])
                assert len(archive.search(f"writer {writer}", f"writer{writer}", limit=99)) == len(
                    archive.read_range(f"writer {writer}")
                )
        except Exception as error:
            failures.append(error)

    processes = [context.Process(target=write_conversations, args=(path, 8 + number, passes)) for number in range(3)]
    threads = [threading.Thread(target=in_thread, args=(number,)) for number in range(8)]
    for worker in [*processes, *threads]:
        worker.start()
    for worker in [*threads, *processes]:
        worker.join()
    assert failures == []
    assert [process.exitcode for process in processes] == [0, 0, 0]
    for writer in range(11):
        last = [ChatMessage.from_user(f"writer{writer} message {passes - 1}.2")]
        texts = [message.text for message in full_transcript(archive, f"writer {writer}", last)]
        assert texts == [f"writer{writer} message {number}.{part}" for number in range(passes) for part in range(3)]
    shared = sorted(archived.message.text for archived in archive.read_range("shared"))
    assert shared == sorted(f"shared {writer}.{number}" for writer in range(11) for number in range(passes))
    archive.close()


WRITER = """
    import sys
    from haystack.dataclasses import ChatMessage
    from haystack_compaction.archive import ArchivedMessage, PassRecord, SQLiteArchive

    archive = SQLiteArchive(sys.argv[1])
    outline = archive.outline("a")
    number, end = outline.pass_number, outline.end
    print("ready", flush=True)
    while True:
        size = 1 + number * 7 % 40
        messages = [ChatMessage.from_user(f"pass {number + 1} part {part} " + "x" * 500) for part in range(size)]
        archived = [ArchivedMessage(message, end + part, "removed") for part, message in enumerate(messages)]
        end += size
        number = archive.append("a", PassRecord({"size": size}, archived, follows=number, end=end))
        print(number, flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_no_committed_pass_is_lost_when_the_process_is_killed(path):
    """Five kills; `ARCHIVE_KILLS=200` for more."""
    chance = random.Random(7)
    for _ in range(KILLS):
        writer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WRITER), str(path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout.readline() == "ready\n"
        timer = threading.Timer(chance.uniform(0, 0.15), writer.kill)
        timer.start()
        reported = [int(line) for line in writer.stdout if line.endswith("\n")]
        writer.wait()
        assert writer.returncode == -signal.SIGKILL
        archive = SQLiteArchive(path)
        passes = archive.passes("a")
        assert [record.number for record in passes] == list(range(1, len(passes) + 1))
        assert len(passes) >= max(reported, default=0)
        if passes:
            sizes = [record.report["size"] for record in passes]
            assert archive.outline("a").end == sum(sizes) == len(archive.outline("a").archived)
            newest = archive.read_range("a", sum(sizes[:-1]))
            assert {archived.message.text.split(" part")[0] for archived in newest} == {f"pass {len(passes)}"}
            found = archive.search("a", f"pass {len(passes)} part", limit=1)
            assert len(found) == 1
        archive.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.execute("INSERT INTO search (search) VALUES ('integrity-check')")
    connection.close()


def test_a_path_that_can_hold_no_archive_is_refused_when_it_is_given(tmp_path):
    with pytest.raises(ValueError, match="in a folder that exists"):
        SQLiteArchive(tmp_path / "missing" / "a.sqlite")
    text = tmp_path / "notes.txt"
    text.write_text("Remember the milk.")
    for other in (text, tmp_path):
        with pytest.raises(ValueError, match="must be an archive or a file that does not exist yet"):
            SQLiteArchive(other)
    assert text.read_text() == "Remember the milk."
    (tmp_path / "empty.sqlite").touch()
    assert SQLiteArchive(tmp_path / "empty.sqlite").conversations() == []
