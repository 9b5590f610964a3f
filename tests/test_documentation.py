# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What the README, the docs and the docstrings show works as it stands: Python, its output, YAML, commands, links."""

import ast
import contextlib
import io
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import yaml
from haystack import Pipeline
from servers.openai_chat import StrictOpenAIServer

import haystack_compaction

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
PACKAGE = Path(haystack_compaction.__file__).parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```\n", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def blocks_of(name, text, *languages):
    """The blocks of code in a text; a block of plain text right behind one is its output."""
    for number, match in enumerate(BLOCK.finditer(text), 1):
        if match.group(2) in languages:
            output = OUTPUT.match(text, match.end())
            yield pytest.param(
                textwrap.dedent(match.group(3)), output.group(1) if output else None, id=f"{name} {number}"
            )


def in_pages(*languages):
    for page in PAGES:
        yield from blocks_of(page.relative_to(ROOT), page.read_text(encoding="utf-8"), *languages)


def in_docstrings():
    for module in sorted(PACKAGE.glob("**/*.py")):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{module.relative_to(PACKAGE)} {getattr(node, 'name', '')}"
                yield from blocks_of(name, f"{ast.get_docstring(node) or ''}\n", "python")


@pytest.fixture
def openai(monkeypatch):
    """A stand-in for OpenAI on the loopback."""
    with StrictOpenAIServer(lambda index, messages: "At half past noon.", context_window=128_000) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        yield server


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A folder to run things in, that holds the examples as the repository does."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("openai", "folder")
@pytest.mark.parametrize(("code", "output"), [*in_pages("python"), *in_docstrings()])
def test_python_runs_and_prints_what_the_page_says(code, output, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "example", "exec"), {"__name__": "example"})
    if output is not None:
        assert printed.getvalue() == output, "`python docs/outputs.py` writes what it prints now."


@pytest.mark.usefixtures("openai")
@pytest.mark.parametrize(("code", "output"), [*in_pages("yaml")])
def test_yaml_loads(code, output):
    if "components" in yaml.safe_load(code):
        Pipeline.loads(code)


@pytest.mark.parametrize(("code", "output"), [*in_pages("bash")])
def test_commands_work(code, output, folder):
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        # Others install something or take their time: `.ci/run` does that.
        if words[:1] == ["haystack-compaction"]:
            command = [sys.executable, "-m", "haystack_compaction.cli", *words[1:]]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    missing = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert not missing


def test_every_example_is_on_the_page_of_examples():
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    shown = set(re.findall(r'--8<-- "examples/([^":]+)', page))
    files = {str(file.relative_to(EXAMPLES)) for file in EXAMPLES.rglob("*.*") if file.suffix in {".py", ".yaml"}}
    assert shown == files


def test_every_public_name_has_its_place_in_the_reference():
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("**/*.md"))
    described = set(re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE))
    for name in haystack_compaction.__all__:
        value = getattr(haystack_compaction, name)
        assert described & {value.__module__, f"{value.__module__}.{name}"}, name
