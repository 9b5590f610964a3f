# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Running commands, and the files that they need."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from haystack.dataclasses import ChatMessage
from typer.testing import CliRunner

from haystack_compaction.cli.app import app

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_log",
            "description": "Read one of the logs of a service, page by page.",
            "parameters": {"type": "object", "properties": {"of": {"type": "string"}}, "required": ["of"]},
        },
    }
]


def run(*arguments: object, stdin: str | None = None, **env: str | None) -> Any:
    """Run a command as in a terminal of 80 columns."""
    return CliRunner().invoke(app, [*map(str, arguments)], input=stdin, env={"COLUMNS": "80", **env})


def error_of(*arguments: object, **env: str | None) -> str:
    """The one line that a command ends with."""
    result = run(*arguments, **env)
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    assert "Traceback" not in result.output
    return str(result.stderr)


def json_of(*arguments: object, **env: str | None) -> Any:
    """What a command prints with --json."""
    result = run(*arguments, "--json", **env)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def write(path: Path, *conversations: Sequence[ChatMessage], tools: Any = None) -> Path:
    """A file of conversations, each on a line of its own."""
    rows = [{"messages": [message.to_dict() for message in messages], "tools": tools} for messages in conversations]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
