# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
What survives compaction: facts planted in conversations, several rounds of compaction, and a count of what is left.

Run `python benchmarks/fidelity.py`. `docs/fidelity.md` has the results and says how to read them.
"""

import argparse
import json
import re
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

from fidelity_data_traffic import LANGUAGES, STYLES, Fact, Planted, Transcripts, planted
from haystack import component
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.hooks.compaction import SlidingWindowCompactor as HaystackSlidingWindow
from haystack.hooks.compaction import SummarizationCompactor as HaystackSummarization
from haystack.hooks.compaction import ToolResultPruningCompactor as HaystackToolResultPruning
from haystack.utils.experimental import ExperimentalWarning

from haystack_compaction.compactors.hybrid import HybridCompactor
from haystack_compaction.compactors.importance_scoring import ImportanceScoringCompactor
from haystack_compaction.compactors.selective_pruning import SelectivePruningCompactor
from haystack_compaction.compactors.sliding_window import SlidingWindowCompactor
from haystack_compaction.compactors.summarization import SummarizationCompactor
from haystack_compaction.compactors.tool_result_pruning import ToolResultPruningCompactor
from haystack_compaction.conversation.notes import COMPACTION_META_KEY
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.salience.digest import write_digest
from haystack_compaction.tokens.estimate import EstimateTokenCounter

COUNTER = EstimateTokenCounter()
BUDGETS = (0.1, 0.2, 0.3)
# What is kept without being chosen, and what need not be, are told apart from the facts that are to be found.
NO_FACTS = ("decoy", "pinned")
FORGETFUL = "forgetful"
_PLAIN_WORD = re.compile(r"(?<![\w/.@-])[^\W\d_]{3,}(?![\w/@-]|\.\w)")

#: Compacts messages to so many tokens.
Strategy = Callable[[list[ChatMessage], int], list[ChatMessage]]


def main() -> None:
    """Run the benchmark and print its table."""
    warnings.simplefilter("ignore", ExperimentalWarning)
    arguments = _arguments()
    strategies = _strategies(arguments.model)
    if arguments.strategy:
        strategies = {name: strategies[name] for name in arguments.strategy}
    results = [
        outcome
        for conversation in _conversations(arguments)
        for name, strategy in strategies.items()
        for budget in BUDGETS
        for outcome in _outcomes(name, strategy, conversation, budget, arguments.rounds)
    ]
    _print_table(results, "strategy", list(strategies), arguments.rounds)
    if arguments.detail:
        _print_details(results, list(strategies), max(arguments.rounds))


def digest(messages: list[ChatMessage], target_tokens: int) -> list[ChatMessage]:
    """The digest by itself: one note for all but the current task's user message and its newest step."""
    conversation = Conversation(messages)
    head = set(conversation.head)
    stays = {*(index for step in conversation.steps[-1:] for index in step), *conversation.protected}
    if conversation.task_index is not None:
        stays.add(conversation.task_index)
    previous = "\n".join(messages[index].text or "" for index in conversation.notes)
    gone = head | stays | set(conversation.notes)
    old = [message for index, message in enumerate(messages) if index not in gone]
    new = [messages[index] for index in sorted(stays)]
    task = next((message.text for message in new if message.text), None)
    marker = {"strategy": "digest", "removed_messages": len(old), "kept_messages": len(new), "kind": "summary"}
    room = target_tokens - COUNTER.count([*messages[: conversation.head_end], *new, ChatMessage.from_user("")])
    text = write_digest(
        old,
        budget_tokens=room,
        count_text=COUNTER.count_text,
        task_text=task or "",
        previous=previous,
    )
    note = ChatMessage.from_user(text, meta={COMPACTION_META_KEY: marker})
    return [*messages[: conversation.head_end], note, *new]


@component
class Forgetful:
    """Stands in for a model: its summaries are some plain words of what it is shown, without any value among them."""

    @component.output_types(replies=list[ChatMessage])
    def run(self, messages: list[ChatMessage]) -> dict[str, list[ChatMessage]]:
        """Summarize, after a fashion."""
        words = [word[:8] for word in _PLAIN_WORD.findall(messages[-1].text or "")]
        some = Random(len(words)).sample(words, min(len(words), 20))
        return {"replies": [ChatMessage.from_assistant(f"## Work done\n- In short: {' '.join(some)}.")]}


