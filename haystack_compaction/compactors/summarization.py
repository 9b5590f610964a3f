# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Replaces the older part of a conversation by a summary of it, written by a model or without one."""

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

from haystack import component, logging
from haystack.components.generators.chat.types import ChatGenerator
from haystack.dataclasses import ChatMessage

from haystack_compaction.checks import (
    given,
    require_at_least,
    require_flags,
    require_method,
    require_numbers,
    require_texts,
)
from haystack_compaction.compactors.base import Compactor, CompactorOptions
from haystack_compaction.compactors.model_calls import ModelCaller, Prompt, Reply, Rewriting
from haystack_compaction.compactors.summary_draft import Draft, OldPart, Region
from haystack_compaction.compactors.summary_prompt import DEFAULT_SUMMARY_INSTRUCTION
from haystack_compaction.compactors.summary_writer import SMALLEST_RECORD, SummaryWriter
from haystack_compaction.conversation.notes import SummaryScope
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.errors import CompactionError
from haystack_compaction.pass_context import current_pass
from haystack_compaction.tokens.ledger import TokenLedger

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger(__name__)

# Small enough for any model in use, and large enough for most conversations that are about to be compacted.
_DEFAULT_CONTEXT_WINDOW = 32_000

# New material smaller than this many tokens is left alone: a summary of it would be about as long.
_SMALLEST_OLD_PART = 400

# Less than so many tokens tell nothing. A target that leaves no more than that is out of reach.
_SMALLEST_SUMMARY = 80

# No more room is set apart for a model's summary than this share of what it takes the place of, or so many tokens where
# that is more. So not much of the target is left unused, even if the model writes next to nothing.
_COMPRESSION = 8
_SHORT_SUMMARY = 200

# Without a model, this share of what the target leaves beside the floor is for the digest; the rest is for the newest
# turns and steps as they are. It may become so many times as long as a model's summary.
_DIGEST_SHARE = 0.8
_LONGEST_DIGEST = 16

