# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Every option in one place, for code that reads its settings from somewhere."""

from dataclasses import asdict, dataclass
from typing import Any

from haystack_compaction.compactors.base import Compactor
from haystack_compaction.compactors.sliding_window import SlidingWindowCompactor
from haystack_compaction.hook import CompactionHook

#: The compactor behind each strategy's name.
STRATEGIES: dict[str, type[Compactor]] = {compactor.strategy: compactor for compactor in (SlidingWindowCompactor,)}


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

    :param strategy: The name of the strategy.
    :param trigger_threshold_tokens: The size in tokens from which on a pipeline node compacts, at least 1.
    :param target_tokens: The size in tokens that it compacts down to, at least 1 and at most the trigger.
    :param preserve_recent_turns: How many of the newest turns before the current task stay, at least 0.
    :param preserve_system_prompt: Whether the system messages that open the conversation stay.
    :param summarization_model: The model that writes summaries, for strategies that use one: "same" for the model of
        the chat generator at hand, or the name of another.
    :raises ValueError: If a setting is out of its range, or the strategy is unknown.
    """

    strategy: str = "sliding_window"
    trigger_threshold_tokens: int = 100_000
    target_tokens: int = 80_000
    preserve_recent_turns: int = 10
    preserve_system_prompt: bool = True
    summarization_model: str = "same"

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ValueError(f"Unknown strategy '{self.strategy}'. Known strategies: {', '.join(STRATEGIES)}.")
        if not self.summarization_model:
            raise ValueError("`summarization_model` must be 'same' or the name of a model, got an empty text.")
        self.build_compactor()

    def build_compactor(self) -> Compactor:
        """
        Build the compactor that the settings describe.

        :returns: A new compactor.
        """
        return STRATEGIES[self.strategy](
            preserve_recent_turns=self.preserve_recent_turns,
            preserve_system_prompt=self.preserve_system_prompt,
            trigger_threshold_tokens=self.trigger_threshold_tokens,
            target_tokens=self.target_tokens,
        )

    def build_hook(self, context_window: int) -> CompactionHook:
        """
        Build the Agent hook that the settings describe.

        :param context_window: The model's context window in tokens, at least 1.
        :returns: A new hook that compacts at `trigger_threshold_tokens` down to `target_tokens`. Where the window is no
            larger than the trigger, at 70 % of it down to 40 %.
        """
        if self.trigger_threshold_tokens >= context_window:
            return CompactionHook(self.build_compactor(), context_window=context_window)
        return CompactionHook(
            self.build_compactor(),
            context_window=context_window,
            compact_at=self.trigger_threshold_tokens / context_window,
            # A hook's target is below its trigger, if only by a token.
            compact_to=min(self.target_tokens, self.trigger_threshold_tokens - 1) / context_window,
        )

    def to_dict(self) -> dict[str, Any]:
        """
        Serialize the settings.

        :returns: A dictionary of plain values.
        """
        return asdict(self)

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
        return cls(**data)
