# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""A conversation without some of its messages, and the note that stands for them."""

from collections.abc import Mapping

from haystack.dataclasses import ChatMessage

from haystack_compaction.conversation.notes import omission_note
from haystack_compaction.conversation.structure import Conversation


def with_omissions(
    conversation: Conversation,
    gone: set[int],
    *,
    template: str | None,
    strategy: str,
    rewritten: Mapping[int, ChatMessage] | None = None,
    removed_calls: Mapping[str, int] | None = None,
) -> list[ChatMessage]:
    """
    Leave messages out, and put a note where they were.

    The note stands after the head when all of them were part of the history, and after the current task's user message
    otherwise. Earlier omission notes give way to it, and so do summaries that are among the messages to leave out.

    :param conversation: The conversation. It is left as it is.
    :param gone: The indexes of the messages to leave out.
    :param template: The text of the note, see `omission_note`; None leaves them out silently.
    :param strategy: The name of the strategy, for the note's `meta`.
    :param rewritten: Messages that stand in the place of others, by index.
    :param removed_calls: How many calls of each tool the note names as removed, by the name of the tool.
    :returns: The messages to go on with.
    """
    notes = set(conversation.notes)
    folded: set[int] = set()
    if template is not None:
        folded = gone & notes | set(conversation.foldable_notes(omission_notes=True))
    messages = [
        (index, (rewritten or {}).get(index, message))
        for index, message in enumerate(conversation.messages)
        if index not in gone and index not in folded
    ]
    if template is None:
        return [message for _, message in messages]
    dropped = gone - notes
    note = omission_note(
        template,
        strategy=strategy,
        removed_messages=len(dropped),
        kept_messages=len(messages),
        removed_calls=removed_calls,
        folded=[conversation.messages[index] for index in sorted(folded)],
    )
    task = conversation.task_index
    place = task if task is not None and max(dropped, default=-1) > task else conversation.head_end - 1
    before = [message for index, message in messages if index <= place]
    return [*before, note, *(message for _, message in messages[len(before) :])]
