# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Every option in one place, for code that reads its settings from somewhere."""

import inspect
from dataclasses import dataclass, field, fields
from typing import Any

from haystack.components.generators.chat.types import ChatGenerator
from haystack.core.serialization import component_from_dict, component_to_dict
from haystack.utils.deserialization import deserialize_component_inplace

from haystack_compaction.chat_generator import CompactingChatGenerator
from haystack_compaction.compactors.base import Compactor, CompactorOptions
from haystack_compaction.compactors.hybrid import HybridCompactor
from haystack_compaction.compactors.importance_scoring import ImportanceScoringCompactor
from haystack_compaction.compactors.selective_pruning import SelectivePruningCompactor
from haystack_compaction.compactors.sliding_window import SlidingWindowCompactor
from haystack_compaction.compactors.summarization import SummarizationCompactor
from haystack_compaction.compactors.tool_result_pruning import ToolResultPruningCompactor
from haystack_compaction.compactors.truncation import TruncationCompactor
from haystack_compaction.hook import CompactionHook
from haystack_compaction.models import window_size

_SAME_MODEL = "same"

#: The compactor behind each strategy's name.
STRATEGIES: dict[str, type[Compactor]] = {
    compactor.strategy: compactor
    for compactor in (
        SlidingWindowCompactor,
        SummarizationCompactor,
        SelectivePruningCompactor,
        ImportanceScoringCompactor,
        HybridCompactor,
        ToolResultPruningCompactor,
        TruncationCompactor,
    )
}


