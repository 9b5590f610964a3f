# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
How each library compacts a conversation, behind one interface: ours, Haystack, LangChain, pydantic-ai, agent-framework.

Conversations are turned into each library's own messages first, so that nobody's time goes into that.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import haystack.hooks.compaction as haystacks
from contenders import Make, haystack_compactors, our_compactors
from haystack.components.agents.state.state import State
from haystack.dataclasses import ChatMessage
from haystack.token_counters import ApproximateTokenCounter
from measure import CannedModel

from haystack_compaction import CompactionHook, EstimateTokenCounter

#: A conversation in a library's own messages.
Messages: TypeAlias = list[Any]
Json: TypeAlias = dict[str, Any]

UNLIMITED = 10**9


class Peer(ABC):
    """
    One way to compact of one library.

    :param name: What the library calls it.
    """

    library: str
    #: How often the model was asked.
    calls = 0

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"{self.library}: {self.name}"

    @abstractmethod
    def converted(self, messages: list[ChatMessage]) -> Messages:
        """The conversation in messages of the library, new ones with each call."""

    @abstractmethod
    def count(self, messages: Messages) -> int:
        """The size by the library's own default counter, in tokens."""

    @abstractmethod
    def compacted(self, messages: Messages, target_tokens: int) -> Messages:
        """The conversation, brought down to so many tokens of the library's where it has such a setting."""

    @abstractmethod
    def idle_step(self, messages: Messages) -> Callable[[], object]:
        """What the library does before a call of the model when nothing is due."""

    @abstractmethod
    def as_sent(self, messages: Messages) -> list[Json]:
        """The messages as OpenAI's chat completions take them."""


class HaystackPeer(Peer):
    """A compactor of this package or of Haystack."""

    def __init__(self, library: str, name: str, make: Make) -> None:
        super().__init__(name)
        self.library = library
        self._make = make
        is_ours = library == "ours"
        self._counter = EstimateTokenCounter() if is_ours else ApproximateTokenCounter()
        self._hook = CompactionHook if is_ours else haystacks.CompactionHook

    def converted(self, messages: list[ChatMessage]) -> Messages:
        return list(messages)

    def count(self, messages: Messages) -> int:
        return self._counter.count(messages)

    def compacted(self, messages: Messages, target_tokens: int) -> Messages:
        model = CannedModel()
        compactor = self._make(model)
        if self.library == "ours":
            # As a pipeline node, which is more than Haystack's can be: it also repairs and reports.
            compacted = compactor.run(messages=messages, target_tokens=target_tokens)["messages"]
        else:
            compacted = compactor.compact(messages, target_tokens, self._counter) or messages
        self.calls = model.calls
        return compacted

    def idle_step(self, messages: Messages) -> Callable[[], object]:
        hook = self._hook(self._make(CannedModel()), context_window=UNLIMITED)
        state = State(schema={}, data={"messages": messages})
        return lambda: hook.run(state)

    def as_sent(self, messages: Messages) -> list[Json]:
        return [message.to_openai_dict_format(require_tool_call_ids=False) for message in messages]


def all_peers() -> list[Peer]:
    """All that is installed."""
    ours = our_compactors(min_tokens=50, summarizer_context_window=10**7)
    peers: list[Peer] = [HaystackPeer("ours", name, make) for name, make in ours.items()]
    peers += [HaystackPeer("Haystack", name, make) for name, make in haystack_compactors(min_tokens=50).items()]
    for others in (_langchains, _pydantics, _agent_frameworks):
        with suppress(ImportError):
            peers += others()
    return peers


