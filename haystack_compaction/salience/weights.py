# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""How much a statement is worth keeping: a sum of few features, each of which can be looked at."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import fsum, log
from typing import NamedTuple

from haystack_compaction.salience.statements import QUESTION_MARKS, Statement
from haystack_compaction.salience.terms import terms_of
from haystack_compaction.salience.texts import Voice

_VOICE = {Voice.USER: 1.0, Voice.ASSISTANT: 0.65, Voice.TOOL: 0.65, Voice.CALL: 0.35, Voice.PROBLEM: 0.8}

_RARITY, _EXACT, _REFERRED, _RELATED, _ACT = 0.6, 0.5, 0.2, 0.1, 0.1

# How telling a value is by its kind: a bare number says little, a path names one thing.
_TELLING = {"number": 0.25, "time": 0.35, "amount": 0.4, "name": 0.3, "version": 0.5, "date": 0.5, "id": 0.45}
_VERY_TELLING = 0.6

_MOST_REFERENCES = 4

_QUESTION = 0.55

# A statement with fewer words than this says little, rare as they may be.
_FEW_WORDS = 5

# What is left of the worth of a value whose surroundings are the most common words: the lines of a log.
_ROUTINE = 0.05

# A start and never the main signal: words with which people state rules, wishes and reasons, and programs failures.
_LAID_DOWN = terms_of(
    "never always must only without unless please remember prefer decided because reason forbidden allowed "
    "nie niemals immer muss müssen nur kein keine bitte lieber entschieden weil sondern verboten erlaubt "
    "nunca siempre debe porque jamais toujours doit sempre mai deve "
    "不要 不能 不得 必须 务必 一律 绝不 切勿 禁止 总是 喜欢 希望 决定 因为 以后 记住"
)
_FAILED = terms_of(
    "error exception fail failed failure traceback denied timeout fehler fehlgeschlagen 错误 失败 异常 エラ"
)
_CUES = {
    Voice.USER: _LAID_DOWN,
    Voice.ASSISTANT: _LAID_DOWN,
    Voice.CALL: _FAILED,
    Voice.TOOL: _FAILED,
    Voice.PROBLEM: _FAILED,
}


class Features(NamedTuple):
    """
    Why a statement is worth what it is worth; each between 0 and 1.

    :param rarity: How rare its words are against the rest of the conversation.
    :param exact: How much exact information it holds that stands nowhere else.
    :param referred: How much later messages come back to it.
    :param related: How much it has to do with the current task.
    :param act: Whether it sounds like a rule, a wish, a reason or a failure, or puts something right.
    :param asks: Whether it is a question, which is mostly answered by what follows.
    """

    rarity: float
    exact: float
    referred: float
    related: float
    act: float
    asks: bool

    def weight(self, voice: Voice) -> float:
        """The weight, from who says it and the features."""
        total = _RARITY * self.rarity + _EXACT * self.exact + _REFERRED * self.referred
        total += _RELATED * self.related + _ACT * self.act
        return _VOICE[voice] * total * (_QUESTION if self.asks else 1.0)


class Scale:
    """
    Weighs the statements of one conversation against each other.

    Rarity is inverse document frequency (Sparck Jones, 1972, "A statistical interpretation of term specificity and its
    application in retrieval") with the statement as the document, scaled to 0 to 1.

    :param statements: All statements of the conversation, in order.
    :param task_terms: What the current task is about.
    """

    def __init__(self, statements: Sequence[Statement], task_terms: frozenset[str] = frozenset()) -> None:
        said: Counter[str] = Counter()
        self._last: dict[str, int] = {}
        for statement in statements:
            if statement.voice is Voice.CALL:
                # Its outcome is a statement of its own and would count twice.
                continue
            terms = statement.content.terms
            if statement.said == 1:
                said.update(terms)
            else:
                for term in terms:
                    said[term] += statement.said
            self._last.update(dict.fromkeys(terms, statement.message))
        used, last_use = self._uses(statements)
        self._last.update(last_use)
        for term in used:
            said.setdefault(term, 1)
        self._said = said
        self._task_terms = task_terms
        self._repeated = frozenset(
            term for term, count in said.items() if 1 < count + (term in last_use) <= _MOST_REFERENCES
        )
        log_number = max(log(1 + sum(statement.said for statement in statements)), 1.0)
        by_count = {count: max(1 - log(count) / log_number, 0.0) for count in set(said.values())}
        #: How rare a term is: 1 for one that is said once, 0 for one that every statement has.
        self.rarity: dict[str, float] = {term: by_count[count] for term, count in said.items()}
        # A value out of an earlier digest may be one that nobody says.
        self._squared = defaultdict(lambda: 1.0, {term: rarity**2 for term, rarity in self.rarity.items()})
        self._totals: dict[frozenset[str], float] = {}
        self._cubed = {term: rarity**3 for term, rarity in self.rarity.items()}

    def _uses(self, statements: Sequence[Statement]) -> tuple[set[str], dict[str, int]]:
        """The terms of calls, and when those that were said earlier, and not since, were last given to one."""
        terms: set[str] = set()
        last_use: dict[str, int] = {}
        for statement in statements:
            if statement.voice is Voice.CALL:
                terms.update(statement.content.terms)
                for term in statement.content.terms:
                    if self._last.get(term, statement.message) < statement.message:
                        last_use[term] = statement.message
        return terms, last_use

    def features(self, statement: Statement) -> Features:
        """
        Look at one statement.

        :param statement: One of the statements that the scale was made of.
        :returns: Its features.
        """
        content = statement.content
        # Sums and powers, because a product would depend on the order of a set, which differs from run to run.
        rarity = fsum(map(self._cubed.__getitem__, content.words)) / max(len(content.words), _FEW_WORDS)
        exact = 1.0
        for value, kind in content.values.items():
            exact *= 1 - _TELLING.get(kind, _VERY_TELLING) / min(self._said[value], 20)
        again = [term for term in content.terms & self._repeated if self._last.get(term, -1) > statement.message]
        values_again = sum(term in content.values for term in again)
        related = fsum(map(self.rarity.__getitem__, content.terms & self._task_terms))
        return Features(
            rarity=rarity,
            exact=(1 - exact) * (_ROUTINE + (1 - _ROUTINE) * min(2 * rarity, 1)),
            referred=1 - 0.6**values_again * 0.9 ** (len(again) - values_again),
            related=min(related / 2, 1.0),
            act=float(statement.corrects or not content.terms.isdisjoint(_CUES[statement.voice])),
            asks=statement.text.endswith(QUESTION_MARKS),
        )

    def share(self, some: Iterable[str], whole: frozenset[str]) -> float:
        """
        Return how much of what something is about some of its terms are, by their rarity.

        :param some: Terms.
        :param whole: All terms that they are some of.
        :returns: The share, from 0 to 1; 0 where there are no terms.
        """
        total = self._totals.get(whole)
        if total is None:
            total = self._totals[whole] = fsum(map(self._squared.__getitem__, whole))
        return fsum(map(self._squared.__getitem__, some)) / total if total else 0.0

    def weight(self, statement: Statement) -> float:
        """
        Weigh one statement.

        :param statement: One of the statements that the scale was made of.
        :returns: A weight of at least 0.
        """
        return self.features(statement).weight(statement.voice)
