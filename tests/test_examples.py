# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Every example runs, without a key, and says what it is there to say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

#: What the output of an example must hold.
SAYS = {
    "agent_with_hook": "All forty services are fine.",
    "archive_and_recall": "64 in the transcript",
    "chat_pipeline": "0 messages gone",
    "conversation": "= 24 messages",
    "custom_compactor": "3 of 20 thanks left",
    "hybrid_with_summarizer": "Thirty weeks read.",
    "multi_user_server": "dora: I know of BOOKING-DORA,",
    "overflow_recovery": "(1 retries)",
    "pipeline_from_yaml": "Half past noon.",
    "rag_chat": "Question 24: when is high tide in Douarnenez? High tide in Douarnenez",
    "scripted": "",
    "served_with_hayhooks": "121 messages so far. At half past noon.",
}


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda example: example.stem)
def test_it_runs(example, tmp_path):
    if example.stem == "served_with_hayhooks":
        pytest.importorskip("hayhooks", reason="needs the extra `serve`")
    done = subprocess.run([sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert SAYS[example.stem] in done.stdout


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("**/*.py")), ids=lambda example: example.stem)
def test_it_says_how_to_use_a_real_model(example):
    text = example.read_text(encoding="utf-8")
    is_helper = example.stem in ("scripted", "conversation")
    assert is_helper or re.search(r'^With a real model: .*?"""', text, re.MULTILINE | re.DOTALL)