def keep_last(messages: list[ChatMessage], target_tokens: int) -> list[ChatMessage]:
    """The newest messages that fit."""
    kept: list[ChatMessage] = []
    for message in reversed(messages):
        if COUNTER.count([message, *kept]) > target_tokens:
            break
        kept.insert(0, message)
    return kept


def _strategies(model: str | None) -> dict[str, Strategy]:
    """What is compared. What is not installed is left out."""
    strategies: dict[str, Strategy] = {"digest": digest}
    for compactor in (
        ImportanceScoringCompactor(),
        HybridCompactor(),
        SummarizationCompactor(),
        SelectivePruningCompactor(),
        ToolResultPruningCompactor(),
        SlidingWindowCompactor(),
    ):
        strategies[compactor.strategy] = _of(compactor)
    if model is not None:
        generator = Forgetful() if model == FORGETFUL else OpenAIChatGenerator(model=model)
        strategies["summarization with a model"] = _of(SummarizationCompactor(generator))
        strategies["hybrid with a model"] = _of(HybridCompactor(chat_generator=generator))
        strategies["haystack summarizer"] = _of(HaystackSummarization(chat_generator=generator))
    strategies["haystack window"] = _of(HaystackSlidingWindow())
    strategies["haystack pruning"] = _of(HaystackToolResultPruning())
    with suppress(ImportError):
        strategies["langchain trim"] = _langchain_trim()
    strategies["keep last"] = keep_last
    return strategies


def _of(compactor: object) -> Strategy:
    return lambda messages, target_tokens: compactor.compact(messages, target_tokens, COUNTER) or messages


def _langchain_trim() -> Strategy:
    """LangChain's `trim_messages`, on messages that stand for ours."""
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage, trim_messages

    def converted(message: ChatMessage, index: int) -> object:
        if message.tool_call_results:
            result = message.tool_call_results[0]
            return ToolMessage(str(result.result), tool_call_id=result.origin.id or "", id=str(index))
        kind = {"system": SystemMessage, "user": HumanMessage, "assistant": AIMessage}[message.role.value]
        calls = [{"name": call.tool_name, "args": call.arguments, "id": call.id} for call in message.tool_calls]
        return kind(message.text or "", id=str(index), **({"tool_calls": calls} if calls else {}))

    def trim(messages: list[ChatMessage], target_tokens: int) -> list[ChatMessage]:
        sizes = {str(index): COUNTER.count([message]) for index, message in enumerate(messages)}
        kept = trim_messages(
            [converted(message, index) for index, message in enumerate(messages)],
            max_tokens=target_tokens,
            token_counter=lambda some: sum(sizes[message.id] for message in some),
            strategy="last",
            start_on="human",
            include_system=True,
        )
        return [messages[int(message.id)] for message in kept]

    return trim


def _conversations(arguments: argparse.Namespace) -> list[tuple[dict[str, object], Planted]]:
    styles = {style: STYLES[style] for style in arguments.style}
    if arguments.transcripts:
        styles["transcripts"] = lambda random, language: Transcripts(random, arguments.transcripts)
    return [
        (
            {"language": language, "style": style, "size": size},
            planted(
                seed,
                language=language,
                style=style,
                make_traffic=make_traffic,
                size=size,
                held_out=not arguments.development,
                rounds=max(arguments.rounds),
            ),
        )
        for seed in range(arguments.seeds)
        for language in arguments.language
        for style, make_traffic in styles.items()
        for size in arguments.size
        if style != "transcripts" or language == "en"
    ]


def _outcomes(
    name: str, strategy: Strategy, conversation: tuple[dict[str, object], Planted], budget: float, rounds: Sequence[int]
) -> list[dict[str, object]]:
    """What became of each fact after so many rounds."""
    about, made = conversation
    messages = made.messages
    target_tokens = int(COUNTER.count(messages) * budget)
    outcomes: list[dict[str, object]] = []
    started = time.perf_counter()
    for number in range(1, max(rounds) + 1):
        if number > 1:
            messages = [*messages, *made.rounds[number - 2]]
        messages = strategy(messages, target_tokens)
        if number in rounds:
            text = text_of(messages)
            tokens = COUNTER.count(messages)
            common = {
                **about,
                "strategy": name,
                "budget": budget,
                "round": number,
                "exceeded": tokens > target_tokens,
                "used": tokens / target_tokens,
                "seconds": time.perf_counter() - started,
            }
            outcomes += [{**common, **_outcome(fact, text)} for fact in made.facts if fact.known_in_round <= number]
    return outcomes