@dataclass(kw_only=True)
class CompactionConfig:
    """
    The settings of a compaction, and the factory for what they describe.

    ### Usage example

    ```python
    from haystack_compaction import CompactionConfig

    config = CompactionConfig.from_dict({"strategy": "sliding_window", "preserve_recent_turns": 2})
    compactor = config.build_compactor()
    hook = config.build_hook(context_window=128_000)
    ```

    :param strategy: The name of the strategy, or a compactor of your own, which then brings its own options.
    :param trigger_threshold_tokens: The size in tokens from which on a pipeline node compacts, at least 1.
    :param target_tokens: The size in tokens that it compacts down to, at least 1 and at most the trigger; None for 80 %
        of that.
    :param preserve_recent_turns: How many of the newest turns before the current task stay, at least 0.
    :param preserve_system_prompt: Whether the system messages that open the conversation stay.
    :param summarization_model: The model that writes summaries, for strategies that use one: "same" for the model of
        the chat generator at hand, or the name of another.
    :param strategy_options: Further options of the strategy by name, such as `{"min_keep_steps": 3}`. Not for a
        compactor of your own.
    :raises ValueError: If a setting is out of its range, or the strategy or one of its options is unknown.
    """

    strategy: str | Compactor = "sliding_window"
    trigger_threshold_tokens: int = 100_000
    target_tokens: int | None = None
    preserve_recent_turns: int = 10
    preserve_system_prompt: bool = True
    summarization_model: str = "same"
    strategy_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.strategy, str) and self.strategy not in STRATEGIES:
            raise ValueError(f"Unknown strategy '{self.strategy}'. Known strategies: {', '.join(STRATEGIES)}.")
        if not isinstance(self.strategy, (str, Compactor)):
            raise ValueError(f"`strategy` must be a name or a compactor, got {self.strategy!r}.")
        model = self.summarization_model
        if not isinstance(model, str) or not model:
            raise ValueError(f"`summarization_model` must be '{_SAME_MODEL}' or the name of a model, got {model!r}.")
        if isinstance(self.strategy, Compactor):
            if self.strategy_options:
                raise ValueError("`strategy_options` are for a strategy by name; a compactor brings its own options.")
            # The base class knows the ranges of the options that all strategies share, and their defaults.
            compactor = Compactor(**self._options)
        else:
            self._require_known_options(STRATEGIES[self.strategy])
            compactor = STRATEGIES[self.strategy](**self._options)
        self.target_tokens = compactor.target_tokens

    def build_compactor(self, chat_generator: ChatGenerator | None = None) -> Compactor:
        """
        Build the compactor that the settings describe.

        :param chat_generator: What writes summaries and judges importance, for strategies that can use a model; None
            for the ways of doing it without one. With a `summarization_model` a copy of it with that model is used.
        :returns: A new compactor, or the one that was given as the strategy.
        :raises ValueError: If a `summarization_model` is set and no generator is given that can be copied with it.
        """
        if isinstance(self.strategy, Compactor):
            return self.strategy
        compactor = STRATEGIES[self.strategy]
        if "chat_generator" not in inspect.signature(compactor.__init__).parameters:
            return compactor(**self._options)
        if self.summarization_model != _SAME_MODEL:
            chat_generator = _with_model(chat_generator, self.summarization_model)
        return compactor(**{"chat_generator": chat_generator, **self._options})

    def build_hook(self, context_window: int | str, chat_generator: ChatGenerator | None = None) -> CompactionHook:
        """
        Build the Agent hook that the settings describe.

        :param context_window: The model's context window in tokens, at least 1; or, with the extra `models`, the
            model's name.
        :param chat_generator: See `build_compactor`.
        :returns: A new hook that compacts at `trigger_threshold_tokens` down to `target_tokens`. Where the window is no
            larger than the trigger, at 70 % of it down to what suits the compactor.
        """
        return CompactionHook(self.build_compactor(chat_generator), **self._window(context_window))

    def build_chat_generator(self, chat_generator: ChatGenerator, context_window: int | str) -> CompactingChatGenerator:
        """
        Build the chat generator that the settings describe, around another one.

        :param chat_generator: The chat generator that is called. It also writes summaries and judges importance, for
            strategies that can use a model; with a `summarization_model` a copy of it with that model does.
        :param context_window: See `build_hook`.
        :returns: A new chat generator that compacts at the sizes at which `build_hook` does.
        """
        compactor = self.build_compactor(chat_generator)
        return CompactingChatGenerator(chat_generator, compactor, **self._window(context_window))

    def to_dict(self) -> dict[str, Any]:
        """
        Serialize the settings.

        :returns: A dictionary of plain values, with the dictionary of the compactor where that is one's own.
        """
        data = {setting.name: getattr(self, setting.name) for setting in fields(self)}
        if isinstance(self.strategy, Compactor):
            data["strategy"] = component_to_dict(obj=self.strategy, name="strategy")
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "CompactionConfig":
        """
        Deserialize the settings.

        :param data: A dictionary with any of the settings.
        :returns: The settings.
        :raises ValueError: If the dictionary has a key that is no setting.
        """
        unknown = sorted(set(data) - set(cls.__dataclass_fields__))
        if unknown:
            known = ", ".join(cls.__dataclass_fields__)
            raise ValueError(f"Unknown setting {', '.join(map(repr, unknown))}. Known settings: {known}.")
        data = dict(data)
        if isinstance(data.get("strategy"), dict):
            deserialize_component_inplace(data, key="strategy")
        return cls(**data)

    @property
    def _options(self) -> dict[str, Any]:
        return {
            "preserve_recent_turns": self.preserve_recent_turns,
            "preserve_system_prompt": self.preserve_system_prompt,
            "trigger_threshold_tokens": self.trigger_threshold_tokens,
            "target_tokens": self.target_tokens,
            **self.strategy_options,
        }

    def _window(self, context_window: int | str) -> dict[str, Any]:
        size = window_size(context_window)
        if self.trigger_threshold_tokens >= size:
            return {"context_window": size}
        return {
            "context_window": size,
            "compact_at": self.trigger_threshold_tokens / size,
            # In a window the target is below the trigger, if only by a token.
            "compact_to": min(self.target_tokens or size, self.trigger_threshold_tokens - 1) / size,
        }

    def _require_known_options(self, compactor: type[Compactor]) -> None:
        known = {*inspect.signature(compactor.__init__).parameters, *CompactorOptions.__annotations__}
        known -= {"self", "options", *self.__dataclass_fields__}
        unknown = sorted(set(self.strategy_options) - known)
        if unknown:
            raise ValueError(
                f"Unknown option {', '.join(map(repr, unknown))} of the strategy '{compactor.strategy}'. "
                f"Known options: {', '.join(sorted(known))}."
            )


def _with_model(chat_generator: ChatGenerator | None, model: str) -> ChatGenerator:
    """A copy of a chat generator that uses another model."""
    data = None if chat_generator is None else component_to_dict(obj=chat_generator, name="chat_generator")
    if data is None or "model" not in data["init_parameters"]:
        raise ValueError(
            f"`summarization_model='{model}'` needs a chat generator with a `model` to make a copy of, got "
            f"{type(chat_generator).__name__}. Give one to `chat_generator`, or set `summarization_model` to "
            f"'{_SAME_MODEL}'."
        )
    data["init_parameters"]["model"] = model
    copied: ChatGenerator = component_from_dict(cls=type(chat_generator), data=data, name="chat_generator")
    return copied
