# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""One request to a chat generator: compacted before when that is due, and compacted harder when it is refused."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from haystack import logging
from haystack.dataclasses import ChatMessage, StreamingCallbackT, StreamingChunk
from haystack.tools import ToolsType

from haystack_compaction.compaction_pass import Step, run_passes, run_passes_async
from haystack_compaction.errors import CompactionError, ContextWindowError
from haystack_compaction.events import CompactionEvent, OnCompaction
from haystack_compaction.known_conversations import KnownConversation, KnownConversations
from haystack_compaction.overflow import overflow_sizes
from haystack_compaction.report import CompactionReport, combined
from haystack_compaction.window_guard import Passes, WindowGuard

logger = logging.getLogger(__name__)

#: Where a reply's `meta` says what was done for it. Not the key of the notes, which marks what compaction wrote.
REPORT_META_KEY = "context_compaction_report"

Replies: TypeAlias = dict[str, list[ChatMessage]]


class Request:
    """
    A call of a chat generator, to be made with one list of messages or another.

    :param chat_generator: The chat generator.
    :param streaming_callback: What to call with each chunk of the reply.
    :param further: What else to pass on; what is None is not.
    """

    def __init__(self, chat_generator: Any, streaming_callback: StreamingCallbackT | None, **further: Any) -> None:
        #: Whether a part of a reply went to the caller.
        self.has_streamed = False
        self._chat_generator = chat_generator
        self._inputs = {name: value for name, value in further.items() if value is not None}
        callback = streaming_callback or getattr(chat_generator, "streaming_callback", None)
        if callback is not None:
            self._inputs["streaming_callback"] = self._watched(callback)

    @property
    def tools(self) -> ToolsType | None:
        """The tools whose schemas are sent along."""
        tools: ToolsType | None = self._inputs.get("tools", getattr(self._chat_generator, "tools", None))
        return tools

    def attempt(self, messages: list[ChatMessage]) -> "Attempt":
        """
        Return the step that makes the call.

        :param messages: The messages to send.
        :returns: A step whose result is what the chat generator returned or raised.
        """
        run = partial(self._chat_generator.run, messages=messages, **self._inputs)
        run_async = getattr(self._chat_generator, "run_async", None)
        if run_async is None:
            return Attempt.in_thread(run)
        return Attempt(run, partial(run_async, messages=messages, **self._inputs))

    def _watched(self, callback: StreamingCallbackT) -> StreamingCallbackT:
        """The callback, of its own kind, with an eye on whether it was called."""

        def watched(chunk: StreamingChunk) -> Any:
            self.has_streamed = True
            return callback(chunk)

        async def watched_async(chunk: StreamingChunk) -> None:
            await watched(chunk)

        return watched_async if inspect.iscoroutinefunction(callback) else watched


@dataclass(frozen=True)
class Attempt:
    """A step that never fails: what was raised is its result."""

    do: Callable[[], Any]
    do_async: Callable[[], Awaitable[Any]]

    @classmethod
    def in_thread(cls, do: Callable[[], Any]) -> "Attempt":
        """A step that may block, as a chat generator that knows no event loop does."""
        return cls(do, partial(asyncio.to_thread, do))

    @classmethod
    def at(cls, passes: Passes) -> "Attempt":
        """A step that compacts."""
        return cls(partial(run_passes, passes), partial(run_passes_async, passes))

    def run(self) -> Any:
        """Do it."""
        try:
            return self.do()
        except Exception as error:
            return error

    async def run_async(self) -> Any:
        """Do it without blocking the event loop."""
        try:
            return await self.do_async()
        except Exception as error:
            return error


