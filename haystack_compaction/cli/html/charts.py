# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
Where things are in a table, a bar chart or a plot.

Positions in drawings are percentages of the drawing's width or height, so that a drawing can be as wide as the reader's
screen while texts and lines in it keep their size.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, log10
from typing import get_args

from haystack_compaction.cli.html.data import Bar, BarChart, Compaction, Line, Plot, Series, Status, Table

#: How many colours there are for the parts of bars and for series; after that they come again.
COLOURS = 8

# The longest text of a column, in characters, that is not broken into lines first when a screen is narrow.
_WORDS = 30

_MAX_Y_TICKS = 6
_MAX_X_TICKS = 8


@dataclass(frozen=True)
class Tick:
    """A mark on an axis, with the position that it has there in percent."""

    position: float
    label: str


@dataclass(frozen=True)
class Segment:
    """A part of a bar: its place in percent, and the class that colours it."""

    label: str
    tokens: int
    share: float
    start: float
    width: float
    colour: str


@dataclass(frozen=True)
class DrawnBar:
    """A bar with the places of its parts."""

    label: str
    tokens: int
    segments: list[Segment]


@dataclass(frozen=True)
class DrawnLine:
    """A line with its position in percent."""

    label: str
    tokens: int
    position: float


@dataclass(frozen=True)
class DrawnSeries:
    """A series as the path of an SVG whose box is 1000 by 1000, and the places of its compactions."""

    label: str
    points: tuple[tuple[int, int], ...]
    path: str
    colour: str
    compactions: list[tuple[Compaction, float, float]]


class DrawnTable:
    """
    A table whose columns have the class that decides about their width.

    :param table: The table.
    """

    def __init__(self, table: Table) -> None:
        self.title = table.title
        self.note = table.note
        self.rows = table.rows
        self.columns = [
            (header, self._class(table, column) if column in table.text_columns else "number")
            for column, header in enumerate(table.headers)
        ]

    def _class(self, table: Table, column: int) -> str:
        longest = max((len(str(row[column])) for row in table.rows), default=0)
        return "sentences" if longest > _WORDS else "words"


class DrawnBars:
    """
    The geometry of a bar chart.

    :param chart: The chart.
    """

    def __init__(self, chart: BarChart) -> None:
        labels = dict.fromkeys(part.label for bar in chart.bars for part in bar.parts)
        statuses = get_args(Status)
        hues = [label for label in labels if label not in statuses]
        self._colours = {label: f"status-{label}" for label in statuses}
        self._colours |= {label: f"colour-{number % COLOURS}" for number, label in enumerate(hues)}
        totals = [sum(part.tokens for part in bar.parts) for bar in chart.bars]
        self._largest = max([*totals, *(line.tokens for line in chart.lines), 1])
        self.title = chart.title
        self.note = chart.note
        self.legend = [(label, self._colours[label]) for label in labels]
        self.bars = list(map(self._drawn, chart.bars, totals))
        self.lines = _drawn_lines(chart.lines, self._largest)

    def _drawn(self, bar: Bar, total: int) -> DrawnBar:
        segments = []
        start = 0
        for part in bar.parts:
            segments.append(
                Segment(
                    label=part.label,
                    tokens=part.tokens,
                    share=part.tokens / max(total, 1),
                    start=100 * start / self._largest,
                    width=100 * part.tokens / self._largest,
                    colour=self._colours[part.label],
                )
            )
            start += part.tokens
        return DrawnBar(bar.label, total, segments)


class DrawnPlot:
    """
    The geometry of a plot.

    :param plot: The plot.
    """

    def __init__(self, plot: Plot) -> None:
        steps = [step for series in plot.series for step, _ in series.points] or [0, 1]
        sizes = [tokens for series in plot.series for _, tokens in series.points]
        highest = max([*sizes, *(line.tokens for line in plot.lines), 1])
        tick_distance = _tick_distance(highest, _MAX_Y_TICKS)
        self.first = min(steps)
        self.width = max(max(steps) - self.first, 1)
        # Up to the next tick, and a little more, so that the line of a window does not lie on the edge.
        self._height = max(-(-highest // tick_distance) * tick_distance, 1.04 * highest)
        self.title = plot.title
        self.note = plot.note
        self.step_label = plot.step_label
        self.series = [self._drawn(series, number) for number, series in enumerate(plot.series)]
        self.lines = [
            DrawnLine(line.label, line.tokens, self._y(line.tokens))
            for line in sorted(plot.lines, key=lambda line: -line.tokens)
        ]
        self.y_ticks = [
            Tick(self._y(tokens), short_number(tokens)) for tokens in range(0, int(self._height) + 1, tick_distance)
        ]
        x_distance = _tick_distance(self.width, _MAX_X_TICKS)
        first_tick = -(-self.first // x_distance) * x_distance
        self.x_ticks = [
            Tick(self._x(step), f"{step:,}") for step in range(first_tick, self.first + self.width + 1, x_distance)
        ]

    def _drawn(self, series: Series, number: int) -> DrawnSeries:
        path = " L".join(f"{10 * self._x(step):.1f} {10 * self._y(tokens):.1f}" for step, tokens in series.points)
        return DrawnSeries(
            label=series.label,
            points=series.points,
            path=f"M{path}" if path else "",
            colour=f"colour-{number % COLOURS}",
            compactions=[
                (compaction, self._x(compaction.step), self._y(compaction.tokens_after))
                for compaction in series.compactions
            ],
        )

    def _x(self, step: int) -> float:
        return 100 * (step - self.first) / self.width

    def _y(self, tokens: int) -> float:
        return 100 - 100 * tokens / self._height


def short_number(tokens: int) -> str:
    """Return a number as it stands on an axis: 950, 20k, 1.5M."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if tokens >= size:
            return f"{tokens / size:.3g}{unit}"
    return str(tokens)


def _drawn_lines(lines: Iterable[Line], largest: int) -> list[DrawnLine]:
    return [DrawnLine(line.label, line.tokens, 100 * line.tokens / largest) for line in lines]


def _tick_distance(length: int, max_ticks: int) -> int:
    """The smallest of 1, 2, 5, 10, 20, ... that leaves no more ticks than that."""
    power: int = 10 ** max(floor(log10(max(length, 1) / max_ticks)), 0)
    return next(factor * power for factor in (1, 2, 5, 10) if length <= max_ticks * factor * power)
