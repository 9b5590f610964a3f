# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Context compaction for Haystack: keeps Agent runs and chat pipelines inside the model's context window."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from haystack.core.serialization import allow_deserialization_module

if TYPE_CHECKING:
    from haystack_compaction.chat_generator import CompactingChatGenerator as CompactingChatGenerator
    from haystack_compaction.compactors.base import Compactor as Compactor
    from haystack_compaction.compactors.hybrid import HybridCompactor as HybridCompactor
    from haystack_compaction.compactors.importance_scoring import (
        ImportanceScoringCompactor as ImportanceScoringCompactor,
    )
    from haystack_compaction.compactors.selective_pruning import SelectivePruningCompactor as SelectivePruningCompactor
    from haystack_compaction.compactors.sliding_window import SlidingWindowCompactor as SlidingWindowCompactor
    from haystack_compaction.compactors.summarization import SummarizationCompactor as SummarizationCompactor
    from haystack_compaction.compactors.tool_result_pruning import (
        ToolResultPruningCompactor as ToolResultPruningCompactor,
    )
    from haystack_compaction.compactors.truncation import TruncationCompactor as TruncationCompactor
    from haystack_compaction.config import CompactionConfig as CompactionConfig
    from haystack_compaction.conversation.notes import pin as pin
    from haystack_compaction.conversation.pairing import repair_tool_pairs as repair_tool_pairs
    from haystack_compaction.conversation.pins import PinRules as PinRules
    from haystack_compaction.errors import CompactionError as CompactionError
    from haystack_compaction.errors import ContextWindowError as ContextWindowError
    from haystack_compaction.hook import CompactionHook as CompactionHook
    from haystack_compaction.report import CompactionReport as CompactionReport
    from haystack_compaction.tokens.estimate import EstimateTokenCounter as EstimateTokenCounter
    from haystack_compaction.tokens.tiktoken_counter import TiktokenCounter as TiktokenCounter

__version__ = "0.1.0"

# Each name is imported when it is first asked for, which keeps `import haystack_compaction` fast.
_MODULES = {
    "CompactingChatGenerator": "chat_generator",
    "CompactionConfig": "config",
    "CompactionError": "errors",
    "CompactionHook": "hook",
    "CompactionReport": "report",
    "Compactor": "compactors.base",
    "ContextWindowError": "errors",
    "EstimateTokenCounter": "tokens.estimate",
    "HybridCompactor": "compactors.hybrid",
    "ImportanceScoringCompactor": "compactors.importance_scoring",
    "PinRules": "conversation.pins",
    "SelectivePruningCompactor": "compactors.selective_pruning",
    "SlidingWindowCompactor": "compactors.sliding_window",
    "SummarizationCompactor": "compactors.summarization",
    "TiktokenCounter": "tokens.tiktoken_counter",
    "ToolResultPruningCompactor": "compactors.tool_result_pruning",
    "TruncationCompactor": "compactors.truncation",
    "pin": "conversation.notes",
    "repair_tool_pairs": "conversation.pairing",
}

__all__ = sorted(_MODULES)

# Pipelines may load our classes from YAML once somebody has imported this package.
allow_deserialization_module(__name__)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
