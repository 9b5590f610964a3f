# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The hook, the chat generator and the pipeline node archive what they take out of a conversation, before it goes."""

import asyncio
import copy

import pytest
from archive.programs import memory_archive, sqlite_archive
from archive.test_writer import Flaky
from haystack import Pipeline
from haystack.components.agents import Agent
from haystack.components.agents.state.state import State
from haystack.components.generators.chat import MockChatGenerator
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.hooks.compaction import SlidingWindowCompactor as HaystackWindow
from haystack.hooks.compaction import ToolResultPruningCompactor as HaystackPruning
from samples import ScriptedChatGenerator, chat, run_of, step
from test_hook import TASK, auditing, read_log

from haystack_compaction import (
    CompactingChatGenerator,
    CompactionHook,
    HybridCompactor,
    ImportanceScoringCompactor,
    SelectivePruningCompactor,
    SlidingWindowCompactor,
    SummarizationCompactor,
    ToolResultPruningCompactor,
    TruncationCompactor,
)
from haystack_compaction.archive import (
    ArchiveError,
    DocumentStoreArchive,
    SQLiteArchive,
    TranscriptHook,
    conversation_id_in,
    full_transcript,
    recall_tool,
)
from haystack_compaction.conversation.notes import is_note
from haystack_compaction.conversation.pairing import pairs_are_intact

STEPS = 40
COMPACTORS = [
    SlidingWindowCompactor(),
    SummarizationCompactor(),
    SelectivePruningCompactor(),
    ToolResultPruningCompactor(),
    ImportanceScoringCompactor(),
    TruncationCompactor(),
    HybridCompactor(),
    HaystackWindow(),
    HaystackPruning(),
]


def next_log(_, messages):
    """What `auditing` does, for several runs at a time: the newest call tells how far this one got."""
    task = max(index for index, message in enumerate(messages) if message.is_from("user") and not is_note(message))
    calls = [call.arguments["number"] for message in messages[task:] for call in message.tool_calls]
    return auditing(STEPS)(calls[-1] + 1 if calls else 0, messages)


def agent_with(hook, archive, tools=()):
    return Agent(
        chat_generator=ScriptedChatGenerator(next_log),
        tools=[read_log, *tools],
        hooks={"before_llm": [hook], "after_run": [TranscriptHook(archive)]},
        state_schema={"transcript": {"type": list[ChatMessage]}},
        max_agent_steps=100,
    )


@pytest.mark.parametrize("compactor", COMPACTORS, ids=lambda compactor: type(compactor).__name__)
def test_an_agents_run_gives_the_full_transcript_whatever_the_compactor(tmp_path, compactor):
    archive = memory_archive(tmp_path)
    hook = CompactionHook(compactor, context_window=2_500, archive=archive)
    result = agent_with(hook, archive).run(messages=[TASK], hook_context={"conversation_id": "seven"})
    assert len(archive.passes("seven")) >= 1
    assert len(result["transcript"]) == 1 + 2 * STEPS + 1
    assert result["transcript"][0] == TASK
    results = [message for message in result["transcript"] if message.tool_call_results]
    assert len({message.tool_call_result.origin.id for message in results}) == STEPS
    assert all(not is_note(message) for message in result["transcript"])


async def test_concurrent_runs_of_one_hook_have_conversations_of_their_own(tmp_path):
    archive = sqlite_archive(tmp_path)
    agent = agent_with(CompactionHook(SlidingWindowCompactor(), context_window=2_500, archive=archive), archive)
    tasks = [ChatMessage.from_user(f"Audit every service of customer {number}.") for number in range(6)]
    results = await asyncio.gather(*(agent.run_async(messages=[task]) for task in tasks))
    for task, result in zip(tasks, results, strict=True):
        assert result["transcript"][0] == task
        assert len(result["transcript"]) == 1 + 2 * STEPS + 1
    assert len(archive.conversations()) == 6
    archive.close()


