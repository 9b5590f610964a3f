# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The scripted providers, held to their promises by the real clients: what they accept, and what they refuse."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import openai
import pytest
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, StreamingChunk, ToolCall
from haystack.tools.tool import Tool
from haystack.utils import Secret
from servers.anthropic_messages import StrictAnthropicServer
from servers.base import ATTACHMENT_TOKENS, MESSAGE_TOKENS, ApiError, Call, Reply
from servers.openai_chat import StrictOpenAIServer

LOOKUP = Reply("Let me look.", [Call("lookup", {"city": "Oslo"}), Call("lookup", {"city": "Rome"})])

user, assistant, system = ChatMessage.from_user, ChatMessage.from_assistant, ChatMessage.from_system


def lookup(city: str) -> str:
    return f"It is sunny in {city}."


def lookup_tool() -> Tool:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return Tool(name="lookup", description="The weather in a city.", parameters=schema, function=lookup)


def calls(*ids: str, text: str | None = None) -> ChatMessage:
    return assistant(text, tool_calls=[ToolCall("lookup", {"city": "Oslo"}, id=call_id) for call_id in ids])


def result(call_id: str, text: str = "sunny") -> ChatMessage:
    return ChatMessage.from_tool(text, origin=ToolCall("lookup", {"city": "Oslo"}, id=call_id))


def words(text: str) -> int:
    return len(text.split())


# OpenAI


def openai_generator(server: StrictOpenAIServer, **options: Any) -> OpenAIChatGenerator:
    return OpenAIChatGenerator(
        api_key=Secret.from_token("none"), model="scripted", api_base_url=server.base_url, max_retries=0, **options
    )


def ask_openai(server: StrictOpenAIServer, *messages: ChatMessage, **options: Any) -> ChatMessage:
    reply: ChatMessage = openai_generator(server, **options).run(list(messages))["replies"][0]
    return reply


def post_openai(server: StrictOpenAIServer, messages: list[Any], **parameters: Any) -> Any:
    """Send what a `ChatMessage` cannot express."""
    with openai.OpenAI(api_key="none", base_url=server.base_url, max_retries=0) as client:
        return client.chat.completions.create(model="scripted", messages=messages, **parameters)


def wire_calls(*ids: str, arguments: str = "{}") -> dict[str, Any]:
    functions = [{"id": i, "type": "function", "function": {"name": "lookup", "arguments": arguments}} for i in ids]
    return {"role": "assistant", "tool_calls": functions}


def wire_result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "sunny"}


HI = {"role": "user", "content": "hi"}


