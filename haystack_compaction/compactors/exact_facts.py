# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The exact values that a summary left out, each with the words around it."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from haystack.dataclasses import ChatMessage, TextContent, ToolCallResult

from haystack_compaction.conversation.notes import is_note, told_by
from haystack_compaction.salience.reading import Reading
from haystack_compaction.salience.statements import Statement
from haystack_compaction.salience.texts import Voice

_TITLE = "# Exact facts"
# The heading of what earlier summaries told, in which nobody can be quoted any more.
_SUMMARIZED = "## Summarized earlier"
_HEADINGS = (*(voice.value for voice in Voice), _SUMMARIZED)

# More messages than this that are alike but for their digits are routine, and only the newest of them is read.
_MANY_ALIKE = 20

# So many facts in the same words are listed: what comes with ever new values, like the lines of a log, is routine too.
_MOST_VERSIONS = 3

# A bare number with fewer digits counts things more often than it names one, unless a unit follows.
_FEWEST_DIGITS = 3
_UNIT = re.compile(
    r"\s?(?:%|‰|°|€|\$|£|¥|元|分钟|小时|天|周|月|年|秒|米|公斤|(?:[KMGT]i?B|[kmgt]?bits?|bytes?|ms|s|secs?|seconds?|mins?|minutes?|h"
    r"|hours?|days?|weeks?|months?|years?|percent|[kmcµn]?m|k?g|mg|m?l|[kMG]?Hz|k?Wh?|[km]?V|m?A|°?C|px|pt|rpm|usd|eur"
    r"|gbp|chf|jpy|euros?|dollars?|tokens?|Sekunden?|Minuten?|Stunden?|Tagen?|Wochen?|Monaten?|Jahren?|Prozent)\b)",
    re.IGNORECASE,
)
# Names of code, of files and of channels have one of these in them; other words only look like names.
_SIGNS = frozenset("_.:/@#-")
_SHORTEST_NAME = 5

# A number with its unit, which people write with or without a space.
_AMOUNT = re.compile(r"^([\d.,]+)(\D+)$")

_ARGUMENT_NAME = re.compile(r"^\w+=(?=.)")

# Whether a value goes on beyond the place where it was found, and so is another one.
_BEGINS_BEFORE = re.compile(r"[a-z0-9_]$|[a-z0-9][./@-]$|[0-9][,:]$")
_GOES_ON = re.compile(r"[a-z0-9_]|[./@-][a-z0-9]|,[0-9]|(?<=[0-9]):[0-9]")

# A fact twice as long must be worth this much more, as a power of two.
_LENGTH_POWER = 0.7
# What a line costs beside its text.
_LINE_BYTES = 24
# What is left of the worth of a fact of which only bare numbers and names of code are missing, as in a listing.
_WEAK = 0.5


def exact_facts(
    messages: Sequence[ChatMessage],
    told: Iterable[int],
    summary: str,
    *,
    budget_tokens: int,
    count_text: Callable[[str], int],
    task_text: str = "",
) -> str:
    """
    List the exact values that a summary should have told and did not: paths, addresses, ids, amounts, numbers with
    their units, dates, names of code, error texts. Each stands in the statement in which it was given.

    A list of an earlier pass is read like everything else, from the note that it stands in. So what a model forgets
    lives on from pass to pass, until a summary tells it again, until it is put right by a newer statement, or until
    worthier facts take the room. What a fact is worth is what its statement is worth to a digest, for its length: see
    `docs/fidelity.md`.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import EstimateTokenCounter
    from haystack_compaction.compactors.exact_facts import exact_facts

    messages = [
        ChatMessage.from_user("Send the report for order 4471-B to ops@example.org."),
        ChatMessage.from_assistant("Sent."),
    ]
    count_text = EstimateTokenCounter().count_text
    facts = exact_facts(messages, [0, 1], "A report was sent.", budget_tokens=100, count_text=count_text)
    assert "ops@example.org" in facts
    assert not exact_facts(
        messages, [0, 1], "Order 4471-B: report sent to ops@example.org.", budget_tokens=100, count_text=count_text
    )
    ```

    :param messages: The whole conversation. What is kept of it tells what of the rest no longer holds.
    :param told: The indexes of the messages that the summary takes the place of, notes among them.
    :param summary: The summary, with whatever else need not be told again.
    :param budget_tokens: The size that the list never exceeds, in tokens by `count_text`.
    :param count_text: Returns the number of tokens of a text.
    :param task_text: What the conversation is about now; what has to do with it is worth more.
    :returns: The list under headings that say who gave the facts, empty when nothing is missing or nothing fits.
    """
    if budget_tokens <= 0:
        return ""
    told = set(told)
    read = _without_routine(messages)
    known = summary.casefold()
    lost: dict[Statement, set[str]] = {}
    for statement in Reading([messages[index] for index in read], task_text=task_text).statements:
        if read[statement.message] in told and (values := _lost_values(statement, known)):
            lost[statement] = values
    headings = _Headings(messages, read)
    facts: dict[str, list[Statement]] = {heading: [] for heading in _HEADINGS}
    room = budget_tokens - count_text(f"{_TITLE}\n")
    listed: set[str] = set()
    versions: Counter[frozenset[str]] = Counter()
    for statement in sorted(lost, key=lambda statement: _worth(statement, lost[statement]), reverse=True):
        words = statement.content.terms.difference(statement.content.values)
        if lost[statement] <= listed or versions[words] == _MOST_VERSIONS:
            continue
        heading = headings.of(statement)
        size = count_text(f"{statement.line()}\n") + (0 if facts[heading] else count_text(f"{heading}\n"))
        if size <= room:
            room -= size
            facts[heading].append(statement)
            listed |= lost[statement]
            versions[words] += 1
    return _written(facts)


