# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The summary without a model: what a person would have written down."""

import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from haystack.dataclasses import ChatMessage

from haystack_compaction.salience.corrections import corrections
from haystack_compaction.salience.statements import Listener, Statement, Voice
from haystack_compaction.salience.weights import Scale

_HEADINGS = {
    Voice.USER: "## User said",
    Voice.ASSISTANT: "## Assistant said",
    Voice.CALL: "## Work done",
    Voice.TOOL: "## Tools returned",
}
_SECTIONS = {heading: voice for voice, heading in _HEADINGS.items()}
_BULLET = "- "
_TIMES = re.compile(r" \(x(\d+)\)$")
_DIGITS = re.compile(r"\d+")

# So many statements that differ in numbers only are kept apart.
_MOST_VERSIONS = 3

# A statement twice as long must be worth this much more, as a power of two.
_LENGTH_POWER = 0.7
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
    listener = Listener()
    statements = [*_noted(previous, listener), *listener.statements(messages)]
    scale = Scale(statements)
    stale, newest = corrections(statements, scale)
    for index in newest:
        statements[index].corrects = True
    unique = _merged([statement for index, statement in enumerate(statements) if index not in stale])
    chosen = _chosen(unique, scale, budget_tokens, count_text)
    digest = _written(chosen)
    while chosen and count_text(digest) > budget_tokens:
        chosen.pop()
        digest = _written(chosen)
    return digest


def _noted(previous: str, listener: Listener) -> Iterator[Statement]:
    """What an earlier digest says. The sections tell who said it; a summary of other origin speaks for the user."""
    voice = Voice.USER
    for line in previous.splitlines():
        line = line.strip()
        if line.startswith("#"):
            voice = _SECTIONS.get(line, voice)
            continue
        line = line.removeprefix(_BULLET)
        times = _TIMES.search(line)
        if line:
            yield listener.hear(_TIMES.sub("", line), voice, -1, int(times[1]) if times else 1)


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
        pattern[statement.text] = statement
    merged: list[Statement] = []
    for pattern in versions.values():
        *older, newest = pattern.values()
        if len(pattern) > _MOST_VERSIONS:
            newest.times += sum(statement.times for statement in older)
            merged.append(newest)
        else:
            merged.extend(pattern.values())
    return merged


def _chosen(
    statements: list[Statement], scale: Scale, budget_tokens: int, count_text: Callable[[str], int]
) -> list[Statement]:
    """The statements that fit, best first. Greedy by worth for its length, looking again at what has become old news."""
    room = budget_tokens
    heap = [
        (-scale.weight(statement) / (len(statement.text.encode("utf-8", "replace")) + 12) ** _LENGTH_POWER, index, True)
        for index, statement in enumerate(statements)
    ]
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
        size = count_text(_line(statement) + "\n")
        if statement.voice not in opened:
            size += count_text(_HEADINGS[statement.voice] + "\n")
        if size > room:
            continue
        room -= size
        opened.add(statement.voice)
        known.update(statement.content.terms)
        chosen.append(statement)
    return chosen


def _novelty(statement: Statement, known: set[str], scale: Scale) -> float:
    """The share of a statement, by the rarity of its terms, that the digest does not hold yet."""
    total = new = 0.0
    for term in statement.content.terms:
        rarity = scale.rarity(term) ** 2
        total += rarity
        if term not in known:
            new += rarity
    return new / total if total else 0.0


def _written(chosen: list[Statement]) -> str:
    order = {id(statement): position for position, statement in enumerate(chosen)}
    lines: list[str] = []
    for voice, heading in _HEADINGS.items():
        said = [statement for statement in chosen if statement.voice is voice]
        if said:
            said.sort(key=lambda statement: statement.message)
            lines += [heading, *map(_line, said)]
    return "\n".join(lines)


def _line(statement: Statement) -> str:
    return f"{_BULLET}{statement.text}" + (f" (x{statement.times})" if statement.times > 1 else "")
