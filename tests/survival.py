# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Whole Agent runs against strict servers with a small context window: who lives, and what the provider refused."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import cycle, pairwise, product
from math import ceil
from random import Random
from typing import Any

import pytest
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage, StreamingChunk
from haystack.tools import tool
from haystack.utils import Secret
from samples import ScriptedChatGenerator
from servers.anthropic_messages import StrictAnthropicServer
from servers.base import Call, ChatServer, Reply, UsageMode
from servers.openai_chat import StrictOpenAIServer

from haystack_compaction import (
    Compactor,
    HybridCompactor,
    ImportanceScoringCompactor,
    SelectivePruningCompactor,
    SlidingWindowCompactor,
    SummarizationCompactor,
    ToolResultPruningCompactor,
    TruncationCompactor,
)

WINDOW = 8_000
TASK = "Audit every service and tell me which of them fails"
DONE = "All services are well."

_SERVERS: dict[str, type[ChatServer]] = {"openai": StrictOpenAIServer, "anthropic": StrictAnthropicServer}
_PIECES = re.compile(r"[A-ZА-Я]?[a-zа-я]{1,6}|[A-ZА-Я]{1,2}|[0-9]{1,3}|[^\w\s]{1,2}|\S")
_CHINESE = re.compile(r"[\u2e80-\uffef]+")


@lru_cache(maxsize=20_000)
def provider_tokens(text: str) -> int:
    """
    Count like a tokenizer that is harder than most: 0.9 tokens for a Chinese character, a third more for English prose
    than o200k_base has, half a token for a character of base64.
    """
    others = _CHINESE.sub("", text)
    return ceil(0.9 * (len(text) - len(others))) + len(_PIECES.findall(others))


_SUMMARY = "## Work\n- The first services were checked and pass; nothing in their logs calls for attention."
_SCORES = '{"scores": {"1": 0.3, "2": 0.7, "3": 0.1}}'

_SAMPLES: dict[str, str] = {
    "english": "The check of the storage service passed at noon, and nothing in its log calls for attention. ",
    "chinese": "存储服务的检查在中午通过了，日志里没有需要注意的内容。",
    "russian": "Проверка службы хранения прошла в полдень, в журнале нет ничего важного. ",
    "json": '{"id":48213,"ok":true,"p95":[12.5,14.1,9.75],"tags":["eu-1","blue"],"err":null},',
    "base64": "".join(Random(5).choices("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", k=3_000)),
}


