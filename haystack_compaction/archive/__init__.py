# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Where removed messages go, how an Agent reads them back, and how the whole transcript is put together again."""

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
