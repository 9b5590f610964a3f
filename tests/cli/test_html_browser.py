# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The page in a real browser."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Chromium, Page, find_chromium
from haystack.dataclasses import ChatMessage
from samples import chat, run_of, step

from haystack_compaction import SlidingWindowCompactor, ToolResultPruningCompactor
from haystack_compaction.cli.html.conversation import conversation_view
from haystack_compaction.cli.html.data import (
    Bar,
    BarChart,
    BarPart,
    Compaction,
    ConversationView,
    Fact,
    Line,
    Plot,
    Report,
    Series,
    Table,
)
from haystack_compaction.cli.html.page import write_html
from haystack_compaction.tokens.ledger import TokenLedger

_EXECUTABLE = find_chromium()

pytestmark = pytest.mark.skipif(
    _EXECUTABLE is None, reason="needs Chromium, which is Debian's package `chromium`; it is not installed"
)

ATTACK = "<script>window.ran = 1</script></script><script>window.ran = 2</script><img src=x onerror='window.ran = 3'>"

NARROW, WIDE = 320, 1280

# The texts of the page whose contrast with what is behind them is below 4.5, with that contrast.
LOW_CONTRAST = """(() => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (element) => {
    const color = rgba(getComputedStyle(element).backgroundColor);
    return color[3] > 0 || !element.parentElement ? color : ground(element.parentElement);
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const texts = walker.currentNode.data.trim();
    if (texts === "" || !element.checkVisibility() || element.closest("script, noscript, title")) continue;
    const style = getComputedStyle(element);
    const color = rgba(element.closest("svg") ? style.fill : style.color);
    const [light, dark] = [luminance(color), luminance(ground(element))].sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < 4.5) low.push(`${texts.slice(0, 40)}: ${contrast.toFixed(2)}`);
  }
  return low;
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    assert _EXECUTABLE is not None
    browser = Chromium(_EXECUTABLE, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def show(browser: Chromium, tmp_path: Path) -> Iterator[Any]:
    """Opens a report; whatever is done with it must cause no complaint and no request."""
    pages: list[Page] = []

    def show(report: Report, **options: Any) -> Page:
        path = tmp_path / "report.html"
        write_html(path, report)
        pages.append(browser.open(path, **options))
        return pages[-1]

    yield show
    for page in pages:
        page.evaluate("0")
        assert page.errors == []
        assert page.requests == [(tmp_path / "report.html").as_uri()]
        page.close()


def view(title: str, before: list[ChatMessage], after: list[ChatMessage]) -> ConversationView:
    return conversation_view(title, before, after, TokenLedger(), lines=[Line("target", 400)])


def pruned() -> ConversationView:
    messages = run_of(12, words=300)
    return view("pruned", messages, ToolResultPruningCompactor().run(messages=messages, target_tokens=2000)["messages"])


def windowed() -> ConversationView:
    messages = chat(12)
    return view("windowed", messages, SlidingWindowCompactor().run(messages=messages, target_tokens=200)["messages"])


def everything() -> Report:
    """A report with one of each."""
    unchanged = chat(3)
    series = Series("with", ((0, 100), (5, 900), (5, 300), (10, 700)), (Compaction(5, 900, 300),))
    return Report(
        title="What a compaction did " + "to a_file_with_a_very_long_name_that_has_no_space_in_it.json",
        subtitle="sliding_window",
        facts=(Fact("before", 123456, "44 messages"), Fact("after", 23456, "19%"), Fact("cost", "$0.02")),
        sections=(
            Table(
                "Strategies",
                ("strategy", *(f"a long heading {n}" for n in range(9))),
                (("sliding_window", *range(9)),),
                note="All to half of the present size.",
            ),
            BarChart("Parts", (Bar("now", tuple(BarPart(f"part {n}", 10 * n) for n in range(12))),)),
            BarChart(
                "Sizes",
                (Bar("before", (BarPart("kept", 90),)), Bar("a_strategy_with_a_long_name", (BarPart("added", 9),))),
                (Line("target", 40),),
            ),
            Plot("Replay", (series, Series("without", ((0, 100), (10, 1500)))), (Line("window", 1000),)),
        ),
        views=(windowed(), pruned(), view("unchanged", unchanged, unchanged)),
    )


def focused(page: Page) -> str:
    """The number and the text of the message that has the focus."""
    return str(
        page.evaluate("document.activeElement.className && document.activeElement.innerText.replace(/\\s+/g, ' ')")
    )


def shown(page: Page) -> list[int]:
    """The numbers of the messages before that are shown."""
    return page.evaluate("[...document.querySelectorAll('.before .index')].map((index) => Number(index.textContent))")


def hits(page: Page) -> str:
    return str(page.evaluate("document.getElementById('hits').textContent"))


def search(page: Page, text: str) -> None:
    page.evaluate("document.getElementById('search').value = ''")
    page.click("#search")
    page.type(text)
    page.wait_for("document.getElementById('hits').textContent !== ''")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, 768, WIDE])
def test_the_page_fits_the_screen_and_can_be_read(show: Any, width: int, dark: bool) -> None:
    page = show(everything(), width=width, dark=dark)
    for number in range(3):
        page.evaluate(f"view.value = '{number}'; view.dispatchEvent(new Event('change'))")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(LOW_CONTRAST) == []
        page.click(".block")
        assert page.evaluate("reader.open && document.getElementById('reader-body').scrollWidth <= innerWidth")
        assert page.evaluate(LOW_CONTRAST) == []
        page.press("Escape")


def test_the_theme_follows_the_system_until_the_reader_chooses(show: Any) -> None:
    page = show(everything())
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.prefer(dark=True)
    dark = page.evaluate(ground)
    assert light != dark
    for chosen, colour in (("light", light), ("dark", dark), ("auto", dark)):
        page.click("#theme")
        assert page.evaluate("theme.textContent") == f"Theme: {chosen}"
        assert page.evaluate(ground) == colour
    page.prefer(dark=False)
    assert page.evaluate(ground) == light


def test_a_script_in_a_tool_result_is_shown_and_not_run(show: Any) -> None:
    messages = [ChatMessage.from_user(ATTACK), *step("<b>tool</b>", ATTACK, text="{{ 7 * 7 }}\x00\ud800")]
    page = show(Report(ATTACK, subtitle=ATTACK, views=(view(ATTACK, messages, messages[:1]),)))
    page.click(".removed:last-child .block")
    assert page.evaluate("document.querySelector('#reader pre').textContent") == ATTACK
    page.press("ArrowLeft")
    assert "{{ 7 * 7 }}␀[U+D800]" in page.evaluate("reader.innerText")
    page.press("Escape")
    search(page, "<script>")
    assert hits(page) == "5 hits in 3 messages"
    assert page.evaluate("window.ran") is None
    assert page.evaluate("document.scripts.length") == 2
    assert page.evaluate("document.querySelector('h1').textContent") == ATTACK
    assert page.evaluate("document.images.length") == 0


def test_the_policy_stops_a_script_that_gets_in_all_the_same(show: Any) -> None:
    page = show(everything())
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))"
    )
    assert page.evaluate("window.ran") is None
    assert page.evaluate("fetch('https://example.com').then(() => 'sent', () => 'stopped')") == "stopped"
    assert len(page.errors) >= 2
    page.errors.clear()


def test_the_keyboard_is_enough(show: Any) -> None:
    page = show(Report("Title", views=(windowed(),)))
    page.press("Tab", "Tab", "Tab", "Tab", "Tab", "Tab")
    assert "1 system" in focused(page)
    page.press("ArrowRight", "ArrowDown")
    assert "added 2 note" in focused(page)
    page.press("ArrowDown")
    assert "removed 2 user" in focused(page)
    page.press("ArrowUp", "ArrowUp", "ArrowUp", "End")
    assert "kept 9 user" in focused(page)
    page.press("ArrowLeft", "ArrowLeft")
    assert "kept 26 user current task And today?" in focused(page)
    page.press("Home", "ArrowDown", "ArrowDown", "Enter")
    assert page.evaluate("reader.open")
    assert page.evaluate("document.getElementById('reader-title').innerText") == "−user message 2"
    assert "Question 0" in page.evaluate("reader.innerText")
    page.press("ArrowRight")
    assert "Answer 0" in page.evaluate("reader.innerText")
    page.press("Escape")
    assert not page.evaluate("reader.open")
    page.wait_for("document.activeElement.innerText.includes('Answer 0')")
    page.press("ArrowUp")
    assert "removed 2 user" in focused(page)


def test_tab_stops_once_at_the_messages(show: Any) -> None:
    page = show(Report("Title", views=(windowed(),)))
    assert page.evaluate("document.querySelectorAll('#rows [tabindex=\"0\"]').length") == 1
    page.press("Tab", "Tab", "Tab", "Tab", "Tab", "Tab", "ArrowDown", "ArrowDown", "Tab")
    assert not page.evaluate("document.getElementById('rows').contains(document.activeElement)")
    assert page.evaluate("document.querySelectorAll('#rows [tabindex=\"0\"]').length") == 1


def test_search_finds_counts_and_marks(show: Any) -> None:
    page = show(Report("Title", views=(windowed(),)))
    page.press("/")
    page.type("QUESTION 1")
    page.wait_for("document.getElementById('hits').textContent !== ''")
    assert hits(page) == "3 hits in 3 messages"
    assert shown(page) == [4, 22, 24]
    assert page.evaluate("document.querySelector('#rows mark').textContent") == "Question 1"
    page.press("Enter")
    assert "Question 1:" in focused(page)
    page.press("Enter")
    assert page.evaluate("document.querySelector('#reader mark').textContent") == "Question 1"
    page.press("ArrowRight", "Escape", "/", "Escape")
    assert hits(page) == ""
    assert len(shown(page)) == 26
    assert page.evaluate("document.querySelectorAll('#rows mark').length") == 0


def test_search_takes_everything_literally_and_says_when_nothing_is_found(show: Any) -> None:
    messages = [ChatMessage.from_user("a.b (c) [d] \\e ^$ *"), ChatMessage.from_user("axb")]
    page = show(Report("Title", views=(view("view", messages, messages[1:]),)))
    for text, number in (("a.b", 1), ("(c) [d] \\e ^$ *", 1), ("[", 1), ("no such text", 0)):
        search(page, text)
        page.wait_for(f"document.getElementById('hits').textContent.startsWith('{number} hit')")
        assert page.evaluate("document.getElementById('nothing').hidden") is bool(number)


def test_a_hit_deep_in_a_message_is_shown(show: Any) -> None:
    messages = [ChatMessage.from_user("filler " * 60_000 + "needle" + " filler" * 60_000), ChatMessage.from_user("x")]
    page = show(Report("Title", views=(view("view", messages, messages[1:]),)))
    search(page, "needle")
    assert page.evaluate("document.querySelector('#rows mark').textContent") == "needle"
    page.press("Enter", "Enter")
    box = page.evaluate(
        "(({top, bottom}) => [top, bottom])(document.querySelector('#reader mark').getBoundingClientRect())"
    )
    assert 0 < box[0] < box[1] < 900


def test_messages_can_be_filtered_by_what_became_of_them(show: Any) -> None:
    page = show(Report("Title", views=(windowed(),)))
    assert page.evaluate("filters.innerText.replace(/\\s+/g, ' ').trim()").startswith("= 8 kept − 18 removed")
    page.click("#filters .removed")
    assert page.evaluate("document.querySelector('#filters .removed').getAttribute('aria-pressed')") == "false"
    assert page.evaluate("[...document.querySelectorAll('#rows .row')].every((row) => !row.matches('.removed'))")
    page.click("#filters .removed")
    assert len(shown(page)) == 26


def test_each_status_has_a_sign_a_word_and_a_colour(show: Any) -> None:
    page = show(everything())
    found = {}
    for number in range(2):
        page.evaluate(f"view.value = '{number}'; view.dispatchEvent(new Event('change'))")
        for status, *described in page.evaluate(
            "[...document.querySelectorAll('#rows .row')].map((row) => [row, row.querySelector('.sign')])"
            ".map(([row, sign]) => [row.className, sign.textContent, sign.nextSibling.textContent.trim(),"
            " getComputedStyle(sign).color])"
        ):
            found[status.removeprefix("row ")] = described
    assert {status: described[:2] for status, described in found.items()} == {
        "kept": ["=", "kept"],
        "removed": ["−", "removed"],
        "rewritten": ["~", "rewritten"],
        "added": ["+", "added"],
    }
    assert len({described[2] for described in found.values()}) == 4


def test_a_rewritten_message_is_read_beside_what_it_was(show: Any) -> None:
    page = show(Report("Title", views=(pruned(),)))
    page.click(".rewritten .before .block")
    headings = page.evaluate("[...document.querySelectorAll('#reader h3')].map((heading) => heading.innerText)")
    assert [heading.split()[0] for heading in headings] == ["after", "before"]
    texts = page.evaluate("[...document.querySelectorAll('#reader pre')].map((text) => text.textContent)")
    assert texts[0].startswith("[Result of `read_log` removed")
    assert texts[1].startswith("log 0: all checks passed")


def test_blocks_are_as_high_as_they_have_tokens_and_never_too_small_to_hit(show: Any) -> None:
    messages = [ChatMessage.from_user("word " * words) for words in (1, 500, 1000, 2000)]
    page = show(Report("Title", views=(view("view", messages, messages[1:]),)))
    heights = page.evaluate("[...document.querySelectorAll('.before .block')].map((block) => block.offsetHeight)")
    assert heights[0] >= 24
    assert heights == sorted(set(heights))
    assert heights[3] / heights[2] == pytest.approx(2, rel=0.1)


def test_on_a_phone_both_columns_are_one(show: Any) -> None:
    page = show(Report("Title", views=(pruned(),)), width=NARROW)
    visible = "[...document.querySelectorAll('{} .block')].filter((block) => block.checkVisibility()).length"
    assert page.evaluate(visible.format(".kept")) == page.evaluate("document.querySelectorAll('.row.kept').length")
    assert page.evaluate(visible.format(".rewritten")) == 2 * page.evaluate(
        "document.querySelectorAll('.row.rewritten').length"
    )
    page.click(".kept .block")
    page.press("Escape", "ArrowRight")
    assert "kept 1 system" in focused(page)


def test_a_table_on_a_phone_scrolls_and_does_not_break_its_words(show: Any) -> None:
    rows = (("a_strategy_of_many_letters", *range(5), "a reason that is told in a long sentence " * 3),)
    table = Table("Table", ("strategy", *"abcde", "reason"), rows, text_columns=(0, 6))
    page = show(Report("Title", sections=(table,)), width=NARROW)
    page.evaluate("window.range = document.createRange()")
    page.evaluate("range.selectNodeContents(document.querySelector('tbody th'))")
    assert page.evaluate("range.getClientRects().length") == 1
    assert page.evaluate("document.querySelector('.scroll').scrollWidth > innerWidth")
    assert page.evaluate("document.documentElement.scrollWidth") == NARROW


def test_another_view_can_be_picked(show: Any) -> None:
    page = show(everything())
    count = len(shown(page))
    search(page, "log 3")
    page.evaluate("view.value = '1'; view.dispatchEvent(new Event('change'))")
    assert hits(page).startswith("3 hits in 2")
    page.press("Escape")
    assert len(shown(page)) == 26 == count
    page.evaluate("view.value = '2'; view.dispatchEvent(new Event('change'))")
    assert page.evaluate("document.querySelectorAll('.after').length") == 0


def test_a_click_into_the_map_goes_to_the_message(show: Any) -> None:
    page = show(Report("Title", views=(windowed(),)))
    page.click("#map .track")
    number = int(focused(page).split()[2])
    assert 10 < number < 17
    top = page.evaluate("document.activeElement.getBoundingClientRect().top")
    assert 0 < top < 900


def test_the_plot_tells_the_sizes_at_the_pointer(show: Any) -> None:
    page = show(everything())
    page.click(".plot .area")
    assert page.evaluate("document.querySelector('.readout').textContent") == "step 5: with 300, without 100"


def test_two_thousand_messages(show: Any) -> None:
    messages = run_of(1000, words=12)
    page = show(Report("Title", views=(view("view", messages, [*messages[:2], *messages[-400:]]),)))
    assert len(shown(page)) == 2002
    page.click("#rows .block")
    page.press("Escape", "End")
    assert "kept 2002 tool" in focused(page)
    search(page, "log 777:")
    assert hits(page) == "2 hits in 2 messages"


@pytest.mark.parametrize("line_end", ["\n", " "], ids=["lines", "one line"])
def test_a_result_of_five_megabytes_is_shown_in_full(show: Any, line_end: str) -> None:
    text = f"🧭 3456789abcde{line_end}" * (5 * 2**20 // 16)
    messages = [ChatMessage.from_user("Dump it."), *step("dump", text)]
    page = show(Report("Title", views=(view("view", messages, messages[:1]),)))
    page.click(".removed:last-child .block")
    assert page.evaluate("document.querySelector('#reader pre').textContent") == text
    page.press("Escape")
    search(page, "ABC")
    assert hits(page) == "327,680 hits in 1 message"


def test_everything_that_can_be_used_has_a_name(show: Any) -> None:
    page = show(everything())
    page.click(".block")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    page.press("Escape")
    nodes += page.call("Accessibility.getFullAXTree")["nodes"]
    used = [
        (node["role"]["value"], node["name"]["value"])
        for node in nodes
        if not node["ignored"]
        and node["role"]["value"] in ("button", "searchbox", "combobox", "dialog", "grid", "region", "image")
    ]
    assert {role for role, _ in used} >= {"button", "searchbox", "combobox", "dialog", "grid", "region", "image"}
    assert [role for role, name in used if not name.strip()] == []
    names = [name for _, name in used]
    assert any(name.startswith("removed 2 user Question 0") and name.endswith("tokens") for name in names), json.dumps(
        names
    )


def test_a_report_without_a_conversation(show: Any) -> None:
    page = show(Report("Title", facts=(Fact("before", 1),)))
    page.press("/", "Tab", "Enter")
    assert page.evaluate("document.querySelector('#conversation')") is None
    assert page.evaluate("theme.textContent") == "Theme: light"
