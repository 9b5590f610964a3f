# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The page as a text: what is in it, and that nothing gets in but as text."""

import base64
import hashlib
import json
import re
from datetime import datetime, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from haystack.dataclasses import ChatMessage
from hypothesis import example, given, settings
from hypothesis import strategies as st
from samples import chat, step

from haystack_compaction.cli.html.charts import DrawnBars, DrawnPlot, short_number
from haystack_compaction.cli.html.conversation import conversation_view
from haystack_compaction.cli.html.data import (
    Bar,
    BarChart,
    BarPart,
    Compaction,
    Fact,
    Line,
    Plot,
    Report,
    Series,
    Table,
)
from haystack_compaction.cli.html.page import rendered, shown, write_html
from haystack_compaction.tokens.ledger import TokenLedger

ATTACKS = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "</title></style></textarea><img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "<!--<script>",
    "]]>-->",
    "{{ 7 * 7 }}{% for x in y %}{# #}",
    "&lt;b&gt;&amp;",
    "\x00\x07\x1b[31m\x9b\x7f",
    "\ud800 lone \udfff",
    "\u2028\u2029\u202e\ufeff\u200b\U000e0041",
    "javascript:alert(1)",
]


class Parsed(HTMLParser):
    """A page as a browser reads it: its elements with the names of their attributes, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.texts: list[str] = []
        self.contents: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is not None:
            self.contents[self.cdata_elem].append(data)
        else:
            self.texts.append(data)

    @property
    def data(self) -> Any:
        return json.loads(self.contents["script"][0])


def report_of(text: str) -> Report:
    """A report with the text wherever one can be."""
    messages = [ChatMessage.from_system(text), ChatMessage.from_user(text or "-"), *step(text or "-", text)]
    view = conversation_view(text, messages, messages[:2], TokenLedger(), lines=[Line(text, 5)])
    return Report(
        title=text,
        subtitle=text + "-",
        facts=(Fact(text, text, text + "-"), Fact("number", 1234)),
        sections=(
            Table(text, (text, "b"), ((text, text), (None, 12345)), note=text + "-"),
            BarChart(text, (Bar(text, (BarPart(text, 3), BarPart("kept", 4))),), (Line(text, 5),), note=text + "-"),
            BarChart(text, (Bar(text, (BarPart(text, 3),)), Bar("b", ()))),
            Plot(
                text,
                (Series(text, ((0, 1), (1, 5)), (Compaction(1, 5, 2),)),),
                (Line(text, 5),),
                step_label=text,
                note=text + "-",
            ),
        ),
        views=(view, view),
        created=datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc),
        versions={text: text},
    )


@settings(deadline=None)
@given(st.text(st.characters(codec=None)))
@example("".join(ATTACKS))
def test_whatever_a_text_holds_the_page_has_the_same_elements_and_shows_it(text: str) -> None:
    page = Parsed(rendered(report_of(text)))
    assert page.elements == Parsed(rendered(report_of("harmless"))).elements
    assert shown(text) in "".join(page.texts)
    parts = [part for message in page.data["messages"] for part in message["parts"]]
    assert ["result", shown(text or "-"), shown(text)] in parts


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_text(attack: str, tmp_path: Path) -> None:
    write_html(tmp_path / "report.html", report_of(attack))
    page = Parsed((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert len(page.contents["script"]) == 2
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert "49" not in "".join(page.texts)


def test_nothing_that_is_shown_is_invisible() -> None:
    assert shown("a\x00b\x1b[0m") == "a␀b␛[0m"
    assert shown("one\r\ntwo\rthree\tfour\n") == "one\ntwo␍three\tfour\n"
    assert shown("\u202eevil\ud800\x9b\U000e0041") == "[U+202E]evil[U+D800][U+009B][U+E0041]"
    assert shown("größe 高 🧭👩‍🚀 \u200f") == "größe 高 🧭👩‍🚀 \u200f"


def test_the_policy_allows_the_script_and_the_style_of_the_page_and_nothing_else() -> None:
    page = Parsed(rendered(report_of("text")))
    policy = next(
        value for tag, name, value in page.attributes if (tag, name) == ("meta", "content") and "src" in value
    )

    def source(content: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() + "'"

    assert dict(directive.split(" ", 1) for directive in policy.split("; ")) == {
        "default-src": "'none'",
        "script-src": source(page.contents["script"][1]),
        "style-src": source(page.contents["style"][0]),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_the_page_asks_for_nothing() -> None:
    page = Parsed(rendered(report_of("text")))
    urls = {value for _, name, value in page.attributes if name in ("src", "href", "action", "data", "srcset")}
    assert urls == {"data:,"}
    assert not re.search(r"@import|url\((?!#)", page.contents["style"][0])
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|innerHTML|eval\(", page.contents["script"][1])


def test_each_message_is_stored_once_for_all_views() -> None:
    before = chat(5)
    views = tuple(
        conversation_view(f"last {number}", before, before[-number:], TokenLedger()) for number in range(1, 6)
    )
    data = Parsed(rendered(Report("Title", views=views))).data
    assert len(data["messages"]) == len(before)
    assert [view["title"] for view in data["views"]] == [view.title for view in views]
    status, left, right = data["views"][0]["rows"][-1]
    assert (status, left[0], right[0], left[2]) == ("kept", len(before) - 1, 0, right[2])


def test_numbers_have_separators_and_stand_on_the_right() -> None:
    table = Table("Table", ("name", "tokens", "share", "why"), (("a", 12345, "37%", "small"),), text_columns=(0, 3))
    page = rendered(Report("Title", facts=(Fact("before", 1234567),), sections=(table,)))
    assert "1,234,567" in page
    assert re.findall(r'<td class="(.+?)">([^<]+)<', page) == [
        ("number", "12,345"),
        ("number", "37%"),
        ("words", "small"),
    ]


def test_a_report_without_anything_is_a_page() -> None:
    page = Parsed(rendered(Report("Nothing", created=datetime(2026, 1, 2, tzinfo=timezone.utc), versions={"a": "1"})))
    assert page.data == {"plots": [], "views": [], "messages": []}
    assert "Made 2026-01-02 00:00 UTC with a 1" in " ".join("".join(page.texts).split())


def test_the_versions_are_those_that_are_installed() -> None:
    assert {"haystack-compaction", "haystack-ai", "Python"} <= set(Report("Title").versions)


def test_a_file_that_is_there_is_overwritten_and_one_that_can_not_be_written_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("x" * 1_000_000)
    write_html(path, Report("Title"))
    assert path.read_text().rstrip().endswith("</html>")
    with pytest.raises(OSError, match="nowhere"):
        write_html(tmp_path / "nowhere" / "report.html", Report("Title"))


def test_bars_are_on_one_scale_and_colours_follow_labels() -> None:
    chart = BarChart(
        "Chart",
        (
            Bar("a", (BarPart("user", 10), BarPart("kept", 30))),
            Bar("b", (BarPart("tool", 20), BarPart("user", 60))),
        ),
        (Line("window", 160),),
    )
    first, second = DrawnBars(chart).bars
    assert [(part.start, part.width) for part in first.segments] == [(0, 6.25), (6.25, 18.75)]
    assert [(part.start, part.width) for part in second.segments] == [(0, 12.5), (12.5, 37.5)]
    assert [part.share for part in second.segments] == [0.25, 0.75]
    assert first.segments[0].colour == second.segments[1].colour != second.segments[0].colour
    assert first.segments[1].colour == "status-kept"
    assert DrawnBars(chart).lines[0].position == 100


def test_empty_bars_are_drawn() -> None:
    assert DrawnBars(BarChart("Chart", (Bar("a", ()), Bar("b", (BarPart("user", 0),))))).bars[1].segments[0].width == 0


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**9)), max_size=20),
    st.lists(st.integers(0, 10**9), max_size=3),
)
def test_whatever_is_plotted_is_within_the_plot_and_has_few_ticks(
    points: list[tuple[int, int]], lines: list[int]
) -> None:
    series = Series("size", tuple(sorted(points)), tuple(Compaction(step, size, size // 2) for step, size in points))
    plot = DrawnPlot(Plot("Plot", (series,), tuple(Line("line", tokens) for tokens in lines)))
    drawn = plot.series[0]
    assert all(0 <= 10 * position <= 1001 for _, *place in drawn.compactions for position in place)
    assert all(0 <= float(number) <= 1000 for number in re.findall(r"[\d.]+", drawn.path))
    assert all(0 <= line.position <= 100 for line in plot.lines)
    for ticks in (plot.x_ticks, plot.y_ticks):
        assert 1 <= len(ticks) <= 10
        assert all(-0.001 <= tick.position <= 100.001 for tick in ticks)
        assert len({tick.label for tick in ticks}) == len(ticks)


@pytest.mark.parametrize(
    ("tokens", "text"), [(0, "0"), (950, "950"), (2500, "2.5k"), (20_000, "20k"), (1_500_000, "1.5M")]
)
def test_short_numbers(tokens: int, text: str) -> None:
    assert short_number(tokens) == text
