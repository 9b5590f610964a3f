# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
What the input of a run of 200 steps costs where the provider caches prefixes, and what the model still knows.

Run `python benchmarks/bill.py`. Real Agents with real chat generators talk to a server on the loopback, which answers
as `long_run.py` says and keeps the account.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import haystack.hooks.compaction as haystacks
from contenders import Make, haystack_compactors, our_compactors
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.hooks.tool_result_offloading import FileSystemToolResultStore
from haystack.tools import Tool
from haystack.utils import Secret
from long_run import DONE, SIZES, STEPS, LongRun
from measure import header, quiet, row

from haystack_compaction import CompactionHook

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from servers import Call, Reply, StrictOpenAIServer

WINDOW = 32_000
UNLIMITED = 10**9
SYSTEM = "You look after services. You are careful, and brief."

# The price of a token of the prompt, as a multiple of one where nothing is cached. What an Agent sends is cached for
# the next request, which costs more where it is new. Requests for a summary come once and are not.
READ, WRITTEN, UNCACHED = 0.1, 1.25, 1.0

#: Makes what runs before each request, given the chat generator for summaries.
MakeHook = Callable[[OpenAIChatGenerator], Any]


@dataclass
class Account:
    """
    What became of a run.

    :param billed: The tokens of all prompts, each at its price.
    :param compactions: How often the Agent's request did not begin like the one before it.
    :param summaries: The number of requests for a summary.
    :param known: For each time that the model needed a fact, whether its request had it.
    :param known_at_end: For each fact, whether the last request had it.
    :param died: Whether the run ended before its time.
    """

    billed: float = 0
    compactions: int = 0
    summaries: int = 0
    known: list[bool] = field(default_factory=list)
    known_at_end: list[bool] = field(default_factory=list)
    died: bool = False


