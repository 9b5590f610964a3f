# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Keeps the turns and steps that matter most, by a score of each."""

from collections.abc import Callable, Generator
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from haystack import component
from haystack.components.generators.chat.types import ChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils.callable_serialization import deserialize_callable, serialize_callable

from haystack_compaction.checks import (
    given,
    require_at_least,
    require_functions,
    require_method,
    require_numbers,
    require_texts,
)
from haystack_compaction.compactors.base import Compactor, CompactorOptions
from haystack_compaction.compactors.model_calls import ModelCaller, Prompt, Reply, Rewriting
from haystack_compaction.compactors.model_scores import ModelScores
from haystack_compaction.compactors.ranking import Ranking, openers, openers_last
from haystack_compaction.compactors.removal import DEFAULT_OMISSION_NOTE, Removal
from haystack_compaction.compactors.summary_draft import text_counter
from haystack_compaction.conversation.notes import written_by
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.salience.digest import digest_of, room_for_digest
from haystack_compaction.salience.reading import Reading
from haystack_compaction.salience.units import score_units
from haystack_compaction.tokens.ledger import TokenLedger

if TYPE_CHECKING:
    from typing_extensions import Unpack

_TASK_CHARACTERS = 1000

# So many times a digest is written for it to fit.
_ATTEMPTS = 3

#: Scores units, each a list of messages: one number from 0 to 1 for each unit.
Scorer = Callable[[list[list[ChatMessage]]], list[float]]


