# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import asyncio
import re
import threading

import pytest
from haystack import Pipeline
from haystack.components.agents.state.state import State
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.core.serialization import component_from_dict, component_to_dict
from haystack.dataclasses import ChatMessage
from haystack.hooks import compaction as haystacks
from haystack.token_counters import ApproximateTokenCounter
from haystack.utils import Secret
from samples import chat, run_of, step, texts
from servers.openai_chat import StrictOpenAIServer

from haystack_compaction import CompactionError, CompactionHook, EstimateTokenCounter, HybridCompactor, pin
from haystack_compaction.compaction_pass import run_passes
from haystack_compaction.compactors.sliding_window import SlidingWindowCompactor
from haystack_compaction.compactors.summarization import SummarizationCompactor
from haystack_compaction.conversation.notes import COMPACTION_META_KEY, is_note, is_summary, omission_note, told_by
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.pass_context import PassContext, current_pass, entered
from haystack_compaction.testing import check_compactor, provider_fault
from haystack_compaction.tokens.ledger import TokenLedger
from haystack_compaction.tokens.request_meter import RequestMeter
from haystack_compaction.window import Window
from haystack_compaction.window_guard import WindowGuard

COUNTER = EstimateTokenCounter()
NAMES = ["adler", "borsuk", "cedric", "dunja", "emre", "faria", "gesine", "hideo", "ilka", "jorge", "kenza", "lubos",
         "mireia", "noor", "oskar", "pavla"]  # fmt: skip
LETTERS = "abcdefghijklmnopqrstuvwxyz"
GOOD = "## Goal\n- The user asks when high tide is; the answer is half past noon. All checks passed in every log."


class Model:
    """A chat generator with canned replies, the last of which is given for ever. Notes what it was asked."""

    def __init__(self, *replies, run_async=True):
        self.replies = list(replies) or [GOOD]
        self.prompts = []
        self._lock = threading.Lock()
        if run_async:
            self.run_async = self._run_async

    def run(self, messages, **_):
        with self._lock:
            self.prompts.append(messages)
            reply = self.replies[min(len(self.prompts), len(self.replies)) - 1]
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, str):
            reply = ChatMessage.from_assistant(reply, meta={"finish_reason": "stop", "usage": {"total_tokens": 7}})
        return {"replies": [reply]}

    async def _run_async(self, messages, **_):
        return self.run(messages)


def size(messages):
    return COUNTER.count(messages)


def summaries(messages):
    return [message for message in messages if is_summary(message)]


def told(note):
    """The summary in a note, without the list of exact facts after it."""
    return told_by(note).partition("\n\n# Exact facts")[0]


def marker(note):
    return note.meta[COMPACTION_META_KEY]


@pytest.fixture(params=["sync", "async"])
def compact(request):
    """`compact` or `compact_async`, called alike."""

    def sync(compactor, messages, target, counter=COUNTER):
        return compactor.compact(messages, target, counter)

    def on_a_loop(compactor, messages, target, counter=COUNTER):
        return asyncio.run(compactor.compact_async(messages, target, counter))

    return sync if request.param == "sync" else on_a_loop


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"approximate_summary_tokens": 40},
        {"keep_user_messages_tokens": 60, "approximate_summary_tokens": 40},
        {"chat_generator": Model("The user says tide, deploy, never."), "keep_user_messages_tokens": 10_000},
        {"chat_generator": Model("The user says tide, deploy, never; /etc/app.conf has 42."), "min_keep_steps": 0},
        {"chat_generator": Model(ValueError("down")), "approximate_summary_tokens": 40, "preserve_recent_turns": 1},
    ],
)
def test_promises(options):
    check_compactor(SummarizationCompactor(**options), max_examples=60)


# What is summarized


def test_the_oldest_turns_become_one_summary_right_after_the_head(compact):
    messages, model = chat(20), Model()
    target = size(messages) * 6 // 10
    result = compact(SummarizationCompactor(model, approximate_summary_tokens=100), messages, target)
    assert len(model.prompts) == 1
    assert result[0] is messages[0]
    assert [told_by(note) for note in summaries(result)] == [GOOD]
    assert result[1] is summaries(result)[0]
    kept = result[2:]
    assert kept == messages[-len(kept) :]
    assert all(ours is theirs for ours, theirs in zip(kept, messages[-len(kept) :], strict=True))
    assert kept[0].text.startswith("Question")
    assert marker(result[1]) == {
        "strategy": "summarization",
        "removed_messages": len(messages) - 1 - len(kept),
        "kept_messages": len(kept) + 1,
        "kind": "summary",
        "scope": "history",
    }


def writes(tokens):
    """A model whose summaries have so many tokens, or as many as it is told."""

    class Writer(Model):
        def run(self, messages, **_):
            limit = tokens or int(re.search(r"at most about (\d+) tokens", messages[-1].text)[1])
            words = ["when", "is", "high", "tide", "noon", "all", "checks", "passed", "log", "read", "question"]
            text = "The user asks when high tide is, in the log"
            while COUNTER.count_text(text) < limit - 2:
                text += f" {words[len(text) % 11]} {LETTERS[len(text) % 26]}{LETTERS[len(text) // 26 % 26]}"
            self.replies = [text]
            return super().run(messages)

    return Writer()


