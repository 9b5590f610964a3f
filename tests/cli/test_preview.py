# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import commands
import pytest
from haystack.dataclasses import ChatMessage
from samples import chat as chat_of
from typer.testing import CliRunner

from haystack_compaction.cli.app import app

CHAT: list[dict[str, Any]] = [{"role": "system", "content": "Answer in one sentence."}]
for day in range(1, 31):
    CHAT += [
        {"role": "user", "content": f"What happened on day {day}?", "name": "ann"},
        {"role": "assistant", "content": "Nothing worth a long story, but here is one anyway. " * 3},
    ]
CHAT.append({"role": "user", "content": "And today?"})


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps({"model": "m", "messages": CHAT}, indent=2))
    return path


def run(*arguments: object, width: int | None = None) -> Any:
    env = {"COLUMNS": str(width)} if width else {}
    return CliRunner().invoke(app, ["preview", *map(str, arguments)], env=env)


def rows(output: str) -> list[list[str]]:
    """The rows of the table, each as number (or "" for an added message), sign and the rest."""
    lines = [line for line in output.splitlines() if line.strip()]
    start = next(index for index, line in enumerate(lines) if line.split()[:2] == ["#", "role"])
    end = next(index for index, line in enumerate(lines) if line.startswith("messages"))
    split = [line.split(maxsplit=2) for line in lines[start + 1 : end]]
    return [row if row[0].isdigit() else ["", row[0], " ".join(row[1:])] for row in split]


