# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Chat messages in OpenAI's format, and as Haystack knows them."""

import json
from collections.abc import Mapping
from typing import Any

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

_ROLES = {
    "system": ChatRole.SYSTEM,
    "developer": ChatRole.SYSTEM,
    "user": ChatRole.USER,
    "assistant": ChatRole.ASSISTANT,
    "tool": ChatRole.TOOL,
    "function": ChatRole.TOOL,
}

# What is kept beside the content so that a message can be written in the shape it came in.
_ROLE_KEY = "openai_role"
_PART_KEY = "openai_part"
_LEGACY_CALL = {"openai_function_call": True}


class OpenAIReader:
    """
    Reads the messages of one conversation, which must come in order: a result holds no more than the id of its call,
    and its tool's name is known from the message that made the call.
    """

    def __init__(self) -> None:
        self._open_calls: list[ToolCall] = []
        self._calls_by_id: dict[str, ToolCall] = {}

    def read(self, data: Mapping[str, Any]) -> ChatMessage:
        """
        Read the next message.

        :param data: The message.
        :returns: The message as Haystack knows it. Images and files that are only referred to have no data.
        :raises ValueError: If it is none; the message says why.
        """
        role = data.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise ValueError(f"unknown role {role!r}; known roles: {', '.join(_ROLES)}" if role else "has no `role`")
        meta = dict(data["meta"]) if isinstance(data.get("meta"), Mapping) else {}
        if role == "developer":
            meta[_ROLE_KEY] = role
        content: list[ChatMessageContentT]
        if _ROLES[role] is ChatRole.ASSISTANT:
            content = self._assistant_content(data)
        elif _ROLES[role] is ChatRole.TOOL:
            content = [self._result(data)]
        else:
            content = [*_parts(data.get("content"))]
        name = data.get("name") if _ROLES[role] is not ChatRole.TOOL else None
        return ChatMessage(
            _role=_ROLES[role], _content=content, _name=name if isinstance(name, str) else None, _meta=meta
        )

    def _assistant_content(self, data: Mapping[str, Any]) -> list[ChatMessageContentT]:
        calls = _calls(data)
        self._open_calls = list(calls)
        self._calls_by_id.update((call.id, call) for call in calls if call.id is not None)
        reasoning = data.get("reasoning_content") or data.get("reasoning")
        content: list[ChatMessageContentT] = [ReasoningContent(reasoning)] if isinstance(reasoning, str) else []
        if data.get("content") not in (None, []):
            # Many servers send an empty text along with calls, which says nothing.
            content += [part for part in _parts(data["content"]) if not (calls and _is_blank(part))]
        if isinstance(data.get("refusal"), str) and data["refusal"]:
            content.append(TextContent(data["refusal"]))
        content += calls
        if not content:
            raise ValueError("has neither `content` nor `tool_calls`")
        return content

    def _result(self, data: Mapping[str, Any]) -> ToolCallResult:
        parts = _parts(data.get("content"))
        result = data["content"] if isinstance(data["content"], str) else parts
        return ToolCallResult(result=result, origin=self._origin(data), error=False)

    def _origin(self, data: Mapping[str, Any]) -> ToolCall:
        """The call that a result answers: by position in the latest batch first, by id second."""
        call_id, name = data.get("tool_call_id"), data.get("name")
        if call_id is not None and not isinstance(call_id, str):
            raise ValueError("its `tool_call_id` must be a text")
        for position, call in enumerate(self._open_calls):
            if call_id is None or call.id in (call_id, None):
                return self._open_calls.pop(position)
        if call_id in self._calls_by_id:
            return self._calls_by_id[call_id]
        return ToolCall(tool_name=name if isinstance(name, str) else "unknown", arguments={}, id=call_id)


