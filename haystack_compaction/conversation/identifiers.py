# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Which exact things (paths, addresses, ids, numbers) messages name, and when."""

import re
from collections.abc import Set

from haystack.dataclasses import ChatRole, TextContent, ToolCall

from haystack_compaction.conversation.shortening import json_text
from haystack_compaction.conversation.structure import Conversation

_WORD = r"[A-Za-z0-9_/~][A-Za-z0-9_./@#%+~-]{2,}[A-Za-z0-9_/]"
_WORDS = re.compile(_WORD)
# A word is telling by a digit or a sign in it, by a dot before its last part, or because somebody put it in quotes.
# A quoted key of a JSON object names a field and not a thing.
_TELLING = re.compile(rf"(?=[A-Za-z.#%+~-]*[0-9_/@]|[A-Za-z-]+\.[A-Za-z]){_WORD}|(?<=[\"'`]){_WORD}(?=[\"'`](?!:))")


class IdentifierIndex:
    """
    When the user, the assistant and the arguments of its calls first and last named each exact thing.

    What tools return and what compaction wrote names nothing by itself: it is no sign that somebody needed it.

    :param conversation: The conversation.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}
        notes = set(conversation.notes)
        for index, message in enumerate(conversation.messages):
            if message._role not in (ChatRole.USER, ChatRole.ASSISTANT) or index in notes:
                continue
            for part in message._content:
                if isinstance(part, TextContent):
                    self._add(part.text, index)
                elif isinstance(part, ToolCall) and part.arguments:
                    self._add(json_text(part.arguments) or "", index)

    def named_after(self, text: str, index: int) -> tuple[bool, bool]:
        """
        Return whether later messages name something that a text holds.

        :param text: The text, such as a tool's result.
        :param index: The index of its message.
        :returns: Whether a later message names something in it, and whether nobody had named that before.
        """
        words: Set[str] = self._last.keys() & set(_WORDS.findall(text))
        return any(self._last[word] > index for word in words), any(self._first[word] > index for word in words)

    def _add(self, text: str, index: int) -> None:
        for word in _TELLING.findall(text):
            self._last[word] = index
            self._first.setdefault(word, index)
