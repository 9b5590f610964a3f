# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from haystack_compaction.cli.bars import Column, bar, column_chart, stacked_bar

ASCII = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), width=80)


@pytest.mark.parametrize(("share", "drawn"), [(0, "...."), (0.5, "##.."), (1, "####"), (7, "####"), (-1, "....")])
def test_a_bar(share: float, drawn: str) -> None:
    assert bar(ASCII, share, cells=4).plain == drawn


def test_a_terminal_with_unicode_has_nicer_bars() -> None:
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    assert bar(console, 0.5, cells=2).plain == "\u2588\u2591"


@given(st.lists(st.integers(0, 10_000), max_size=9), st.integers(0, 50_000), st.integers(1, 120))
def test_a_stacked_bar_is_always_as_long_as_it_should_be(sizes: list[int], total: int, cells: int) -> None:
    parts = [(letter, size) for letter, size in zip("ABCDEFGHI", sizes, strict=False)]
    drawn = stacked_bar(ASCII, parts, total=total, cells=cells).plain
    assert len(drawn) == cells
    for letter, size in parts:
        assert abs(drawn.count(letter) - cells * size / max(total, sum(sizes), 1)) <= 1


def chart(columns: list[Column], *, width: int = 80, rows: int = 4, lines: list[tuple[str, int]] | None = None) -> str:
    return "\n".join(
        line.plain.rstrip() for line in column_chart(ASCII, columns, lines=lines or [], rows=rows, width=width)
    )


def test_a_chart() -> None:
    columns = [Column(1, 1), Column(2, 2), Column(1, 4), Column(2, 2)]
    assert chart(columns, width=12, lines=[("limit", 3)]).splitlines() == [
        "          -",
        "limit 3 ..-.",
        "         #-#",
        "        ####",
        "          ^",
    ]


def test_columns_are_wide_where_there_are_few() -> None:
    assert chart([Column(4, 4), Column(2, 2)]) == "###\n###\n######\n######"


def test_many_columns_share_and_a_compaction_is_never_lost() -> None:
    columns = [Column(size % 10 + 1, size % 10 + 1) for size in range(1000)]
    columns[537] = Column(2, 10)
    drawn = chart(columns, width=50).splitlines()
    assert max(map(len, drawn)) <= 50
    assert drawn[-1].strip() == "^"


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=200), st.integers(20, 120))
def test_a_chart_is_never_wider_than_it_may_be(sizes: list[tuple[int, int]], width: int) -> None:
    columns = [Column(min(pair), max(pair)) for pair in sizes]
    drawn = chart(columns, width=width, lines=[("window", 90), ("target", 40)]).splitlines()
    assert max(map(len, drawn)) <= width
