# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""How an archive sees a message: as JSON to store, as a digest to recognise it by, as text to search in."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from haystack.dataclasses import (
    ChatMessage,
    FileContent,
    ImageContent,
    ReasoningContent,
    TextContent,
    ToolCall,
    ToolCallResult,
)

from haystack_compaction.conversation.notes import RECALL_TOOL_NAME
from haystack_compaction.conversation.tool_steps import is_recalled

_UNICODE = json.JSONEncoder(ensure_ascii=False, default=str, separators=(",", ":"))
_ASCII = json.JSONEncoder(default=str, separators=(",", ":"))
_SORTED = json.JSONEncoder(default=str, sort_keys=True)

_RECALLED = "[What `recall` returned is not archived again. The call above it says what was asked for.]"


def to_json(message: ChatMessage, *, ascii_only: bool = False) -> str:
    """
    Write a message as JSON.

    What JSON has no form for, such as an object in the message's `meta`, is written as its text.

    :param message: The message.
    :param ascii_only: Whether every other character is escaped. Where it is not, lone surrogates stay as they are.
    :returns: The JSON.
    """
    encode = (_ASCII if ascii_only else _UNICODE).encode
    try:
        return encode(_as_dict(message))
    except (TypeError, ValueError, RecursionError, AttributeError):
        return encode(_plain(message))


def from_json(text: str) -> ChatMessage:
    """
    Read a message that `to_json` wrote.

    :param text: The JSON.
    :returns: The message.
    """
    return ChatMessage.from_dict(json.loads(text))


def digest_of(message: ChatMessage) -> str:
    """
    Return what a message is recognised by after it was copied, or stored and loaded.

    `meta` and reasoning have no part in it, since there are formats of storage that lose them.

    :param message: The message.
    :returns: A digest of its role and content.
    """
    said = "\x1f".join([message.role.value, *_content(message._content)])
    return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def searchable_text(message: ChatMessage) -> str:
    """
    Return what a search looks at.

    :param message: The message.
    :returns: Texts, calls and results of tools; nothing of what recall was asked for or returned, since a search would
        find nothing but earlier searches.
    """
    found: list[str] = []
    for part in message._content:
        if isinstance(part, TextContent):
            found.append(part.text)
        elif isinstance(part, ToolCall) and part.tool_name != RECALL_TOOL_NAME:
            found += [part.tool_name, *_leaves(part.arguments)]
        elif isinstance(part, ToolCallResult) and part.origin.tool_name != RECALL_TOOL_NAME:
            found += [part.origin.tool_name, *result_texts(part)]
    # No engine takes these two: NUL ends a text, and a lone surrogate has no UTF-8.
    return "\n".join(found).replace("\0", " ").encode("utf-8", "replace").decode("utf-8")


def result_texts(result: ToolCallResult) -> list[str]:
    """
    Return the texts that a tool returned.

    :param result: The result.
    :returns: The result itself where it is a text, and else the texts in it.
    """
    if isinstance(result.result, str):
        return [result.result]
    return [part.text for part in result.result if isinstance(part, TextContent)]


def without_recalled(message: ChatMessage) -> ChatMessage:
    """
    Return a message as it is archived: what came out of the archive does not go into it again.

    :param message: The message.
    :returns: The same message, or one in which what recall returned is a word about that.
    """
    if not any(map(is_recalled, message._content)):
        return message
    parts = [
        replace(part, result=_RECALLED) if isinstance(part, ToolCallResult) and is_recalled(part) else part
        for part in message._content
    ]
    return replace(message, _content=parts)


def _as_dict(message: ChatMessage) -> dict[str, Any]:
    """What `to_dict` returns, which itself copies deeply: most of the time of writing JSON would go into that."""
    content: list[dict[str, Any]] = []
    for part in message._content:
        if type(part) is TextContent:
            content.append({"text": part.text})
        elif type(part) is ToolCall:
            content.append({"tool_call": vars(part)})
        elif type(part) is ToolCallResult and type(part.result) is str:
            content.append({"tool_call_result": {**vars(part), "origin": vars(part.origin)}})
        else:
            return message.to_dict()
    return {"role": message.role.value, "meta": message.meta, "name": message.name, "content": content}


def _plain(message: ChatMessage) -> dict[str, Any]:
    meta = {str(key): value if _is_plain(value) else str(value) for key, value in message.meta.items()}
    return {
        "role": message.role.value,
        "meta": meta,
        "name": message.name,
        "content": list(map(_plain_part, message._content)),
    }


def _plain_part(part: Any) -> dict[str, Any]:
    try:
        (serialized,) = ChatMessage.from_assistant(tool_calls=[part]).to_dict()["content"]
    except Exception:
        return {"text": str(part)}
    return serialized if _is_plain(serialized) else {"text": str(part)}


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _content(parts: Sequence[Any]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, TextContent):
            yield part.text
        elif isinstance(part, ToolCall):
            yield from (part.id or "", part.tool_name, _arguments(part))
        elif isinstance(part, ToolCallResult):
            yield from _content([part.origin])
            yield from [part.result] if isinstance(part.result, str) else _content(part.result)
        elif isinstance(part, ImageContent):
            yield part.base64_image
        elif isinstance(part, FileContent):
            yield part.base64_data
        elif not isinstance(part, ReasoningContent):
            yield str(part)


def _arguments(call: ToolCall) -> str:
    try:
        # Databases give keys back in an order of their own.
        return _SORTED.encode(call.arguments)
    except (TypeError, ValueError, RecursionError):
        return str(call.arguments)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from _leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield str(value)
