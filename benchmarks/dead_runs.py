# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
How many runs of each library's own Agent die of their context in a window of 8,000 tokens.

Run `python benchmarks/dead_runs.py`. All Agents talk to the same strict server on the loopback, that of the tests,
and go through the same scenarios, those of `tests/survival.py`. A run is dead when the provider refuses a request,
when anything raises, or when a request lacks the task. Everybody is told the same: the window, to begin at 70 % of it,
and to go down to 40 % where that can be set. Models that write summaries are canned.
"""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

from contenders import haystack_compactors, our_compactors
from haystack.hooks.compaction import CompactionHook as HaystacksHook
from measure import CannedModel, header, quiet, row

from haystack_compaction import CompactionHook

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from servers import StrictOpenAIServer
from survival import DONE, TASK, WINDOW, Scenario, check, provider_tokens, verdict_on

SYSTEM = "You are careful, and brief."
# A real summary would tell the task, too.
SUMMARY = f"The user's task: {TASK}. The services looked at so far pass all of their checks."

TRIGGER, TARGET = int(0.7 * WINDOW), int(0.4 * WINDOW)

SHAPES: dict[str, dict[str, Any]] = {
    "outputs of all sizes": {},
    "a huge output": {"sizes": (20, 20_000, 100)},
    "ten calls at once": {"sizes": (1_500,), "parallel": 10},
    "long task": {"task_tokens": 20_000},
    "large arguments": {"argument_tokens": 1_000},
    "many small outputs": {"sizes": (120,), "steps": 60},
}
KINDS = ("english", "chinese", "base64")

#: Sends the task to an Agent of a library that talks to a server, and returns its last words.
Run = Callable[[str, str], str]


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="what tools answer in")
    kinds = parser.parse_args().kinds
    quiet()
    print(f"Each shape runs with tools that answer in {' and in '.join(kinds)}.\n")
    print(header(["compactor", *SHAPES, "dead of all"]))
    for name, is_alive in {**_haystack_runs(), **_peer_runs()}.items():
        dead: Counter[str] = Counter()
        for shape, kind in product(SHAPES, kinds):
            dead[shape] += not is_alive(Scenario(kind=kind, **SHAPES[shape]))
        total = f"{dead.total()} of {len(SHAPES) * len(kinds)}"
        print(row([name, *(str(dead[shape]) for shape in SHAPES), total]), flush=True)


def _haystack_runs() -> dict[str, Callable[[Scenario], bool]]:
    """Our hook and Haystack's."""

    def alive(hook: Any, make: Any) -> Callable[[Scenario], bool]:
        return lambda scenario: verdict_on(scenario, hook(make(CannedModel(SUMMARY)), context_window=WINDOW)).is_alive

    return {
        **{f"ours: {name}": alive(CompactionHook, make) for name, make in our_compactors().items()},
        **{f"Haystack: {name}": alive(HaystacksHook, make) for name, make in haystack_compactors().items()},
    }


def _peer_runs() -> dict[str, Callable[[Scenario], bool]]:
    runs: dict[str, Run] = {}
    for library in (_langchain, _pydantic, _agent_framework):
        with suppress(ImportError):
            runs.update(library())
    return {name: lambda scenario, run=run: _survives(scenario, run) for name, run in runs.items()}


def _survives(scenario: Scenario, run: Run) -> bool:
    with StrictOpenAIServer(scenario.script, count=provider_tokens, context_window=WINDOW) as server:
        try:
            answer = run(server.base_url, scenario.task.text)
        except Exception:
            return False
    has_task = all(any(TASK in str(message) for message in request["messages"]) for request in server.requests)
    return DONE in answer and has_task and not server.errors


