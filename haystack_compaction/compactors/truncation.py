# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The last resort: shortens the largest contents, whatever they are, until the conversation fits."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from haystack import component
from haystack.dataclasses import (
    ChatMessage,
    ChatRole,
    FileContent,
    ImageContent,
    ReasoningContent,
    TextContent,
    ToolCall,
    ToolCallResult,
)
from haystack.dataclasses.chat_message import ToolCallResultContentT

from haystack_compaction.compactors.base import Compactor
from haystack_compaction.conversation.notes import is_omission_note, is_pinned
from haystack_compaction.conversation.shortening import (
    described,
    even_cap,
    json_text,
    shortened,
    shortened_arguments,
)
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.conversation.tool_steps import calls_need_reasoning, loop_openers, without_replay_data
from haystack_compaction.tokens.ledger import TokenLedger

# Beside the compaction key and not below it: a user message with that key would no longer count as one.
_TRUNCATED_META_KEY = "truncated"

# About what a marker or the description of an image takes, in tokens. Nothing smaller is worth a rewrite.
_STUB_TOKENS = 16

# How many tokens more a marker takes than as much text would.
_MARKER_TOKENS = 5

# Older contents may shrink to so many tokens before the newest are touched, and the newest to so many before the older
# ones shrink to their markers.
_OLDER_FLOOR = 60
_NEWEST_FLOOR = 250

# How often the contents are cut when they turn out larger than estimated, before nothing is left of them.
_ATTEMPTS = 8

_UNCUT = sys.maxsize


@dataclass(frozen=True)
class _Piece:
    """
    A content that can be made smaller by itself.

    :param key: The index of its message and the identity of the content.
    :param tokens: Its size.
    :param characters: The length of what can be shortened of it, 0 for what can only be replaced.
    """

    key: tuple[int, int]
    tokens: int
    characters: int


# To how many characters each piece is cut.
_Limits: TypeAlias = Mapping[tuple[int, int], int]
_Part: TypeAlias = Any


@component
class TruncationCompactor(Compactor):
    """
    Shortens the largest contents until the conversation fits: the last resort, which removes no message.

    Tool results, texts of user and assistant, and the arguments of calls (inside valid JSON) are cut down to a common
    size, as large as the target allows; their head and tail stay, with a marker between them that says how much went.
    Images and files give way to a text with their name and type, oldest first. The newest step, the current task's
    user message and the turns of `preserve_recent_turns` come last. System messages, pinned messages and omission notes
    stay as they are. A shortened message says so in `meta["truncated"]`. Costs no call of a model.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage, ToolCall
    from haystack_compaction.compactors.truncation import TruncationCompactor

    call = ToolCall(tool_name="read_file", arguments={"path": "tides.csv"}, id="call_1")
    messages = [
        ChatMessage.from_user("When is high tide?"),
        ChatMessage.from_assistant(tool_calls=[call]),
        ChatMessage.from_tool("06:12;18:40\\n" * 10_000, origin=call),
    ]
    result = TruncationCompactor().run(messages=messages, target_tokens=1000)
    assert result["report"].tokens_after <= 1000
    print(result["messages"][2].tool_call_result.result[-200:])
    ```

    The options are those that every compactor takes, see `Compactor`.
    """

    strategy = "truncation"

    def rewrite(self, conversation: Conversation, target_tokens: int, ledger: TokenLedger) -> list[ChatMessage] | None:
        """
        Cut the largest contents, the newest last, so far that the conversation comes under the target.

        :param conversation: The conversation, valid and taken apart.
        :param target_tokens: The size to come under, in the ledger's tokens.
        :param ledger: What knows the size of each message.
        :returns: The messages to go on with, or None when there is nothing to shorten.
        """
        messages = conversation.messages
        newest = self._newest(conversation)
        pieces = _pieces(conversation, ledger)
        groups = (
            [piece for piece in pieces if piece.key[0] not in newest],
            [piece for piece in pieces if piece.key[0] in newest],
        )
        if not pieces:
            return None
        openers = loop_openers(conversation)
        sizes = ledger.sizes(messages)
        room = target_tokens - sum(sizes) + sum(piece.tokens for piece in pieces)
        for attempts_left in reversed(range(_ATTEMPTS)):
            limits = _limits(groups, room)
            cut = {index for index, _ in limits}
            compacted = [
                _cut(message, index, limits, size=sizes[index], is_opener=index in openers) if index in cut else message
                for index, message in enumerate(messages)
            ]
            excess = ledger.measure(compacted) - target_tokens
            # Without any room, nothing but markers is left, and no further attempt would find more to cut.
            if excess <= 0 or room <= 0:
                break
            room = room - excess - excess // 8 if attempts_left > 1 else 0
        return compacted

    def _newest(self, conversation: Conversation) -> set[int]:
        """The indexes of the messages that are shortened last."""
        newest = {index for turn in self._recent_turns(conversation) for index in turn}
        if conversation.task_index is not None:
            newest.add(conversation.task_index)
        if conversation.steps:
            newest.update(range(conversation.steps[-1].start, len(conversation.messages)))
        return newest

    def _recent_turns(self, conversation: Conversation) -> list[range]:
        return conversation.turns[max(len(conversation.turns) - self.preserve_recent_turns, 0) :]


