# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import pytest
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret
from samples import ScriptedChatGenerator, chat, run_of

from haystack_compaction import CompactingChatGenerator, CompactionConfig, CompactionHook, SlidingWindowCompactor


def test_the_defaults():
    assert CompactionConfig().to_dict() == {
        "strategy": "sliding_window",
        "trigger_threshold_tokens": 100_000,
        "target_tokens": 80_000,
        "preserve_recent_turns": 10,
        "preserve_system_prompt": True,
        "summarization_model": "same",
        "strategy_options": {},
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


def test_it_builds_a_chat_generator():
    inner = ScriptedChatGenerator(lambda number, messages: ChatMessage.from_assistant("Done."))
    config = CompactionConfig(strategy="summarize_older", trigger_threshold_tokens=500, target_tokens=300)
    generator = config.build_chat_generator(inner, 1_000)
    assert isinstance(generator, CompactingChatGenerator)
    assert generator.compactor.chat_generator is generator.chat_generator is inner
    assert (generator.window.trigger, generator.window.target) == (500, 300)


def test_a_window_by_the_models_name():
    pytest.importorskip("genai_prices")
    assert CompactionConfig().build_hook("gpt-4o").context_window == 128_000


def test_the_strategys_own_options():
    config = CompactionConfig(strategy="tool_result_pruning", strategy_options={"min_tokens": 50, "keep_tools": ["a"]})
    compactor = config.build_compactor()
    assert (compactor.min_tokens, list(compactor.keep_tools)) == (50, ["a"])


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
        ({"strategy_options": {"keep": 1}}, "Unknown option 'keep' of the strategy 'sliding_window'. .*min_keep_steps"),
        ({"strategy_options": {"target_tokens": 1}}, "Unknown option 'target_tokens'"),
        ({"strategy_options": {"min_keep_steps": -1}}, "`min_keep_steps` must be at least"),
        ({"strategy": SlidingWindowCompactor(), "strategy_options": {"repair": False}}, "a compactor brings its own"),
        ({"compact_everything": True}, "Unknown setting 'compact_everything'. Known settings: strategy"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CompactionConfig.from_dict(settings)


@pytest.mark.parametrize(
    "strategy",
    [
        "sliding_window",
        "summarize_older",
        "selective_pruning",
        "importance_scoring",
        "hybrid",
        "tool_result_pruning",
        "truncation",
    ],
)
def test_every_strategy_has_a_name(strategy):
    compactor = CompactionConfig(strategy=strategy, preserve_recent_turns=1).build_compactor()
    assert compactor.strategy == strategy
    assert compactor.preserve_recent_turns == 1
    report = compactor.run(messages=[*chat(30)[:-1], *run_of(10, words=900)[1:]], target_tokens=2_000)["report"]
    assert report.compacted
    assert report.strategy == strategy


@pytest.mark.parametrize("strategy", ["summarize_older", "importance_scoring", "hybrid"])
def test_the_generator_at_hand_is_used(strategy):
    generator = ScriptedChatGenerator(lambda number, messages: ChatMessage.from_assistant("[]"))
    config = CompactionConfig(strategy=strategy, preserve_recent_turns=0)
    assert config.build_compactor(generator).chat_generator is generator
    assert config.build_hook(8_000, generator).compactor.chat_generator is generator


def test_another_model_is_a_copy_of_the_generator_at_hand():
    generator = OpenAIChatGenerator(api_key=Secret.from_env_var("NO_KEY", strict=False), model="gpt-5.4", timeout=7.0)
    config = CompactionConfig(strategy="summarize_older", summarization_model="gpt-5.4-nano")
    copied = config.build_compactor(generator).chat_generator
    assert (copied.model, copied.timeout) == ("gpt-5.4-nano", 7.0)
    assert generator.model == "gpt-5.4"


def test_another_model_without_a_generator_is_refused():
    config = CompactionConfig(strategy="summarize_older", summarization_model="gpt-5.4-nano")
    with pytest.raises(ValueError, match="needs a chat generator with a `model`"):
        config.build_compactor()


def test_a_compactor_of_ones_own():
    own = SlidingWindowCompactor(min_keep_steps=7)
    config = CompactionConfig(strategy=own)
    assert config.build_compactor() is own
    assert CompactionConfig.from_dict(config.to_dict()).build_compactor().to_dict() == own.to_dict()


@pytest.mark.parametrize("value", ["3", None, 1.5, True])
def test_a_number_that_is_no_whole_number_is_refused(value):
    with pytest.raises(ValueError, match="`preserve_recent_turns` must be a whole number"):
        CompactionConfig(preserve_recent_turns=value)
