# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What compactors return, through the converters of the real clients, which raise on what their provider rejects."""

from itertools import pairwise
from random import Random

import pytest
from haystack.dataclasses import ChatMessage, ChatRole, ImageContent, ToolCall
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import chat, run_of, step
from servers.anthropic_messages import StrictAnthropicServer
from servers.openai_chat import StrictOpenAIServer
from survival import compactors

from haystack_compaction import EstimateTokenCounter, pin
from haystack_compaction.conversation.repair import repaired
from haystack_compaction.testing import conversations

COUNTER = EstimateTokenCounter()
PICTURE = ImageContent(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
    mime_type="image/png",
)


def parallel(number, *, results=True):
    calls = [ToolCall("read_log", {"number": number, "part": part}, id=f"p{number}_{part}") for part in range(4)]
    answers = [ChatMessage.from_tool("passed " * 40, origin=call) for call in reversed(calls)]
    return [ChatMessage.from_assistant("All four.", tool_calls=calls), *(answers if results else answers[1:3])]


def random_conversation(seed):
    """Turns of any kind, as untidy as real transcripts are: orphans, missing results, blank texts, nudges."""
    random = Random(seed)
    pieces = [
        lambda number: [ChatMessage.from_user(f"Question {number}: " + "when is high tide " * random.randint(1, 30))],
        lambda number: [
            ChatMessage.from_assistant(f"Answer {number}: " + "at half past noon " * random.randint(1, 30))
        ],
        lambda number: step("read_log", "all checks passed " * random.randint(1, 200), call_id=f"c{number}"),
        lambda number: step("read_log", "", call_id=f"c{number}", text=" "),
        lambda number: step("read_log", "fine " * 30, call_id=f"c{number}", reasoning="Let me look. " * 10),
        parallel,
        lambda number: parallel(number, results=False),
        lambda number: step("read_log", "orphan", call_id=f"c{number}")[1:],
        lambda number: step("read_log", "late", call_id=f"c{number}")[:1],
        lambda number: [ChatMessage.from_user(content_parts=["Look at this:", PICTURE])],
        lambda number: [ChatMessage.from_assistant("")],
        lambda number: [pin(ChatMessage.from_user(f"Rule {number}."))],
        lambda number: [ChatMessage.from_system("The user has logged in.")],
    ]
    messages = [ChatMessage.from_system("You are careful.")] if seed % 3 else []
    messages.append(ChatMessage.from_user("Audit every service."))
    for number in range(random.randint(5, 40)):
        messages += random.choice(pieces)(number)
    return messages


def screenshots():
    messages = [ChatMessage.from_user("Click through the form.")]
    for number in range(20):
        call = ToolCall("click", {"x": number}, id=f"s{number}")
        messages += [
            ChatMessage.from_assistant(tool_calls=[call]),
            ChatMessage.from_tool([PICTURE], origin=call),
        ]
    return messages


CONVERSATIONS = {
    "chat": chat(20),
    "run": run_of(20),
    "chat and run": [*chat(10), ChatMessage.from_assistant("Noon."), *run_of(15)[1:]],
    "parallel": [*run_of(3), *(message for number in range(6) for message in parallel(number))],
    "giant": [*run_of(3), *step("read_log", "all checks passed " * 5_000, call_id="giant")],
    "screenshots": screenshots(),
    **{f"random {seed}": random_conversation(seed) for seed in range(25)},
}


def compacted(name, target, *, without=""):
    """What the compactor makes of each conversation, as the hook would send it."""
    for title, messages in CONVERSATIONS.items():
        if title.split()[0] in without:
            continue
        valid = acceptable_to_gemini(messages)
        share = int(target * COUNTER.count(valid))
        yield title, compactors()[name]().compact(valid, share, COUNTER) or valid


def acceptable_to_gemini(messages):
    """A valid conversation, without what the assistant says right before a message with calls."""
    accepted, following = [], None
    for message in reversed(repaired(messages, keep_pending=False)):
        if is_text(message) and following and following.tool_calls:
            continue
        accepted.append(message)
        following = following if message.is_from(ChatRole.SYSTEM) else message
    return accepted[::-1]


def is_text(message):
    return message.is_from(ChatRole.ASSISTANT) and not message.tool_calls


def each_output(test):
    return pytest.mark.parametrize("target", [0.1, 0.5])(pytest.mark.parametrize("name", compactors())(test))


@each_output
def test_openai(name, target):
    server = StrictOpenAIServer([])
    # Chat completions take no images from tools, whoever sends them.
    for title, messages in compacted(name, target, without="screenshots"):
        body = {"messages": [message.to_openai_dict_format(require_tool_call_ids=True) for message in messages]}
        accepted(server, body, title)


@each_output
def test_anthropic(name, target):
    utils = pytest.importorskip("haystack_integrations.components.generators.anthropic.chat.utils")
    server = StrictAnthropicServer([])
    for title, messages in compacted(name, target):
        system, converted = utils._convert_messages_to_anthropic_format(messages)
        accepted(server, {"model": "scripted", "max_tokens": 1, "system": system, "messages": converted}, title)


@each_output
def test_google(name, target):
    utils = pytest.importorskip("haystack_integrations.components.generators.google_genai.chat.utils")
    for title, messages in compacted(name, target):
        spoken = [message for message in messages if not message.is_from(ChatRole.SYSTEM)]
        contents = [utils._convert_message_to_google_genai_format(message) for message in spoken]
        assert all(content.parts for content in contents), title
        for before, after in pairwise(contents):
            if any(part.function_call for part in after.parts):
                assert before.role == "user", (title, before, after)
            if any(part.function_call for part in before.parts):
                assert any(part.function_response for part in after.parts), title


@pytest.mark.parametrize("name", compactors())
@settings(max_examples=50, deadline=None, derandomize=True)
@given(messages=conversations(), more=conversations(), share=st.floats(0, 1))
def test_calls_follow_a_user_message_or_a_result(name, messages, more, share):
    """As Gemini demands, in whatever is compacted, and compacted again when it has grown."""
    compactor = compactors()[name]()
    compacted = []
    for added in (messages, more):
        valid = acceptable_to_gemini([*compacted, *added])
        compacted = compactor.compact(valid, int(share * COUNTER.count(valid)), COUNTER) or valid
        assert acceptable_to_gemini(compacted) == compacted


@each_output
def test_mistral(name, target):
    pytest.importorskip("haystack_integrations.components.generators.mistral")
    models = pytest.importorskip("mistralai.client.models")
    request = models.ChatCompletionRequest
    for _, messages in compacted(name, target, without="screenshots"):
        request(model="scripted", messages=[message.to_openai_dict_format() for message in messages])


@each_output
def test_tessera_finds_no_broken_pair(name, target):
    tessera = pytest.importorskip("tessera")
    for title, messages in compacted(name, target, without="screenshots"):
        transcript = [message.to_openai_dict_format(require_tool_call_ids=True) for message in messages]
        assert tessera.inspect(transcript), (title, tessera.inspect(transcript))


def accepted(server, body, title):
    try:
        server.check(body)
    except Exception as error:
        pytest.fail(f"{title}: {error}")
