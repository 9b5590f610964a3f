# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path

import pytest
from commands import TOOLS, error_of, json_of, run, write
from haystack.dataclasses import ChatMessage
from samples import chat, run_of, step
from servers import Reply, StrictOpenAIServer

from haystack_compaction.config import STRATEGIES


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return write(tmp_path / "audit.jsonl", run_of(12))


def rows(output: str) -> dict[str, list[str]]:
    """The cells of each strategy, the newest table last."""
    found = (line.split() for line in output.splitlines() if line.strip())
    return {cells[0]: cells[1:] for cells in found if cells[0].removesuffix("+model") in STRATEGIES}


def test_every_strategy_has_its_row_in_eighty_columns(audit: Path) -> None:
    result = run("compare", audit)
    assert result.exit_code == 0
    assert list(rows(result.stdout)) == [*STRATEGIES]
    title = " ".join(result.stdout.split()).partition(" tokens (30%)")[0]
    assert title.startswith(f"{audit}, compacted to ")
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_numbers_are_those_of_the_conversation(audit: Path) -> None:
    [result] = json_of("compare", audit, "--strategy", "sliding_window", "--budget", "50%")["results"]
    assert result["target_tokens"] == result["tokens_before"] // 2
    assert result["tokens_after"] <= result["target_tokens"]
    assert (result["messages"], result["steps"], result["user_messages"]) == (26, 12, 1)
    # System prompt, task and whole steps of two messages are kept, and there is one note.
    assert result["kept"] == 2 + 2 * result["steps_kept"]
    assert (result["user_messages_kept"], result["rewritten"], result["added"]) == (1, 0, 1)
    assert result["reason"] is None


def test_budgets_are_shares_or_sizes(audit: Path) -> None:
    data = json_of("compare", audit, "--strategy", "truncation", "--budget", "20%", "--budget", "1,000")
    assert [(result["budget"], result["target_tokens"]) for result in data["results"]][1] == ("1,000", 1000)
    assert data["results"][0]["target_tokens"] == data["results"][0]["tokens_before"] // 5


def test_several_conversations_are_added_up(tmp_path: Path) -> None:
    path = write(tmp_path / "all.jsonl", run_of(6), chat(8), run_of(12))
    data = json_of("compare", path, "--strategy", "sliding_window")
    assert [result["conversation"] for result in data["results"]] == [f"{path}:{row}" for row in (1, 2, 3)]
    [total] = data["totals"]
    assert total["conversations"] == 3
    for name in ("tokens_before", "tokens_after", "messages", "kept", "reached", "identifiers_kept", "seconds"):
        assert total[name] == pytest.approx(sum(result[name] for result in data["results"]))
    output = run("compare", path, "--strategy", "sliding_window").stdout
    assert output.count("compacted to") == 1
    assert "all 3 conversations" in output
    assert run("compare", path, "--strategy", "sliding_window", "--each").stdout.count("compacted to") == 4
    one = json_of("compare", path, "--row", 2, "--strategy", "sliding_window")
    assert [result["conversation"] for result in one["results"]] == [f"{path}:2"]


