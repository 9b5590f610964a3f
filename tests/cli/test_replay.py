# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

from pathlib import Path

import pytest
from commands import TOOLS, error_of, json_of, run, write
from haystack.dataclasses import ChatMessage
from samples import run_of

WINDOW = 2_000


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return write(tmp_path / "audit.jsonl", run_of(40))


def test_the_run_is_plotted_in_eighty_columns(audit: Path) -> None:
    result = run("replay", audit, "--context-window", WINDOW)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    data = json_of("replay", audit, "--context-window", WINDOW)
    compactions = [request for request in data["requests"] if request["freed"]]
    assert len(compactions) >= 3
    marks = next(line for line in lines if line.strip() and not line.strip(" ^"))
    assert marks.count("^") == len(compactions)
    for name in ("trigger 1,400", "target 800"):
        assert any(line.strip().startswith(name) for line in lines)
    for request in compactions:
        row = f"{request['before']:,} {request['tokens']:,} {request['freed']:,}"
        assert any(row in " ".join(line.split()) for line in lines)


def test_trigger_target_and_strategy(audit: Path) -> None:
    data = json_of(
        "replay",
        audit,
        "--context-window",
        WINDOW,
        "--strategy",
        "truncation",
        "--compact-at",
        0.5,
        "--compact-to",
        0.2,
    )
    assert (data["strategy"], data["trigger"], data["target"], data["context_window"]) == (
        "truncation",
        1000,
        400,
        2000,
    )
    assert data["complete"]
    assert max(request["tokens"] for request in data["requests"]) < WINDOW
    assert data["first_refused_without_compaction"] == 1 + next(
        index for index, request in enumerate(data["requests"]) if request["uncompacted"] > WINDOW
    )


def test_nothing_to_compact(audit: Path) -> None:
    output = run("replay", audit, "--context-window", 100_000).stdout
    assert "Nothing would be compacted" in output
    assert "^" not in output
    assert "first that does not fit" not in output


def test_the_bill_in_tokens_and_in_money(audit: Path) -> None:
    data = json_of("replay", audit, "--context-window", WINDOW, "--price", 2.5)
    with_compaction, without = data["bills"]["with_compaction"], data["bills"]["without_compaction"]
    assert with_compaction["tokens"]["without_cache"] == sum(request["tokens"] for request in data["requests"])
    assert without["cost"]["with_cache"] == pytest.approx(without["tokens"]["with_cache"] * 2.5 / 1e6)
    output = run("replay", audit, "--context-window", WINDOW, "--price", 2.5).stdout
    assert "input, at 2.5 for a million tokens" in output
    assert f"{without['cost']['with_cache']:.4f}" in output
    assert f"{with_compaction['tokens']['with_cache']:,.0f}" in run("replay", audit, "--context-window", WINDOW).stdout


def test_prices_of_the_cache(audit: Path) -> None:
    arguments = ["replay", audit, "--context-window", WINDOW]
    free = json_of(*arguments, "--cached-price", 0, "--write-price", 0)
    assert free["bills"]["with_compaction"]["tokens"]["with_cache"] == 0
    even = json_of(*arguments, "--cached-price", 1)["bills"]["with_compaction"]["tokens"]
    assert even["with_cache"] == even["without_cache"]


def test_schemas_of_tools_are_a_part_of_every_request(tmp_path: Path) -> None:
    bare = write(tmp_path / "bare", run_of(4))
    with_tools = write(tmp_path / "with_tools", run_of(4), tools=TOOLS)
    first, second = (json_of("replay", path, "--context-window", WINDOW)["requests"] for path in (bare, with_tools))
    more = {after["tokens"] - before["tokens"] for before, after in zip(first, second, strict=True)}
    assert len(more) == 1
    assert more.pop() > 20


def test_what_can_not_fit_is_the_end_and_exit_code_1(tmp_path: Path) -> None:
    path = write(tmp_path / "run", [ChatMessage.from_user("Long. " * 3000, meta={"pinned": True}), *run_of(2)[2:]])
    result = run("replay", path, "--context-window", 1000)
    assert result.exit_code == 1
    assert "The run would end at request 1: The conversation takes" in " ".join(result.stdout.split())
    assert "Traceback" not in result.output
    assert run("replay", path, "--context-window", 1000, "--html", tmp_path / "report.html").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--context-window", 0], "`context_window` must be at least 1"),
        (["--context-window", 9, "--compact-at", 0.1], "0 < compact_to < compact_at <= 1"),
        (["--context-window", 9, "--reserve-tokens", 9], "`reserve_tokens` must be"),
        (["--context-window", 9, "--strategy", "magic"], "Unknown strategy 'magic'"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[object], reason: str, audit: Path) -> None:
    assert reason in error_of("replay", audit, *arguments)


def test_a_transcript_without_a_reply_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "chat", [ChatMessage.from_user("Hello?")])
    assert "holds no reply of a model" in error_of("replay", path, "--context-window", 10)


def test_a_report_for_the_browser(audit: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert run("replay", audit, "--context-window", WINDOW, "--html", report).exit_code == 0
    page = report.read_text()
    assert all(words in page for words in ("<svg", "with nothing compacted", "trigger", "The bill", "at the end"))
