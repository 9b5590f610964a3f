# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What a compactor can learn about the pass it runs in, and what it tells the pass about itself."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from haystack.dataclasses import ChatMessage

from haystack_compaction.report import CompactionReport
from haystack_compaction.usage import added_usage


@dataclass
class PassContext:
    """
    Travels beside the call of `compact`, whose signature belongs to Haystack.

    :param context_window: The model's context window in tokens, where the caller knows it.
    :param original: The conversation before earlier stages of a composed strategy took from it; empty where there were
        none. What they removed without a word, a later stage can still tell.
    :param stages: What each stage of a composed strategy did, as plain values.
    :param llm_calls: How often a model was called.
    :param llm_usage: The usage that these calls reported, summed up by key, as nested as they are.
    """

    context_window: int | None = None
    original: Sequence[ChatMessage] = ()
    stages: list[dict[str, Any]] = field(default_factory=list)
    llm_calls: int = 0
    llm_usage: dict[str, Any] = field(default_factory=dict)
    #: Whether to do without a model this time, because it failed not long ago.
    model_is_paused: bool = False
    #: How often a model failed, hung, or wrote what could not be used.
    model_failures: int = 0

    def record_llm_call(self, usage: object) -> None:
        """
        Count one call of a model.

        :param usage: What the reply's `meta` holds under `usage`. Numbers are added up, however deep they are.
        """
        self._record_llm_calls(1, usage if isinstance(usage, Mapping) else {})

    def record_stage(self, report: CompactionReport) -> None:
        """
        Add what one stage of a composed strategy did, its calls of a model included.

        :param report: The report of the stage.
        """
        self.stages.append(report.to_dict())
        self._record_llm_calls(report.llm_calls, report.llm_usage)

    def _record_llm_calls(self, number: int, usage: Mapping[str, Any]) -> None:
        self.llm_calls += number
        self.llm_usage = added_usage(self.llm_usage, usage)


_current: ContextVar[PassContext | None] = ContextVar("haystack_compaction_pass", default=None)


def current_pass() -> PassContext:
    """
    Return the context of the pass that is running.

    :returns: The context; an unused one when a compactor was called directly.
    """
    return _current.get() or PassContext()


@contextmanager
def entered(context: PassContext) -> Iterator[None]:
    """
    Make a context the current one, for this thread or task and what it starts.

    A pass inside of another one, a stage, leaves a model alone that the other one does, and tells it of failures.

    :param context: The context.
    """
    outer = current_pass()
    context.model_is_paused = context.model_is_paused or outer.model_is_paused
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)
        outer.model_failures += context.model_failures
