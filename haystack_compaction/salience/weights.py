# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""How much a statement is worth keeping: a sum of few features, each of which can be looked at."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from haystack_compaction.salience.statements import Statement, Voice

_VOICE = {Voice.USER: 1.0, Voice.ASSISTANT: 0.55, Voice.TOOL: 0.5, Voice.CALL: 0.35}

_RARITY, _EXACT, _REFERRED, _ACT = 0.6, 0.5, 0.4, 0.25

# How telling a value is by its kind: a bare number says little, a path names one thing.
_TELLING = {"number": 0.25, "time": 0.35, "amount": 0.4, "name": 0.3, "version": 0.5, "date": 0.5, "id": 0.45}
_VERY_TELLING = 0.6

_MOST_REFERENCES = 6

_QUESTION = 0.7

# What is left of the worth of a value whose surroundings are the most common words: the lines of a log.
_ROUTINE = 0.2

# A start and never the main signal: words with which people state rules, wishes, reasons and failures.
_RULE = re.compile(
    r"\b(?:never|always|must|don'?t|do not|prefer|only|without|unless|from now on|please|remember|decided|because|"
    r"nie|niemals|immer|muss|müssen|nur|kein\w*|nicht|bitte|lieber|ab jetzt|entschieden|weil|sondern|"
    r"nunca|siempre|jamais|toujours|il faut|s'il|sempre|mai)\b"
    r"|不要|不能|不得|必须|务必|一律|绝不|切勿|禁止|请|只|总是|喜欢|希望|决定|因为|以后|记住",
    re.IGNORECASE,
)
_FAILURE = re.compile(r"error|exception|fail|traceback|denied|timeout|fehler|fehlgeschlagen|错误|失败|异常|エラー", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Features:
    """
    Why a statement is worth what it is worth; each between 0 and 1.

    :param rarity: How rare its words are against the rest of the conversation.
    :param exact: How much exact information it holds that stands nowhere else.
    :param referred: How much later messages come back to it.
    :param act: Whether it sounds like a rule, a wish, a reason or a failure.
    :param fresh: 1 for what is said once, less the more often it is said.
    :param asks: Whether it is a question, which is mostly answered by what follows.
    """

    rarity: float
    exact: float
    referred: float
    act: float
    fresh: float
    asks: bool

    def weight(self, voice: Voice) -> float:
        """The weight, from who says it and the features."""
        total = _RARITY * self.rarity + _EXACT * self.exact + _REFERRED * self.referred + _ACT * self.act
        return _VOICE[voice] * total * self.fresh * (_QUESTION if self.asks else 1.0)


class Scale:
    """
    Weighs the statements of one conversation against each other.

    Rarity is inverse document frequency (Sparck Jones, 1972, "A statistical interpretation of term specificity and its
    application in retrieval") with the statement as the document, scaled to 0 to 1.

    :param statements: All statements of the conversation, in order.
    """

    def __init__(self, statements: Sequence[Statement]) -> None:
        self._said: Counter[str] = Counter()
        self._last: dict[str, int] = {}
        for statement in statements:
            if statement.voice is Voice.CALL:
                continue
            for term in statement.content.terms:
                self._said[term] += statement.times
                self._last[term] = statement.message
        self._kinds = Counter(kind for statement in statements for kind in statement.content.values.values())
        self._log_number = log(1 + sum(statement.times for statement in statements))

    def rarity(self, term: str) -> float:
        """
        How rare a term is.

        :param term: The term.
        :returns: 1 for a term that is said once, 0 for one that every statement has.
        """
        return max(1 - log(max(self._said[term], 1)) / max(self._log_number, 1.0), 0.0)

    def features(self, statement: Statement) -> Features:
        """
        Look at one statement.

        :param statement: One of the statements that the scale was made of.
        :returns: Its features.
        """
        content = statement.content
        words = [self.rarity(term) ** 3 for term in content.terms if term not in content.values]
        rarity = sum(words) / max(len(words), 4)
        exact = referred = 1.0
        for term in content.terms:
            kind = content.values.get(term)
            said = max(self._said[term], 1)
            if kind:
                exact *= 1 - _TELLING.get(kind, _VERY_TELLING) / min(said, 20)
            if 1 < said <= _MOST_REFERENCES and self._last[term] > statement.message:
                referred *= 0.6 if kind else 0.9
        return Features(
            rarity=rarity,
            exact=(1 - exact) * (_ROUTINE + (1 - _ROUTINE) * min(2 * rarity, 1)),
            referred=1 - referred,
            act=1.0 if statement.corrects or _RULE.search(statement.text) or _FAILURE.search(statement.text) else 0.0,
            fresh=1 / (1 + log(statement.times)),
            asks=statement.text.endswith(("?", "？")),
        )

    def weight(self, statement: Statement) -> float:
        """
        Weigh one statement.

        :param statement: One of the statements that the scale was made of.
        :returns: A weight of at least 0.
        """
        return self.features(statement).weight(statement.voice)
