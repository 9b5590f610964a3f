# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What strategies make of conversations, in numbers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from haystack.components.generators.chat.types import ChatGenerator
from haystack.dataclasses import ChatMessage, ChatRole, TextContent, ToolCall, ToolCallResult
from haystack.tools.tool import Tool

from haystack_compaction.compaction_pass import changes_between
from haystack_compaction.compactors.base import Compactor
from haystack_compaction.config import CompactionConfig
from haystack_compaction.conversation.identifiers import identifiers_in
from haystack_compaction.conversation.notes import is_note
from haystack_compaction.conversation.repair import is_valid, repaired, repaired_messages
from haystack_compaction.report import CompactionReport
from haystack_compaction.tokens.ledger import TokenLedger
from haystack_compaction.tokens.message_counter import as_json
from haystack_compaction.usage import added_usage

WITH_MODEL = "+model"


@dataclass(frozen=True)
class Budget:
    """
    A size to compact to.

    :param label: How the user wrote it: "30%" or "8000".
    :param tokens: The size in tokens, 0 where it is a share.
    :param share: The share of the conversation, 0 where it is a size.
    """

    label: str
    tokens: int = 0
    share: float = 0.0

    @classmethod
    def parsed(cls, text: str) -> "Budget":
        """
        Read what the user wrote.

        :param text: A number of tokens or, with a percent sign, a share of the conversation.
        :returns: The budget.
        :raises ValueError: If it is neither. The message is one line.
        """
        try:
            number = float(text.rstrip("%").replace(",", "").replace("_", ""))
        except ValueError:
            number = 0.0
        if text.endswith("%") and 0 < number < 100:
            return cls(text, share=number / 100)
        if not text.endswith("%") and number >= 1 and number.is_integer():
            return cls(text, tokens=int(number))
        raise ValueError(
            f"a budget is a number of tokens, such as 8000, or a share below 100%, such as 30%, not {text!r}"
        )

    def of(self, tokens: int) -> int:
        """The target, in tokens, for a conversation of so many tokens."""
        return self.tokens or max(int(self.share * tokens), 1)


@dataclass(frozen=True)
class Candidate:
    """
    A strategy that takes part.

    :param label: What it is called: its name, with `+model` where it uses a model.
    :param compactor: The compactor.
    """

    label: str
    compactor: Compactor


def candidates(
    strategies: Sequence[str], chat_generator: ChatGenerator | None = None, **options: Any
) -> list[Candidate]:
    """
    Build the compactors of strategies.

    :param strategies: Their names.
    :param chat_generator: A model; the strategies that can use one take part with it as well as without.
    :param options: Settings of `CompactionConfig`.
    :returns: The strategies in the order given.
    :raises ValueError: If a name is unknown or a setting out of its range.
    """
    found = []
    for name in strategies:
        config = CompactionConfig(strategy=name, **options)
        found.append(Candidate(name, config.build_compactor()))
        with_model = config.build_compactor(chat_generator)
        if chat_generator is not None and getattr(with_model, "chat_generator", None) is chat_generator:
            found.append(Candidate(name + WITH_MODEL, with_model))
    return found


@dataclass(frozen=True)
class Subject:
    """
    A conversation that is to be compacted.

    :param name: What it is called.
    :param messages: Its messages, oldest to newest.
    :param tools: The tools whose schemas are sent along.
    :param repairs: How many of the messages had to be repaired before.
    """

    name: str
    messages: list[ChatMessage]
    tools: list[Tool] = field(default_factory=list)
    repairs: int = 0

    @classmethod
    def repaired(cls, name: str, messages: list[ChatMessage], tools: list[Tool]) -> "Subject":
        """Repair a conversation first, where providers would reject it: no strategy is to be blamed for that."""
        if is_valid(messages):
            return cls(name, messages, tools)
        valid = repaired(messages)
        return cls(name, valid, tools, repaired_messages(messages, valid))


@dataclass(frozen=True)
class Result:
    """
    What one strategy made of one conversation, or of several taken together: all numbers add up.

    :param strategy: The label of the strategy.
    :param budget: The label of the budget.
    :param conversation: The name of the conversation; empty for several.
    :param conversations: How many there are.
    :param tokens_before: The size before, in tokens, schemas of tools included.
    :param tokens_after: The size after.
    :param target_tokens: The size that was aimed for.
    :param note_tokens: What of the size after is notes that the compaction wrote.
    :param reached: In how many conversations the target was reached.
    :param messages: The number of messages before.
    :param kept: How many of them are there unchanged.
    :param rewritten: How many of them are there in a shorter version.
    :param added: How many messages are new.
    :param steps: How many replies of the model there were before.
    :param steps_kept: How many of them are still there, whole or shortened.
    :param user_messages: How many messages of the user there were before.
    :param user_messages_kept: How many of them are there unchanged.
    :param identifiers: How many exact things were named before: paths, addresses, ids, numbers.
    :param identifiers_kept: How many of them are still named.
    :param llm_calls: How often a model was called.
    :param llm_usage: What these calls used, as the provider reported it.
    :param cost: What they cost in US dollars; None where that is not known.
    :param seconds: How long it took.
    :param reason: Why nothing was compacted, or why the target was missed.
    """

    strategy: str
    budget: str
    conversation: str
    conversations: int
    tokens_before: int
    tokens_after: int
    target_tokens: int
    note_tokens: int
    reached: int
    messages: int
    kept: int
    rewritten: int
    added: int
    steps: int
    steps_kept: int
    user_messages: int
    user_messages_kept: int
    identifiers: int
    identifiers_kept: int
    llm_calls: int
    llm_usage: Mapping[str, Any]
    cost: float | None
    seconds: float
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Compacted:
    """
    A result with the conversation it is about.

    :param result: The numbers.
    :param subject: The conversation before.
    :param messages: The conversation after.
    """

    result: Result
    subject: Subject
    messages: list[ChatMessage]