def test_a_resumed_conversation_goes_on_in_the_archive(tmp_path):
    archive = sqlite_archive(tmp_path)
    hook = CompactionHook(SlidingWindowCompactor(), context_window=2_500, archive=archive)
    context = {"conversation_id": "seven"}
    first = agent_with(hook, archive).run(messages=[TASK], hook_context=context)
    stored = [ChatMessage.from_dict(message.to_dict()) for message in first["messages"]]
    more = [*stored, ChatMessage.from_user("And once more.")]
    second = agent_with(copy.deepcopy(hook), archive).run(messages=more, hook_context=context)
    assert len(second["transcript"]) == 2 * (1 + 2 * STEPS + 1)
    archive.close()


@pytest.mark.parametrize("front", ["hook", "generator", "node"])
def test_options_survive_serialization(tmp_path, front):
    options = {"archive": SQLiteArchive(str(tmp_path / "a.sqlite")), "on_archive_failure": "drop"}
    made = {
        "hook": lambda: CompactionHook(SlidingWindowCompactor(), context_window=1_000, **options),
        "generator": lambda: CompactingChatGenerator(MockChatGenerator("Hi"), context_window=9, **options),
        "node": lambda: SlidingWindowCompactor(**options),
    }[front]()
    data = made.to_dict()
    loaded = type(made).from_dict(copy.deepcopy(data))
    assert loaded.to_dict() == data
    assert isinstance(loaded.archive, SQLiteArchive)


@pytest.mark.parametrize("policy", ["ignore", None])
def test_an_unknown_policy_is_refused_by_every_front(policy):
    for make in (
        lambda: CompactionHook(SlidingWindowCompactor(), context_window=9, on_archive_failure=policy),
        lambda: CompactingChatGenerator(None, context_window=9, on_archive_failure=policy),
        lambda: SlidingWindowCompactor(on_archive_failure=policy),
    ):
        with pytest.raises(ValueError, match="`on_archive_failure` must be one of keep, drop, raise"):
            make()


def beginnings(messages):
    """What is new before each request of a run: first the task, then a step at a time."""
    yield messages[:2]
    for start in range(2, len(messages), 2):
        yield messages[start : start + 2]


class TestWhenTheArchiveFails:
    @pytest.fixture
    def flaky(self, tmp_path):
        return Flaky(memory_archive(tmp_path), "append")

    def run(self, flaky, policy, steps=STEPS):
        hook = CompactionHook(
            SlidingWindowCompactor(), context_window=2_500, archive=flaky, on_archive_failure=policy, reports_key="all"
        )
        state = State(
            schema={"messages": {"type": list[ChatMessage]}, "all": {"type": list}},
            data={"hook_context": {"conversation_id": "a"}},
        )
        for messages in beginnings(run_of(steps, words=12)):
            state.data["messages"] = [*(state.data.get("messages") or []), *messages]
            hook.run(state)
        return state

    def test_the_run_keeps_its_messages_while_they_fit(self, flaky, caplog):
        state = self.run(flaky, "keep", steps=52)
        tokens = [report.tokens_before for report in state.data["all"]]
        assert tokens
        assert max(tokens) < 2_375
        assert len(state.data["messages"]) == 2 + 2 * 52
        assert all("archive" in report.reason and not report.compacted for report in state.data["all"])
        # Not at every step, although the trigger is passed at every one of them.
        assert len(tokens) < 6
        assert "not compacted while it fits" in caplog.text

    def test_when_they_no_longer_fit_it_goes_on_and_archives_them_later(self, flaky, caplog):
        state = self.run(flaky, "keep", steps=60)
        assert len(state.data["messages"]) < 2 + 2 * 60
        assert "LOST if the process ends" in caplog.text

    def test_what_was_dropped_is_archived_with_the_next_compaction(self, flaky):
        hook = CompactionHook(SlidingWindowCompactor(), context_window=2_500, archive=flaky, on_archive_failure="drop")
        state = State(schema={"messages": {"type": list[ChatMessage]}}, data={"messages": []})
        original = run_of(120, words=12)
        for number, messages in enumerate(beginnings(original)):
            flaky.fails = number < 80
            state.data["messages"] = [*state.data["messages"], *messages]
            hook.run(state)
        transcript = full_transcript(flaky, conversation_id_in(state), state.data["messages"])
        assert transcript == original

    def test_or_the_error_ends_the_run(self, flaky):
        with pytest.raises(ArchiveError, match="disk full"):
            self.run(flaky, "raise", steps=60)

    def test_a_node_hands_the_conversation_through(self, flaky, caplog):
        messages = chat(20)
        result = SlidingWindowCompactor(archive=flaky).run(messages=messages, target_tokens=300)
        assert result["messages"] == messages
        assert not result["report"].compacted
        assert "archive" in result["report"].reason
        with pytest.raises(ArchiveError):
            SlidingWindowCompactor(archive=flaky, on_archive_failure="raise").run(messages=messages, target_tokens=300)


