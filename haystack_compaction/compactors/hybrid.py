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

from haystack_compaction.compaction_pass import (
    CompactionPass,
    Outcome,
    changes_between,
    run_passes,
    run_passes_async,
)
from haystack_compaction.compactors.base import Compactor, CompactorOptions
from haystack_compaction.compactors.selective_pruning import SelectivePruningCompactor
from haystack_compaction.compactors.sliding_window import SlidingWindowCompactor
from haystack_compaction.compactors.summarization import SummarizationCompactor, read, text_counter
from haystack_compaction.conversation.notes import is_omission_note, pin, summary_note, written_by
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.pass_context import current_pass
from haystack_compaction.salience.digest import digest_of
from haystack_compaction.tokens.ledger import TokenLedger

if TYPE_CHECKING:
    from typing_extensions import Unpack

# A digest or a summary keeps hardly anything of a conversation more than so many times its size.
_SUMMARIZED_AT_MOST = 10

# For so many tokens that have to go, one more goes for a digest.
_PRUNED_TO_DIGEST = 3


@component
class HybridCompactor(Compactor):
    """
    Runs compactors in order, measures after each, and stops as soon as the target is met.

    By default the calls and results that matter least go first, then the window moves, and what is still too much is
    summarized. What pruning and window remove is not lost. Where pruning meets the target by itself, it takes a little
    more, so that its note can tell what the removed results said, and with them what turns said that were put right
    later. Where it does not, the summary tells all that was removed before.

    A stage that raises is logged and skipped. What a stage must not lose, the head, pinned messages, the
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
        Return what has to be warmed up and closed: the token counter, the archive and the stages.

        :returns: The resources.
        """
        return [self.token_counter, self.archive, *(stage.compactor for stage in self._stages)]

    def _default_stages(self) -> list["_Stage"]:
        options: CompactorOptions = {
            "preserve_recent_turns": self.preserve_recent_turns,
            "preserve_system_prompt": self.preserve_system_prompt,
        }
        return [
            _Stage(_PruningWithDigest(**options)),
            # Messages of which a summary would tell something are not for the window, which takes whole turns without a
            # look at them. Here it only sees to it that no model is asked to summarize far too much.
            _Stage(SlidingWindowCompactor(**options), target_factor=_SUMMARIZED_AT_MOST),
            _Stage(SummarizationCompactor(self.chat_generator, **options)),
        ]

    def _staged(
        self, messages: list[ChatMessage], target_tokens: int, ledger: TokenLedger
    ) -> Generator[CompactionPass, Outcome, list[ChatMessage] | None]:
        """The passes of the stages that are due, one after the other; is sent what each of them came to."""
        ledger, context = ledger.calibrated(messages), current_pass()
        current = [pin(message) if keep else message for message, keep in self._marked_to_keep(messages)]
        # What a stage of ours removes without a word, the summary still tells. Others may have told it already.
        original = current if self.compactors is None else []
        originals = {id(marked): message for marked, message in zip(current, messages, strict=True)}
        for stage in self._stages:
            if not ledger.exceeds(current, target_tokens):
                break
            target = target_tokens * stage.target_factor
            current, report = yield CompactionPass(
                stage.compactor,
                current,
                target,
                ledger,
                pins=[self.pinned] if self.pinned else (),
                context_window=context.context_window,
                original=original,
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


class _PruningWithDigest(SelectivePruningCompactor):
    """
    Selective pruning whose note tells what the removed results said, and turns which say what was put right later.

    Pruned results would be lost without a word where nothing is summarized after them.
    """

    def rewrite(self, conversation: Conversation, target_tokens: int, ledger: TokenLedger) -> list[ChatMessage] | None:
        """
        Remove as many pairs as make room for the rest and a digest of them.

        :param conversation: The conversation, valid and taken apart.
        :param target_tokens: The size to come under, in the ledger's tokens.
        :param ledger: What knows the size of each message.
        :returns: The messages to go on with, or None when no pair may be removed.
        """
        messages = conversation.messages
        # An earlier digest gives way: what it says competes with what is removed now.
        earlier = [
            messages[index]
            for index in conversation.foldable_notes(omission_notes=False)
            if written_by(messages[index]) == self.strategy
        ]
        given_up = set(map(id, earlier))
        rest = [message for message in messages if id(message) not in given_up]
        excess = ledger.count(messages) - target_tokens
        for_digest = min(excess // _PRUNED_TO_DIGEST + ledger.count(earlier), target_tokens // 2)
        pruned = SelectivePruningCompactor.rewrite(self, Conversation(rest), target_tokens - for_digest, ledger)
        if pruned is None or ledger.exceeds(pruned, target_tokens):
            # What is summarized next tells it all.
            return pruned
        return self._with_digest(conversation, pruned, earlier, target_tokens, for_digest, ledger)

    def _with_digest(
        self,
        conversation: Conversation,
        pruned: list[ChatMessage],
        earlier: list[ChatMessage],
        target_tokens: int,
        for_digest: int,
        ledger: TokenLedger,
    ) -> list[ChatMessage]:
        """The pruned conversation, with a digest of what it lost in place of the note."""
        messages = conversation.messages
        reading = read(conversation)
        stale = {id(messages[index]) for index in reading.stale_messages}
        turns = Conversation(pruned).removable_turns(preserve_recent_turns=self.preserve_recent_turns)
        gone = {index for turn in turns if any(id(pruned[index]) in stale for index in turn) for index in turn}
        kept = [message for index, message in enumerate(pruned) if index not in gone]
        changes = changes_between(messages, kept)
        removed, added = set(map(id, changes.removed)), set(map(id, changes.added))
        place = next(index for index, message in enumerate(kept) if id(message) in added and is_omission_note(message))
        task = conversation.task_index
        in_task = task is not None and any(message is messages[task] for message in kept[:place])

        def with_note(text: str) -> list[ChatMessage]:
            note = summary_note(
                text,
                strategy=self.strategy,
                removed_messages=len(gone),
                kept_messages=len(kept) - 1,
                scope="task" if in_task else "history",
                folded=[kept[place], *earlier],
            )
            return [*kept[:place], note, *kept[place + 1 :]]

        budget = target_tokens - ledger.count(with_note(""))
        if budget < for_digest <= ledger.count(self._left_to_summarize(Conversation(kept), in_task=in_task)):
            # Too little for what there is to tell: the digest outgrows the target, and the rest is summarized with it.
            budget = for_digest
        digest = digest_of(
            reading,
            [index for index, message in enumerate(messages) if id(message) in removed],
            budget_tokens=budget,
            count_text=text_counter(ledger),
        )
        return with_note(digest) if digest else pruned

    def _left_to_summarize(self, conversation: Conversation, *, in_task: bool) -> list[ChatMessage]:
        """What a later stage can summarize together with the note."""
        if in_task:
            units = conversation.removable_steps(min_keep_steps=self.min_keep_steps)
        else:
            units = conversation.removable_turns(preserve_recent_turns=self.preserve_recent_turns)
        return [conversation.messages[index] for unit in units for index in unit]