class TestOpenAIRules:
    @pytest.mark.parametrize(
        "messages",
        [
            pytest.param([user("hi")], id="user only"),
            pytest.param([system("be brief"), user("hi"), assistant("hello"), user("bye")], id="turns"),
            pytest.param([user("hi"), calls("a"), result("a")], id="one call"),
            pytest.param([user("hi"), calls("a", "b"), result("b"), result("a"), user("and?")], id="any order"),
            pytest.param([user("hi"), calls("a"), result("a"), calls("a"), result("a")], id="id of an earlier batch"),
            pytest.param([user("hi"), user("hello?"), system("late")], id="roles in any order"),
            pytest.param([assistant("hello"), user("hi")], id="assistant first"),
            pytest.param([user("hi"), assistant(""), user("hm?")], id="empty text"),
        ],
    )
    def test_accepted(self, messages: list[ChatMessage]) -> None:
        with StrictOpenAIServer(["fine"]) as server:
            assert ask_openai(server, *messages).text == "fine"
            assert server.errors == []

    @pytest.mark.parametrize(
        ("messages", "sentence", "param"),
        [
            pytest.param(
                [user("hi"), calls("a", "b"), result("b"), user("and?")],
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                "'tool_call_id'. The following tool_call_ids did not have response messages: a",
                "messages.[3].role",
                id="one result missing",
            ),
            pytest.param(
                [user("hi"), calls("a"), user("wait"), result("a")],
                "The following tool_call_ids did not have response messages: a",
                "messages.[2].role",
                id="user message in between",
            ),
            pytest.param([user("hi"), calls("a")], "did not have response messages: a", None, id="call at the end"),
            pytest.param(
                [user("hi"), result("a")],
                "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                "'tool_calls'.",
                "messages.[1].role",
                id="orphaned result",
            ),
            pytest.param(
                [user("hi"), calls("a"), result("a"), user("so?"), result("a")],
                "must be a response to a preceeding message",
                "messages.[4].role",
                id="late result",
            ),
            pytest.param(
                [user("hi"), calls("a"), result("z")],
                "'tool_call_id' of 'z' not found in 'tool_calls' of previous message.",
                "messages.[2].tool_call_id",
                id="result of another call",
            ),
            pytest.param(
                [user("hi"), calls("a"), result("a"), result("a")],
                "Duplicate value for 'tool_call_id' of 'a', in messages[2] and messages[3].",
                "messages.[3].tool_call_id",
                id="two results for a call",
            ),
            pytest.param(
                [user("hi"), calls("a", "a"), result("a")],
                "Duplicate value for 'id' of 'a'",
                "messages[1].tool_calls[1].id",
                id="duplicate ids in a batch",
            ),
        ],
    )
    def test_rejected(self, messages: list[ChatMessage], sentence: str, param: str | None) -> None:
        with StrictOpenAIServer(["never said"]) as server:
            with pytest.raises(openai.BadRequestError) as caught:
                ask_openai(server, *messages)
            assert sentence in str(caught.value)
            assert caught.value.type == "invalid_request_error"
            assert param in (None, caught.value.param)
            assert [str(error) for error in server.errors] == [caught.value.body["message"]]  # type: ignore[index]

    @pytest.mark.parametrize(
        "messages",
        [
            pytest.param([{"role": "user", "content": [{"type": "text", "text": "hi"}]}], id="text part"),
            pytest.param(
                [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}], id="image part"
            ),
            pytest.param(
                [HI, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, HI], id="refusal part"
            ),
            pytest.param([HI, wire_calls("a", arguments='{"city": "Oslo"}'), wire_result("a")], id="JSON arguments"),
        ],
    )
    def test_wire_format_accepted(self, messages: list[Any]) -> None:
        with StrictOpenAIServer(["fine"]) as server:
            assert post_openai(server, messages).choices[0].message.content == "fine"

    @pytest.mark.parametrize(
        ("messages", "sentence", "code"),
        [
            pytest.param([], "Invalid 'messages': empty array.", "empty_array", id="no messages"),
            pytest.param(
                [{"role": "narrator", "content": "hi"}], "Invalid value: 'narrator'.", "invalid_value", id="role"
            ),
            pytest.param(
                [HI, {"role": "assistant"}],
                "Invalid value for 'content': expected a string, got null.",
                None,
                id="neither content nor calls",
            ),
            pytest.param([{"role": "user", "content": None}], "expected a string, got null.", None, id="null content"),
            pytest.param(
                [{"role": "user", "content": 7}],
                "Invalid type for 'messages[0].content': expected one of a string or array of objects, but got an "
                "integer instead.",
                "invalid_type",
                id="content of another type",
            ),
            pytest.param(
                [{"role": "user", "content": []}], "Invalid 'messages[0].content': empty", "empty_array", id="no parts"
            ),
            pytest.param(
                [{"role": "system", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
                "Invalid value: 'image_url'. Supported values are: 'text'.",
                "invalid_value",
                id="part of another role",
            ),
            pytest.param(
                [{"role": "user", "content": [{"type": "text"}]}],
                "Missing required parameter: 'messages[0].content[0].text'.",
                "missing_required_parameter",
                id="part without its content",
            ),
            pytest.param(
                [HI, {"role": "assistant", "content": "hi", "tool_calls": []}],
                "empty array",
                "empty_array",
                id="no calls",
            ),
            pytest.param(
                [HI, wire_calls("a", arguments='{"city": "Os'), wire_result("a")],
                "expected a valid JSON string",
                "invalid_value",
                id="cut off arguments",
            ),
        ],
    )
    def test_wire_format_rejected(self, messages: list[Any], sentence: str, code: str | None) -> None:
        with StrictOpenAIServer(["never said"]) as server:
            with pytest.raises(openai.BadRequestError) as caught:
                post_openai(server, messages)
            assert sentence in str(caught.value)
            assert caught.value.code == code

    @pytest.mark.parametrize(
        "messages",
        [
            pytest.param([system("be brief"), user("hi"), assistant("hello"), user("bye")], id="turns"),
            pytest.param([user("hi"), calls("a"), result("a"), calls("b"), result("b")], id="tool loop"),
            pytest.param([user("hi"), calls("a"), result("a"), assistant("done"), user("bye")], id="after a tool loop"),
        ],
    )
    def test_alternation_accepted(self, messages: list[ChatMessage]) -> None:
        with StrictOpenAIServer(["fine"], strict_alternation=True) as server:
            assert ask_openai(server, *messages).text == "fine"

    @pytest.mark.parametrize(
        ("messages", "sentence"),
        [
            pytest.param([user("a note"), user("the task")], "roles must alternate", id="two users"),
            pytest.param(
                [user("hi"), calls("a"), result("a"), user("so?")], "roles must alternate", id="after results"
            ),
            pytest.param([assistant("hello"), user("hi")], "roles must alternate", id="assistant first"),
            pytest.param([user("hi"), system("late")], "initial system message", id="late system message"),
        ],
    )
    def test_alternation_rejected(self, messages: list[ChatMessage], sentence: str) -> None:
        with (
            StrictOpenAIServer(["never said"], strict_alternation=True) as server,
            pytest.raises(openai.BadRequestError, match=sentence),
        ):
            ask_openai(server, *messages)

    def test_prompt_at_the_window_is_accepted(self) -> None:
        with StrictOpenAIServer([""], count=words, context_window=100 + MESSAGE_TOKENS) as server:
            ask_openai(server, user("word " * 100))

    def test_prompt_over_the_window_is_rejected(self) -> None:
        with StrictOpenAIServer([""], count=words, context_window=8000) as server:
            with pytest.raises(openai.BadRequestError) as caught:
                ask_openai(server, user("word " * 9119))
            assert caught.value.body == {
                "message": "This model's maximum context length is 8000 tokens. However, your messages resulted in "
                "9123 tokens. Please reduce the length of the messages.",
                "type": "invalid_request_error",
                "param": "messages",
                "code": "context_length_exceeded",
            }

    def test_overflow_tells_messages_from_tools(self) -> None:
        with (
            StrictOpenAIServer([""], count=words, context_window=10) as server,
            pytest.raises(openai.BadRequestError, match=r"\(24 in the messages, \d+ in the functions\)"),
        ):
            ask_openai(server, user("word " * 20), tools=[lookup_tool()])


class TestOpenAIReplies:
    def test_reply(self) -> None:
        with StrictOpenAIServer([LOOKUP]) as server:
            reply = ask_openai(server, user("hi"))
        assert reply.text == "Let me look."
        assert [(call.id, call.arguments) for call in reply.tool_calls] == [
            ("call_0_0", {"city": "Oslo"}),
            ("call_0_1", {"city": "Rome"}),
        ]
        assert reply.meta["finish_reason"] == "tool_calls"

    def test_streamed_reply_is_the_same(self) -> None:
        long = Reply("word " * 100, LOOKUP.tool_calls)
        chunks: list[StreamingChunk] = []
        with StrictOpenAIServer([long, long]) as server:
            whole = ask_openai(server, user("hi"))
            streamed = ask_openai(
                server,
                user("hi"),
                streaming_callback=chunks.append,
                generation_kwargs={"stream_options": {"include_usage": True}},
            )
        assert len(chunks) > 10
        assert streamed.text == whole.text
        assert [call.arguments for call in streamed.tool_calls] == [call.arguments for call in whole.tool_calls]
        assert streamed.meta["finish_reason"] == whole.meta["finish_reason"]
        assert streamed.meta["usage"]["completion_tokens"] == whole.meta["usage"]["completion_tokens"]

    def test_stream_reports_usage_only_when_asked(self) -> None:
        with StrictOpenAIServer(["hello"]) as server:
            reply = ask_openai(server, user("hi"), streaming_callback=lambda chunk: None)
        assert reply.meta["usage"] is None

    def test_stream_is_checked_too(self) -> None:
        with (
            StrictOpenAIServer(["never said"]) as server,
            pytest.raises(openai.BadRequestError, match="must be a response to a preceeding"),
        ):
            ask_openai(server, user("hi"), result("a"), streaming_callback=lambda chunk: None)

    async def test_async_client(self) -> None:
        async def ignore(chunk: StreamingChunk) -> None: ...

        with StrictOpenAIServer(["one", "two"]) as server:
            generator = openai_generator(server)
            whole = await generator.run_async([user("hi")])
            streamed = await generator.run_async([user("hi")], streaming_callback=ignore)
            with pytest.raises(openai.BadRequestError):
                await generator.run_async([user("hi"), result("a")])
            await generator.close_async()
        assert [whole["replies"][0].text, streamed["replies"][0].text] == ["one", "two"]

    def test_path_without_version(self) -> None:
        with StrictOpenAIServer(["fine"]) as server:
            client = openai.OpenAI(api_key="none", base_url=server.base_url.removesuffix("/v1"), max_retries=0)
            with client:
                completion = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
                assert completion.choices[0].message.content == "fine"
                with pytest.raises(openai.NotFoundError):
                    client.embeddings.create(model="m", input="hi")

    def test_reasoning_is_an_extra_field(self) -> None:
        with StrictOpenAIServer([Reply("4", reasoning="2 + 2")], count=words) as server:
            answer = post_openai(server, [HI])
        assert answer.choices[0].message.reasoning_content == "2 + 2"
        assert answer.usage.completion_tokens_details.reasoning_tokens == 3

    def test_agent(self) -> None:
        with StrictOpenAIServer([LOOKUP, "Sunny in both."]) as server:
            agent = Agent(chat_generator=openai_generator(server), tools=[lookup_tool()])
            outcome = agent.run(messages=[user("Where is it sunny?")])
            assert outcome["last_message"].text == "Sunny in both."
            roles = [message["role"] for message in server.requests[1]["messages"]]
            assert roles == ["user", "assistant", "tool", "tool"]
            assert server.errors == []

    async def test_agent_async_and_streaming(self) -> None:
        async def ignore(chunk: StreamingChunk) -> None: ...

        with StrictOpenAIServer([LOOKUP, "Sunny in both."]) as server:
            agent = Agent(chat_generator=openai_generator(server), tools=[lookup_tool()], streaming_callback=ignore)
            outcome = await agent.run_async(messages=[user("Where is it sunny?")])
            assert outcome["last_message"].text == "Sunny in both."


class TestOpenAIUsage:
    TURNS = (user("word " * 30), assistant("word " * 10), user("word " * 5))

    def usages(self, **options: Any) -> list[Any]:
        """The usage of a first request and of a second one that repeats and extends it."""
        with StrictOpenAIServer(["a b c"] * 2, count=words, **options) as server:
            return [ask_openai(server, *self.TURNS[:length]).meta["usage"] for length in (1, 3)]

    def test_full(self) -> None:
        first, second = self.usages()
        assert (first["prompt_tokens"], first["completion_tokens"], first["total_tokens"]) == (34, 3, 37)
        assert (second["prompt_tokens"], second["prompt_tokens_details"]["cached_tokens"]) == (57, 34)

    def test_net_of_cache(self) -> None:
        second = self.usages(usage="net_of_cache")[1]
        assert (second["prompt_tokens"], second["prompt_tokens_details"]["cached_tokens"]) == (23, 34)

    def test_none(self) -> None:
        assert self.usages(usage="none") == [None, None]

    def test_total_only(self) -> None:
        assert [usage["total_tokens"] for usage in self.usages(usage="total_only")] == [37, 60]


class TestSharedBehaviour:
    def test_script_may_be_a_callable(self) -> None:
        def echo(index: int, messages: list[dict[str, Any]]) -> str:
            return f"{index}: {messages[-1]['content']}"

        with StrictOpenAIServer(echo) as server:
            assert [ask_openai(server, user(text)).text for text in ("a", "b")] == ["0: a", "1: b"]

    def test_a_rejected_request_takes_no_reply(self) -> None:
        with StrictOpenAIServer(["first"]) as server:
            with pytest.raises(openai.BadRequestError):
                ask_openai(server, result("a"))
            assert ask_openai(server, user("hi")).text == "first"
            assert len(server.requests) == 2

    def test_a_script_may_play_an_outage(self) -> None:
        def overloaded(index: int, messages: list[dict[str, Any]]) -> str:
            if index == 0:
                raise ApiError(429, {"error": {"message": "slow down", "type": "rate_limit_error"}})
            return "back again"

        with StrictOpenAIServer(overloaded) as server:
            with pytest.raises(openai.RateLimitError, match="slow down"):
                ask_openai(server, user("hi"))
            assert ask_openai(server, user("hi")).text == "back again"

    def test_a_script_that_runs_out_is_a_server_error(self) -> None:
        with (
            StrictOpenAIServer([]) as server,
            pytest.raises(openai.InternalServerError, match="the script has 0 replies"),
        ):
            ask_openai(server, user("hi"))

    @pytest.mark.parametrize(
        ("options", "request_options"),
        [
            pytest.param({"max_output_tokens": 10}, {}, id="the model's limit"),
            pytest.param({}, {"max_completion_tokens": 10}, id="the request's limit"),
            pytest.param({"context_window": 1 + MESSAGE_TOKENS + 10}, {}, id="what is left of the window"),
        ],
    )
    def test_a_long_reply_is_cut_off(self, options: dict[str, Any], request_options: dict[str, Any]) -> None:
        long = Reply("word " * 50, [Call("lookup")])
        with StrictOpenAIServer([long], count=words, **options) as server:
            reply = ask_openai(server, user("hi"), generation_kwargs=request_options)
        assert reply.text is not None
        assert words(reply.text) == 10
        assert reply.tool_calls == []
        assert reply.meta["finish_reason"] == "length"
        assert reply.meta["usage"]["completion_tokens"] == 10

    def test_the_cache_knows_every_earlier_request(self) -> None:
        with StrictOpenAIServer(["ok"] * 3, count=words) as server:
            ask_openai(server, user("a " * 20), assistant("b " * 20), user("c " * 20))
            ask_openai(server, user("something else"))
            ask_openai(server, user("a " * 20), assistant("b " * 20), user("d"))
            assert [usage.cached for usage in server.usages] == [0, 0, 48]

    def test_an_image_has_a_flat_price(self) -> None:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
        with StrictOpenAIServer(["ok"]) as server:
            answer = post_openai(server, [{"role": "user", "content": [image]}])
        assert answer.usage.prompt_tokens == ATTACHMENT_TOKENS + MESSAGE_TOKENS

    def test_requests_at_the_same_time(self) -> None:
        def echo(index: int, messages: list[dict[str, Any]]) -> str:
            return str(messages[-1]["content"])

        texts = [str(number) for number in range(40)]
        with StrictOpenAIServer(echo) as server, ThreadPoolExecutor(20) as pool:
            generator = openai_generator(server)
            generator.warm_up()
            replies = pool.map(lambda text: generator.run([user(text)])["replies"][0].text, texts)
            assert list(replies) == texts
            assert len(server.requests) == 40


# Anthropic

THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 4096}
NOT_INSTALLED = "anthropic-haystack is not installed"


def anthropic_generator(server: StrictAnthropicServer, **options: Any) -> Any:
    integration = pytest.importorskip("haystack_integrations.components.generators.anthropic", reason=NOT_INSTALLED)
    # The generator has no option for the address; its client reads it from the environment, once.
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ANTHROPIC_BASE_URL", server.base_url)
        generator = integration.AnthropicChatGenerator(
            api_key=Secret.from_token("none"), model="scripted", max_retries=0, **options
        )
        generator.warm_up()
    return generator


def ask_anthropic(server: StrictAnthropicServer, *messages: ChatMessage, **options: Any) -> ChatMessage:
    reply: ChatMessage = anthropic_generator(server, **options).run(list(messages))["replies"][0]
    return reply


def post_anthropic(server: StrictAnthropicServer, messages: list[Any], **parameters: Any) -> Any:
    """Send what the converter of anthropic-haystack would never build."""
    sdk = pytest.importorskip("anthropic", reason=NOT_INSTALLED)
    with sdk.Anthropic(api_key="none", base_url=server.base_url, max_retries=0) as client:
        return client.messages.create(**{"model": "scripted", "max_tokens": 100, "messages": messages, **parameters})


def refusal(ask: Callable[[], Any]) -> str:
    """The message of the 400 that a request is answered with."""
    sdk = pytest.importorskip("anthropic", reason=NOT_INSTALLED)
    with pytest.raises(sdk.BadRequestError) as caught:
        ask()
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    return str(caught.value.body["error"]["message"])


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def use(*ids: str, before: Any = ()) -> dict[str, Any]:
    blocks = [{"type": "tool_use", "id": call_id, "name": "lookup", "input": {}} for call_id in ids]
    return {"role": "assistant", "content": [*before, *blocks]}


def answer(*ids: str, before: Any = (), after: Any = (), text: str = "sunny") -> dict[str, Any]:
    blocks = [{"type": "tool_result", "tool_use_id": call_id, "content": [text_block(text)]} for call_id in ids]
    return {"role": "user", "content": [*before, *blocks, *after]}


def thought(text: str = "hm", signature: str | None = None) -> dict[str, Any]:
    return {"type": "thinking", "thinking": text, "signature": signature or StrictAnthropicServer.sign(text)}


def unanswered(index: int, *ids: str) -> str:
    return (
        f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(ids)}. Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    )


