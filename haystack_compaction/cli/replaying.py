# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""A transcript fed through the hook, as the Agent that it came from would have done it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import Any

from haystack.components.agents.state.state import State
from haystack.components.agents.state.state_utils import replace_values
from haystack.dataclasses import ChatMessage, ChatRole
from haystack.tools.tool import Tool

from haystack_compaction.errors import CompactionError, ContextWindowError
from haystack_compaction.hook import CompactionHook
from haystack_compaction.report import CompactionReport
from haystack_compaction.tokens.calibration import Calibration, prompt_sizes
from haystack_compaction.tokens.ledger import TokenLedger

_SCHEMA = {
    "tools": {"type": list, "handler": replace_values},
    "step_count": {"type": int, "handler": replace_values},
    "context_tokens": {"type": int, "handler": replace_values},
    "token_usage": {"type": dict[str, Any], "handler": replace_values},
    "hook_context": {"type": dict[str, Any], "handler": replace_values},
}


@dataclass(frozen=True)
class Request:
    """
    One request for a reply of the model. Sizes are in tokens, schemas of tools included.

    :param step: The number of the request, from 1 on.
    :param message: The number of the reply in the transcript, from 1 on.
    :param uncompacted: Its size if nothing had ever been compacted.
    :param uncompacted_cached: What of that is as in the request before it, so that a provider's cache serves it.
    :param before: Its size before the hook ran.
    :param tokens: Its size as it is sent.
    :param cached: What of that is as in the request before it.
    :param report: What the hook did, where it did something.
    """

    step: int
    message: int
    uncompacted: int
    uncompacted_cached: int
    before: int
    tokens: int
    cached: int
    report: CompactionReport | None = None

    @property
    def freed(self) -> int:
        """What compaction took from the request, in tokens."""
        return self.before - self.tokens if self.report is not None and self.report.compacted else 0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "freed": self.freed}


class Replay:
    """
    Feeds a transcript through a hook. Iterating over it does the work, request by request.

    Each reply is taken as it is in the transcript, whatever the model would have said to a compacted conversation. A
    user's message after a finished answer starts a new run of the Agent, which goes on with the conversation as it is.

    Replies report the usage that a provider would: the size of the compacted request, in the provider's tokens where
    the transcript has its usage, and in those of the estimate otherwise.

    :param messages: The transcript.
    :param tools: The tools whose schemas are sent along.
    :param hook: The hook. Its `on_compaction` is taken.
    """

    def __init__(self, messages: Sequence[ChatMessage], tools: Sequence[Tool], hook: CompactionHook) -> None:
        self.messages = messages
        self.tools = list(tools)
        self.hook = hook
        #: Why the run ended before its time; None if it did not.
        self.error: str | None = None
        self._ledger = TokenLedger()
        self._tools_tokens = self._ledger.count([], self.tools)
        #: The provider's tokens for each token counted.
        self.ratio = self._reported_ratio()
        self._state: State | None = None
        self._live: list[ChatMessage] = []
        self._sent: list[ChatMessage] = []
        # With the reply itself, whose identity must not be taken by another message once it is gone.
        self._original: dict[int, tuple[ChatMessage, ChatMessage]] = {}
        self._reports: list[CompactionReport] = []
        hook.on_compaction = self._reports.append

    def __len__(self) -> int:
        return sum(message.role is ChatRole.ASSISTANT for message in self.messages)

    def __iter__(self) -> Iterator[Request]:
        step, uncompacted, uncompacted_before = 0, 0, 0
        for number, message in enumerate(self.messages, 1):
            if message.role is ChatRole.ASSISTANT:
                step += 1
                cached = self._of_request(uncompacted_before) if step > 1 else 0
                try:
                    yield self._request(step, number, self._of_request(uncompacted), cached)
                except (CompactionError, ContextWindowError) as error:
                    self.error = f"request {step}: {error}"
                    return
                uncompacted_before = uncompacted
                self._reply(message)
            else:
                self._hear(message)
            uncompacted += self._ledger.count([message])

    @property
    def final(self) -> list[ChatMessage]:
        """The conversation at the end of what was replayed, with the messages of the transcript in it."""
        return [self._original.get(id(message), (message, message))[1] for message in self._live]

    def _request(self, step: int, number: int, uncompacted: int, uncompacted_cached: int) -> Request:
        """Let the hook work, right before the reply of that number."""
        if self._state is None:
            self._state = State(_SCHEMA)
            self._state.set("messages", self._live)
            self._state.set("tools", self.tools)
            self._state.set("step_count", 0)
            self._state.set("context_tokens", 0)
        before = self._live
        self.hook.run(self._state)
        self._live = self._state.data["messages"]
        shared = _common_beginning(self._sent, self._live)
        self._sent = self._live
        return Request(
            step=step,
            message=number,
            uncompacted=uncompacted,
            uncompacted_cached=uncompacted_cached,
            before=self._size(before),
            tokens=self._size(self._live),
            cached=self._size(self._live[:shared]) if step > 1 else 0,
            report=self._reports.pop() if self._reports else None,
        )

    def _reply(self, message: ChatMessage) -> None:
        """Take the transcript's reply, with the usage that it would have had."""
        assert self._state is not None
        sizes = self._size(self._live), round(self.ratio * self._ledger.count([message]))
        usage = {"prompt_tokens": sizes[0], "completion_tokens": sizes[1], "total_tokens": sum(sizes)}
        reply = replace(message, _meta={**message.meta, "usage": usage})
        self._original[id(reply)] = (reply, message)
        self._state.set("step_count", self._state.data["step_count"] + 1)
        self._state.set("context_tokens", usage["total_tokens"])
        self._add(reply)

    def _hear(self, message: ChatMessage) -> None:
        """Take a message that is no reply."""
        newest = self._live[-1] if self._live else None
        has_ended = newest is not None and newest.role is ChatRole.ASSISTANT and not newest.tool_calls
        if message.role is ChatRole.USER and has_ended:
            self._state = None
        self._add(message)

    def _add(self, message: ChatMessage) -> None:
        if self._state is None:
            self._live = [*self._live, message]
        else:
            self._state.set("messages", [message])
            self._live = self._state.data["messages"]

    def _size(self, messages: Sequence[ChatMessage]) -> int:
        return self._of_request(self._ledger.count(messages))

    def _of_request(self, counted: int) -> int:
        return round(self.ratio * (counted + self._tools_tokens))

    def _reported_ratio(self) -> float:
        """What the usage in the transcript says about the provider's tokens."""
        calibration = Calibration()
        counted = self._tools_tokens
        for message in self.messages:
            usage = message.meta.get("usage") if message.role is ChatRole.ASSISTANT else None
            if isinstance(usage, Mapping) and (sizes := prompt_sizes(usage)):
                # The window of the model that was used is not known; any is credible.
                calibration = calibration.learned(sizes, counted=counted, context_window=0)
            counted += self._ledger.count([message])
        return calibration.ratio or 1.0