def _pieces(conversation: Conversation, ledger: TokenLedger) -> list[_Piece]:
    """All contents that are large enough to be shortened, oldest first."""
    messages = conversation.messages
    openers = loop_openers(conversation)
    pieces: list[_Piece] = []
    for index, (message, size) in enumerate(zip(messages, ledger.sizes(messages), strict=True)):
        if size <= _STUB_TOKENS or message.role is ChatRole.SYSTEM or is_pinned(message) or is_omission_note(message):
            continue
        parts = list(_parts(message))
        for part in parts:
            if isinstance(part, ReasoningContent) and (index in openers or calls_need_reasoning(message)):
                continue
            alone = ChatMessage(_role=message.role, _content=[part])
            tokens = size if len(parts) == 1 else ledger.count([alone])
            characters = _characters(part)
            if characters is not None and tokens > _STUB_TOKENS:
                pieces.append(_Piece((index, id(part)), tokens, characters))
    return pieces


def _limits(groups: tuple[list[_Piece], list[_Piece]], room: int) -> _Limits:
    """How far the pieces are cut to fit the room: the older ones first, and the newest when that is not enough."""
    limits: dict[tuple[int, int], int] = {}
    caps = [_UNCUT, _UNCUT]
    takes = [_size(group, _UNCUT) for group in groups]
    for this, other, floor in ((0, 1, _OLDER_FLOOR), (1, 0, _NEWEST_FLOOR), (0, 1, 0), (1, 0, 0)):
        if sum(takes) > room:
            caps[this] = max(even_cap((piece.tokens for piece in groups[this]), room - takes[other]), floor)
            takes[this] = _size(groups[this], caps[this])
    for this, other in ((0, 1), (1, 0)):
        limits.update(_limits_of_group(groups[this], caps[this], room - takes[other]))
    return limits


def _size(pieces: list[_Piece], cap: int) -> int:
    return sum(min(piece.tokens, cap) for piece in pieces)


def _limits_of_group(pieces: list[_Piece], cap: int, room: int) -> Iterator[tuple[tuple[int, int], int]]:
    """How far each piece larger than the cap is cut. What can only go as a whole goes oldest first."""
    replaceable: list[_Piece] = []
    for piece in pieces:
        if piece.tokens <= cap:
            room -= piece.tokens
        elif piece.characters:
            yield piece.key, max(cap - _MARKER_TOKENS, 0) * piece.characters // piece.tokens
            room -= cap
        else:
            replaceable.append(piece)
            room -= _STUB_TOKENS
    for piece in reversed(replaceable):
        room -= piece.tokens - _STUB_TOKENS
        if room < 0:
            yield piece.key, 0


def _cut(message: ChatMessage, index: int, limits: _Limits, *, size: int, is_opener: bool) -> ChatMessage:
    parts = [_cut_part(part, index, limits) for part in message._content]
    if all(cut is part for cut, part in zip(parts, message._content, strict=True)):
        return message
    drops_reasoning = not is_opener and not calls_need_reasoning(message)
    content = [part for part in parts if not (part is None or (drops_reasoning and isinstance(part, ReasoningContent)))]
    meta = {_TRUNCATED_META_KEY: {"original_tokens": size}, **without_replay_data(message)}
    return replace(message, _content=content, _meta=meta)


def _cut_part(part: _Part, index: int, limits: _Limits) -> _Part:
    """The shortened content, None where nothing of it stays, the content itself where it is left alone."""
    limit = limits.get((index, id(part)))
    if isinstance(part, ToolCallResult):
        result = _cut_result(part.result, index, limits, limit)
        return part if result is part.result else replace(part, result=result)
    if limit is None:
        return part
    if isinstance(part, TextContent):
        text = shortened(part.text, limit)
        return part if text is part.text else TextContent(text)
    if isinstance(part, ToolCall):
        arguments = shortened_arguments(part.arguments, limit)
        return part if arguments is part.arguments else replace(part, arguments=arguments)
    return None if isinstance(part, ReasoningContent) else TextContent(described(part))


def _cut_result(
    result: ToolCallResultContentT, index: int, limits: _Limits, limit: int | None
) -> ToolCallResultContentT:
    if isinstance(result, str):
        return result if limit is None else shortened(result, limit)
    blocks = [_cut_part(block, index, limits) for block in result]
    return result if all(cut is block for cut, block in zip(blocks, result, strict=True)) else blocks


def _parts(message: ChatMessage) -> Iterator[_Part]:
    """The contents of a message, those inside of a tool's result one by one."""
    for part in message._content:
        if isinstance(part, ToolCallResult) and not isinstance(part.result, str):
            yield from part.result
        else:
            yield part


def _characters(part: _Part) -> int | None:
    """The length of what can be shortened, 0 where the content can only go as a whole, None where it must stay."""
    if isinstance(part, TextContent):
        return len(part.text)
    if isinstance(part, ToolCallResult):
        return len(part.result)
    if isinstance(part, ToolCall):
        text = json_text(part.arguments)
        return None if text is None else len(text)
    return 0 if isinstance(part, (ImageContent, FileContent, ReasoningContent)) else None