def text_of(kind: str, tokens: int) -> str:
    """A text of one kind that takes about so many of the provider's tokens."""
    sample = _SAMPLES[kind]
    length = tokens * len(sample) // provider_tokens(sample)
    return (sample * (length // len(sample) + 1))[:length]


@dataclass(frozen=True)
class Scenario:
    """
    What happens in a run.

    :param server: "openai" or "anthropic".
    :param kind: What the outputs of the tool are written in; "mixed" for each in turn.
    :param sizes: The sizes of the outputs in the provider's tokens, one for each step, over and over.
    :param steps: How often the model calls tools before it answers.
    :param parallel: How many calls it makes at a time in every fourth step.
    :param task_tokens: How much material the user's message holds beside the task.
    :param argument_tokens: How much the model writes into a call in every fifth step.
    :param reserve_tokens: The room that the hook is told to keep free for a reply.
    :param usage: What the provider reports.
    :param how: "sync", "async", "streaming" or "async streaming".
    """

    server: str = "openai"
    kind: str = "english"
    sizes: tuple[int, ...] = (200, 1_000, 60, 3_000)
    steps: int = 30
    parallel: int = 1
    task_tokens: int = 0
    argument_tokens: int = 0
    reserve_tokens: int | None = None
    usage: UsageMode = "full"
    how: str = "sync"

    def __str__(self) -> str:
        unusual = {name: value for name, value in vars(self).items() if value != getattr(Scenario, name)}
        return " ".join(f"{name}={value}" for name, value in unusual.items()) or "plain"

    def script(self, index: int, messages: list[Any]) -> Reply:
        """What the model says next."""
        if index >= self.steps:
            return Reply(DONE)
        number = self.parallel if index % 4 == 1 else 1
        size = self.sizes[index % len(self.sizes)]
        kind = self._kind(index)
        notes = text_of(kind, self.argument_tokens) if index % 5 == 2 else ""
        arguments = {"service": index, "kind": kind, "size": size, "notes": notes}
        return Reply(f"Next comes service {index}.", [Call("check", arguments) for _ in range(number)])

    @property
    def task(self) -> ChatMessage:
        """The user's message, with its material."""
        return ChatMessage.from_user(f"{TASK}. {text_of(self._kind(0), self.task_tokens)}".strip())

    def _kind(self, index: int) -> str:
        return [*_SAMPLES][index % len(_SAMPLES)] if self.kind == "mixed" else self.kind


@dataclass
class Verdict:
    """
    What became of a run.

    :param died_of: The error that ended it, None if it came to its end.
    :param refused: What the provider refused.
    :param forgot_task: How many requests came without the task.
    :param rewrites: How often a request did not begin like the one before it.
    :param sizes: The sizes of all accepted requests in the provider's tokens.
    """

    died_of: BaseException | None = None
    refused: list[str] = field(default_factory=list)
    forgot_task: int = 0
    rewrites: int = 0
    sizes: list[int] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        """Whether the run came to its end, unrefused and with its task in every request."""
        return self.died_of is None and not self.refused and not self.forgot_task


@tool
def check(service: int, kind: str, size: int, notes: str) -> str:
    """Check a service and return its log."""
    return f"Service {service}: {text_of(kind, size)}"


def scenarios() -> list[Scenario]:
    """All there are: two providers, six kinds of output, seven shapes; ways to run and to report usage in rotation."""
    shapes: list[dict[str, Any]] = [
        {},
        {"sizes": (20, 20_000, 100)},
        {"sizes": (1_500,), "parallel": 10},
        {"task_tokens": 20_000},
        {"argument_tokens": 1_000, "reserve_tokens": 2_000},
        {"sizes": (20,), "steps": 200},
        {"sizes": (120,), "steps": 60},
    ]
    usages: Iterator[UsageMode] = cycle(["full", "net_of_cache", "none", "total_only"])
    ways = cycle(["sync", "async", "streaming", "async streaming", "sync"])
    return [
        Scenario(server=server, kind=kind, usage=next(usages), how=next(ways), **shape)
        for server, kind, shape in product(_SERVERS, [*_SAMPLES, "mixed"], shapes)
    ]


def compactors() -> dict[str, Callable[[], Compactor]]:
    """All compactors of ours, those that can use a model with and without one."""
    return {
        "sliding_window": SlidingWindowCompactor,
        "selective_pruning": SelectivePruningCompactor,
        "tool_result_pruning": ToolResultPruningCompactor,
        "summarization": SummarizationCompactor,
        "summarization by a model": lambda: SummarizationCompactor(model(_SUMMARY)),
        "importance_scoring": ImportanceScoringCompactor,
        "importance_scoring by a model": lambda: ImportanceScoringCompactor(model(_SCORES)),
        "truncation": TruncationCompactor,
        "hybrid": HybridCompactor,
    }


def model(text: str) -> ScriptedChatGenerator:
    """A model that always says the same."""
    return ScriptedChatGenerator(lambda index, messages: ChatMessage.from_assistant(text))


def verdict_on(scenario: Scenario, hook: Any, history: Sequence[ChatMessage] = ()) -> Verdict:
    """
    Run an Agent through a scenario.

    :param scenario: What happens.
    :param hook: What runs before each request.
    :param history: What was said before the task.
    :returns: What became of it.
    """
    verdict = Verdict()
    server = _SERVERS[scenario.server](
        scenario.script, count=provider_tokens, context_window=WINDOW, usage=scenario.usage
    )
    with server, pytest.MonkeyPatch.context() as environment:
        environment.setenv("ANTHROPIC_BASE_URL", server.base_url)
        agent = Agent(
            chat_generator=_generator(scenario.server, server.base_url),
            tools=[check],
            system_prompt="You are careful, and brief.",
            hooks={"before_llm": [hook]},
            max_agent_steps=scenario.steps + 10,
        )
        try:
            last_message = _run(agent, [*history, scenario.task], scenario.how)["last_message"]
            assert last_message.text == DONE, f"the last message is {last_message}"
        except Exception as error:
            verdict.died_of = error
    verdict.refused = [str(error) for error in server.errors]
    sent = [[str(message) for message in request["messages"]] for request in server.requests]
    verdict.forgot_task = sum(not any(TASK in message for message in request) for request in sent)
    verdict.rewrites = sum(after[: len(before)] != before for before, after in pairwise(sent))
    verdict.sizes = [usage.prompt for usage in server.usages]
    return verdict


def _run(agent: Agent, messages: list[ChatMessage], how: str) -> dict[str, Any]:
    async def collect(chunk: StreamingChunk) -> None:
        pass

    if how == "sync":
        return agent.run(messages=messages)
    if how == "streaming":
        return agent.run(messages=messages, streaming_callback=lambda chunk: None)
    return asyncio.run(agent.run_async(messages=messages, streaming_callback=collect if "streaming" in how else None))


def _generator(provider: str, base_url: str) -> Any:
    key = Secret.from_token("none")
    if provider == "openai":
        return OpenAIChatGenerator(api_key=key, model="scripted", api_base_url=base_url, max_retries=0)
    # It knows no address but the one in the environment.
    integration = pytest.importorskip("haystack_integrations.components.generators.anthropic")
    return integration.AnthropicChatGenerator(api_key=key, model="scripted", max_retries=0)
