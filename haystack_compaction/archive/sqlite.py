# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""An archive in one SQLite file, with full-text search, for any number of threads and processes."""

import json
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from haystack.core.serialization import default_from_dict, default_to_dict

from haystack_compaction.archive.messages import from_json, searchable_text, to_json
from haystack_compaction.archive.protocol import (
    Archive,
    ArchiveConflictError,
    ArchivedMessage,
    ArchiveError,
    Outline,
    PassRecord,
)
from haystack_compaction.archive.queries import UNSPACED, query_terms, ranked

# Each entry leads from the version of the schema that its index names to the next one.
_MIGRATIONS: Sequence[Sequence[str]] = (
    (
        # Texts are stored as bytes, since a lone surrogate in them has no UTF-8 that SQLite would take as text.
        """
        CREATE TABLE conversations (
            key INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, newest_pass INTEGER NOT NULL, "end" INTEGER NOT NULL,
            live TEXT NOT NULL
        )
        """,
        """
        CREATE TABLE passes (
            conversation INTEGER NOT NULL REFERENCES conversations, number INTEGER NOT NULL, written_at REAL NOT NULL,
            report BLOB NOT NULL, notes BLOB NOT NULL, PRIMARY KEY (conversation, number)
        )
        """,
        # The search index knows messages by their ids, so these must never be used again.
        """
        CREATE TABLE messages (
            id INTEGER PRIMARY KEY AUTOINCREMENT, conversation INTEGER NOT NULL REFERENCES conversations,
            position INTEGER NOT NULL, pass INTEGER NOT NULL, change TEXT NOT NULL, digest TEXT NOT NULL,
            message BLOB NOT NULL, UNIQUE (conversation, position)
        )
        """,
    ),
)

# Beside the schema, because a Python without FTS5 can use everything else. The index holds no text of its own. Each
# message's conversation is indexed as a word, so that a search needs not rank what others talk about.
_CREATE_INDEX = """
    CREATE VIRTUAL TABLE IF NOT EXISTS search USING fts5
    (conversation, text, content = '', tokenize = 'unicode61 remove_diacritics 2')
"""
_INDEX_MISSING = """
    INSERT INTO search (rowid, conversation, text) SELECT id, 'c' || conversation, indexed_text(message) FROM messages
    WHERE id > coalesce((SELECT max(id) FROM search_docsize), 0)
"""
_REMOVE_FROM_INDEX = """
    INSERT INTO search (search, rowid, conversation, text)
    SELECT 'delete', id, 'c' || conversation, indexed_text(message) FROM messages WHERE conversation = ?
"""
_SEARCH = """
    SELECT m.message, m.position, m.change, m.digest, m.pass FROM search JOIN messages m ON m.id = search.rowid
    WHERE search MATCH ? AND m.conversation = ? ORDER BY bm25(search, 0, 1) LIMIT ?
"""
_SCAN = """
    SELECT m.message, m.position, m.change, m.digest, m.pass FROM messages m
    WHERE m.conversation = ? AND ({condition}) ORDER BY m.position DESC LIMIT ?
"""
_READ = """
    SELECT m.message, m.position, m.change, m.digest, m.pass
    FROM messages m JOIN conversations c ON c.key = m.conversation
    WHERE c.id = ? AND m.position >= ? AND m.position < ? ORDER BY m.position
"""

_EVERYTHING = 2**62

# What every file of SQLite begins with.
_MAGIC = b"SQLite format 3\x00"

# Without the index so many of the newest messages that seem to hold a word are looked at.
_MAX_SCANNED = 1_000
_UNSPACED_CHARACTER = re.compile(rf"[{UNSPACED}]")

# Words of at least so many characters are found as the beginning of longer ones, too: "deadline" in "deadlines".
_PREFIX_FROM = 4

# A connection must not be used, nor closed, by a process that was forked from the one that opened it.
_inherited: list[sqlite3.Connection] = []