@dataclass
class Exchange:
    """
    One request and what becomes of it.

    :param request: The call to make.
    :param messages: The conversation as the caller has it, oldest to newest. It is left as it is.
    :param guard: What keeps the conversation inside the window if it is a new one.
    :param known: The conversations of earlier calls.
    :param max_retries: How often a refused request is compacted harder and sent again.
    :param is_context_overflow: What tells from an error whether the request was too long.
    :param conversation_id: What the caller calls the conversation.
    :param on_compaction: What to call with the report of each compaction that was tried.
    """

    request: Request
    messages: list[ChatMessage]
    guard: WindowGuard
    known: KnownConversations
    max_retries: int
    is_context_overflow: Callable[[BaseException], bool]
    conversation_id: str | None = None
    on_compaction: OnCompaction | None = None
    _current: list[ChatMessage] = field(init=False)
    _report: CompactionReport | None = None
    _retries: int = 0

    def __post_init__(self) -> None:
        self._current = self.messages

    def steps(self) -> Generator[Step, Any, Replies]:
        """
        Compact where due, send, and while the provider refuses compact harder and send again.

        :returns: A generator of steps, to be sent what each came to, which returns what the chat generator returned.
        :raises ContextWindowError: If what may not be touched is larger than the window.
        """
        if self.messages:
            yield from self._prepare()
        answer = yield self._attempt()
        while self._may_retry(answer):
            if not (yield from self._compact(self.guard.passes_after_refusal(self._current, *overflow_sizes(answer)))):
                break
            self._retries += 1
            answer = yield self._attempt()
        if isinstance(answer, Exception):
            raise self._explained(answer)
        return {"replies": [self._with_report(reply) for reply in answer["replies"]]}

    def _attempt(self) -> Attempt:
        guard = self.guard
        return self.request.attempt(guard.notes.merged(self._current) if guard.window.merge_notes else self._current)

    def _prepare(self) -> Generator[Step, Any, None]:
        try:
            tokens = self._look()
        except CompactionError:
            raise
        except Exception:
            logger.exception("The conversation could not be measured; it is sent as it is.")
            return
        if self.guard.is_due(tokens):
            yield from self._compact(self.guard.passes(self._current, tokens))

    def _look(self) -> int:
        """Find out what is known of the conversation and how large it is by now."""
        known = self.known.recall(self.messages, self.conversation_id)
        if known is not None:
            self.guard, self._current = known.guard, known.continued(self.messages)
            if self.guard.writer is not None:
                self.guard.writer = self.guard.writer.resumed()
        valid = self.guard.repaired(self._current) if self.guard.window.repair else self._current
        if valid is not self._current:
            self.guard.archive_repair(self._current, valid)
        if known is None or valid is not self._current:
            known = self._known_as(valid)
        self._current = valid
        tokens = self.guard.observe(valid, self.request.tools)
        self.known.keep(known)
        return tokens

    def _compact(self, passes: Passes) -> Generator[Step, Any, bool]:
        """Run the passes; whether the conversation became smaller."""
        outcome = yield Attempt.at(passes)
        if isinstance(outcome, (CompactionError, ContextWindowError)):
            raise outcome
        if isinstance(outcome, Exception):
            logger.error("Compacting failed; the conversation stays as it is.", exc_info=outcome)
            return False
        compacted, report = outcome
        if report.compacted:
            self._current, self._report = compacted, combined(self._report, report)
            logger.info(
                "Compacted the conversation from {before} to {after} tokens, target {target}.",
                before=report.tokens_before,
                after=report.tokens_after,
                target=report.target_tokens,
            )
        # What came of a try counts also when it came to nothing: the guard has learned from it.
        self.known.keep(self._known_as(self._current))
        if self.on_compaction is not None:
            yield CompactionEvent(self.on_compaction, report)
        return bool(report.compacted)

    def _known_as(self, stands_as: list[ChatMessage]) -> KnownConversation:
        return KnownConversation(self.messages, stands_as, self.guard, self.conversation_id)

    def _may_retry(self, answer: Any) -> bool:
        if not self._is_refusal(answer) or self._retries >= self.max_retries or self.request.has_streamed:
            return False
        logger.warning(
            "The provider refused the request as too long ({error}). It is compacted harder and sent again. If this "
            "happens often, set `context_window` to the size of the model's window.",
            error=answer,
        )
        return True

    def _is_refusal(self, answer: Any) -> bool:
        return isinstance(answer, Exception) and self.is_context_overflow(answer)

    def _explained(self, error: Exception) -> Exception:
        """The provider's own error. Where Python can, it says what was tried against it."""
        if self._report is not None and self._is_refusal(error) and hasattr(error, "add_note"):
            error.add_note(
                f"The conversation was compacted from {self._report.tokens_before} to {self._report.tokens_after} "
                f"tokens by our count and sent again {self._retries} times; the provider still found it too long."
            )
        return error

    def _with_report(self, reply: ChatMessage) -> ChatMessage:
        if self._report is None:
            return reply
        report = {**self._report.to_dict(), "retries": self._retries}
        return replace(reply, _meta={**reply.meta, REPORT_META_KEY: report})
