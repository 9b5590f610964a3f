# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What an import costs, and that what is installed is what is here."""

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import haystack_compaction

ROOT = Path(__file__).parent.parent
HEAVY = ("haystack_compaction.cli", "typer", "rich", "jinja2", "tiktoken", "genai_prices", "hypothesis")


def loaded_by(code):
    """The modules that are loaded after the code ran, in a fresh interpreter."""
    script = f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    return set(json.loads(subprocess.check_output([sys.executable, "-c", script], text=True)))


def test_importing_the_package_imports_none_of_its_parts():
    parts = loaded_by("import haystack_compaction") - {"haystack_compaction"}
    assert not [name for name in parts if name.startswith("haystack_compaction.")]


@pytest.mark.parametrize("name", HEAVY)
def test_what_is_heavy_is_imported_when_it_is_used(name):
    everything = loaded_by(
        "import haystack_compaction\nfor n in haystack_compaction.__all__: getattr(haystack_compaction, n)"
    )
    # Some of it Haystack itself may need.
    assert name not in everything - loaded_by("import haystack.components.agents, haystack.hooks.compaction")


def test_a_window_in_an_agent_imports_no_strategy_that_it_does_not_use():
    loaded = loaded_by("from haystack_compaction import CompactionHook, SlidingWindowCompactor")
    others = ("summarization", "importance_scoring", "hybrid", "selective_pruning")
    assert not {f"haystack_compaction.compactors.{name}" for name in others} & loaded
    assert "haystack_compaction.salience" not in loaded


def test_the_version_stands_in_one_place():
    assert version("haystack-compaction") == haystack_compaction.__version__
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in project
    assert not re.search(r"^version *=", project, re.MULTILINE)


def test_it_is_typed():
    assert (Path(haystack_compaction.__file__).parent / "py.typed").exists()
