# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""When to compact, inside an Agent."""

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from haystack import logging
from haystack.components.agents.state.state import State
from haystack.components.agents.state.state_utils import replace_values
from haystack.core.serialization import component_to_dict, default_from_dict, default_to_dict
from haystack.dataclasses import ChatMessage, ChatRole
from haystack.hooks.compaction.types import Compactor as CompactorProtocol
from haystack.token_counters import TokenCounter
from haystack.tracing.tracer import tracer
from haystack.utils.deserialization import deserialize_component_inplace

from haystack_compaction import lifecycle
from haystack_compaction.compaction_pass import CompactionPass, strategy_name
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.report import CompactionReport
from haystack_compaction.tokens.calibration import RequestSize, usage_ratio
from haystack_compaction.tokens.estimate import EstimateTokenCounter
from haystack_compaction.tokens.ledger import TokenLedger

logger = logging.getLogger(__name__)

_TAG = "haystack.agent.hook.compaction."


class CompactionHook:
    """
    Compacts an Agent's conversation once it fills too much of the model's context window.

    Before every call of the chat generator the hook estimates the size of the whole request, messages and tool schemas,
    and corrects its estimate by the usage that the provider reported. At `compact_at` of the window it hands the
    conversation to the compactor, to bring it down to `compact_to`. Nothing in it can end a run: what fails is logged,
    and the conversation stays as it is.

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
    :param context_window: The model's context window in tokens, at least 1.
    :param compact_at: The share of the window at which compaction starts, greater than `compact_to` and at most 1.
    :param compact_to: The share of the window that compaction aims for, greater than 0. Lower means less often, but
        more at a time.
    :param token_counter: What measures messages; None for `EstimateTokenCounter`.
    :raises ValueError: If a setting is out of its range.
    """

    #: Read by the Agent, which refuses the hook anywhere else.
    allowed_hook_points = ("before_llm",)

    def __init__(
        self,
        compactor: CompactorProtocol,
        *,
        context_window: int,
        compact_at: float = 0.7,
        compact_to: float = 0.4,
        token_counter: TokenCounter | None = None,
    ) -> None:
        if context_window < 1:
            raise ValueError(f"`context_window` must be at least 1 token, got {context_window}.")
        if not 0 < compact_to < compact_at <= 1:
            raise ValueError(
                f"`compact_to` and `compact_at` must satisfy 0 < compact_to < compact_at <= 1, got "
                f"compact_to={compact_to} and compact_at={compact_at}. A conversation that is compacted to its own "
                f"trigger would be compacted again at every step."
            )
        self.compactor = compactor
        self.context_window = context_window
        self.compact_at = compact_at
        self.compact_to = compact_to
        self.token_counter = token_counter or EstimateTokenCounter()
        self._ledger = TokenLedger(self.token_counter)
        self._runs: weakref.WeakKeyDictionary[State, _Run] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def run(self, state: State) -> None:
        """
        Compact the conversation in the Agent's state if it is due.

        :param state: The Agent's live state; `messages` and `context_tokens` are rewritten in it.
        """
        try:
            compaction = self._due_pass(state)
            if compaction is not None:
                self._apply(state, compaction, *compaction.run())
        except Exception:
            logger.exception("The compaction hook failed; the conversation stays as it is.")

    async def run_async(self, state: State) -> None:
        """
        Do what `run` does, without blocking the event loop.

        :param state: The Agent's live state; `messages` and `context_tokens` are rewritten in it.
        """
        try:
            compaction = self._due_pass(state)
            if compaction is not None:
                self._apply(state, compaction, *await compaction.run_async())
        except Exception:
            logger.exception("The compaction hook failed; the conversation stays as it is.")

    def warm_up(self) -> None:
        """Warm up the token counter and the compactor, which may hold a chat generator."""
        lifecycle.warm_up([self.token_counter, self.compactor])

    async def warm_up_async(self) -> None:
        """Warm up the token counter and the compactor on the serving event loop."""
        await lifecycle.warm_up_async([self.token_counter, self.compactor])

    def close(self) -> None:
        """Release the resources of the token counter and the compactor."""
        lifecycle.close([self.token_counter, self.compactor])

    async def close_async(self) -> None:
        """Release the resources of the token counter and the compactor, those of the event loop included."""
        await lifecycle.close_async([self.token_counter, self.compactor])

    def to_dict(self) -> dict[str, Any]:
        """
        Serialize the hook with its compactor and token counter.

        :returns: A dictionary that `from_dict` takes.
        """
        return default_to_dict(
            self,
            compactor=component_to_dict(obj=self.compactor, name="compactor"),
            context_window=self.context_window,
            compact_at=self.compact_at,
            compact_to=self.compact_to,
            token_counter=component_to_dict(obj=self.token_counter, name="token_counter"),
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "CompactionHook":
        """
        Deserialize the hook with its compactor and token counter.

        :param data: What `to_dict` returned.
        :returns: The hook.
        """
        options = data.get("init_parameters", {})
        for key in ("compactor", "token_counter"):
            if options.get(key) is not None:
                deserialize_component_inplace(options, key=key)
        hook: CompactionHook = default_from_dict(cls, data)
        return hook

    def _due_pass(self, state: State) -> CompactionPass | None:
        """The pass to run now, or None while there is room."""
        messages = state.data.get("messages") or []
        run = self._run_of(state)
        tools_tokens = self._ledger.count([], state.data.get("tools"))
        run.learn(state.data.get("context_tokens") or 0, messages, tools_tokens, self._ledger)
        request = RequestSize(ratio=run.ratio, tools_tokens=tools_tokens)
        trigger = self.context_window * self.compact_at
        tokens = request.of(run.count(messages, self._ledger))
        if self._ledger.whole_only and run.reported == 0 and tokens >= trigger / 2:
            tokens = request.of(self._ledger.measure(messages))
        due = tokens >= trigger
        _tag(estimated_context_tokens=tokens, triggered=due, strategy=strategy_name(self.compactor))
        if not due:
            return None
        target_tokens = int(self.context_window * self.compact_to)
        _tag(target_tokens=target_tokens)
        return CompactionPass(
            self.compactor,
            messages,
            target_tokens,
            self._ledger,
            request=request,
            task=run.task,
            context_window=self.context_window,
        )

    def _apply(
        self, state: State, compaction: CompactionPass, messages: list[ChatMessage], report: CompactionReport
    ) -> None:
        """Write the outcome of a pass into the state, the log and the trace."""
        _tag(compacted=report.compacted, context_tokens=report.tokens_after)
        if not report.compacted:
            return
        state.set("messages", messages, handler_override=replace_values)
        run = self._run_of(state)
        if run.reported:
            # The Agent's own meaning of this key: everything through the last assistant message.
            counted = messages[: _last_assistant(messages) + 1] or messages
            run.reported = compaction.request.of(self._ledger.count(counted))
            state.set("context_tokens", run.reported)
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

    def _run_of(self, state: State) -> "_Run":
        with self._lock:
            run = self._runs.get(state)
            if run is None:
                run = self._runs[state] = _Run(task=_task_at_start(state))
            return run


@dataclass
class _Run:
    """What the hook knows about one run of an Agent."""

    #: The user message that the run was started with; None where the run was joined later.
    task: ChatMessage | None
    #: The provider's tokens for each token counted.
    ratio: float = 1.0
    #: The `context_tokens` that the ratio was learned from, or that were written after a compaction.
    reported: int = 0
    #: The messages of the newest step, and their size.
    _counted: tuple[list[ChatMessage], int] = field(default_factory=lambda: ([], 0))

    def count(self, messages: Sequence[ChatMessage], ledger: TokenLedger) -> int:
        """The size of the conversation. Mostly only its end is new, so only that is looked at."""
        known, total = self._counted
        # Lists of the same objects compare at the speed of memory.
        if ledger.whole_only or messages[: len(known)] != known:
            total = ledger.count(messages)
        else:
            total += ledger.count(messages[len(known) :])
        self._counted = (list(messages), total)
        return total

    def learn(
        self, context_tokens: int, messages: Sequence[ChatMessage], tools_tokens: int, ledger: TokenLedger
    ) -> None:
        """Learn the ratio from the usage of the newest reply. A number that was seen before is no news: it is stale."""
        if context_tokens in (0, self.reported):
            return
        self.reported = context_tokens
        counted = messages[: _last_assistant(messages) + 1] or messages
        self.ratio = usage_ratio(reported=context_tokens, counted=ledger.count(counted) + tools_tokens)


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


def _last_assistant(messages: Sequence[ChatMessage]) -> int:
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role is ChatRole.ASSISTANT:
            return index
    return -1


def _tag(**tags: Any) -> None:
    span = tracer.current_span()
    if span is not None:
        span.set_tags({f"{_TAG}{name}": value for name, value in tags.items()})
