# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""A conversation that providers accept, whatever came in."""

from collections.abc import Sequence
from difflib import SequenceMatcher

from haystack.dataclasses import ChatMessage

from haystack_compaction.conversation.blank_texts import fill_blank_texts, has_blank_texts
from haystack_compaction.conversation.pairing import pairs_are_intact, repair_tool_pairs


def repaired(messages: Sequence[ChatMessage], *, keep_pending: bool = True) -> list[ChatMessage]:
    """
    Put tool results where their calls are and blank texts out of the way.

    :param messages: The conversation, oldest to newest. It is left as it is.
    :param keep_pending: See `repair_tool_pairs`.
    :returns: A new list. Messages that needed no repair are the same objects.
    """
    paired = repair_tool_pairs(messages, keep_pending=keep_pending)
    return fill_blank_texts(paired) if has_blank_texts(paired) else paired


def is_valid(messages: Sequence[ChatMessage], *, keep_pending: bool = True) -> bool:
    """Whether `repaired` would leave the conversation as it is."""
    return pairs_are_intact(messages, keep_pending=keep_pending) and not has_blank_texts(messages)


def repaired_messages(before: Sequence[ChatMessage], after: Sequence[ChatMessage]) -> int:
    """
    Return how many messages a repair has put in, taken out, moved or changed.

    :param before: The conversation as it came in.
    :param after: The conversation as it was repaired.
    :returns: The number of messages.
    """
    places = SequenceMatcher(None, list(map(id, before)), list(map(id, after)), autojunk=False).get_opcodes()
    return sum(
        max(end - start, new_end - new_start) for tag, start, end, new_start, new_end in places if tag != "equal"
    )
