# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import pytest
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage
from samples import ScriptedChatGenerator

from haystack_compaction import CompactionConfig, CompactionHook, SlidingWindowCompactor


def test_the_defaults():
    assert CompactionConfig().to_dict() == {
        "strategy": "sliding_window",
        "trigger_threshold_tokens": 100_000,
        "target_tokens": 80_000,
        "preserve_recent_turns": 10,
        "preserve_system_prompt": True,
        "summarization_model": "same",
    }


def test_it_builds_the_compactor_that_it_describes():
    compactor = CompactionConfig(
        preserve_recent_turns=2, preserve_system_prompt=False, trigger_threshold_tokens=500, target_tokens=300
    ).build_compactor()
    assert isinstance(compactor, SlidingWindowCompactor)
    assert (compactor.preserve_recent_turns, compactor.preserve_system_prompt) == (2, False)
    assert (compactor.trigger_threshold_tokens, compactor.target_tokens) == (500, 300)


def test_it_builds_a_hook_that_an_agent_takes():
    hook = CompactionConfig().build_hook(128_000)
    assert isinstance(hook, CompactionHook)
    assert hook.window.trigger == pytest.approx(100_000)
    assert hook.window.target == pytest.approx(80_000)
    generator = ScriptedChatGenerator(lambda number, messages: ChatMessage.from_assistant("Done."))
    Agent(chat_generator=generator, hooks={"before_llm": [hook]})


def test_in_a_window_smaller_than_the_trigger_the_hook_uses_shares():
    hook = CompactionConfig().build_hook(32_000)
    assert (hook.compact_at, hook.compact_to) == (0.7, 0.4)


def test_round_trip():
    config = CompactionConfig(preserve_recent_turns=0, summarization_model="gpt-5.4-nano")
    assert CompactionConfig.from_dict(config.to_dict()) == config
    assert CompactionConfig.from_dict({"target_tokens": 10}).target_tokens == 10


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "magic"}, "Unknown strategy 'magic'. Known strategies: .*sliding_window"),
        ({"target_tokens": 0}, "`target_tokens` must be at least 1, got 0"),
        ({"target_tokens": 200_000}, "target_tokens=200000 and trigger_threshold_tokens=100000"),
        ({"preserve_recent_turns": -1}, "`preserve_recent_turns` must be at least 0"),
        ({"summarization_model": ""}, "`summarization_model` must be"),
        ({"compact_everything": True}, "Unknown setting 'compact_everything'. Known settings: strategy"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CompactionConfig.from_dict(settings)
