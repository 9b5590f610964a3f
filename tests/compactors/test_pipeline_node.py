# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import asyncio

import pytest
import yaml
from haystack import Pipeline
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import tool
from haystack.utils import Secret
from samples import ScriptedChatGenerator, chat, run_of, step
from servers.openai_chat import StrictOpenAIServer

from haystack_compaction import (
    CompactionReport,
    Compactor,
    EstimateTokenCounter,
    SlidingWindowCompactor,
    TiktokenCounter,
    pin,
)
from haystack_compaction.conversation.notes import is_note
from haystack_compaction.conversation.pairing import pairs_are_intact

COUNTER = EstimateTokenCounter()


@tool
def almanac(day: str, port: str) -> str:
    """Look up the tides of a day in a port."""
    return f"{day} {port}"


def test_below_the_trigger_messages_are_handed_through():
    messages = chat(3)
    result = SlidingWindowCompactor().run(messages=messages)
    assert list(map(id, result["messages"])) == list(map(id, messages))
    report = result["report"]
    assert not report.compacted
    assert report.tokens_before == report.tokens_after == COUNTER.count(messages)
    assert "below the trigger of 100000" in report.reason


def test_at_the_trigger_it_compacts_to_the_target():
    messages = chat(20)
    tokens = COUNTER.count(messages)
    result = SlidingWindowCompactor(trigger_threshold_tokens=tokens, target_tokens=tokens // 2).run(messages=messages)
    report = result["report"]
    assert report.compacted
    assert report.reached_target
    assert report.tokens_before == tokens
    assert report.tokens_after == COUNTER.count(result["messages"]) <= report.target_tokens == tokens // 2
    assert (report.messages_before, report.messages_after) == (len(messages), len(result["messages"]))
    assert report.removed_messages == len(messages) - len(result["messages"]) + 1
    assert report.strategy == "sliding_window"
    assert report.reason is None
    assert report.duration_seconds > 0


def test_the_schemas_of_tools_take_room():
    messages = chat(20)
    tokens, schemas = COUNTER.count(messages), COUNTER.count([], [almanac])
    compactor = SlidingWindowCompactor(trigger_threshold_tokens=tokens + schemas, target_tokens=tokens // 2)
    assert not compactor.run(messages=messages)["report"].compacted
    result = compactor.run(messages=messages, tools=[almanac])
    assert result["report"].compacted
    assert result["report"].tokens_after == COUNTER.count(result["messages"]) + schemas <= tokens // 2


def test_a_target_given_at_run_time_compacts_now():
    messages = chat(20)
    report = SlidingWindowCompactor().run(messages=messages, target_tokens=300)["report"]
    assert report.compacted
    assert report.tokens_after <= 300 == report.target_tokens
    with pytest.raises(ValueError, match="`target_tokens` must be at least 1, got 0"):
        SlidingWindowCompactor().run(messages=messages, target_tokens=0)


def test_a_target_out_of_reach_is_reported():
    report = SlidingWindowCompactor().run(messages=chat(20), target_tokens=5)["report"]
    assert report.compacted
    assert not report.reached_target
    assert "larger than the target" in report.reason


def test_async_does_the_same():
    messages = chat(20)
    expected = SlidingWindowCompactor().run(messages=messages, target_tokens=300)["messages"]
    result = asyncio.run(SlidingWindowCompactor().run_async(messages=messages, target_tokens=300))
    assert result["messages"] == expected
    assert result["report"].compacted


def chat_pipeline(generator, compactor):
    pipeline = Pipeline()
    pipeline.add_component("prompt", ChatPromptBuilder(required_variables="*"))
    pipeline.add_component("compactor", compactor)
    pipeline.add_component("llm", generator)
    pipeline.connect("prompt.prompt", "compactor.messages")
    pipeline.connect("compactor.messages", "llm.messages")
    return pipeline


def test_between_a_prompt_builder_and_a_real_client():
    history = chat(60)
    with StrictOpenAIServer(["At noon."], context_window=1500) as server:
        generator = OpenAIChatGenerator(api_key=Secret.from_token("key"), api_base_url=server.base_url, max_retries=0)
        pipeline = chat_pipeline(generator, SlidingWindowCompactor(trigger_threshold_tokens=1200, target_tokens=800))
        template = [*history[:-1], ChatMessage.from_user("When is high tide in {{ port }}?")]
        result = pipeline.run(
            {"prompt": {"template": template, "template_variables": {"port": "Brest"}}},
            include_outputs_from={"compactor"},
        )
    assert result["llm"]["replies"][0].text == "At noon."
    assert result["compactor"]["report"].compacted
    sent = server.requests[0]["messages"]
    assert sent[-1]["content"] == "When is high tide in Brest?"
    assert sent[0]["role"] == "system"


async def test_in_an_async_pipeline():
    pipeline = chat_pipeline(
        ScriptedChatGenerator(lambda number, messages: ChatMessage.from_assistant(f"{len(messages)} messages")),
        SlidingWindowCompactor(trigger_threshold_tokens=300, target_tokens=200),
    )
    result = await pipeline.run_async({"prompt": {"template": chat(30)}}, include_outputs_from={"compactor"})
    assert result["llm"]["replies"][0].text == f"{len(result['compactor']['messages'])} messages"
    assert result["compactor"]["report"].tokens_after <= 200


def test_yaml_round_trip_needs_no_allow_list_flag():
    compactor = SlidingWindowCompactor(
        min_keep_steps=3,
        omission_note="{num_removed} gone",
        preserve_recent_turns=2,
        preserve_system_prompt=False,
        trigger_threshold_tokens=900,
        target_tokens=500,
        token_counter=TiktokenCounter("cl100k_base"),
    )
    dumped = chat_pipeline(OpenAIChatGenerator(api_key=Secret.from_env_var("NO_KEY", strict=False)), compactor).dumps()
    restored = Pipeline.loads(dumped)
    assert restored.to_dict()["components"] == yaml.safe_load(dumped)["components"]
    node = restored.get_component("compactor")
    assert isinstance(node, SlidingWindowCompactor)
    assert isinstance(node.token_counter, TiktokenCounter)
    assert node.token_counter.encoding == "cl100k_base"
    assert (node.min_keep_steps, node.omission_note, node.preserve_recent_turns) == (3, "{num_removed} gone", 2)


def test_to_dict_names_every_option():
    assert SlidingWindowCompactor().to_dict() == {
        "type": "haystack_compaction.compactors.sliding_window.SlidingWindowCompactor",
        "init_parameters": {
            "min_keep_steps": 1,
            "omission_note": SlidingWindowCompactor().omission_note,
            "preserve_recent_turns": 0,
            "preserve_system_prompt": True,
            "pinned": None,
            "trigger_threshold_tokens": 100_000,
            "target_tokens": 80_000,
            "token_counter": None,
            "repair": True,
            "merge_notes": False,
            "archive": None,
            "on_archive_failure": "keep",
        },
    }


def test_the_report_round_trips_and_holds_no_content():
    report = SlidingWindowCompactor().run(messages=chat(20), target_tokens=300)["report"]
    assert CompactionReport.from_dict(report.to_dict()) == report
    assert "tide" not in str(report.to_dict())


def test_a_broken_conversation_comes_out_valid():
    from samples import run_of

    from haystack_compaction.testing import provider_fault

    broken = [message for index, message in enumerate(run_of(20)) if index % 7 != 4]
    result = SlidingWindowCompactor().run(messages=broken, target_tokens=500)
    assert provider_fault(result["messages"]) is None


def test_a_strategy_that_fails_costs_nothing():
    from haystack import component

    @component
    class Failing(Compactor):
        def rewrite(self, conversation, target_tokens, ledger):
            raise OSError("no disk")

    messages = chat(20)
    result = Failing().run(messages=messages, target_tokens=300)
    assert result["messages"] == messages
    assert not result["report"].compacted
    assert "OSError" in result["report"].reason


def test_a_note_of_the_first_turn_is_folded_in_the_second():
    compactor = SlidingWindowCompactor(trigger_threshold_tokens=400, target_tokens=300)
    first = compactor.run(messages=chat(20))["messages"]
    second = compactor.run(messages=[*first, ChatMessage.from_assistant("At noon."), *chat(10)[1:]])["messages"]
    assert sum(map(is_note, second)) == 1


def test_the_report_counts_a_message_that_comes_many_times():
    messages = [ChatMessage.from_user("q " * 100), ChatMessage.from_assistant("a " * 100)] * 10
    report = SlidingWindowCompactor().run(messages=messages, target_tokens=300)["report"]
    assert report.removed_messages == report.messages_before - report.messages_after + 1


def test_a_conversation_that_fits_a_manual_target_says_so():
    report = SlidingWindowCompactor().run(messages=chat(1), target_tokens=10_000)["report"]
    assert report.reason == "it fits already"


def broken_by_a_question_in_between():
    call, result = step("read_log", "all checks passed", call_id="c1")
    return [ChatMessage.from_user("Audit it."), call, ChatMessage.from_user("Still there?"), result]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_broken_history_is_repaired_also_when_nothing_is_compacted(is_async, caplog):
    messages, compactor = broken_by_a_question_in_between(), SlidingWindowCompactor()
    result = await compactor.run_async(messages=messages) if is_async else compactor.run(messages=messages)
    assert [message.role.value for message in result["messages"]] == ["user", "assistant", "tool", "user"]
    report = result["report"]
    assert not report.compacted
    assert (report.repaired_messages, report.messages_before, report.messages_after) == (2, 4, 4)
    assert caplog.text.count("was repaired in 2 places") == 1


def test_and_when_something_is():
    messages = [*run_of(30), *broken_by_a_question_in_between()]
    result = SlidingWindowCompactor().run(messages=messages, target_tokens=500)
    assert result["report"].compacted
    assert result["report"].repaired_messages == 2
    assert pairs_are_intact(result["messages"])


def test_calls_that_are_about_to_be_run_are_left_alone():
    messages = [ChatMessage.from_user("Audit it."), step("read_log", "all checks passed")[0]]
    result = SlidingWindowCompactor().run(messages=messages)
    assert result["messages"] == messages
    assert result["report"].repaired_messages == 0


def test_repair_can_be_turned_off():
    messages = broken_by_a_question_in_between()
    result = SlidingWindowCompactor(repair=False).run(messages=messages)
    assert result["messages"] == messages


def test_notes_go_into_the_user_message_beside_them_over_many_turns():
    node = SlidingWindowCompactor(merge_notes=True, trigger_threshold_tokens=400, target_tokens=250)
    messages = chat(0)[:1]
    for question, answer in zip(chat(30)[1::2], chat(30)[2::2], strict=False):
        messages = node.run(messages=[*messages, question])["messages"]
        roles = [message.role.value for message in messages]
        assert roles == ["system", *(["user", "assistant"] * len(roles))[: len(roles) - 1]]
        messages.append(answer)
    said = " ".join(message.text for message in messages)
    assert said.count("were removed to save space") == 1


def test_the_report_counts_what_a_repair_put_in_below_the_trigger():
    call = ChatMessage.from_assistant(tool_calls=[ToolCall("read_log", {}, id="1")])
    result = SlidingWindowCompactor().run(messages=[call, ChatMessage.from_user("And?")])
    assert (result["report"].messages_before, result["report"].messages_after) == (2, len(result["messages"]))


def test_pinned_results_without_a_call_crash_nothing():
    orphans = [pin(ChatMessage.from_tool("x " * 50, origin=ToolCall("read_log", {}, id=str(n)))) for n in range(3)]
    result = SlidingWindowCompactor(repair=False).run(messages=orphans, target_tokens=10)
    assert isinstance(result["report"], CompactionReport)
