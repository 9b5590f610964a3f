# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import base64

import pytest
import tiktoken
from haystack.dataclasses import ChatMessage, FileContent, ImageContent, TextContent, ToolCall
from haystack.tools import tool
from hypothesis import given
from hypothesis import strategies as st
from vocabulary import install_vocabulary

from haystack_compaction import EstimateTokenCounter, TiktokenCounter


@pytest.fixture(scope="module", autouse=True)
def vocabulary(tmp_path_factory):
    directory = tmp_path_factory.mktemp("vocabulary")
    install_vocabulary(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(directory))
        yield


COUNTERS = [EstimateTokenCounter(), TiktokenCounter()]
CALL = ToolCall("search", {"query": "tides " * 50}, id="a")


@tool
def search(query: str) -> str:
    """Search the almanac of tides, at length and with care."""
    return query


def test_texts_are_counted_exactly_with_tiktoken():
    encoding = tiktoken.get_encoding("o200k_base")
    frame = TiktokenCounter().count([ChatMessage.from_user("")])
    for text in ("high tide at noon", "潮汐は月の引力で起こる", "<|endoftext|> and <|fim_prefix|>", " " * 5000):
        expected = len(encoding.encode(text, disallowed_special=()))
        assert TiktokenCounter().count([ChatMessage.from_user(text)]) == frame + expected
        assert TiktokenCounter().count_text(text) == expected


@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize("text", ["<|endoftext|>", "\ud83d", " " * 1_000_000, "", "\x00", "a" * 200_000, "😀" * 1000])
def test_no_text_crashes_a_counter(counter, text):
    assert counter.count([ChatMessage.from_user(text), ChatMessage.from_tool(text, origin=CALL)]) > 0


@given(st.text())
def test_any_text_can_be_counted(text):
    for counter in COUNTERS:
        assert counter.count_text(text) >= (1 if text else 0)


@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize(
    "message",
    [
        ChatMessage.from_assistant(reasoning="because " * 100),
        ChatMessage.from_assistant(tool_calls=[CALL]),
        ChatMessage.from_tool([TextContent("found " * 50), TextContent("more " * 50)], origin=CALL),
        ChatMessage.from_user(content_parts=[ImageContent("aGk=", mime_type="image/png", validation=False)]),
        ChatMessage.from_tool([ImageContent("aGk=", mime_type="image/png", validation=False)], origin=CALL),
        ChatMessage.from_user(content_parts=[FileContent("aGk=", mime_type="application/pdf")]),
    ],
    ids=["reasoning", "call arguments", "result parts", "image", "image in a result", "file"],
)
def test_everything_that_is_sent_is_counted(counter, message):
    assert counter.count([message]) > counter.count([ChatMessage.from_user("")]) + 40


def test_a_text_file_costs_its_text():
    small, large = (
        FileContent(base64.b64encode(("tide " * words).encode()).decode(), mime_type="text/plain")
        for words in (10, 9000)
    )
    counter = EstimateTokenCounter()
    assert counter.count([ChatMessage.from_user(content_parts=[small])]) < 100
    assert counter.count([ChatMessage.from_user(content_parts=[large])]) > 5000


def test_an_image_in_low_detail_is_cheap():
    image = ImageContent("aGk=", mime_type="image/png", detail="low", validation=False)
    assert EstimateTokenCounter().count([ChatMessage.from_user(content_parts=[image])]) < 100


@pytest.mark.parametrize("counter", COUNTERS)
def test_tool_schemas_are_counted_and_totals_are_sums(counter):
    messages = [ChatMessage.from_user("When?"), ChatMessage.from_assistant("At noon.")]
    assert counter.count(messages) == sum(counter.count([message]) for message in messages)
    assert counter.count([], [search]) > 10
    assert counter.count(messages, [search]) == counter.count(messages) + counter.count([], [search])
    assert counter.count([]) == 0


def test_arguments_that_json_cannot_express_are_counted():
    circular = {}
    circular["self"] = circular
    call = ToolCall("search", {("a", 1): object(), "loop": circular})
    assert EstimateTokenCounter().count([ChatMessage.from_assistant(tool_calls=[call])]) > 10


def test_without_its_vocabulary_tiktoken_falls_back_to_the_estimate_and_says_so_once(caplog):
    counter = TiktokenCounter("no_such_encoding")
    for _ in range(3):
        assert counter.count_text("high tide at noon") == EstimateTokenCounter().count_text("high tide at noon")
    assert caplog.text.count("could not be loaded") == 1


@pytest.mark.parametrize(
    "counter", [EstimateTokenCounter(tokens_per_image=1), TiktokenCounter("cl100k_base", tokens_per_file=2)]
)
def test_round_trip(counter):
    restored = type(counter).from_dict(counter.to_dict())
    assert restored.to_dict() == counter.to_dict()


@pytest.mark.parametrize("option", ["tokens_per_image", "tokens_per_file"])
def test_negative_charges_are_refused(option):
    with pytest.raises(ValueError, match=f"`{option}` must be at least 0, got -1"):
        EstimateTokenCounter(**{option: -1})
