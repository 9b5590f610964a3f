# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""A long Agent run made from a seed: a short chat, a task, two hundred tool calls, and facts that are needed again."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from fidelity_data import KINDS
from fidelity_data_traffic import Agent as Traffic
from fidelity_data_traffic import Fact, Values, drawn
from haystack.dataclasses import ChatMessage, ToolCall

STEPS = 200
TASK = "Now go through all services one after the other and tell me which of them need work."
DONE = "All services are looked at."

# The user says rules and preferences before the task; the others are said in the run, every second one by a tool.
_TOLD_BY_USER = ("rule", "preference")
_TOLD_IN_RUN = ("decision", "identifier", "unfinished", "tool_result")
_FACTS_OF_A_KIND = 10
_NEEDS_OF_A_FACT = 3

# A model looks some things up again.
_REPEATED_CALLS = 0.1

#: The sizes of tool outputs in characters, by the name of their distribution.
SIZES: dict[str, Callable[[Random], float]] = {
    "small": lambda random: random.uniform(400, 1_200),
    "mixed": lambda random: min(random.lognormvariate(math.log(1_200), 1), 24_000),
    "large": lambda random: random.uniform(4_000, 12_000),
}


@dataclass(frozen=True)
class PlantedFact:
    """
    A fact, its wording, and when it matters.

    :param fact: What must survive of it.
    :param text: How it is said.
    :param step: The step it is said in; -1 for what is said before the task.
    :param needed_at: The steps before which the model needs it.
    """

    fact: Fact
    text: str
    step: int
    needed_at: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """What the model says and calls in a step, and what the tool returns."""

    remark: str
    call: ToolCall
    output: str


class LongRun:
    """
    What happens in a run, whatever a compaction makes of it.

    :param seed: Whatever is random follows from it.
    :param sizes: The name of the distribution of output sizes, one of `SIZES`.
    :param steps: The number of steps.
    """

    def __init__(self, seed: int, sizes: str, steps: int = STEPS) -> None:
        self._random = Random(f"{seed} {sizes} {steps}")
        self._draw_size = SIZES[sizes]
        self._traffic = Traffic(self._random, "en")
        self.facts = self._planted(steps)
        self.steps = self._told(self._quiet_steps(steps))

    @property
    def opening(self) -> list[ChatMessage]:
        """What is said before the first step, the task last."""
        messages = []
        for planted in self.facts:
            if planted.step < 0:
                messages += [ChatMessage.from_user(planted.text), ChatMessage.from_assistant("Understood.")]
        return [*messages, ChatMessage.from_user(TASK)]

    @property
    def tool_names(self) -> list[str]:
        """The tools that the model calls."""
        return sorted({step.call.tool_name for step in self.steps})

    def needed(self, step: int) -> list[Fact]:
        """What the model needs to know before a step."""
        return [planted.fact for planted in self.facts if step in planted.needed_at]

    def _planted(self, steps: int) -> list[PlantedFact]:
        random, values = self._random, Values(self._random, "en")
        facts = []
        for kind in (*_TOLD_BY_USER, *_TOLD_IN_RUN):
            # Every second phrasing, those that the digest was not developed on.
            for phrasing in random.sample(KINDS[kind]["en"][1::2], _FACTS_OF_A_KIND):
                text, keys = drawn(values, phrasing)
                step = -1 if kind in _TOLD_BY_USER else random.randrange(steps - 10)
                longest = math.log(steps - 1 - max(step, 0))
                # Soon after most often, and again much later.
                delays = [round(math.exp(random.uniform(0, longest))) for _ in range(_NEEDS_OF_A_FACT)]
                needed_at = tuple(max(step, 0) + max(delay, 1) for delay in delays)
                facts.append(PlantedFact(Fact(kind, "", keys), text, step, needed_at))
        return facts

    def _quiet_steps(self, number: int) -> list[Step]:
        steps: list[Step] = []
        for index in range(number):
            step = self._quiet_step(self._draw_size(self._random))
            if steps and self._random.random() < _REPEATED_CALLS:
                earlier = self._random.choice(steps).call
                step = replace(step, call=earlier)
            steps.append(replace(step, call=replace(step.call, id=f"call_{index}")))
        return steps

    def _quiet_step(self, size: float) -> Step:
        """A step of the traffic, its output made longer by that of further calls of the same tool."""
        first, remark, outputs = None, "", []
        while sum(map(len, outputs)) < size:
            messages = self._traffic.messages(20)
            for message, result in pairwise(messages):
                if message.tool_calls and (first is None or message.tool_calls[0].tool_name == first.tool_name):
                    remark = remark or message.text or ""
                    first = first or message.tool_calls[0]
                    outputs.append(str(result.tool_call_results[0].result))
        return Step(remark, first, "\n".join(outputs)[: int(size)])

    def _told(self, steps: list[Step]) -> list[Step]:
        """The steps with the facts that are said in them."""
        for number, planted in enumerate(self.facts):
            if planted.step < 0:
                continue
            step = steps[planted.step]
            if planted.fact.kind == "tool_result" or (planted.fact.kind == "identifier" and number % 2):
                lines = step.output.split("\n")
                lines.insert(self._random.randint(0, len(lines)), planted.text)
                steps[planted.step] = replace(step, output="\n".join(lines))
            else:
                steps[planted.step] = replace(step, remark=f"{step.remark} {planted.text}".strip())
        return steps
