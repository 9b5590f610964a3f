# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What compaction leaves in the messages beside it, for templates that demand that user and assistant alternate."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from haystack.dataclasses import ChatMessage, ChatRole, TextContent

from haystack_compaction.conversation.notes import COMPACTION_META_KEY, is_note
from haystack_compaction.conversation.stranded import calls_nothing

# Not the key of the notes: the message is the user's, and no note.
MERGED_META_KEY = "merged_notes"


class NoteMerger:
    """
    Folds notes into the user messages beside them, and takes them out again. So with texts that lost their calls, and
    what the assistant says beside them.

    A message that holds others says in its `meta` what it was made of, so whoever gets it can take it apart. Whoever
    merged it gets the very messages back.
    """

    def __init__(self) -> None:
        self._merged: dict[tuple[int, ...], tuple[ChatMessage, list[ChatMessage]]] = {}

    def merged(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """
        Fold each note that stands beside another user message into that one, and texts that lost their calls alike.

        :param messages: The conversation, oldest to newest. It is left as it is.
        :returns: A new list. Messages with nothing of the kind beside them are the same objects, and the same parts
            make the same message again.
        """
        known, self._merged = self._merged, {}
        merged: list[ChatMessage] = []
        for speaker, beside in groupby(messages, key=_speaker):
            for parts in _groups(speaker, list(beside)):
                key = tuple(map(id, parts))
                if len(parts) > 1:
                    self._merged[key] = known.get(key) or (_one_of(parts), parts)
                merged.append(self._merged[key][0] if len(parts) > 1 else parts[0])
        return merged

    def split(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """
        Take everything out of the messages that it was folded into.

        :param messages: The conversation, oldest to newest. It is left as it is.
        :returns: A new list.
        """
        own = {id(message): parts for message, parts in self._merged.values()}
        return [part for message in messages for part in own.get(id(message)) or _parts_of(message)]


def _speaker(message: ChatMessage) -> ChatRole | None:
    """Who says it. None for what stays by itself: calls, results, what the system says."""
    return message.role if message.role is ChatRole.USER or calls_nothing(message) else None


def _groups(speaker: ChatRole | None, beside: list[ChatMessage]) -> list[list[ChatMessage]]:
    """Consecutive messages of one speaker, in groups that make one message each."""
    if speaker is ChatRole.USER:
        return _with_notes(beside)
    if speaker is ChatRole.ASSISTANT and any(map(_is_left, beside)):
        return [beside]
    return [[message] for message in beside]


def _is_left(message: ChatMessage) -> bool:
    """Whether the message is there, or as it is, because of a compaction."""
    return bool(message.meta) and COMPACTION_META_KEY in message.meta


def _with_notes(beside: list[ChatMessage]) -> list[list[ChatMessage]]:
    """Consecutive user messages in groups: each with the notes before it, the last one also with those after it."""
    groups: list[list[ChatMessage]] = []
    notes: list[ChatMessage] = []
    for message in beside:
        if is_note(message):
            notes.append(message)
        else:
            groups.append([*notes, message])
            notes = []
    if notes:
        groups[-1:] = [[*(groups[-1] if groups else []), *notes]]
    return groups


def _one_of(parts: list[ChatMessage]) -> ChatMessage:
    own = next((message for message in parts if not _is_left(message)), parts[-1])
    meta = {**own.meta, MERGED_META_KEY: [message.to_dict() for message in parts]}
    if all(len(message) == 1 and message.text for message in parts):
        # Some templates take nothing but a single text.
        return replace(own, _content=[TextContent("\n\n".join(message.text or "" for message in parts))], _meta=meta)
    return replace(own, _content=[content for message in parts for content in message._content], _meta=meta)


def _parts_of(message: ChatMessage) -> list[ChatMessage]:
    parts = message.meta.get(MERGED_META_KEY) if message.meta else None
    return list(map(ChatMessage.from_dict, parts)) if isinstance(parts, list) else [message]
