# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""One pass: measure, compact, check what came back, report. The hook and the pipeline node share it."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import is_
from typing import Any, Protocol, TypeAlias, TypeVar

from haystack import logging
from haystack.dataclasses import ChatMessage, ChatRole, ToolCallResult
from haystack.hooks.compaction.types import Compactor as CompactorProtocol

from haystack_compaction.conversation.marks import MarkedMessages
from haystack_compaction.conversation.notes import (
    CURRENT_TASK_META_KEY,
    carries_content,
    is_note,
    is_pinned,
    is_summary,
)
from haystack_compaction.conversation.pins import PinRules
from haystack_compaction.conversation.repair import repaired
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.errors import CompactionError
from haystack_compaction.pass_context import PassContext, entered
from haystack_compaction.report import CompactionReport
from haystack_compaction.stepping import run_to_end, run_to_end_async
from haystack_compaction.tokens.calibration import RequestSize
from haystack_compaction.tokens.ledger import TokenLedger

logger = logging.getLogger(__name__)


#: The conversation to go on with, and what was done to it.
Outcome: TypeAlias = tuple[list[ChatMessage], CompactionReport]


@dataclass(frozen=True)
class Changes:
    """
    How one conversation became another, found by the identity of the messages.

    :param kept: Messages that are in both.
    :param removed: Messages that are gone.
    :param rewritten: Pairs of a message that is gone and the one that stands in its place.
    :param added: Messages that are new, such as a note.
    """

    kept: list[ChatMessage]
    removed: list[ChatMessage]
    rewritten: list[tuple[ChatMessage, ChatMessage]]
    added: list[ChatMessage]


def changes_between(before: Sequence[ChatMessage], after: Sequence[ChatMessage]) -> Changes:
    """
    Compare a conversation with what a compactor made of it.

    :param before: The messages that the compactor was given.
    :param after: The messages that it returned.
    :returns: What was kept, removed, rewritten and added, each in the order of the conversation it comes from.
    """
    kept_before, kept_after = _kept(before, after), _kept(after, before)
    gone = _by_gap(before, kept_before)
    rewritten: list[tuple[ChatMessage, ChatMessage]] = []
    added: list[ChatMessage] = []
    for gap, messages in _by_gap(after, kept_after).items():
        for original, message in _versions(gone[gap], messages):
            if original is None:
                added.append(message)
            else:
                rewritten.append((original, message))
    replaced = {id(original) for original, _ in rewritten}
    return Changes(
        kept=[message for message, kept in zip(after, kept_after, strict=True) if kept],
        removed=[message for messages in gone.values() for message in messages if id(message) not in replaced],
        rewritten=rewritten,
        added=added,
    )


def strategy_name(compactor: object) -> str:
    """
    Return the name that reports and traces call a compactor by.

    :param compactor: Any compactor.
    :returns: Its `strategy` where it has one, the name of its class otherwise.
    """
    return str(getattr(compactor, "strategy", type(compactor).__name__))


