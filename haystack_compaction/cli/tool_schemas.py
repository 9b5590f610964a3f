# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The schemas of tools, which take room in every request, in the formats that people have them in."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from haystack.tools.tool import Tool

_NO_PARAMETERS = {"type": "object", "properties": {}}


def read_tools(path: Path) -> list[Tool]:
    """
    Read the schemas of tools from a file.

    :param path: A JSON file with what `tools_from` takes.
    :returns: Tools that can be counted, and not called.
    :raises ValueError: If the file can't be read or holds something else. The message is one line.
    """
    try:
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"can't be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from error
    return tools_from(data)


def tools_from(data: Any) -> list[Tool]:
    """
    Make tools of their schemas.

    ### Usage example

    ```python
    from haystack_compaction.cli.tool_schemas import tools_from

    tools = tools_from([{"type": "function", "function": {"name": "search", "description": "Search the web."}}])
    assert tools[0].tool_spec["name"] == "search"
    ```

    :param data: A list, or an object with such a list under "tools". Each of its members is a tool as OpenAI's or
        Anthropic's API takes it, or `Tool.to_dict()` of Haystack. None for no tools.
    :returns: Tools that can be counted, and not called.
    :raises ValueError: If it is something else. The message is one line.
    """
    if isinstance(data, Mapping) and "tools" in data:
        data = data["tools"]
    if data is None:
        return []
    if not isinstance(data, list):
        raise ValueError("the tools must be a list")
    return [_tool(number, item) for number, item in enumerate(data, 1)]


def _tool(number: int, item: Any) -> Tool:
    # OpenAI's API nests a schema under "function", Haystack under "data".
    nested = [
        item[key] for key in ("function", "data") if isinstance(item, Mapping) and isinstance(item.get(key), dict)
    ]
    schema = nested[0] if nested else item
    if not isinstance(schema, Mapping) or not isinstance(schema.get("name"), str):
        raise ValueError(f"tool {number}: has no `name`")
    parameters = schema.get("parameters") or schema.get("input_schema") or _NO_PARAMETERS
    try:
        return Tool(schema["name"], str(schema.get("description") or ""), parameters, function=_uncallable)
    except Exception as error:
        raise ValueError(f"tool {number}: {error}") from error


def _uncallable(**arguments: Any) -> None:
    """Stands where a tool's function would."""
