# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What a newer statement on the same subject has put right."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from haystack_compaction.salience.statements import QUESTION_MARKS, Statement
from haystack_compaction.salience.terms import terms_of
from haystack_compaction.salience.texts import Voice
from haystack_compaction.salience.weights import Scale

# A term that more statements have than this is no subject.
_MOST_STATEMENTS_OF_A_SUBJECT = 12

# How much of the older statement the newer one must say again, by the rarity of the terms: when both have a value of
# the same kind, and when only words differ, which is weaker evidence. With a cue less is enough.
_SAID_AGAIN = {True: 0.6, False: 0.75}
_SAID_AGAIN_WITH_CUE = {True: 0.3, False: 0.4}

# How much of the stale statement another one must say again to be a repetition of it: with the stale value in it, and
# with a stale name.
_SAME_SUBJECT = {True: 0.4, False: 0.6}

# Values of these kinds can take each other's place.
_COMPARABLE = {"amount": "number", "hash": "id", "version": "number"}

# Words with which people put something right. Where nothing says so, two statements that differ in a value may as well
# be about two things: two tables, two customers, two rules.
_CUES = terms_of(
    "actually correction corrected instead scratch longer changed change changes rather update updated moved moving "
    "wrong mistake sorry now forget disregard replaced switch switched revised "
    "korrektur stattdessen statt doch ändern geändert eigentlich sondern verschoben falsch jetzt nun "
    "neu neue neuer "
    "realidad corrección cambiado cambia fait plutôt désormais "
    "更正 改为 改成 改到 改用 其实 不再 而是 更新 说错 写错 换成 变更 纠正 应该 现在 作废"
)

# Words that set a value against another, where both are named: "5 seconds, not 8".
_CONTRASTS = terms_of("not no than nicht kein statt als pas plutôt 不是 不再 而非") | _CUES


@dataclass(frozen=True)
class Corrections:
    """
    What newer statements have put right, by the indexes of statements.

    :param stale: What no longer holds.
    :param doubtful: What may no longer hold: nothing in what was said later tells a correction from a similar matter.
    :param newest: What puts others right, and holds.
    """

    stale: set[int] = field(default_factory=set)
    doubtful: set[int] = field(default_factory=set)
    newest: set[int] = field(default_factory=set)


def corrections(statements: Sequence[Statement], scale: Scale) -> Corrections:
    """
    Find what was put right later: a statement of the user or the assistant that says most of an older one again, with
    another value. The newest wins, and what repeats the stale value goes with the stale statement.

    :param statements: The statements of a conversation, in order.
    :param scale: What knows how rare their terms are.
    :returns: What was put right, and by what.
    """
    by_term: dict[str, list[int]] = defaultdict(list)
    found = Corrections()
    for index, statement in enumerate(statements):
        if statement.voice is Voice.CALL:
            continue
        if statement.voice is not Voice.TOOL:
            older = _put_right(statements, scale, statement, by_term)
            if older is not None:
                repeated = _repetitions(statements, statement, statements[older], by_term, scale)
                is_certain = _puts_right(statements[older], statement)
                (found.stale if is_certain else found.doubtful).update(repeated, [older])
                found.newest.add(index)
        for term in statement.content.terms:
            by_term[term].append(index)
    found.newest.difference_update(found.stale, found.doubtful)
    found.doubtful.difference_update(found.stale)
    return found


def _put_right(
    statements: Sequence[Statement], scale: Scale, newer: Statement, by_term: dict[str, list[int]]
) -> int | None:
    """The earlier statement that a newer one takes the place of, if any."""
    postings = (by_term.get(term, ()) for term in newer.content.terms if term not in newer.content.values)
    candidates = {older for found in postings if len(found) <= _MOST_STATEMENTS_OF_A_SUBJECT for older in found}
    if not candidates:
        return None
    cues = newer.content.terms & _CUES
    best, most_said_again = None, 0.0
    for older in sorted(candidates):
        old = statements[older]
        if (old.message == newer.message and old.message >= 0) or not _may_correct(newer, old):
            continue
        enough = _SAID_AGAIN if cues <= old.content.terms else _SAID_AGAIN_WITH_CUE
        # The cheapest test first: most candidates share a word or two and no more.
        said_again = _said_again(old, newer, scale)
        if said_again < max(enough[True], most_said_again):
            continue
        if (
            _other_value(old, newer)
            or _contrasts(old, newer)
            or (said_again >= enough[False] and _may_differ_in_a_name(old, newer, by_term))
        ):
            best, most_said_again = older, said_again
    return best


