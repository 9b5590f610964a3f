# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Which turns and steps stay when each has a score."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise

from haystack_compaction.compactors.removal import Removal
from haystack_compaction.tokens.ledger import TokenLedger


@dataclass(frozen=True)
class Ranking:
    """
    What may be removed of a conversation, by rank.

    :param removal: What takes messages out of the conversation.
    :param removals: What may go, as message indexes, worst first.
    :param openers: The first indexes of the units without which worse ones may not stay, see `openers`.
    :param ledger: What measures.
    """

    removal: Removal
    removals: Sequence[list[int]]
    openers: Set[int]
    ledger: TokenLedger

    def without(self, indexes: Set[int]) -> "Ranking":
        """
        Rank some messages no more.

        :param indexes: The messages.
        :returns: The ranking of the others.
        """
        return replace(self, removals=[unit for unit in self.removals if indexes.isdisjoint(unit)])

    def size(self, indexes: Iterable[int]) -> int:
        """
        Return the size of some messages of the conversation.

        :param indexes: The messages.
        :returns: The number of tokens.
        """
        return sum([self._sizes[index] for index in indexes])

    def room(self, target_tokens: int) -> int:
        """
        Return what a target leaves beside a note and what must stay.

        :param target_tokens: The target.
        :returns: The number of tokens, at least 0.
        """
        removable = list(chain.from_iterable(self.removals))
        added = self.removal.size_added(self.ledger, removed_messages=len(removable))
        return max(target_tokens - added - sum(self._sizes) + self.size(removable), 0)

    def worst(self, target_tokens: int, *, spared: int = 0) -> set[int]:
        """
        Return what must go for the best that fit the target to stay.

        A unit that does not fit leaves its room to worse ones.

        :param target_tokens: The size to come under.
        :param spared: How much of the room that such a unit leaves there is a better use for.
        :returns: The indexes of the messages.
        """
        room = self.room(target_tokens)
        fitting: list[list[int]] = []
        too_large: list[list[int]] = []
        for position in reversed(range(len(self.removals))):
            unit = self.removals[position]
            size = self.size(unit)
            if size <= room:
                room -= size
                fitting.append(unit)
                continue
            if not too_large:
                room -= spared
            if unit[0] in self.openers:
                too_large += self.removals[position::-1]
                break
            too_large.append(unit)
        gone = set(chain.from_iterable(too_large))
        if gone and not self.ledger.exceeds(self.removal.without(gone), target_tokens):
            return gone
        return self.removal.fewest([*reversed(too_large), *reversed(fitting)], target_tokens, self.ledger)

    @cached_property
    def _sizes(self) -> list[int]:
        return self.ledger.sizes(self.removal.conversation.messages)


def openers(units: Sequence[Sequence[int]]) -> set[int]:
    """
    Find the units without which others may not stay.

    `Conversation.removable_steps` lists a step that opens a tool loop with reasoning after the steps that follow it in
    the loop and need it.

    :param units: The units, as message indexes, in that order.
    :returns: The first index of each unit that is listed after units which come later in the conversation.
    """
    return {unit[0] for before, unit in pairwise(units) if before[0] > unit[0]}


def openers_last(units: Sequence[Sequence[int]], scores: Sequence[float]) -> list[float]:
    """
    Make every opener at least as important as each of the units that need it, so that it stays behind them in a stable
    sort by score.

    :param units: The units, as message indexes, in the order of `Conversation.removable_steps`.
    :param scores: A score for each of them.
    :returns: The scores by which no opener goes before a unit that needs it.
    """
    levelled: list[float] = []
    for position, (unit, score) in enumerate(zip(units, scores, strict=True)):
        follower = position - 1
        while follower >= 0 and units[follower][0] > unit[0]:
            score = max(score, levelled[follower])
            follower -= 1
        levelled.append(score)
    return levelled
