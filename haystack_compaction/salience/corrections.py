# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What a newer statement on the same subject has put right."""

import re
from collections import defaultdict
from collections.abc import Sequence

from haystack_compaction.salience.statements import Statement, Voice
from haystack_compaction.salience.weights import Scale

_MOST_STATEMENTS_OF_A_SUBJECT = 12

_COVERED = 0.6
_COVERED_WITH_CUE = 0.3

# Support, not the signal: a newer statement that covers the older one's subject needs none of these.
_CUE = re.compile(
    r"\b(?:actually|correct(?:ion|ed)|instead|scratch|no longer|chang\w+|rather|updat\w+|mov(?:ed|ing)|wrong|mistake|"
    r"sorry|not|now|forget|disregard|replac\w+|switch\w*|revis\w+|"
    r"korrektur|stattdessen|statt|doch|nicht|änder\w*|geändert\w*|eigentlich|sondern|verschoben|falsch|jetzt|nun|neu\w*|"
    r"en realidad|corrección|cambi\w+|en fait|plutôt|désormais)\b"
    r"|更正|改[为成到用]|其实|不再|不是|而是|更新|说错|写错|换成|变更|纠正|应该是|现在|作废",
    re.IGNORECASE,
)


def superseded(statements: Sequence[Statement], scale: Scale) -> set[int]:
    """
    Find what was put right later: a user's or assistant's statement with other values on the same subject.

    The newest wins. Whatever else was said before it with the stale value goes too.

    :param statements: The statements of a conversation, in order.
    :param scale: What knows how rare their terms are.
    :returns: The indexes of the stale statements.
    """
    by_term: dict[str, list[int]] = defaultdict(list)
    stale: set[int] = set()
    for newer, statement in enumerate(statements):
        if statement.voice is Voice.CALL:
            continue
        if statement.voice is not Voice.TOOL:
            older = _put_right(statements, scale, newer, by_term)
            if older is not None:
                stale.add(older)
                stale.update(_repetitions(statements, statement, statements[older], by_term))
        for term in statement.content.terms:
            by_term[term].append(newer)
    return stale


def _put_right(
    statements: Sequence[Statement], scale: Scale, newer: int, by_term: dict[str, list[int]]
) -> int | None:
    """The earlier statement that a newer one takes the place of, if any."""
    statement = statements[newer]
    values = statement.content.values
    shared: dict[int, float] = defaultdict(float)
    for term in statement.content.terms:
        earlier = by_term.get(term, ())
        if term not in values and len(earlier) <= _MOST_STATEMENTS_OF_A_SUBJECT:
            for older in earlier:
                shared[older] += scale.rarity(term)
    best, best_covered = None, _COVERED_WITH_CUE if _CUE.search(statement.text) else _COVERED
    for older, weight in shared.items():
        if statements[older].message == statement.message or not _other_value(statements[older], statement):
            continue
        old = statements[older].content
        covered = weight / max(sum(scale.rarity(term) for term in old.terms if term not in old.values), 1.0)
        if covered >= best_covered:
            best, best_covered = older, covered
    return best


def _other_value(older: Statement, newer: Statement) -> bool:
    """Whether both have values of the same kind, and the newer one has one that the older has not."""
    old, new = older.content.values, newer.content.values
    kinds = {kind for value, kind in new.items() if value not in old}
    return any(kind in kinds for value, kind in old.items() if value not in new)


def _repetitions(
    statements: Sequence[Statement], newer: Statement, older: Statement, by_term: dict[str, list[int]]
) -> list[int]:
    """Earlier statements with the stale value and something else of the stale statement."""
    found = []
    for value in set(older.content.values) - set(newer.content.values):
        earlier = by_term.get(value, ())
        if len(earlier) > _MOST_STATEMENTS_OF_A_SUBJECT:
            continue
        for index in earlier:
            if len(older.content.terms & statements[index].content.terms) > 1:
                found.append(index)
    return found
