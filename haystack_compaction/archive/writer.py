# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What a pass, a hook or a generator writes to an archive with, before messages are dropped."""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

from haystack import logging
from haystack.dataclasses import ChatMessage

from haystack_compaction.archive.positions import TranscriptPositions
from haystack_compaction.archive.protocol import Archive, ArchiveConflictError, ArchiveError, Outline
from haystack_compaction.checks import given, require_method
from haystack_compaction.conversation.notes import is_note, with_reference
from haystack_compaction.report import CompactionReport

logger = logging.getLogger(__name__)

#: What to do when a pass can't be archived.
OnFailure: TypeAlias = Literal["keep", "drop", "raise"]

# Each conflict means that somebody else got on, so this ends.
_MAX_CONFLICTS = 100


class ArchiveWriter:
    """
    Writes the passes of one run over one conversation to an archive.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack.document_stores.in_memory import InMemoryDocumentStore
    from haystack_compaction import SlidingWindowCompactor
    from haystack_compaction.archive import ArchiveWriter, DocumentStoreArchive

    archive = DocumentStoreArchive(InMemoryDocumentStore())
    writer = ArchiveWriter(archive, "conversation-7")
    messages = [ChatMessage.from_user("Hi. " * 99), ChatMessage.from_assistant("Hey"), ChatMessage.from_user("Tides?")]
    result = SlidingWindowCompactor(preserve_recent_turns=0).run(messages=messages, target_tokens=50)
    if writer.write(messages, result["messages"], result["report"]):
        messages = result["messages"]
    assert archive.read("conversation-7", 1).message.text == "Hey"
    ```

    :param archive: The archive.
    :param conversation_id: The conversation; None to make an id.
    :param on_failure: What to do when a pass can't be archived. "keep": do without the compaction while the messages
        fit the window, and afterwards go on as with "drop"; "drop": compact, and keep what could not be archived in
        memory to be archived with the next pass; "raise": raise an `ArchiveError`.
    :raises ValueError: If `on_failure` is none of these.
    """

    def __init__(self, archive: Archive, conversation_id: str | None = None, *, on_failure: OnFailure = "keep") -> None:
        require_policy(on_failure=on_failure)
        self.archive = archive
        self.on_failure = on_failure
        self._conversation_id = conversation_id
        self._positions: TranscriptPositions | None = None

    @property
    def conversation_id(self) -> str:
        """The conversation. An id is made when it is first asked for."""
        if self._conversation_id is None:
            self._conversation_id = uuid.uuid4().hex
        return self._conversation_id

    def resumed(self) -> "ArchiveWriter":
        """
        Return a writer for another run over the conversation, which may go on from an earlier state of it.

        :returns: A new writer, or this one while it holds what the archive could not take.
        """
        if self._positions is not None and self._positions.unwritten:
            return self
        return ArchiveWriter(self.archive, self._conversation_id, on_failure=self.on_failure)

    def write(
        self,
        before: Sequence[ChatMessage],
        after: Sequence[ChatMessage],
        report: CompactionReport,
        *,
        fits: bool = True,
    ) -> bool:
        """
        Archive what a pass took out of the conversation, before it is taken out.

        :param before: The conversation that the pass was given.
        :param after: The conversation that it returned.
        :param report: What it did.
        :param fits: Whether `before` fits the window, so that the run can go on with it.
        :returns: Whether to go on with `after`; `before` is to be kept otherwise.
        :raises ArchiveError: If the pass can't be archived and `on_failure` is "raise".
        """
        try:
            self._positions = self._appended(before, after, report)
        except Exception as error:
            return self._go_on_after(error, before, after, fits=fits)
        return True

    def with_references(self, before: Sequence[ChatMessage], after: list[ChatMessage]) -> list[ChatMessage]:
        """
        Tell in the notes of a pass where the messages that are missing from the conversation can be read.

        :param before: The conversation that the pass was given.
        :param after: The conversation that it returned.
        :returns: `after` with the reference in each note that is new; `after` itself when the archive can't be read.
        """
        try:
            missing = self._known_positions(before).step(before, after).missing
        except Exception:
            logger.exception("The archive could not be read; the notes do not tell what it holds.")
            return after
        if missing is None:
            return after
        reference = f"{missing[0]}-{missing[-1]}" if len(missing) > 1 else str(missing[0])
        known = set(map(id, before))
        return [
            with_reference(message, reference) if is_note(message) and id(message) not in known else message
            for message in after
        ]

    async def write_async(
        self,
        before: Sequence[ChatMessage],
        after: Sequence[ChatMessage],
        report: CompactionReport,
        *,
        fits: bool = True,
    ) -> bool:
        """
        Do what `write` does, without blocking the event loop.

        :param before: The conversation that the pass was given.
        :param after: The conversation that it returned.
        :param report: What it did.
        :param fits: Whether `before` fits the window, so that the run can go on with it.
        :returns: Whether to go on with `after`; `before` is to be kept otherwise.
        :raises ArchiveError: If the pass can't be archived and `on_failure` is "raise".
        """
        return await asyncio.to_thread(self.write, before, after, report, fits=fits)

    def _appended(
        self, before: Sequence[ChatMessage], after: Sequence[ChatMessage], report: CompactionReport
    ) -> TranscriptPositions:
        positions = self._known_positions(before)
        for _ in range(_MAX_CONFLICTS):
            step = positions.step(before, after)
            try:
                return step.written(self.archive.append(self.conversation_id, step.record(report)))
            except ArchiveConflictError:
                positions = positions.rebased(self._outline(), before)
        raise ArchiveError(f"Others keep writing to the conversation '{self.conversation_id}' at the same time.")

    def _known_positions(self, messages: Sequence[ChatMessage]) -> TranscriptPositions:
        return self._positions or TranscriptPositions.resumed(self._outline(), messages)

    def _outline(self) -> Outline:
        return self.archive.outline(self.conversation_id)

    def _go_on_after(
        self, error: Exception, before: Sequence[ChatMessage], after: Sequence[ChatMessage], *, fits: bool
    ) -> bool:
        if self.on_failure == "raise":
            raise ArchiveError(f"The pass could not be archived: {error}") from error
        if self.on_failure == "keep" and fits:
            logger.error("The archive failed. The conversation is not compacted while it fits.", exc_info=error)
            return False
        self._positions = (self._positions or TranscriptPositions()).step(before, after)
        logger.error(
            "The archive failed, and {number} messages that are no longer in the conversation are in memory only. They "
            "are archived with the next pass that can be, and LOST if the process ends before.",
            number=len(self._positions.unwritten),
            exc_info=error,
        )
        return True