class CompactionPass:
    """
    One compaction, whatever the compactor: ours, Haystack's or anybody's.

    The compactor is known by its `compact` method only. What it returns is checked: tool pairs are made intact,
    messages of the floor that it dropped are put back, and a result that is no smaller is discarded.

    :param compactor: The compactor to run.
    :param messages: The conversation, oldest to newest. It is left as it is.
    :param target_tokens: The size to aim for, of the whole request, in the provider's tokens.
    :param ledger: What messages are measured with.
    :param request: How the size of the messages translates into the size of the request.
    :param task: The message that the run was started with, where that is known.
    :param pins: Rules by which messages are pinned, besides the compactor's own.
    :param context_window: The model's context window in tokens, where that is known.
    :param original: The conversation before earlier stages of a composed strategy took from it.
    """

    def __init__(
        self,
        compactor: CompactorProtocol,
        messages: Sequence[ChatMessage],
        target_tokens: int,
        ledger: TokenLedger,
        *,
        request: RequestSize | None = None,
        task: ChatMessage | None = None,
        pins: Iterable[PinRules] = (),
        context_window: int | None = None,
        original: Sequence[ChatMessage] = (),
    ) -> None:
        self.compactor = compactor
        self.messages = messages
        self.target_tokens = target_tokens
        self.ledger = ledger
        self.request = request or RequestSize()
        #: The message that the run was started with; after the pass the one that stands for it.
        self.task = task
        self._started = time.perf_counter()
        self._marks = MarkedMessages(messages, task=task, pins=pins)
        self._marked = self._marks.messages
        copies = dict(zip(map(id, messages), self._marked, strict=True)) if original else {}
        original = [copies.get(id(message), message) for message in original]
        self.context = PassContext(context_window=context_window, original=original)

    def run(self) -> Outcome:
        """
        Compact.

        :returns: The conversation to go on with, which is the given one when nothing was gained, and the report.
        """
        try:
            with entered(self.context):
                compacted = self.compactor.compact(list(self._marked), self._room(), self.ledger)
            return self._finished(compacted)
        except CompactionError:
            raise
        except Exception as error:
            return self._failed(error)

    async def run_async(self) -> Outcome:
        """
        Compact without blocking the event loop.

        :returns: The conversation to go on with, which is the given one when nothing was gained, and the report.
        """
        try:
            with entered(self.context):
                if hasattr(self.compactor, "compact_async"):
                    compacted = await self.compactor.compact_async(list(self._marked), self._room(), self.ledger)
                else:
                    compacted = await asyncio.to_thread(
                        self.compactor.compact, list(self._marked), self._room(), self.ledger
                    )
            return await asyncio.to_thread(self._finished, compacted)
        except CompactionError:
            raise
        except Exception as error:
            return await asyncio.to_thread(self._failed, error)

    def _room(self) -> int:
        return self.request.room_for_messages(self.target_tokens)

    def _failed(self, error: Exception) -> Outcome:
        logger.exception(
            "{compactor} failed; the conversation stays as it is.", compactor=type(self.compactor).__name__
        )
        reason = f"the compactor failed with {type(error).__name__}"
        return self._unchanged(reason, self.ledger.measure(self.messages))

    def _finished(self, compacted: list[ChatMessage] | None) -> Outcome:
        tokens_before = self.ledger.measure(self.messages)
        if compacted is None:
            fits = self.request.of(tokens_before) <= self.target_tokens
            reason = "it fits already" if fits else "the compactor found nothing that it may remove"
            return self._unchanged(reason, tokens_before)
        changes = changes_between(self._marked, compacted)
        whole = self._checked(compacted, changes)
        if len(whole) != len(compacted) or not all(map(is_, whole, compacted)):
            changes = changes_between(self._marked, whole)
        checked = self._marks.unmarked(whole)
        tokens_after = self.ledger.measure(checked)
        if tokens_after >= tokens_before:
            return self._unchanged("what the compactor returned was no smaller", tokens_before)
        tasks = (new for marked, new in zip(whole, checked, strict=True) if CURRENT_TASK_META_KEY in marked.meta)
        self.task = next(tasks, self.task)
        return checked, self._report(checked, changes, tokens_before, tokens_after)

    def _unchanged(self, reason: str, tokens: int) -> Outcome:
        nothing = Changes(kept=list(self.messages), removed=[], rewritten=[], added=[])
        return list(self.messages), self._report(self.messages, nothing, tokens, tokens, reason=reason)

    def _checked(self, compacted: list[ChatMessage], changes: Changes) -> list[ChatMessage]:
        """What the compactor returned, valid and with the floor in it."""
        floor = self._floor()
        if not any(map(carries_content, changes.added)):
            floor.update(id(message) for message in changes.removed if is_summary(message))
        lost = {id(message) for message in changes.removed if id(message) in floor} - set(map(id, compacted))
        tampered = {id(after): before for before, after in changes.rewritten if is_pinned(before)}
        compacted = [tampered.get(id(message), message) for message in compacted]
        return repaired(self._restored(compacted, lost) if lost else compacted)

    def _floor(self) -> set[int]:
        """The identities of the messages that no compactor may remove."""
        conversation = Conversation(self._marked)
        indexes = set(conversation.protected)
        if getattr(self.compactor, "preserve_system_prompt", True):
            indexes.update(conversation.head)
        if conversation.task_index is not None:
            indexes.add(conversation.task_index)
        return {id(self._marked[index]) for index in indexes}

    def _restored(self, compacted: list[ChatMessage], lost: set[int]) -> list[ChatMessage]:
        """Put lost messages back, each in front of the first message that came after it."""
        position = {id(message): index for index, message in enumerate(self._marked)}
        missing = [index for index, message in enumerate(self._marked) if id(message) in lost]
        restored: list[ChatMessage] = []
        for message in compacted:
            while missing and position.get(id(message), -1) > missing[0]:
                restored.append(self._marked[missing.pop(0)])
            restored.append(message)
        return [*restored, *(self._marked[index] for index in missing)]

    def _report(
        self,
        after: Sequence[ChatMessage],
        changes: Changes,
        tokens_before: int,
        tokens_after: int,
        *,
        reason: str | None = None,
    ) -> CompactionReport:
        reached_target = self.request.of(tokens_after) <= self.target_tokens
        if reason is None and not reached_target:
            reason = "what may not be removed is larger than the target"
        return CompactionReport(
            strategy=strategy_name(self.compactor),
            compacted=tokens_after < tokens_before,
            tokens_before=self.request.of(tokens_before),
            tokens_after=self.request.of(tokens_after),
            target_tokens=self.target_tokens,
            messages_before=len(self.messages),
            messages_after=len(after),
            removed_messages=len(changes.removed),
            rewritten_messages=len(changes.rewritten),
            reached_target=reached_target,
            stages=self.context.stages,
            llm_calls=self.context.llm_calls,
            llm_usage=self.context.llm_usage,
            duration_seconds=time.perf_counter() - self._started,
            reason=reason,
        )


