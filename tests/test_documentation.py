# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Every piece of Python in the README, the docs and the docstrings runs as it stands."""

import ast
import re
import textwrap
from pathlib import Path

import pytest
from servers.openai_chat import StrictOpenAIServer

import haystack_compaction

ROOT = Path(__file__).parent.parent
PACKAGE = Path(haystack_compaction.__file__).parent
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def blocks_of(name, text):
    for number, match in enumerate(BLOCK.finditer(text), 1):
        yield pytest.param(textwrap.dedent(match.group(2)), id=f"{name} {number}")


def pages():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        yield from blocks_of(page.relative_to(ROOT), page.read_text(encoding="utf-8"))


def docstrings():
    for module in sorted(PACKAGE.glob("**/*.py")):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{module.relative_to(PACKAGE)} {getattr(node, 'name', '')}"
                yield from blocks_of(name, ast.get_docstring(node) or "")


@pytest.mark.parametrize("code", [*pages(), *docstrings()])
def test_it_runs(code, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with StrictOpenAIServer(lambda index, messages: "At half past noon.", context_window=128_000) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        exec(compile(code, "example", "exec"), {"__name__": "example"})
