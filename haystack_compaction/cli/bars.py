# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Sizes as bars and as a chart of columns, in characters that the terminal has."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from rich.console import Console
from rich.text import Text

#: The colours of parts, in the order in which they are used.
PART_STYLES = ("cyan", "magenta", "green", "blue", "yellow", "red", "bright_cyan", "bright_magenta", "bright_green")


def bar(console: Console, share: float, *, cells: int, style: str = "") -> Text:
    """
    Return a bar that is full up to a share of it.

    :param console: Where it will be printed.
    :param share: What is full. More than 1 is as full as can be.
    :param cells: Its length.
    :param style: Its colour.
    :returns: The bar.
    """
    full, empty = _shades(console)
    number = min(max(round(cells * share), 0), cells)
    return Text(full * number + empty * (cells - number), style=style)


def stacked_bar(console: Console, parts: Sequence[tuple[str, int]], *, total: int, cells: int) -> Text:
    """
    Return a bar of parts, each drawn with its own letter as well as its own colour.

    :param console: Where it will be printed.
    :param parts: The letter of each part and its size.
    :param total: The size of the whole bar; what the parts leave of it is empty.
    :param cells: Its length.
    :returns: The bar.
    """
    _, empty = _shades(console)
    total = max(total, sum(size for _, size in parts), 1)
    # The ends are rounded and not the lengths, which would not add up.
    ends = [round(cells * end / total) for end in accumulate((size for _, size in parts), initial=0)]
    drawn = Text()
    for number, (letter, _) in enumerate(parts):
        style = f"black on {PART_STYLES[number % len(PART_STYLES)]}"
        drawn.append(letter * (ends[number + 1] - ends[number]), style=style)
    return drawn.append(empty * (cells - ends[-1]))


_WIDEST_COLUMN = 3


@dataclass(frozen=True)
class Column:
    """
    A column of a chart.

    :param size: How high it is.
    :param before: How high it was before something was taken from it; the same as `size` where nothing was.
    """

    size: int
    before: int


def column_chart(
    console: Console, columns: Sequence[Column], *, lines: Sequence[tuple[str, int]], rows: int, width: int
) -> list[Text]:
    """
    Draw sizes as columns, oldest to newest from left to right.

    Where there are more of them than fit, neighbours share a column, which then shows the largest of them and how
    low they were brought.

    :param console: Where it will be printed.
    :param columns: The sizes, at least one.
    :param lines: Sizes that are marked across the chart, each with its name.
    :param rows: How many lines high it is.
    :param width: How many characters wide it is at most, its labels included.
    :returns: The lines, from top to bottom.
    """
    full, _ = _shades(console)
    labels = {size: f"{name} {size:,} " for name, size in lines}
    margin = max(map(len, labels.values()), default=0)
    shown = _merged(columns, max(width - margin, 1))
    cells = min(max((width - margin) // len(shown), 1), _WIDEST_COLUMN)
    top = max([*(column.before for column in shown), *labels, 1])
    drawn = []
    for row in range(rows, 0, -1):
        low, high = top * (row - 1) / rows, top * row / rows
        here = [size for size in labels if low < size <= high]
        line = Text((labels[here[0]] if here else "").rjust(margin), style="dim")
        for column in shown:
            if column.size > low:
                line.append(full * cells)
            elif column.before > low:
                line.append("-" * cells, style="red")
            else:
                line.append(("." if here else " ") * cells, style="dim")
        drawn.append(line)
    marks = "".join(("^" if column.before > column.size else " ").ljust(cells) for column in shown)
    return [*drawn, Text(" " * margin + marks, style="yellow")] if marks.strip() else drawn


def _merged(columns: Sequence[Column], width: int) -> list[Column]:
    stride = -(-len(columns) // width)
    groups = (columns[start : start + stride] for start in range(0, len(columns), stride))
    return [min(group, key=lambda column: (column.size - column.before, -column.size)) for group in groups]


def _shades(console: Console) -> tuple[str, str]:
    return ("\u2588", "\u2591") if console.encoding.startswith("utf") else ("#", ".")
