# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What conversations were compacted to, for a caller who comes back with all the original messages each time."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from haystack.dataclasses import ChatMessage

from haystack_compaction.window_guard import WindowGuard


@dataclass(frozen=True)
class KnownConversation:
    """
    The beginning of a conversation and what goes to the model in its place.

    :param beginning: The messages as the caller has them.
    :param stands_as: The messages that stand for them.
    :param guard: What was learned about the size of such requests.
    :param conversation_id: What the caller calls the conversation.
    """

    beginning: list[ChatMessage]
    stands_as: list[ChatMessage]
    guard: WindowGuard
    conversation_id: str | None = None

    def begins(self, messages: Sequence[ChatMessage]) -> bool:
        """
        Return whether a conversation begins like this one, message by message.

        :param messages: The conversation, oldest to newest.
        :returns: Whether all messages of the beginning are there: the same objects or, since pipelines copy their
            inputs, equal ones.
        """
        length = len(self.beginning)
        try:
            # The newest is the one that differs most often.
            return messages[length - 1 : length] == self.beginning[-1:] and messages[:length] == self.beginning
        except Exception:
            # In a message's `meta` may be anything, also what cannot be compared.
            return False

    def continued(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """
        Return a conversation that begins like this one with the beginning as the model knows it.

        :param messages: The conversation, oldest to newest.
        :returns: A new list.
        """
        return [*self.stands_as, *messages[len(self.beginning) :]]


class KnownConversations:
    """
    A bounded memory of conversations, for any number of threads.

    :param capacity: How many are remembered, at least 1. What was not asked for longest is forgotten first.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._known: list[KnownConversation] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """What is known is no part of a copy."""
        return type(self), (self.capacity,)

    def __len__(self) -> int:
        return len(self._known)

    def recall(self, messages: Sequence[ChatMessage], conversation_id: str | None = None) -> KnownConversation | None:
        """
        Return what is known of a conversation.

        :param messages: The conversation, oldest to newest.
        :param conversation_id: What the caller calls it. Of others nothing is told, however much they are alike.
        :returns: What is known of most of it, with a guard of one's own; None when it is a new one.
        """
        with self._lock:
            found = max(
                (known for known in self._known if known.conversation_id == conversation_id and known.begins(messages)),
                key=lambda known: len(known.beginning),
                default=None,
            )
            if found is None:
                return None
            self._remove(found)
            self._known.append(found)
            return replace(found, guard=found.guard.fork())

    def keep(self, conversation: KnownConversation) -> None:
        """
        Remember a conversation.

        What was known of its beginning stays, since somebody else's conversation may have the same, but is forgotten
        before anything else.

        :param conversation: What to remember.
        """
        kept = replace(
            conversation,
            beginning=list(conversation.beginning),
            stands_as=list(conversation.stands_as),
            guard=conversation.guard.fork(),
        )
        with self._lock:
            superseded = [
                known
                for known in self._known
                if known.conversation_id == kept.conversation_id and known.begins(kept.beginning)
            ]
            for known in superseded:
                self._remove(known)
            shorter = [known for known in superseded if len(known.beginning) < len(kept.beginning)]
            self._known = [*shorter, *self._known, kept][-self.capacity :]

    def _remove(self, conversation: KnownConversation) -> None:
        self._known = [known for known in self._known if known is not conversation]