def _may_correct(newer: Statement, older: Statement) -> bool:
    """The user may correct anybody, the assistant itself only."""
    return newer.voice is Voice.USER or older.voice is newer.voice


def _other_value(older: Statement, newer: Statement) -> bool:
    """Whether the newer statement has a value that the older one has not, in place of one of the same kind."""
    old, new = older.content.values, newer.content.values
    kinds = {_COMPARABLE.get(kind, kind) for value, kind in new.items() if value not in old}
    return any(_COMPARABLE.get(kind, kind) in kinds for value, kind in old.items() if value not in new)


def _puts_right(older: Statement, newer: Statement) -> bool:
    """
    Whether it is the same matter with another value, and no similar one: the newer statement says so, or it says all of
    the older one and more. What differs in values only is mostly a list.
    """
    if _has_cue(older, newer) or _contrasts(older, newer):
        return True
    return older.content.words <= newer.content.terms and not newer.content.words <= older.content.terms


def _has_cue(older: Statement, newer: Statement) -> bool:
    """Whether a word says that something is put right. One that the older statement has too belongs to the matter."""
    return not (newer.content.terms & _CUES) <= older.content.terms


def _contrasts(older: Statement, newer: Statement) -> bool:
    """Whether the newer statement names the older one's value and another one in its place."""
    old, new = older.content.values, newer.content.values
    kinds = {_COMPARABLE.get(kind, kind) for value, kind in new.items() if value not in old}
    named = any(_COMPARABLE.get(kind, kind) in kinds for value, kind in old.items() if value in new)
    return named and not newer.content.terms.isdisjoint(_CONTRASTS)


def _said_again(older: Statement, newer: Statement, scale: Scale) -> float:
    """The share of what the older statement is about that the newer one is about, too."""
    words = older.content.words
    return scale.share(words & newer.content.terms, words)


def _repetitions(
    statements: Sequence[Statement], newer: Statement, older: Statement, by_term: dict[str, list[int]], scale: Scale
) -> set[int]:
    """Earlier statements that have the stale value, or the stale name, and are on the same subject."""
    gone = older.content.terms - newer.content.terms
    stale = gone & older.content.values.keys()
    enough = _SAME_SUBJECT[bool(stale)]
    stale = stale or gone
    subject = {term for term in older.content.terms & newer.content.terms if _is_telling(term, by_term)}
    candidates = {index for term in stale if _is_telling(term, by_term) for index in by_term[term]}
    return {
        index
        for index in candidates
        if not subject.isdisjoint(statements[index].content.terms)
        and _said_again(older, statements[index], scale) >= enough
    }


def _may_differ_in_a_name(older: Statement, newer: Statement, by_term: dict[str, list[int]]) -> bool:
    """Whether the older statement has words that the newer one has not, no value would be lost, and more than one rare
    word is common to both. Questions state nothing."""
    if older.text.endswith(QUESTION_MARKS) or newer.text.endswith(QUESTION_MARKS):
        return False
    lost = older.content.terms - newer.content.terms
    shared = older.content.terms & newer.content.terms
    return bool(lost) and lost.isdisjoint(older.content.values) and sum(_is_telling(t, by_term) for t in shared) > 1


def _is_telling(term: str, by_term: dict[str, list[int]]) -> bool:
    return len(by_term[term]) <= _MOST_STATEMENTS_OF_A_SUBJECT
