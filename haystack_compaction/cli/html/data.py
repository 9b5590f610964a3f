# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What a report holds. Texts may hold anything: they are made harmless where the page is written."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Literal, TypeAlias

#: What became of a message.
Status: TypeAlias = Literal["kept", "removed", "rewritten", "added"]

#: What a message is: its role, or a note where compaction itself wrote it.
Kind: TypeAlias = Literal["system", "user", "assistant", "tool", "note"]

#: What a piece of a message is.
PartKind: TypeAlias = Literal["text", "reasoning", "call", "result", "attachment"]

#: Integers are shown with thousands separators, None as a dash, texts as they are.
Cell: TypeAlias = str | int | None


def installed_versions() -> dict[str, str]:
    """Return the versions of what a report depends on, by name."""
    versions = {name: version(name) for name in ("haystack-compaction", "haystack-ai")}
    return {**versions, "Python": platform.python_version()}


@dataclass(frozen=True)
class Fact:
    """
    One of the numbers at the very top.

    :param label: What it is, in one or two words.
    :param value: The number, with its unit where it is not tokens.
    :param detail: What it is to be compared with, in a few words.
    """

    label: str
    value: Cell
    detail: str = ""


@dataclass(frozen=True)
class Table:
    """
    A table of numbers.

    :param title: Its heading.
    :param headers: The heading of each column.
    :param rows: The cells of each row, as many as there are headers.
    :param text_columns: The columns that hold texts, from 0 on. The others hold numbers and are aligned to the right,
        also where a cell is a text such as "37%".
    :param note: What a reader has to know about it, in a sentence.
    """

    title: str
    headers: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    text_columns: tuple[int, ...] = (0,)
    note: str = ""


@dataclass(frozen=True)
class BarPart:
    """
    A part of a bar.

    :param label: What it is. Parts of the same label get the same colour in all bars of a chart.
    :param tokens: Its size in tokens, at least 0.
    """

    label: str
    tokens: int


@dataclass(frozen=True)
class Bar:
    """
    A bar made of parts.

    :param label: What it shows.
    :param parts: Its parts, in the order in which they are stacked.
    """

    label: str
    parts: tuple[BarPart, ...]


@dataclass(frozen=True)
class Line:
    """
    A size to compare others with, such as the trigger, the target or the window.

    :param label: What it is.
    :param tokens: The size in tokens.
    """

    label: str
    tokens: int


@dataclass(frozen=True)
class BarChart:
    """
    Bars on one scale.

    :param title: Its heading.
    :param bars: The bars, from top to bottom.
    :param lines: Sizes that are marked across the bars.
    :param note: What a reader has to know about it, in a sentence.
    """

    title: str
    bars: tuple[Bar, ...]
    lines: tuple[Line, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Compaction:
    """
    A compaction in a series.

    :param step: Where it happened.
    :param tokens_before: The size before, in tokens.
    :param tokens_after: The size after, in tokens.
    """

    step: int
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True)
class Series:
    """
    How a size grew.

    :param label: What was measured.
    :param points: Pairs of a step and the size at it in tokens, in rising order of the steps. Two points at the same
        step draw a vertical line.
    :param compactions: The compactions that are to be marked.
    """

    label: str
    points: tuple[tuple[int, int], ...]
    compactions: tuple[Compaction, ...] = ()


@dataclass(frozen=True)
class Plot:
    """
    Sizes against steps. What a reader has to get out of it stands in a table, too, for those who can't see it.

    :param title: Its heading.
    :param series: What is plotted; the first lies on top.
    :param lines: Sizes that are marked across the plot.
    :param step_label: What a step is.
    :param note: What a reader has to know about it, in a sentence.
    """

    title: str
    series: tuple[Series, ...]
    lines: tuple[Line, ...] = ()
    step_label: str = "step"
    note: str = ""


@dataclass(frozen=True)
class Part:
    """
    A piece of a message.

    :param kind: What it is.
    :param text: All of its text.
    :param name: The name of the tool or of the file.
    """

    kind: PartKind
    text: str
    name: str = ""


@dataclass(frozen=True)
class Block:
    """
    A message in a column.

    :param index: Where it stands in its conversation, from 0 on.
    :param step: The number of the model's reply that it is or answers the calls of, from 1 on; None for other messages.
    :param role: Its role.
    :param kind: What it is.
    :param tokens: Its size in tokens.
    :param parts: What it is made of.
    :param marks: What else there is to say of it, such as "pinned".
    """

    index: int
    step: int | None
    role: str
    kind: Kind
    tokens: int
    parts: tuple[Part, ...]
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """
    A message before and after.

    :param status: What became of it.
    :param before: The message as it was; None if it was added.
    :param after: The message as it is now; None if it was removed.
    """

    status: Status
    before: Block | None
    after: Block | None


@dataclass(frozen=True)
class ConversationView:
    """
    A conversation before beside after, see `conversation_view`.

    :param title: What the reader picks it by where there are several: the strategy, say.
    :param rows: The messages, in the order of the conversation after, with removed ones where they stood.
    :param lines: Sizes to compare both with, such as the target.
    """

    title: str
    rows: tuple[Row, ...]
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True)
class Report:
    """
    A page.

    ### Usage example

    ```python
    from pathlib import Path
    from tempfile import mkdtemp
    from haystack_compaction.cli.html.data import Fact, Report
    from haystack_compaction.cli.html.page import write_html

    report = Report(title="What a compaction did", facts=(Fact("before", 48_210), Fact("after", 19_003, "39%")))
    write_html(Path(mkdtemp()) / "report.html", report)
    ```

    :param title: Its heading.
    :param subtitle: What it is about: a file, a strategy.
    :param facts: The numbers at the top, at most six or so.
    :param sections: What follows, in this order.
    :param views: The conversations at the end. Where there are several, the reader picks one at a time.
    :param created: When it was made.
    :param versions: What it was made with: the version by name.
    """

    title: str
    subtitle: str = ""
    facts: tuple[Fact, ...] = ()
    sections: tuple[Table | BarChart | Plot, ...] = ()
    views: tuple[ConversationView, ...] = ()
    created: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    versions: Mapping[str, str] = field(default_factory=installed_versions)
