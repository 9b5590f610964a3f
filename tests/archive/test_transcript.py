# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Whatever passes do to a conversation, and whatever its owner does in between, all of it comes back in order."""

from dataclasses import replace

import haystack.hooks.compaction as haystacks
import pytest
from archive.programs import Run, copied, memory_archive, sqlite_archive, stored_and_loaded
from haystack.dataclasses import ChatMessage, TextContent, ToolCall
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import ScriptedChatGenerator, chat, run_of, step

from haystack_compaction import (
    HybridCompactor,
    ImportanceScoringCompactor,
    SelectivePruningCompactor,
    SlidingWindowCompactor,
    SummarizationCompactor,
    ToolResultPruningCompactor,
    TruncationCompactor,
    repair_tool_pairs,
)
from haystack_compaction.archive import full_transcript
from haystack_compaction.conversation.merging import NoteMerger
from haystack_compaction.conversation.notes import is_note, omission_note
from haystack_compaction.testing import conversations

SUMMARIZER = ScriptedChatGenerator(lambda index, messages: ChatMessage.from_assistant(messages[-1].text[:60]))
COMPACTORS = [
    SlidingWindowCompactor(preserve_recent_turns=0),
    SlidingWindowCompactor(preserve_recent_turns=1),
    SelectivePruningCompactor(preserve_recent_turns=0),
    ImportanceScoringCompactor(preserve_recent_turns=0),
    ToolResultPruningCompactor(preserve_recent_turns=0),
    TruncationCompactor(),
    HybridCompactor(preserve_recent_turns=0),
    SummarizationCompactor(chat_generator=SUMMARIZER, preserve_recent_turns=0),
    haystacks.SlidingWindowCompactor(),
    haystacks.ToolResultPruningCompactor(),
]
DEEDS = ["keep", "keep", "keep", "remove", "remove", "shorten", "move", "note"]