def error_of(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.output
    return str(result.stderr)


def test_every_message_is_shown_with_what_became_of_it(chat: Path, tmp_path: Path) -> None:
    result = run(chat, "--target-tokens", 400, "--all", "--output", tmp_path / "out.json")
    assert result.exit_code == 0
    table = rows(result.stdout)
    after = json.loads((tmp_path / "out.json").read_text())["messages"]
    signs = "".join(row[1] for row in table)
    assert signs.startswith("=+-")
    assert signs.strip("=+") == "-" * signs.count("-")
    assert [row[0] for row in table if row[0]] == [str(number) for number in range(1, len(CHAT) + 1)]
    assert signs.count("=") + signs.count("+") == len(after)
    assert f"= {signs.count('=')} kept  - {signs.count('-')} removed  ~ 0 rewritten  + 1 added" in result.stdout
    assert "400 tokens, reached" in result.stdout


def test_the_output_holds_the_kept_messages_as_they_were(chat: Path, tmp_path: Path) -> None:
    run(chat, "--target-tokens", 400, "--output", tmp_path / "out.json")
    after = json.loads((tmp_path / "out.json").read_text())
    assert after["model"] == "m"
    note = after["messages"].pop(1)
    assert set(note) == {"role", "content"}
    assert after["messages"] == [CHAT[0], *CHAT[len(CHAT) - len(after["messages"]) + 1 :]]


def test_a_file_written_by_preview_can_be_previewed(chat: Path, tmp_path: Path) -> None:
    run(chat, "--output", tmp_path / "out.json")
    assert run(tmp_path / "out.json", "--target-tokens", 200).exit_code == 0


def test_long_runs_are_folded(chat: Path) -> None:
    result = run(chat, "--target-tokens", 200)
    folded = [row for row in rows(result.stdout) if "messages removed" in row[2]]
    assert len(folded) == 1
    assert len(rows(result.stdout)) < 20


def test_without_a_size_the_target_is_half_of_the_present_one(chat: Path) -> None:
    output = run(chat).stdout
    assert "No size was given" in output
    assert "reached" in output


def test_a_conversation_below_the_trigger_is_left_alone(chat: Path, tmp_path: Path) -> None:
    result = run(chat, "--context-window", 100_000, "--output", tmp_path / "out.json")
    assert result.exit_code == 0
    assert "nothing would happen" in result.stdout
    assert "below the trigger of 70000" in result.stdout
    assert json.loads((tmp_path / "out.json").read_text())["messages"] == CHAT


def test_the_window_decides_trigger_and_target(chat: Path) -> None:
    result = run(chat, "--context-window", 1000, "--compact-at", 0.5, "--compact-to", 0.3)
    assert "300 tokens, reached" in result.stdout
    assert "nothing to do" in run(chat, "--target-tokens", 100_000).stdout


def test_a_target_that_can_not_be_reached_is_reported(chat: Path) -> None:
    assert "not reached" in run(chat, "--target-tokens", 5).stdout


def test_options_of_the_compactor(chat: Path, tmp_path: Path) -> None:
    run(chat, "--target-tokens", 5, "--preserve-recent-turns", 2, "--drop-system-prompt", "--output", tmp_path / "o")
    after = json.loads((tmp_path / "o").read_text())["messages"]
    assert after[1:] == CHAT[-5:]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--strategy", "magic"], "Unknown strategy 'magic'. Known strategies: sliding_window"),
        (["--target-tokens", 5, "--context-window", 5], "either --target-tokens or --context-window"),
        (["--compact-at", 0.5], "give --context-window too"),
        (["--context-window", 100, "--compact-at", 0.3], "0 < compact_to < compact_at <= 1"),
        (["--context-window", 1], "`target_tokens` must be at least 1"),
        (["--row", 2], "no row 2"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: list[object], reason: str, chat: Path) -> None:
    assert reason in error_of(chat, *options)


def test_a_bad_file_gets_one_line_and_exit_code_2(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps([*CHAT[:6], {"role": "alien\n", "content": "x"}]))
    assert f"{path}: message 7: unknown role" in error_of(path)
    assert "No such file" in error_of(tmp_path / "none.json")


def test_the_input_is_not_overwritten_without_force(chat: Path) -> None:
    assert "--force" in error_of(chat, "--output", chat)
    assert json.loads(chat.read_text())["messages"] == CHAT
    assert run(chat, "--target-tokens", 400, "--output", chat, "--force").exit_code == 0
    assert len(json.loads(chat.read_text())["messages"]) < len(CHAT)


def test_contents_do_nothing_to_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    nasty = "[red]not red[/] [/] \x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J a\u202eb \ud800 \x00 two\nlines"
    path.write_text(json.dumps([{"role": "user", "content": nasty}, {"role": "user", "content": "[/b]"}]))
    result = run(path, "--target-tokens", 1000, width=200)
    assert result.exit_code == 0
    assert "[red]not red[/] [/] \N{REPLACEMENT CHARACTER}[31mred" in result.stdout
    assert "two lines" in result.stdout
    assert "[/b]" in result.stdout
    assert not set(result.stdout) & set("\x1b\x07\x9b\u202e\ud800\x00")


def test_tool_calls_and_results_show_their_tool(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    call = {"id": "1", "type": "function", "function": {"name": "zoom", "arguments": '{"by": 2}'}}
    path.write_text(
        json.dumps(
            [
                {"role": "user", "content": "Look closer."},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "1", "content": "sharp"},
            ]
        )
    )
    output = run(path, "--target-tokens", 1000).stdout
    assert "zoom(by=2)" in output
    assert "zoom: sharp" in output


def test_narrow_terminals(chat: Path) -> None:
    output = run(chat, width=50).stdout
    assert max(map(len, output.splitlines())) <= 50
    assert rows(output)[0][:2] == ["1", "="]


def test_a_repaired_message_is_shown_as_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    messages = [ChatMessage.from_user("Long story. " * 50), ChatMessage.from_assistant("Yes. " * 50)]
    messages += [ChatMessage.from_user("So?"), ChatMessage.from_assistant("Hm?")]
    messages += [ChatMessage.from_user(" "), ChatMessage.from_assistant("Yes?"), ChatMessage.from_user("Go on.")]
    path.write_text(json.dumps([message.to_dict() for message in messages]))
    table = rows(run(path, "--target-tokens", 80, "--preserve-recent-turns", 2).stdout)
    assert [row[1] for row in table] == ["+", "-", "-", "=", "=", "~", "=", "="]
    assert table[5][0] == "5"
    assert " > " in table[5][2]


def test_the_note_is_shown_in_full_where_it_is_wanted(tmp_path: Path) -> None:
    words = ["anchor", "buoy", "canvas", "deck", "engine", "fender", "galley", "hatch", "island", "jetty", "keel"]
    rules = [ChatMessage.from_user(f"Never leave the {word} to anybody but {word[::-1].title()}.") for word in words]
    path = commands.write(tmp_path / "rules.jsonl", [*rules, *chat_of(20)])
    arguments = [path, "--target-tokens", 600, "--strategy", "summarize_older"]
    run(*arguments, "--output", tmp_path / "out.json")
    note = json.loads((tmp_path / "out.json").read_text())["messages"][0]["content"][0]["text"]
    lines = note.splitlines()
    assert len(lines) > 12
    output = run(*arguments, width=400).stdout
    assert f"... {len(lines) - 12} more lines; --notes shows them" in output
    shown = [line.strip() for line in run(*arguments, "--notes", width=400).stdout.splitlines()]
    assert shown[-len(lines) :] == lines


def test_the_standard_input(chat: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["preview", "-", "--output", str(tmp_path / "out.json")], input=chat.read_text())
    assert result.exit_code == 0
    assert json.loads((tmp_path / "out.json").read_text())["model"] == "m"


def test_json(chat: Path) -> None:
    data = json.loads(run(chat, "--target-tokens", 400, "--json").stdout)
    assert data["report"]["target_tokens"] == 400
    fates = [message["fate"] for message in data["messages"]]
    assert fates.count("removed") == data["report"]["removed_messages"] > 0
    assert fates.count("added") == 1


def test_schemas_of_tools_take_room(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    sizes = []
    for tools in ([], commands.TOOLS):
        path.write_text(json.dumps({"messages": CHAT, "tools": tools}))
        sizes.append(json.loads(run(path, "--target-tokens", 1000, "--json").stdout)["report"]["tokens_before"])
    assert sizes[0] < sizes[1]
    path.write_text(json.dumps({"messages": CHAT, "tools": [{}]}))
    assert "the `tools` of the transcript: tool 1: has no `name`" in error_of(path)


def test_a_report_for_the_browser(chat: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert run(chat, "--target-tokens", 400, "--html", report).exit_code == 0
    page = report.read_text()
    assert "What a compaction would do" in page
    assert "What happened on day 30?" in page
    assert "--force" in error_of(chat, "--html", report)


def test_the_real_program(chat: Path, tmp_path: Path) -> None:
    arguments = ["preview", str(chat), "--target-tokens", "400"]
    done = subprocess.run(
        [sys.executable, "-m", "haystack_compaction.cli", *arguments], capture_output=True, text=True, encoding="utf-8"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert rows(done.stdout)[0][:2] == ["1", "="]
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) == 120


def test_a_closed_pipe_is_no_traceback(chat: Path) -> None:
    command = f"{sys.executable} -m haystack_compaction.cli preview {chat} --all | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.stderr == ""
