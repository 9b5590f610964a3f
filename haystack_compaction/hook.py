# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""When to compact, inside an Agent."""

import threading
import weakref
from collections.abc import Generator
from dataclasses import asdict
from operator import is_not
from typing import Any

from haystack import logging
from haystack.components.agents.state.state import State
from haystack.components.agents.state.state_utils import replace_values
from haystack.core.serialization import component_to_dict, default_from_dict, default_to_dict
from haystack.dataclasses import ChatMessage, ChatRole
from haystack.hooks.compaction.types import Compactor as CompactorProtocol
from haystack.token_counters import TokenCounter
from haystack.tracing.tracer import tracer
from haystack.utils.callable_serialization import deserialize_callable, serialize_callable
from haystack.utils.deserialization import deserialize_component_inplace

from haystack_compaction import lifecycle
from haystack_compaction.archive.conversation_id import assigned_conversation_id
from haystack_compaction.archive.protocol import Archive
from haystack_compaction.archive.writer import ArchiveWriter, OnFailure, require_archiving
from haystack_compaction.checks import given, require_functions, require_method, require_texts
from haystack_compaction.compaction_pass import Step, run_passes, run_passes_async, strategy_name
from haystack_compaction.conversation.pins import PinRules, require_pin_rules
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.errors import CompactionError, ContextWindowError
from haystack_compaction.events import CompactionEvent, OnCompaction
from haystack_compaction.models import window_size
from haystack_compaction.report import CompactionReport
from haystack_compaction.tokens.estimate import EstimateTokenCounter
from haystack_compaction.tokens.ledger import TokenLedger
from haystack_compaction.tokens.request_meter import RequestMeter
from haystack_compaction.usage import added_usage
from haystack_compaction.window import Window, preferred_target
from haystack_compaction.window_guard import WindowGuard

logger = logging.getLogger(__name__)

_TAG = "haystack.agent.hook.compaction."


