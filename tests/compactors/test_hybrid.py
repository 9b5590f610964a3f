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
from samples import ScriptedChatGenerator, chat, run_of, step, texts

from haystack_compaction import (
    CompactionHook,
    EstimateTokenCounter,
    HybridCompactor,
    ImportanceScoringCompactor,
    PinRules,
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


def audit(steps=30):
    """Runs of tool calls in several turns. One result holds what matters, one rule is put right later."""
    messages = run_of(0)[:1]
    for turn in range(5):
        messages.append(ChatMessage.from_user(f"Look at rack {turn} and tell me what you see there."))
        for number in range(steps // 5):
            messages += step(
                "read_log", f"rack {turn} slot {number}: " + "all checks passed " * 30, call_id=f"{turn}-{number}"
            )
        messages.append(ChatMessage.from_assistant(f"Rack {turn} is fine, nothing to report."))
    messages[8:10] = step("read_log", "Backup 8812-K of host krill-404 failed with checksum e91b7c55.", call_id="x")
    messages[1] = ChatMessage.from_user("Mail the nightly report to anna.berg@example.org, please.")
    index = next(i for i, message in enumerate(messages) if (message.text or "").startswith("Look at rack 3"))
    messages[index] = ChatMessage.from_user("Correction: mail the nightly report to otto.klein@example.net instead.")
    return [*messages, ChatMessage.from_user("And now?")]


@pytest.mark.parametrize(("share", "last"), [(0.5, "selective_pruning"), (0.07, "summarize_older")])
def test_what_pruning_removes_is_told(share, last):
    messages = audit()
    target = int(COUNTER.count(messages) * share)
    for _ in range(3):
        result = HybridCompactor().run(messages=messages, target_tokens=target)
        assert stages(result["report"])[-1] == last
        assert result["report"].tokens_after <= target
        said = "\n".join(texts(result["messages"]))
        assert "8812-K" in said
        assert "e91b7c55" in said
        assert not any(
            "8812-K" in text for message in result["messages"] if message.tool_call_results for text in texts([message])
        )
        messages = [*result["messages"], ChatMessage.from_assistant("Fine."), *audit()[12:]]


@pytest.mark.parametrize("share", [0.07, 0.3, 0.6])
def test_what_was_put_right_is_not_said_any_more(share):
    messages = audit()
    compacted = HybridCompactor().compact(messages, int(COUNTER.count(messages) * share), COUNTER)
    said = "\n".join(texts(compacted))
    assert "otto.klein@example.net" in said
    assert "anna.berg@example.org" not in said


def test_turns_to_preserve_stay_even_when_they_were_put_right():
    messages = audit()
    compacted = HybridCompactor(preserve_recent_turns=5).compact(messages, COUNTER.count(messages) * 2 // 3, COUNTER)
    assert compacted is None or messages[1] in compacted


def test_a_model_is_shown_what_pruning_removed():
    text = "Backup 8812-K failed; the nightly report goes to otto.klein@example.net; the racks are fine otherwise. " * 2
    model = ScriptedChatGenerator(lambda number, messages: ChatMessage.from_assistant(text))
    messages = audit()
    report = HybridCompactor(chat_generator=model).run(messages=messages, target_tokens=300)["report"]
    assert stages(report)[-1] == "summarize_older"
    assert report.reached_target
    assert "e91b7c55" in model.requests[0][-1].text


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.3, 0.5, 0.8])
@pytest.mark.parametrize(
    "messages", [audit(), chat(60), [*chat(20)[:-1], *run_of(30)[1:]]], ids=["audit", "chat", "both"]
)
def test_the_target_is_met(messages, share):
    target = int(COUNTER.count(messages) * share)
    for _ in range(3):
        messages = HybridCompactor().compact(messages, target, COUNTER)
        assert COUNTER.count(messages) <= max(target, 350)
        messages = [*messages, ChatMessage.from_assistant("Fine."), *audit()[1:]]


def test_promises_of_the_default():
    check_compactor(HybridCompactor(), max_examples=60)


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


def test_how_far_down_it_goes_by_default_depends_on_its_stages_and_the_window():
    silent = HybridCompactor([SlidingWindowCompactor()])
    telling = HybridCompactor([SlidingWindowCompactor(), SummarizationCompactor()])

    def share(compactor, context_window, **options):
        return CompactionHook(compactor, context_window=context_window, **options).compact_to

    assert share(silent, 128_000) == 0.4
    assert share(telling, 128_000) == share(HybridCompactor(), 128_000) == 0.2
    # The newest steps must not take the room of the digest.
    assert share(telling, 20_000) == 0.3
    assert share(telling, 4_000) == 0.4
    assert share(telling, 4_000, compact_to=0.1) == 0.1


def test_where_the_target_cannot_be_met_a_digest_is_written_even_so():
    builds = [f"build B-{number * 7919:06d} of service {number} is fine. " + "request ok " * 60 for number in range(8)]
    steps = [message for n, build in enumerate(builds) for message in step("read_log", build, call_id=f"c{n}")]
    messages = [ChatMessage.from_user("Audit every service."), *steps]
    newest = COUNTER.count(messages[:1] + steps[-2:])
    compacted = HybridCompactor().run(messages=messages, target_tokens=newest - 10)["messages"]
    said = " ".join(message.text or "" for message in compacted)
    assert sum(f"B-{number * 7919:06d}" in said for number in range(7)) >= 3


@pytest.mark.parametrize("pinned", [None, PinRules(texts=["^Never"])])
def test_what_stays_is_not_told_again(pinned):
    task = ChatMessage.from_user("And now tell me about the ferries?")
    rule = ChatMessage.from_user("Never book a cabin on the lower deck.")
    messages = [rule, ChatMessage.from_assistant("I won't. " * 20), *chat(12)[1:-1], task]
    compacted = HybridCompactor(pinned=pinned).run(messages=messages, target_tokens=400)["messages"]
    said = " ".join(message.text or "" for message in compacted)
    assert said.count("ferries") == 1
    assert said.count("lower deck") == 1


@pytest.mark.parametrize("stages", [None, [SelectivePruningCompactor(), SummarizationCompactor()]])
def test_many_passes_of_one_long_task_meet_their_targets(stages):
    compactor = HybridCompactor(stages)
    messages, target = [ChatMessage.from_user("Audit every service.")], 1_500
    for number in range(120):
        text = f"Now I look at service {number}, which was slow last week. " * 2
        messages = [*messages, *step("read_log", "all checks passed " * 60, call_id=f"c{number}", text=text)]
        if COUNTER.count(messages) > 5_000:
            messages = compactor.run(messages=messages, target_tokens=target)["messages"]
            assert COUNTER.count(messages) <= target


def test_a_message_of_a_preserved_turn_that_a_repair_fills_is_not_pinned_for_ever():
    blank = ChatMessage.from_user(content_parts=["What is a tide?", " "])
    messages = [*chat(10)[:-1], blank, ChatMessage.from_assistant("Water."), ChatMessage.from_user("Thanks!")]
    compacted = HybridCompactor(preserve_recent_turns=1).compact(messages, 300, COUNTER)
    assert not any(message.meta.get("pinned") for message in compacted)
