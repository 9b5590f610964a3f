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

from haystack_compaction.checks import given, require_method
from haystack_compaction.compaction_pass import (
    CompactionPass,
    Outcome,
    run_passes,
    run_passes_async,
)
from haystack_compaction.compactors.base import Compactor, CompactorOptions
from haystack_compaction.compactors.selective_pruning import SelectivePruningCompactor
from haystack_compaction.compactors.sliding_window import SlidingWindowCompactor
from haystack_compaction.compactors.summarization import SummarizationCompactor
from haystack_compaction.compactors.summary_draft import read, text_counter
from haystack_compaction.conversation.notes import is_omission_note, pin, summary_note, written_by
from haystack_compaction.conversation.repair import is_valid, repaired
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.conversation.tool_steps import older_tool_steps, tool_steps
from haystack_compaction.pass_context import current_pass
from haystack_compaction.salience.digest import digest_of, room_for_digest
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
        if compactors is not None and not isinstance(compactors, (list, tuple)):
            raise ValueError(f"`compactors` must be a list of compactors, got {compactors!r}.")
        for stage in compactors or ():
            require_method("compact", compactors=stage)
        require_method("run", **given(chat_generator=chat_generator))
        if compactors is not None and not compactors:
            raise ValueError("`compactors` must name at least one compactor, got an empty list. Leave it out for ours.")
        if compactors is not None and chat_generator is not None:
            raise ValueError("`chat_generator` is for the default stages; give it to the compactors of your list.")
        self.compactors = None if compactors is None else list(compactors)
        self.chat_generator = chat_generator
        self._stages = self._default_stages() if compactors is None else [_Stage(stage) for stage in compactors]
        # What one stage can tell, others need not leave.
        self.compact_to = min(getattr(stage.compactor, "compact_to", Compactor.compact_to) for stage in self._stages)

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
        valid = messages if is_valid(messages) else repaired(messages)
        current = self._with_newest_turns_pinned(valid)
        # What a stage of ours removes without a word, the summary still tells. Others may have told it already.
        original = current if self.compactors is None else []
        originals = {id(marked): message for marked, message in zip(current, valid, strict=True)}
        conversation = Conversation(current)
        task = None if conversation.task_index is None else current[conversation.task_index]
        for stage in self._stages:
            if not ledger.exceeds(current, target_tokens):
                break
            target = target_tokens * stage.target_factor
            compaction = CompactionPass(
                stage.compactor,
                current,
                target,
                ledger,
                # Once calls are gone, a reminder can look like a task.
                task=task,
                pins=[self.pinned] if self.pinned else (),
                context_window=context.context_window,
                original=original,
            )
            current, report = yield compaction
            task = compaction.task
            context.record_stage(report)
        compacted = [originals.get(id(message), message) for message in current]
        return compacted if ledger.is_smaller(compacted, messages) else None

    def _with_newest_turns_pinned(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        """The messages, pinned where they belong to the newest turns, which no stage may touch."""
        if self.preserve_recent_turns == 0:
            return messages
        conversation = Conversation(messages)
        newest = conversation.turns[-self.preserve_recent_turns :]
        keep = {index for turn in newest for index in turn if index not in conversation.notes}
        return [pin(message) if index in keep else message for index, message in enumerate(messages)]


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
        earlier = {
            index
            for index in conversation.foldable_notes(omission_notes=False)
            if written_by(messages[index]) == self.strategy
        }
        rest = conversation
        if earlier:
            rest = Conversation([message for index, message in enumerate(messages) if index not in earlier])
        told = earlier | self._prunable(conversation)
        room = (ledger.count(messages) - target_tokens) // _PRUNED_TO_DIGEST
        room = min(room + ledger.count([messages[index] for index in earlier]), target_tokens // 2)
        staying = [message for index, message in enumerate(messages) if index not in told]
        is_too_much = ledger.exceeds(staying, target_tokens)
        if is_too_much and self._left_to_summarize(staying):
            # What is summarized next tells it all.
            return SelectivePruningCompactor.rewrite(self, rest, target_tokens - room, ledger)
        reading = read(conversation)
        count_text = text_counter(ledger)
        # Room that even a digest of all would leave unused is for results.
        room = room_for_digest(reading, told, budget_tokens=room, count_text=count_text)
        pruned = SelectivePruningCompactor.rewrite(self, rest, target_tokens - room, ledger)
        if pruned is None or (ledger.exceeds(pruned, target_tokens) and not is_too_much):
            return pruned
        kept = self._without_stale_turns(pruned, [messages[index] for index in reading.stale_messages])
        noted = _Noted(conversation, kept, earlier, removed_messages=len(pruned) - len(kept))
        budget = target_tokens - ledger.count(noted.messages(""))
        left = self._left_to_summarize(kept, in_task=noted.is_in_task)
        if is_too_much or 2 * budget < room <= ledger.count(left):
            # Too little for what there is to tell: the digest outgrows the target, and the rest is summarized with it.
            # Where the target cannot be met at all, it is no reason to tell nothing.
            budget = room
        digest = digest_of(reading, noted.removed, budget_tokens=budget, count_text=count_text)
        return noted.messages(digest) if digest else pruned

    def _prunable(self, conversation: Conversation) -> set[int]:
        """The indexes of the messages that may go, or most of which may."""
        steps = older_tool_steps(
            conversation,
            tool_steps(conversation),
            min_keep_steps=self.min_keep_steps,
            preserve_recent_turns=self.preserve_recent_turns,
        )
        return {index for step in steps for index in (step.assistant, *step.results)}

    def _without_stale_turns(self, pruned: list[ChatMessage], stale: list[ChatMessage]) -> list[ChatMessage]:
        """The pruned conversation without the turns in which something was said that was put right later."""
        if not stale:
            return pruned
        ids = set(map(id, stale))
        turns = Conversation(pruned).removable_turns(preserve_recent_turns=self.preserve_recent_turns)
        gone = {index for turn in turns if any(id(pruned[index]) in ids for index in turn) for index in turn}
        return [message for index, message in enumerate(pruned) if index not in gone]

    def _left_to_summarize(self, kept: list[ChatMessage], *, in_task: bool | None = None) -> list[ChatMessage]:
        """What a later stage can summarize together with a note in the task or in the history; None for either."""
        conversation = Conversation(kept)
        units: list[list[int]] = []
        if in_task is not False:
            units += conversation.removable_steps(min_keep_steps=self.min_keep_steps)
        if not in_task:
            units += conversation.removable_turns(preserve_recent_turns=self.preserve_recent_turns)
        return [kept[index] for unit in units for index in unit]


class _Noted:
    """
    A conversation after pruning, in which a digest takes the place of the note about what was removed.

    :param conversation: The conversation before.
    :param kept: The conversation after, with the note.
    :param earlier: The indexes of earlier digests, which this one takes the place of.
    :param removed_messages: How many messages went that the note does not count yet.
    """

    def __init__(
        self, conversation: Conversation, kept: list[ChatMessage], earlier: set[int], *, removed_messages: int
    ) -> None:
        self._kept = kept
        self._removed_messages = removed_messages
        before, left = conversation.messages, set(map(id, kept))
        ids = set(map(id, before))
        added = [message for message in kept if id(message) not in ids]
        note = next(message for message in added if is_omission_note(message))
        self._place = next(position for position, message in enumerate(kept) if message is note)
        self._folded = [note, *(before[index] for index in sorted(earlier))]
        #: Whether the note is about steps of the current task.
        self.is_in_task = conversation.task_index is not None and any(
            message is before[conversation.task_index] for message in kept[: self._place]
        )
        # A message that lost its calls keeps its text, which needs no telling.
        rewritten = {id(part) for message in added for part in message._content}
        #: The indexes of the messages that went.
        self.removed = [
            index
            for index, message in enumerate(before)
            if id(message) not in left and rewritten.isdisjoint(map(id, message._content))
        ]

    def messages(self, text: str) -> list[ChatMessage]:
        """The conversation with a text in place of the note."""
        note = summary_note(
            text,
            strategy=_PruningWithDigest.strategy,
            removed_messages=self._removed_messages,
            kept_messages=len(self._kept) - 1,
            scope="task" if self.is_in_task else "history",
            folded=self._folded,
        )
        return [*self._kept[: self._place], note, *self._kept[self._place + 1 :]]