# A digest is written anew, of less, when it leaves more than this share of the target unused; so many times at most.
_WASTE = 0.1
_REFITS = 2


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

    What a model's summary leaves out of exact values (paths, ids, amounts, numbers with units, dates, error texts), a
    short list after it tells, each in the statement in which it was given. It is made by code, so values survive any
    number of summaries by a model that forgets them.

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
        less room, or where so much would be more than an eighth of what is summarized. What is summarized is chosen so
        that the target is met with such a summary, and the model is told. Without a model, four fifths of what the
        target leaves are set apart for the digest, at least this length and at most 16 times as much.
    :param exact_facts_tokens: How long the list of exact values after a model's summary may become, in tokens, at least
        0; 0 for no list. It shrinks with the summary where the target has less room.
    :param keep_user_messages_tokens: The newest user messages of what is summarized stay as they are, up to so many
        tokens, at least 0; 0 keeps none. Only whole messages are kept, in no more than half of the room that the target
        leaves. They come to stand next to each other, which chat templates that want roles to alternate do not take.
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

    # A request is paid for at every step. What this strategy writes of the rest makes a small one enough, see
    # `benchmarks/bill.py`.
    compact_to = 0.2

    def __init__(
        self,
        chat_generator: ChatGenerator | None = None,
        *,
        min_keep_steps: int = 1,
        approximate_summary_tokens: int = 1024,
        exact_facts_tokens: int = 512,
        keep_user_messages_tokens: int = 0,
        summarizer_context_window: int | None = None,
        summary_instruction: str = DEFAULT_SUMMARY_INSTRUCTION,
        raise_on_failure: bool = False,
        timeout: float = 60.0,
        **options: "Unpack[CompactorOptions]",
    ) -> None:
        Compactor.__init__(self, **options)
        require_at_least(
            0,
            min_keep_steps=min_keep_steps,
            exact_facts_tokens=exact_facts_tokens,
            keep_user_messages_tokens=keep_user_messages_tokens,
        )
        require_at_least(1, approximate_summary_tokens=approximate_summary_tokens)
        require_flags(raise_on_failure=raise_on_failure)
        require_texts(summary_instruction=summary_instruction)
        require_numbers(timeout=timeout)
        require_at_least(1, **given(summarizer_context_window=summarizer_context_window))
        require_method("run", **given(chat_generator=chat_generator))
        if not timeout > 0:
            raise ValueError(f"`timeout` must be greater than 0 seconds, got {timeout}.")
        self.chat_generator = chat_generator
        self.min_keep_steps = min_keep_steps
        self.approximate_summary_tokens = approximate_summary_tokens
        self.exact_facts_tokens = exact_facts_tokens
        self.keep_user_messages_tokens = keep_user_messages_tokens
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
        draft = Draft(conversation, self._regions(conversation), target_tokens, ledger, original)
        if self.keep_user_messages_tokens:
            room = draft.room_without(*draft.regions)
            draft.keep_tokens = min(self.keep_user_messages_tokens, room // 2, room - 2 * _SMALLEST_SUMMARY)
        tried: set[SummaryScope] = set()
        # What is too small for a summary of full length is only looked at when nothing else is left.
        for tight in (False, True):
            for region in draft.regions:
                if region.scope in tried or not (region.units or draft.quotes(region)):
                    continue
                if draft.parts and draft.fits():
                    break
                old = self._old_part(draft, region, tight=tight)
                if old is not None:
                    tried.add(region.scope)
                    draft.parts[old] = ""
            for old in draft.unwritten():
                del draft.parts[old]
                summarized, text = yield from self._summarized(draft, old)
                if text and draft.gains_by(summarized, text):
                    draft.parts[summarized] = text
        draft.join_summaries()
        return draft.messages() if draft.parts else None

    def _regions(self, conversation: Conversation) -> list[Region]:
        """The parts of the conversation that have one summary each, in the order in which they are summarized."""
        notes = [index for index in conversation.notes if index not in conversation.protected]
        head = [] if self.preserve_system_prompt else conversation.removable([conversation.head])
        turns = [*head, *conversation.removable_turns(preserve_recent_turns=self.preserve_recent_turns)]
        steps = conversation.removable_steps(min_keep_steps=self.min_keep_steps)
        task = conversation.task_index
        if task is None:
            return [Region("history", [*turns, *steps], notes, place=conversation.head_end)]
        return [
            Region("history", turns, [index for index in notes if index < task], place=conversation.head_end),
            Region("task", steps, [index for index in notes if index > task], place=task + 1),
        ]

    def _old_part(self, draft: Draft, region: Region, *, tight: bool) -> OldPart | None:
        """
        The fewest of the oldest units whose summary brings the conversation under the target, else all of them.

        :param tight: Whether the summary may be as long as half of what is new to it, instead of the usual length.
        :returns: None where the summary would be about as long as what it takes the place of.
        """
        limit = self._limit(draft, region, is_digest=self._model is None)
        if tight:
            everything = draft.part(region, region.units, limit)
            new, notes = draft.size_of_new(everything), draft.size_of_notes(region)
            return replace(everything, limit=min(limit, notes + new // 2)) if new >= _SMALLEST_OLD_PART else None
        old = self._fewest(draft, region, limit)
        if self._model is not None:
            old = self._with_modest_limit(draft, old)
            if draft.would_fit(old) and draft.is_larger(old, 2 * old.limit):
                return old
        return old if draft.is_larger(old, limit) else None

    def _with_modest_limit(self, draft: Draft, old: OldPart) -> OldPart:
        """
        An old part whose summary is much shorter than it is: of fewer units, since less room is set apart for it.

        Little is left to do the second time.
        """
        for _ in range(2):
            if draft.is_larger(old, _COMPRESSION * old.limit):
                break
            added = max(draft.size_of_new(old) // _COMPRESSION, _SHORT_SUMMARY)
            limit = draft.size_of_notes(old.region) + added
            if limit >= old.limit:
                break
            old = self._fewest(draft, old.region, limit)
        while not draft.is_larger(old, 2 * old.limit) and len(old.units) < len(old.region.units):
            # A call of a model for less is no bargain.
            old = draft.part(old.region, old.region.units[: len(old.units) + 1], old.limit)
        return old

    def _fewest(self, draft: Draft, region: Region, limit: int) -> OldPart:
        """As few of the oldest units as bring the conversation under the target, with a summary of that length."""
        messages, units, ledger = draft.conversation.messages, region.units, draft.ledger
        nothing_kept = OldPart(region, units, limit)
        target_tokens = draft.target_tokens - draft.reserved() - limit + draft.frame(nothing_kept)

        def without(number: int) -> list[ChatMessage]:
            return draft.messages((draft.part(region, units[:number], limit), ""))

        def fewest(kept_tokens: int) -> OldPart:
            number = ledger.fewest_removals(
                [[messages[index] for index in unit] for unit in units],
                staying=draft.messages((nothing_kept, "")),
                size_added=kept_tokens,
                target_tokens=target_tokens,
                without=without,
            )
            return draft.part(region, units[:number], limit)

        old = fewest(0)
        # What is kept of the units depends on how many there are.
        for kept_tokens in (draft.size_of_kept(old), draft.keep_tokens):
            if not old.kept or not ledger.exceeds(draft.messages((old, "")), target_tokens):
                break
            old = fewest(kept_tokens)
        return old

    def _limit(self, draft: Draft, region: Region, *, is_digest: bool) -> int:
        """How long the summary of a region may become: the usual length, or what the target leaves for it if less."""
        later = [other for other in draft.open_regions() if other is not region]
        room = draft.room_without(region, *later)
        usual = self.approximate_summary_tokens
        if is_digest:
            usual = max(usual, min(int(_DIGEST_SHARE * room), _LONGEST_DIGEST * usual))
        else:
            usual += self.exact_facts_tokens
        if room < _SMALLEST_SUMMARY:
            # The target is out of reach. A digest costs nothing but its length, so it is kept short.
            return min(usual, max(draft.target_tokens // 4, _SMALLEST_SUMMARY)) if is_digest else usual
        if later and (room_beside_later := draft.room_without(region)) < usual // 2:
            # The other region will have to shrink as well, so that the two share the room by what they tell.
            worths = [draft.worth(some) for some in (region, *later)]
            share = min(room * worths[0] // sum(worths), room - 2 * _SMALLEST_SUMMARY * len(later))
            room = max(room_beside_later, share, _SMALLEST_SUMMARY)
        elif later:
            room = room_beside_later
        return min(usual, room)

    def _summarized(self, draft: Draft, old: OldPart) -> Generator[list[Prompt], list[Reply], tuple[OldPart, str]]:
        """
        An old part, or less of it, and its summary: the model's or the digest. Empty where that has nothing to tell.
        """
        if self._model is None:
            return self._digested(draft, old)
        messages = draft.conversation.messages
        previous = [draft.told_before(old.region), draft.digest(draft.untold_messages(old), old.limit)]
        # What the summary stands in takes room as well, and what the list of facts leaves over is not set apart for it.
        limit = old.limit - max(self._share_of_facts(old), draft.frame(old))
        summary = yield from self._writer(draft.ledger, limit).write(
            [[messages[index] for index in unit] for unit in old.units],
            previous="\n\n".join(filter(None, previous)),
            is_smaller=lambda text: draft.gains_by(old, text),
            stand_in=lambda part: draft.digest(part, old.limit),
            on_fault=self._on_fault,
        )
        if summary:
            return old, self._with_exact_facts(draft, old, summary)
        longer = self._fewest(draft, old.region, self._limit(draft, old.region, is_digest=True))
        return self._digested(draft, longer if longer.limit > old.limit else old)

    def _on_fault(self, fault: str) -> None:
        if self.raise_on_failure:
            raise CompactionError(f"The chat generator gave no usable summary: {fault}.")
        logger.warning("A digest stands in for the model's summary: {fault}.", fault=fault)

    def _digested(self, draft: Draft, old: OldPart) -> tuple[OldPart, str]:
        """An old part and its digest. Where that leaves much of the room for it unused, fewer units go instead."""
        longest = max(old.limit, _LONGEST_DIGEST * self.approximate_summary_tokens)
        digest = draft.digest(draft.told(old), min(draft.room_for(old), longest))
        for _ in range(_REFITS):
            size = draft.ledger.count([old.note(draft.conversation, digest)])
            if not digest or old.limit - size <= _WASTE * draft.target_tokens:
                break
            less = self._fewest(draft, old.region, size)
            if len(less.units) == len(old.units):
                break
            old, digest = less, draft.digest(draft.told(less), draft.room_for(less))
        return old, digest

    def _share_of_facts(self, old: OldPart) -> int:
        usual = self.approximate_summary_tokens + self.exact_facts_tokens
        return old.limit * self.exact_facts_tokens // usual

    def _with_exact_facts(self, draft: Draft, old: OldPart, summary: str) -> str:
        """A summary, and a list of exact values that it should have told. That takes what the summary has left over."""
        left = old.limit - draft.ledger.count([old.note(draft.conversation, summary)])
        facts = draft.exact_facts(old, summary, min(left, self.exact_facts_tokens))
        both = "\n\n".join(filter(None, [summary, facts]))
        return both if draft.gains_by(old, both) else summary

    def _writer(self, ledger: TokenLedger, limit: int) -> SummaryWriter:
        window = self.summarizer_context_window or current_pass().context_window or _DEFAULT_CONTEXT_WINDOW
        return SummaryWriter(instruction=self.summary_instruction, limit=limit, context_window=window, ledger=ledger)
