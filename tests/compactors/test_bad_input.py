# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What is of the wrong kind is refused where it is given, by an error that names it and says what it should be."""

import inspect

import pytest
from haystack import Pipeline, component
from haystack.dataclasses import ChatMessage
from samples import ScriptedChatGenerator, chat, run_of

from haystack_compaction import (
    CompactingChatGenerator,
    CompactionConfig,
    CompactionHook,
    Compactor,
    HybridCompactor,
    SlidingWindowCompactor,
    SummarizationCompactor,
)
from haystack_compaction.compactors.base import CompactorOptions
from haystack_compaction.config import STRATEGIES

NO_NUMBERS = ["5", None, [5], {}, True, float("nan")]
NOT_WHOLE = [*NO_NUMBERS, -1, 2.5]
NO_SHARES = [*NO_NUMBERS, -0.1, 1.1]
NO_FLAGS = ["false", 0, 1, None, [], float("nan")]
NO_TEXTS = [5, True, ["text"], {}, float("nan")]
NO_NAMES = ["search", 5, None, [5], True, {"search": 1}]
NO_OBJECTS = ["text", 5, [1], {}, True, float("nan"), SlidingWindowCompactor]

WRONG = {
    "preserve_recent_turns": NOT_WHOLE,
    "preserve_system_prompt": NO_FLAGS,
    "pinned": NO_OBJECTS,
    "trigger_threshold_tokens": [*NOT_WHOLE, 0],
    "target_tokens": [*(value for value in NOT_WHOLE if value is not None), 0, 100_001],
    "token_counter": NO_OBJECTS,
    "repair": NO_FLAGS,
    "merge_notes": NO_FLAGS,
    "archive": NO_OBJECTS,
    "on_archive_failure": ["ignore", None, True],
    "min_keep_steps": NOT_WHOLE,
    "omission_note": NO_TEXTS,
    "note": NO_TEXTS,
    "keep_tools": NO_NAMES,
    "min_tokens": NOT_WHOLE,
    "placeholder": [*NO_TEXTS, None],
    "skip_meta_keys": NO_NAMES,
    "chat_generator": NO_OBJECTS,
    "approximate_summary_tokens": [*NOT_WHOLE, 0],
    "exact_facts_tokens": NOT_WHOLE,
    "keep_user_messages_tokens": NOT_WHOLE,
    "summarizer_context_window": [*(value for value in NOT_WHOLE if value is not None), 0],
    "summary_instruction": [*NO_TEXTS, None],
    "raise_on_failure": NO_FLAGS,
    "timeout": [*NO_NUMBERS, 0, -1],
    "scorer": ["text", 5, [1], True],
    "threshold": [value for value in NO_SHARES if value is not None],
    "batch_size": [*NOT_WHOLE, 0],
    "digest_share": NO_SHARES,
    "compactors": ["text", 5, [], {}, True, [5], [SlidingWindowCompactor]],
    "context_window": [*(value for value in NOT_WHOLE if value != "5"), 0],
    "compact_at": [*NO_SHARES, 0],
    "compact_to": [*(value for value in NO_SHARES if value is not None), 0, 0.7],
    "reserve_tokens": [*(value for value in NOT_WHOLE if value is not None), 1_000],
    "last_resort": NO_FLAGS,
    "on_compaction": ["text", 5, [1], True],
    "reports_key": NO_TEXTS,
    "compactor": NO_OBJECTS,
    "max_retries": NOT_WHOLE,
    "is_context_overflow": ["text", 5, [1], True],
}
GENERATOR = ScriptedChatGenerator(lambda index, messages: ChatMessage.from_assistant("Noon."))
NEEDED = {
    CompactionHook: {"compactor": SlidingWindowCompactor(), "context_window": 1_000},
    CompactingChatGenerator: {"chat_generator": GENERATOR, "context_window": 1_000},
}


def options_of(cls):
    names = [name for name in inspect.signature(cls.__init__).parameters if name not in ("self", "options")]
    return dict.fromkeys([*names, *CompactorOptions.__annotations__] if issubclass(cls, Compactor) else names)


def cases():
    for cls in (*STRATEGIES.values(), CompactionHook, CompactingChatGenerator):
        for name in options_of(cls):
            yield cls, name


