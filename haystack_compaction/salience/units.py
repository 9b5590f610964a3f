# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""How much whole turns and steps are worth keeping."""

from collections import defaultdict
from collections.abc import Sequence

from haystack_compaction.salience.reading import Reading

_BEST_STATEMENTS = 3
# A unit much larger than this many tokens must be worth the more.
_TYPICAL_SIZE = 50
_SIZE_POWER = 0.5

# What is left of the worth of a unit in which somebody says what was put right later.
_STALE = 0.2

# How much more the newest unit is worth than the oldest, all else being equal.
_RECENCY = 0.1


def score_units(reading: Reading, units: Sequence[Sequence[int]], sizes: Sequence[int]) -> list[float]:
    """
    Score units of a conversation by the best of what is said in them, for their size.

    :param reading: The conversation as read.
    :param units: The units, each as the indexes of its messages.
    :param sizes: The size of each message of the conversation, in tokens.
    :returns: A score for each unit, from 0 to 1.
    """
    weights: dict[int, list[float]] = defaultdict(list)
    for statement in reading.statements:
        weights[statement.message].append(statement.weight)
    # This decides on an order only, so that doubts count as much as certainty.
    doubted = reading.stale_messages | reading.doubtful_messages
    scores = []
    for unit in units:
        best = sorted((weight for index in unit for weight in weights.get(index, ())), reverse=True)
        size = sum(sizes[index] for index in unit)
        worth = sum(best[:_BEST_STATEMENTS]) * (_TYPICAL_SIZE / (_TYPICAL_SIZE + size)) ** _SIZE_POWER
        worth *= 1 + _RECENCY * unit[-1] / len(sizes)
        if not doubted.isdisjoint(unit):
            worth *= _STALE
        scores.append(worth / (1 + worth))
    return scores
