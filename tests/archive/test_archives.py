# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What every archive does, whatever it keeps its messages in."""

import copy
import uuid
from dataclasses import replace

import pytest
from archive.postgres import postgres_uri
from archive.programs import Run, archive_all, bm25_archive, memory_archive, report_of, sqlite_archive
from haystack.core.serialization import component_from_dict
from haystack.dataclasses import ChatMessage, Document, ImageContent, ReasoningContent, TextContent, ToolCall
from haystack.dataclasses.byte_stream import ByteStream
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.utils import Secret
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from samples import step

from haystack_compaction.archive import (
    ArchiveConflictError,
    ArchivedMessage,
    DocumentStoreArchive,
    Outline,
    PassRecord,
    SQLiteArchive,
)
from haystack_compaction.conversation.notes import omission_note

PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
FACTS = [
    ChatMessage.from_user("The invoice is ORD-12345, due on 3 May."),
    ChatMessage.from_assistant("Noted: 高潮时间是中午十二点半。"),
    ChatMessage.from_user("満潮の時刻を教えてください"),
    ChatMessage.from_user("Das Prüfprotokoll liegt in /var/log/café.log"),
    ChatMessage.from_user("น้ำขึ้นสูงสุดเวลาเที่ยง"),
    ChatMessage.from_user("The deadlines are on Fridays."),
]


def qdrant_archive(folder):
    """A real store on disk that needs no server. It would like embeddings, but does without."""
    qdrant = pytest.importorskip("haystack_integrations.document_stores.qdrant")
    store = qdrant.QdrantDocumentStore(path=str(folder / "qdrant"), embedding_dim=2, progress_bar=False)
    return DocumentStoreArchive(store)


def pgvector_archive(folder):
    pgvector = pytest.importorskip("haystack_integrations.document_stores.pgvector")
    unique = uuid.uuid4().hex
    store = pgvector.PgvectorDocumentStore(
        connection_string=Secret.from_token(postgres_uri()),
        table_name=f"archive_{unique}",
        keyword_index_name=f"keywords_{unique}",
        embedding_dimension=2,
    )
    return DocumentStoreArchive(store)


@pytest.fixture(params=[sqlite_archive, memory_archive, bm25_archive, qdrant_archive, pgvector_archive])
def archive(request, tmp_path):
    archive = request.param(tmp_path)
    yield archive
    archive.close()


def texts(found):
    return [archived.message.text for archived in found]


def test_what_a_pass_removes_and_rewrites_is_read_back(archive):
    question, call, result, answer = (
        ChatMessage.from_user("When?"),
        *step("tides", "high at noon"),
        ChatMessage.from_assistant("At noon."),
    )
    shorter = ChatMessage.from_tool("high…", origin=call.tool_calls[0])
    run = Run(archive, messages=[question, call, result, answer])
    run.replace_with([call, shorter, answer])
    assert archive.read("a", 0).message == question
    assert archive.read("a", 0).change == "removed"
    assert archive.read("a", 2).message == result
    assert archive.read("a", 2).change == "rewritten"
    assert archive.read("a", 1) is None
    run.replace_with([answer])
    assert [archived.position for archived in archive.read_range("a")] == [0, 1, 2]
    assert [archived.position for archived in archive.read_range("a", 1, 2)] == [1]
    assert [archived.pass_number for archived in archive.read_range("a", 1)] == [2, 1]
    assert archive.read_range("a", 7) == archive.read_range("a", -5, 0) == []


def test_passes_with_their_reports_and_the_notes_they_folded(archive):
    note = omission_note("{num_removed} gone", strategy="x", removed_messages=1, kept_messages=1)
    run = Run(archive, messages=FACTS)
    run.replace_with([note, *FACTS[1:]])
    run.replace_with(FACTS[2:])
    first, second = archive.passes("a")
    assert (first.number, second.number) == (1, 2)
    assert 0 < first.written_at <= second.written_at
    assert first.report == report_of(FACTS, FACTS).to_dict()
    assert (first.notes, second.notes) == ([], [note])
    assert archive.passes("b") == []