def require_archiving(archive: Archive | None, on_archive_failure: str) -> None:
    """
    Refuse what is no archive, and what is no way of dealing with one that fails.

    :param archive: What was given for an archive; None for none.
    :param on_archive_failure: What was given for what to do when it fails.
    :raises ValueError: If one of them is anything else; the message names it.
    """
    require_method("read_range", **given(archive=archive))
    require_policy(on_archive_failure=on_archive_failure)


def require_policy(**options: str) -> None:
    """
    Refuse what is no way of dealing with an archive that fails.

    :param options: The options by name.
    :raises ValueError: If one of them is none of "keep", "drop" and "raise"; the message names it.
    """
    for name, value in options.items():
        if value not in get_args(OnFailure):
            raise ValueError(f"`{name}` must be one of {', '.join(get_args(OnFailure))}, got {value!r}.")


def not_archived(report: CompactionReport) -> CompactionReport:
    """
    Say of a pass that it did not happen, because the archive could not take what it removed.

    :param report: The report of the pass.
    :returns: The report of a pass that changed nothing.
    """
    return replace(
        report,
        compacted=False,
        tokens_after=report.tokens_before,
        messages_after=report.messages_before,
        removed_messages=0,
        rewritten_messages=0,
        reached_target=report.tokens_before <= report.target_tokens,
        reason="the archive failed, and what it does not hold is not removed while it fits",
    )
