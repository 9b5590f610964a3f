# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The conversation as it would be without any compaction."""

from collections.abc import Sequence

from haystack.dataclasses import ChatMessage

from haystack_compaction.archive.positions import TranscriptPositions
from haystack_compaction.archive.protocol import Archive


def full_transcript(archive: Archive, conversation_id: str, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """
    Put a conversation together again from what was archived and what is left.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack.document_stores.in_memory import InMemoryDocumentStore
    from haystack_compaction import SlidingWindowCompactor
    from haystack_compaction.archive import ArchiveWriter, DocumentStoreArchive, full_transcript

    archive = DocumentStoreArchive(InMemoryDocumentStore())
    original = [ChatMessage.from_user("Hi. " * 99), ChatMessage.from_assistant("Hey"), ChatMessage.from_user("Tides?")]
    result = SlidingWindowCompactor(preserve_recent_turns=0).run(messages=original, target_tokens=50)
    ArchiveWriter(archive, "tides").write(original, result["messages"], result["report"])
    assert full_transcript(archive, "tides", result["messages"]) == original
    ```

    :param archive: The archive.
    :param conversation_id: The conversation.
    :param messages: The conversation as it is now, such as the `messages` of an Agent's result. They may have been
        stored and loaded since.
    :returns: Every message that was ever in the conversation once, in the order in which they came. What compaction
        wrote is left out. Messages that are still there as they were are the same objects.
    """
    positions = TranscriptPositions.resumed(archive.outline(conversation_id), messages).seen(messages)
    originals = {placed.position: placed.message for placed in positions.live if placed.position is not None}
    originals.update({archived.position: archived.message for archived in archive.read_range(conversation_id)})
    return [originals[position] for position in sorted(originals)]