class TestAnthropicRules:
    @pytest.mark.parametrize(
        "messages",
        [
            pytest.param([system("be brief"), user("hi"), assistant("hello"), user("bye")], id="turns"),
            pytest.param([user("a note"), user("the task")], id="two user messages merge"),
            pytest.param([user("hi"), assistant("a"), assistant("b"), user("c")], id="two assistant messages merge"),
            pytest.param([user("hi"), calls("a", "b"), result("b"), result("a"), user("and?")], id="any order"),
            pytest.param([user("hi"), calls("a"), result("a"), calls("b"), result("b")], id="two steps"),
        ],
    )
    def test_accepted(self, messages: list[ChatMessage]) -> None:
        with StrictAnthropicServer(["fine"]) as server:
            assert ask_anthropic(server, *messages).text == "fine"
            assert server.errors == []

    @pytest.mark.parametrize(
        ("messages", "sentence"),
        [
            pytest.param(
                [assistant("hello"), user("hi")],
                'messages: first message must use the "user" role',
                id="assistant first",
            ),
            pytest.param([user("hi"), calls("a", "b"), result("b"), user("and?")], unanswered(1, "a"), id="missing"),
            pytest.param(
                [user("hi"), calls("a"), user("wait"), result("a")], unanswered(1, "a"), id="text before result"
            ),
            pytest.param([user("hi"), calls("a", "b")], unanswered(1, "a", "b"), id="calls at the end"),
            pytest.param(
                [user("hi"), result("a")],
                "messages.1.content.0: unexpected `tool_use_id` found in `tool_result` blocks: a. Each `tool_result` "
                "block must have a corresponding `tool_use` block in the previous message.",
                id="orphaned result",
            ),
            pytest.param(
                [user("hi"), calls("a"), result("a"), assistant("ok"), result("a")],
                "messages.4.content.0: unexpected `tool_use_id`",
                id="late result",
            ),
            pytest.param(
                [user("hi"), calls("a"), result("a"), result("a")],
                "messages.2.content.1: each tool_use must have a single result. Found multiple `tool_result` blocks "
                "with id: a",
                id="two results for a call",
            ),
            pytest.param(
                [user("hi"), calls("a"), result("a"), calls("a"), result("a")],
                "messages.3.content.0: `tool_use` ids must be unique",
                id="id of an earlier batch",
            ),
            pytest.param(
                [user("hi"), calls("a.b"), result("a.b")],
                "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
                id="dot in an id",
            ),
            pytest.param(
                [user(" \n"), user("hi")], "messages: text content blocks must contain non-whitespace text", id="blank"
            ),
            pytest.param(
                [user("hi"), calls("a"), result("a", "")],
                "messages: text content blocks must be non-empty",
                id="empty text in a result",
            ),
            pytest.param(
                [system("  "), user("hi")], "system: text content blocks must contain non-whitespace", id="blank system"
            ),
            pytest.param(
                [user("hi"), assistant(""), user("bye")],
                "messages.1: all messages must have non-empty content except for the optional final assistant message",
                id="empty message",
            ),
        ],
    )
    def test_rejected(self, messages: list[ChatMessage], sentence: str) -> None:
        with StrictAnthropicServer(["never said"]) as server:
            assert refusal(lambda: ask_anthropic(server, *messages)).startswith(sentence)
            assert [error.status for error in server.errors] == [400]

    @pytest.mark.parametrize(
        "messages",
        [
            pytest.param([HI, use("a"), answer("a", after=[text_block("and?")])], id="text behind the results"),
            pytest.param([HI, use("a", "b"), answer("a"), answer("b")], id="results in two messages merge"),
            pytest.param([HI, use("a"), use("b"), answer("a", "b")], id="calls in two messages merge"),
            pytest.param([HI, {"role": "assistant", "content": []}], id="empty final assistant message"),
        ],
    )
    def test_wire_format_accepted(self, messages: list[Any]) -> None:
        with StrictAnthropicServer(["fine"]) as server:
            assert post_anthropic(server, messages).content[0].text == "fine"

    @pytest.mark.parametrize(
        ("messages", "sentence"),
        [
            pytest.param([], "messages: at least one message is required", id="no messages"),
            pytest.param(
                [HI, {"role": "system", "content": "late"}], 'messages: Unexpected role "system".', id="system message"
            ),
            pytest.param(
                [{"role": "user", "content": [text_block("")]}],
                "messages: text content blocks must be non-empty",
                id="empty text block",
            ),
            pytest.param(
                [HI, use("a"), answer("a", before=[text_block("so")])], unanswered(1, "a"), id="text before the results"
            ),
            pytest.param(
                [HI, answer("a") | {"role": "assistant"}],
                "messages.1: `tool_result` blocks can only be in `user` messages",
                id="result from the assistant",
            ),
            pytest.param(
                [use("a") | {"role": "user"}],
                "messages.0: `tool_use` blocks can only be in `assistant` messages",
                id="call from the user",
            ),
        ],
    )
    def test_wire_format_rejected(self, messages: list[Any], sentence: str) -> None:
        with StrictAnthropicServer(["never said"]) as server:
            assert refusal(lambda: post_anthropic(server, messages)).startswith(sentence)

    def test_prompt_at_the_window_is_accepted(self) -> None:
        with StrictAnthropicServer([""], count=words, context_window=100 + MESSAGE_TOKENS) as server:
            ask_anthropic(server, user("word " * 100))

    def test_prompt_over_the_window_is_rejected(self) -> None:
        with StrictAnthropicServer([""], count=words, context_window=8000) as server:
            message = refusal(lambda: ask_anthropic(server, user("word " * 9119)))
        assert message == "prompt is too long: 9123 tokens > 8000 maximum"


