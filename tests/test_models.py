# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import subprocess
import sys

import pytest
from haystack.components.generators.chat import MockChatGenerator

from haystack_compaction import CompactionHook, SlidingWindowCompactor
from haystack_compaction.chat_generator import CompactingChatGenerator
from haystack_compaction.models import window_size


@pytest.mark.parametrize(
    ("model", "tokens"),
    [("gpt-4o", 128_000), ("GPT-4o", 128_000), ("gpt-4o-2024-08-06", 128_000), ("claude-sonnet-4-5", 200_000)],
)
def test_the_window_of_a_model(model, tokens):
    pytest.importorskip("genai_prices")
    assert window_size(model) == tokens
    hook = CompactionHook(SlidingWindowCompactor(), context_window=model)
    assert hook.context_window == hook.window.context_window == tokens
    assert CompactionHook.from_dict(hook.to_dict()).context_window == tokens
    assert CompactingChatGenerator(MockChatGenerator("Noon."), context_window=model).window.context_window == tokens


def test_a_model_that_is_not_known_is_answered_with_names_like_it():
    pytest.importorskip("genai_prices")
    with pytest.raises(ValueError, match=r"for the model 'gpt-4oo'\. .*'gpt-4o'.*size of the window in tokens"):
        CompactionHook(SlidingWindowCompactor(), context_window="gpt-4oo")
    with pytest.raises(ValueError, match=r"known for the model '~~~'\. Give"):
        window_size("~~~")


def test_without_the_extra_the_error_names_it():
    code = """
import sys
sys.modules["genai_prices"] = None
from haystack_compaction import CompactionHook, SlidingWindowCompactor
CompactionHook(SlidingWindowCompactor(), context_window=1_000)
CompactionHook(SlidingWindowCompactor(), context_window="gpt-4o")
"""
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "haystack-compaction[models]" in failed.stderr
    assert "ImportError" in failed.stderr
