# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What compactors are told about messages for the length of one pass: by marks, and by the names of tools."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from haystack.dataclasses import ChatMessage

from haystack_compaction.conversation.notes import CURRENT_TASK_META_KEY, PINNED_META_KEY, is_pinned
from haystack_compaction.conversation.origins import with_origins
from haystack_compaction.conversation.pins import PinRules

# A pin that is to be taken off again.
_PINNED_BY_RULE = "pinned_by_rule"


class MarkedMessages:
    """
    A conversation in which some messages stand as copies with marks, or with the call that a result answers.

    :param messages: The conversation, oldest to newest. It is left as it is.
    :param task: The message that the run was started with, where that is known.
    :param pins: The rules by which messages are pinned.
    """

    def __init__(
        self, messages: Sequence[ChatMessage], *, task: ChatMessage | None = None, pins: Iterable[PinRules] = ()
    ) -> None:
        self._task = task
        self._pins = list(pins)
        named = with_origins(messages)
        self._is_any = task is not None or bool(self._pins) or named is not messages
        #: The conversation as compactors get to see it.
        self.messages = [self._marked(message) for message in named] if self._is_any else list(messages)
        self._originals = dict(zip(map(id, self.messages), messages, strict=True)) if self._is_any else {}

    def unmarked(self, messages: list[ChatMessage]) -> list[ChatMessage]:
        """
        Take the marks off again.

        :param messages: What a compactor made of the conversation.
        :returns: The same with the originals in place of the copies, and no mark on what was made of a copy.
        """
        if not self._is_any:
            return messages
        return [self._originals.get(id(message)) or self._without_marks(message) for message in messages]

    def _marked(self, message: ChatMessage) -> ChatMessage:
        marks = {CURRENT_TASK_META_KEY: True} if message is self._task else {}
        if self._pins and not is_pinned(message) and any(rules.hold_for(message) for rules in self._pins):
            marks |= {PINNED_META_KEY: True, _PINNED_BY_RULE: True}
        return replace(message, _meta={**message.meta, **marks}) if marks else message

    def _without_marks(self, message: ChatMessage) -> ChatMessage:
        """A rewritten task must not stay the task for ever. The marks of a pass around this one stay."""
        marks = set()
        if self._task is not None:
            marks.add(CURRENT_TASK_META_KEY)
        if self._pins and _PINNED_BY_RULE in message.meta:
            marks.update((PINNED_META_KEY, _PINNED_BY_RULE))
        if marks.isdisjoint(message.meta):
            return message
        return replace(message, _meta={key: value for key, value in message.meta.items() if key not in marks})