def _langchains() -> list[Peer]:
    from langchain.agents.middleware import ClearToolUsesEdit, ContextEditingMiddleware, SummarizationMiddleware
    from langchain.agents.middleware.types import ModelRequest
    from langchain_core.language_models.fake_chat_models import FakeListChatModel
    from langchain_core.messages import convert_to_openai_messages, trim_messages
    from langchain_core.messages.utils import count_tokens_approximately

    class LangChainPeer(Peer):
        library = "LangChain"

        def converted(self, messages: list[ChatMessage]) -> Messages:
            return [langchain_message(message, str(index)) for index, message in enumerate(messages)]

        def count(self, messages: Messages) -> int:
            return count_tokens_approximately(messages)

        def as_sent(self, messages: Messages) -> list[Json]:
            return convert_to_openai_messages(messages)

    class TrimMessages(LangChainPeer):
        def compacted(self, messages: Messages, target_tokens: int) -> Messages:
            return trim_messages(
                messages,
                max_tokens=target_tokens,
                token_counter="approximate",
                strategy="last",
                start_on="human",
                include_system=True,
            )

        def idle_step(self, messages: Messages) -> Callable[[], object]:
            return lambda: self.compacted(messages, UNLIMITED)

    class Middleware(LangChainPeer):
        def converted(self, messages: list[ChatMessage]) -> Messages:
            # Its Agent keeps the system prompt apart.
            return [message for message in super().converted(messages) if message.type != "system"]

    class Summarization(Middleware):
        def compacted(self, messages: Messages, target_tokens: int) -> Messages:
            model = CountingModel(responses=[CannedModel().text])
            update = SummarizationMiddleware(model, trigger=("tokens", 1), keep=("tokens", target_tokens)).before_model(
                {"messages": messages}, None
            )
            self.calls = model.calls
            # The first one tells the state to remove all others.
            return update["messages"][1:] if update else messages

        def idle_step(self, messages: Messages) -> Callable[[], object]:
            model = FakeListChatModel(responses=[""])
            middleware = SummarizationMiddleware(model, trigger=("tokens", UNLIMITED))
            return lambda: middleware.before_model({"messages": messages}, None)

    class ContextEditing(Middleware):
        def compacted(self, messages: Messages, target_tokens: int) -> Messages:
            # It has no target: it clears all but the newest results.
            return self._edited(messages, trigger=target_tokens)

        def idle_step(self, messages: Messages) -> Callable[[], object]:
            return lambda: self._edited(messages, trigger=UNLIMITED)

        def _edited(self, messages: Messages, *, trigger: int) -> Messages:
            sent: list[Messages] = []
            middleware = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=trigger)])
            request = ModelRequest(model=FakeListChatModel(responses=[""]), messages=messages)
            middleware.wrap_model_call(request, lambda request: sent.append(request.messages))
            return sent[0]

    class CountingModel(FakeListChatModel):
        calls: int = 0

        def _call(self, *args: Any, **options: Any) -> str:
            self.calls += 1
            return super()._call(*args, **options)

    return [
        TrimMessages("trim_messages"),
        Summarization("SummarizationMiddleware"),
        ContextEditing("ContextEditingMiddleware"),
    ]


def langchain_message(message: ChatMessage, message_id: str) -> Any:
    """The message as LangChain has it."""
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

    if message.tool_call_result:
        origin = message.tool_call_result.origin
        return ToolMessage(_result(message), tool_call_id=origin.id or "", name=origin.tool_name, id=message_id)
    calls = [{"name": call.tool_name, "args": call.arguments, "id": call.id} for call in message.tool_calls]
    if calls or message.role.value == "assistant":
        return AIMessage(message.text or "", tool_calls=calls, id=message_id)
    return {"system": SystemMessage, "user": HumanMessage}[message.role.value](message.text or "", id=message_id)


