# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Getting a summary out of a model, however much there is to summarize."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from haystack.dataclasses import ChatMessage

from haystack_compaction.compactors.model_calls import Prompt, Reply
from haystack_compaction.compactors.summary_checks import fault_of_reply, summary_text
from haystack_compaction.compactors.summary_prompt import SummaryRequest, clipped, quoted, rendered
from haystack_compaction.pass_context import current_pass
from haystack_compaction.tokens.ledger import TokenLedger

#: Yields batches of prompts, is sent the replies, and returns a summary.
Summarizing: TypeAlias = Generator[list[Prompt], list[Reply], str]
#: Says whether a text passes.
Test: TypeAlias = Callable[[str], bool]
#: Summarizes a part without the model.
StandIn: TypeAlias = Callable[[Sequence[ChatMessage]], str]
#: Is told why the model's summary of something cannot be used.
OnFault: TypeAlias = Callable[[str], None]

#: The least that a prompt must have room for, beside instruction and reply, for a summary to be worth a call.
SMALLEST_RECORD = 256

# Units are measured together up to this share of the room, in characters. There are at least as many as tokens, mostly
# four times as many, so a part is small beside the room, and little of it stays unused.
_PIECES_OF_ROOM = 4

# Stands in for the reason of a second attempt in the prompt that is measured to see how much room the rest leaves.
_LONGEST_REASON = "reason " * 40


@dataclass(frozen=True)
class _Part:
    """
    A stretch of what is to be summarized.

    :param record: What the model is shown.
    :param tokens: How large that is.
    :param messages: The messages that it is made from.
    """

    record: str
    tokens: int
    messages: Sequence[ChatMessage]