_ReturnT = TypeVar("_ReturnT")


class Step(Protocol):
    """Something to be waited for: a pass, or what runs between passes."""

    def run(self) -> Any:
        """Do it."""

    async def run_async(self) -> Any:
        """Do it without blocking the event loop."""


def run_passes(passes: Generator[Step, Any, _ReturnT]) -> _ReturnT:
    """
    Run passes that depend on each other.

    :param passes: A generator that yields a pass and is sent what it came to.
    :returns: What the generator returns.
    """
    return run_to_end(passes, lambda step: step.run())


async def run_passes_async(passes: Generator[Step, Any, _ReturnT]) -> _ReturnT:
    """
    Run passes that depend on each other, without blocking the event loop: neither by them nor by what is between them.

    :param passes: A generator that yields a pass and is sent what it came to.
    :returns: What the generator returns.
    """
    return await run_to_end_async(passes, lambda step: step.run_async())


def _kept(messages: Sequence[ChatMessage], others: Sequence[ChatMessage]) -> list[bool]:
    """Whether each message is in the other list, too. One that comes several times is matched from the newest on."""
    ids = set(map(id, others))
    if len(ids) == len(others) and len(set(map(id, messages))) == len(messages):
        return [id(message) in ids for message in messages]
    left = Counter(map(id, others))
    flags = []
    for message in reversed(messages):
        flags.append(left[id(message)] > 0)
        left[id(message)] -= 1
    return flags[::-1]


def _by_gap(messages: Sequence[ChatMessage], kept: Sequence[bool]) -> dict[int, list[ChatMessage]]:
    """The messages that were not kept, by the number of kept messages before them."""
    gap = 0
    found = defaultdict(list)
    for message, is_kept in zip(messages, kept, strict=True):
        if is_kept:
            gap += 1
        else:
            found[gap].append(message)
    return found


def _versions(before: list[ChatMessage], after: list[ChatMessage]) -> list[tuple[ChatMessage | None, ChatMessage]]:
    """Each message that is new in a gap with the one it is a version of, None where there is no such."""
    # Mostly what is new is a note, and of another role than what went.
    roles = {message._role for message in after}
    candidates = [(_shape(message), message) for message in before if message._role in roles and not is_note(message)]
    if not candidates:
        return [(None, message) for message in after]
    versions = [(_shape(message), message) for message in after if not is_note(message)]
    originals: dict[int, ChatMessage] = {}
    if [shape for shape, _ in candidates] == [shape for shape, _ in versions]:
        # Where everything was rewritten, the order tells. Looking for each would take the square of the time.
        originals = {id(version): message for (_, version), (_, message) in zip(versions, candidates, strict=True)}
    else:
        # Newest first, since what goes is mostly old: of two equals, the newer one is the one that was rewritten.
        candidates.reverse()
        # What kept a part of its content, such as a text that lost its calls, tells by that part whose version it is.
        holders = {id(part): message for _, message in candidates for part in message._content}
        for shape, version in versions:
            holder = next(filter(None, (holders.get(id(part)) for part in version._content)), None)
            if holder is not None and _shape(holder) == shape:
                originals[id(version)] = holder
        found = set(map(id, originals.values()))
        candidates = [candidate for candidate in candidates if id(candidate[1]) not in found]
        for shape, version in reversed(versions):
            if id(version) in originals:
                continue
            alike = [message for other, message in candidates if other == shape]
            if alike:
                original = originals[id(version)] = _original_of(version, alike)
                candidates = [candidate for candidate in candidates if candidate[1] is not original]
    return [(originals.get(id(message)), message) for message in after]


def _shape(message: ChatMessage) -> tuple[ChatRole, list[str]]:
    """What a message and its versions have in common: who speaks, and which tools it has results of."""
    return message._role, [part.origin.tool_name for part in message._content if isinstance(part, ToolCallResult)]


def _original_of(message: ChatMessage, alike: list[ChatMessage]) -> ChatMessage:
    """The message that the given one is most likely a version of: of those of its shape, by the common beginning."""

    def likeness(candidate: ChatMessage) -> tuple[int, bool]:
        text = candidate.text or ""
        same = takewhile(lambda pair: pair[0] == pair[1], zip(text, message.text or "", strict=False))
        return len(list(same)), not text.strip()

    return max(alike, key=likeness) if len(alike) > 1 else alike[0]
