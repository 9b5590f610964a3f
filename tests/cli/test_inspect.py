# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path

import pytest
from commands import TOOLS, error_of, json_of, run, write
from haystack.dataclasses import ChatMessage
from samples import chat, run_of, step

from haystack_compaction.config import STRATEGIES
from haystack_compaction.tokens.ledger import TokenLedger


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return write(tmp_path / "audit.jsonl", run_of(12), tools=TOOLS)


def test_what_fills_the_window_is_shown_in_eighty_columns(audit: Path) -> None:
    result = run("inspect", audit, "--context-window", 4000)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "of a window of 4,000" in " ".join(lines)
    bar = next(line for line in lines if line.endswith("\u2591"))
    assert len(bar) == 80
    # Parts of less than half a cell, such as the system prompt, are not in it.
    assert "".join(dict.fromkeys(bar)) == "TCO\u2591"
    assert any(line.split()[:3] == ["O", "tool", "results"] for line in lines)
    assert "compaction at 2,800 tokens starts in" in result.stdout
    assert "Nothing in it is what providers would reject." in result.stdout


def test_the_parts_are_those_of_the_whole_request(audit: Path) -> None:
    data = json_of("inspect", audit)
    assert data["tokens"] == sum(part["tokens"] for part in data["parts"])
    assert data["tokens"] == data["freed"][0]["tokens_before"]
    assert data["tokens"] > TokenLedger().count(run_of(12))
    assert (data["context_window"], data["trigger"]) == (None, None)


def test_the_ten_largest_messages(tmp_path: Path) -> None:
    messages = [ChatMessage.from_user("word " * number) for number in range(1, 15)]
    data = json_of("inspect", write(tmp_path / "chat", messages))
    assert [large["message"] for large in data["largest"]] == [*range(14, 4, -1)]


def test_every_strategy_says_what_it_would_free(audit: Path) -> None:
    data = json_of("inspect", audit, "--target-tokens", 600)
    freed = {result["strategy"]: result for result in data["freed"]}
    assert [*freed] == [*STRATEGIES]
    assert {result["target_tokens"] for result in freed.values()} == {600}
    assert freed["sliding_window"]["tokens_after"] <= 600
    # Its results are too small to be worth a placeholder.
    assert freed["tool_result_pruning"]["tokens_after"] == data["tokens"]
    assert "as far as it goes" in run("inspect", audit, "--target-tokens", 600).stdout


def test_the_target_is_the_hooks_unless_that_is_more_than_half(audit: Path) -> None:
    half = json_of("inspect", audit)["tokens"] // 2
    assert json_of("inspect", audit)["freed"][0]["target_tokens"] == half
    assert json_of("inspect", audit, "--context-window", 1500)["freed"][0]["target_tokens"] == 600
    assert json_of("inspect", audit, "--context-window", 100_000)["freed"][0]["target_tokens"] == half


def test_what_is_broken_and_what_is_repeated(tmp_path: Path) -> None:
    messages = [ChatMessage.from_user("Go."), *3 * step("read", "the same again " * 20), *run_of(2)]
    del messages[-1]
    messages.append(ChatMessage.from_user("And?"))
    path = write(tmp_path / "run", messages)
    output = run("inspect", path).stdout
    assert f"message {len(messages) - 1}: a call of read_log without a result" in output
    assert any(line.split()[:1] == ["3"] and " read({" in line for line in output.splitlines())
    data = json_of("inspect", path)
    assert data["faults"] == [{"message": len(messages) - 1, "what": "a call of read_log without a result"}]
    assert data["repetitions"][0]["messages"] == [2, 4, 6]
    assert data["messages"] == len(messages)


def test_a_conversation_larger_than_its_window(audit: Path) -> None:
    output = run("inspect", audit, "--context-window", 1000).stdout
    assert "tokens do not fit; compaction at 700 tokens is due." in output


def test_contents_do_nothing_to_the_terminal(tmp_path: Path) -> None:
    call = step("[red]\x1b[2J", "\x1b]0;title\x07 [/] \u202e" * 5)
    result = run("inspect", write(tmp_path / "chat", [ChatMessage.from_user("[/b]\ud800"), *call, *call]))
    assert result.exit_code == 0, result.output
    assert "[/b]" in result.stdout
    assert not set(result.stdout) & set("\x1b\x07\x9b\u202e\ud800")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--context-window", "0"], "`context_window` must be at least 1"),
        (["--context-window", "-5"], "`context_window` must be at least 1"),
        (["--row", 2], "no row 2"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[object], reason: str, audit: Path) -> None:
    assert reason in error_of("inspect", audit, *arguments)


def test_a_models_name_stands_for_its_window(audit: Path) -> None:
    pytest.importorskip("genai_prices")
    assert json_of("inspect", audit, "--context-window", "gpt-4o")["context_window"] == 128_000
    assert "No context window is known" in error_of("inspect", audit, "--context-window", "no-such-model")


def test_one_conversation_at_a_time(tmp_path: Path) -> None:
    path = write(tmp_path / "all", chat(1), chat(3))
    assert "pick one with --row" in error_of("inspect", path)
    assert json_of("inspect", path, "--row", 2)["messages"] == 8


def test_the_standard_input(audit: Path) -> None:
    result = run("inspect", "-", "--json", stdin=audit.read_text())
    assert json.loads(result.stdout)["name"] == "standard input"
    assert "standard input: is empty" in run("inspect", "-", stdin="").stderr


def test_a_report_for_the_browser(audit: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert run("inspect", audit, "--context-window", 4000, "--html", report).exit_code == 0
    page = report.read_text()
    assert all(words in page for words in ("What fills the context window", "tool results", "read_log", *STRATEGIES))
