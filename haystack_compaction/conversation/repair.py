# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""A conversation that providers accept, whatever came in."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

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
    places = {id(message): place for place, message in enumerate(before)}
    stayed = _longest_increasing(
        [(new, places[id(message)]) for new, message in enumerate(after) if id(message) in places]
    )
    edges = [(-1, -1), *stayed, (len(after), len(before))]
    return sum(max(new - new_before, old - old_before) - 1 for (new_before, old_before), (new, old) in pairwise(edges))


def _longest_increasing(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """
    The longest run of pairs, in order, whose second numbers increase.

    C. Schensted, Longest increasing and decreasing subsequences, 1961.
    """
    ends: list[int] = []
    newest: list[int] = []
    before: list[int | None] = []
    for number, (_, place) in enumerate(pairs):
        length = bisect_left(ends, place)
        before.append(newest[length - 1] if length else None)
        ends[length : length + 1], newest[length : length + 1] = [place], [number]
    run: list[tuple[int, int]] = []
    last = newest[-1] if newest else None
    while last is not None:
        run.append(pairs[last])
        last = before[last]
    return run[::-1]