def test_what_a_repair_takes_out_is_archived(tmp_path):
    archive = memory_archive(tmp_path)
    hook = CompactionHook(SlidingWindowCompactor(), context_window=100_000, archive=archive)
    orphan = ChatMessage.from_tool("nobody asked", origin=ToolCall("read_log", {}, id="x"))
    messages = [TASK, *step("read_log", "fine"), orphan, ChatMessage.from_assistant("Done.")]
    state = State(
        schema={"messages": {"type": list[ChatMessage]}},
        data={"messages": list(messages), "hook_context": {"conversation_id": "a"}},
    )
    hook.run(state)
    assert pairs_are_intact(state.data["messages"])
    assert full_transcript(archive, "a", state.data["messages"]) == messages


class TestNode:
    def test_a_chat_of_many_turns_is_archived_under_the_id_it_is_given(self, tmp_path):
        archive = memory_archive(tmp_path)
        pipeline = Pipeline()
        pipeline.add_component("compactor", SlidingWindowCompactor(archive=archive))
        messages, original = [], []
        for turn in chat(30)[1:]:
            original.append(turn)
            inputs = {"messages": [*messages, turn], "target_tokens": 400, "conversation_id": "a"}
            messages = pipeline.run({"compactor": inputs})["compactor"]["messages"]
        assert len(messages) < len(original)
        assert full_transcript(archive, "a", messages) == original
        assert {record.number for record in archive.passes("a")} == set(range(1, len(archive.passes("a")) + 1))

    async def test_without_one_the_report_says_which_was_made(self, tmp_path):
        archive = memory_archive(tmp_path)
        result = await SlidingWindowCompactor(archive=archive).run_async(messages=chat(20), target_tokens=300)
        assert archive.conversations() == [result["report"].conversation_id]
        assert full_transcript(archive, result["report"].conversation_id, result["messages"]) == chat(20)

    def test_a_conversation_that_fits_is_no_matter_for_the_archive(self, tmp_path):
        archive = memory_archive(tmp_path)
        result = SlidingWindowCompactor(archive=archive).run(messages=chat(2))
        assert result["report"].conversation_id is None
        assert archive.conversations() == []


class TestGenerator:
    def converse(self, generator, turns, **options):
        messages = []
        for question in chat(turns)[1::2]:
            messages.append(question)
            reply = generator.run(messages=messages, **options)["replies"][0]
            messages.append(ChatMessage.from_assistant(reply.text, meta=reply.meta))
        return messages

    def generator(self, archive):
        return CompactingChatGenerator(
            ScriptedChatGenerator(lambda index, messages: ChatMessage.from_assistant(f"Answer {index}. " * 20)),
            context_window=1_000,
            archive=archive,
        )

    def test_everything_is_in_the_archive_or_in_the_last_request(self, tmp_path):
        archive = memory_archive(tmp_path)
        generator = self.generator(archive)
        messages = self.converse(generator, 20, conversation_id="a")
        sent = generator.chat_generator.requests[-1]
        assert len(sent) < len(messages) - 1
        assert full_transcript(archive, "a", sent) == messages[:-1]
        assert archive.conversations() == ["a"]

    def test_conversations_that_begin_alike_stay_apart(self, tmp_path):
        archive = memory_archive(tmp_path)
        generator = self.generator(archive)
        shared = self.converse(generator, 20, conversation_id="a")
        secret = [*shared, ChatMessage.from_user("The password is tulip. " * 20), ChatMessage.from_assistant("Noted.")]
        for _ in range(8):
            secret = [*secret, ChatMessage.from_user("Go on. " * 60), ChatMessage.from_assistant("Yes.")]
            generator.run(messages=secret[:-1], conversation_id="a")
            generator.run(messages=[*shared, ChatMessage.from_user("Hello. " * 90)], conversation_id="b")
        assert archive.search("a", "tulip")
        assert not archive.search("b", "tulip")

    def test_without_an_id_one_is_made_and_kept(self, tmp_path):
        archive = memory_archive(tmp_path)
        messages = self.converse(self.generator(archive), 20)
        reports = [m.meta["context_compaction_report"] for m in messages if "context_compaction_report" in m.meta]
        assert len(reports) > 2
        assert archive.conversations() == [reports[0]["conversation_id"]] == [reports[-1]["conversation_id"]]


