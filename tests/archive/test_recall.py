# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What an Agent gets from its archive, and what it can't get."""

import asyncio
import copy

import pytest
from archive.programs import Run, archive_all, memory_archive, sqlite_archive
from haystack.components.agents import Agent
from haystack.components.agents.state.state import State
from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools import Tool
from samples import ScriptedChatGenerator, step

from haystack_compaction import (
    CompactionHook,
    EstimateTokenCounter,
    SelectivePruningCompactor,
    SlidingWindowCompactor,
    ToolResultPruningCompactor,
)
from haystack_compaction.archive import (
    RecallTool,
    TranscriptHook,
    assigned_conversation_id,
    conversation_id_in,
    full_transcript,
    recall_tool,
)
from haystack_compaction.conversation.notes import is_note

LONG = "".join(f"line {number} of a long text\n" for number in range(1_000))


@pytest.fixture
def archive(tmp_path):
    archive = sqlite_archive(tmp_path)
    yield archive
    archive.close()


@pytest.fixture
def tool(archive):
    messages = [
        ChatMessage.from_user("The password is tulip."),
        *step("read_log", "disk full on eu-1", text="Looking."),
    ]
    archive_all(archive, "a", [*messages, ChatMessage.from_user(LONG), ChatMessage.from_assistant("Read it.")])
    archive_all(archive, "b", [ChatMessage.from_user("The password is rose.")])
    return recall_tool(archive, max_characters=1_000, conversation_id="a")


def test_a_search_gives_references(tool):
    answer = tool.invoke(query="password")
    assert "[0] user: The password is tulip." in answer
    assert "rose" not in answer


def test_a_search_that_finds_nothing_says_so(tool):
    assert "No earlier message" in tool.invoke(query="absent")


@pytest.mark.parametrize("reference", ["0-2", "0 - 2", "[0-2]", "messages 0 to 2", "0..2", "0–2"])
def test_a_range_is_opened(tool, reference):
    answer = tool.invoke(reference=reference)
    assert "[0] user: The password is tulip." in answer
    assert "[1] assistant: Looking.\ncalled read_log with" in answer
    assert "[2] result of read_log: disk full on eu-1" in answer
    assert "There is more" not in answer


@pytest.mark.parametrize("reference", ["99", "-5", "7-3", "9" * 14, "0-999999999"])
def test_any_reference_gives_an_answer_of_bounded_length(tool, reference):
    assert 0 < len(tool.invoke(reference=reference)) <= 1_000


@pytest.mark.parametrize("reference", ["abc", "1-2-3", "-", "9" * 40])
def test_what_is_no_reference_is_explained(tool, reference):
    assert "such as '57' or '57-60'" in tool.invoke(reference=reference)


def test_neither_is_explained(tool):
    assert tool.invoke() == tool.invoke(query=" ", reference="") != ""


def test_everything_is_read_page_by_page_and_no_page_is_too_long(tool):
    arguments, pages = {"reference": "0-4"}, []
    while arguments:
        answer = tool.invoke(**arguments)
        assert len(answer) <= 1_000
        body, _, more = answer.partition("There is more: call again with ")
        pages.append(body.partition("\n\n")[2].removesuffix("\n\n"))
        arguments = eval(f"dict({more.removesuffix('.').replace(' and ', ', ')})") if more else None
        assert len(pages) < 99
    text = "".join(pages)
    assert LONG.rstrip() in text
    assert text.endswith("[4] assistant: Read it.")


def test_a_search_keeps_to_the_limit(archive):
    archive_all(archive, "a", [ChatMessage.from_user(f"tide {number} " + "word " * 90) for number in range(30)])
    for limit in (400, 1_000, 4_000):
        answer = recall_tool(archive, max_characters=limit, conversation_id="a").invoke(query="tide")
        assert "[" in answer
        assert len(answer) <= limit


def test_a_limit_that_is_too_small_is_refused(archive):
    with pytest.raises(ValueError, match="at least 400, got 10"):
        recall_tool(archive, max_characters=10)


def test_serialized_and_copied(tool):
    data = tool.to_dict()
    again = RecallTool.from_dict(copy.deepcopy(data))
    assert again.to_dict() == data
    assert again.tool_spec == tool.tool_spec
    for other in (again, copy.deepcopy(tool)):
        assert "tulip" in other.invoke(query="password")
        other.archive.close()


def run_agent(tool, calls, **inputs):
    """Let an Agent make calls, one a step, and return what they were answered with."""
    script = [
        ChatMessage.from_assistant(tool_calls=[ToolCall("recall", call, id=f"c{n}")]) for n, call in enumerate(calls)
    ]
    generator = ScriptedChatGenerator(lambda index, messages: [*script, ChatMessage.from_assistant("Done.")][index])
    schema = {"conversation_id": {"type": str}}
    agent = Agent(chat_generator=generator, tools=[tool], state_schema=schema, max_agent_steps=20)
    result = agent.run(messages=[ChatMessage.from_user("Go")], **inputs)
    return [message.tool_call_result for message in result["messages"] if message.tool_call_results]


@pytest.mark.parametrize(
    "inputs", [{"hook_context": {"conversation_id": "b"}}, {"conversation_id": "b"}, {"hook_context": {}}]
)
def test_the_conversation_is_that_of_the_run(tool, inputs):
    (answer,) = run_agent(tool, [{"query": "password"}], **inputs)
    assert ("rose" in answer.result) is ("b" in str(inputs))
    assert ("tulip" in answer.result) is ("b" not in str(inputs))


