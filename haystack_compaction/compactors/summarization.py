# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Replaces the older part of a conversation by a summary of it, written by a model or without one."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
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
from haystack_compaction.pass_context import current_pass
from haystack_compaction.salience.digest import write_digest
from haystack_compaction.tokens.estimate import EstimateTokenCounter
from haystack_compaction.tokens.ledger import TokenLedger

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger(__name__)

_count_text = EstimateTokenCounter().count_text

# Haystack's own word, by which its summarizer recognises a summary.
_MARKER = "summarization"

# Small enough for any model in use, and large enough for most conversations that are about to be compacted.
_DEFAULT_CONTEXT_WINDOW = 32_000

# New material smaller than this many tokens is left alone: a summary of it would be about as long.
_SMALLEST_OLD_PART = 400

_DIGEST_ATTEMPTS = 3


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
    rules, decisions, calls with their outcomes and exact identifiers, picked out of the messages without a model.

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
    :param approximate_summary_tokens: How long a summary may become, in tokens, at least 1. What is summarized is
        chosen so that the target is met with a summary of this length; the model is told, the digest keeps to it.
    :param summarizer_context_window: The size in tokens, reply included, that no prompt for the chat generator may
        exceed. None for the window of the hook that the compactor runs in, where there is one, and 32,000 elsewhere.
    :param summary_instruction: How to summarize, sent as the system message. The transcript and the explanation of its
        form come in a message after it.
    :param raise_on_failure: Whether a model that fails or gives no usable summary raises a `RuntimeError` out of
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
        regions = self._regions(conversation)
        tried: set[SummaryScope] = set()
        written: list[tuple[_OldPart, str]] = []
        # What is too small for a summary of full length is only looked at when nothing else is left.
        for tight, region in product((False, True), regions):
            if region.scope in tried or not region.units:
                continue
            if written and not ledger.exceeds(_with_summaries(conversation, written), target_tokens):
                break
            old = self._old_part(conversation, region, written, target_tokens, ledger, tight=tight)
            if old is None:
                continue
            tried.add(region.scope)
            text = yield from self._text(conversation, old, ledger)
            if text and old.is_larger_than(text, conversation, ledger):
                written.append((old, text))
        written.extend(_joined(conversation, regions, written))
        return _with_summaries(conversation, written) if written else None

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

    def _old_part(
        self,
        conversation: Conversation,
        region: "_Region",
        written: list[tuple["_OldPart", str]],
        target_tokens: int,
        ledger: TokenLedger,
        *,
        tight: bool,
    ) -> "_OldPart | None":
        """
        The fewest of the oldest units whose summary brings the conversation under the target, else all of them.

        :param written: The summaries that other regions have got in this pass.
        :param tight: Whether the summary may be as long as half of what is new to it, instead of the usual length.
        :returns: None where the summary would be about as long as what it takes the place of.
        """
        limit = self.approximate_summary_tokens
        everything = _OldPart(region, region.units, limit)
        if tight:
            new = ledger.count([conversation.messages[index] for unit in region.units for index in unit])
            notes = ledger.count([conversation.messages[index] for index in region.notes])
            return replace(everything, limit=min(limit, notes + new // 2)) if new >= _SMALLEST_OLD_PART else None

        def without(number: int) -> list[ChatMessage]:
            return _with_summaries(conversation, [*written, (replace(everything, units=region.units[:number]), "")])

        number = ledger.fewest_removals(
            [[conversation.messages[index] for index in unit] for unit in region.units],
            staying=without(len(region.units)),
            size_added=0,
            target_tokens=target_tokens - limit + ledger.count([everything.note(conversation, "")]),
            without=without,
        )
        old = replace(everything, units=sorted(region.units[:number]))
        return old if old.exceeds(limit, conversation, ledger) else None

    def _text(
        self, conversation: Conversation, old: "_OldPart", ledger: TokenLedger
    ) -> Generator[list[Prompt], list[Reply], str]:
        """The summary of an old part: the model's, or the digest. Empty when even that has nothing to tell."""
        frame = ledger.count([old.note(conversation, "")])
        budget = max(old.limit - frame, old.limit // 2)
        task = conversation.task_index
        task_text = conversation.messages[task].text if task is not None else None

        def digest(messages: Sequence[ChatMessage], previous: str) -> str:
            return _digest(messages, previous, task_text or "", budget, ledger)

        def stand_in(messages: Sequence[ChatMessage], previous: str, fault: str) -> str:
            if self.raise_on_failure:
                raise RuntimeError(f"The chat generator gave no usable summary: {fault}.")
            logger.warning("A digest stands in for the model's summary: {fault}.", fault=fault)
            return digest(messages, previous)

        units = [[conversation.messages[index] for index in unit] for unit in old.units]
        previous = _told(conversation, old.region)
        if self._model is None:
            return digest([message for unit in units for message in unit], previous)
        writer = self._writer(ledger, old.limit)
        return (
            yield from writer.write(
                units,
                previous=previous,
                is_smaller=lambda text: old.is_larger_than(text, conversation, ledger),
                stand_in=stand_in,
            )
        )

    def _writer(self, ledger: TokenLedger, limit: int) -> SummaryWriter:
        window = self.summarizer_context_window or current_pass().context_window or _DEFAULT_CONTEXT_WINDOW
        return SummaryWriter(instruction=self.summary_instruction, limit=limit, context_window=window, ledger=ledger)


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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

    def is_larger_than(self, text: str, conversation: Conversation, ledger: TokenLedger) -> bool:
        return self.exceeds(ledger.count([self.note(conversation, text)]), conversation, ledger)

    def exceeds(self, tokens: int, conversation: Conversation, ledger: TokenLedger) -> bool:
        """Whether it is larger than so many tokens. Counts no more of it than it takes to know."""
        for index in chain(self.region.notes, *self.units):
            tokens -= ledger.count([conversation.messages[index]])
            if tokens < 0:
                return True
        return False


def _digest(messages: Sequence[ChatMessage], previous: str, task_text: str, budget: int, ledger: TokenLedger) -> str:
    """A digest that keeps to its budget by the ledger too. It measures itself by the estimate, which is faster."""
    text, estimated = "", budget
    for _ in range(_DIGEST_ATTEMPTS):
        text = write_digest(
            messages, budget_tokens=estimated, count_text=_count_text, task_text=task_text, previous=previous
        )
        size = ledger.count([ChatMessage.from_user(text)])
        if size <= budget:
            break
        estimated = estimated * budget // size
    return text


def _told(conversation: Conversation, region: _Region) -> str:
    """What the notes of a region tell."""
    return "\n\n".join(filter(None, (told_by(conversation.messages[index]) for index in region.notes)))


def _joined(
    conversation: Conversation, regions: list[_Region], written: list[tuple[_OldPart, str]]
) -> list[tuple[_OldPart, str]]:
    """The summaries of regions that have several and need no new one, as one text each."""
    revised = [old.region for old, _ in written]
    several = [
        region
        for region in regions
        if region not in revised and sum(is_summary(conversation.messages[index]) for index in region.notes) > 1
    ]
    return [(_OldPart(region, [], limit=0), _told(conversation, region)) for region in several]


def _with_summaries(conversation: Conversation, written: list[tuple[_OldPart, str]]) -> list[ChatMessage]:
    """The conversation with each old part replaced by its summary."""
    gone = set(chain.from_iterable(unit for old, _ in written for unit in [*old.units, old.region.notes]))
    kept_messages = len(conversation.messages) - len(gone)
    notes = {old.region.place: old.note(conversation, text, kept_messages=kept_messages) for old, text in written}
    compacted: list[ChatMessage] = []
    start = 0
    for place, note in sorted(notes.items()):
        compacted += [*_kept(conversation, range(start, place), gone), note]
        start = place
    return [*compacted, *_kept(conversation, range(start, len(conversation.messages)), gone)]


def _kept(conversation: Conversation, indexes: range, gone: set[int]) -> list[ChatMessage]:
    return [conversation.messages[index] for index in indexes if index not in gone]