class TestReferences:
    def test_notes_name_the_tool_and_what_it_is_to_be_called_with(self, tmp_path):
        archive = memory_archive(tmp_path)
        for compactor in (SlidingWindowCompactor(), SummarizationCompactor(), HybridCompactor(), HaystackWindow()):
            hook = CompactionHook(compactor, context_window=3_000, archive=archive)
            agent = agent_with(hook, archive, tools=[recall_tool(archive)])
            name = type(compactor).__name__
            result = agent.run(messages=[TASK], hook_context={"conversation_id": name})
            notes = [message for message in result["messages"] if is_note(message)]
            assert notes
            for note in notes:
                assert note.text.count("can be read with the tool `recall`: reference 1-") == 1
            assert agent.chat_generator.requests[-1][-1].role == "tool"

    def test_without_the_tool_nothing_is_said_about_it(self, tmp_path):
        archive = memory_archive(tmp_path)
        hook = CompactionHook(SlidingWindowCompactor(), context_window=2_500, archive=archive)
        result = agent_with(hook, archive).run(messages=[TASK])
        assert "recall" not in " ".join(message.text or "" for message in result["messages"])

    def test_a_node_that_knows_the_tool_does_the_same(self):
        archive = DocumentStoreArchive.from_dict(memory_archive(None).to_dict())
        node = SlidingWindowCompactor(archive=archive)
        result = node.run(messages=chat(20), target_tokens=300, tools=[recall_tool(archive)])
        (note,) = filter(is_note, result["messages"])
        assert "`recall`: reference 1-" in note.text
        assert result["report"].tokens_after <= 300


def test_what_a_repair_put_in_is_no_part_of_the_transcript(tmp_path):
    archive = memory_archive(tmp_path)
    hook = CompactionHook(SlidingWindowCompactor(), context_window=1_000, archive=archive)
    lost = ChatMessage.from_assistant(tool_calls=[ToolCall("read_log", {}, id="lost")])
    original = [TASK, lost, *run_of(20)[2:]]
    state = State(
        schema={"messages": {"type": list[ChatMessage]}},
        data={"messages": list(original), "hook_context": {"conversation_id": "a"}},
    )
    hook.run(state)
    assert len(state.data["messages"]) < len(original)
    assert full_transcript(archive, "a", state.data["messages"]) == original


async def test_a_repair_that_cannot_be_archived_ends_the_generators_run_where_that_is_wanted(tmp_path):
    inner = ScriptedChatGenerator(lambda index, messages: ChatMessage.from_assistant("Hi."))
    flaky = Flaky(memory_archive(tmp_path), "append")
    generator = CompactingChatGenerator(inner, context_window=9_000, archive=flaky, on_archive_failure="raise")
    orphan = ChatMessage.from_tool("nobody asked", origin=ToolCall("read_log", {}, id="x"))
    with pytest.raises(ArchiveError):
        generator.run(messages=[TASK, orphan, TASK])
    with pytest.raises(ArchiveError):
        await generator.run_async(messages=[TASK, orphan, TASK])
    assert inner.requests == []