class SummaryWriter:
    """
    Asks a model for a summary: in one call where the record fits the model's window, else in parts that are merged.

    Every reply is checked. One that does not pass is asked for once more, with the reason. Where that does not help or
    the call itself fails, somebody else has to write the text.

    :param instruction: How to summarize.
    :param limit: How long a summary may become, in tokens.
    :param context_window: The size that no prompt exceeds together with its reply, in the ledger's tokens.
    :param ledger: What measures.
    """

    def __init__(self, *, instruction: str, limit: int, context_window: int, ledger: TokenLedger) -> None:
        self.instruction = instruction
        self.limit = limit
        self.context_window = context_window
        self.ledger = ledger

    @property
    def room(self) -> int:
        """What instruction and reply leave of the window, in tokens."""
        empty = SummaryRequest(self.instruction, "part 1000 of 1000, transcript", "", "", self.limit)
        return self.context_window - self.limit - self.ledger.count(empty.prompt(reason=_LONGEST_REASON))

    def write(
        self,
        units: Sequence[Sequence[ChatMessage]],
        *,
        previous: str,
        is_smaller: Test,
        stand_in: StandIn,
        on_fault: OnFault,
    ) -> Summarizing:
        """
        Summarize.

        :param units: The messages, in units that belong together, oldest first.
        :param previous: An earlier summary that the new one takes the place of; empty for none.
        :param is_smaller: Whether a summary is smaller than what it takes the place of.
        :param stand_in: Writes the summaries of parts that the model does not write.
        :param on_fault: Is told why, for parts and for the whole.
        :returns: The summary; empty where the model has written none that can be used.
        """
        room = self.room
        earlier = self._fitted(self._quoted(previous, []), room // 2)
        room -= earlier.tokens
        if room < SMALLEST_RECORD:
            on_fault(f"a window of {self.context_window} tokens leaves no room for a record")
            return ""
        title, parts = "transcript", list(self._transcript(units, room))
        while True:
            groups = _packed(parts, room)
            if len(groups) == 1:
                (answer,) = yield from self._answers([self._request(title, groups[0], earlier)], [is_smaller])
                if answer.fault:
                    on_fault(answer.fault)
                return answer.text
            requests = [
                self._request(f"part {number} of {len(groups)}, {title}", group)
                for number, group in enumerate(groups, 1)
            ]
            answers = yield from self._answers(requests, list(map(self._smaller_than, groups)))
            for fault in dict.fromkeys(answer.fault for answer in answers if answer.fault):
                on_fault(fault)
            if not any(answer.text for answer in answers):
                return ""
            # At half the room at most, two of them fit, so that every round has fewer groups than the one before.
            parts = []
            for group, answer in zip(groups, answers, strict=True):
                beneath = [message for part in group for message in part.messages]
                text = answer.text or stand_in(beneath)
                parts.append(self._fitted(self._quoted(text, beneath), room // 2))
            title = "summaries of consecutive parts, oldest first"

    def _transcript(self, units: Sequence[Sequence[ChatMessage]], room: int) -> Iterator[_Part]:
        """Parts that fit. Small units are measured together: measuring costs more by the call than by the text."""
        messages: list[ChatMessage] = []
        records: list[str] = []
        characters = 0
        for unit in units:
            shown = list(map(rendered, unit))
            added = sum(map(len, shown))
            if messages and characters + added > room // _PIECES_OF_ROOM:
                yield from self._parts(messages, records, room)
                messages, records, characters = [], [], 0
            messages.extend(unit)
            records.extend(shown)
            characters += added
        yield from self._parts(messages, records, room)

    def _parts(self, messages: Sequence[ChatMessage], records: Sequence[str], room: int) -> Iterator[_Part]:
        """One part if that fits, else one a message."""
        part = self._part("".join(records), messages)
        if part.tokens <= room:
            yield part
        else:
            for message, record in zip(messages, records, strict=True):
                yield self._fitted(self._part(record, [message]), room)

    def _quoted(self, summary: str, messages: Sequence[ChatMessage]) -> _Part:
        return self._part(f"summary:\n{quoted(summary)}\n" if summary else "", messages)

    def _part(self, record: str, messages: Sequence[ChatMessage]) -> _Part:
        return _Part(record, self._tokens(record), messages)

    def _fitted(self, part: _Part, room: int) -> _Part:
        """A part that is larger than the room, cut down to its beginning and its end."""
        tokens, characters, record = part.tokens, len(part.record), part.record
        while tokens > room and characters > 2:
            characters = max(min(characters * room // tokens, characters - 1) * 9 // 10, 2)
            record = clipped(part.record, characters)
            tokens = self._tokens(record)
        return _Part(record, tokens, part.messages)

    def _request(self, title: str, group: Sequence[_Part], earlier: _Part | None = None) -> SummaryRequest:
        return SummaryRequest(
            self.instruction,
            title,
            record="".join(part.record for part in group),
            previous=earlier.record if earlier else "",
            limit=self.limit,
        )

    def _smaller_than(self, group: Sequence[_Part]) -> Test:
        tokens = sum(part.tokens for part in group)
        return lambda text: self._tokens(text) < tokens

    def _answers(
        self, requests: list[SummaryRequest], tests: list[Test]
    ) -> Generator[list[Prompt], list[Reply], list["_Answer"]]:
        """One answer to each request. Those that a second attempt can better get one."""
        replies = yield [request.prompt() for request in requests]
        answers = list(map(self._checked, replies, requests, tests))
        again = [position for position, answer in enumerate(answers) if answer.fault and not answer.failed]
        if again:
            replies = yield [requests[position].prompt(reason=answers[position].fault) for position in again]
            for position, reply in zip(again, replies, strict=True):
                answers[position] = self._checked(reply, requests[position], tests[position])
        # Calls that failed are counted where they are made.
        current_pass().model_failures += sum(bool(answer.fault) and not answer.failed for answer in answers)
        return answers

    def _checked(self, reply: Reply, request: SummaryRequest, is_smaller: Test) -> "_Answer":
        fault = fault_of_reply(reply, request)
        if isinstance(reply, Exception):
            return _Answer("", fault or "", failed=True)
        text = summary_text(reply)
        if fault is None and not is_smaller(text):
            fault = f"it is no shorter than what it summarizes; at most {self.limit} tokens are allowed"
        return _Answer("" if fault else text, fault or "")

    def _tokens(self, text: str) -> int:
        return self.ledger.count([ChatMessage.from_user(text)])


@dataclass(frozen=True)
class _Answer:
    """
    What came of a request.

    :param text: The summary; empty if there is none that can be used.
    :param fault: Why not; empty if there is one.
    :param failed: Whether there was no reply at all. Chat generators retry by themselves, so nobody else does.
    """

    text: str
    fault: str
    failed: bool = False


def _packed(parts: Sequence[_Part], room: int) -> list[list[_Part]]:
    """As many parts in a group as fit, in order."""
    groups: list[list[_Part]] = [[]]
    left = room
    for part in parts:
        if groups[-1] and part.tokens > left:
            groups.append([])
            left = room
        groups[-1].append(part)
        left -= part.tokens
    return groups