def _without_routine(messages: Sequence[ChatMessage]) -> list[int]:
    """The indexes of the messages without those that come in many versions which differ in digits only."""
    patterns = list(map(_pattern, messages))
    times = Counter(patterns)
    newest = {pattern: index for index, pattern in enumerate(patterns)}
    return [
        index for index, pattern in enumerate(patterns) if times[pattern] <= _MANY_ALIKE or newest[pattern] == index
    ]


def _pattern(message: ChatMessage) -> bytes:
    """What a message says, without its digits."""
    texts = [
        part.text if isinstance(part, TextContent) else str(part.result)
        for part in message._content
        if isinstance(part, (TextContent, ToolCallResult))
    ]
    # Several times as fast as the same with characters.
    return "\n".join(texts).encode("utf-8", "replace").translate(None, b"0123456789")


def _lost_values(statement: Statement, known: str) -> set[str]:
    """The exact values in a statement that a text, in lower case, does not hold. None where it has nothing else."""
    content = statement.content
    if statement.voice is Voice.PROBLEM and not content.values:
        error = statement.text.casefold()
        return set() if error in known else {error}
    if len(content.terms) == len(content.values):
        return set()
    values = ((_ARGUMENT_NAME.sub("", value), kind) for value, kind in content.values.items())
    return {value for value, kind in values if _is_exact(value, kind, statement) and not _is_told(value, kind, known)}


def _is_exact(value: str, kind: str, statement: Statement) -> bool:
    if kind == "number":
        return sum(map(str.isdigit, value)) >= _FEWEST_DIGITS or _has_unit(value, statement.text)
    if kind == "name" and statement.voice is not Voice.PROBLEM:
        # A call is told with the name of its tool first.
        is_tool = statement.voice is Voice.CALL and statement.text.casefold().startswith(f"{value}(")
        return len(value) >= _SHORTEST_NAME and not _SIGNS.isdisjoint(value) and not is_tool
    return True


def _has_unit(number: str, text: str) -> bool:
    start = text.find(number)
    return start >= 0 and _UNIT.match(text, start + len(number)) is not None


def _is_told(value: str, kind: str, text: str) -> bool:
    spaced = _AMOUNT.sub(r"\1 \2", value) if kind == "amount" else value
    return any(_stands_in(form, text, may_have_unit=kind == "number") for form in {value, spaced})


def _stands_in(value: str, text: str, *, may_have_unit: bool) -> bool:
    start = text.find(value)
    while start >= 0:
        end = start + len(value)
        goes_on = _GOES_ON.match(text, end) and not (may_have_unit and _UNIT.match(text, end))
        if not goes_on and not _BEGINS_BEFORE.search(text[max(start - 2, 0) : start]):
            return True
        start = text.find(value, start + 1)
    return False


def _worth(statement: Statement, lost: set[str]) -> float:
    """What a fact is worth, for its length."""
    length = len(statement.text.encode("utf-8", "replace")) + _LINE_BYTES
    share = _WEAK if all(_is_weak(value, statement) for value in lost) else 1.0
    return share * statement.weight / float(length**_LENGTH_POWER)


def _is_weak(value: str, statement: Statement) -> bool:
    kind = statement.content.values.get(value)
    if kind == "number":
        return not _has_unit(value, statement.text)
    return kind == "name" and statement.voice is not Voice.PROBLEM


class _Headings:
    """
    Who gave a fact, as the heading that it stands under: for what a note tells, the heading that it has there.

    :param messages: The conversation.
    :param read: The index in it of each message that statements were taken from.
    """

    def __init__(self, messages: Sequence[ChatMessage], read: Sequence[int]) -> None:
        self._of_lines = {
            position: _headings_in(told_by(messages[index]))
            for position, index in enumerate(read)
            if messages[index]._meta and is_note(messages[index])
        }

    def of(self, statement: Statement) -> str:
        """The heading of a statement."""
        of_lines = self._of_lines.get(statement.message)
        return statement.voice.value if of_lines is None else of_lines.get(statement.line(), _SUMMARIZED)


def _headings_in(note: str) -> dict[str, str]:
    """The lines of a note that stand under one of our headings, each with that heading."""
    headings: dict[str, str] = {}
    heading = ""
    for line in map(str.strip, note.splitlines()):
        if line.startswith("#"):
            heading = line if line in _HEADINGS else ""
        elif heading:
            headings[line] = heading
    return headings


def _written(facts: Mapping[str, list[Statement]]) -> str:
    """The list; empty where there is nothing on it."""
    lines: list[str] = []
    for heading, statements in facts.items():
        if statements:
            lines += [heading, *(said.line() for said in sorted(statements, key=lambda said: said.message))]
    return "\n".join([_TITLE, *lines]) if lines else ""