def _pydantics() -> list[Peer]:
    from pydantic_ai.messages import (
        ModelRequest,
        ModelResponse,
        SystemPromptPart,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.models import ModelRequestContext, ModelRequestParameters
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.tools import RunContext
    from pydantic_ai.usage import RunUsage
    from pydantic_ai_harness.compaction import (
        ClearToolResults,
        SlidingWindowCompaction,
        SummarizingCompaction,
        compact_now,
        estimate_token_count,
    )

    class PydanticPeer(Peer):
        library = "pydantic-ai-harness"

        def __init__(self, make: Callable[[int, int], Any]) -> None:
            super().__init__(type(make(1, 1)).__name__)
            self._make = make

        def converted(self, messages: list[ChatMessage]) -> Messages:
            return [converted(message) for message in messages]

        def count(self, messages: Messages) -> int:
            return estimate_token_count(messages)

        def compacted(self, messages: Messages, target_tokens: int) -> Messages:
            self.calls = 0
            return _run(compact_now(self._make(1, target_tokens), messages, model=FunctionModel(self._answer)))

        def idle_step(self, messages: Messages) -> Callable[[], object]:
            model = FunctionModel(self._answer)
            compaction = self._make(UNLIMITED, 1)
            context = RunContext(deps=None, model=model, usage=RunUsage(), messages=messages)
            request = ModelRequestContext(
                model=model,
                messages=messages,
                model_settings=None,
                model_request_parameters=ModelRequestParameters(),
            )
            return lambda: _run(compaction.before_model_request(context, request))

        def as_sent(self, messages: Messages) -> list[Json]:
            return [sent for message in messages for sent in as_sent(message)]

        def _answer(self, messages: Messages, info: Any) -> ModelResponse:
            self.calls += 1
            return ModelResponse([TextPart(CannedModel().text)])

    def converted(message: ChatMessage) -> Any:
        if message.tool_call_result:
            origin = message.tool_call_result.origin
            return ModelRequest([ToolReturnPart(origin.tool_name, _result(message), tool_call_id=origin.id or "")])
        if message.role.value == "assistant":
            calls = [ToolCallPart(call.tool_name, call.arguments, call.id or "") for call in message.tool_calls]
            return ModelResponse([*([TextPart(message.text)] if message.text else []), *calls])
        part = SystemPromptPart if message.role.value == "system" else UserPromptPart
        return ModelRequest([part(message.text or "")])

    def as_sent(message: Any) -> list[Json]:
        if isinstance(message, ModelResponse):
            text = "".join(part.content for part in message.parts if isinstance(part, TextPart))
            calls = [
                _call(part.tool_call_id, part.tool_name, part.args)
                for part in message.parts
                if isinstance(part, ToolCallPart)
            ]
            return [_assistant(text, calls)]
        sent = []
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                sent.append({"role": "tool", "tool_call_id": part.tool_call_id, "content": str(part.content)})
            else:
                role = "system" if isinstance(part, SystemPromptPart) else "user"
                sent.append({"role": role, "content": part.content})
        return sent

    return [
        PydanticPeer(lambda trigger, target: SlidingWindowCompaction(max_tokens=trigger, keep_tokens=target)),
        # It has no target: it clears all but the newest results.
        PydanticPeer(lambda trigger, target: ClearToolResults(max_tokens=trigger)),
        PydanticPeer(lambda trigger, target: SummarizingCompaction(max_tokens=trigger, keep_tokens=target)),
    ]


def _agent_frameworks() -> list[Peer]:
    from agent_framework import (
        ChatResponse,
        Content,
        ContextWindowCompactionStrategy,
        Message,
        SummarizationStrategy,
        TruncationStrategy,
        apply_compaction,
    )
    from agent_framework._compaction import CharacterEstimatorTokenizer, annotate_message_groups, annotate_token_counts

    tokenizer = CharacterEstimatorTokenizer()

    class AgentFrameworkPeer(Peer):
        library = "agent-framework"
        additional_properties: Json = {}  # noqa: RUF012

        def __init__(self, make: Callable[[int, int, Any], Any]) -> None:
            super().__init__(type(make(2, 1, self)).__name__)
            self._make = make

        def converted(self, messages: list[ChatMessage]) -> Messages:
            return [converted(message) for message in messages]

        def count(self, messages: Messages) -> int:
            annotate_message_groups(messages)
            return annotate_token_counts(messages, tokenizer=tokenizer) or sum(
                message.additional_properties["_group"]["token_count"] for message in messages
            )

        def compacted(self, messages: Messages, target_tokens: int) -> Messages:
            self.calls = 0
            strategy = self._make(target_tokens + 1, target_tokens, self)
            return _run(apply_compaction(messages, strategy=strategy, tokenizer=tokenizer))

        def idle_step(self, messages: Messages) -> Callable[[], object]:
            strategy = self._make(UNLIMITED, 1, self)
            return lambda: _run(apply_compaction(messages, strategy=strategy, tokenizer=tokenizer))

        def as_sent(self, messages: Messages) -> list[Json]:
            return [as_sent(message) for message in messages]

        async def get_response(self, messages: Messages, **options: Any) -> ChatResponse:
            self.calls += 1
            return ChatResponse(messages=[Message("assistant", [CannedModel().text])])

    def converted(message: ChatMessage) -> Any:
        if message.tool_call_result:
            call_id = message.tool_call_result.origin.id or ""
            return Message("tool", [Content.from_function_result(call_id, result=_result(message))])
        calls = [
            Content.from_function_call(call.id or "", call.tool_name, arguments=call.arguments)
            for call in message.tool_calls
        ]
        texts = [Content.from_text(message.text)] if message.text else []
        return Message(message.role.value, [*texts, *calls])

    def as_sent(message: Any) -> Json:
        if message.role == "tool":
            result = message.contents[0]
            return {"role": "tool", "tool_call_id": result.call_id, "content": str(result.result)}
        if message.role == "assistant":
            calls = [
                _call(content.call_id, content.name, content.arguments)
                for content in message.contents
                if content.type == "function_call"
            ]
            return _assistant(message.text, calls)
        return {"role": str(message.role), "content": message.text}

    def truncation(trigger: int, target: int, client: Any) -> Any:
        return TruncationStrategy(max_n=trigger, compact_to=target, tokenizer=tokenizer)

    def window(trigger: int, target: int, client: Any) -> Any:
        # It brings a conversation down to half of what it calls the window.
        return ContextWindowCompactionStrategy(
            max_context_window_tokens=2 * trigger, max_output_tokens=0, truncation_threshold=0.5
        )

    def summarization(trigger: int, target: int, client: Any) -> Any:
        # It counts messages, and keeps a fixed number of them.
        threshold = UNLIMITED if trigger == UNLIMITED else 0
        return SummarizationStrategy(client=client, threshold=threshold, max_summary_input_tokens=None)

    return [AgentFrameworkPeer(truncation), AgentFrameworkPeer(window), AgentFrameworkPeer(summarization)]


def _result(message: ChatMessage) -> str:
    result = message.tool_call_result.result
    return result if isinstance(result, str) else " ".join(getattr(part, "text", "") for part in result)


def _call(call_id: str, name: str, arguments: Any) -> Json:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def _assistant(text: str | None, calls: Sequence[Json]) -> Json:
    return {"role": "assistant", "content": text or (None if calls else ""), **({"tool_calls": calls} if calls else {})}


_LOOP = asyncio.new_event_loop()


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """On one event loop, since making one costs more than some libraries do."""
    return _LOOP.run_until_complete(work)