@pytest.mark.parametrize(("cls", "name"), list(cases()))
def test_options_of_the_wrong_kind(cls, name):
    for value in WRONG[name]:
        with pytest.raises(ValueError, match=f"`{name}`|{name}="):
            cls(**{**NEEDED.get(cls, {}), name: value})


@pytest.mark.parametrize("name", ["trigger_threshold_tokens", "target_tokens", "preserve_recent_turns"])
def test_settings_of_the_wrong_kind(name):
    for value in WRONG[name]:
        with pytest.raises(ValueError, match=f"`{name}`|{name}="):
            CompactionConfig(**{name: value})


def test_what_is_missing_where_it_is_needed():
    for value in (*NO_OBJECTS, None):
        with pytest.raises(ValueError, match="`chat_generator` must be an object with a method `run`"):
            CompactingChatGenerator(value, context_window=1_000)
        with pytest.raises(ValueError, match="`compactor` must be a compactor"):
            CompactionHook(value, context_window=1_000)


def test_an_option_that_there_is_not():
    with pytest.raises(TypeError, match="min_keep_step"):
        SlidingWindowCompactor(min_keep_step=1)


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        (["hi"], "got str at index 0. Make a message of a text with `ChatMessage.from_user`"),
        ([ChatMessage.from_user("hi"), {"role": "user"}], "got dict at index 1"),
        (ChatMessage.from_user("hi"), "must be a list of ChatMessage, got ChatMessage"),
        (None, "got NoneType"),
        ("hi", "got str"),
    ],
)
async def test_what_is_no_conversation(messages, told):
    compactor = SlidingWindowCompactor()
    with pytest.raises(ValueError, match=told):
        compactor.run(messages=messages)
    with pytest.raises(ValueError, match=told):
        await compactor.run_async(messages=messages)
    if not isinstance(messages, str):
        with pytest.raises(ValueError, match=told):
            CompactingChatGenerator(GENERATOR, context_window=1_000).run(messages)


@pytest.mark.parametrize("target", ["5", 2.5, True, 0, -1, [5]])
def test_a_target_of_the_wrong_kind(target):
    with pytest.raises(ValueError, match="`target_tokens` must be"):
        SlidingWindowCompactor().run(messages=chat(2), target_tokens=target)


class Undecorated(Compactor):
    strategy = "undecorated"

    def rewrite(self, conversation, target_tokens, ledger):
        return list(conversation.messages[-1:])


def test_a_compactor_that_is_no_component():
    with pytest.raises(AttributeError, match="`Undecorated` is no component of a pipeline"):
        Pipeline().add_component("compactor", Undecorated())
    decorated = component(type("Decorated", (Undecorated,), {"__init__": lambda self: Compactor.__init__(self)}))
    Pipeline().add_component("compactor", decorated())


def test_elsewhere_it_need_not_be_one():
    result = Undecorated().run(messages=run_of(5), target_tokens=10)
    assert len(result["messages"]) < len(run_of(5))
    assert CompactionHook(Undecorated(), context_window=1_000).compactor.strategy == "undecorated"
    with pytest.raises(AttributeError, match="'Undecorated' object has no attribute 'chat'"):
        _ = Undecorated().chat


@pytest.mark.parametrize("trigger", [1, 2, 1_000, 100_000])
def test_a_trigger_alone_brings_a_target_below_it(trigger):
    compactor = SlidingWindowCompactor(trigger_threshold_tokens=trigger)
    assert compactor.target_tokens == max(trigger * 4 // 5, 1)
    assert CompactionConfig(trigger_threshold_tokens=trigger).build_compactor().target_tokens == compactor.target_tokens
    assert SlidingWindowCompactor().target_tokens == CompactionConfig().target_tokens == 80_000


def test_one_that_was_set_is_taken_at_its_word():
    with pytest.raises(ValueError, match="got target_tokens=2000 and trigger_threshold_tokens=1000"):
        SlidingWindowCompactor(trigger_threshold_tokens=1_000, target_tokens=2_000)


def test_nested_ones_are_checked_too():
    with pytest.raises(ValueError, match="`timeout`"):
        HybridCompactor([SummarizationCompactor(GENERATOR, timeout="60")])