def test_a_model_can_not_choose_the_conversation(tool):
    calls = [
        {"query": "password", "conversation_id": "a"},
        {"query": "password", "state": {"conversation_id": "a"}},
        {"query": "password", "state": None},
    ]
    answers = run_agent(tool, calls, hook_context={"conversation_id": "b"})
    assert not any("tulip" in answer.result for answer in answers)
    assert "rose" in answers[2].result


def test_a_run_without_an_id_says_what_to_do(archive):
    (answer,) = run_agent(recall_tool(archive), [{"query": "password"}])
    assert answer.error
    assert "hook_context" in answer.result


async def test_concurrent_runs_see_their_own_conversations_only(archive):
    for name in map(str, range(8)):
        archive_all(archive, name, [ChatMessage.from_user(f"The password is flower-{name}.")])
    tool = recall_tool(archive)

    async def password(name):
        state = State(schema={}, data={"hook_context": {"conversation_id": name}})
        return await tool.invoke_async(query="password", state=state)

    answers = await asyncio.gather(*map(password, [str(number % 8) for number in range(40)]))
    for number, answer in enumerate(answers):
        assert [f"flower-{name}." in answer for name in range(8)] == [name == number % 8 for name in range(8)]


def test_an_id_is_made_once_for_a_run_and_put_where_tools_find_it():
    mine = {"user": "me"}
    state = State(schema={}, data={"hook_context": mine})
    assert conversation_id_in(state) is None
    made = assigned_conversation_id(state)
    assert assigned_conversation_id(state) == conversation_id_in(state) == made
    assert state.data["hook_context"]["user"] == "me"
    assert mine == {"user": "me"}
    assert assigned_conversation_id(State(schema={})) != made
    assert assigned_conversation_id(State(schema={}, data={"hook_context": {"conversation_id": 7}})) == "7"


@pytest.mark.parametrize("archive_in", [sqlite_archive, memory_archive])
def test_a_fact_of_step_3_is_asked_for_at_step_60_and_found(archive_in, tmp_path):
    archive = archive_in(tmp_path)
    work = Tool(
        name="work",
        description="Works.",
        parameters={"type": "object", "properties": {"step": {"type": "integer"}}},
        function=lambda step: "the vault code is 9Q-4471" if step == 3 else f"step {step} went well " * 9,
    )

    def reply(index, messages):
        said = " ".join(str(result.result) for message in messages for result in message.tool_call_results)
        if index < 60:
            assert index < 30 or "9Q-4471" not in said
            return ChatMessage.from_assistant(tool_calls=[ToolCall("work", {"step": index}, id=f"c{index}")])
        if index == 60:
            return ChatMessage.from_assistant(tool_calls=[ToolCall("recall", {"query": "vault code"}, id="r")])
        return ChatMessage.from_assistant("It is 9Q-4471." if "9Q-4471" in said else "I do not know.")

    hook = CompactionHook(SlidingWindowCompactor(min_keep_steps=2), context_window=1500, archive=archive)
    agent = Agent(
        chat_generator=ScriptedChatGenerator(reply),
        tools=[work, recall_tool(archive)],
        hooks={"before_llm": [hook], "after_run": [TranscriptHook(archive)]},
        state_schema={"transcript": {"type": list[ChatMessage]}},
        max_agent_steps=80,
    )
    result = agent.run(messages=[ChatMessage.from_user("Do it.")], hook_context={"conversation_id": "x"})
    assert result["last_message"].text == "It is 9Q-4471."
    assert len(result["messages"]) < 40
    (note,) = filter(is_note, result["messages"])
    removed = result["transcript"].index(result["messages"][2]) - 1
    assert f"`recall`: reference 1-{removed}" in note.text
    # The question, 61 calls with their results, and the answer.
    assert len(result["transcript"]) == 1 + 2 * 61 + 1
    assert result["transcript"] == full_transcript(archive, "x", result["messages"])
    archive.close()


def test_a_transcript_of_an_archive_that_fails_is_what_is_left(archive, monkeypatch, caplog):
    monkeypatch.setattr(archive, "outline", None)
    hook = TranscriptHook.from_dict(TranscriptHook(archive, key="all").to_dict())
    hook.archive = archive
    messages = [ChatMessage.from_user("Hi")]
    state = State(schema={"all": {"type": list[ChatMessage]}}, data={"messages": messages, "conversation_id": "a"})
    hook.run(state)
    assert state.data["all"] == messages
    assert "could not be read" in caplog.text


def test_what_recall_returned_is_not_found_again(archive):
    archive_all(archive, "a", [ChatMessage.from_user("The password is tulip.")])
    run = Run(archive, messages=[])
    for number in range(3):
        answer = recall_tool(archive, conversation_id="a").invoke(query="tulip")
        assert answer.count("tulip") == 1
        run.messages += step("recall", answer, call_id=str(number))
        run.replace_with(run.messages[-1:])


@pytest.mark.parametrize("compactor", [SelectivePruningCompactor(), ToolResultPruningCompactor()])
def test_what_recall_returned_is_the_first_to_go(compactor):
    task = ChatMessage.from_user("Do it.")
    older, newer = (
        step("read_log", "all checks passed " * 90, call_id="1"),
        step("read_log", "fine " * 200, call_id="3"),
    )
    recalled = step("recall", "The password is tulip. " * 90, call_id="2")
    messages = [task, *older, *recalled, *newer]
    compacted = compactor.run(messages=messages, target_tokens=EstimateTokenCounter().count(messages) - 100)["messages"]
    assert older[1] in compacted
    assert recalled[1] not in compacted