class TestAnthropicThinking:
    @pytest.mark.parametrize(
        "messages",
        [
            pytest.param([HI, use("a", before=[thought()]), answer("a")], id="loop starts with thinking"),
            pytest.param(
                [HI, use("a", before=[thought()]), answer("a"), use("b"), answer("b")], id="later steps need none"
            ),
            pytest.param(
                [HI, use("a"), answer("a"), {"role": "assistant", "content": "done"}, HI], id="finished loops need none"
            ),
            pytest.param([HI, {"role": "assistant", "content": "hello"}, HI], id="no tools, no need"),
        ],
    )
    def test_accepted(self, messages: list[Any]) -> None:
        with StrictAnthropicServer(["fine"]) as server:
            assert post_anthropic(server, messages, **THINKING).content[-1].text == "fine"

    @pytest.mark.parametrize(
        ("messages", "found"),
        [
            pytest.param([HI, use("a"), answer("a")], "messages.1.content.0.type: {} `tool_use`", id="no thinking"),
            pytest.param(
                [HI, use("a", before=[text_block("so")]), answer("a")],
                "messages.1.content.0.type: {} `text`",
                id="text instead",
            ),
            pytest.param(
                [HI, use("a"), answer("a"), use("b", before=[thought()]), answer("b")],
                "messages.1.content.0.type: {} `tool_use`",
                id="only a later step thinks",
            ),
            pytest.param(
                [HI, use("a"), answer("a", after=[text_block("hurry")])],
                "messages.1.content.0.type: {} `tool_use`",
                id="a word with the results ends no loop",
            ),
        ],
    )
    def test_rejected(self, messages: list[Any], found: str) -> None:
        expected = found.format("Expected `thinking` or `redacted_thinking`, but found")
        with StrictAnthropicServer(["never said"]) as server:
            assert refusal(lambda: post_anthropic(server, messages, **THINKING)).startswith(expected)

    def test_without_thinking_a_loop_needs_none(self) -> None:
        with StrictAnthropicServer(["fine"]) as server:
            assert post_anthropic(server, [HI, use("a"), answer("a")]).content[0].text == "fine"

    @pytest.mark.parametrize(
        "block",
        [
            pytest.param(thought(signature="forged"), id="forged signature"),
            pytest.param(thought("changed", StrictAnthropicServer.sign("original")), id="changed text"),
        ],
    )
    def test_signature_is_checked(self, block: dict[str, Any]) -> None:
        with StrictAnthropicServer(["never said"]) as server:
            message = refusal(lambda: post_anthropic(server, [HI, use("a", before=[block]), answer("a")], **THINKING))
        assert message == "messages.1.content.0: Invalid `signature` in `thinking` block"

    def test_thinking_survives_the_round_trip(self) -> None:
        with StrictAnthropicServer([Reply("It is 4.", reasoning="2 + 2"), "fine"], bind_thinking=True) as server:
            reply = ask_anthropic(server, user("2 + 2?"), generation_kwargs=THINKING)
            assert reply.reasoning is not None
            assert reply.reasoning.reasoning_text == "2 + 2"
            assert (
                ask_anthropic(server, user("2 + 2?"), reply, user("sure?"), generation_kwargs=THINKING).text == "fine"
            )

    def test_bound_thinking_is_rejected_when_what_came_before_is_changed(self) -> None:
        with StrictAnthropicServer(["4", "6", "fine"], bind_thinking=True) as server:
            first = ask_anthropic(server, user("2 + 2?"), generation_kwargs=THINKING)
            second = ask_anthropic(server, user("2 + 2?"), first, user("3 + 3?"), generation_kwargs=THINKING)
            message = refusal(lambda: ask_anthropic(server, user("3 + 3?"), second, user("so?")))
            assert message.startswith(
                "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound"
            )
            server.bind_thinking = False
            assert ask_anthropic(server, user("3 + 3?"), second, user("so?")).text == "fine"


