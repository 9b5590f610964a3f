# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Texts of the assistant that a removal brings right before the calls of another message."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence, Set
from itertools import pairwise, takewhile

from haystack.dataclasses import ChatMessage, ChatRole


def stranded_texts(messages: Sequence[ChatMessage], kept: Sequence[int]) -> set[int]:
    """
    Find the texts that come to stand right before a message with calls.

    Gemini refuses the calls then: they have to follow a user message or a result, see
    https://ai.google.dev/gemini-api/docs/function-calling. System messages are sent apart, and so count for nothing.

    :param messages: The conversation, with what is rewritten in it.
    :param kept: The indexes of the messages that stay, in order.
    :returns: The indexes of messages without calls that no user message and no result keeps apart from calls any more.
        What stood right before them all along is none of these.
    """
    stranded: set[int] = set()
    for place, (index, following) in enumerate(pairwise(kept)):
        if following > index + 1 and _leads_to_calls(messages, kept, place + 1):
            stranded.update(_texts_back_from(messages, kept, place))
    return stranded


def behind_stranded(stranded: Set[int], kept: Sequence[int], place: int) -> int:
    """
    Find the place for a note from the user that is to keep stranded texts apart from the calls that follow them.

    :param stranded: The indexes of the texts.
    :param kept: The indexes of the messages that stay, in order.
    :param place: The index of the message that the note would stand behind.
    :returns: The index of the last of the stranded texts that follow at once, or the given one if none does.
    """
    return max(takewhile(stranded.__contains__, kept[bisect_right(kept, place) :]), default=place)


def calls_nothing(message: ChatMessage) -> bool:
    """Whether the message is the assistant's and has no calls."""
    return message._role is ChatRole.ASSISTANT and not message.tool_calls


def _leads_to_calls(messages: Sequence[ChatMessage], kept: Sequence[int], place: int) -> bool:
    while place < len(kept) and messages[kept[place]]._role is ChatRole.SYSTEM:
        place += 1
    return place < len(kept) and bool(messages[kept[place]].tool_calls)


def _texts_back_from(messages: Sequence[ChatMessage], kept: Sequence[int], place: int) -> Iterator[int]:
    while place >= 0:
        message = messages[kept[place]]
        if calls_nothing(message):
            yield kept[place]
        elif message._role is not ChatRole.SYSTEM:
            return
        place -= 1
