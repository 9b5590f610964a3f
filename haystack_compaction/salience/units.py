# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""How much whole turns and steps are worth keeping."""

from collections.abc import Sequence

from haystack.dataclasses import ChatMessage

from haystack_compaction.salience.corrections import corrections
from haystack_compaction.salience.statements import Listener
from haystack_compaction.salience.weights import Scale

_TOP = 3
_LENGTH_POWER = 0.35


def score_units(messages: Sequence[ChatMessage], units: Sequence[Sequence[int]]) -> list[float]:
    """
    Score the units of a conversation by the best of what is said in them, for its length.

    :param messages: The whole conversation, oldest to newest.
    :param units: The units to score, each as the indexes of its messages.
    :returns: A score for each unit, from 0 to 1.
    """
    statements = Listener().statements(messages)
    scale = Scale(statements)
    stale, newest = corrections(statements, scale)
    for index in newest:
        statements[index].corrects = True
    weights: list[list[float]] = [[] for _ in messages]
    sizes = [20] * len(messages)
    for index, statement in enumerate(statements):
        if index not in stale:
            weights[statement.message].append(scale.weight(statement))
        sizes[statement.message] += len(statement.text)
    scores = []
    for unit in units:
        best = sorted((weight for index in unit for weight in weights[index]), reverse=True)[:_TOP]
        worth = sum(best) / sum(sizes[index] for index in unit) ** _LENGTH_POWER
        scores.append(worth / (1 + worth))
    return scores