class CompactionHook:
    """
    Keeps an Agent's conversation inside the model's context window.

    Before every call of the chat generator the hook estimates the size of the whole request, messages and tool schemas,
    and corrects its estimate by the usage that the provider reported. At `compact_at` of the window it hands the
    conversation to the compactor, to bring it down to `compact_to`. When that is not enough, because the newest
    messages alone are too large, say, the largest contents are shortened. A compaction that did not help is not tried
    again until the conversation has grown. Nothing in the hook ends a run, unless what may not be touched is larger
    than the window: then no request could succeed, and the error says which message is too large. Or unless it was
    asked to, by `raise_on_failure` of a summarizer or `on_archive_failure`.

    One hook may serve any number of runs at the same time, in threads and on event loops.

    ### Usage example

    ```python
    from haystack.components.agents import Agent
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack_compaction import CompactionHook, SlidingWindowCompactor

    hook = CompactionHook(SlidingWindowCompactor(), context_window=128_000)
    agent = Agent(chat_generator=OpenAIChatGenerator(), hooks={"before_llm": [hook]}, max_agent_steps=200)
    ```

    :param compactor: What rewrites the conversation: a compactor of this package, of Haystack or your own.
    :param context_window: The model's context window in tokens, at least 1; or, with the extra `models`, the model's
        name.
    :param compact_at: The share of the window at which compaction starts, greater than `compact_to` and at most 1.
    :param compact_to: The share of the window that compaction aims for, greater than 0. Lower means less often, but
        more at a time. None for what suits the compactor, see `Compactor.compact_to`; 0.4 with those of others.
    :param token_counter: What measures messages; None for `EstimateTokenCounter`.
    :param reserve_tokens: The tokens of the window kept free for the reply, at least 0; None for 5 % of the window.
    :param last_resort: Whether the largest contents are shortened, or the oldest messages removed where that is not
        enough, when a request would not fit even after a compaction.
    :param repair: Whether tool calls and results are put in order before each request, and blank texts filled.
    :param merge_notes: Whether a note goes into the user message beside it instead of standing alone, for chat
        templates that demand that user and assistant alternate, such as those of Mistral and Gemma.
    :param pinned: Rules by which messages are pinned, besides those marked with `pin` and the compactor's own rules.
    :param archive: Where messages go before they are dropped; None to keep them nowhere. The conversation they belong
        to is `conversation_id` of the run's `hook_context`; a run without one is given one.
    :param on_archive_failure: What to do when the archive can't take them. "keep": do without the compaction while the
        conversation fits the window, and afterwards as "drop"; "drop": compact, keep them in memory, and archive them
        with the next compaction; "raise": raise an `ArchiveError`.
    :param on_compaction: Called with the report of each compaction that was tried, a function or a coroutine function.
        When it fails, that is logged.
    :param reports_key: The key of the Agent's `state_schema` under which the reports of a run are collected; its type
        is `list[CompactionReport]`.
    :raises ValueError: If a setting is out of its range, the compactor is none, or no model of that name is known.
    :raises ImportError: If a model's name is given without the extra `models`.
    """

    #: Read by the Agent, which refuses the hook anywhere else.
    allowed_hook_points = ("before_llm",)

    def __init__(
        self,
        compactor: CompactorProtocol,
        *,
        context_window: int | str,
        compact_at: float = 0.7,
        compact_to: float | None = None,
        token_counter: TokenCounter | None = None,
        reserve_tokens: int | None = None,
        last_resort: bool = True,
        repair: bool = True,
        merge_notes: bool = False,
        pinned: PinRules | None = None,
        archive: Archive | None = None,
        on_archive_failure: OnFailure = "keep",
        on_compaction: OnCompaction | None = None,
        reports_key: str | None = None,
    ) -> None:
        if isinstance(compactor, type) or not callable(getattr(compactor, "compact", None)):
            raise ValueError(f"`compactor` must be a compactor, such as `SlidingWindowCompactor()`, got {compactor!r}.")
        size = window_size(context_window)
        self.window = Window(
            context_window=size,
            compact_at=compact_at,
            compact_to=preferred_target(compactor, size) if compact_to is None else compact_to,
            reserve_tokens=reserve_tokens,
            last_resort=last_resort,
            repair=repair,
            merge_notes=merge_notes,
        )
        require_pin_rules(pinned=pinned)
        require_archiving(archive, on_archive_failure)
        require_method("count", **given(token_counter=token_counter))
        require_functions(**given(on_compaction=on_compaction))
        require_texts(**given(reports_key=reports_key))
        self.compactor = compactor
        self.pinned = pinned
        self.archive = archive
        self.on_archive_failure = on_archive_failure
        self.on_compaction = on_compaction
        self.reports_key = reports_key
        self.context_window = self.window.context_window
        self.compact_at = compact_at
        self.compact_to = self.window.compact_to
        self.token_counter = EstimateTokenCounter() if token_counter is None else token_counter
        self._ledger = TokenLedger(self.token_counter)
        self._runs: weakref.WeakKeyDictionary[State, WindowGuard] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def run(self, state: State) -> None:
        """
        Compact the conversation in the Agent's state if it is due.

        :param state: The Agent's live state; `messages` and `context_tokens` are rewritten in it.
        :raises ContextWindowError: If what may not be touched is larger than the window.
        :raises CompactionError: If the compactor or the archive fails and was told to raise then.
        :raises ValueError: If the Agent's `state_schema` has no `reports_key`.
        """
        self._require_reports_key(state)
        try:
            run_passes(self._passes(state))
        except (CompactionError, ContextWindowError):
            raise
        except Exception:
            logger.exception("The compaction hook failed; the conversation stays as it is.")

    async def run_async(self, state: State) -> None:
        """
        Do what `run` does, without blocking the event loop.

        :param state: The Agent's live state; `messages` and `context_tokens` are rewritten in it.
        :raises ContextWindowError: If what may not be touched is larger than the window.
        :raises CompactionError: If the compactor or the archive fails and was told to raise then.
        :raises ValueError: If the Agent's `state_schema` has no `reports_key`.
        """
        self._require_reports_key(state)
        try:
            await run_passes_async(self._passes(state))
        except (CompactionError, ContextWindowError):
            raise
        except Exception:
            logger.exception("The compaction hook failed; the conversation stays as it is.")

    def warm_up(self) -> None:
        """Warm up the token counter, the compactor, which may hold a chat generator, and the archive."""
        lifecycle.warm_up(self._resources())

    async def warm_up_async(self) -> None:
        """Warm up the token counter, the compactor and the archive on the serving event loop."""
        await lifecycle.warm_up_async(self._resources())

    def close(self) -> None:
        """Release the resources of the token counter, the compactor and the archive."""
        lifecycle.close(self._resources())

    async def close_async(self) -> None:
        """Release the resources of all three, those of the event loop included."""
        await lifecycle.close_async(self._resources())

    def to_dict(self) -> dict[str, Any]:
        """
        Serialize the hook with its compactor, its token counter and all else that it was given.

        :returns: A dictionary that `from_dict` takes.
        """
        return default_to_dict(
            self,
            compactor=component_to_dict(obj=self.compactor, name="compactor"),
            token_counter=component_to_dict(obj=self.token_counter, name="token_counter"),
            pinned=None if self.pinned is None else self.pinned.to_dict(),
            archive=None if self.archive is None else component_to_dict(obj=self.archive, name="archive"),
            on_archive_failure=self.on_archive_failure,
            on_compaction=None if self.on_compaction is None else serialize_callable(self.on_compaction),
            reports_key=self.reports_key,
            **asdict(self.window),
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "CompactionHook":
        """
        Deserialize the hook with all that it was given.

        :param data: What `to_dict` returned.
        :returns: The hook.
        """
        options = data.get("init_parameters", {})
        for key in ("compactor", "token_counter", "pinned", "archive"):
            if options.get(key) is not None:
                deserialize_component_inplace(options, key=key)
        if options.get("on_compaction") is not None:
            options["on_compaction"] = deserialize_callable(options["on_compaction"])
        hook: CompactionHook = default_from_dict(cls, data)
        return hook

    def __getstate__(self) -> dict[str, Any]:
        """What is known of running Agents is no part of a copy."""
        return {**self.__dict__, "_runs": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin without any run."""
        self.__dict__.update(state, _runs=weakref.WeakKeyDictionary(), _lock=threading.Lock())

    def _resources(self) -> list[object]:
        return [self.token_counter, self.compactor, self.archive]

    def _require_reports_key(self, state: State) -> None:
        if self.reports_key is not None and self.reports_key not in state.schema:
            raise ValueError(
                f"`reports_key='{self.reports_key}'` is no key of the Agent's `state_schema`. Add it there: "
                f"{{'{self.reports_key}': {{'type': list[CompactionReport]}}}}."
            )

    def _passes(self, state: State) -> Generator[Step, Any, None]:
        """What is to be done before the next request: mostly to look at it."""
        guard = self._guard_of(state)
        messages = state.data.get("messages") or []
        if self.window.merge_notes:
            messages = guard.notes.split(messages)
        if self.window.repair:
            valid = guard.repaired(messages)
            if valid is not messages:
                guard.archive_repair(messages, valid)
            messages = valid
        # Written before anything else is tried, which may fail.
        self._write(state, messages, guard)
        tokens = guard.observe(messages, state.data.get("tools"), state.data.get("context_tokens") or 0)
        due = guard.is_due(tokens)
        _tag(strategy=strategy_name(self.compactor), estimated_context_tokens=tokens, triggered=due)
        if not due:
            return
        compacted, report = yield from guard.passes(messages, tokens)
        _tag(compacted=report.compacted, context_tokens=report.tokens_after, target_tokens=report.target_tokens)
        if report.compacted:
            self._write(state, compacted, guard)
            self._tell(state, report, guard.meter.reported)
        if report.llm_usage and "token_usage" in state.schema:
            used = state.data.get("token_usage") or {}
            state.set("token_usage", {**used, **added_usage(used, report.llm_usage)})
        if self.reports_key is not None:
            state.set(self.reports_key, [report])
        if self.on_compaction is not None:
            yield CompactionEvent(self.on_compaction, report)

    def _write(self, state: State, messages: list[ChatMessage], guard: WindowGuard) -> None:
        """Hand the messages to the Agent, if they are not the ones that it has."""
        sent = guard.notes.merged(messages) if self.window.merge_notes else messages
        current = state.data.get("messages") or []
        if len(sent) != len(current) or any(map(is_not, sent, current)):
            state.set("messages", sent, handler_override=replace_values)

    def _tell(self, state: State, report: CompactionReport, reported: int) -> None:
        """Write what came of it into the state and the log."""
        if reported:
            # The Agent's own meaning of this key: everything through the newest reply.
            state.set("context_tokens", reported)
        logger.info(
            "Compacted the conversation at step {step} from {before} to {after} tokens, target {target}: {removed} "
            "messages removed, {rewritten} rewritten.",
            step=state.data.get("step_count", 0),
            before=report.tokens_before,
            after=report.tokens_after,
            target=report.target_tokens,
            removed=report.removed_messages,
            rewritten=report.rewritten_messages,
        )

    def _guard_of(self, state: State) -> WindowGuard:
        with self._lock:
            guard = self._runs.get(state)
            if guard is None:
                guard = WindowGuard(
                    self.window,
                    self.compactor,
                    RequestMeter(self._ledger),
                    task=_task_at_start(state),
                    pinned=self.pinned,
                    writer=self._writer_for(state),
                )
                self._runs[state] = guard
            return guard

    def _writer_for(self, state: State) -> ArchiveWriter | None:
        if self.archive is None:
            return None
        return ArchiveWriter(self.archive, assigned_conversation_id(state), on_failure=self.on_archive_failure)


def _task_at_start(state: State) -> ChatMessage | None:
    """The message that a run was started with. Only known before its first step: later, a hook may have added some."""
    messages = state.data.get("messages") or []
    if state.data.get("step_count") or not messages:
        return None
    if messages[-1].role is ChatRole.USER:
        newest: ChatMessage = messages[-1]
        return newest
    conversation = Conversation(messages)
    return None if conversation.task_index is None else conversation.messages[conversation.task_index]


def _tag(**tags: Any) -> None:
    try:
        span = tracer.current_span()
        if span is not None:
            span.set_tags({f"{_TAG}{name}": value for name, value in tags.items()})
    except Exception:
        logger.exception("The tracer failed; the compaction goes on without it.")
