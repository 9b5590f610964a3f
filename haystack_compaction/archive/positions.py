# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Where each message stands in the full conversation, through any number of passes."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from haystack.dataclasses import ChatMessage

from haystack_compaction.archive.messages import digest_of, without_recalled
from haystack_compaction.archive.protocol import ArchivedMessage, Change, LiveMessage, Outline, PassRecord
from haystack_compaction.compaction_pass import changes_between
from haystack_compaction.conversation.notes import is_note
from haystack_compaction.conversation.pairing import stands_in
from haystack_compaction.report import CompactionReport

_KeyT = TypeVar("_KeyT")
_ValueT = TypeVar("_ValueT")

# Of a message that came more often only the newest are looked at, or a chat of nothing but "ok" would take for ever.
_MAX_EQUALS = 100


class Placed:
    """
    A message of the conversation as it is now, and what it stands for.

    :param message: The message.
    :param position: The position of the original that it is, or is a version of; None where compaction wrote it.
    :param is_archived: Whether that original is in the archive.
    """

    def __init__(self, message: ChatMessage, position: int | None, *, is_archived: bool = False) -> None:
        self.message = message
        self.position = position
        self.is_archived = is_archived

    @cached_property
    def digest(self) -> str:
        """What the message is recognised by when it is another object. Taken once: it reads the whole content."""
        return digest_of(self.message)


@dataclass(frozen=True)
class TranscriptPositions:
    """
    The positions of the messages of one conversation, as they are after a pass.

    A message gets the next free position when it is first seen and keeps it for ever, whatever becomes of it: a
    shortened version takes over the position of its original, a moved message keeps its own, and what compaction itself
    wrote has none. Within a run messages are known by identity; copies, and messages that were stored and loaded
    since, by what they say.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction.archive import TranscriptPositions

    before = [ChatMessage.from_user("Hi"), ChatMessage.from_assistant("Hello"), ChatMessage.from_user("Tides?")]
    positions = TranscriptPositions().step(before, before[2:])
    assert [archived.position for archived in positions.unwritten] == [0, 1]
    ```

    :param live: The messages of the conversation.
    :param end: The position that the next new message gets.
    :param pass_number: The newest pass that is in the archive.
    :param unwritten: Originals that are no longer in the conversation and not yet in the archive.
    :param unwritten_notes: The same of notes.
    """

    live: list[Placed] = field(default_factory=list)
    end: int = 0
    pass_number: int = 0
    unwritten: list[ArchivedMessage] = field(default_factory=list)
    unwritten_notes: list[ChatMessage] = field(default_factory=list)

    @classmethod
    def resumed(cls, outline: Outline, messages: Sequence[ChatMessage]) -> "TranscriptPositions":
        """
        Find out where the messages stand of a conversation that an archive knows.

        They may be those that the newest pass left, those of the full conversation, or some of both, with new ones
        after them.

        :param outline: What the archive knows.
        :param messages: The conversation as it is now.
        :returns: The positions.
        """
        if not outline.pass_number:
            return cls()
        recognised = _recognised(outline, messages)
        live: list[Placed] = []
        end = outline.end
        for index, message in enumerate(messages):
            if index in recognised:
                position = recognised[index]
            elif _is_ours(message):
                position = None
            else:
                position, end = end, end + 1
            live.append(Placed(message, position, is_archived=position in outline.archived))
        return cls(live, end, outline.pass_number)

    def seen(self, messages: Sequence[ChatMessage]) -> "TranscriptPositions":
        """
        Take in the conversation as it is before a pass: mostly what is known, and some new messages at its end.

        :param messages: The conversation, oldest to newest.
        :returns: The positions of its messages.
        """
        by_identity = _match((id(placed.message), placed) for placed in self.live)
        found = [_taken(by_identity, id(message)) for message in messages]
        missing = [placed for left in by_identity.values() for placed in reversed(left)]
        by_digest = _match((placed.digest, placed) for placed in missing)
        live: list[Placed] = []
        end = self.end
        for message, placed in zip(messages, found, strict=True):
            if placed is None:
                placed = Placed(message, None)
                # Without a message that went missing nothing can be the copy of one, and no digest is needed.
                original = _taken(by_digest, placed.digest) if by_digest else None
                if original is not None:
                    placed.position, placed.is_archived = original.position, original.is_archived
                elif not _is_ours(message):
                    placed.position, end = end, end + 1
            live.append(placed)
        return replace(self, live=live, end=end)

    def step(self, before: Sequence[ChatMessage], after: Sequence[ChatMessage]) -> "TranscriptPositions":
        """
        Follow a pass, or anything else that made one list of messages of another, such as a repair.

        :param before: The conversation that went in, with all that came since the last step.
        :param after: The conversation that came out.
        :returns: The positions after it.
        """
        seen = self.seen(before)
        places = _match((id(placed.message), placed) for placed in reversed(seen.live))
        originals = {id(new): id(old) for old, new in changes_between(before, after).rewritten}
        live: list[Placed] = []
        gone: dict[Placed, Change] = {}
        for message in after:
            if (kept := _taken(places, id(message))) is not None:
                live.append(kept)
            elif (original := _taken(places, originals.get(id(message), 0))) is not None:
                gone[original] = "rewritten"
                live.append(Placed(message, original.position, is_archived=True))
            else:
                live.append(Placed(message, None))
        for left in places.values():
            gone.update(dict.fromkeys(left, "removed"))
        ordered = [placed for placed in seen.live if placed in gone]
        return replace(
            seen,
            live=live,
            unwritten=[*self.unwritten, *(_archived(placed, gone[placed]) for placed in ordered if _is_news(placed))],
            unwritten_notes=[*self.unwritten_notes, *(placed.message for placed in ordered if is_note(placed.message))],
        )

    @property
    def missing(self) -> range | None:
        """The positions from the first to the last message that is not in the conversation; None if all are."""
        live = {placed.position for placed in self.live}
        missing = [position for position in range(self.end) if position not in live]
        return range(missing[0], missing[-1] + 1) if missing else None

    def record(self, report: CompactionReport) -> PassRecord:
        """
        Return what there is to write.

        :param report: What the pass did.
        :returns: The record for an archive.
        """
        return PassRecord(
            report=report.to_dict(),
            messages=self.unwritten,
            notes=self.unwritten_notes,
            follows=self.pass_number,
            end=self.end,
            live=[(placed.position, placed.digest) for placed in self.live],
        )

    def written(self, pass_number: int) -> "TranscriptPositions":
        """
        Take note that the record was archived.

        :param pass_number: The number that the archive gave it.
        :returns: The same positions with nothing left to write.
        """
        return replace(self, pass_number=pass_number, unwritten=[], unwritten_notes=[])

    def rebased(self, outline: Outline, messages: Sequence[ChatMessage]) -> "TranscriptPositions":
        """
        Start again from what an archive knows, because others have written to it since.

        :param outline: What the archive knows now.
        :param messages: The conversation as it is now.
        :returns: The positions; what was not yet written gets new ones.
        """
        pending = range(outline.end, outline.end + len(self.unwritten))
        renumbered = [
            replace(archived, position=number) for archived, number in zip(self.unwritten, pending, strict=True)
        ]
        resumed = self.resumed(replace(outline, end=pending.stop), messages)
        return replace(resumed, unwritten=renumbered, unwritten_notes=self.unwritten_notes)


