# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What fills a context window, by part."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
from haystack.dataclasses.chat_message import ChatMessageContentT
from haystack.tools.tool import Tool

from haystack_compaction.conversation.notes import is_note
from haystack_compaction.tokens.estimate import EstimateTokenCounter

SYSTEM = "system"
TOOLS = "tool schemas"
USER = "user"
ASSISTANT = "assistant"
REASONING = "reasoning"
ARGUMENTS = "call arguments"
RESULTS = "tool results"
ATTACHMENTS = "images and files"
NOTES = "notes"

#: All parts, in the order in which they are shown.
PARTS = (SYSTEM, TOOLS, USER, ASSISTANT, REASONING, ARGUMENTS, RESULTS, ATTACHMENTS, NOTES)

_TEXT_OF = {ChatRole.SYSTEM: SYSTEM, ChatRole.USER: USER, ChatRole.ASSISTANT: ASSISTANT, ChatRole.TOOL: RESULTS}


@dataclass(frozen=True)
class WindowPart:
    """
    A part of what fills the window.

    :param name: One of `PARTS`.
    :param tokens: Its size in tokens.
    :param count: How many texts, calls, results, images or schemas it is made of.
    :param by_tool: For schemas, calls and results: the size of each tool's, the largest first.
    """

    name: str
    tokens: int
    count: int
    by_tool: dict[str, int]


def window_parts(messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> list[WindowPart]:
    """
    Say what a request is made of. The parts add up to its size.

    ### Usage example

    ```python
    from haystack.dataclasses import ChatMessage
    from haystack_compaction.cli.window_parts import window_parts

    parts = window_parts([ChatMessage.from_system("Be brief."), ChatMessage.from_user("When is high tide?")])
    assert [part.name for part in parts] == ["system", "user"]
    ```

    :param messages: The conversation.
    :param tools: The tools whose schemas are sent along.
    :returns: The parts that are there, in the order of `PARTS`.
    """
    tokens: dict[str, int] = defaultdict(int)
    counts: dict[str, int] = defaultdict(int)
    by_tool: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for name, size, tool in _pieces(messages, tools):
        tokens[name] += size
        counts[name] += 1
        if tool is not None:
            by_tool[name][tool] += size
    return [
        WindowPart(name, tokens[name], counts[name], dict(sorted(by_tool[name].items(), key=lambda item: -item[1])))
        for name in PARTS
        if name in tokens
    ]


def _pieces(messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> Iterator[tuple[str, int, str | None]]:
    """Each piece of a request: the part it belongs to, its size, and its tool where it has one."""
    counter = EstimateTokenCounter()
    for tool in tools:
        yield TOOLS, counter.count([], [tool]), tool.name
    frame = counter.count_message(ChatMessage(ChatRole.USER, []))
    for message in messages:
        if is_note(message):
            yield NOTES, counter.count_message(message), None
            continue
        # The frame of a message is counted with its first piece.
        left = frame
        for content in message._content:
            for piece in _without_nesting(content):
                size = counter.count_message(ChatMessage(message._role, [piece])) - frame + left
                left = 0
                yield _part_of(message, piece), size, _tool_of(piece)


def _without_nesting(content: ChatMessageContentT) -> list[ChatMessageContentT]:
    """A result that holds an image among its texts is in two parts of the window."""
    if not isinstance(content, ToolCallResult) or isinstance(content.result, str):
        return [content]
    attachments = [block for block in content.result if isinstance(block, (ImageContent, FileContent))]
    texts = [block for block in content.result if isinstance(block, TextContent)]
    return [ToolCallResult(texts, content.origin, content.error), *attachments]


def _part_of(message: ChatMessage, piece: object) -> str:
    if isinstance(piece, ReasoningContent):
        return REASONING
    if isinstance(piece, ToolCall):
        return ARGUMENTS
    if isinstance(piece, ToolCallResult):
        return RESULTS
    if isinstance(piece, (ImageContent, FileContent)):
        return ATTACHMENTS
    return _TEXT_OF[message._role]


def _tool_of(piece: object) -> str | None:
    if isinstance(piece, ToolCall):
        return piece.tool_name
    return piece.origin.tool_name if isinstance(piece, ToolCallResult) else None