def _outcome(fact: Fact, text: str) -> dict[str, object]:
    return {
        "kind": fact.kind,
        "position": fact.position,
        "survives": fact.survives(text),
        "resolved": fact.resolved(text) if fact.stale else None,
        "keys": fact.keys,
    }


def text_of(messages: list[ChatMessage]) -> str:
    """All that a model would read, on one line."""
    parts: list[str] = []
    for message in messages:
        parts += message.texts
        parts += [json.dumps(call.arguments, ensure_ascii=False, default=str) for call in message.tool_calls]
        parts += [str(result.result) for result in message.tool_call_results]
    return " ".join(" ".join(parts).split())


def _share(outcomes: list[dict[str, object]], key: str = "survives") -> str:
    return f"{100 * sum(bool(outcome[key]) for outcome in outcomes) / len(outcomes):.0f}" if outcomes else "-"


def _print_table(results: list[dict[str, object]], by: str, names: list[str], rounds: Sequence[int]) -> None:
    print(
        "| "
        + by
        + " | rounds | "
        + " | ".join(f"facts at {b:.0%}" for b in BUDGETS)
        + " | "
        + " | ".join(f"corrections at {b:.0%}" for b in BUDGETS)
        + " | pinned | decoys at 20% | over budget | used | s |"
    )
    print("|---" * 13 + "|")
    for name in names:
        for number in rounds:
            rows = [o for o in results if o[by] == name and o["round"] == number]
            facts = [o for o in rows if o["kind"] not in NO_FACTS]
            corrections = [o for o in rows if o["kind"] == "correction"]
            decoys = [o for o in rows if o["kind"] == "decoy" and o["budget"] == 0.2]
            cells = [_share([o for o in facts if o["budget"] == b]) for b in BUDGETS]
            cells += [_share([o for o in corrections if o["budget"] == b], "resolved") for b in BUDGETS]
            cells += [
                _share([o for o in rows if o["kind"] == "pinned"]),
                _share(decoys),
                _share(rows, "exceeded"),
                f"{sum(o['used'] for o in rows) / max(len(rows), 1):.2f}",
            ]
            cells += [f"{sum(o['seconds'] for o in rows) / max(len(rows), 1):.3f}"]
            print(f"| {name} | {number} | " + " | ".join(cells) + " |")


def _print_details(results: list[dict[str, object]], names: list[str], number: int) -> None:
    """By kind, by position, by language and by style, after the last round."""
    facts = [o for o in results if o["kind"] not in NO_FACTS and o["round"] == number]
    for name in names:
        print(f"\n{name}, {number} rounds, facts at " + " / ".join(f"{b:.0%}" for b in BUDGETS))
        for by in ("kind", "position", "language", "style", "size"):
            for value in dict.fromkeys(o[by] for o in facts):
                rows = [o for o in facts if o["strategy"] == name and o[by] == value]
                print(
                    f"  {by:9} {value!s:12} "
                    + " / ".join(_share([o for o in rows if o["budget"] == b]) for b in BUDGETS)
                )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--size", type=int, nargs="+", default=[60, 150, 400])
    parser.add_argument("--style", nargs="*", default=list(STYLES))
    parser.add_argument("--transcripts", type=Path, help="a folder of real conversations to plant facts in, too")
    parser.add_argument("--language", nargs="+", default=list(LANGUAGES))
    parser.add_argument("--rounds", type=int, nargs="+", default=[1, 3, 5])
    parser.add_argument("--strategy", nargs="+")
    parser.add_argument(
        "--model",
        help="also run the summarizers, with this model of the server at OPENAI_BASE_URL; "
        f'"{FORGETFUL}" for a stand-in whose summaries name nothing',
    )
    parser.add_argument("--development", action="store_true", help="use the phrasings that are not held out")
    parser.add_argument("--detail", action="store_true", help="also by kind, position, language, style and size")
    return parser.parse_args()


if __name__ == "__main__":
    main()