class SQLiteArchive(Archive):
    """
    An archive in one file, which needs nothing but Python.

    Several threads and processes may use one file at the same time, though not over a network file system. A pass is
    one transaction, and on the disk when `append` returns. Only the user who created the file can read it.

    Words are found in every script, and also as the beginnings of longer ones. Where Python's SQLite has no FTS5,
    searching takes longer and ranks the newest thousand candidates only.

    ### Usage example

    ```python
    from haystack_compaction.archive import SQLiteArchive

    archive = SQLiteArchive("conversations.sqlite")
    for found in archive.search("conversation-7", "invoice 4711"):
        print(found.position, found.message.text)
    ```

    :param path: The file. It is created when it is first needed; its folder must exist.
    :param busy_timeout: How long to wait for another process that is writing, in seconds, at least 0.
    :raises ValueError: If the path is ":memory:", its folder does not exist, it is no file of SQLite, or the timeout is
        negative.
    """

    def __init__(self, path: str | Path, *, busy_timeout: float = 30.0) -> None:
        if str(path) == ":memory:":
            raise ValueError(
                "`path` must be a file, got ':memory:'. For an archive in memory use "
                "`DocumentStoreArchive(InMemoryDocumentStore())`."
            )
        if not Path(path).parent.is_dir():
            raise ValueError(f"`path` must be a file in a folder that exists, got '{path}'. Make the folder first.")
        if _is_something_else(Path(path)):
            raise ValueError(f"`path` must be an archive or a file that does not exist yet, got '{path}'.")
        if busy_timeout < 0:
            raise ValueError(f"`busy_timeout` must be at least 0, got {busy_timeout}.")
        self.path = Path(path)
        self.busy_timeout = busy_timeout
        self._lock: threading.RLock
        self._connection: sqlite3.Connection | None
        self._process: int
        self._reset()

    def append(self, conversation_id: str, record: PassRecord) -> int:
        """
        Archive a pass in one transaction.

        :param conversation_id: The conversation.
        :param record: What the pass did.
        :returns: The number of the pass.
        :raises ArchiveConflictError: If `record.follows` is not the newest pass of the conversation.
        """
        # Before the transaction begins, so that others need not wait for it.
        stored = [to_json(archived.message).encode("utf-8", "surrogatepass") for archived in record.messages]
        indexed = [_indexed(searchable_text(archived.message)) for archived in record.messages]
        number = record.follows + 1
        with self._transaction() as connection:
            key = _checked_key(connection, conversation_id, record)
            connection.execute(
                "INSERT INTO passes VALUES (?, ?, ?, ?, ?)",
                (key, number, time.time(), _json(record.report), _json(list(map(to_json, record.notes)))),
            )
            (last_id,) = connection.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence").fetchone()
            rows = [
                (last_id + count, key, archived.position, number, archived.change, archived.digest, message)
                for count, (archived, message) in enumerate(zip(record.messages, stored, strict=True), 1)
            ]
            connection.executemany("INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            if self._has_index:
                connection.executemany(
                    "INSERT INTO search (rowid, conversation, text) VALUES (?, ?, ?)",
                    [(row[0], f"c{key}", text) for row, text in zip(rows, indexed, strict=True)],
                )
        return number

    def read(self, conversation_id: str, reference: int) -> ArchivedMessage | None:
        """
        Read one message.

        :param conversation_id: The conversation.
        :param reference: The position of the message.
        :returns: The message, or None where none with that position is archived.
        """
        return next(iter(self.read_range(conversation_id, reference, reference + 1)), None)

    def read_range(self, conversation_id: str, start: int = 0, stop: int | None = None) -> list[ArchivedMessage]:
        """
        Read the messages of a range of positions.

        :param conversation_id: The conversation.
        :param start: The first position.
        :param stop: The position after the last; None for no end.
        :returns: Those of the messages that are archived, by position.
        """
        bounds = (_bounded(start), _bounded(_EVERYTHING if stop is None else stop))
        return list(map(_archived, self._rows(_READ, (_bytes(conversation_id), *bounds))))

    def search(self, conversation_id: str, query: str, limit: int = 10) -> list[ArchivedMessage]:
        """
        Find messages by words in them, ranked by BM25.

        :param conversation_id: The conversation.
        :param query: Words in any script; nothing in it has a special meaning.
        :param limit: How many messages to return at most, at least 1.
        :returns: The messages that hold any of the words, best first.
        """
        terms = query_terms(query)
        known = self._rows("SELECT key FROM conversations WHERE id = ?", (_bytes(conversation_id),))
        if not known or not terms:
            return []
        (key,) = known[0]
        # Before the index is opened nobody knows whether there is one, so the key is asked for first.
        words = [term for term in terms if any(map(str.isalnum, term))]
        if self._has_index and words:
            return list(map(_archived, self._rows(_SEARCH, (_expression(key, words), key, limit))))
        return self._scanned(key, terms, limit)

    def outline(self, conversation_id: str) -> Outline:
        """
        Tell what is known of a conversation beside its content.

        :param conversation_id: The conversation.
        :returns: The outline, an empty one for a conversation that is not known.
        """
        with self._transaction(reading=True) as connection:
            known = connection.execute(
                'SELECT key, newest_pass, "end", live FROM conversations WHERE id = ?', (_bytes(conversation_id),)
            ).fetchone()
            if known is None:
                return Outline()
            key, newest_pass, end, live = known
            digests = connection.execute("SELECT position, digest FROM messages WHERE conversation = ?", (key,))
            archived: dict[int, str] = dict(digests.fetchall())
        return Outline(newest_pass, end, [(position, digest) for position, digest in json.loads(live)], archived)

    def passes(self, conversation_id: str) -> list[PassRecord]:
        """
        List the passes over a conversation.

        :param conversation_id: The conversation.
        :returns: The passes, oldest first, with reports and notes, but without messages and positions.
        """
        rows = self._rows(
            "SELECT p.number, p.written_at, p.report, p.notes FROM passes p JOIN conversations c "
            "ON c.key = p.conversation WHERE c.id = ? ORDER BY p.number",
            (_bytes(conversation_id),),
        )
        return [
            PassRecord(
                _parsed(report), notes=list(map(from_json, _parsed(notes))), number=number, written_at=written_at
            )
            for number, written_at, report, notes in rows
        ]

    def conversations(self) -> list[str]:
        """
        List the conversations.

        :returns: Their ids, in the order in which their first passes came.
        """
        return [_text(identifier) for (identifier,) in self._rows("SELECT id FROM conversations ORDER BY key")]

    def delete(self, conversation_id: str) -> None:
        """
        Delete a conversation, so that nothing of it is left in the file.

        :param conversation_id: The conversation. One that is not known is no error.
        """
        with self._transaction() as connection:
            known = connection.execute(
                "SELECT key FROM conversations WHERE id = ?", (_bytes(conversation_id),)
            ).fetchone()
            if known is None:
                return
            if self._has_index:
                connection.execute(_REMOVE_FROM_INDEX, known)
                # Removing only marks the words; putting the index together again leaves them out.
                connection.execute("INSERT INTO search (search) VALUES ('optimize')")
            for table, column in (("messages", "conversation"), ("passes", "conversation"), ("conversations", "key")):
                connection.execute(f"DELETE FROM {table} WHERE {column} = ?", known)
        self._rows("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the file. It is opened again when the archive is used."""
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._connection.close()
            self._connection = None

    def to_dict(self) -> dict[str, Any]:
        """
        Serialize the archive: where it is, not what is in it.

        :returns: A dictionary that `from_dict` takes.
        """
        return default_to_dict(self, path=str(self.path), busy_timeout=self.busy_timeout)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "SQLiteArchive":
        """
        Deserialize the archive.

        :param data: What `to_dict` returned.
        :returns: The archive.
        """
        archive: SQLiteArchive = default_from_dict(cls, data)
        return archive

    def __getstate__(self) -> dict[str, Any]:
        """What is open is no part of a copy."""
        return {"path": self.path, "busy_timeout": self.busy_timeout}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin with nothing open."""
        self.__dict__.update(state)
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._connection = None
        self._process = os.getpid()
        self._has_index = False

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        if self._process != os.getpid():
            if self._connection is not None:
                _inherited.append(self._connection)
            self._reset()
        with self._lock:
            if self._connection is None:
                self._connection = self._open()
            yield self._connection

    @contextmanager
    def _transaction(self, *, reading: bool = False) -> Iterator[sqlite3.Connection]:
        with self._opened() as connection:
            # Immediate, since a transaction that starts to write late can't wait for another one.
            connection.execute("BEGIN" if reading else "BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._opened() as connection:
            return connection.execute(query, values).fetchall()

    def _open(self) -> sqlite3.Connection:
        # Created by us and not by SQLite, which would make it readable for everybody. Its other files take its mode.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(
            self.path, timeout=self.busy_timeout, isolation_level=None, check_same_thread=False
        )
        try:
            self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        connection.create_function("indexed_text", 1, _indexed_text, deterministic=True)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("BEGIN IMMEDIATE")
        _migrate(connection, self.path)
        try:
            connection.execute(_CREATE_INDEX)
            connection.execute(_INDEX_MISSING)
            self._has_index = True
        except sqlite3.OperationalError as error:
            if "no such module" not in str(error):
                raise
            self._has_index = False
        connection.execute("COMMIT")

    def _scanned(self, key: int, terms: Sequence[str], limit: int) -> list[ArchivedMessage]:
        """Search without the index: for signs, of which it has none, and where there is no FTS5."""
        patterns = [f"%{_escaped_for_like(json.dumps(term, ensure_ascii=False)[1:-1])}%" for term in terms]
        condition = " OR ".join(["CAST(m.message AS TEXT) LIKE ? ESCAPE '!'"] * len(terms))
        rows = self._rows(_SCAN.format(condition=condition), (key, *patterns, _MAX_SCANNED))
        messages = list(map(_archived, reversed(rows)))
        return [messages[index] for index in ranked([searchable_text(m.message) for m in messages], terms, limit)]


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(_MIGRATIONS):
        raise ArchiveError(
            f"'{path}' was written by a newer version of haystack-compaction (its schema is {version}, this one knows "
            f"{len(_MIGRATIONS)}). Update the package, or use another file."
        )
    for statements in _MIGRATIONS[version:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")


def _checked_key(connection: sqlite3.Connection, conversation_id: str, record: PassRecord) -> int:
    """The key of the conversation, which is brought up to date, if nobody has done that since."""
    identifier, live = _bytes(conversation_id), json.dumps(record.live, separators=(",", ":"))
    known = connection.execute("SELECT key, newest_pass FROM conversations WHERE id = ?", (identifier,)).fetchone()
    key, newest_pass = known or (None, 0)
    if newest_pass != record.follows:
        raise ArchiveConflictError(
            f"The pass follows pass {record.follows} of the conversation '{conversation_id}', but pass {newest_pass} "
            f"is the newest. Take up the positions again from `outline`, as `ArchiveWriter` does."
        )
    if key is None:
        added = connection.execute(
            "INSERT INTO conversations VALUES (NULL, ?, 1, ?, ?)", (identifier, record.end, live)
        )
        return int(added.lastrowid or 0)
    connection.execute(
        'UPDATE conversations SET newest_pass = ?, "end" = ?, live = ? WHERE key = ?',
        (record.follows + 1, record.end, live, key),
    )
    return int(key)


def _expression(key: int, terms: Sequence[str]) -> str:
    """What FTS5 is asked for. Every term is a phrase in quotes, in which nothing has a special meaning but quotes."""
    phrases = []
    for term in terms:
        quoted = '"' + _indexed(term).strip().replace('"', '""') + '"'
        is_word = len(term) >= _PREFIX_FROM and term[-1].isalnum()
        phrases.append(f"{quoted} *" if is_word else quoted)
    return f"conversation : c{key} AND text : ({' OR '.join(phrases)})"


def _escaped_for_like(text: str) -> str:
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def _indexed(text: str) -> str:
    """A text as the index knows it: where no spaces divide words, each character is one, and a phrase finds them."""
    return text if text.isascii() else _UNSPACED_CHARACTER.sub(r" \g<0> ", text)


def _indexed_text(message: bytes) -> str:
    return _indexed(searchable_text(from_json(_text(message))))


def _archived(row: tuple[bytes, int, Any, str, int]) -> ArchivedMessage:
    message, position, change, digest, number = row
    return ArchivedMessage(from_json(_text(message)), position, change, digest, number)


def _bounded(position: int) -> int:
    """No position is larger than what SQLite takes for a number."""
    return max(min(position, _EVERYTHING), 0)


def _json(value: Any) -> bytes:
    return _bytes(json.dumps(value, ensure_ascii=False, default=str))


def _parsed(stored: bytes) -> Any:
    return json.loads(_text(stored))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogatepass")


def _is_something_else(path: Path) -> bool:
    """Whether there is a file that no archive can be in. One of length 0 is a database that nothing is in yet."""
    if not path.exists():
        return False
    if not path.is_file():
        return True
    with path.open("rb") as file:
        beginning = file.read(len(_MAGIC))
    return beginning not in (b"", _MAGIC)
