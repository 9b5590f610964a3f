# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import re
from typing import Any

import pytest
from haystack.dataclasses import ChatMessage
from servers import Call, Reply, StrictOpenAIServer
from typer.testing import CliRunner

from haystack_compaction.cli.app import app
from haystack_compaction.cli.incident import Incident, investigation
from haystack_compaction.cli.scripted import ContextLengthError, ScriptedChatGenerator


def run(*arguments: object, **env: str | None) -> Any:
    return CliRunner().invoke(app, ["demo", *map(str, arguments)], env=env)


def sizes(output: str) -> list[int]:
    """The size of each request, from the rows of the table that begin with the number of a step."""
    found = re.findall(r"^ +\d+  .*  ([\d,]+) *$", output, flags=re.MULTILINE)
    return [int(size.replace(",", "")) for size in found]


def test_the_run_with_the_hook_finishes_and_the_one_without_dies() -> None:
    result = run()
    assert result.exit_code == 0
    with_hook, without_hook = result.stdout.split("Without compaction")
    assert 30 <= len(sizes(with_hook)) <= 40
    assert max(sizes(with_hook)) < 8000
    assert with_hook.count("gone:") == with_hook.count("stays:") >= 3
    assert "still in the context" in with_hook
    assert "Incident SHOP-1207" in with_hook.split("the Agent's report")[1]
    assert "deployment 4471" in with_hook.split("the Agent's report")[1]
    died_at = re.search(r"died at step (\d+)", without_hook)
    assert died_at is not None
    assert 5 < int(died_at.group(1)) < 30
    assert sizes(without_hook)[0] > 8000
    assert "maximum context length is 8000 tokens" in without_hook


def test_a_smaller_window_means_more_compactions() -> None:
    small, large = run("--window", 4000).stdout, run("--window", 16_000).stdout
    assert small.count("gone:") > large.count("gone:")
    assert "Incident SHOP-1207" in small


def test_a_window_that_holds_everything() -> None:
    result = run("--window", 100_000)
    assert result.exit_code == 0
    assert "finished too" in result.stdout


def test_a_real_model_over_http() -> None:
    def answer(index: int, messages: list[dict[str, Any]]) -> Reply:
        if index == 25:
            return Reply("The pool was too small.\n\nIncident SHOP-1207")
        return Reply("Next.", [Call("read_file", {"path": "logs/checkout.log", "page": index % 3 + 1})])

    with StrictOpenAIServer(answer, context_window=8000, count=lambda text: len(text) // 3 + 1) as server:
        result = run("--model", "scripted", "--api-base-url", server.base_url, OPENAI_API_KEY="none")
    assert result.exit_code == 0, result.output
    assert server.errors == []
    assert len(server.requests) == 26
    assert result.stdout.count("gone:") >= 2
    assert "The pool was too small." in result.stdout
    assert "would have been the first one over 8,000 tokens" in result.stdout


def test_an_error_of_the_api_is_one_line() -> None:
    with StrictOpenAIServer([Reply("never said")], context_window=10) as server:
        result = run("--model", "scripted", "--api-base-url", server.base_url, OPENAI_API_KEY="none")
    assert result.exit_code == 1
    assert "ended at step 1" in result.stdout
    assert "maximum context length" in " ".join(result.stdout.split())
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["--model", "gpt"], "OPENAI_API_KEY"), (["--api-base-url", "http://127.0.0.1:1"], "needs --model")],
)
def test_what_is_missing_is_said_in_one_line(arguments: list[str], reason: str) -> None:
    result = run(*arguments, OPENAI_API_KEY=None)
    assert result.exit_code == 2
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_scripted_report_needs_the_task_and_the_notes() -> None:
    assert "no longer see" in str(investigation(1000, [ChatMessage.from_user("Hello")]).text)


async def test_the_scripted_generator_refuses_what_is_larger_than_its_window() -> None:
    generator = ScriptedChatGenerator(lambda call, messages: ChatMessage.from_assistant(f"{call}"), context_window=50)
    assert generator.run([ChatMessage.from_user("Hello")])["replies"][0].text == "0"
    reply = (await generator.run_async([ChatMessage.from_user("Hello")]))["replies"][0]
    assert reply.text == "1"
    assert reply.meta["usage"]["prompt_tokens"] < 50
    with pytest.raises(ContextLengthError, match="50 tokens"):
        generator.run([ChatMessage.from_user("Hello " * 200)])


def test_the_tools_answer_mistakes_instead_of_failing() -> None:
    incident = Incident()
    assert incident.list_files("nowhere") == "No such folder."
    assert incident.read_file("nothing.log") == "No such file: nothing.log"
    assert incident.read_file("logs/checkout.log", 99) == "logs/checkout.log, page 99 of 3"
    assert incident.read_file("logs/checkout.log", -1) == "logs/checkout.log, page -1 of 3"
    assert incident.search("(").startswith("Not a regular expression")
    assert incident.search("zebra") == "No match."
    assert incident.search("INFO").endswith("more")