def test_several_files_are_compared_together(audit: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.jsonl", chat(8))
    data = json_of("compare", audit, other, "--strategy", "sliding_window")
    assert [result["conversation"] for result in data["results"]] == [str(audit), str(other)]


def test_schemas_of_tools_take_room(tmp_path: Path) -> None:
    bare, with_tools = write(tmp_path / "a", run_of(6)), write(tmp_path / "b", run_of(6), tools=TOOLS)
    sizes = [
        json_of("compare", path, "--strategy", "sliding_window")["results"][0]["tokens_before"]
        for path in (bare, with_tools)
    ]
    assert sizes[0] < sizes[1]
    schemas = tmp_path / "tools.json"
    schemas.write_text(json.dumps({"tools": TOOLS}))
    data = json_of("compare", bare, "--tools", schemas, "--strategy", "sliding_window")
    assert data["results"][0]["tokens_before"] == sizes[1]


def test_a_broken_history_is_repaired_before_and_blamed_on_nobody(tmp_path: Path) -> None:
    messages = run_of(6)
    del messages[3]
    path = write(tmp_path / "broken.jsonl", messages)
    output = run("compare", path, "--strategy", "truncation", "--budget", "90%")
    assert "Repaired before" in output.stdout
    assert "repaired" not in output.stderr
    data = json_of("compare", path, "--strategy", "sliding_window", "--budget", "90%")
    assert data["results"][0]["rewritten"] == 0


def test_with_a_model_strategies_take_part_with_and_without_it(audit: Path) -> None:
    summary = "## Work done\n- All logs up to here were read, and all checks passed in each of them."
    with StrictOpenAIServer(lambda index, messages: Reply(summary)) as server:
        arguments = ["compare", audit, "--strategy", "summarize_older", "--strategy", "sliding_window", "--model", "m"]
        arguments += ["--api-base-url", server.base_url]
        data = json_of(*arguments, OPENAI_API_KEY="none")
        output = run(*arguments, OPENAI_API_KEY="none").stdout
    results = {result["strategy"]: result for result in data["results"]}
    assert list(results) == ["summarize_older", "summarize_older+model", "sliding_window"]
    assert results["summarize_older"]["llm_calls"] == 0
    with_model = results["summarize_older+model"]
    assert with_model["llm_calls"] >= 1
    assert with_model["llm_usage"]["prompt_tokens"] > 0
    # No list of prices has a model of that name.
    assert with_model["cost"] is None
    assert rows(output)["summarize_older+model"][-2:] == [str(with_model["llm_calls"]), "-"]
    assert "+model: with m" in output
    assert max(map(len, output.splitlines())) <= 80


def test_what_a_model_fails_with_is_said_once(audit: Path) -> None:
    with StrictOpenAIServer([], context_window=10) as server:
        result = run(
            "compare", audit, "--strategy", "summarize_older", "--budget", "30%", "--budget", "40%",
            "--model", "m", "--api-base-url", server.base_url, OPENAI_API_KEY="none",
        )  # fmt: skip
    assert result.exit_code == 0
    warnings = result.stderr.splitlines()
    assert warnings
    assert all(line.startswith("Warning: ") for line in warnings)
    assert len(set(warnings)) == len(warnings)
    assert "maximum context length" in result.stderr
    assert "Traceback" not in result.output


def test_a_missed_target_is_marked(tmp_path: Path) -> None:
    path = write(tmp_path / "chat.jsonl", [ChatMessage.from_user("Long. " * 500)])
    assert rows(run("compare", path, "--strategy", "sliding_window").stdout)["sliding_window"][1] == "100%!"


def test_identifiers_that_survive(tmp_path: Path) -> None:
    messages = [ChatMessage.from_user("Look at /srv/one.log and /srv/two.log.")]
    messages += step("read", "Nothing in 4711-A. " * 100) + step("read", "Nothing. " * 100)
    path = write(tmp_path / "run.jsonl", messages)
    [result] = json_of("compare", path, "--strategy", "sliding_window", "--budget", "60%")["results"]
    # 4711-A goes with the first step; its call names the beginning of the result, and nothing else.
    assert (result["identifiers"], result["identifiers_kept"]) == (3, 2)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--strategy", "magic"], "Unknown strategy 'magic'"),
        (["--budget", "0"], "a budget is a number of tokens"),
        (["--budget", "100%"], "a budget is a number of tokens"),
        (["--budget", "much"], "a budget is a number of tokens"),
        (["--row", 7], "has no row 7"),
        (["--model", "m"], "OPENAI_API_KEY"),
        (["--html", "/no/such/folder/report.html"], "its folder does not exist"),
        (["--tools", "/no/such/file"], "No such file"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[object], reason: str, audit: Path) -> None:
    assert reason in error_of("compare", audit, *arguments, OPENAI_API_KEY=None)


def test_a_bad_row_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "all.jsonl", run_of(2), run_of(2))
    path.write_text(path.read_text() + '{"messages": [{"role": "alien", "content": "x"}]}\n')
    assert "row 3: message 1: unknown role" in error_of("compare", path)


def test_a_report_for_the_browser(audit: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    result = run("compare", audit, "--html", report)
    assert result.exit_code == 0
    assert "Written to" in result.stderr
    page = report.read_text()
    assert all(strategy in page for strategy in STRATEGIES)
    assert "--force" in error_of("compare", audit, "--html", report)
    assert run("compare", audit, "--html", report, "--force").exit_code == 0


def test_a_report_of_several_conversations_has_a_table_for_each(tmp_path: Path) -> None:
    path = write(tmp_path / "all.jsonl", run_of(6), chat(8))
    report = tmp_path / "report.html"
    run("compare", path, "--html", report, "--strategy", "sliding_window")
    page = report.read_text()
    assert all(f"{path}:{row}, compacted to" in page for row in (1, 2))


def test_the_cost_comes_from_the_list_of_prices(audit: Path) -> None:
    pytest.importorskip("genai_prices")
    with StrictOpenAIServer(lambda index, messages: Reply("- All checks passed in all of the logs.")) as server:
        data = json_of(
            "compare", audit, "--strategy", "summarize_older", "--model", "gpt-4o-mini",
            OPENAI_API_KEY="none", OPENAI_BASE_URL=server.base_url,
        )  # fmt: skip
    result = data["results"][-1]
    usage = result["llm_usage"]
    # 0.15 and 0.6 US dollars for a million tokens.
    assert result["cost"] == pytest.approx((usage["prompt_tokens"] * 0.15 + usage["completion_tokens"] * 0.6) / 1e6)