class TestAnthropicReplies:
    def test_reply(self) -> None:
        with StrictAnthropicServer([LOOKUP]) as server:
            reply = ask_anthropic(server, user("hi"), ignore_tools_thinking_messages=False)
        assert reply.text == "Let me look."
        assert [(call.id, call.arguments) for call in reply.tool_calls] == [
            ("toolu_0_0", {"city": "Oslo"}),
            ("toolu_0_1", {"city": "Rome"}),
        ]
        assert reply.meta["finish_reason"] == "tool_calls"

    def test_streamed_reply_is_the_same(self) -> None:
        long = Reply("word " * 100, LOOKUP.tool_calls, reasoning="hm " * 50)
        chunks: list[StreamingChunk] = []
        with StrictAnthropicServer([long, long]) as server:
            options = {"generation_kwargs": THINKING, "ignore_tools_thinking_messages": False}
            whole = ask_anthropic(server, user("hi"), **options)
            streamed = ask_anthropic(server, user("hi"), streaming_callback=chunks.append, **options)
        assert len(chunks) > 10
        assert (streamed.text, streamed.reasoning) == (whole.text, whole.reasoning)
        assert [call.arguments for call in streamed.tool_calls] == [call.arguments for call in whole.tool_calls]
        assert streamed.meta["finish_reason"] == whole.meta["finish_reason"]
        assert streamed.meta["usage"]["prompt_tokens"] == whole.meta["usage"]["prompt_tokens"]
        assert streamed.meta["usage"]["completion_tokens"] == whole.meta["usage"]["completion_tokens"]

    def test_stream_is_checked_too(self) -> None:
        with StrictAnthropicServer(["never said"]) as server:
            ask = partial(ask_anthropic, server, assistant("hi"), streaming_callback=lambda chunk: None)
            assert "first message" in refusal(ask)

    async def test_async_client(self) -> None:
        async def ignore(chunk: StreamingChunk) -> None: ...

        with StrictAnthropicServer(["one", "two"]) as server, pytest.MonkeyPatch.context() as environment:
            generator = anthropic_generator(server)
            environment.setenv("ANTHROPIC_BASE_URL", server.base_url)
            whole = await generator.run_async([user("hi")])
            streamed = await generator.run_async([user("hi")], streaming_callback=ignore)
            await generator.close_async()
        assert [whole["replies"][0].text, streamed["replies"][0].text] == ["one", "two"]

    def test_a_long_reply_is_cut_off(self) -> None:
        with StrictAnthropicServer(["word " * 50], count=words) as server:
            reply = ask_anthropic(server, user("hi"), generation_kwargs={"max_tokens": 10})
        assert reply.meta["finish_reason"] == "length"
        assert reply.meta["usage"]["completion_tokens"] == 10

    @pytest.mark.parametrize("options", [pytest.param({}, id="plain"), pytest.param(THINKING, id="thinking")])
    def test_agent(self, options: dict[str, Any]) -> None:
        with StrictAnthropicServer([LOOKUP, LOOKUP, "Sunny in both."], bind_thinking=True) as server:
            generator = anthropic_generator(server, generation_kwargs=options)
            agent = Agent(chat_generator=generator, tools=[lookup_tool()], system_prompt="Be brief.")
            outcome = agent.run(messages=[user("Where is it sunny?")])
            assert outcome["last_message"].text == "Sunny in both."
            assert [message["role"] for message in server.requests[1]["messages"]] == ["user", "assistant", "user"]
            assert server.errors == []


