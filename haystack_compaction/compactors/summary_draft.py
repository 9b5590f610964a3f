# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""A conversation in which old parts give way to summaries: what goes, what stays, and how much room there is."""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from haystack.dataclasses import ChatMessage, ChatRole

from haystack_compaction.compactors.exact_facts import exact_facts
from haystack_compaction.conversation.notes import SummaryScope, is_omission_note, is_summary, summary_note, told_by
from haystack_compaction.conversation.stranded import behind_stranded, stranded_texts
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.salience.digest import digest_of, write_digest
from haystack_compaction.salience.reading import Reading
from haystack_compaction.tokens.ledger import TokenLedger

# Haystack's own word, by which its summarizer recognises a summary.
_MARKER = "summarization"

# Looks like a heading, so that nothing takes it for something that was said.
_KEPT = "# Messages of the user that follow word for word: {}. What came of them is told above."
_KEPT_LINE = re.compile(re.escape(_KEPT).replace(r"\{\}", r"\d+"))

# A token of an earlier summary tells as much as so many of what it was made from.
_DENSITY_OF_NOTES = 10

# So does a token of the user, beside one of what tools return and the assistant thinks: a few rules in the history must
# not be squeezed out by a long task.
_DENSITY_OF_USER = 40


@dataclass(frozen=True, eq=False)
class Region:
    """
    A part of the conversation that has one summary at most.

    :param scope: What the summary is about.
    :param units: The indexes of the messages that may be summarized, in units, in the order in which they go.
    :param notes: The indexes of the notes that a new summary takes the place of.
    :param place: The index that the summary stands in front of.
    """

    scope: SummaryScope
    units: list[list[int]]
    notes: list[int]
    place: int


@dataclass(frozen=True, eq=False)
class OldPart:
    """
    What one summary takes the place of: some units of a region, and all its notes.

    :param units: The indexes of the messages, in units, oldest first.
    :param limit: How long the summary may become, in tokens.
    :param kept: The indexes of messages in the units that stay even so.
    """

    region: Region
    units: list[list[int]]
    limit: int
    kept: frozenset[int] = frozenset()

    @cached_property
    def gone(self) -> list[int]:
        """The indexes of the messages that go, those of the notes aside."""
        return [index for unit in self.units for index in unit if index not in self.kept]

    def note(self, conversation: Conversation, text: str, *, kept_messages: int = 0) -> ChatMessage:
        kept = _KEPT.format(len(self.kept)) if self.kept else ""
        return summary_note(
            "\n".join(filter(None, [text, kept])),
            strategy=_MARKER,
            removed_messages=len(self.gone),
            kept_messages=kept_messages,
            scope=self.region.scope,
            folded=[conversation.messages[index] for index in self.region.notes],
        )