def test_every_kind_of_content_survives(archive):
    call = ToolCall("search", {"q": ["tide", {"n": 1}], "nul": "a\0b"}, id=None, extra={"k": "v"})
    messages = [
        ChatMessage.from_system("sys\ud83d \0 \u2028", name="n"),
        ChatMessage.from_user(content_parts=["look", ImageContent(PICTURE, mime_type="image/png")]),
        ChatMessage.from_assistant(
            "", tool_calls=[call], reasoning=ReasoningContent("so", {"signature": "x"}), meta={"usage": {"total": 3}}
        ),
        ChatMessage.from_tool([TextContent("found"), ImageContent(PICTURE, mime_type="image/png")], origin=call),
        ChatMessage.from_user("x" * 100_000 + "潮" * 50_000),
    ]
    archive_all(archive, "a", messages)
    assert [archived.message for archived in archive.read_range("a")] == messages


def test_what_json_has_no_form_for_does_not_stop_a_pass(archive):
    odd = ChatMessage.from_user("hello", meta={"stream": ByteStream(b"\xff"), "set": {1}, "fine": 1})
    strange = ChatMessage.from_user("there", meta={(1, 2): object()})
    unknown = replace(ChatMessage.from_user("you"), _content=[TextContent("seen"), object()])
    archive_all(archive, "a", [odd, strange, unknown])
    read = [archived.message for archived in archive.read_range("a")]
    assert texts(archive.read_range("a")) == ["hello", "there", "seen"]
    assert read[0].meta["fine"] == 1


def test_conversations_see_nothing_of_each_other(archive):
    for identifier in ("a", "b", "a' OR '1'='1", "", "../../etc/passwd", "潮\n"):
        archive_all(archive, identifier, [ChatMessage.from_user(f"the secret of <{identifier}>")])
    assert archive.conversations() == ["a", "b", "a' OR '1'='1", "", "../../etc/passwd", "潮\n"]
    for identifier in archive.conversations():
        assert texts(archive.search(identifier, "secret")) == [f"the secret of <{identifier}>"]
        assert texts(archive.read_range(identifier)) == [f"the secret of <{identifier}>"]
        assert archive.outline(identifier).end == 1
    assert archive.search("c", "secret") == []
    assert archive.outline("c") == Outline()


def test_a_conversation_is_deleted_and_may_begin_again(archive):
    archive_all(archive, "a", FACTS)
    archive_all(archive, "b", FACTS)
    archive.delete("a")
    archive.delete("never there")
    assert archive.conversations() == ["b"]
    assert archive.read_range("a") == archive.search("a", "invoice") == archive.passes("a") == []
    assert len(archive.search("b", "invoice")) == 1
    archive_all(archive, "a", FACTS[:1])
    assert texts(archive.search("a", "invoice")) == [FACTS[0].text]


@pytest.mark.parametrize(
    ("query", "index"),
    [("ORD-12345", 0), ("invoice", 0), ("INVOICE", 0), ("what about the invoice?", 0), ("/var/log/café.log", 3)],
)
def test_words_are_found(archive, query, index):
    archive_all(archive, "a", FACTS)
    assert texts(archive.search("a", query))[0] == FACTS[index].text


@pytest.mark.parametrize(
    ("query", "index"),
    [("高潮", 1), ("时间", 1), ("中午十二点", 1), ("時刻", 2), ("満潮の時刻", 2), ("เที่ยง", 4), ("DEADLINE", 5)],
)
@pytest.mark.parametrize("archive_in", [sqlite_archive, memory_archive])
def test_parts_of_what_is_written_without_spaces_are_found(archive_in, tmp_path, query, index):
    archive = archive_in(tmp_path)
    archive_all(archive, "a", FACTS)
    assert texts(archive.search("a", query))[0] == FACTS[index].text
    archive.close()


def test_the_best_come_first_and_no_more_than_asked_for(archive):
    archive_all(archive, "a", [ChatMessage.from_user(text) for text in ("noise tide", "noise", "noise storm tide")])
    assert texts(archive.search("a", "storm tide", limit=2)) == ["noise storm tide", "noise tide"]
    assert archive.search("a", "absent") == archive.search("a", "  ") == []


@pytest.mark.parametrize("archive_in", [sqlite_archive, memory_archive, bm25_archive])
def test_no_query_raises(archive_in, tmp_path):
    archive = archive_in(tmp_path)
    archive_all(archive, "a", FACTS)

    @settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.text())
    @example('"')
    @example("\" OR conversation : c1 NEAR(a b, 2) * ^ - + { } ( ) : '; DROP TABLE messages; --")
    @example("a\0b")
    @example("👍🏽 \ud83d")
    @example("invoice AND NOT")
    @example("word " * 5_000)
    def check(query):
        assert all(isinstance(found, ArchivedMessage) for found in archive.search("a", query))

    check()
    assert texts(archive.search("a", '"invoice" AND (')) == [FACTS[0].text]
    archive.close()


