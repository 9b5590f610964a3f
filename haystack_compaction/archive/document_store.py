# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""An archive in any of Haystack's document stores."""

import hashlib
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from haystack.core.serialization import component_to_dict, default_from_dict, default_to_dict
from haystack.dataclasses import Document
from haystack.document_stores.types import DocumentStore, DuplicatePolicy
from haystack.utils.deserialization import deserialize_component_inplace

from haystack_compaction.archive.messages import from_json, searchable_text, to_json
from haystack_compaction.archive.protocol import Archive, ArchiveConflictError, ArchivedMessage, Outline, PassRecord
from haystack_compaction.archive.queries import query_terms, ranked

_MESSAGE, _PASS, _OUTLINE = "archived_message", "archived_pass", "archived_outline"

# Engines refuse longer values in a document's `meta` (Elasticsearch: 32,766 bytes), so longer ones are cut in parts.
_PART_LENGTH = 30_000


class DocumentStoreArchive(Archive):
    """
    An archive in a document store, for teams that run one already.

    A message is a document whose content is what can be searched and whose `meta` holds the rest: `kind`
    ("archived_message"), `conversation`, `pass`, `position`, `change`, `digest` and, as JSON, `data`. A pass counts
    when the last of its documents, the new outline of the conversation, is there. Documents of other kinds are left
    alone, so the store may hold others, too; a store, or an index, of its own is the better choice even so.

    Any number of threads may use one archive. Of several processes only one at a time may write to one conversation,
    because document stores have no transactions.

    ### Usage example

    ```python
    from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
    from haystack.document_stores.in_memory import InMemoryDocumentStore
    from haystack_compaction.archive import DocumentStoreArchive

    store = InMemoryDocumentStore()
    archive = DocumentStoreArchive(store, retriever=InMemoryBM25Retriever(store))
    assert archive.search("conversation-7", "invoice 4711") == []
    ```

    :param document_store: The document store.
    :param retriever: A keyword retriever of that store, with `run(query, filters, top_k)`. None for reading the whole
        conversation and ranking it here, which also works for stores without keyword search and for every script.
    """

    def __init__(self, document_store: DocumentStore, *, retriever: Any = None) -> None:
        self.document_store = document_store
        self.retriever = retriever
        self._lock = threading.Lock()

    def append(self, conversation_id: str, record: PassRecord) -> int:
        """
        Archive a pass. Doing it again with the same record after a failure writes the same documents.

        :param conversation_id: The conversation.
        :param record: What the pass did.
        :returns: The number of the pass.
        :raises ArchiveConflictError: If `record.follows` is not the newest pass of the conversation.
        """
        with self._lock:
            outline = self._newest_outline(conversation_id)
            if outline.get("pass", 0) != record.follows:
                raise ArchiveConflictError(
                    f"The pass follows pass {record.follows} of the conversation '{conversation_id}', but pass "
                    f"{outline.get('pass', 0)} is the newest. Take up the positions again from `outline`, as "
                    f"`ArchiveWriter` does."
                )
            number = record.follows + 1
            # What a process left behind that died while it wrote this pass.
            self._remove(self._found(conversation_id, {"field": "meta.pass", "operator": "==", "value": number}))
            now = time.time()
            self._write(_documents_of(conversation_id, record, number, now))
            self._write(_outline_documents(conversation_id, record, number, outline.get("created_at", now)))
            older = {"field": "meta.pass", "operator": "<", "value": number}
            self._remove(self._found(conversation_id, _is(_OUTLINE), older))
        return number

    def read(self, conversation_id: str, reference: int) -> ArchivedMessage | None:
        """
        Read one message.

        :param conversation_id: The conversation.
        :param reference: The position of the message.
        :returns: The message, or None where none with that position is archived.
        """
        at = {"field": "meta.position", "operator": "==", "value": reference}
        return next(iter(_messages(self._found(conversation_id, _is(_MESSAGE), at))), None)

    def read_range(self, conversation_id: str, start: int = 0, stop: int | None = None) -> list[ArchivedMessage]:
        """
        Read the messages of a range of positions.

        :param conversation_id: The conversation.
        :param start: The first position.
        :param stop: The position after the last; None for no end.
        :returns: Those of the messages that are archived, by position.
        """
        bounds = [{"field": "meta.position", "operator": ">=", "value": start}]
        if stop is not None:
            bounds.append({"field": "meta.position", "operator": "<", "value": stop})
        return _messages(self._found(conversation_id, _is(_MESSAGE), *bounds))

    def search(self, conversation_id: str, query: str, limit: int = 10) -> list[ArchivedMessage]:
        """
        Find messages by words in them.

        :param conversation_id: The conversation.
        :param query: Words in any script.
        :param limit: How many messages to return at most, at least 1.
        :returns: The messages that hold any of the words, best first.
        """
        terms = query_terms(query)
        if not terms:
            return []
        if self.retriever is None:
            documents = [found for found in self._found(conversation_id, _is(_MESSAGE)) if found.meta["part"] == 0]
            documents.sort(key=lambda found: int(found.meta["position"]))
            best = [documents[index] for index in ranked([found.content or "" for found in documents], terms, limit)]
        else:
            first_parts = {"field": "meta.part", "operator": "==", "value": 0}
            filters = _all(_is(_MESSAGE), _of(conversation_id), first_parts)
            best = self.retriever.run(query=" ".join(terms), filters=filters, top_k=limit)["documents"]
        # Whatever a retriever makes of the filters: nothing of another conversation goes out.
        own = [d.meta for d in best if (d.meta.get("kind"), d.meta.get("conversation")) == (_MESSAGE, conversation_id)]
        messages = (self.read(conversation_id, int(meta["position"])) for meta in own)
        return [message for message in messages if message is not None]

    def outline(self, conversation_id: str) -> Outline:
        """
        Tell what is known of a conversation beside its content.

        :param conversation_id: The conversation.
        :returns: The outline, an empty one for a conversation that is not known.
        """
        newest = self._newest_outline(conversation_id)
        if not newest:
            return Outline()
        written = {"field": "meta.pass", "operator": "<=", "value": newest["pass"]}
        archived = {
            int(document.meta["position"]): str(document.meta["digest"])
            for document in self._found(conversation_id, _is(_MESSAGE), written)
        }
        live = [(position, digest) for position, digest in newest["live"]]
        return Outline(newest["pass"], newest["end"], live, archived)

    def passes(self, conversation_id: str) -> list[PassRecord]:
        """
        List the passes over a conversation.

        :param conversation_id: The conversation.
        :returns: The passes, oldest first, with reports and notes, but without messages and positions.
        """
        written = {
            "field": "meta.pass",
            "operator": "<=",
            "value": self._newest_outline(conversation_id).get("pass", 0),
        }
        passes = _joined(self._found(conversation_id, _is(_PASS), written))
        return [
            PassRecord(
                data["report"], notes=list(map(from_json, data["notes"])), number=number, written_at=data["written_at"]
            )
            for number, data in sorted((int(meta["pass"]), json.loads(text)) for meta, text in passes)
        ]

    def conversations(self) -> list[str]:
        """
        List the conversations.

        :returns: Their ids, in the order in which their first passes came.
        """
        outlines = self.document_store.filter_documents(filters=_is(_OUTLINE))
        outlines.sort(key=lambda outline: float(outline.meta["created_at"]))
        return list(dict.fromkeys(str(outline.meta["conversation"]) for outline in outlines))

    def delete(self, conversation_id: str) -> None:
        """
        Delete all documents of a conversation.

        :param conversation_id: The conversation. One that is not known is no error.
        """
        with self._lock:
            self._remove(self._found(conversation_id))

    def close(self) -> None:
        """Close the document store, where it can be closed."""
        if hasattr(self.document_store, "close"):
            self.document_store.close()

    def to_dict(self) -> dict[str, Any]:
        """
        Serialize the archive with its document store and retriever.

        :returns: A dictionary that `from_dict` takes.
        """
        retriever = self.retriever
        return default_to_dict(
            self,
            document_store=component_to_dict(obj=self.document_store, name="document_store"),
            retriever=None if retriever is None else component_to_dict(obj=retriever, name="retriever"),
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "DocumentStoreArchive":
        """
        Deserialize the archive with its document store and retriever.

        :param data: What `to_dict` returned.
        :returns: The archive.
        """
        options = data.get("init_parameters", {})
        for key in ("document_store", "retriever"):
            if options.get(key) is not None:
                deserialize_component_inplace(options, key=key)
        archive: DocumentStoreArchive = default_from_dict(cls, data)
        return archive

    def __deepcopy__(self, memo: dict[int, Any]) -> "DocumentStoreArchive":
        """A copy is another way to the same documents."""
        return type(self)(self.document_store, retriever=self.retriever)

    def _found(self, conversation_id: str, *conditions: dict[str, Any]) -> list[Document]:
        kinds = {"field": "meta.kind", "operator": "in", "value": [_MESSAGE, _PASS, _OUTLINE]}
        return self.document_store.filter_documents(filters=_all(_of(conversation_id), kinds, *conditions))

    def _write(self, documents: list[Document]) -> None:
        self.document_store.write_documents(documents, policy=DuplicatePolicy.OVERWRITE)

    def _remove(self, documents: list[Document]) -> None:
        if documents:
            self.document_store.delete_documents([document.id for document in documents])

    def _newest_outline(self, conversation_id: str) -> dict[str, Any]:
        outlines = _joined(self._found(conversation_id, _is(_OUTLINE)))
        meta, text = max(outlines, key=lambda outline: int(outline[0]["pass"]), default=({}, "{}"))
        if not meta:
            return {}
        return {**json.loads(text), "pass": int(meta["pass"]), "created_at": float(meta["created_at"])}


def _documents_of(conversation_id: str, record: PassRecord, number: int, now: float) -> list[Document]:
    data = {"report": record.report, "notes": list(map(to_json, record.notes)), "written_at": now}
    summary = {"kind": _PASS, "conversation": conversation_id, "pass": number}
    documents = list(_parts(f"Pass {number}", json.dumps(data, default=str), summary))
    for archived in record.messages:
        meta = {
            "kind": _MESSAGE,
            "conversation": conversation_id,
            "pass": number,
            "position": archived.position,
            "change": archived.change,
            "digest": archived.digest,
        }
        documents.extend(_parts(searchable_text(archived.message), to_json(archived.message, ascii_only=True), meta))
    return documents


def _outline_documents(conversation_id: str, record: PassRecord, number: int, created_at: float) -> list[Document]:
    meta = {"kind": _OUTLINE, "conversation": conversation_id, "pass": number, "created_at": created_at}
    text = json.dumps({"end": record.end, "live": record.live}, separators=(",", ":"))
    return list(_parts(f"Outline after pass {number}", text, meta))


def _parts(content: str, data: str, meta: dict[str, Any]) -> Iterator[Document]:
    """The documents that hold a piece of data, the first of them with the content."""
    count = max(-(-len(data) // _PART_LENGTH), 1)
    named = "\x1f".join(map(str, (meta["conversation"], meta["kind"], meta["pass"], meta.get("position"))))
    for part in range(count):
        piece = data[part * _PART_LENGTH : (part + 1) * _PART_LENGTH]
        yield Document(
            id=hashlib.sha256(f"{named}\x1f{part}".encode("utf-8", "surrogatepass")).hexdigest(),
            content=content if part == 0 else "(continued)",
            meta={**meta, "part": part, "parts": count, "data": piece},
        )


def _joined(documents: Sequence[Document]) -> list[tuple[dict[str, Any], str]]:
    """The `meta` and the data of everything whose parts are all there."""
    parts: defaultdict[tuple[str, int, int], dict[int, Document]] = defaultdict(dict)
    for document in documents:
        meta = document.meta
        parts[meta["kind"], int(meta["pass"]), int(meta.get("position", 0))][int(meta["part"])] = document
    return [
        (found[0].meta, "".join(str(found[part].meta["data"]) for part in sorted(found)))
        for found in parts.values()
        if 0 in found and len(found) == int(found[0].meta["parts"])
    ]


def _messages(documents: Sequence[Document]) -> list[ArchivedMessage]:
    archived = [
        ArchivedMessage(from_json(text), int(meta["position"]), meta["change"], str(meta["digest"]), int(meta["pass"]))
        for meta, text in _joined(documents)
    ]
    return sorted(archived, key=lambda message: message.position)


def _all(*conditions: dict[str, Any]) -> dict[str, Any]:
    return {"operator": "AND", "conditions": list(conditions)}


def _is(kind: str) -> dict[str, Any]:
    return {"field": "meta.kind", "operator": "==", "value": kind}


def _of(conversation_id: str) -> dict[str, Any]:
    return {"field": "meta.conversation", "operator": "==", "value": conversation_id}
