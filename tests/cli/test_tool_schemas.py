# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import json
from pathlib import Path
from typing import Any

import pytest
from haystack.tools import tool

from haystack_compaction.cli.tool_schemas import read_tools, tools_from
from haystack_compaction.tokens.ledger import TokenLedger

PARAMETERS = {"type": "object", "properties": {"of": {"type": "string"}}}
SCHEMA = {"name": "read", "description": "Read it.", "parameters": PARAMETERS}


@tool
def read(of: str) -> str:
    """Read it."""
    return of


@pytest.mark.parametrize(
    "data",
    [
        [{"type": "function", "function": SCHEMA}],
        [SCHEMA],
        [{"name": "read", "description": "Read it.", "input_schema": PARAMETERS}],
        {"tools": [SCHEMA]},
        [{"type": "haystack.tools.tool.Tool", "data": SCHEMA}],
    ],
)
def test_every_format_comes_to_the_same(data: Any) -> None:
    assert [found.tool_spec for found in tools_from(data)] == [SCHEMA]


def test_haystacks_own_tools_have_the_size_that_they_have() -> None:
    data = json.loads(json.dumps([read.to_dict()]))
    assert TokenLedger().count([], tools_from(data)) == TokenLedger().count([], [read])


@pytest.mark.parametrize("data", [None, [], {"tools": None}])
def test_no_tools(data: Any) -> None:
    assert tools_from(data) == []


def test_a_tool_without_parameters() -> None:
    assert tools_from([{"name": "now"}])[0].parameters == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("read", "must be a list"),
        ({"name": "read"}, "must be a list"),
        ([SCHEMA, {}], "tool 2: has no `name`"),
        ([SCHEMA, "read"], "tool 2: has no `name`"),
        ([{"name": "read", "parameters": {"type": "nonsense"}}], "tool 1: "),
    ],
)
def test_anything_else_is_refused(data: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        tools_from(data)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([SCHEMA]))
    assert [found.name for found in read_tools(path)] == ["read"]
    path.write_text("[")
    with pytest.raises(ValueError, match="is not JSON"):
        read_tools(path)
    with pytest.raises(ValueError, match="No such file"):
        read_tools(tmp_path / "none.json")