def test_tool_calls_and_results_are_found_but_not_recall_and_what_it_returned(archive):
    messages = [*step("read_log", "disk is full", text="looking"), *step("recall", "disk is full", text="remembering")]
    messages[2].tool_calls[0].arguments["query"] = "disk"
    archive_all(archive, "a", messages)
    assert [found.position for found in archive.search("a", "full")] == [1]
    assert 2 not in [found.position for found in archive.search("a", "disk")]
    assert {found.position for found in archive.search("a", "read_log")} >= {0}
    recalled = archive.read("a", 3).message.tool_call_result
    assert "disk" not in recalled.result
    assert recalled.origin == messages[3].tool_call_result.origin


def test_a_pass_that_follows_an_old_one_is_refused(archive):
    first = ArchivedMessage(FACTS[0], 0, "removed")
    assert archive.append("a", PassRecord({}, [first], end=1)) == 1
    with pytest.raises(ArchiveConflictError, match=r"follows pass 0.*pass 1 is the newest"):
        archive.append("a", PassRecord({}, [first], end=1))
    assert archive.append("a", PassRecord({}, [], follows=1, end=1)) == 2
    assert len(archive.read_range("a")) == 1


def test_two_runs_over_one_conversation_at_the_same_time(archive):
    one, other = Run(archive, messages=FACTS[:2]), Run(archive, messages=FACTS[2:4])
    one.replace_with(FACTS[1:2])
    other.replace_with(FACTS[3:4])
    one.replace_with([])
    assert sorted(texts(archive.read_range("a"))) == sorted(message.text for message in FACTS[:3])


async def test_async_twins(archive):
    assert await archive.append_async("a", PassRecord({}, [ArchivedMessage(FACTS[0], 0, "removed")], end=1)) == 1
    assert (await archive.read_async("a", 0)).message == FACTS[0]
    assert texts(await archive.read_range_async("a")) == texts(await archive.search_async("a", "invoice"))
    await archive.delete_async("a")
    await archive.close_async()
    if isinstance(archive, SQLiteArchive):
        assert archive.conversations() == []


@pytest.mark.parametrize("archive_in", [sqlite_archive, bm25_archive])
def test_serialized_and_copied(archive_in, tmp_path):
    archive = archive_in(tmp_path)
    archive_all(archive, "a", FACTS)
    data = archive.to_dict()
    again = component_from_dict(type(archive), copy.deepcopy(data), "archive")
    assert again.to_dict() == data
    for other in (again, copy.deepcopy(archive)):
        assert texts(other.search("a", "invoice")) == [FACTS[0].text]
        other.close()
    archive.close()


def test_other_documents_of_the_store_are_left_alone():
    store = InMemoryDocumentStore()
    archive = DocumentStoreArchive(store)
    store.write_documents([Document(content="invoice", meta={"conversation": "a"}), Document(content="invoice")])
    archive_all(archive, "a", FACTS)
    assert texts(archive.search("a", "invoice")) == [FACTS[0].text]
    archive.delete("a")
    assert store.count_documents() == 2


def test_a_pass_that_a_dying_process_left_unfinished_does_not_count():
    store = InMemoryDocumentStore()
    archive = DocumentStoreArchive(store)
    run = Run(archive, messages=FACTS[:4])
    run.replace_with(FACTS[1:4])
    write, calls = store.write_documents, []

    def dying(documents, policy):
        calls.append(documents)
        if len(calls) == 2:
            raise OSError("killed")
        return write(documents, policy=policy)

    store.write_documents = dying
    with pytest.raises(Exception, match="killed"):
        run.writer.write(run.messages, FACTS[3:4], report_of([], []))
    assert archive.outline("a").pass_number == 1
    assert list(archive.outline("a").archived) == [0]
    store.write_documents = write
    run.replace_with([FACTS[2], FACTS[3]])
    assert [archived.position for archived in archive.read_range("a")] == [0, 1]
    assert len(archive.passes("a")) == 2


def test_an_unknown_retriever_that_ignores_filters_shows_nothing_of_others():
    store = InMemoryDocumentStore()

    class Everything:
        def run(self, query, filters, top_k):
            return {"documents": store.filter_documents()}

    archive = DocumentStoreArchive(store, retriever=Everything())
    archive_all(archive, "a", FACTS[:1])
    archive_all(archive, "b", FACTS[1:2])
    assert set(texts(archive.search("a", "anything"))) == {FACTS[0].text}
