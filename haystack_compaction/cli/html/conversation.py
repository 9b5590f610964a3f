# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""A conversation before and after a compaction, as the rows of a report."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

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

from haystack_compaction.cli.html.data import Block, ConversationView, Kind, Line, Part, Row
from haystack_compaction.compaction_pass import changes_between
from haystack_compaction.conversation.notes import is_note, is_pinned
from haystack_compaction.conversation.repair import repaired
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.tokens.ledger import TokenLedger

_KIND_OF: dict[ChatRole, Kind] = {
    ChatRole.SYSTEM: "system",
    ChatRole.USER: "user",
    ChatRole.ASSISTANT: "assistant",
    ChatRole.TOOL: "tool",
}


def conversation_view(
    title: str,
    before: Sequence[ChatMessage],
    after: Sequence[ChatMessage],
    ledger: TokenLedger,
    *,
    lines: Sequence[Line] = (),
) -> ConversationView:
    """
    Set a conversation beside what a compaction made of it.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction.cli.html.conversation import conversation_view
    from haystack_compaction.tokens.ledger import TokenLedger

    before = [ChatMessage.from_user("Hello"), ChatMessage.from_assistant("Hi"), ChatMessage.from_user("Go on.")]
    view = conversation_view("by hand", before, before[2:], TokenLedger())
    assert [row.status for row in view.rows] == ["removed", "removed", "kept"]
    ```

    :param title: What the reader picks it by where a report has several.
    :param before: The conversation as it was.
    :param after: The conversation as it is now; kept messages are the same objects.
    :param ledger: What messages are measured with.
    :param lines: Sizes to compare both with, such as the target.
    :returns: The view.
    """
    return ConversationView(title, tuple(_rows(before, after, ledger)), tuple(lines))


def _rows(before: Sequence[ChatMessage], after: Sequence[ChatMessage], ledger: TokenLedger) -> Iterator[Row]:
    """In the order of the conversation after, with removed messages where they stood."""
    original_of = {id(new): old for old, new in changes_between(before, after).rewritten}
    originals = [original_of.get(id(message), message) for message in after]
    places = _places(before, originals)
    matched = {place for found in places.values() for place in found}
    blocks = _blocks(before, ledger)
    shown = 0
    for original, message, block in zip(originals, after, _blocks(after, ledger), strict=True):
        if not places[id(original)]:
            yield Row("added", None, block)
            continue
        place = places[id(original)].pop()
        yield from (Row("removed", blocks[index], None) for index in range(shown, place) if index not in matched)
        shown = max(shown, place + 1)
        yield Row("kept" if original is message else "rewritten", blocks[place], block)
    yield from (Row("removed", blocks[index], None) for index in range(shown, len(blocks)) if index not in matched)


def _places(before: Sequence[ChatMessage], originals: Sequence[ChatMessage]) -> dict[int, list[int]]:
    """Where each message stands that lives on, newest first: of one that comes several times, the newest do."""
    needed = Counter(map(id, originals))
    places: defaultdict[int, list[int]] = defaultdict(list)
    for index in range(len(before) - 1, -1, -1):
        found = places[id(before[index])]
        if len(found) < needed[id(before[index])]:
            found.append(index)
    return places


def _blocks(messages: Sequence[ChatMessage], ledger: TokenLedger) -> list[Block]:
    step = 0
    task = _task(messages)
    blocks = []
    for index, (message, tokens) in enumerate(zip(messages, ledger.sizes(messages), strict=True)):
        kind: Kind = "note" if is_note(message) else _KIND_OF[message.role]
        step += kind == "assistant"
        marks = [name for name, is_so in (("pinned", is_pinned(message)), ("current task", message is task)) if is_so]
        blocks.append(
            Block(
                index=index,
                step=step if kind in ("assistant", "tool") and step else None,
                role=message.role.value,
                kind=kind,
                tokens=tokens,
                parts=tuple(map(_part, message._content)),
                marks=tuple(marks),
            )
        )
    return blocks


def _task(messages: Sequence[ChatMessage]) -> ChatMessage | None:
    # A conversation can be taken apart only when its tool pairs are intact.
    conversation = Conversation(repaired(messages))
    return None if conversation.task_index is None else conversation.messages[conversation.task_index]


def _part(part: object) -> Part:
    if isinstance(part, TextContent):
        return Part("text", part.text)
    if isinstance(part, ReasoningContent):
        return Part("reasoning", part.reasoning_text)
    if isinstance(part, ToolCall):
        return Part("call", json.dumps(part.arguments, ensure_ascii=False, indent=2, default=str), part.tool_name)
    if isinstance(part, ToolCallResult):
        pieces = [Part("text", part.result)] if isinstance(part.result, str) else map(_part, part.result)
        texts = [f"({piece.name})" if piece.kind == "attachment" else piece.text for piece in pieces]
        return Part("result", "\n".join(texts), part.origin.tool_name)
    if isinstance(part, FileContent):
        return Part("attachment", "", f"file {part.filename or part.mime_type or ''}".strip())
    if isinstance(part, ImageContent):
        return Part("attachment", "", f"image {part.mime_type or ''}".strip())
    return Part("attachment", "", type(part).__name__)
