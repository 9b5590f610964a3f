# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import pytest
from haystack.dataclasses import ChatMessage
from samples import ScriptedChatGenerator, chat

from haystack_compaction import HybridCompactor, SummarizationCompactor
from haystack_compaction.pass_context import PassContext

OPENAI = {
    "prompt_tokens": 900,
    "completion_tokens": 60,
    "total_tokens": 960,
    "prompt_tokens_details": {"cached_tokens": 512, "audio_tokens": None},
    "completion_tokens_details": {"reasoning_tokens": 20},
    "service_tier": "default",
    "is_estimate": True,
}
ANTHROPIC = {
    "prompt_tokens": 900,
    "completion_tokens": 60,
    "cache_read_input_tokens": 512,
    "cache_creation": {"ephemeral_5m_input_tokens": 30, "ephemeral_1h_input_tokens": 0},
}


@pytest.mark.parametrize(
    ("usage", "added_up"),
    [
        (
            OPENAI,
            {
                "prompt_tokens": 1800,
                "completion_tokens": 120,
                "total_tokens": 1920,
                "prompt_tokens_details": {"cached_tokens": 1024},
                "completion_tokens_details": {"reasoning_tokens": 40},
            },
        ),
        (
            ANTHROPIC,
            {
                "prompt_tokens": 1800,
                "completion_tokens": 120,
                "cache_read_input_tokens": 1024,
                "cache_creation": {"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 0},
            },
        ),
        (None, {}),
        ("900 tokens", {}),
    ],
    ids=["openai", "anthropic", "none", "no mapping"],
)
def test_usage_is_added_up_however_deep_it_is(usage, added_up):
    context = PassContext()
    context.record_llm_call(usage)
    context.record_llm_call(usage)
    assert (context.llm_calls, context.llm_usage) == (2, added_up)


@pytest.mark.parametrize(
    "build", [SummarizationCompactor, lambda model: HybridCompactor([SummarizationCompactor(model)])]
)
def test_the_report_has_the_cached_tokens(build):
    model = ScriptedChatGenerator(
        lambda number, prompt: ChatMessage.from_assistant("The user asks when high tide is.", meta={"usage": OPENAI})
    )
    report = build(model).run(messages=chat(40), target_tokens=900)["report"]
    assert report.llm_calls == 1
    assert report.llm_usage["prompt_tokens_details"] == {"cached_tokens": 512}
