# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Replaces the older part of a conversation by a summary of it, written by a model or without one."""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from haystack import component, logging
from haystack.components.generators.chat.types import ChatGenerator
from haystack.dataclasses import ChatMessage

from haystack_compaction.compactors.base import Compactor, CompactorOptions, require_at_least
from haystack_compaction.compactors.model_calls import ModelCaller, Prompt, Reply, Rewriting
from haystack_compaction.compactors.summary_prompt import DEFAULT_SUMMARY_INSTRUCTION
from haystack_compaction.compactors.summary_writer import SMALLEST_RECORD, SummaryWriter
from haystack_compaction.conversation.notes import SummaryScope, is_summary, summary_note, told_by
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.errors import CompactionError
from haystack_compaction.pass_context import current_pass
from haystack_compaction.salience.digest import digest_of, write_digest
from haystack_compaction.salience.reading import Reading
from haystack_compaction.tokens.ledger import TokenLedger

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger(__name__)

# Haystack's own word, by which its summarizer recognises a summary.
_MARKER = "summarization"

# Small enough for any model in use, and large enough for most conversations that are about to be compacted.
_DEFAULT_CONTEXT_WINDOW = 32_000

# New material smaller than this many tokens is left alone: a summary of it would be about as long.
_SMALLEST_OLD_PART = 400

# Less than so many tokens tell nothing. A target that leaves no more than that is out of reach.
_SMALLEST_SUMMARY = 80

# Without a model, this share of what the target leaves beside the floor is for the digest; the rest is for the newest
# turns and steps as they are. It may become so many times as long as a model's summary.
_DIGEST_SHARE = 0.8
_LONGEST_DIGEST = 16

# A token of an earlier summary tells as much as so many of what it was made from.
_DENSITY_OF_NOTES = 10