@component
class ImportanceScoringCompactor(Compactor):
    """
    Scores turns and steps from 0 to 1, and keeps the best.

    A unit is a turn of the history or a step of the current task; it is kept or removed whole. Without a `threshold`,
    the best that fit the target are kept, by rank; one that is too large leaves its room to worse ones. With one, a
    pass removes exactly the units that score below it. A note tells how much is gone; where the built-in scorer removes
    by rank it is a digest, which also tells what was said there.

    Who scores: the `scorer` if there is one, else the `chat_generator`, else a built-in scorer that looks for rules,
    decisions, exact values and what later messages come back to (`docs/fidelity.md` describes it). The built-in scorer
    also scores what the chat generator has no usable answer for.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import ImportanceScoringCompactor

    messages = [ChatMessage.from_user("Never touch the table customers_2019."), ChatMessage.from_assistant("Noted.")]
    for day in range(50):
        messages.append(ChatMessage.from_user(f"What happened on day {day}?"))
        messages.append(ChatMessage.from_assistant("Nothing worth a long story, but here is one anyway. " * 5))

    result = ImportanceScoringCompactor().run(messages=messages, target_tokens=500)
    assert messages[0] in result["messages"]
    ```

    :param chat_generator: The model that scores. It is asked about each unit once.
    :param scorer: A function that scores: given the units as lists of messages, it returns one number from 0 to 1 for
        each. Takes the place of `chat_generator`.
    :param threshold: The score below which units are removed, from 0 to 1, whatever the target. None to remove by rank.
    :param batch_size: How many units the model scores in one call, at least 1.
    :param min_keep_steps: How many of the current task's newest completed steps stay, at least 0.
    :param timeout: How long the model may take for all calls of a pass, in seconds, more than 0.
    :param omission_note: The text of the note, from the user's role, that stands where messages were removed.
        `{num_removed}` is replaced by their number, those of earlier passes included. None removes silently.
    :param digest_share: The share of the room beside what must stay, from 0 to 1, that is set apart for a digest of
        what was removed, as far as that has a use for it; it then takes the place of the note. Only where the built-in
        scorer removes by rank.
    :param options: The options that every compactor takes, see `Compactor`.
    :raises ValueError: If an option is out of its range, or both `chat_generator` and `scorer` are given.
    """

    strategy = "importance_scoring"

    # A request is paid for at every step. What this strategy writes of the rest makes a small one enough, see
    # `benchmarks/bill.py`.
    compact_to = 0.2

    def __init__(
        self,
        chat_generator: ChatGenerator | None = None,
        *,
        scorer: Scorer | None = None,
        threshold: float | None = None,
        batch_size: int = 50,
        min_keep_steps: int = 1,
        timeout: float = 60.0,
        omission_note: str | None = DEFAULT_OMISSION_NOTE,
        digest_share: float = 0.8,
        **options: "Unpack[CompactorOptions]",
    ) -> None:
        Compactor.__init__(self, **options)
        require_at_least(1, batch_size=batch_size)
        require_at_least(0, min_keep_steps=min_keep_steps)
        require_numbers(timeout=timeout, digest_share=digest_share, **given(threshold=threshold))
        require_texts(**given(omission_note=omission_note))
        if chat_generator is not None and scorer is not None:
            raise ValueError("`chat_generator` and `scorer` both score units. Give one of them.")
        require_method("run", **given(chat_generator=chat_generator))
        require_functions(**given(scorer=scorer))
        if threshold is not None and not 0 <= threshold <= 1:
            raise ValueError(f"`threshold` must be from 0 to 1, got {threshold}. Use None to remove by rank.")
        if not 0 <= digest_share <= 1:
            raise ValueError(f"`digest_share` must be from 0 to 1, got {digest_share}.")
        if not timeout > 0:
            raise ValueError(f"`timeout` must be more than 0 seconds, got {timeout}.")
        self.chat_generator = chat_generator
        self.scorer = scorer
        self.threshold = threshold
        self.batch_size = batch_size
        self.min_keep_steps = min_keep_steps
        self.timeout = timeout
        self.omission_note = omission_note
        self.digest_share = digest_share
        self._model = ModelCaller(chat_generator, timeout=timeout) if chat_generator is not None else None
        self._model_scores = ModelScores(batch_size=batch_size)

    def rewrite(self, conversation: Conversation, target_tokens: int, ledger: TokenLedger) -> Rewriting:
        """
        Remove the units that score lowest.

        :param conversation: The conversation, valid and taken apart.
        :param target_tokens: The size to come under, in the ledger's tokens.
        :param ledger: What knows the size of each message.
        :returns: A generator that yields one batch of prompts if there is a model and something new to score, and
            returns the messages to go on with, or None when nothing may be removed.
        :raises ValueError: If the scorer returns anything but one number from 0 to 1 for each unit.
        """
        units = [
            *conversation.removable_turns(preserve_recent_turns=self.preserve_recent_turns),
            *conversation.removable_steps(min_keep_steps=self.min_keep_steps),
        ]
        read = cache(lambda: Reading(conversation.messages, task_text=_task_text(conversation)))
        built_in = partial(_built_in_scores, conversation, units, read, ledger)
        scores = openers_last(units, (yield from self._scores(conversation, units, built_in)))
        removal = Removal(conversation, self.omission_note, self.strategy)
        if self.threshold is not None:
            below = {
                index for unit, score in zip(units, scores, strict=True) if score < self.threshold for index in unit
            }
            return removal.without(below) if below else None
        by_rank = [unit for _, unit in sorted(zip(scores, units, strict=True), key=lambda scored: scored[0])]
        removals = removal.with_head_and_summaries(by_rank, preserve_system_prompt=self.preserve_system_prompt)
        if not removals:
            return None
        ranking = Ranking(removal, removals, openers(units), ledger)
        if self.omission_note is not None and self.scorer is None and self.chat_generator is None:
            return self._with_digest(ranking, read(), target_tokens)
        return removal.without(ranking.worst(target_tokens))

    def to_dict(self) -> dict[str, Any]:
        """
        Serialize the compactor, with the chat generator and the path of the scorer.

        :returns: A dictionary that `from_dict` takes.
        """
        data = Compactor.to_dict(self)
        if self.scorer is not None:
            data["init_parameters"]["scorer"] = serialize_callable(self.scorer)
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Compactor":
        """
        Deserialize the compactor.

        :param data: What `to_dict` returned.
        :returns: The compactor.
        """
        options = data.get("init_parameters", {})
        if options.get("scorer") is not None:
            options["scorer"] = deserialize_callable(options["scorer"])
        # `@component` makes the class anew, which is why `super()` without arguments fails here.
        return super(ImportanceScoringCompactor, cls).from_dict(data)  # noqa: UP008

    def _scores(
        self,
        conversation: Conversation,
        units: list[list[int]],
        built_in: Callable[[], list[float]],
    ) -> Generator[list[Prompt], list[Reply], list[float]]:
        """One score for each unit. A generator like `rewrite`."""
        contents = [[conversation.messages[index] for index in unit] for unit in units]
        if self.scorer is not None:
            return _checked(self.scorer(contents), len(units))
        if self._model is None:
            return built_in()
        scores = yield from self._model_scores.of(contents, _task_text(conversation))
        known = [score for score in scores if score is not None]
        if len(known) == len(units):
            return known
        return [own if score is None else score for score, own in zip(scores, built_in(), strict=True)]

    def _with_digest(self, ranking: Ranking, reading: Reading, target_tokens: int) -> list[ChatMessage]:
        """The conversation without the units that leave room for the best and a digest of the others, and with that."""
        removal, ledger = ranking.removal, ranking.ledger
        conversation = removal.conversation
        # A digest of an earlier pass always gives way: what it says competes with what this pass removes.
        earlier = {
            index
            for index in conversation.foldable_notes(omission_notes=False)
            if written_by(conversation.messages[index]) == self.strategy
        }
        ranking = ranking.without(earlier)
        count_text = text_counter(ledger)
        told = earlier.union(conversation.foldable_notes(omission_notes=True))
        beside = target_tokens + ranking.size(earlier)
        room = ranking.room(beside)
        # Room that even a digest of all would leave unused is for units.
        wanted = room_for_digest(reading, told.union(*ranking.removals), budget_tokens=room, count_text=count_text)
        share = min(wanted, int(self.digest_share * room))
        gone = ranking.worst(beside - share, spared=wanted - share) | earlier
        budget = target_tokens - ledger.count(removal.without(gone, told=" "))
        for _ in range(_ATTEMPTS):
            digest = digest_of(reading, told | gone, budget_tokens=budget, count_text=count_text)
            compacted = removal.without(gone, told=digest)
            excess = ledger.measure(compacted) - target_tokens
            if excess <= 0:
                return compacted
            # Text and frame together can be larger than each by itself, by a counter's own word above all.
            budget -= excess
        return removal.without(gone)


def _built_in_scores(
    conversation: Conversation, units: list[list[int]], read: Callable[[], Reading], ledger: TokenLedger
) -> list[float]:
    return score_units(read(), units, ledger.sizes(conversation.messages))


def _checked(scores: Any, number: int) -> list[float]:
    """The scores of a function that anybody may have written."""
    scores = list(scores)
    if len(scores) != number:
        raise ValueError(f"`scorer` must return one score for each of the {number} units, got {len(scores)}.")
    for position, score in enumerate(scores):
        if isinstance(score, bool) or not hasattr(score, "__float__") or not 0 <= float(score) <= 1:
            raise ValueError(f"`scorer` must return numbers from 0 to 1, got {score!r} for unit {position}.")
    return [float(score) for score in scores]


def _task_text(conversation: Conversation) -> str:
    text = conversation.messages[conversation.task_index].text if conversation.task_index is not None else None
    return (text or "")[:_TASK_CHARACTERS]