@dataclass(frozen=True)
class Comparison:
    """
    Every conversation compacted to every budget by every strategy. Iterating over it does the work, piece by piece.

    :param subjects: The conversations.
    :param budgets: The budgets.
    :param strategies: The strategies.
    :param cost_of: What the calls of a model cost, from their usage.
    """

    subjects: Sequence[Subject]
    budgets: Sequence[Budget]
    strategies: Sequence[Candidate]
    cost_of: Callable[[Mapping[str, Any]], float | None] = lambda usage: None

    def __len__(self) -> int:
        return len(self.subjects) * len(self.budgets) * len(self.strategies)

    def __iter__(self) -> Iterator[Compacted]:
        for subject in self.subjects:
            ledger, named = TokenLedger(), _named(subject.messages)
            tokens = ledger.count(subject.messages, subject.tools)
            for budget in self.budgets:
                for strategy in self.strategies:
                    output = strategy.compactor.run(
                        messages=subject.messages, target_tokens=budget.of(tokens), tools=subject.tools or None
                    )
                    counts = _counts(subject.messages, output["messages"], named, ledger)
                    result = self._result(subject, budget, strategy, output["report"], counts)
                    yield Compacted(result, subject, output["messages"])

    def _result(
        self, subject: Subject, budget: Budget, strategy: Candidate, report: CompactionReport, counts: dict[str, int]
    ) -> Result:
        return Result(
            strategy=strategy.label,
            budget=budget.label,
            conversation=subject.name,
            conversations=1,
            tokens_before=report.tokens_before,
            tokens_after=report.tokens_after,
            target_tokens=report.target_tokens,
            reached=int(report.reached_target),
            llm_calls=report.llm_calls,
            llm_usage=report.llm_usage,
            cost=self.cost_of(report.llm_usage) if report.llm_calls else None,
            seconds=report.duration_seconds,
            reason=report.reason,
            **counts,
        )


def totals(results: Sequence[Result]) -> list[Result]:
    """
    Add up what each strategy made of all conversations at each budget.

    :param results: The results.
    :returns: One result for each strategy and budget, in the order in which they came first.
    """
    found: dict[tuple[str, str], Result] = {}
    for result in results:
        key = result.budget, result.strategy
        found[key] = _sum(found[key], result) if key in found else replace(result, conversation="", reason=None)
    return list(found.values())


def _sum(first: Result, second: Result) -> Result:
    numbers = {
        name: value + getattr(second, name)
        for name, value in vars(first).items()
        if isinstance(value, (int, float)) and name != "cost"
    }
    costs = [result.cost for result in (first, second) if result.llm_calls]
    return replace(
        first,
        **numbers,
        llm_usage=added_usage(first.llm_usage, second.llm_usage),
        cost=None if None in costs or not costs else sum(filter(None, costs)),
    )


def _counts(
    before: Sequence[ChatMessage], after: Sequence[ChatMessage], named: set[str], ledger: TokenLedger
) -> dict[str, int]:
    """What was there and what of it is left."""
    changes = changes_between(before, after)
    left = {id(message) for message in [*changes.kept, *(original for original, _ in changes.rewritten)]}
    replies = [message for message in before if message.role is ChatRole.ASSISTANT]
    return {
        "note_tokens": ledger.count(changes.added),
        "messages": len(before),
        "kept": len(changes.kept),
        "rewritten": len(changes.rewritten),
        "added": len(changes.added),
        "steps": len(replies),
        "steps_kept": sum(id(message) in left for message in replies),
        "user_messages": sum(map(_is_users, before)),
        "user_messages_kept": sum(map(_is_users, changes.kept)),
        "identifiers": len(named),
        "identifiers_kept": len(named & _named(after)),
    }


def _is_users(message: ChatMessage) -> bool:
    return message.role is ChatRole.USER and not is_note(message)


def _named(messages: Sequence[ChatMessage]) -> set[str]:
    """The exact things that messages name, results of tools included."""
    return {name for message in messages for part in message._content for name in identifiers_in(_text(part))}


def _text(part: object) -> str:
    if isinstance(part, TextContent):
        return part.text
    if isinstance(part, ToolCall):
        return as_json(part.arguments)
    if isinstance(part, ToolCallResult):
        return part.result if isinstance(part.result, str) else "\n".join(map(_text, part.result))
    return ""