@dataclass(frozen=True)
class Prices:
    """
    What input costs.

    :param cached: The price of a token that the provider's cache serves, as a share of one that it does not.
    :param written: The price of a token that is new in a request and written to the cache, as a share likewise.
    """

    cached: float = 0.1
    written: float = 1.0


@dataclass(frozen=True)
class Bill:
    """
    The input of a whole run, in tokens at full price.

    :param without_cache: Where every token of every request is paid in full.
    :param with_cache: Where what a request has in common with the one before it comes from the cache.
    """

    without_cache: float
    with_cache: float


def bill_without_compaction(requests: Sequence[Request], prices: Prices) -> Bill:
    """
    Return what the requests would have cost if nothing had been compacted, and every one of them been accepted.

    :param requests: The requests.
    :param prices: The prices.
    :returns: The bill.
    """
    return _bill([(request.uncompacted, request.uncompacted_cached) for request in requests], prices)


def bill_with_compaction(requests: Sequence[Request], prices: Prices) -> Bill:
    """
    Return what the requests cost as they were sent, calls of a summarizer included.

    :param requests: The requests.
    :param prices: The prices.
    :returns: The bill.
    """
    bill = _bill([(request.tokens, request.cached) for request in requests], prices)
    prompts = sum(
        max(prompt_sizes(request.report.llm_usage), default=0) for request in requests if request.report is not None
    )
    return Bill(bill.without_cache + prompts, bill.with_cache + prompts)


def _bill(sizes: Sequence[tuple[int, int]], prices: Prices) -> Bill:
    return Bill(
        without_cache=sum(tokens for tokens, _ in sizes),
        with_cache=sum(prices.cached * cached + prices.written * (tokens - cached) for tokens, cached in sizes),
    )


def _common_beginning(before: Sequence[ChatMessage], after: Sequence[ChatMessage]) -> int:
    """How many messages two requests begin with in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(before, after, strict=False)))