@dataclass
class Draft:
    """
    A conversation whose old parts give way to summaries, one after the other.

    :param original: The conversation before anything was taken from it, which may have been in an earlier stage.
    :param keep_tokens: How many tokens the user messages may take that are kept though what is around them goes.
    :param parts: What is to give way, with its summary; that is empty until it is written.
    """

    conversation: Conversation
    regions: list[Region]
    target_tokens: int
    ledger: TokenLedger
    original: Sequence[ChatMessage]
    keep_tokens: int = 0
    parts: dict[OldPart, str] = field(default_factory=dict)

    @cached_property
    def reading(self) -> Reading:
        """The original, read as a whole: what is kept tells what of the rest no longer holds."""
        return read(self.conversation, self.original)

    def part(self, region: Region, units: Sequence[list[int]], limit: int) -> OldPart:
        """Some units of a region as an old part, with the newest of their user messages that fit kept."""
        if self.keep_tokens <= 0:
            return OldPart(region, sorted(units), limit)
        room = self.keep_tokens - sum(self.size_of_kept(other) for other in self.parts if other.region is not region)
        kept = set()
        for index in sorted(chain.from_iterable(units), reverse=True):
            message = self.conversation.messages[index]
            if message.role is ChatRole.USER and (size := self.ledger.count([message])) <= room:
                room -= size
                kept.add(index)
        return OldPart(region, sorted(units), limit, frozenset(kept))

    def told(self, old: OldPart) -> Iterator[ChatMessage]:
        """What the summary of a part is to tell."""
        yield from (self.conversation.messages[index] for index in chain(old.region.notes, old.gone))
        yield from self.untold_messages(old)

    def told_before(self, region: Region) -> str:
        """What the notes of a region tell."""
        notes = [self.conversation.messages[index] for index in region.notes]
        return "\n\n".join(filter(None, (_KEPT_LINE.sub("", told_by(note)).rstrip() for note in notes)))

    def exact_facts(self, old: OldPart, summary: str, budget_tokens: int) -> str:
        """The exact values that the summary of a part should have told, and no other summary tells."""
        revised = [old.region, *(part.region for part in self.parts)]
        elsewhere = [self.told_before(region) for region in self.regions if region not in revised]
        return exact_facts(
            self.original,
            self._indexes(self.told(old)),
            "\n".join([summary, *self.parts.values(), *elsewhere]),
            budget_tokens=budget_tokens,
            count_text=text_counter(self.ledger),
            task_text=_task_text(self.conversation),
        )

    def digest(self, messages: Iterable[ChatMessage], budget_tokens: int) -> str:
        """What some of the messages say, in short."""
        indexes = self._indexes(messages)
        if not indexes:
            return ""
        count_text = text_counter(self.ledger)
        digest = digest_of(self.reading, indexes, budget_tokens=budget_tokens, count_text=count_text)
        # Where all of it is out of date, the old state of things is better than nothing.
        old = [self.original[index] for index in indexes]
        return digest or write_digest(old, budget_tokens=budget_tokens, count_text=count_text)

    def _indexes(self, messages: Iterable[ChatMessage]) -> list[int]:
        """Where messages stand in the original."""
        wanted = set(map(id, messages))
        return [index for index, message in enumerate(self.original) if id(message) in wanted]

    @cached_property
    def _lost(self) -> list[tuple[SummaryScope, ChatMessage]]:
        """What earlier stages removed."""
        if self.original is self.conversation.messages:
            return []
        left = set(map(id, self.conversation.messages))
        task = self.conversation.task_index
        task_message = self.conversation.messages[task] if task is not None else None
        scope: SummaryScope = "history"
        lost = []
        for message in self.original:
            if message is task_message:
                scope = "task"
            if id(message) not in left:
                lost.append((scope, message))
        return lost

    def untold_messages(self, old: OldPart) -> list[ChatMessage]:
        """What earlier stages removed of the region of a part; all that they removed, if no other part tells it."""
        is_alone = all(part.region is old.region for part in self.parts)
        return [message for scope, message in self._lost if is_alone or scope == old.region.scope]

    def quotes(self, region: Region) -> bool:
        """Whether a note of a region quotes what the assistant said, which no summary has told yet."""
        return any(is_omission_note(self.conversation.messages[index]) for index in region.notes)

    def worth(self, region: Region) -> int:
        """How much room the summary of a region deserves, beside that of another."""
        messages = self.conversation.messages
        new = [messages[index] for unit in region.units for index in unit]
        lost = [message for scope, message in self._lost if scope == region.scope]
        said = [message for message in [*new, *lost] if message.role is ChatRole.USER]
        return (
            self.ledger.count([*new, *lost])
            + (_DENSITY_OF_USER - 1) * self.ledger.count(said)
            + _DENSITY_OF_NOTES * self.size_of_notes(region)
            + 1
        )

    def size_of_notes(self, region: Region) -> int:
        """The size of the notes that a summary of the region takes the place of."""
        return self.ledger.count([self.conversation.messages[index] for index in region.notes])

    def size_of_kept(self, old: OldPart) -> int:
        """The size of the messages among those of a part that stay."""
        return self.ledger.count([self.conversation.messages[index] for index in old.kept])

    def size_of_new(self, old: OldPart) -> int:
        """The size of all else that gives way to a summary."""
        return self.ledger.count([self.conversation.messages[index] for index in old.gone])

    def open_regions(self) -> list[Region]:
        """The regions that something may be summarized of and that are no part yet."""
        chosen = [old.region for old in self.parts]
        return [region for region in self.regions if region.units and region not in chosen]

    def unwritten(self) -> list[OldPart]:
        """The parts whose summary is still to be written."""
        return [old for old, text in self.parts.items() if not text]

    def frame(self, old: OldPart) -> int:
        """The size of a summary that says nothing."""
        return self.ledger.count([old.note(self.conversation, "")])

    def reserved(self, *, beside: OldPart | None = None) -> int:
        """What the texts of the summaries that are still to be written will take."""
        return sum(max(old.limit - self.frame(old), 0) for old in self.unwritten() if old is not beside)

    def fits(self) -> bool:
        """Whether the conversation will fit the target."""
        return not self.ledger.exceeds(self.messages(), self.target_tokens - self.reserved())

    def would_fit(self, old: OldPart) -> bool:
        """Whether the conversation will fit the target with one more part, whose summary is as long as it may be."""
        target_tokens = self.target_tokens - self.reserved() - max(old.limit - self.frame(old), 0)
        return not self.ledger.exceeds(self.messages((old, "")), target_tokens)

    def room_without(self, region: Region, *others: Region) -> int:
        """What the target leaves for the summary of a region when it goes whole, like the others."""
        parts = [self.part(some, some.units, limit=0) for some in (region, *others)]
        size = self.ledger.count(self.messages(*((part, "") for part in parts))) + self.reserved()
        return self.target_tokens - size + self.frame(parts[0])

    def room_for(self, old: OldPart) -> int:
        """What the target leaves for the text of a summary, which is its usual length at least."""
        left = self.target_tokens - self.ledger.count(self.messages((old, ""))) - self.reserved(beside=old)
        return max(left, old.limit - self.frame(old), old.limit // 2)

    def gains_by(self, old: OldPart, text: str) -> bool:
        """Whether a summary brings the conversation under the target, or at least is smaller than its old part."""
        size = self.ledger.count([old.note(self.conversation, text)])
        return self.is_larger(old, size) or not self.ledger.exceeds(self.messages((old, text)), self.target_tokens)

    def is_larger(self, old: OldPart, tokens: int) -> bool:
        """Whether an old part is larger than so many tokens. Counts no more of it than it takes to know."""
        for index in chain(old.region.notes, old.gone):
            tokens -= self.ledger.count([self.conversation.messages[index]])
            if tokens < 0:
                return True
        return False

    def messages(self, *more: tuple[OldPart, str]) -> list[ChatMessage]:
        """The conversation with each old part replaced by its summary."""
        conversation, parts = self.conversation, {**self.parts, **dict(more)}
        gone = {index for old in parts for index in chain(old.gone, old.region.notes)}
        kept = [index for index in range(len(conversation.messages)) if index not in gone]
        stranded = stranded_texts(conversation.messages, kept)
        end_of_history = len(conversation.messages) if conversation.task_index is None else conversation.task_index
        compacted = [conversation.messages[index] for index in kept]
        # Later ones first, since each moves what is behind it.
        for old, text in sorted(parts.items(), key=lambda part: part[0].region.place, reverse=True):
            place = old.region.place - 1
            in_task = old.region.scope == "task"
            pinned = {index for index in stranded & conversation.protected if (index > end_of_history) is in_task}
            if pinned or in_task:
                place = behind_stranded(stranded, kept, max(pinned, default=place))
            note = old.note(conversation, text, kept_messages=len(kept))
            compacted.insert(bisect_right(kept, place), note)
        return compacted

    def join_summaries(self) -> None:
        """Make one of the summaries of each region that has several and needs no new one."""
        revised = [old.region for old in self.parts]
        for region in self.regions:
            summaries = sum(is_summary(self.conversation.messages[index]) for index in region.notes)
            if region not in revised and summaries > 1:
                self.parts[OldPart(region, [], limit=0)] = self.told_before(region)


def read(conversation: Conversation, original: Sequence[ChatMessage] | None = None) -> Reading:
    """
    Read a conversation for a digest of some of it.

    :param conversation: The conversation, with the current task.
    :param original: The conversation before anything was taken from it, if it is to be read instead.
    :returns: What it says, by the index of the message.
    """
    messages = original if original is not None else conversation.messages
    return Reading(messages, task_text=_task_text(conversation))


def text_counter(ledger: TokenLedger) -> Callable[[str], int]:
    """
    Return what counts the tokens of a text.

    :param ledger: What counts messages.
    :returns: The counter's own function for texts where it has one, else one that counts messages made of them.
    """
    count_text: Callable[[str], int] | None = getattr(ledger.token_counter, "count_text", None)
    if count_text is not None:
        return count_text
    frame = ledger.count([ChatMessage.from_user("")])
    return lambda text: ledger.count([ChatMessage.from_user(text)]) - frame


def _task_text(conversation: Conversation) -> str:
    task = conversation.task_index
    return (conversation.messages[task].text or "") if task is not None else ""