class TestAnthropicUsage:
    TURNS = (system("word " * 30), user("word " * 10), assistant("word " * 10), user("word " * 5))

    def usages(self, **options: Any) -> list[Any]:
        """The usage of a first request and of a second one that repeats and extends it, as the client gets it."""
        with StrictAnthropicServer(["a b c"] * 2, count=words, **options) as server:
            return [ask_anthropic(server, *self.TURNS[:length]).meta["usage"] for length in (2, 4)]

    def test_full(self) -> None:
        first, second = self.usages()
        assert (first["prompt_tokens"], first["completion_tokens"]) == (48, 3)
        assert (second["prompt_tokens"], second["cache_read_input_tokens"]) == (71, 0)

    def test_net_of_cache(self) -> None:
        with StrictAnthropicServer(["a b c"] * 2, count=words, usage="net_of_cache") as server:
            for length in (1, 3):
                messages = [{"role": "user", "content": "word " * 10}] * length
                usage = post_anthropic(server, messages, system="word " * 30).usage
        # The tokens of the system text and the first message; of the second; of the third.
        parts = (usage.cache_read_input_tokens, usage.cache_creation_input_tokens, usage.input_tokens)
        assert parts == (48, 14, 14)

    def test_net_of_cache_adds_up_in_the_generator(self) -> None:
        assert [usage["prompt_tokens"] for usage in self.usages(usage="net_of_cache")] == [48, 71]

    def test_moving_a_cache_mark_keeps_the_cache(self) -> None:
        marked = ChatMessage.from_user("word " * 10, meta={"cache_control": {"type": "ephemeral"}})
        with StrictAnthropicServer(["ok"] * 2, count=words) as server:
            ask_anthropic(server, marked)
            ask_anthropic(server, user("word " * 10), assistant("ok"), marked)
            assert [usage.cached for usage in server.usages] == [0, 14]

    def test_none(self) -> None:
        assert self.usages(usage="none") == [None, None]

    def test_none_in_a_stream(self) -> None:
        with StrictAnthropicServer(["ok"], usage="none") as server:
            reply = ask_anthropic(server, user("hi"), streaming_callback=lambda chunk: None)
        # The client cannot read a stream without the key, so its values are left out instead.
        assert not any(reply.meta["usage"].values())

    def test_total_only(self) -> None:
        assert [usage["total_tokens"] for usage in self.usages(usage="total_only")] == [51, 74]
