# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The summary without a model: what a person would have written down."""

import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import log

from haystack.dataclasses import ChatMessage

from haystack_compaction.salience.reading import Reading
from haystack_compaction.salience.statements import BETWEEN_VALUES, Statement, calls_line
from haystack_compaction.salience.terms import terms_of
from haystack_compaction.salience.texts import Voice
from haystack_compaction.salience.weights import Scale

_DIGITS = re.compile(r"\d+")

# The list of the tools called takes no more than this share of the budget.
_CALLS_SHARE = 0.15

# So many statements that differ in numbers only are kept apart.
_MOST_VERSIONS = 3

# Tokens are hardly ever longer than so many characters on average.
_LONGEST_TOKENS = 12

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
    lines, calls = _material(reading, messages)
    if _fits(lines, calls, budget_tokens, count_text):
        return _written(lines, calls)
    calls_size = count_text(f"{Voice.CALL.value}\n{calls_line(calls)}\n") if calls else 0
    if calls_size > _CALLS_SHARE * budget_tokens:
        calls, calls_size = Counter(), 0
    room = budget_tokens - calls_size
    while room > 0:
        digest = _written(_chosen(lines, reading.scale, room, count_text), calls)
        excess = count_text(digest) - budget_tokens
        if excess <= 0:
            return digest
        # A text can be larger than its lines by themselves. Larger steps than need be, so that few of them do.
        room -= max(excess, room // 50 + 1)
    return ""


def room_for_digest(
    reading: Reading, messages: Iterable[int], *, budget_tokens: int, count_text: Callable[[str], int]
) -> int:
    """
    Return how much of a budget a digest of some messages of a conversation has a use for.

    :param reading: The whole conversation as read.
    :param messages: The indexes of the messages that the digest is about.
    :param budget_tokens: The most that there is, in tokens by `count_text`.
    :param count_text: Returns the number of tokens of a text.
    :returns: The size of a digest that leaves nothing out, or the budget where that is less.
    """
    lines, calls = _material(reading, messages)
    return count_text(_written(lines, calls)) if _fits(lines, calls, budget_tokens, count_text) else budget_tokens


def _material(reading: Reading, messages: Iterable[int]) -> tuple[list[Statement], Counter[str]]:
    """The statements that there are to choose from, and the number of calls by tool."""
    told = set(messages)
    calls: Counter[str] = Counter()
    for message in sorted(told & reading.calls.keys()):
        for tool, number in reading.calls[message].items():
            calls[tool] += number
    return _merged([statement for statement in reading.statements if statement.message in told]), calls


def _fits(lines: list[Statement], calls: Counter[str], budget_tokens: int, count_text: Callable[[str], int]) -> bool:
    """Whether there is nothing to choose, because all fits. What is far too much is not counted."""
    characters = sum([len(statement.text) for statement in lines])
    return characters < _LONGEST_TOKENS * budget_tokens and count_text(_written(lines, calls)) <= budget_tokens


def _merged(statements: Iterable[Statement]) -> list[Statement]:
    """
    The statements without what is said again: the newest stands for all.

    What comes in many versions that differ in numbers only is routine, and counts as the same thing said again. The
    newest version has the values of the others with it.
    """
    versions: dict[tuple[Voice, str], dict[str, Statement]] = {}
    for statement in statements:
        pattern = versions.setdefault((statement.voice, _DIGITS.sub("0", statement.text.casefold())), {})
        earlier = pattern.pop(statement.text, None)
        pattern[statement.text] = statement if earlier is None else statement.after(earlier)
    merged: list[Statement] = []
    for pattern in versions.values():
        *older, newest = pattern.values()
        merged += pattern.values() if len(pattern) <= _MOST_VERSIONS else [newest.for_all(older)]
    return merged


def _chosen(
    statements: list[Statement], scale: Scale, budget_tokens: int, count_text: Callable[[str], int]
) -> list[Statement]:
    """
    The statements that fit, best first: greedy by worth for its length, with less for what is no news by then.

    A statement that stands for others gets their values one after the other, each worth less than the one before.
    """
    room = budget_tokens
    heap = [(-_worth(statement, statement.text), index, True) for index, statement in enumerate(statements)]
    heapq.heapify(heap)
    known: set[str] = set()
    opened: set[Voice] = set()
    # The statements that are in, by their positions, with the number of their others' values that are in, too.
    listed: dict[int, int] = {}
    while heap and room > 0:
        worth, index, first_look = heapq.heappop(heap)
        statement = statements[index]
        number = listed.get(index, -1) + 1
        value = statement.others[number - 1] if number else ""
        terms = terms_of(value) if value else statement.content.terms
        if first_look and (novelty := scale.share(terms - known, terms)) < _LEAST_NOVELTY:
            heapq.heappush(heap, (worth * novelty, index, False))
            continue
        if value:
            size = count_text(f"{BETWEEN_VALUES}{value}")
        else:
            size = count_text(replace(statement, others=()).line() + "\n")
            if statement.voice not in opened:
                size += count_text(statement.voice.value + "\n")
        if size > room:
            continue
        room -= size
        listed[index] = number
        opened.add(statement.voice)
        known.update(terms)
        if number < len(statement.others):
            worth = _worth(statement, statement.others[number]) / (number + 1)
            heapq.heappush(heap, (-worth, index, True))
    return [replace(statements[index], others=statements[index].others[:number]) for index, number in listed.items()]


def _worth(statement: Statement, text: str) -> float:
    """The weight for the length, less the more often it is said."""
    length = len(text.encode("utf-8", "replace")) + _LINE_BYTES
    return statement.weight / (1 + log(statement.said)) / float(length**_LENGTH_POWER)


def _written(chosen: list[Statement], calls: Counter[str]) -> str:
    lines: list[str] = []
    for voice in Voice:
        said = sorted((statement for statement in chosen if statement.voice is voice), key=lambda said: said.message)
        section = [calls_line(calls)] if calls and voice is Voice.CALL else []
        section += [statement.line() for statement in said]
        if section:
            lines += [voice.value, *section]
    return "\n".join(lines)
