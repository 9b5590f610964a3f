# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What an archive is: the place where each pass writes what it took out of a conversation."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from haystack.dataclasses import ChatMessage

from haystack_compaction.errors import CompactionError

#: What a pass did to a message.
Change: TypeAlias = Literal["removed", "rewritten"]

#: A message that is still in the conversation: its position, None where compaction wrote it, and its digest.
LiveMessage: TypeAlias = tuple[int | None, str]


class ArchiveError(CompactionError):
    """The archive could not take a pass."""


class ArchiveConflictError(ArchiveError):
    """Somebody else has archived a pass of the conversation in the meantime."""


@dataclass(frozen=True)
class ArchivedMessage:
    """
    A message as it was before compaction.

    :param message: The original.
    :param position: Its position in the full conversation, at least 0. This is the reference it is read back by.
    :param change: What happened to it, "removed" or "rewritten".
    :param digest: What it is recognised by, see `digest_of`.
    :param pass_number: The pass in which that happened; assigned by the archive.
    """

    message: ChatMessage
    position: int
    change: Change
    digest: str = ""
    pass_number: int = 0


@dataclass(frozen=True)
class Outline:
    """
    What is known of a conversation beside its content.

    :param pass_number: The newest pass, 0 where there was none.
    :param end: The position that the next new message gets.
    :param live: The messages that the newest pass left, in order.
    :param archived: The digest of each archived message, by position.
    """

    pass_number: int = 0
    end: int = 0
    live: list[LiveMessage] = field(default_factory=list)
    archived: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PassRecord:
    """
    What one pass did to a conversation.

    :param report: The fields of its `CompactionReport`.
    :param messages: The originals that it removed or rewrote.
    :param notes: The notes of earlier passes that it removed, because newer ones stand for them.
    :param follows: The number of the pass that the positions in this record build on.
    :param end: The position that the next new message gets.
    :param live: The messages that it left, in order.
    :param number: The number of the pass, at least 1; assigned by the archive.
    :param written_at: When it was archived, in seconds since 1970; assigned by the archive.
    """

    report: dict[str, Any]
    messages: list[ArchivedMessage] = field(default_factory=list)
    notes: list[ChatMessage] = field(default_factory=list)
    follows: int = 0
    end: int = 0
    live: list[LiveMessage] = field(default_factory=list)
    number: int = 0
    written_at: float = 0.0


class Archive(Protocol):
    """
    Keeps what passes take out of conversations. A subclass implements the methods without `_async`.

    Every method but `conversations` and `close` is about one conversation and sees nothing of any other.
    """

    def append(self, conversation_id: str, record: PassRecord) -> int:
        """
        Archive a pass, all of it or nothing. When this returns, it is safe.

        :param conversation_id: The conversation.
        :param record: What the pass did.
        :returns: The number of the pass.
        :raises ArchiveConflictError: If `record.follows` is not the newest pass of the conversation.
        """
        ...

    def read(self, conversation_id: str, reference: int) -> ArchivedMessage | None:
        """
        Read one message.

        :param conversation_id: The conversation.
        :param reference: The position of the message.
        :returns: The message, or None where none with that position is archived.
        """
        ...

    def read_range(self, conversation_id: str, start: int = 0, stop: int | None = None) -> list[ArchivedMessage]:
        """
        Read the messages of a range of positions.

        :param conversation_id: The conversation.
        :param start: The first position.
        :param stop: The position after the last; None for no end.
        :returns: Those of the messages that are archived, by position.
        """
        ...

    def search(self, conversation_id: str, query: str, limit: int = 10) -> list[ArchivedMessage]:
        """
        Find messages by words in them.

        :param conversation_id: The conversation.
        :param query: Words in any script; nothing in it has a special meaning.
        :param limit: How many messages to return at most, at least 1.
        :returns: The messages that hold any of the words, best first.
        """
        ...

    def outline(self, conversation_id: str) -> Outline:
        """
        Tell what is known of a conversation beside its content.

        :param conversation_id: The conversation.
        :returns: The outline, an empty one for a conversation that is not known.
        """
        ...

    def passes(self, conversation_id: str) -> list[PassRecord]:
        """
        List the passes over a conversation.

        :param conversation_id: The conversation.
        :returns: The passes, oldest first, with reports and notes, but without messages and positions.
        """
        ...

    def conversations(self) -> list[str]:
        """
        List the conversations.

        :returns: Their ids, in the order in which their first passes came.
        """
        ...

    def delete(self, conversation_id: str) -> None:
        """
        Delete a conversation and everything that was archived of it. One that is not known is no error.

        :param conversation_id: The conversation.
        """
        ...

    def close(self) -> None:
        """Release what the archive holds open. It opens again when it is used."""
        ...

    async def append_async(self, conversation_id: str, record: PassRecord) -> int:
        """Do what `append` does, without blocking the event loop."""
        return await asyncio.to_thread(self.append, conversation_id, record)

    async def read_async(self, conversation_id: str, reference: int) -> ArchivedMessage | None:
        """Do what `read` does, without blocking the event loop."""
        return await asyncio.to_thread(self.read, conversation_id, reference)

    async def read_range_async(
        self, conversation_id: str, start: int = 0, stop: int | None = None
    ) -> list[ArchivedMessage]:
        """Do what `read_range` does, without blocking the event loop."""
        return await asyncio.to_thread(self.read_range, conversation_id, start, stop)

    async def search_async(self, conversation_id: str, query: str, limit: int = 10) -> list[ArchivedMessage]:
        """Do what `search` does, without blocking the event loop."""
        return await asyncio.to_thread(self.search, conversation_id, query, limit)

    async def delete_async(self, conversation_id: str) -> None:
        """Do what `delete` does, without blocking the event loop."""
        await asyncio.to_thread(self.delete, conversation_id)

    async def close_async(self) -> None:
        """Do what `close` does, without blocking the event loop."""
        await asyncio.to_thread(self.close)