def to_openai(message: ChatMessage) -> dict[str, Any]:
    """
    Write a message in OpenAI's format.

    :param message: The message.
    :returns: A dictionary of plain values. What the format has no place for, such as `meta`, is left out.
    """
    result = message.tool_call_result
    if result is not None:
        content = result.result if isinstance(result.result, str) else list(map(_from_part, result.result))
        if result.origin.extra == _LEGACY_CALL:
            return {"role": "function", "name": result.origin.tool_name, "content": content}
        return {"role": "tool", **_id_of(result.origin, key="tool_call_id"), "content": content}
    spoken = [part for part in message._content if not isinstance(part, (ToolCall, ReasoningContent))]
    data: dict[str, Any] = {"role": message.meta.get(_ROLE_KEY, message.role.value)}
    if message.name is not None:
        data["name"] = message.name
    if len(spoken) == 1 and isinstance(spoken[0], TextContent):
        data["content"] = spoken[0].text
    else:
        data["content"] = list(map(_from_part, spoken)) or None
    for call in message.tool_calls:
        function = {"name": call.tool_name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
        if call.extra == _LEGACY_CALL:
            data["function_call"] = function
        else:
            data.setdefault("tool_calls", []).append({**_id_of(call), "type": "function", "function": function})
    return data


def _parts(content: Any) -> list[TextContent | ImageContent | FileContent]:
    if content is None:
        raise ValueError("has no `content`")
    if isinstance(content, str):
        return [TextContent(content)]
    if not isinstance(content, list):
        raise ValueError(f"its `content` must be a text or a list of parts, not {_kind(content)}")
    if not content:
        raise ValueError("its `content` is empty")
    return list(map(_to_part, content))


def _to_part(part: Any) -> TextContent | ImageContent | FileContent:
    if isinstance(part, str):
        return TextContent(part)
    if not isinstance(part, Mapping):
        raise ValueError(f"a part of its `content` must be an object, not {_kind(part)}")
    kind = part.get("type")
    if isinstance(part.get("text"), str):
        return TextContent(part["text"])
    if not isinstance(kind, str) or kind == "text":
        raise ValueError("a part of its `content` has neither a `text` nor a `type`")
    if kind == "image_url":
        image = part.get("image_url")
        image = image if isinstance(image, Mapping) else {"url": image}
        mime_type, data = _inline_data(image.get("url"))
        return ImageContent(data, mime_type, image.get("detail"), meta={_PART_KEY: part}, validation=False)
    if kind == "file":
        file = part.get("file")
        mime_type, data = _inline_data(file.get("file_data") if isinstance(file, Mapping) else None)
        return FileContent(data, mime_type, extra={_PART_KEY: part}, validation=False)
    return TextContent(part["refusal"] if isinstance(part.get("refusal"), str) else f"[{kind}]")


def _from_part(part: Any) -> dict[str, Any]:
    if isinstance(part, TextContent):
        return {"type": "text", "text": part.text}
    kept = (part.meta if isinstance(part, ImageContent) else part.extra).get(_PART_KEY)
    return dict(kept) if kept else {"type": "text", "text": f"[{type(part).__name__}]"}


def _inline_data(url: Any) -> tuple[str | None, str]:
    """The MIME type and the base64 of a data URL. Any other URL has none."""
    if not isinstance(url, str) or not url.startswith("data:") or ";base64," not in url:
        return None, ""
    header, _, data = url.partition(";base64,")
    return header.removeprefix("data:") or None, data


def _calls(data: Mapping[str, Any]) -> list[ToolCall]:
    calls = data.get("tool_calls") or []
    if not isinstance(calls, list):
        raise ValueError(f"its `tool_calls` must be a list, not {_kind(calls)}")
    legacy = data.get("function_call")
    return [*map(_call, calls), *([_function(legacy, call_id=None, extra=_LEGACY_CALL)] if legacy else [])]


def _call(data: Any) -> ToolCall:
    if not isinstance(data, Mapping) or "function" not in data:
        raise ValueError("a tool call has no `function`; calls of other kinds are not supported")
    call_id = data.get("id")
    if call_id is not None and not isinstance(call_id, str):
        raise ValueError("the `id` of a tool call must be a text")
    return _function(data["function"], call_id=call_id)


def _function(data: Any, *, call_id: str | None, extra: dict[str, Any] | None = None) -> ToolCall:
    if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
        raise ValueError("a tool call has no function `name`")
    name, arguments = data["name"], data.get("arguments")
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the arguments of its call of '{name}' are not JSON: {error}") from error
    # Calls without arguments come with an empty text, null, or none at all.
    arguments = arguments or {}
    if not isinstance(arguments, dict):
        raise ValueError(f"the arguments of its call of '{name}' must be an object, not {_kind(arguments)}")
    return ToolCall(tool_name=name, arguments=arguments, id=call_id, extra=extra)


def _id_of(call: ToolCall, *, key: str = "id") -> dict[str, str]:
    return {} if call.id is None else {key: call.id}


def _is_blank(part: object) -> bool:
    return isinstance(part, TextContent) and not part.text.strip()


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
