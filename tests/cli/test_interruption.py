# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Ctrl-C, as a real program gets it: in the middle of a call of a model that does not answer."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import write
from samples import run_of
from servers import Reply, StrictOpenAIServer

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has another Ctrl-C")


class SilentServer(StrictOpenAIServer):
    """Does not answer before it is closed."""

    def __init__(self) -> None:
        self.asked, self.released = threading.Event(), threading.Event()
        super().__init__(self._wait)

    def _wait(self, index: int, messages: list[Any]) -> Reply:
        self.asked.set()
        self.released.wait(60)
        return Reply("Too late.")


@pytest.fixture
def server() -> Iterator[SilentServer]:
    with SilentServer() as server:
        yield server
        server.released.set()


def interrupted(server: SilentServer, *arguments: object) -> "subprocess.CompletedProcess[str]":
    """Start a command, and send it the signal once it waits for the model."""
    command = [sys.executable, "-m", "haystack_compaction.cli", *map(str, arguments)]
    command += ["--model", "m", "--api-base-url", server.base_url]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "OPENAI_API_KEY": "none", "COLUMNS": "80"},
    )
    try:
        assert server.asked.wait(60), process.communicate(timeout=5)
        # Python misses a signal that comes in the very moment in which it begins to wait for a lock.
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    finally:
        process.kill()
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def test_compare_shows_and_writes_what_is_finished(server: SilentServer, tmp_path: Path) -> None:
    path, report = write(tmp_path / "audit.jsonl", run_of(12)), tmp_path / "report.html"
    strategies = ["--strategy", "sliding_window", "--strategy", "summarize_older", "--strategy", "truncation"]
    done = interrupted(server, "compare", path, *strategies, "--json", "--html", report)
    assert done.returncode == 130, done.stderr
    data = json.loads(done.stdout)
    assert not data["complete"]
    assert [result["strategy"] for result in data["results"]] == ["sliding_window", "summarize_older"]
    assert "Stopped after 2 of 4 compactions." in done.stderr
    assert "Traceback" not in done.stderr
    assert "sliding_window" in report.read_text()


def test_replay_shows_the_run_as_far_as_it_went(server: SilentServer, tmp_path: Path) -> None:
    path = write(tmp_path / "audit.jsonl", run_of(40))
    done = interrupted(server, "replay", path, "--context-window", 2000, "--strategy", "summarize_older")
    assert done.returncode == 130, done.stderr
    assert "of 40 requests." in done.stdout
    assert "input, in tokens at full price" in done.stdout
    assert "Traceback" not in done.stderr
