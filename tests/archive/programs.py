# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Archives to test with, and what stands in for the program around them."""

import copy
import json
from collections.abc import Sequence
from importlib.metadata import version

import pytest
from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
from haystack.dataclasses import ChatMessage
from haystack.document_stores.in_memory import InMemoryDocumentStore

from haystack_compaction import EstimateTokenCounter
from haystack_compaction.archive import Archive, ArchiveWriter, DocumentStoreArchive, SQLiteArchive
from haystack_compaction.compaction_pass import CompactionPass
from haystack_compaction.report import CompactionReport
from haystack_compaction.tokens.ledger import TokenLedger


def sqlite_archive(folder) -> SQLiteArchive:
    return SQLiteArchive(folder / "archive.sqlite")


def memory_archive(folder) -> DocumentStoreArchive:
    return DocumentStoreArchive(InMemoryDocumentStore())


def bm25_archive(folder) -> DocumentStoreArchive:
    if version("haystack-ai").startswith("3.1."):
        pytest.skip("the BM25 retriever of this Haystack also returns what does not match")
    store = InMemoryDocumentStore()
    return DocumentStoreArchive(store, retriever=InMemoryBM25Retriever(store))


class Run:
    """A run over one conversation: new messages come, and passes archive what they take before it goes."""

    def __init__(self, archive: Archive, conversation_id: str = "a", messages: Sequence[ChatMessage] = ()) -> None:
        self.messages = list(messages)
        self.writer = ArchiveWriter(archive, conversation_id, on_failure="raise")

    def compact(self, compactor, target_tokens: int) -> None:
        ledger = TokenLedger(EstimateTokenCounter())
        self.replace_with(*CompactionPass(compactor, self.messages, target_tokens, ledger).run())

    def replace_with(self, messages: Sequence[ChatMessage], report: CompactionReport | None = None) -> None:
        assert self.writer.write(self.messages, messages, report or report_of(self.messages, messages))
        self.messages = list(messages)


def report_of(before: Sequence[ChatMessage], after: Sequence[ChatMessage]) -> CompactionReport:
    return CompactionReport("test", True, len(before), len(after), 1, len(before), len(after))


def archive_all(archive: Archive, conversation_id: str, messages: Sequence[ChatMessage]) -> None:
    """Archive messages, as a pass does that leaves nothing."""
    Run(archive, conversation_id, messages).replace_with([])


def copied(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    return copy.deepcopy(list(messages))


def stored_and_loaded(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    return [ChatMessage.from_dict(json.loads(json.dumps(message.to_dict()))) for message in messages]