def meddled(messages, deeds):
    """What a third party's strategy could make of a conversation."""
    after = []
    for index, message in enumerate(messages):
        deed = deeds[index % len(deeds)]
        if deed == "keep":
            after.append(message)
        if deed == "shorten":
            after.append(replace(message, _content=[TextContent(f"shortened {index}")]))
        if deed == "move":
            after.insert(len(after) // 2, message)
        if deed == "note":
            folded = [message] if is_note(message) else []
            after.append(omission_note("gone", strategy="x", removed_messages=1, kept_messages=0, folded=folded))
    return after or list(messages)


def without_notes(messages):
    return [message for message in messages if not is_note(message)]


@pytest.mark.parametrize(("archive_in", "max_examples"), [(sqlite_archive, 15), (memory_archive, 60)])
def test_any_number_of_passes_of_any_strategies(archive_in, max_examples, tmp_path_factory):
    @settings(max_examples=max_examples, deadline=None)
    @given(st.data())
    def check(data):
        archive = archive_in(tmp_path_factory.mktemp("archive"))
        run, original = Run(archive), []
        for _ in range(data.draw(st.integers(1, 6))):
            traffic = data.draw(conversations())
            original += traffic
            between = data.draw(st.sampled_from(["same run", "copied", "loaded", "all copied", "all loaded"]))
            if between == "same run":
                run.messages += traffic
            else:
                known = [*original] if between.startswith("all") else [*run.messages, *traffic]
                copy = copied if between.endswith("copied") else stored_and_loaded
                run = Run(archive, messages=copy(known))
            if data.draw(st.integers(0, 3)):
                target = data.draw(st.integers(1, 400))
                run.compact(data.draw(st.sampled_from(COMPACTORS)), target)
            else:
                deeds = data.draw(st.lists(st.sampled_from(DEEDS), min_size=1, max_size=9))
                run.replace_with(meddled(run.messages, deeds))
        assert full_transcript(archive, "a", run.messages) == without_notes(original)
        assert full_transcript(archive, "a", stored_and_loaded(run.messages)) == without_notes(original)
        archive.close()

    check()


@pytest.fixture
def archive(tmp_path):
    archive = sqlite_archive(tmp_path)
    yield archive
    archive.close()


def test_messages_that_are_left_are_the_same_objects(archive):
    run = Run(archive, messages=chat(20))
    run.compact(SlidingWindowCompactor(preserve_recent_turns=1), 200)
    restored = full_transcript(archive, "a", run.messages)
    assert restored[-1] is run.messages[-1]
    assert restored == chat(20)


def test_the_same_object_twice_and_equal_messages(archive):
    yes = ChatMessage.from_user("yes")
    original = [
        yes,
        ChatMessage.from_assistant("1"),
        yes,
        ChatMessage.from_assistant("2"),
        ChatMessage.from_user("yes"),
    ]
    run = Run(archive, messages=original)
    run.replace_with(original[2:])
    run.messages.append(yes)
    run.replace_with(run.messages[1:])
    assert full_transcript(archive, "a", run.messages) == [*original, yes]
    assert full_transcript(archive, "a", copied(run.messages)) == [*original, yes]


def test_a_message_that_a_pass_doubles(archive):
    run = Run(archive, messages=chat(2))
    run.replace_with([run.messages[0], *run.messages])
    run.replace_with(run.messages[:1])
    assert full_transcript(archive, "a", run.messages) == chat(2)


def test_a_message_that_is_shortened_again_and_again(archive):
    run = Run(archive, messages=run_of(8, words=300))
    original = list(run.messages)
    for target in (1_500, 700, 300, 150):
        run.compact(TruncationCompactor(), target)
        run = Run(archive, messages=stored_and_loaded(run.messages))
    assert run.messages != original
    assert full_transcript(archive, "a", run.messages) == original


def test_what_a_repair_moves_splits_and_drops(archive):
    first, second = (ToolCall("f", {"x": number}, id=f"c{number}") for number in (1, 2))
    original = [
        ChatMessage.from_user("Go"),
        ChatMessage.from_assistant(tool_calls=[first]),
        ChatMessage.from_user("Are you there?"),
        ChatMessage.from_tool("one", origin=first),
        ChatMessage.from_tool("nobody asked", origin=ToolCall("g", {}, id="lost")),
        ChatMessage.from_assistant(tool_calls=[first, second]),
        replace(
            ChatMessage.from_tool("one", origin=first),
            _content=[
                ChatMessage.from_tool("one", origin=first).tool_call_result,
                ChatMessage.from_tool("two", origin=second).tool_call_result,
            ],
        ),
        ChatMessage.from_assistant(tool_calls=[second]),
        ChatMessage.from_user("Never answered"),
    ]
    run = Run(archive, messages=original)
    run.replace_with(repair_tool_pairs(original))
    assert run.messages != original
    run.messages += step("f", "more")
    run.replace_with(run.messages[3:])
    assert full_transcript(archive, "a", run.messages) == [*original, *step("f", "more")]


def test_a_system_prompt_that_is_another_one_each_day(archive):
    monday, tuesday = ChatMessage.from_system("It is Monday."), ChatMessage.from_system("It is Tuesday.")
    history = chat(6)[1:]
    run = Run(archive, messages=[monday, *history])
    run.replace_with([monday, *history[-3:]])
    run = Run(archive, messages=[tuesday, *copied(run.messages[1:])])
    run.replace_with([tuesday, run.messages[-1]])
    restored = full_transcript(archive, "a", run.messages)
    # The old one was taken out by its owner and not by a pass.
    assert [message for message in restored if message is not tuesday] == history
    assert restored.count(tuesday) == 1


def test_notes_that_were_folded_into_user_messages(archive):
    run = Run(archive, messages=chat(12))
    run.compact(SlidingWindowCompactor(preserve_recent_turns=0), 40)
    merged = NoteMerger().merged(run.messages)
    assert len(merged) < len(run.messages)
    assert full_transcript(archive, "a", merged) == full_transcript(archive, "a", stored_and_loaded(merged)) == chat(12)


def test_a_conversation_that_was_never_compacted(archive):
    assert full_transcript(archive, "a", chat(3)) == chat(3)
    assert full_transcript(archive, "a", []) == []
