# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import asyncio
from random import Random

import haystack.hooks.compaction as haystacks
import pytest
from haystack import Pipeline
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret
from samples import ScriptedChatGenerator, chat, run_of, step

from haystack_compaction import (
    EstimateTokenCounter,
    HybridCompactor,
    ImportanceScoringCompactor,
    SelectivePruningCompactor,
    SlidingWindowCompactor,
    SummarizationCompactor,
    ToolResultPruningCompactor,
    TruncationCompactor,
)
from haystack_compaction.conversation.notes import is_note, is_summary
from haystack_compaction.testing import check_compactor, provider_fault

COUNTER = EstimateTokenCounter()

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def stages(report):
    return [stage["strategy"] for stage in report.stages]


def test_it_stops_as_soon_as_the_target_is_met():
    messages = run_of(20)
    result = HybridCompactor().run(messages=messages, target_tokens=COUNTER.count(messages) - 50)
    assert stages(result["report"]) == ["selective_pruning"]
    assert result["report"].reached_target


def test_the_default_prunes_then_moves_the_window_then_summarizes():
    messages = [*chat(30)[:-1], *run_of(10)[1:]]
    report = HybridCompactor().run(messages=messages, target_tokens=600)["report"]
    assert stages(report) == ["selective_pruning", "sliding_window", "summarize_older"]
    assert report.reached_target
    sizes = [(stage["tokens_before"], stage["tokens_after"]) for stage in report.stages]
    assert [before for before, _ in sizes[1:]] == [after for _, after in sizes[:-1]]
    assert sizes[0][0] == report.tokens_before
    assert sizes[-1][1] == report.tokens_after


def test_the_calls_of_a_model_are_in_the_report():
    usage = {"prompt_tokens": 100, "completion_tokens": 20}
    text = "The user asked when high tide is, many times over; it is at half past noon every day of the year. " * 3
    model = ScriptedChatGenerator(lambda number, messages: ChatMessage.from_assistant(text, meta={"usage": usage}))
    report = HybridCompactor(chat_generator=model).run(messages=chat(60), target_tokens=1500)["report"]
    assert report.llm_calls == len(model.requests) > 0
    assert report.llm_usage["prompt_tokens"] == 100 * report.llm_calls


def test_async_does_the_same():
    messages = run_of(30)
    compactor = HybridCompactor([ToolResultPruningCompactor(min_tokens=20), SlidingWindowCompactor()])
    expected = compactor.run(messages=messages, target_tokens=300)
    result = asyncio.run(compactor.run_async(messages=messages, target_tokens=300))
    assert result["messages"] == expected["messages"]
    assert stages(result["report"]) == stages(expected["report"])


def test_a_stage_that_raises_is_skipped():
    class Failing:
        def compact(self, messages, target_tokens, token_counter):
            raise OSError("no disk")

    result = HybridCompactor([Failing(), SlidingWindowCompactor()]).run(messages=chat(30), target_tokens=300)
    assert result["report"].reached_target
    assert "OSError" in result["report"].stages[0]["reason"]


def test_haystacks_compactors_can_be_stages():
    compactor = HybridCompactor(
        [haystacks.ToolResultPruningCompactor(min_tokens=20), haystacks.SlidingWindowCompactor()]
    )
    messages = run_of(30)
    result = compactor.run(messages=messages, target_tokens=500)
    # Haystack's window does not count its own note.
    assert result["report"].tokens_after <= 550
    assert provider_fault(result["messages"]) is None


def test_what_a_summary_says_survives_a_window_after_it():
    for window in (SlidingWindowCompactor(), haystacks.SlidingWindowCompactor()):
        compactor = HybridCompactor([SummarizationCompactor(approximate_summary_tokens=200), window])
        conversation = chat(40)
        for _ in range(3):
            conversation = compactor.run(messages=conversation, target_tokens=700)["messages"]
            conversation = [*conversation, ChatMessage.from_assistant("At noon."), *chat(40)[1:]]
        compacted = compactor.run(messages=conversation, target_tokens=700)["messages"]
        assert any(map(is_summary, compacted))


def test_recent_turns_hold_for_every_stage():
    messages = [*chat(3)[:-1], ChatMessage.from_user("Look."), *step("read", "x " * 400), *chat(0)[1:]]
    messages[-2:-2] = []
    messages.insert(-1, ChatMessage.from_assistant("Seen."))
    compactor = HybridCompactor(
        [TruncationCompactor(), SelectivePruningCompactor(min_keep_steps=1), haystacks.SlidingWindowCompactor()],
        preserve_recent_turns=1,
    )
    kept = compactor.run(messages=messages, target_tokens=100)["messages"]
    for message in messages[-5:]:
        assert any(message is other for other in kept)


def test_yaml_round_trip_with_nested_generators():
    generator = OpenAIChatGenerator(api_key=Secret.from_env_var("NO_KEY", strict=False), model="gpt-5.4-nano")
    compactors = {
        "default": HybridCompactor(chat_generator=generator, target_tokens=500),
        "own": HybridCompactor(
            [
                ToolResultPruningCompactor(min_tokens=5),
                haystacks.SlidingWindowCompactor(min_keep_steps=2),
                HybridCompactor([SummarizationCompactor(generator), ImportanceScoringCompactor(generator)]),
            ]
        ),
    }
    pipeline = Pipeline()
    for name, compactor in compactors.items():
        pipeline.add_component(name, compactor)
    restored = Pipeline.loads(pipeline.dumps())
    assert restored.to_dict() == pipeline.to_dict()
    nested = restored.get_component("own").compactors[2].compactors[0]
    assert isinstance(nested, SummarizationCompactor)
    assert nested.chat_generator.model == "gpt-5.4-nano"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compactors": []}, "`compactors` must name at least one compactor"),
        (
            {"compactors": [TruncationCompactor()], "chat_generator": ScriptedChatGenerator(print)},
            "`chat_generator` is",
        ),
        ({"target_tokens": 0}, "`target_tokens` must be at least 1"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        HybridCompactor(**options)


def test_lifecycle_reaches_every_stage():
    calls = []

    class Recorded(SlidingWindowCompactor):
        def warm_up(self):
            calls.append("warm_up")

        def close(self):
            calls.append("close")

    compactor = HybridCompactor([Recorded(), Recorded()])
    compactor.warm_up()
    compactor.close()
    assert calls == ["warm_up", "warm_up", "close", "close"]


STAGES = [
    SelectivePruningCompactor(),
    ToolResultPruningCompactor(min_tokens=5),
    TruncationCompactor(),
    SlidingWindowCompactor(),
    ImportanceScoringCompactor(),
    SummarizationCompactor(approximate_summary_tokens=60),
]


@pytest.mark.parametrize("seed", range(10))
def test_promises_of_random_hybrids(seed):
    choose = Random(seed)
    check_compactor(HybridCompactor(choose.choices(STAGES, k=choose.randint(1, 4))), max_examples=40)


def test_at_most_one_omission_note_whatever_the_stages():
    compactor = HybridCompactor([SelectivePruningCompactor(), ImportanceScoringCompactor(), SlidingWindowCompactor()])
    kept = compactor.run(messages=[*chat(20)[:-1], *run_of(20)[1:]], target_tokens=400)["messages"]
    assert sum(map(is_note, kept)) == 1
