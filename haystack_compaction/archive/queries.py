# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What of a user's query is looked for, and how texts are ranked where no engine does it."""

import math
import re
from collections.abc import Sequence

# Scripts without spaces between words, and Korean, where endings follow the word: their characters are looked for in
# pairs, as engines for these languages do.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)

_PIECE = re.compile(rf"[{UNSPACED}]+|[^\s{UNSPACED}]+")
_SIGNS_AROUND = re.compile(r"^\W+|\W+$")
_IS_UNSPACED = re.compile(rf"[{UNSPACED}]")

# More words than that make a search slow and no better.
_MAX_TERMS = 64


def query_terms(query: str) -> list[str]:
    """
    Take a query apart.

    :param query: What the user looks for.
    :returns: Words, in lower case and with the signs inside of them ("ord-12345"); of scripts without spaces pairs of
        characters.
    """
    text = query.replace("\0", " ").encode("utf-8", "replace").decode("utf-8").lower()
    terms: list[str] = []
    for piece in _PIECE.findall(text):
        if len(piece) > 1 and _IS_UNSPACED.match(piece):
            terms.extend(piece[start : start + 2] for start in range(len(piece) - 1))
        else:
            # "invoice?" asks for the invoice; a piece that is nothing but signs is taken as it is.
            terms.append(_SIGNS_AROUND.sub("", piece) or piece)
    return list(dict.fromkeys(terms))[:_MAX_TERMS]


def ranked(texts: Sequence[str], terms: Sequence[str], limit: int) -> list[int]:
    """
    Rank texts by the terms in them. A rare term says more than a frequent one.

    :param texts: The texts, oldest first.
    :param terms: What is looked for, from `query_terms`.
    :param limit: How many to return at most.
    :returns: The indexes of the texts that hold any of the terms, best first; of equals the newer one first.
    """
    lowered = [text.lower() for text in texts]
    scores = [0.0] * len(lowered)
    for term in terms:
        counts = [text.count(term) for text in lowered]
        frequency = sum(map(bool, counts))
        weight = math.log(1 + len(lowered) / max(frequency, 1))
        for index, count in enumerate(counts):
            scores[index] += weight * count / (count + 1)
    found = [index for index, score in enumerate(scores) if score]
    return sorted(found, key=lambda index: (-scores[index], -index))[:limit]
