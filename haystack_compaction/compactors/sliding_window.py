# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Keeps the newest part of a conversation that fits, in whole turns and steps."""

from typing import TYPE_CHECKING

from haystack import component
from haystack.dataclasses import ChatMessage

from haystack_compaction.checks import given, require_at_least, require_texts
from haystack_compaction.compactors.base import Compactor, CompactorOptions
from haystack_compaction.compactors.removal import DEFAULT_OMISSION_NOTE, Removal
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.tokens.ledger import TokenLedger

if TYPE_CHECKING:
    from typing_extensions import Unpack


@component
class SlidingWindowCompactor(Compactor):
    """
    Keeps the newest part of the conversation that fits the target, in whole turns and steps, and leaves a note.

    What stays whatever the target: the system messages at the start, the current task's user message, its newest steps,
    pinned messages, summaries of other compactors. Before the task, whole turns go, oldest first, until the rest fits.
    Only when the task alone is too big do its steps go, oldest first. Costs no call of a model; what is removed is lost
    to the model, so it suits tasks that do not depend on their beginning.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction import SlidingWindowCompactor

    messages = [ChatMessage.from_system("Be brief.")]
    for day in range(50):
        messages.append(ChatMessage.from_user(f"What happened on day {day}?"))
        messages.append(ChatMessage.from_assistant("Nothing worth a long story, but here is one anyway. " * 5))

    result = SlidingWindowCompactor().run(messages=messages, target_tokens=500)
    assert result["report"].tokens_after <= 500
    print(result["messages"][1].text)
    ```

    :param min_keep_steps: How many of the current task's newest completed steps stay even when they exceed the target,
        at least 0. A step is an assistant message with the results of its calls.
    :param omission_note: The text of the note, from the user's role, that stands where messages were removed.
        `{num_removed}` is replaced by their number, those of earlier passes included. None removes silently.
    :param options: The options that every compactor takes, see `Compactor`.
    :raises ValueError: If an option is out of its range.
    """

    strategy = "sliding_window"

    def __init__(
        self,
        *,
        min_keep_steps: int = 1,
        omission_note: str | None = DEFAULT_OMISSION_NOTE,
        **options: "Unpack[CompactorOptions]",
    ) -> None:
        Compactor.__init__(self, **options)
        require_at_least(0, min_keep_steps=min_keep_steps)
        require_texts(**given(omission_note=omission_note))
        self.min_keep_steps = min_keep_steps
        self.omission_note = omission_note

    def rewrite(self, conversation: Conversation, target_tokens: int, ledger: TokenLedger) -> list[ChatMessage] | None:
        """
        Remove the fewest of the oldest turns, then steps, that bring the conversation under the target.

        :param conversation: The conversation, valid and taken apart.
        :param target_tokens: The size to come under, in the ledger's tokens.
        :param ledger: What knows the size of each message.
        :returns: The messages to go on with, or None when nothing may be removed.
        """
        removal = Removal(conversation, self.omission_note, self.strategy)
        units = removal.with_head_and_summaries(
            [
                *conversation.removable_turns(preserve_recent_turns=self.preserve_recent_turns),
                *conversation.removable_steps(min_keep_steps=self.min_keep_steps),
            ],
            preserve_system_prompt=self.preserve_system_prompt,
        )
        return removal.without(removal.fewest(units, target_tokens, ledger)) if units else None