@pytest.mark.parametrize("share", [0.2, 0.42, 0.6, 0.9, 0.98])
@pytest.mark.parametrize(
    "messages",
    [chat(120, words=8), chat(40), chat(60, words=400), run_of(40), [*chat(30)[:-1], *run_of(40)[1:]]],
    ids=["short turns", "turns", "long turns", "run", "both"],
)
@pytest.mark.parametrize("tokens", [None, 60, 0], ids=["digest", "terse", "obedient"])
def test_as_little_as_is_needed(tokens, messages, share):
    """However short the summary turns out, what remains comes near the target."""
    target = int(size(messages) * share)
    generator = None if tokens is None else writes(tokens)
    result = SummarizationCompactor(generator).compact(messages, target, COUNTER)
    assert size(result) <= target
    summarized = size(messages) - size(result)
    largest_unit = 2 * max(map(size, ([message] for message in messages)))
    unused = 0 if tokens is None else len(summaries(result)) * max(200, summarized // 8)
    assert size(result) >= 0.9 * target - max(largest_unit, 200) - unused
    if generator is not None:
        assert len(generator.prompts) == len(summaries(result))


def test_steps_of_the_task_become_a_summary_after_the_task(compact):
    messages = run_of(20)
    result = compact(SummarizationCompactor(Model(), approximate_summary_tokens=100), messages, size(messages) // 2)
    assert result[:2] == messages[:2]
    assert marker(result[2])["scope"] == "task"
    assert result[3:] == messages[-len(result[3:]) :]
    assert provider_fault(result) is None


def test_history_goes_before_the_task():
    history, task = chat(10)[:-1], run_of(10)[1:]
    messages = [*history, *task]
    compactor = SummarizationCompactor(Model(), approximate_summary_tokens=100)
    little = compactor.compact(messages, size(messages) - 100, COUNTER)
    assert [marker(note)["scope"] for note in summaries(little)] == ["history"]
    assert little[-len(task) :] == task
    much = compactor.compact(messages, size(task) // 2, COUNTER)
    assert [marker(note)["scope"] for note in summaries(much)] == ["history", "task"]
    assert texts(much[:4])[2] == "Audit every service."
    assert len(much) < 4 + 20


def test_a_short_history_is_enough_where_it_suffices():
    history, task = chat(12)[:-1], run_of(20)[1:]
    assert 600 < size(history) < 1024
    messages = [*history, *task]
    result = SummarizationCompactor(Model()).compact(messages, size(messages) - 350, COUNTER)
    assert [marker(note)["scope"] for note in summaries(result)] == ["history"]
    assert result[-len(task) :] == task


def test_tiny_opening_turns_never_block_the_rest(compact):
    """Haystack's summarizer tries them alone, sees no gain, and gives up."""
    tiny = [ChatMessage.from_user("hi"), ChatMessage.from_assistant("Hello!")]
    model = Model()
    messages = [*run_of(0)[:1], *tiny, *run_of(30)[1:]]
    result = compact(SummarizationCompactor(model), messages, size(messages) // 2)
    assert result[:4] == messages[:4]
    assert [marker(note)["scope"] for note in summaries(result)] == ["task"]
    assert len(model.prompts) == 1
    with_turns = [messages[0], *tiny, *chat(40)[1:]]
    result = compact(SummarizationCompactor(model), with_turns, size(with_turns) // 2)
    assert marker(summaries(result)[0])["removed_messages"] > 10
    assert size(result) <= size(with_turns) // 2


def test_what_would_not_get_smaller_is_not_tried():
    model = Model()
    messages = chat(3, words=8)
    assert SummarizationCompactor(model).compact(messages, 1, COUNTER) is None
    assert model.prompts == []


def test_a_part_shorter_than_a_full_summary_gets_a_shorter_one_when_nothing_else_is_left():
    model = Model()
    messages = chat(6, words=80)
    old = size(messages[1:-1])
    assert 400 < old < 1024
    result = SummarizationCompactor(model).compact(messages, 1, COUNTER)
    assert len(result) == 3
    (limit,) = re.findall(r"at most about (\d+) tokens", model.prompts[0][-1].text)
    assert old // 4 < int(limit) < old // 2


def test_the_floor_stays():
    rule = pin(ChatMessage.from_user("Never deploy on a Friday."))
    messages = [*chat(5)[:-1], rule, ChatMessage.from_assistant("Noted."), *chat(20)[1:-1], *run_of(6)[1:]]
    late = ChatMessage.from_system("Late order.")
    messages.insert(9, late)
    compactor = SummarizationCompactor(Model(), min_keep_steps=2, preserve_recent_turns=3)
    result = compactor.compact(messages, 1, COUNTER)
    for kept in [messages[0], rule, late, messages[-13], *messages[-19:-13], *messages[-4:]]:
        assert any(kept is message for message in result)
    assert SummarizationCompactor(Model(), preserve_recent_turns=100).compact(chat(20), 1, COUNTER) is None


def test_the_system_prompt_may_go_when_it_is_allowed_to():
    messages = chat(40)
    result = SummarizationCompactor(Model(), preserve_system_prompt=False).compact(messages, 500, COUNTER)
    assert len(summaries(result)) == 1
    assert result[0] is summaries(result)[0]
    assert result[-1] is messages[-1]


def test_a_conversation_without_a_user():
    messages = [message for number in range(20) for message in step("read", "all checks passed " * 40)]
    result = SummarizationCompactor(Model()).compact(messages, 500, COUNTER)
    assert len(summaries(result)) == 1
    assert result[0] is summaries(result)[0]


def test_a_step_that_opens_with_reasoning_stays_with_those_that_follow():
    messages = run_of(20)
    opener = step("read_log", "log: " + "all checks passed " * 30, call_id="o", reasoning="I had better look.")
    messages[2:2] = opener
    result = SummarizationCompactor(Model(), approximate_summary_tokens=100).compact(messages, 500, COUNTER)
    assert result[3:5] == opener


def test_the_transcript_has_the_order_of_the_conversation():
    opener = step("read_log", "opening log " * 40, call_id="o", reasoning="I had better look.")
    messages = [*run_of(0), *opener, *run_of(4)[2:]]
    for nudge in ("Go on.", "And on."):
        messages += [ChatMessage.from_user(nudge), *run_of(8)[2:]]
    model = Model()
    SummarizationCompactor(model, approximate_summary_tokens=100).compact(messages, 500, COUNTER)
    asked = model.prompts[0][-1].text
    assert asked.index("opening log") < asked.index("| log 0:") < asked.index("| Go on.")


# User messages that are kept


def from_user(messages):
    return [message for message in messages if message.role == "user" and not is_note(message)]


def chat_of(guests, *, first=0):
    """A chat whose turns differ, with as many turns as guests."""
    messages = [ChatMessage.from_system("You book seats on ferries.")]
    for number, name in enumerate(guests, first):
        messages += [
            ChatMessage.from_user(f"Guest {name} wants a seat by the window, on the ferry that sails on day {number}."),
            ChatMessage.from_assistant(
                f"The seat of {name} is booked. " + "The ferry is on time, says the harbour. " * 6
            ),
        ]
    return [*messages, ChatMessage.from_user("Who sails first?")]


@pytest.mark.parametrize("generator", [Model("The user books seats on ferries."), None], ids=["model", "digest"])
def test_the_newest_user_messages_stay_word_for_word(compact, generator):
    messages = chat_of(NAMES)
    said = from_user(messages)
    sizes = [size([message]) for message in said[:-1]]
    none, too_little, some = 0, min(sizes) - 1, 4 * max(sizes)
    results = {
        room: compact(
            SummarizationCompactor(generator, keep_user_messages_tokens=room, approximate_summary_tokens=100),
            messages,
            500,
        )
        for room in (none, too_little, some)
    }
    for result in results.values():
        assert size(result) <= 500
        assert provider_fault(result) is None
        assert is_summary(result[1])
        assert [id(m) for m in messages if any(m is kept for kept in result)] == [
            id(message) for message in result if not is_note(message)
        ]
    left = {room: [message for message in result if message.role == "assistant"] for room, result in results.items()}
    for room in (none, too_little):
        assert len(from_user(results[room])) == len(left[room]) + 1
    alone = len(from_user(results[some])) - len(left[some]) - 1
    assert alone in (4, 5)
    assert from_user(results[some]) == said[-alone - len(left[some]) - 1 :]
    note = results[some][1]
    assert f"Messages of the user that follow word for word: {alone}." in note.text
    assert marker(note)["removed_messages"] == len(messages) - len(results[some]) + 1


def test_a_message_that_does_not_fit_is_summarized_and_older_ones_may_stay():
    messages = chat_of(NAMES)
    giant = messages[-7] = ChatMessage.from_user("Here is the log of the harbour. " * 60)
    result = SummarizationCompactor(keep_user_messages_tokens=90).compact(messages, 400, COUNTER)
    kept = from_user(result)
    assert giant not in kept
    assert messages[-9] in kept


def test_user_messages_stay_over_several_passes_and_only_the_newest():
    messages, said, room = chat_of(NAMES), {}, 120
    compactor = SummarizationCompactor(
        Model("The user books seats on ferries."), keep_user_messages_tokens=room, approximate_summary_tokens=100
    )
    for number in range(6):
        said.update((id(message), message) for message in from_user(messages))
        messages = compactor.compact(messages, 450, COUNTER)
        assert provider_fault(messages) is None
        assert size(messages) <= 450
        kept = from_user(messages)
        newest = list(said.values())[-len(kept) :]
        assert all(ours is theirs for ours, theirs in zip(kept, newest, strict=True))
        answered = sum(message.role == "assistant" for message in messages)
        assert room - 40 < size(kept) - size(kept[len(kept) - answered - 1 :]) <= room
        assert len(summaries(messages)) == 1
        assert summaries(messages)[0].text.count("that follow word for word") == 1
        messages = [*messages[:-1], *chat_of(NAMES, first=16 * number + 16)[1:]]
    assert "that follow word for word" not in "".join(prompt[-1].text for prompt in compactor.chat_generator.prompts)


def test_nudges_stay_where_they_belong():
    messages = run_of(30)
    nudge = ChatMessage.from_user("Look at the disks, too.")
    messages.insert(12, nudge)
    messages.insert(30, ChatMessage.from_user("And at the fans."))
    result = SummarizationCompactor(keep_user_messages_tokens=20).compact(messages, 600, COUNTER)
    assert marker(result[2])["scope"] == "task"
    assert result[3] is nudge
    again = Conversation(result)
    assert result[again.task_index] is messages[1]


def test_user_messages_in_a_row_are_accepted():
    result = SummarizationCompactor(keep_user_messages_tokens=150).compact(chat_of(NAMES), 500, COUNTER)
    assert [message.role.value for message in result[1:5]] == ["user"] * 4
    with StrictOpenAIServer(["fine"]) as server:
        generator = OpenAIChatGenerator(
            api_key=Secret.from_token("none"), model="scripted", api_base_url=server.base_url, max_retries=0
        )
        assert generator.run(result)["replies"][0].text == "fine"


def test_kept_messages_never_take_more_than_half_of_the_target():
    messages = chat_of(NAMES)
    result = SummarizationCompactor(keep_user_messages_tokens=10**6).compact(messages, 300, COUNTER)
    assert size(result) <= 300
    assert len(from_user(result)) > 3


# Repeated passes


@pytest.mark.parametrize("generator", [Model(), None, Model(RuntimeError("down"))], ids=["model", "digest", "failing"])
def test_ten_passes_leave_one_summary_a_scope_and_numbers_add_up(generator):
    compactor = SummarizationCompactor(generator, approximate_summary_tokens=200)
    messages, gone = [*chat(10)[:-1], *run_of(10)[1:]], 0
    for number in range(10):
        before = len(messages) - len(summaries(messages))
        messages = compactor.compact(messages, 900, COUNTER)
        gone += before - (len(messages) - len(summaries(messages)))
        scopes = [marker(note)["scope"] for note in summaries(messages)]
        assert scopes == sorted(set(scopes))
        assert sum(marker(note)["removed_messages"] for note in summaries(messages)) == gone
        assert provider_fault(messages) is None
        assert size(messages) <= 900
        if number % 3 == 2:
            messages += [ChatMessage.from_assistant("Done."), ChatMessage.from_user(f"Next task {number}.")]
        for count in range(12):
            messages += step(
                "read_log", f"log {number} {count}: " + "all checks passed " * 30, call_id=f"{number}{count}"
            )


def test_the_earlier_summary_is_given_apart_and_revised():
    model = Model("## Goal\n- First: high tide at noon.", "## Goal\n- Second: high tide at half past noon.")
    compactor = SummarizationCompactor(model, approximate_summary_tokens=100)
    first = compactor.compact(chat(20), 600, COUNTER)
    second = compactor.compact([*first[:-1], *chat(20)[1:]], 600, COUNTER)
    prompt = model.prompts[1][-1].text
    assert (
        prompt.index("earlier summary ===") < prompt.index("First: high tide at noon.") < prompt.index("transcript =")
    )
    assert "Yours takes its place" in prompt
    assert "conversation_summary" not in prompt
    assert [told_by(note) for note in summaries(second)] == ["## Goal\n- Second: high tide at half past noon."]


def test_the_digest_carries_the_earlier_summary_on():
    compactor = SummarizationCompactor(approximate_summary_tokens=300)
    rule = "Never write to /srv/prod/ledger.db, order 4471-B depends on it."
    messages = chat(20)
    messages[1] = ChatMessage.from_user(rule)
    for _ in range(3):
        messages = compactor.compact(messages, 700, COUNTER)
        assert "/srv/prod/ledger.db" in summaries(messages)[0].text
        messages = [*messages[:-1], *chat(20)[1:]]


def test_haystacks_summaries_and_omission_notes_are_folded_in():
    theirs = ChatMessage.from_user(
        "<conversation_summary>\nThe tide table of Brest was read.\n</conversation_summary>",
        meta={COMPACTION_META_KEY: {"strategy": "summarization", "summarized_messages": 5}},
    )
    omitted = omission_note(
        "{num_removed} gone", strategy="x", removed_messages=7, kept_messages=3, removed_calls={"a": 2}
    )
    messages, model = chat(20), Model()
    messages[1:1] = [theirs, omitted]
    result = SummarizationCompactor(model, approximate_summary_tokens=100).compact(messages, 600, COUNTER)
    assert [message for message in result if COMPACTION_META_KEY in message.meta] == [result[1]]
    new = len(messages) - len(result) + 1 - 2
    assert marker(result[1])["removed_messages"] == new + 5 + 7
    assert marker(result[1])["removed_calls"] == {"a": 2}
    assert "| The tide table of Brest was read." in model.prompts[0][-1].text
    assert "a x2" in model.prompts[0][-1].text


@pytest.mark.skipif(
    not hasattr(haystacks, "SummarizationCompactor"), reason="this version of Haystack has no summarizer yet"
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_haystack_recognises_our_summary():
    ours = SummarizationCompactor(Model(), approximate_summary_tokens=100).compact(chat(20), 600, COUNTER)
    model = Model("Their summary.")
    messages = [*ours[:-1], *chat(20)[1:]]
    result = haystacks.SummarizationCompactor(model, approximate_summary_tokens=100).compact(messages, 30, COUNTER)
    assert len(summaries(result)) == 1
    assert "[conversation_summary]" in "".join(prompt[-1].text for prompt in model.prompts)


def test_several_summaries_become_one_even_without_new_turns():
    notes = [
        ChatMessage.from_user(
            f"<conversation_summary>\nPart {number}.\n</conversation_summary>",
            meta={COMPACTION_META_KEY: {"strategy": "summarization", "summarized_messages": 5}},
        )
        for number in range(2)
    ]
    model = Model()
    messages = [*notes, *run_of(20)[1:]]
    result = SummarizationCompactor(model, approximate_summary_tokens=100).compact(messages, 600, COUNTER)
    assert [marker(note)["scope"] for note in summaries(result)] == ["history", "task"]
    assert told_by(result[0]) == "Part 0.\n\nPart 1."
    assert marker(result[0])["removed_messages"] == 10
    assert len(model.prompts) == 1


def test_a_summary_is_not_rewritten_while_there_is_nothing_new():
    note = ChatMessage.from_user(
        "<conversation_summary>\n" + "The tide table of Brest was read. " * 300 + "\n</conversation_summary>",
        meta={COMPACTION_META_KEY: {"strategy": "summarization", "summarized_messages": 5}},
    )
    model = Model()
    assert SummarizationCompactor(model).compact([note, *run_of(1)[1:]], 10, COUNTER) is None
    assert model.prompts == []


def test_a_pinned_summary_stays_as_it_is():
    note = pin(
        ChatMessage.from_user("Kept.", meta={COMPACTION_META_KEY: {"strategy": "summarization", "kind": "summary"}})
    )
    messages = [note, *chat(20)[1:]]
    result = SummarizationCompactor(Model(), approximate_summary_tokens=100).compact(messages, 600, COUNTER)
    assert any(message is note for message in result)


def test_a_sliding_window_keeps_what_the_summary_says():
    summarized = SummarizationCompactor(Model(), approximate_summary_tokens=100).compact(chat(20), 600, COUNTER)
    result = SlidingWindowCompactor().compact(summarized, 400, COUNTER)
    assert summaries(result) == summaries(summarized)


# What the model may do


BAD_REPLIES = {
    "empty": ChatMessage.from_assistant("  "),
    "tool call": ChatMessage.from_assistant(tool_calls=[]),
    "cut off": ChatMessage.from_assistant(GOOD, meta={"finish_reason": "length"}),
    "filtered": ChatMessage.from_assistant(GOOD, meta={"finish_reason": "content_filter"}),
    "refused": ChatMessage.from_assistant("I'm sorry, but I cannot help with that."),
    "says nothing": ChatMessage.from_assistant("## Goal\n(none)\n\n## Decisions\n- None.\n"),
    "too long": ChatMessage.from_assistant(" ".join(f"tide{number}" for number in range(9000)) + " high tide"),
}


@pytest.mark.parametrize("bad", BAD_REPLIES.values(), ids=BAD_REPLIES)
def test_a_bad_summary_is_asked_for_once_more_with_the_reason(compact, bad):
    model = Model(bad, GOOD)
    result = compact(SummarizationCompactor(model, approximate_summary_tokens=100), chat(20), 600)
    assert [told_by(note) for note in summaries(result)] == [GOOD]
    assert len(model.prompts) == 2
    assert "could not be used" not in model.prompts[0][-1].text
    assert "could not be used" in model.prompts[1][-1].text


@pytest.mark.parametrize("bad", [*BAD_REPLIES.values(), ValueError("no such model")], ids=[*BAD_REPLIES, "error"])
def test_then_the_digest_stands_in(compact, bad):
    model, messages = Model(bad), chat(20)
    result = compact(SummarizationCompactor(model, approximate_summary_tokens=100), messages, 600)
    assert "## User said\n- Question" in summaries(result)[0].text
    assert result[-1] is messages[-1]
    assert size(result) <= 600
    assert len(model.prompts) == (1 if isinstance(bad, Exception) else 2)


def failures(generator, **context):
    """How often a pass says that its model has failed."""
    with entered(PassContext(**context)):
        assert SummarizationCompactor(generator, approximate_summary_tokens=100).compact(chat(20), 600, COUNTER)
        return current_pass().model_failures


def test_a_summary_that_cannot_be_used_counts_as_a_failure_of_the_model():
    bad = BAD_REPLIES["refused"]
    assert failures(Model(bad)) == 1
    assert failures(Model(ValueError("down"))) == 1
    assert failures(Model(bad, GOOD)) == 0
    assert failures(Model(GOOD)) == 0
    assert failures(None) == 0


def test_a_model_that_is_left_alone_does_not_fail():
    model = Model(BAD_REPLIES["refused"])
    assert failures(model, model_is_paused=True) == 0
    assert model.prompts == []


def test_a_model_that_writes_rubbish_is_left_alone_for_one_two_and_four_compactions():
    model = Model(BAD_REPLIES["refused"])
    window = Window(context_window=3_000)
    guard = WindowGuard(
        window, SummarizationCompactor(model, approximate_summary_tokens=200), RequestMeter(TokenLedger())
    )
    asked = []
    for number in range(12):
        messages, before = chat(100), len(model.prompts)
        run_passes(guard.passes(messages, guard.observe(messages, None)))
        if len(model.prompts) > before:
            asked.append(number)
    assert asked == [0, 2, 5, 10]


@pytest.mark.parametrize("bad", [BAD_REPLIES["refused"], ValueError("no such model")], ids=["reply", "error"])
def test_raise_on_failure(compact, bad):
    compactor = SummarizationCompactor(Model(bad), approximate_summary_tokens=100, raise_on_failure=True)
    with pytest.raises(RuntimeError, match="no usable summary"):
        compact(compactor, chat(20), 600)


def test_raise_on_failure_reaches_the_user_of_a_hook():
    compactor = SummarizationCompactor(Model(ValueError()), approximate_summary_tokens=100, raise_on_failure=True)
    for tried in (compactor, HybridCompactor([compactor])):
        with pytest.raises(CompactionError, match="no usable summary"):
            CompactionHook(tried, context_window=1000).run(State(schema={}, data={"messages": chat(20)}))


def test_a_model_that_hangs_is_not_waited_for(compact):
    release = threading.Event()

    class Hanging(Model):
        def run(self, messages, **_):
            release.wait(10)

        async def _run_async(self, messages, **_):
            await asyncio.Event().wait()

    try:
        compactor = SummarizationCompactor(Hanging(), approximate_summary_tokens=100, timeout=0.05)
        assert "Question" in summaries(compact(compactor, chat(20), 600))[0].text
    finally:
        release.set()


def test_calls_and_usage_are_reported():
    compactor = SummarizationCompactor(Model("", GOOD), approximate_summary_tokens=100)
    report = compactor.run(messages=chat(20), target_tokens=600)["report"]
    assert (report.llm_calls, report.llm_usage) == (2, {"total_tokens": 14})
    assert report.strategy == "summarize_older"
    assert report.reached_target


# More than fits the summarizer's window


@pytest.mark.parametrize("words", [40, 2000], ids=["many turns", "giant messages"])
@pytest.mark.parametrize("window", [2000, 4000, 9000])
def test_no_prompt_exceeds_the_summarizers_window(compact, window, words):
    model = Model()
    messages = chat(200 if words == 40 else 12, words=words)
    compactor = SummarizationCompactor(model, approximate_summary_tokens=300, summarizer_context_window=window)
    result = compact(compactor, messages, 600)
    assert [told(note) for note in summaries(result)] == [GOOD]
    assert len(model.prompts) > 2
    assert max(map(size, model.prompts)) + 300 <= window
    merging = [prompt for prompt in model.prompts if "summaries of consecutive parts" in prompt[-1].text]
    assert merging
    asked_of_history = [prompt[-1].text for prompt in model.prompts if prompt not in merging]
    for turn in range(12 - 2):
        assert sum(f"| Question {turn}:" in text for text in asked_of_history) == 1


def test_one_call_when_it_fits():
    model, messages = Model(), chat(400)
    SummarizationCompactor(model, summarizer_context_window=200_000).compact(messages, 2000, COUNTER)
    assert len(model.prompts) == 1


def test_chunks_end_where_turns_end():
    model, messages = Model(), chat(200)
    SummarizationCompactor(model, summarizer_context_window=4000, approximate_summary_tokens=300).compact(
        messages, 600, COUNTER
    )
    chunks = [prompt[-1].text for prompt in model.prompts if " transcript ===" in prompt[-1].text]
    assert len(chunks) > 2
    for chunk in chunks:
        record = chunk.split(" transcript ===\n")[1]
        assert record.startswith("user:\n| Question")
        assert record.count("user:\n") == record.count("assistant:\n")


def test_a_giant_message_is_clipped_head_and_tail():
    model = Model()
    messages = run_of(2)
    messages[2:2] = step("read_log", "BEGINNING " + "all checks passed " * 20_000 + " THE-END", call_id="g")
    SummarizationCompactor(model, summarizer_context_window=6000).compact(messages, 500, COUNTER)
    giant = next(prompt[-1].text for prompt in model.prompts if "BEGINNING" in prompt[-1].text)
    assert "THE-END" in giant
    assert "characters left out ...]" in giant


def test_the_earlier_summary_is_only_shown_to_the_last_call():
    model = Model()
    compactor = SummarizationCompactor(model, approximate_summary_tokens=300, summarizer_context_window=4000)
    first = compactor.compact(chat(20), 600, COUNTER)
    model.prompts.clear()
    compactor.compact([*first[:-1], *chat(100)[1:]], 600, COUNTER)
    with_earlier = [position for position, prompt in enumerate(model.prompts) if "earlier summary =" in prompt[-1].text]
    assert with_earlier == [len(model.prompts) - 1]


@pytest.mark.parametrize("turns", range(20, 60, 4))
def test_the_earlier_summary_takes_room_too(turns):
    long = " ".join(f"Answer {number}: high tide at noon." for number in range(80))
    model = Model(long, GOOD)
    compactor = SummarizationCompactor(model, approximate_summary_tokens=600, summarizer_context_window=4000)
    first = compactor.compact(chat(40), 1200, COUNTER)
    assert told_by(summaries(first)[0]) == long
    model.prompts.clear()
    compactor.compact([*first[:-1], *chat(turns)[1:]], 900, COUNTER)
    assert model.prompts
    assert max(map(size, model.prompts)) + 600 <= 4000


def test_a_chunk_that_fails_gets_a_digest_and_the_others_their_summary():
    class FailsOnce(Model):
        def run(self, messages, **_):
            if "part 2 of" in messages[-1].text and "consecutive" not in messages[-1].text:
                raise ValueError("overloaded")
            return super().run(messages)

    model = FailsOnce()
    compactor = SummarizationCompactor(model, approximate_summary_tokens=300, summarizer_context_window=4000)
    result = compactor.compact(chat(200), 600, COUNTER)
    assert told(summaries(result)[0]) == GOOD
    merging = model.prompts[-1][-1].text
    assert "| ## Goal" in merging
    assert "Question" in merging


def test_chunks_are_summarized_at_the_same_time(compact):
    """Each of the first three calls waits until all three are there."""
    arrived = threading.Barrier(3)
    on_the_loop = []

    class Concurrent(Model):
        def run(self, messages, **_):
            if "consecutive" not in messages[-1].text:
                arrived.wait(5)
            return super().run(messages)

        async def _run_async(self, messages, **_):
            if "consecutive" not in messages[-1].text:
                on_the_loop.append(messages)
                while len(on_the_loop) < 3:
                    await asyncio.sleep(0)
            return Model.run(self, messages)

    model, messages = Concurrent(), chat(40, words=160)
    room = size(messages) // 5 * 2
    compactor = SummarizationCompactor(
        model, approximate_summary_tokens=300, summarizer_context_window=room + 900, timeout=5
    )
    result = compact(compactor, messages, 600)
    assert len(model.prompts) == 3 + 1
    assert told_by(summaries(result)[0]) == GOOD


def test_the_window_of_the_hook_is_the_default():
    model, messages = Model(), chat(300)
    window = 8000
    state = State(schema={}, data={"messages": messages})
    compactor = SummarizationCompactor(model, approximate_summary_tokens=300)
    CompactionHook(compactor, context_window=window).run(state)
    assert len(model.prompts) > 1
    assert max(map(size, model.prompts)) + 300 <= window
    model.prompts.clear()
    compactor.compact(messages, 3000, COUNTER)
    assert len(model.prompts) == 1


def test_a_window_too_small_for_any_transcript_leaves_it_to_the_digest():
    model = Model()
    state = State(schema={}, data={"messages": chat(40)})
    CompactionHook(SummarizationCompactor(model, approximate_summary_tokens=100), context_window=700).run(state)
    assert model.prompts == []
    assert summaries(state.data["messages"])


# Other languages, other counters


def test_chinese():
    questions = ("今天的潮汐什么时候到最高点？请不要修改配置文件。" * 4, "最高潮在中午十二点半，配置文件没有修改。" * 4)
    messages = [ChatMessage.from_system("你回答潮汐问题。")]
    for _ in range(40):
        messages += [ChatMessage.from_user(questions[0]), ChatMessage.from_assistant(questions[1])]
    messages.append(ChatMessage.from_user("明天呢？"))
    summary = "## 目标\n- 用户想知道潮汐最高点的时间：中午十二点半。不要修改配置文件。"
    model = Model(summary)
    result = SummarizationCompactor(model, summarizer_context_window=3000, approximate_summary_tokens=400).compact(
        messages, 1500, COUNTER
    )
    assert told_by(summaries(result)[0]) == summary
    assert max(map(size, model.prompts)) + 400 <= 3000
    digest = SummarizationCompactor(approximate_summary_tokens=400).compact(messages, 1500, COUNTER)
    assert "潮汐" in summaries(digest)[0].text
    assert size(digest) <= 1500


def test_a_counter_that_only_takes_whole_conversations(compact):
    class Provider(EstimateTokenCounter):
        additive = False

        def count(self, messages, tools=None):
            assert provider_fault(messages) is None
            return 2 * COUNTER.count(messages, tools)

    messages = run_of(20)
    counter = Provider()
    target = counter.count(messages) // 2
    result = compact(SummarizationCompactor(Model(), approximate_summary_tokens=100), messages, target, counter)
    assert counter.count(result) <= target
    assert len(summaries(result)) == 1


@pytest.mark.parametrize(
    "counter", [EstimateTokenCounter(), ApproximateTokenCounter()], ids=lambda it: type(it).__name__
)
@pytest.mark.parametrize("words", [8, 100, 900])
def test_the_digest_meets_the_target_by_the_counter_in_use(counter, words):
    for messages in (run_of(40, words=words), chat(40, words=words), [*chat(20, words=words)[:-1], *run_of(20)[1:]]):
        for share in (0.1, 0.2, 0.5, 0.9):
            target = int(counter.count(messages) * share)
            result = SummarizationCompactor().compact(messages, target, counter)
            assert counter.count(result) <= max(target, 400)


def test_the_digest_takes_what_the_target_leaves():
    messages = [ChatMessage.from_system("You keep the books.")]
    for number, name in enumerate(NAMES):
        messages += [
            ChatMessage.from_user(
                f"The invoice of {name} is number {8123 + 977 * number} and lies in /srv/{name}.pdf."
            ),
            ChatMessage.from_assistant(f"{name} will be paid {57 + 31 * number}.50 euros next week."),
        ]
    messages.append(ChatMessage.from_user("Who is paid first?"))
    kept = []
    for share in (0.3, 0.6, 0.9):
        target = int(size(messages) * share)
        result = SummarizationCompactor().compact(messages, target, COUNTER)
        assert 0.85 * target < size(result) <= target
        said = "\n".join(texts(result))
        kept.append(sum(f"/srv/{name}.pdf" in said for name in NAMES))
    assert kept == sorted(kept)
    assert kept[-1] == len(NAMES)


def test_what_the_kept_part_puts_right_is_not_told():
    messages = chat(30)
    messages[3] = ChatMessage.from_user("The staging database listens on port 40321.")
    messages[5] = ChatMessage.from_user("Reports go to reports@example.org.")
    messages[-1] = ChatMessage.from_user("Correction: the staging database listens on port 51877 now.")
    result = SummarizationCompactor().compact(messages, size(messages) // 2, COUNTER)
    summary = summaries(result)[0].text
    assert "reports@example.org" in summary
    assert "40321" not in summary
    assert result[-1] is messages[-1]


def test_what_is_out_of_date_altogether_is_told_even_so():
    messages = chat(0)[:1]
    for number in range(40):
        messages.append(ChatMessage.from_user(f"The staging database listens on port {40321 + 97 * number} today."))
        messages.append(ChatMessage.from_assistant("I see."))
    result = SummarizationCompactor().compact([*messages, messages[-2]], size(messages) // 2, COUNTER)
    assert size(result) <= size(messages) // 2


@pytest.mark.parametrize("shown", [0.1, 0.3])
def test_history_and_task_share_what_the_target_leaves(shown):
    rule = "Never write to /srv/prod/ledger.db, order 4471-B depends on it."
    history, task = chat(30)[:-1], run_of(40)[1:]
    history[1] = ChatMessage.from_user(rule)
    task[3:5] = step("read_log", "Backup 8812-K of host krill-404 failed with checksum e91b7c55.", call_id="backup")
    messages = [*history, *task]
    target = int(size(messages) * shown)
    for _ in range(3):
        messages = SummarizationCompactor().compact(messages, target, COUNTER)
        assert size(messages) <= target
        first, second = summaries(messages)
        assert rule in first.text
        assert "8812-K" in second.text
        messages = [*messages, *run_of(40)[2:]]


def test_no_summary_of_a_model_is_longer_than_the_target_leaves():
    model, messages = Model(), chat(60)
    result = SummarizationCompactor(model).compact(messages, 300, COUNTER)
    floor = size([messages[0], messages[-1]])
    (limit,) = re.findall(r"at most about (\d+) tokens", model.prompts[0][-1].text)
    assert 150 < int(limit) <= 300 - floor
    assert size(result) <= 300


@pytest.mark.parametrize("generator", [Model(), None], ids=["model", "digest"])
def test_no_message_is_counted_twice(generator):
    class Recording(EstimateTokenCounter):
        def count(self, messages, tools=None):
            counted.extend(map(id, messages))
            return super().count(messages, tools)

    messages, counted = [*chat(200)[:-1], *run_of(100)[1:]], []
    compactor = SummarizationCompactor(generator, summarizer_context_window=4000)
    assert compactor.compact(messages, size(messages) // 4, Recording())
    of_ours = [key for key in counted if key in set(map(id, messages))]
    assert len(of_ours) == len(set(of_ours))


# As a component


def test_yaml_round_trip_with_the_chat_generator(monkeypatch):
    monkeypatch.setenv("SUMMARIZER_KEY", "secret-value")
    compactor = SummarizationCompactor(
        OpenAIChatGenerator(api_key=Secret.from_env_var("SUMMARIZER_KEY"), model="gpt-5.4-nano"),
        min_keep_steps=2,
        approximate_summary_tokens=500,
        exact_facts_tokens=100,
        keep_user_messages_tokens=2_000,
        summarizer_context_window=16_000,
        summary_instruction="Summarize, please.",
        raise_on_failure=True,
        timeout=9.5,
        preserve_recent_turns=3,
        target_tokens=4000,
    )
    pipeline = Pipeline()
    pipeline.add_component("compactor", compactor)
    text = pipeline.dumps()
    assert "secret-value" not in text
    loaded = Pipeline.loads(text).get_component("compactor")
    assert component_to_dict(loaded, "compactor") == component_to_dict(compactor, "compactor")
    assert loaded.chat_generator.model == "gpt-5.4-nano"
    without = component_to_dict(SummarizationCompactor(), "compactor")
    assert component_from_dict(SummarizationCompactor, without, "compactor").chat_generator is None


def test_the_lifecycle_reaches_the_chat_generator():
    seen = []

    class Resource(Model):
        def warm_up(self):
            seen.append("warm_up")

        async def warm_up_async(self):
            seen.append("warm_up_async")

        def close(self):
            seen.append("close")

        async def close_async(self):
            seen.append("close_async")

    compactor = SummarizationCompactor(Resource())
    compactor.warm_up()
    compactor.close()
    asyncio.run(compactor.warm_up_async())
    asyncio.run(compactor.close_async())
    assert seen == ["warm_up", "close", "warm_up_async", "close_async"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_keep_steps": -1}, "`min_keep_steps` must be at least 0, got -1"),
        ({"exact_facts_tokens": -1}, "`exact_facts_tokens` must be at least 0, got -1"),
        ({"keep_user_messages_tokens": -5}, "`keep_user_messages_tokens` must be at least 0, got -5"),
        ({"approximate_summary_tokens": 0}, "`approximate_summary_tokens` must be at least 1, got 0"),
        ({"timeout": 0}, "`timeout` must be greater than 0 seconds, got 0"),
        ({"summarizer_context_window": 1200}, "got 1200. With these settings it must be at least"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        SummarizationCompactor(**options)


def test_the_smallest_window_that_an_error_names_is_accepted():
    with pytest.raises(ValueError, match="at least") as error:
        SummarizationCompactor(summarizer_context_window=1)
    smallest = int(str(error.value).split()[-1].rstrip("."))
    SummarizationCompactor(summarizer_context_window=smallest)
    with pytest.raises(ValueError, match=f"at least {smallest}"):
        SummarizationCompactor(summarizer_context_window=smallest - 1)
