# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The compactors that the benchmarks compare, by name; made anew for every run, so that none remembers anything."""

from collections.abc import Callable
from typing import Any

import haystack.hooks.compaction as haystacks

from haystack_compaction import (
    HybridCompactor,
    ImportanceScoringCompactor,
    SelectivePruningCompactor,
    SlidingWindowCompactor,
    SummarizationCompactor,
    ToolResultPruningCompactor,
    TruncationCompactor,
)

#: Makes a compactor, given the chat generator that writes its summaries.
Make = Callable[[Any], Any]


def our_compactors(*, min_tokens: int = 200, summarizer_context_window: int | None = None) -> dict[str, Make]:
    """
    Those of this package.

    :param min_tokens: From what size on results are pruned.
    :param summarizer_context_window: The largest prompt of a summarizer.
    """
    return {
        "sliding_window": lambda model: SlidingWindowCompactor(),
        "selective_pruning": lambda model: SelectivePruningCompactor(),
        "tool_result_pruning": lambda model: ToolResultPruningCompactor(min_tokens=min_tokens),
        "truncation": lambda model: TruncationCompactor(),
        "importance_scoring": lambda model: ImportanceScoringCompactor(),
        "summarize_older, digest": lambda model: SummarizationCompactor(),
        "summarize_older, model": lambda model: SummarizationCompactor(
            model, summarizer_context_window=summarizer_context_window
        ),
        "hybrid": lambda model: HybridCompactor(),
        "hybrid, model": lambda model: HybridCompactor(chat_generator=model),
    }


def haystack_compactors(*, min_tokens: int = 200) -> dict[str, Make]:
    """
    Those of Haystack that need no store.

    :param min_tokens: From what size on results are pruned.
    """
    makers: dict[str, Make] = {
        "sliding window": lambda model: haystacks.SlidingWindowCompactor(),
        "tool result pruning": lambda model: haystacks.ToolResultPruningCompactor(min_tokens=min_tokens),
    }
    if hasattr(haystacks, "SummarizationCompactor"):
        # Haystack has it from 3.2 on.
        makers["summarization, model"] = lambda model: haystacks.SummarizationCompactor(model)
    return makers
