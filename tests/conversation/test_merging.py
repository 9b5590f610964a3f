# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import json

import pytest
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage, ImageContent
from samples import chat, step, texts
from servers.base import Call, Reply
from servers.openai_chat import StrictOpenAIServer
from survival import compactors
from test_chat_generator import openai_generator
from test_hook import TASK, read_log

from haystack_compaction import CompactionHook, SlidingWindowCompactor, SummarizationCompactor
from haystack_compaction.chat_generator import CompactingChatGenerator
from haystack_compaction.conversation.merging import MERGED_META_KEY, NoteMerger
from haystack_compaction.conversation.notes import is_note, omission_note, pin

NOTE = omission_note("{num_removed} are gone.", strategy="sliding_window", removed_messages=7, kept_messages=3)
OTHER = omission_note("{num_removed} more.", strategy="sliding_window", removed_messages=2, kept_messages=3)
REPLY = ChatMessage.from_assistant("Noon.")
# What stays of a message whose calls went.
LEFT = ChatMessage.from_assistant("I look.", meta={"context_compaction": {"strategy": "selective_pruning"}})
SYSTEM = ChatMessage.from_system("Be brief.")


@pytest.mark.parametrize(
    ("messages", "merged"),
    [
        ([SYSTEM, NOTE, TASK], ["Be brief.", "7 are gone.\n\nAudit every service."]),
        ([TASK, NOTE, *step("read_log", "fine")], ["Audit every service.\n\n7 are gone.", "", "fine"]),
        ([NOTE, TASK, OTHER], ["7 are gone.\n\nAudit every service.\n\n2 more."]),
        ([NOTE, OTHER, REPLY], ["7 are gone.\n\n2 more.", "Noon."]),
        ([NOTE, REPLY, TASK], ["7 are gone.", "Noon.", "Audit every service."]),
        ([TASK, NOTE, TASK], ["Audit every service.", "7 are gone.\n\nAudit every service."]),
        (
            [TASK, LEFT, LEFT, NOTE, *step("read_log", "fine")],
            [TASK.text, "I look.\n\nI look.", "7 are gone.", "", "fine"],
        ),
        ([TASK, LEFT, REPLY, TASK], [TASK.text, "I look.\n\nNoon.", TASK.text]),
        ([TASK, REPLY, REPLY, TASK], [TASK.text, "Noon.", "Noon.", TASK.text]),
        ([], []),
    ],
)
def test_notes_go_into_the_message_beside_them(messages, merged):
    merger = NoteMerger()
    result = merger.merged(messages)
    assert texts(result) == merged
    again = merger.split(result)
    assert len(again) == len(messages)
    assert all(part is message for part, message in zip(again, messages, strict=True))


def test_the_same_parts_make_the_same_message():
    merger = NoteMerger()
    (first,) = merger.merged([NOTE, TASK])
    (second,) = merger.merged(merger.split([first]))
    assert first is second


def test_whoever_gets_it_can_take_it_apart():
    picture = ImageContent("aGk=", mime_type="image/png", validation=False)
    task = pin(ChatMessage.from_user(content_parts=["Look at this.", picture], meta={"of": "mine"}))
    (merged,) = NoteMerger().merged([NOTE, task])
    assert not is_note(merged)
    assert merged.meta["pinned"]
    assert merged.meta["of"] == "mine"
    assert merged.images == [picture]
    restored = ChatMessage.from_dict(json.loads(json.dumps(merged.to_dict())))
    assert NoteMerger().split([restored]) == [NOTE, task]


def read_a_log_or_answer(index, messages):
    return Reply(f"Log {index}.", [Call("read_log", {"number": index})]) if index < 60 else "All is well."


@pytest.mark.parametrize("name", compactors())
def test_a_run_against_a_template_that_wants_roles_to_alternate(name):
    hook = CompactionHook(compactors()[name](), context_window=2_500, merge_notes=True)
    with StrictOpenAIServer(read_a_log_or_answer, context_window=2_500, strict_alternation=True) as server:
        agent = Agent(
            chat_generator=openai_generator(server), tools=[read_log], hooks={"before_llm": [hook]}, max_agent_steps=80
        )
        result = agent.run(messages=[*chat(8), REPLY, TASK])
    assert server.errors == []
    assert result["last_message"].text == "All is well."
    for request in server.requests:
        spoken = [str(message.get("content")) for message in request["messages"]]
        assert sum(TASK.text in text for text in spoken) == 1


def test_without_it_such_a_template_refuses():
    hook = CompactionHook(SlidingWindowCompactor(), context_window=2_500)
    with StrictOpenAIServer(read_a_log_or_answer, context_window=2_500, strict_alternation=True) as server:
        agent = Agent(
            chat_generator=openai_generator(server), tools=[read_log], hooks={"before_llm": [hook]}, max_agent_steps=80
        )
        with pytest.raises(Exception, match="must alternate"):
            agent.run(messages=[*chat(8), REPLY, TASK])


def test_notes_add_up_although_they_were_merged():
    hook = CompactionHook(SlidingWindowCompactor(), context_window=2_500, merge_notes=True)
    with StrictOpenAIServer(read_a_log_or_answer, context_window=2_500, strict_alternation=True) as server:
        agent = Agent(
            chat_generator=openai_generator(server), tools=[read_log], hooks={"before_llm": [hook]}, max_agent_steps=80
        )
        messages = agent.run(messages=[TASK])["messages"]
    notes = [note for note in NoteMerger().split(messages) if is_note(note)]
    assert len(notes) == 1
    kept = len(messages) - len(notes) - 1
    assert notes[0].meta["context_compaction"]["removed_messages"] == 1 + 2 * 60 + 1 - len(messages)
    assert kept > 0


def test_around_a_chat_generator():
    messages = chat(30)
    with StrictOpenAIServer(["Noon."] * 10, context_window=2_000, strict_alternation=True) as server:
        generator = CompactingChatGenerator(
            openai_generator(server), SummarizationCompactor(), context_window=2_000, merge_notes=True
        )
        for turn in range(10):
            messages += [generator.run(messages)["replies"][0], ChatMessage.from_user(f"And on day {turn}? " * 20)]
    assert server.errors == []
    assert not any(MERGED_META_KEY in message.meta for message in messages)


def test_the_option_survives_serialization():
    hook = CompactionHook(SlidingWindowCompactor(), context_window=2_500, merge_notes=True)
    assert CompactionHook.from_dict(hook.to_dict()).window.merge_notes is True
