# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Taking messages out of a conversation and leaving one note where they stood."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import takewhile

from haystack.dataclasses import ChatMessage, ChatRole

from haystack_compaction.conversation.notes import omission_note, summary_note
from haystack_compaction.conversation.stranded import behind_stranded, stranded_texts
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.tokens.ledger import TokenLedger

DEFAULT_OMISSION_NOTE = "[Earlier messages of this conversation were removed to save space, {num_removed} so far.]"


@dataclass(frozen=True)
class Removal:
    """
    What strategies that remove messages have in common: the note, its place, and the earlier notes that it folds in.

    :param conversation: The conversation, valid and taken apart.
    :param template: The text of the note, with `{num_removed}` for the number of removed messages; None for no note.
    :param strategy: The name of the strategy, for the note's `meta`.
    """

    conversation: Conversation
    template: str | None
    strategy: str

    def with_head_and_summaries(self, units: list[list[int]], *, preserve_system_prompt: bool) -> list[list[int]]:
        """
        Add what else may go to the units of a strategy: the head first where it may, summaries last.

        :param units: What the strategy may remove, as message indexes, in the order in which it goes.
        :param preserve_system_prompt: Whether the head stays.
        :returns: All that may go, in order. Summaries only go into a note that carries them on.
        """
        head = [] if preserve_system_prompt else [self.conversation.head]
        summaries = [] if self.template is None else self.conversation.foldable_notes(omission_notes=False)
        return [*self.conversation.removable(head), *units, *([index] for index in summaries)]

    def fewest(self, units: Sequence[Sequence[int]], target_tokens: int, ledger: TokenLedger) -> set[int]:
        """
        Return what must go for the rest to come under the target: as few units as possible.

        :param units: What may be removed, as message indexes, in the order in which it goes.
        :param target_tokens: The size to come under, in the ledger's tokens.
        :param ledger: What measures.
        :returns: The indexes of the messages to remove; those of all units when even that is not enough.
        """
        messages = self.conversation.messages
        removable = {index for unit in units for index in unit}
        number = ledger.fewest_removals(
            [[messages[index] for index in unit] for unit in units],
            staying=[message for index, message in enumerate(messages) if index not in removable],
            size_added=self.size_added(ledger, removed_messages=len(removable)),
            target_tokens=target_tokens,
            without=lambda number: self.without({index for unit in units[:number] for index in unit}),
        )
        return {index for unit in units[:number] for index in unit}

    def without(
        self,
        gone: Set[int],
        *,
        rewritten: Mapping[int, ChatMessage] | None = None,
        removed_calls: Mapping[str, int] | None = None,
        told: str = "",
    ) -> list[ChatMessage]:
        """
        Return the conversation without some of its messages.

        Texts that would come to stand right before calls stay in front of the note where they can, and go into it
        where they cannot.

        :param gone: The indexes of the messages to remove. Notes among them live on inside the new note.
        :param rewritten: Messages that take the place of others, by index.
        :param removed_calls: How many calls of each tool the note is to name as removed.
        :param told: What the removed messages and notes said, in short. Makes the note a summary.
        :returns: The messages to go on with.
        """
        conversation, rewritten = self.conversation, rewritten or {}
        folded = {index for index in conversation.notes if index in gone}
        if self.template is not None:
            folded.update(conversation.foldable_notes(omission_notes=True))
        messages = list(conversation.messages)
        for index, message in rewritten.items():
            messages[index] = message
        out = gone | folded
        kept = [index for index in range(len(messages)) if index not in out]
        place = self._place(max([*out, *rewritten], default=-1), kept)
        stranded = stranded_texts(messages, kept)
        pinned = stranded & conversation.protected
        if self.template is not None and (pinned or place == conversation.task_index):
            place = behind_stranded(stranded, kept, max(pinned, default=place))
            before = reversed(kept[: bisect_right(kept, place)])
            stranded.difference_update(list(takewhile(stranded.__contains__, before)))
        stranded -= pinned
        kept = [index for index in kept if index not in stranded]
        if self.template is None:
            return [messages[index] for index in kept]
        dropped = (gone - folded) | stranded
        earlier = [conversation.messages[index] for index in sorted(folded)]
        if told:
            in_task = conversation.task_index is not None and place >= conversation.task_index
            note = summary_note(
                told,
                strategy=self.strategy,
                removed_messages=len(dropped),
                kept_messages=len(kept),
                scope="task" if in_task else "history",
                folded=earlier,
            )
        else:
            note = omission_note(
                self.template,
                strategy=self.strategy,
                removed_messages=len(dropped),
                kept_messages=len(kept),
                removed_calls=removed_calls,
                said=[messages[index].text or "" for index in sorted(stranded)],
                folded=earlier,
            )
        compacted = [messages[index] for index in kept]
        compacted.insert(bisect_right(kept, place), note)
        return compacted

    def size_added(
        self, ledger: TokenLedger, *, removed_messages: int, removed_calls: Mapping[str, int] | None = None
    ) -> int:
        """
        Return the size of the note, less that of the earlier ones that it takes the place of.

        :param ledger: What measures.
        :param removed_messages: How many messages may be removed at most.
        :param removed_calls: How many calls of each tool may be removed at most.
        :returns: The tokens that removing anything at all adds; can be negative.
        """
        if self.template is None:
            return 0
        earlier = [self.conversation.messages[index] for index in self.conversation.foldable_notes(omission_notes=True)]
        note = omission_note(
            self.template,
            strategy=self.strategy,
            removed_messages=removed_messages,
            kept_messages=len(self.conversation.messages),
            removed_calls=removed_calls,
            folded=earlier,
        )
        return ledger.count([note]) - ledger.count(earlier)

    def _place(self, last_change: int, kept: list[int]) -> int:
        """The index after which the note stands: that of the task when its steps went, else the end of the head."""
        end_of_head, task = self.conversation.head_end - 1, self.conversation.task_index
        if task is None or last_change < task:
            return end_of_head
        first = next((index for index in kept if index > end_of_head), task)
        # A note in the user's name is what keeps a leftover of the history from coming first.
        return task if self.conversation.messages[first].role is ChatRole.USER else end_of_head
