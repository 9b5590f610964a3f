# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What archiving a pass costs beside serialising its messages, and what searching costs beside bare FTS5."""

import json
import os
import platform
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from haystack.dataclasses import ChatMessage
from measure import conversation

from haystack_compaction.archive import ArchiveWriter, SQLiteArchive
from haystack_compaction.archive.messages import searchable_text
from haystack_compaction.report import CompactionReport

PASS, ROUNDS = 1_000, 15
ARCHIVED, PER_CONVERSATION = 100_000, 20_000
_BARE_SEARCH = "SELECT rowid, text FROM texts WHERE texts MATCH ? ORDER BY rank LIMIT 10"
QUERIES = ["1234", "service 777", "report in detail", "state of service 4321", "call 99999", "absent", "checks pass"]


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def synced(path: Path, data: bytes) -> float:
    """The time of one fsync after the data was written."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        return seconds(lambda: os.fsync(file.fileno()))


def append_row(folder: Path) -> str:
    """Both are measured in turn, so that whatever else the machine does falls on both."""
    messages = conversation(PASS)[:PASS]
    left = messages[-1:]
    report = CompactionReport("sliding_window", True, 9, 1, 5, PASS, 1, removed_messages=PASS - 1)
    archive = SQLiteArchive(folder / "append.sqlite")
    data = "".join(json.dumps(message.to_dict()) for message in messages).encode()
    serialising, syncing, appending = [], [], []
    for number in range(ROUNDS):
        serialising.append(seconds(lambda: [json.dumps(message.to_dict()) for message in messages]))
        syncing.append(synced(folder / "synced", data))
        writer = ArchiveWriter(archive, f"conversation {number}", on_failure="raise")
        appending.append(seconds(lambda writer=writer: writer.write(messages, left, report)))
    archive.close()
    json_time, sync_time, append_time = map(statistics.median, (serialising, syncing, appending))
    ratio = (append_time - sync_time) / json_time
    return f"| {json_time * 1e3:.1f} ms | {sync_time * 1e3:.1f} ms | {append_time * 1e3:.1f} ms | {ratio:.2f} |"


def bare_index(folder: Path, messages: Sequence[ChatMessage]) -> sqlite3.Connection:
    """The same texts in an FTS5 table and nothing else."""
    connection = sqlite3.connect(folder / "bare.sqlite")
    connection.execute("CREATE VIRTUAL TABLE texts USING fts5(text)")
    connection.executemany("INSERT INTO texts VALUES (?)", [(searchable_text(message),) for message in messages])
    connection.commit()
    return connection


def search_rows(folder: Path, per_conversation: int) -> list[str]:
    messages = conversation(ARCHIVED)[:ARCHIVED]
    archive = SQLiteArchive(folder / f"search{per_conversation}.sqlite")
    report = CompactionReport("sliding_window", True, 9, 1, 5, 1, 1)
    for start in range(0, ARCHIVED, per_conversation):
        writer = ArchiveWriter(archive, str(start), on_failure="raise")
        writer.write(messages[start : start + per_conversation], [], report)
    bare = bare_index(folder, messages[:per_conversation])
    rows = []
    for query in QUERIES:
        words = " OR ".join(f'"{word}"' for word in query.split())
        theirs, ours = [], []
        for _ in range(5):
            theirs.append(seconds(lambda words=words: bare.execute(_BARE_SEARCH, (words,)).fetchall()))
            ours.append(seconds(lambda query=query: archive.search("0", query, 10)))
        bare_time, time_taken = statistics.median(theirs), statistics.median(ours)
        figures = f"{bare_time * 1e3:.2f} ms | {time_taken * 1e3:.2f} ms | {time_taken / bare_time:.1f}"
        rows.append(f"| {ARCHIVED // per_conversation} | {query} | {figures} |")
    bare.close()
    (folder / "bare.sqlite").unlink()
    archive.close()
    return rows


def main() -> None:
    print(f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {platform.machine()}\n")
    print(
        f"Archiving a pass that removed {PASS - 1:,} of {PASS:,} messages; medians of {ROUNDS}. The ratio is the time"
    )
    print("without one fsync, as a multiple of the time to serialise the messages to JSON.\n")
    print("| JSON | fsync | archived | ratio |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        print(append_row(Path(folder)))
    print(
        f"\nSearching one conversation of {ARCHIVED:,} archived messages, beside FTS5 with the same words over a table"
    )
    print("that holds the texts of that conversation and nothing else.\n")
    print("| conversations | query | FTS5 | archive | ratio |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for per_conversation in (ARCHIVED, PER_CONVERSATION):
            print(*search_rows(Path(folder), per_conversation), sep="\n")


if __name__ == "__main__":
    main()