class MeteredServer(StrictOpenAIServer):
    """
    Plays both models of a run, the Agent's and the one that writes summaries, and keeps the account.

    The summaries tell every planted fact that their prompt has, which is more than a real model does.
    """

    def __init__(self, run: LongRun, *, context_window: int) -> None:
        super().__init__(self._reply, context_window=context_window)
        self.account = Account()
        self._run = run
        self._step = 0
        self._newest_prompt = 0

    def respond(self, index: int, body: dict[str, Any], reply: Reply, usage: Any) -> dict[str, Any]:
        """Keep the account of a request that was accepted."""
        account, new = self.account, usage.prompt - usage.cached
        if _is_agents(body["messages"]):
            account.billed += READ * usage.cached + WRITTEN * new
            account.compactions += usage.cached < self._newest_prompt
            self._newest_prompt = usage.prompt
        else:
            account.billed += READ * usage.cached + UNCACHED * new
            account.summaries += 1
        return super().respond(index, body, reply, usage)

    def _reply(self, index: int, messages: list[dict[str, Any]]) -> Reply:
        text = _text_of(messages)
        if not _is_agents(messages):
            return Reply(self._summary(text))
        run, step = self._run, self._step
        self._step += 1
        self.account.known += [fact.survives(text) for fact in run.needed(step)]
        if step == len(run.steps):
            self.account.known_at_end = [planted.fact.survives(text) for planted in run.facts]
            return Reply(DONE)
        said = run.steps[step]
        return Reply(said.remark or None, [Call(said.call.tool_name, said.call.arguments, said.call.id)])

    def _summary(self, prompt: str) -> str:
        told = [planted.text for planted in self._run.facts if planted.fact.survives(prompt)]
        work = "The services so far were looked at one by one, and nothing calls for action. " * 20
        return "\n- ".join(["## Facts", *told, work[: len(prompt) // 40]])


def account_of(run: LongRun, make_hook: MakeHook | None, *, context_window: int = WINDOW) -> Account:
    """
    Send an Agent through a run.

    :param run: What happens.
    :param make_hook: Makes the hook that compacts; None for none.
    :param context_window: The window of the server.
    :returns: What it cost, and what the model knew.
    """
    outputs = iter([step.output for step in run.steps])
    anything = {"type": "object", "properties": {}, "additionalProperties": True}
    tools = [Tool(name, "Look into it.", anything, lambda **arguments: next(outputs)) for name in run.tool_names]
    with MeteredServer(run, context_window=context_window) as server:
        key = Secret.from_token("none")
        generator = OpenAIChatGenerator(api_key=key, model="scripted", api_base_url=server.base_url, max_retries=0)
        agent = Agent(
            chat_generator=generator,
            tools=tools,
            system_prompt=SYSTEM,
            hooks={"before_llm": [make_hook(generator)]} if make_hook else None,
            max_agent_steps=len(run.steps) + 5,
        )
        try:
            agent.run(messages=run.opening)
        except Exception:
            server.account.died = True
        server.account.died |= not server.account.known_at_end
    return server.account


def hooks(offloaded: str, compact_to: float | None) -> dict[str, MakeHook]:
    """
    What is compared.

    :param offloaded: A folder for what Haystack's compactors write.
    :param compact_to: The share of the window that all hooks aim for; None for the default of each.
    """
    options = {} if compact_to is None else {"compact_to": compact_to}

    def ours(make: Make) -> MakeHook:
        return lambda model: CompactionHook(make(model), context_window=WINDOW, **options)

    def theirs(make: Make) -> MakeHook:
        return lambda model: haystacks.CompactionHook(make(model), context_window=WINDOW, **options)

    makers = haystack_compactors()
    makers["tool result offloading"] = lambda model: haystacks.ToolResultOffloadCompactor(
        FileSystemToolResultStore(root=offloaded)
    )
    return {
        **{name: ours(make) for name, make in our_compactors().items()},
        **{f"Haystack's {name}": theirs(make) for name, make in makers.items()},
    }


def main() -> None:
    """Run the benchmark and print its tables."""
    quiet()
    arguments = _arguments()
    for sizes in arguments.sizes:
        runs = [LongRun(seed, sizes, arguments.steps) for seed in range(arguments.seeds)]
        whole = _Result("no compaction", [account_of(run, None, context_window=UNLIMITED) for run in runs])
        tokens = mean(sum(len(step.output) for step in run.steps) for run in runs) / 4
        for compact_to in arguments.compact_to:
            aim = "each with its own compact_to" if compact_to is None else f"compact_to={compact_to}"
            print(f"\n{sizes} outputs, {tokens:,.0f} tokens in all; {aim}\n\n{header(_COLUMNS)}")
            print(row(whole.cells(whole)))
            results = list(_results(runs, compact_to, whole))
            print(f"\n{_comparison(results)}")


def _results(runs: list[LongRun], compact_to: float | None, whole: "_Result") -> Iterator["_Result"]:
    with tempfile.TemporaryDirectory() as folder:
        for name, make_hook in hooks(folder, compact_to).items():
            result = _Result(name, [account_of(run, make_hook) for run in runs])
            print(row(result.cells(whole)), flush=True)
            yield result


_COLUMNS = ["compactor", "bill", "of none", "known when needed", "known at the end", "compactions", "summaries", "dead"]


@dataclass(frozen=True)
class _Result:
    """What became of all runs with one compactor. A run that died is no bargain, so none is left out."""

    name: str
    accounts: list[Account]

    @property
    def bill(self) -> float:
        return mean(account.billed for account in self.accounts)

    @property
    def dead(self) -> int:
        return sum(account.died for account in self.accounts)

    @property
    def known(self) -> float:
        return mean([known for account in self.accounts for known in account.known])

    @property
    def known_at_end(self) -> float:
        return mean([known for account in self.accounts for known in account.known_at_end])

    def cells(self, whole: "_Result") -> list[str]:
        if self.dead:
            return [self.name, *["-"] * 6, str(self.dead)]
        return [
            self.name,
            f"{self.bill:,.0f}",
            f"{self.bill / whole.bill:.1%}",
            f"{self.known:.1%}",
            f"{self.known_at_end:.1%}",
            f"{mean(account.compactions for account in self.accounts):.1f}",
            f"{mean(account.summaries for account in self.accounts):.1f}",
            "0",
        ]

    def beats(self, other: "_Result") -> bool:
        """Whether it costs no more and knows no less."""
        knows_no_less = self.known >= other.known and self.known_at_end >= other.known_at_end
        return not self.dead and (bool(other.dead) or (self.bill <= other.bill and knows_no_less))


def _comparison(results: list[_Result]) -> str:
    """For each of Haystack's, which of ours costs least and knows no less."""
    ours = sorted((result for result in results if not _is_haystacks(result)), key=lambda result: result.bill)
    lines = []
    for theirs in filter(_is_haystacks, results):
        better = next((own.name for own in ours if own.beats(theirs)), None)
        verdict = f"`{better}` costs less and knows no less" if better else "none of ours costs less and knows no less"
        lines.append(f"- {theirs.name}: {verdict}")
    return "\n".join(lines)


def _is_haystacks(result: _Result) -> bool:
    return result.name.startswith("Haystack")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--sizes", nargs="+", choices=[*SIZES], default=[*SIZES])
    parser.add_argument(
        "--compact-to",
        type=float,
        nargs="+",
        default=[None, 0.2],
        help="the share of the window that all hooks aim for (without it: the default of each, and 0.2)",
    )
    return parser.parse_args()


def _is_agents(messages: list[dict[str, Any]]) -> bool:
    return messages[0]["content"] == SYSTEM


def _text_of(messages: list[dict[str, Any]]) -> str:
    """What the model reads, on one line."""
    return " ".join(" ".join(str(message.get("content") or "") for message in messages).split())


if __name__ == "__main__":
    main()
