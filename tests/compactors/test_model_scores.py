# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import json

import pytest
from haystack.dataclasses import ChatMessage
from samples import ScriptedChatGenerator, chat

from haystack_compaction import EstimateTokenCounter, ImportanceScoringCompactor
from haystack_compaction.compactors.model_scores import ModelScores
from haystack_compaction.pass_context import PassContext, entered
from haystack_compaction.stepping import run_to_end

COUNTER = EstimateTokenCounter()


def units(number):
    return [[ChatMessage.from_user(f"Fact {position}.")] for position in range(number)]


def scored(scores, some, answer):
    """The scores, and how many units each prompt asked about."""
    asked = []

    def answered(prompts):
        asked.extend(prompt[-1].text.count('"number"') for prompt in prompts)
        return [answer(prompt) for prompt in prompts]

    return run_to_end(scores.of(some, ""), answered), asked


def half(prompt):
    number = prompt[-1].text.count('"number"')
    return ChatMessage.from_assistant(json.dumps({"scores": {str(unit + 1): 0.5 for unit in range(number)}}))


def down(prompt):
    return TimeoutError()


def test_what_a_failed_call_was_about_is_asked_again():
    scores, some = ModelScores(batch_size=3), units(5)
    assert scored(scores, some, down) == ([None] * 5, [3, 2])
    assert len(scores) == 0
    assert scored(scores, some, half) == ([0.5] * 5, [3, 2])
    assert scored(scores, some, down) == ([0.5] * 5, [])


def test_only_the_batch_that_failed_is_asked_again():
    scores, some = ModelScores(batch_size=3), units(5)
    first = scored(scores, some, lambda prompt: half(prompt) if "Fact 0." in prompt[-1].text else down(prompt))
    assert first == ([0.5] * 3 + [None] * 2, [3, 2])
    assert scored(scores, some, half) == ([0.5] * 5, [2])


@pytest.mark.parametrize("text", ["What a lovely conversation!", "", '{"scores": {"1": 7}}'])
def test_an_answer_without_a_score_is_final(text):
    scores, some = ModelScores(batch_size=3), units(2)
    assert scored(scores, some, lambda prompt: ChatMessage.from_assistant(text)) == ([None] * 2, [2])
    assert scored(scores, some, half) == ([None] * 2, [])


def test_units_that_come_up_while_the_model_is_left_alone_are_scored_afterwards():
    model = ScriptedChatGenerator(lambda number, prompt: half(prompt))
    compactor, messages = ImportanceScoringCompactor(model), chat(20)
    with entered(PassContext(model_is_paused=True)):
        assert compactor.compact(messages, 400, COUNTER)
    assert model.requests == []
    assert compactor.compact(messages, 400, COUNTER)
    assert len(model.requests) == 1
