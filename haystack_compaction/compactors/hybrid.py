# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Several compactors in a row, gentlest first, until the target is met."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from haystack import component
from haystack.components.generators.chat.types import ChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.hooks.compaction.types import Compactor as CompactorProtocol
from haystack.token_counters import TokenCounter

from haystack_compaction.compaction_pass import CompactionPass, Outcome, run_passes, run_passes_async
from haystack_compaction.compactors.base import Compactor, CompactorOptions
from haystack_compaction.compactors.selective_pruning import SelectivePruningCompactor
from haystack_compaction.compactors.sliding_window import SlidingWindowCompactor
from haystack_compaction.compactors.summarization import SummarizationCompactor
from haystack_compaction.conversation.notes import pin
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.pass_context import current_pass
from haystack_compaction.tokens.ledger import TokenLedger

if TYPE_CHECKING:
    from typing_extensions import Unpack

# A digest or a summary keeps hardly anything of a conversation more than so many times its size.
_SUMMARIZED_AT_MOST = 10


@component
class HybridCompactor(Compactor):
    """
    Runs compactors in order, measures after each, and stops as soon as the target is met.

    By default the calls and results that matter least go first, then the window moves, and what is still too much is
    summarized. A stage that raises is logged and skipped. What a stage must not lose, the head, pinned messages, the
    current task and the summaries of earlier stages, is put back if it loses it, so any compactor can be a stage,
    Haystack's and third-party ones included. The report's `stages` tell what each one did.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import HybridCompactor, SlidingWindowCompactor, ToolResultPruningCompactor

    compactor = HybridCompactor([ToolResultPruningCompactor(), SlidingWindowCompactor()])
    messages = [ChatMessage.from_user("What is a tide? " * 50), ChatMessage.from_assistant("Water, moving. " * 50)]
    result = compactor.run(messages=[*messages, ChatMessage.from_user("Thanks!")], target_tokens=60)
    print([stage["strategy"] for stage in result["report"].stages])
    ```

    :param compactors: The stages, in order. None for selective pruning, a sliding window and summarizing.
    :param chat_generator: What writes the summaries of the default stages; None for a digest written without a model.
    :param options: The options that every compactor takes, see `Compactor`. The two that preserve messages hold for all
        stages.
    :raises ValueError: If an option is out of its range, if the list is empty, or if a generator comes with a list of
        one's own, which would leave it unused.
    """

    strategy = "hybrid"

    def __init__(
        self,
        compactors: Sequence[CompactorProtocol] | None = None,
        *,
        chat_generator: ChatGenerator | None = None,
        **options: "Unpack[CompactorOptions]",
    ) -> None:
        Compactor.__init__(self, **options)
        if compactors is not None and not compactors:
            raise ValueError("`compactors` must name at least one compactor, got an empty list. Leave it out for ours.")
        if compactors is not None and chat_generator is not None:
            raise ValueError("`chat_generator` is for the default stages; give it to the compactors of your list.")
        self.compactors = None if compactors is None else list(compactors)
        self.chat_generator = chat_generator
        self._stages = self._default_stages() if compactors is None else [_Stage(stage) for stage in compactors]

    def compact(
        self, messages: list[ChatMessage], target_tokens: int, token_counter: TokenCounter
    ) -> list[ChatMessage] | None:
        """
        Run the stages until the conversation fits.

        :param messages: The conversation, oldest to newest. It is left as it is.
        :param target_tokens: The size to come under, in tokens.
        :param token_counter: What measures the messages.
        :returns: A new list that is smaller by the counter, or None.
        """
        return run_passes(self._staged(messages, target_tokens, self._ledger_for(token_counter)))

    async def compact_async(
        self, messages: list[ChatMessage], target_tokens: int, token_counter: TokenCounter
    ) -> list[ChatMessage] | None:
        """
        Do what `compact` does, without blocking the event loop.

        :param messages: The conversation, oldest to newest. It is left as it is.
        :param target_tokens: The size to come under, in tokens.
        :param token_counter: What measures the messages.
        :returns: A new list that is smaller by the counter, or None.
        """
        return await run_passes_async(self._staged(messages, target_tokens, self._ledger_for(token_counter)))

    def resources(self) -> list[object]:
        """
        Return what has to be warmed up and closed: the token counter and the stages.

        :returns: The resources.
        """
        return [self.token_counter, *(stage.compactor for stage in self._stages)]

    def _default_stages(self) -> list["_Stage"]:
        options: CompactorOptions = {
            "preserve_recent_turns": self.preserve_recent_turns,
            "preserve_system_prompt": self.preserve_system_prompt,
        }
        return [
            _Stage(SelectivePruningCompactor(**options)),
            # What a window drops no summary can tell any more. Here it only takes what is too much for one.
            _Stage(SlidingWindowCompactor(**options), target_factor=_SUMMARIZED_AT_MOST),
            _Stage(SummarizationCompactor(self.chat_generator, **options)),
        ]

    def _staged(
        self, messages: list[ChatMessage], target_tokens: int, ledger: TokenLedger
    ) -> Generator[CompactionPass, Outcome, list[ChatMessage] | None]:
        """The passes of the stages that are due, one after the other; is sent what each of them came to."""
        context = current_pass()
        current = [pin(message) if keep else message for message, keep in self._marked_to_keep(messages)]
        originals = {id(marked): message for marked, message in zip(current, messages, strict=True)}
        for stage in self._stages:
            if not ledger.exceeds(current, target_tokens):
                break
            target = target_tokens * stage.target_factor
            current, report = yield CompactionPass(
                stage.compactor, current, target, ledger, context_window=context.context_window
            )
            context.record_stage(report)
        compacted = [originals.get(id(message), message) for message in current]
        return compacted if ledger.is_smaller(compacted, messages) else None

    def _marked_to_keep(self, messages: list[ChatMessage]) -> list[tuple[ChatMessage, bool]]:
        """Each message, and whether it belongs to the newest turns, which no stage may touch."""
        if self.preserve_recent_turns == 0:
            return [(message, False) for message in messages]
        conversation = Conversation(messages)
        newest = conversation.turns[-self.preserve_recent_turns :]
        keep = {index for turn in newest for index in turn if index not in conversation.notes}
        return [(message, index in keep) for index, message in enumerate(messages)]


@dataclass(frozen=True)
class _Stage:
    compactor: CompactorProtocol
    #: How many times the target this stage aims for.
    target_factor: int = 1