def _recognised(outline: Outline, messages: Sequence[ChatMessage]) -> dict[int, int | None]:
    """The positions of those messages that are not new, by their indexes."""
    digests = dict(enumerate(map(digest_of, messages)))
    # In the full conversation there are no notes.
    originals = {index: digest for index, digest in digests.items() if not _is_ours(messages[index])}
    unarchived = {position: digest for position, digest in outline.live if position is not None}
    full: list[LiveMessage] = [*sorted({**unarchived, **outline.archived}.items())]
    candidates = [(outline.live, digests), (full, originals)]
    if all(position is not None for position, _ in outline.live):
        # Without a note to tell the compacted conversation by, it is the one of which there is more.
        candidates.sort(key=lambda candidate: len(candidate[0]), reverse=True)
    for known, given in candidates:
        if known and [digest for _, digest in known] == list(given.values())[: len(known)]:
            return dict(zip(given, (position for position, _ in known), strict=False))
    # Neither the one nor the other: an older state of the conversation, or one that its owner has changed.
    recognised: dict[int, int | None] = dict(_common_subsequence(full, originals))
    taken = set(recognised.values())
    left = _match((digest, position) for position, digest in outline.live if position not in taken)
    for index in range(max(recognised, default=0)):
        # Notes, and what a repair has moved.
        if index not in recognised and left.get(digests[index]):
            recognised[index] = left[digests[index]].pop()
    return recognised


def _common_subsequence(known: Sequence[LiveMessage], digests: Mapping[int, str]) -> Iterator[tuple[int, int | None]]:
    """
    The longest common subsequence as pairs of an index and a position.

    J. W. Hunt and T. G. Szymanski, A Fast Algorithm for Computing Longest Common Subsequences, 1977.
    """
    places = defaultdict(list)
    for place, (_, digest) in enumerate(known):
        places[digest].append(place)
    ends: list[int] = []
    chains: list[_Chain] = []
    for index, digest in digests.items():
        for place in reversed(places[digest][-_MAX_EQUALS:]):
            length = bisect_left(ends, place)
            if ends[length : length + 1] == [place]:
                # Of equals the first is the known one, and those after it are new.
                continue
            ends[length : length + 1] = [place]
            chains[length : length + 1] = [_Chain(index, place, chains[length - 1] if length else None)]
    chain = chains[-1] if chains else None
    while chain is not None:
        yield chain.index, known[chain.place][0]
        chain = chain.before


@dataclass(frozen=True)
class _Chain:
    index: int
    place: int
    before: "_Chain | None"


def _match(keyed: Iterable[tuple[_KeyT, _ValueT]]) -> dict[_KeyT, list[_ValueT]]:
    """Values by key, to be taken with `pop` in the order in which they came."""
    values: defaultdict[_KeyT, list[_ValueT]] = defaultdict(list)
    for key, value in keyed:
        values[key].append(value)
    for stack in values.values():
        stack.reverse()
    return dict(values)


def _taken(stacks: dict[_KeyT, list[Placed]], key: _KeyT) -> Placed | None:
    stack = stacks.get(key)
    return stack.pop() if stack else None


def _is_ours(message: ChatMessage) -> bool:
    """Whether compaction or a repair wrote the message, so that it is no part of the full conversation."""
    return is_note(message) or stands_in(message)


def _is_news(placed: Placed) -> bool:
    return placed.position is not None and not placed.is_archived


def _archived(placed: Placed, change: Change) -> ArchivedMessage:
    assert placed.position is not None
    return ArchivedMessage(without_recalled(placed.message), placed.position, change, placed.digest)
