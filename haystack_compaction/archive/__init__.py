# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Where removed messages go, how an Agent reads them back, and how the whole transcript is put together again."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from haystack_compaction.archive.conversation_id import assigned_conversation_id, conversation_id_in
    from haystack_compaction.archive.document_store import DocumentStoreArchive
    from haystack_compaction.archive.positions import TranscriptPositions
    from haystack_compaction.archive.protocol import (
        Archive,
        ArchiveConflictError,
        ArchivedMessage,
        ArchiveError,
        Outline,
        PassRecord,
    )
    from haystack_compaction.archive.recall import RecallTool, recall_tool
    from haystack_compaction.archive.sqlite import SQLiteArchive
    from haystack_compaction.archive.transcript import TranscriptHook, full_transcript
    from haystack_compaction.archive.writer import ArchiveWriter

__all__ = [
    "Archive",
    "ArchiveConflictError",
    "ArchiveError",
    "ArchiveWriter",
    "ArchivedMessage",
    "DocumentStoreArchive",
    "Outline",
    "PassRecord",
    "RecallTool",
    "SQLiteArchive",
    "TranscriptHook",
    "TranscriptPositions",
    "assigned_conversation_id",
    "conversation_id_in",
    "full_transcript",
    "recall_tool",
]

# Each name is imported when it is first asked for: every hook imports the protocol, and few need SQLite for it.
_MODULES = {
    "Archive": "protocol",
    "ArchiveConflictError": "protocol",
    "ArchiveError": "protocol",
    "ArchiveWriter": "writer",
    "ArchivedMessage": "protocol",
    "DocumentStoreArchive": "document_store",
    "Outline": "protocol",
    "PassRecord": "protocol",
    "RecallTool": "recall",
    "SQLiteArchive": "sqlite",
    "TranscriptHook": "transcript",
    "TranscriptPositions": "positions",
    "assigned_conversation_id": "conversation_id",
    "conversation_id_in": "conversation_id",
    "full_transcript": "transcript",
    "recall_tool": "recall",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
