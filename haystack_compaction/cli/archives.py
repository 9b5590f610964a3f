# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Opening the file of an archive that is there already."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from haystack_compaction.archive import SQLiteArchive
from haystack_compaction.archive.protocol import ArchiveError
from haystack_compaction.cli.console import fail

_TABLES = {"conversations", "passes", "messages"}


@contextmanager
def opened_archive(path: Path) -> Iterator[SQLiteArchive]:
    """
    Open an archive, or end the command with one line that says why not. Neither creates a file nor changes another's.

    :param path: The file of a `SQLiteArchive`.
    :returns: The archive, which is closed afterwards.
    """
    if not path.is_file():
        fail(f"{path}: there is no such file")
    try:
        if not _tables_in(path) >= _TABLES:
            fail(f"{path}: is no archive of haystack-compaction")
        with closing(SQLiteArchive(path)) as archive:
            yield archive
    except (sqlite3.Error, OSError, ArchiveError) as error:
        fail(f"{path}: can't be read as an archive: {error}")


def require_conversation(archive: SQLiteArchive, conversation: str) -> None:
    """End the command where an archive does not hold a conversation."""
    if conversation not in archive.conversations():
        fail(f"{archive.path}: holds no conversation '{conversation}'; `haystack-compaction history` lists all of them")


def _tables_in(path: Path) -> set[str]:
    """Looked at without writing: `SQLiteArchive` would make an archive of any database."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
