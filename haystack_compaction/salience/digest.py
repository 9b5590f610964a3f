# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The summary without a model: what a person would have written down."""

import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import log

from haystack.dataclasses import ChatMessage

from haystack_compaction.salience.reading import Reading
from haystack_compaction.salience.statements import Statement, Voice, calls_line
from haystack_compaction.salience.weights import Scale

_DIGITS = re.compile(r"\d+")

# The list of the tools called takes no more than this share of the budget.
_CALLS_SHARE = 0.15

# So many statements that differ in numbers only are kept apart.
_MOST_VERSIONS = 3

# A statement twice as long must be worth this much more, as a power of two.
_LENGTH_POWER = 0.7
# What a line costs beside its text.
_LINE_BYTES = 24
# The least share of a statement's rare terms that must be new to the digest.
_LEAST_NOVELTY = 0.4


def write_digest(
    messages: Sequence[ChatMessage],
    *,
    budget_tokens: int,
    count_text: Callable[[str], int],
    task_text: str = "",
    previous: str = "",
) -> str:
    """
    Write down what is worth keeping of a conversation, in the words of those who said it.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import EstimateTokenCounter
    from haystack_compaction.salience.digest import write_digest

    messages = [
        ChatMessage.from_user("Please never deploy on a Friday. What is the weather like?"),
        ChatMessage.from_assistant("Noted. It is sunny."),
    ]
    digest = write_digest(messages, budget_tokens=100, count_text=EstimateTokenCounter().count_text)
    assert "Please never deploy on a Friday." in digest
    ```

    :param messages: What is to be summarized, oldest to newest.
    :param budget_tokens: The size that the digest never exceeds, in tokens by `count_text`.
    :param count_text: Returns the number of tokens of a text.
    :param task_text: What the conversation is about now; what has to do with it is worth more.
    :param previous: An earlier digest or summary, which the new one takes the place of. What it says competes on equal
        terms with what is new.
    :returns: The digest, empty when nothing fits.
    """
    reading = Reading(messages, task_text=task_text, previous=previous)
    return digest_of(reading, range(-1, len(messages)), budget_tokens=budget_tokens, count_text=count_text)


def digest_of(
    reading: Reading, messages: Iterable[int], *, budget_tokens: int, count_text: Callable[[str], int]
) -> str:
    """
    Write down what is worth keeping of some messages of a conversation.

    :param reading: The whole conversation as read.
    :param messages: The indexes of the messages that the digest is about.
    :param budget_tokens: The size that the digest never exceeds, in tokens by `count_text`.
    :param count_text: Returns the number of tokens of a text.
    :returns: The digest, empty when nothing fits.
    """
    told = set(messages)
    calls: Counter[str] = Counter()
    for message in sorted(told & reading.calls.keys()):
        for tool, number in reading.calls[message].items():
            calls[tool] += number
    calls_size = count_text(f"{Voice.CALL.value}\n{calls_line(calls)}\n") if calls else 0
    if calls_size > _CALLS_SHARE * budget_tokens:
        calls, calls_size = Counter(), 0
    statements = _merged([statement for statement in reading.statements if statement.message in told])
    chosen = _chosen(statements, reading.scale, budget_tokens - calls_size, count_text)
    digest = _written(chosen, calls)
    while chosen and count_text(digest) > budget_tokens:
        del chosen[-max(len(chosen) // 50, 1) :]
        digest = _written(chosen, calls)
    return digest if count_text(digest) <= budget_tokens else ""


def _merged(statements: list[Statement]) -> list[Statement]:
    """
    The statements without what is said again: the newest stands for all.

    What comes in many versions that differ in numbers only is routine, and counts as the same thing said again.
    """
    versions: dict[tuple[Voice, str], dict[str, Statement]] = {}
    for statement in statements:
        pattern = versions.setdefault((statement.voice, _DIGITS.sub("0", statement.text.casefold())), {})
        earlier = pattern.pop(statement.text, None)
        if earlier is not None:
            statement.times += earlier.times
            statement.alike += earlier.alike
        pattern[statement.text] = statement
    merged: list[Statement] = []
    for pattern in versions.values():
        *older, newest = pattern.values()
        if len(pattern) > _MOST_VERSIONS:
            newest.alike += sum(statement.said for statement in older)
            merged.append(newest)
        else:
            merged.extend(pattern.values())
    return merged


def _chosen(
    statements: list[Statement], scale: Scale, budget_tokens: int, count_text: Callable[[str], int]
) -> list[Statement]:
    """The statements that fit, best first: greedy by worth for its length, with less for what is no news by then."""
    room = budget_tokens
    heap = [(-_worth(statement), index, True) for index, statement in enumerate(statements)]
    heapq.heapify(heap)
    known: set[str] = set()
    opened: set[Voice] = set()
    chosen: list[Statement] = []
    while heap and room > 0:
        worth, index, first_look = heapq.heappop(heap)
        statement = statements[index]
        if first_look:
            novelty = _novelty(statement, known, scale)
            if novelty < _LEAST_NOVELTY:
                heapq.heappush(heap, (worth * novelty, index, False))
                continue
        size = count_text(statement.line() + "\n")
        if statement.voice not in opened:
            size += count_text(statement.voice.value + "\n")
        if size > room:
            continue
        room -= size
        opened.add(statement.voice)
        known.update(statement.content.terms)
        chosen.append(statement)
    return chosen


def _worth(statement: Statement) -> float:
    """The weight for the length, less the more often it is said."""
    length = len(statement.text.encode("utf-8", "replace")) + _LINE_BYTES
    return statement.weight / (1 + log(statement.said)) / float(length**_LENGTH_POWER)


def _novelty(statement: Statement, known: set[str], scale: Scale) -> float:
    """The share of a statement, by the rarity of its terms, that the digest does not hold yet."""
    total = new = 0.0
    for term in statement.content.terms:
        rarity = scale.rarity[term] ** 2
        total += rarity
        if term not in known:
            new += rarity
    return new / total if total else 0.0


def _written(chosen: list[Statement], calls: Counter[str]) -> str:
    lines: list[str] = []
    for voice in Voice:
        said = sorted((statement for statement in chosen if statement.voice is voice), key=lambda said: said.message)
        section = [calls_line(calls)] if calls and voice is Voice.CALL else []
        section += [statement.line() for statement in said]
        if section:
            lines += [voice.value, *section]
    return "\n".join(lines)