@component
class SummarizationCompactor(Compactor):
    """
    Replaces the older part of the conversation by a summary of it, and keeps the newer part as it is.

    What stays whatever the target: the system messages at the start, the current task's user message, its newest steps,
    pinned messages. Before the task, the oldest turns are summarized, as few as needed; only when the task alone is too
    big its oldest steps are, into a second summary. A later pass revises these two and never adds a third.

    The summary is written by the chat generator: in one call where the old part fits its window, else in parts that are
    merged. It is checked before it replaces anything: one that is empty, cut off, refused, says nothing or is no
    smaller is asked for once more. Where the model fails, and where there is none, a digest takes its place: requests,
    rules, decisions, calls with their outcomes and exact identifiers, picked out of the messages without a model. What
    the newer part has put right is not told any more.

    A summary gets no more than the target leaves for it, so the target is met wherever what stays leaves room for a
    short one. The digest takes all that is left: a model's summary gains little by being long, a digest gains much.

    ### Usage example

    ```python
    from haystack.components.agents import Agent
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack_compaction import CompactionHook, SummarizationCompactor

    compactor = SummarizationCompactor(OpenAIChatGenerator(model="gpt-5.4-nano"))
    agent = Agent(
        chat_generator=OpenAIChatGenerator(model="gpt-5.4"),
        hooks={"before_llm": [CompactionHook(compactor, context_window=400_000)]},
    )
    ```

    :param chat_generator: The chat generator that writes the summaries; None for the digest.
    :param min_keep_steps: How many of the current task's newest completed steps stay even when they exceed the target,
        at least 0. A step is an assistant message with the results of its calls.
    :param approximate_summary_tokens: How long a summary may become, in tokens, at least 1; less where the target has
        less room. What is summarized is chosen so that the target is met with such a summary, and the model is
        told. Without a model, four fifths of what the target leaves are set apart for the digest, at least this length
        and at most 16 times as much.
    :param summarizer_context_window: The size in tokens, reply included, that no prompt for the chat generator may
        exceed. None for the window of the hook that the compactor runs in, where there is one, and 32,000 elsewhere.
    :param summary_instruction: How to summarize, sent as the system message. The transcript and the explanation of its
        form come in a message after it.
    :param raise_on_failure: Whether a model that fails or gives no usable summary raises a `CompactionError` out of
        `compact`. By default that is logged, and the digest takes the summary's place.
    :param timeout: How many seconds a batch of calls may take, greater than 0.
    :param options: The options that every compactor takes, see `Compactor`.
    :raises ValueError: If an option is out of its range, or if instruction and summary leave no room in
        `summarizer_context_window`.
    """

    strategy = "summarize_older"

    def __init__(
        self,
        chat_generator: ChatGenerator | None = None,
        *,
        min_keep_steps: int = 1,
        approximate_summary_tokens: int = 1024,
        summarizer_context_window: int | None = None,
        summary_instruction: str = DEFAULT_SUMMARY_INSTRUCTION,
        raise_on_failure: bool = False,
        timeout: float = 60.0,
        **options: "Unpack[CompactorOptions]",
    ) -> None:
        Compactor.__init__(self, **options)
        require_at_least(0, min_keep_steps=min_keep_steps)
        require_at_least(1, approximate_summary_tokens=approximate_summary_tokens)
        if timeout <= 0:
            raise ValueError(f"`timeout` must be greater than 0 seconds, got {timeout}.")
        self.chat_generator = chat_generator
        self.min_keep_steps = min_keep_steps
        self.approximate_summary_tokens = approximate_summary_tokens
        self.summarizer_context_window = summarizer_context_window
        self.summary_instruction = summary_instruction
        self.raise_on_failure = raise_on_failure
        self.timeout = timeout
        if chat_generator is not None:
            self._model = ModelCaller(chat_generator, timeout=timeout)
        room = self._writer(TokenLedger(), approximate_summary_tokens).room
        if summarizer_context_window is not None and room < SMALLEST_RECORD:
            raise ValueError(
                f"`summarizer_context_window` must leave room for a transcript beside the instruction and the reply, "
                f"got {summarizer_context_window}. With these settings it must be at least "
                f"{summarizer_context_window - room + SMALLEST_RECORD}."
            )

    def rewrite(self, conversation: Conversation, target_tokens: int, ledger: TokenLedger) -> Rewriting:
        """
        Summarize as few of the oldest turns, then steps, as bring the conversation under the target.

        :param conversation: The conversation, valid and taken apart.
        :param target_tokens: The size to come under, in the ledger's tokens.
        :param ledger: What knows the size of each message.
        :returns: A generator, see `Rewriting`, that returns the messages to go on with, or None when nothing may be
            summarized or a summary would be no smaller.
        """
        original = current_pass().original or conversation.messages
        draft = _Draft(conversation, self._regions(conversation), target_tokens, ledger, original)
        tried: set[SummaryScope] = set()
        # What is too small for a summary of full length is only looked at when nothing else is left.
        for tight in (False, True):
            for region in draft.regions:
                if region.scope in tried or not region.units:
                    continue
                if draft.parts and draft.fits():
                    break
                old = self._old_part(draft, region, tight=tight)
                if old is not None:
                    tried.add(region.scope)
                    draft.parts[old] = ""
            for old in draft.unwritten():
                text = yield from self._text(draft, old)
                if text and draft.gains_by(old, text):
                    draft.parts[old] = text
                else:
                    del draft.parts[old]
        draft.parts.update(_joined(draft))
        return draft.messages() if draft.parts else None

    def _regions(self, conversation: Conversation) -> list["_Region"]:
        """The parts of the conversation that have one summary each, in the order in which they are summarized."""
        notes = [index for index in conversation.notes if index not in conversation.protected]
        head = [] if self.preserve_system_prompt else conversation.removable([conversation.head])
        turns = [*head, *conversation.removable_turns(preserve_recent_turns=self.preserve_recent_turns)]
        steps = conversation.removable_steps(min_keep_steps=self.min_keep_steps)
        task = conversation.task_index
        if task is None:
            return [_Region("history", [*turns, *steps], notes, place=conversation.head_end)]
        return [
            _Region("history", turns, [index for index in notes if index < task], place=conversation.head_end),
            _Region("task", steps, [index for index in notes if index > task], place=task + 1),
        ]

    def _old_part(self, draft: "_Draft", region: "_Region", *, tight: bool) -> "_OldPart | None":
        """
        The fewest of the oldest units whose summary brings the conversation under the target, else all of them.

        :param tight: Whether the summary may be as long as half of what is new to it, instead of the usual length.
        :returns: None where the summary would be about as long as what it takes the place of.
        """
        conversation, ledger = draft.conversation, draft.ledger
        limit = self._limit(draft, region)
        everything = _OldPart(region, region.units, limit)
        if tight:
            new = ledger.count([conversation.messages[index] for unit in region.units for index in unit])
            notes = ledger.count([conversation.messages[index] for index in region.notes])
            return replace(everything, limit=min(limit, notes + new // 2)) if new >= _SMALLEST_OLD_PART else None

        def without(number: int) -> list[ChatMessage]:
            return draft.messages((replace(everything, units=region.units[:number]), ""))

        number = ledger.fewest_removals(
            [[conversation.messages[index] for index in unit] for unit in region.units],
            staying=without(len(region.units)),
            size_added=0,
            target_tokens=draft.target_tokens - draft.reserved() - limit + draft.frame(everything),
            without=without,
        )
        old = replace(everything, units=sorted(region.units[:number]))
        return old if draft.is_larger(old, limit) else None

    def _limit(self, draft: "_Draft", region: "_Region") -> int:
        """How long the summary of a region may become: the usual length, or what the target leaves for it if less."""
        later = [other for other in draft.open_regions() if other is not region]
        room = draft.room_without(region, *later)
        usual = self.approximate_summary_tokens
        if self._model is None:
            usual = max(usual, min(int(_DIGEST_SHARE * room), _LONGEST_DIGEST * usual))
        if room < _SMALLEST_SUMMARY:
            # The target is out of reach. A digest costs nothing but its length, so it is kept short.
            return usual if self._model else min(usual, max(draft.target_tokens // 4, _SMALLEST_SUMMARY))
        if later and (room_beside_later := draft.room_without(region)) < usual // 2:
            # The other region will have to shrink as well, so that the two share the room by what they tell.
            worths = [draft.worth(some) for some in (region, *later)]
            room = max(room_beside_later, room * worths[0] // sum(worths), _SMALLEST_SUMMARY)
        elif later:
            room = room_beside_later
        return min(usual, room)

    def _text(self, draft: "_Draft", old: "_OldPart") -> Generator[list[Prompt], list[Reply], str]:
        """The summary of an old part: the model's, or the digest. Empty when even that has nothing to tell."""
        units = [[draft.conversation.messages[index] for index in unit] for unit in old.units]
        untold = draft.untold_messages(old)
        earlier = [*(draft.conversation.messages[index] for index in old.region.notes), *untold]

        def digest(messages: Iterable[ChatMessage]) -> str:
            longest = max(old.limit, _LONGEST_DIGEST * self.approximate_summary_tokens)
            return draft.digest(messages, min(draft.room_for(old), longest))

        def stand_in(messages: Sequence[ChatMessage], previous: str, fault: str) -> str:
            if self.raise_on_failure:
                raise CompactionError(f"The chat generator gave no usable summary: {fault}.")
            logger.warning("A digest stands in for the model's summary: {fault}.", fault=fault)
            return digest([*earlier, *messages] if previous else messages)

        if self._model is None:
            return digest(chain(earlier, *units))
        told = [_told(draft.conversation, old.region), draft.digest(untold, old.limit)]
        return (
            yield from self._writer(draft.ledger, old.limit).write(
                units,
                previous="\n\n".join(filter(None, told)),
                is_smaller=lambda text: draft.gains_by(old, text),
                stand_in=stand_in,
            )
        )

    def _writer(self, ledger: TokenLedger, limit: int) -> SummaryWriter:
        window = self.summarizer_context_window or current_pass().context_window or _DEFAULT_CONTEXT_WINDOW
        return SummaryWriter(instruction=self.summary_instruction, limit=limit, context_window=window, ledger=ledger)


@dataclass(frozen=True, eq=False)
class _Region:
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
class _OldPart:
    """
    What one summary takes the place of: some units of a region, and all its notes.

    :param units: The indexes of the messages, in units, oldest first.
    :param limit: How long the summary may become, in tokens.
    """

    region: _Region
    units: list[list[int]]
    limit: int

    def note(self, conversation: Conversation, text: str, *, kept_messages: int = 0) -> ChatMessage:
        return summary_note(
            text,
            strategy=_MARKER,
            removed_messages=sum(map(len, self.units)),
            kept_messages=kept_messages,
            scope=self.region.scope,
            folded=[conversation.messages[index] for index in self.region.notes],
        )


@dataclass
class _Draft:
    """
    A conversation whose old parts give way to summaries, one after the other.

    :param original: The conversation before anything was taken from it, which may have been in an earlier stage.
    :param parts: What is to give way, with its summary; that is empty until it is written.
    """

    conversation: Conversation
    regions: list[_Region]
    target_tokens: int
    ledger: TokenLedger
    original: Sequence[ChatMessage]
    parts: dict[_OldPart, str] = field(default_factory=dict)

    @cached_property
    def reading(self) -> Reading:
        """The original, read as a whole: what is kept tells what of the rest no longer holds."""
        return read(self.conversation, self.original)

    def digest(self, messages: Iterable[ChatMessage], budget_tokens: int) -> str:
        """What some of the messages say, in short."""
        told = set(map(id, messages))
        indexes = [index for index, message in enumerate(self.original) if id(message) in told]
        if not indexes:
            return ""
        count_text = text_counter(self.ledger)
        digest = digest_of(self.reading, indexes, budget_tokens=budget_tokens, count_text=count_text)
        # Where all of it is out of date, the old state of things is better than nothing.
        old = [self.original[index] for index in indexes]
        return digest or write_digest(old, budget_tokens=budget_tokens, count_text=count_text)

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

    def untold_messages(self, old: _OldPart) -> list[ChatMessage]:
        """What earlier stages removed of the region of a part; all that they removed, if no other part tells it."""
        return [message for scope, message in self._lost if len(self.parts) == 1 or scope == old.region.scope]

    def worth(self, region: _Region) -> int:
        """How much room the summary of a region deserves, beside that of another."""
        messages = self.conversation.messages
        new = [messages[index] for unit in region.units for index in unit]
        lost = [message for scope, message in self._lost if scope == region.scope]
        notes = [messages[index] for index in region.notes]
        return self.ledger.count([*new, *lost]) + _DENSITY_OF_NOTES * self.ledger.count(notes) + 1

    def open_regions(self) -> list[_Region]:
        """The regions that something may be summarized of and that are no part yet."""
        chosen = [old.region for old in self.parts]
        return [region for region in self.regions if region.units and region not in chosen]

    def unwritten(self) -> list[_OldPart]:
        """The parts whose summary is still to be written."""
        return [old for old, text in self.parts.items() if not text]

    def frame(self, old: _OldPart) -> int:
        """The size of a summary that says nothing."""
        return self.ledger.count([old.note(self.conversation, "")])

    def reserved(self, *, beside: _OldPart | None = None) -> int:
        """What the texts of the summaries that are still to be written will take."""
        return sum(max(old.limit - self.frame(old), 0) for old in self.unwritten() if old is not beside)

    def fits(self) -> bool:
        """Whether the conversation will fit the target."""
        return not self.ledger.exceeds(self.messages(), self.target_tokens - self.reserved())

    def room_without(self, region: _Region, *others: _Region) -> int:
        """What the target leaves for the summary of a region when it goes whole, like the others."""
        parts = [_OldPart(some, some.units, limit=0) for some in (region, *others)]
        size = self.ledger.count(self.messages(*((part, "") for part in parts))) + self.reserved()
        return self.target_tokens - size + self.frame(parts[0])

    def room_for(self, old: _OldPart) -> int:
        """What the target leaves for the text of a summary, which is its usual length at least."""
        left = self.target_tokens - self.ledger.count(self.messages((old, ""))) - self.reserved(beside=old)
        return max(left, old.limit - self.frame(old), old.limit // 2)

    def gains_by(self, old: _OldPart, text: str) -> bool:
        """Whether a summary brings the conversation under the target, or at least is smaller than its old part."""
        size = self.ledger.count([old.note(self.conversation, text)])
        return self.is_larger(old, size) or not self.ledger.exceeds(self.messages((old, text)), self.target_tokens)

    def is_larger(self, old: _OldPart, tokens: int) -> bool:
        """Whether an old part is larger than so many tokens. Counts no more of it than it takes to know."""
        for index in chain(old.region.notes, *old.units):
            tokens -= self.ledger.count([self.conversation.messages[index]])
            if tokens < 0:
                return True
        return False

    def messages(self, *more: tuple[_OldPart, str]) -> list[ChatMessage]:
        """The conversation with each old part replaced by its summary."""
        conversation, parts = self.conversation, {**self.parts, **dict(more)}
        gone = set(chain.from_iterable(unit for old in parts for unit in [*old.units, old.region.notes]))
        kept_messages = len(conversation.messages) - len(gone)
        notes = {
            old.region.place: old.note(conversation, text, kept_messages=kept_messages) for old, text in parts.items()
        }
        compacted: list[ChatMessage] = []
        start = 0
        for place, note in sorted(notes.items()):
            compacted += [*_kept(conversation, range(start, place), gone), note]
            start = place
        return [*compacted, *_kept(conversation, range(start, len(conversation.messages)), gone)]


def read(conversation: Conversation, original: Sequence[ChatMessage] | None = None) -> Reading:
    """
    Read a conversation for a digest of some of it.

    :param conversation: The conversation, with the current task.
    :param original: The conversation before anything was taken from it, if it is to be read instead.
    :returns: What it says, by the index of the message.
    """
    task = conversation.task_index
    task_text = conversation.messages[task].text if task is not None else None
    return Reading(original if original is not None else conversation.messages, task_text=task_text or "")


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


def _told(conversation: Conversation, region: _Region) -> str:
    """What the notes of a region tell."""
    return "\n\n".join(filter(None, (told_by(conversation.messages[index]) for index in region.notes)))


def _joined(draft: _Draft) -> dict[_OldPart, str]:
    """The summaries of regions that have several and need no new one, as one text each."""
    conversation = draft.conversation
    revised = [old.region for old in draft.parts]
    several = [
        region
        for region in draft.regions
        if region not in revised and sum(is_summary(conversation.messages[index]) for index in region.notes) > 1
    ]
    return {_OldPart(region, [], limit=0): _told(conversation, region) for region in several}


def _kept(conversation: Conversation, indexes: range, gone: set[int]) -> list[ChatMessage]:
    return [conversation.messages[index] for index in indexes if index not in gone]