def _langchain() -> dict[str, Run]:
    from langchain.agents import create_agent
    from langchain.agents.middleware import ClearToolUsesEdit, ContextEditingMiddleware, SummarizationMiddleware
    from langchain_core.language_models.fake_chat_models import FakeListChatModel
    from langchain_openai import ChatOpenAI

    def run_with(*middlewares: Callable[[], Any]) -> Run:
        def run(base_url: str, task: str) -> str:
            model = ChatOpenAI(model="scripted", base_url=base_url, api_key="none", max_retries=0)
            made = [make() for make in middlewares]
            agent = create_agent(model, [check.function], system_prompt=SYSTEM, middleware=made)
            state = agent.invoke({"messages": [{"role": "user", "content": task}]}, {"recursion_limit": 10_000})
            return str(state["messages"][-1].content)

        return run

    def summarization() -> Any:
        model = FakeListChatModel(responses=[SUMMARY])
        return SummarizationMiddleware(model, trigger=("tokens", TRIGGER), keep=("tokens", TARGET))

    def editing() -> Any:
        return ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=TRIGGER)])

    return {
        "LangChain: SummarizationMiddleware": run_with(summarization),
        "LangChain: ContextEditingMiddleware": run_with(editing),
        "LangChain: both": run_with(summarization, editing),
    }


def _pydantic() -> dict[str, Run]:
    from pydantic_ai import Agent, UsageLimits
    from pydantic_ai.messages import ModelResponse, TextPart
    from pydantic_ai.models.function import FunctionModel
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai_harness.compaction import (
        ClampOversizedMessages,
        ClearToolResults,
        SlidingWindowCompaction,
        SummarizingCompaction,
        TieredCompaction,
    )

    canned = FunctionModel(lambda messages, info: ModelResponse([TextPart(SUMMARY)]))

    def run_with(make: Callable[[], Any]) -> Run:
        def run(base_url: str, task: str) -> str:
            model = OpenAIChatModel("scripted", provider=OpenAIProvider(base_url=base_url, api_key="none"))
            agent = Agent(model, instructions=SYSTEM, tools=[check.function], capabilities=[make()])
            return agent.run_sync(task, usage_limits=UsageLimits(request_limit=None)).output

        return run

    def tiered() -> Any:
        tiers = [
            ClampOversizedMessages(max_part_tokens=TARGET // 2),
            ClearToolResults(max_tokens=TRIGGER),
            SummarizingCompaction(canned, max_tokens=TRIGGER, keep_tokens=TARGET),
        ]
        return TieredCompaction(tiers=tiers, target_tokens=TRIGGER)

    made = {
        "SlidingWindowCompaction": lambda: SlidingWindowCompaction(max_tokens=TRIGGER, keep_tokens=TARGET),
        "ClearToolResults": lambda: ClearToolResults(max_tokens=TRIGGER),
        "SummarizingCompaction": lambda: SummarizingCompaction(canned, max_tokens=TRIGGER, keep_tokens=TARGET),
        "TieredCompaction": tiered,
    }
    return {f"pydantic-ai-harness: {name}": run_with(make) for name, make in made.items()}


def _agent_framework() -> dict[str, Run]:
    from agent_framework import (
        Agent,
        ChatResponse,
        ContextWindowCompactionStrategy,
        Message,
        SummarizationStrategy,
        TruncationStrategy,
    )
    from agent_framework._compaction import CharacterEstimatorTokenizer
    from agent_framework.openai import OpenAIChatCompletionClient

    tokenizer = CharacterEstimatorTokenizer()

    class Canned:
        additional_properties: dict[str, Any] = {}  # noqa: RUF012

        async def get_response(self, messages: Any, **options: Any) -> ChatResponse:
            return ChatResponse(messages=[Message("assistant", [SUMMARY])])

    def run_with(make: Callable[[], Any]) -> Run:
        def run(base_url: str, task: str) -> str:
            client = OpenAIChatCompletionClient(
                "scripted",
                api_key="none",
                base_url=base_url,
                function_invocation_configuration={"max_iterations": 10_000},
            )
            agent = Agent(client, SYSTEM, tools=[check.function], compaction_strategy=make(), tokenizer=tokenizer)
            return str(asyncio.run(agent.run(task)).text)

        return run

    made = {
        "TruncationStrategy": lambda: TruncationStrategy(
            max_n=TRIGGER, compact_to=TARGET, tokenizer=tokenizer, preserve_first_user_group=True
        ),
        "ContextWindowCompactionStrategy": lambda: ContextWindowCompactionStrategy(
            max_context_window_tokens=WINDOW, max_output_tokens=WINDOW // 20, preserve_first_user_group=True
        ),
        "SummarizationStrategy": lambda: SummarizationStrategy(client=Canned(), target_count=10, threshold=10),
    }
    return {f"agent-framework: {name}": run_with(make) for name, make in made.items()}


if __name__ == "__main__":
    main()
