# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""A chat completions endpoint as strict as OpenAI's, and optionally as a template that wants roles to alternate."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from servers.base import ApiError, ChatServer, Json, Reply, Script, Usage, UsageMode, default_count, pieces

_ROLES = ("system", "assistant", "user", "tool", "developer")
_SYSTEM = ("system", "developer")
_PARTS = {"user": ("text", "image_url", "input_audio", "file"), "assistant": ("text", "refusal")}


class StrictOpenAIServer(ChatServer):
    """
    Answers `/v1/chat/completions`, in one piece and streaming; see `ChatServer` for what all servers share.

    :param strict_alternation: Besides, reject what a Mistral or Gemma chat template rejects: after the system
        messages, user and assistant have to alternate, where calls and their results do not count.
    """

    paths = ("/v1/chat/completions", "/chat/completions")
    base_path = "/v1"
    call_id_prefix = "call_"

    def __init__(
        self,
        script: Script,
        *,
        count: Callable[[str], int] = default_count,
        context_window: int = 128_000,
        max_output_tokens: int | None = None,
        usage: UsageMode = "full",
        strict_alternation: bool = False,
    ) -> None:
        super().__init__(
            script, count=count, context_window=context_window, max_output_tokens=max_output_tokens, usage=usage
        )
        self.strict_alternation = strict_alternation

    def error(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> ApiError:
        kind = "invalid_request_error" if status < 500 else "server_error"
        return ApiError(status, {"error": {"message": message, "type": kind, "param": param, "code": code}})

    def too_long(self, tokens: int, tool_tokens: int) -> ApiError:
        split = f" ({tokens - tool_tokens} in the messages, {tool_tokens} in the functions)" if tool_tokens else ""
        return self.error(
            f"This model's maximum context length is {self.context_window} tokens. However, your messages resulted in "
            f"{tokens} tokens{split}. Please reduce the length of the messages{' or functions' if split else ''}.",
            param="messages",
            code="context_length_exceeded",
        )

    def check(self, body: Json) -> None:
        messages = body.get("messages")
        if not isinstance(messages, list):
            raise self._missing("messages")
        if not messages:
            raise self._empty_array("messages")
        for index, message in enumerate(messages):
            self._check_message(message, f"messages[{index}]", index)
        self._check_pairs(messages)
        if self.strict_alternation:
            self._check_alternation(messages)

    def _check_message(self, message: Json, path: str, index: int) -> None:
        role = message.get("role")
        if role not in _ROLES:
            raise self._unsupported(str(role), _ROLES, f"{path}.role")
        calls = message.get("tool_calls") if role == "assistant" else None
        if calls is not None:
            self._check_calls(calls, f"{path}.tool_calls")
        if role == "tool" and not isinstance(message.get("tool_call_id"), str):
            raise self._missing(f"{path}.tool_call_id")
        content = message.get("content")
        if content is None:
            if not calls:
                raise self.error(
                    "Invalid value for 'content': expected a string, got null.", param=f"messages.[{index}].content"
                )
        elif isinstance(content, list):
            self._check_parts(content, _PARTS.get(role, ("text",)), f"{path}.content")
        elif not isinstance(content, str):
            raise self._invalid_type(f"{path}.content", "one of a string or array of objects", content)

    def _check_parts(self, parts: list[Any], kinds: tuple[str, ...], path: str) -> None:
        if not parts:
            raise self._empty_array(path)
        for index, part in enumerate(parts):
            if not isinstance(part, dict):
                raise self._invalid_type(f"{path}[{index}]", "an object", part)
            kind = part.get("type")
            if kind not in kinds:
                raise self._unsupported(str(kind), kinds, f"{path}[{index}].type")
            if part.get(kind) is None:
                raise self._missing(f"{path}[{index}].{kind}")

    def _check_calls(self, calls: list[Json], path: str) -> None:
        if not calls:
            raise self._empty_array(path)
        ids: set[str] = set()
        for index, call in enumerate(calls):
            here = f"{path}[{index}]"
            function = call.get("function") or {}
            for field, value in (("id", call.get("id")), ("function.name", function.get("name"))):
                if not isinstance(value, str) or not value:
                    raise self._missing(f"{here}.{field}")
            arguments = function.get("arguments")
            if not isinstance(arguments, str):
                raise self._invalid_type(f"{here}.function.arguments", "a string", arguments)
            if not _is_json(arguments):
                raise self.error(
                    f"Invalid value for '{here}.function.arguments': expected a valid JSON string.",
                    param=f"{here}.function.arguments",
                    code="invalid_value",
                )
            if call["id"] in ids:
                raise self.error(
                    f"Invalid parameter: Duplicate value for 'id' of '{call['id']}', in {path}.", param=f"{here}.id"
                )
            ids.add(call["id"])

    def _check_pairs(self, messages: list[Json]) -> None:
        index = 0
        while index < len(messages):
            message = messages[index]
            if message["role"] == "tool":
                raise self.error(
                    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with "
                    "'tool_calls'.",
                    param=f"messages.[{index}].role",
                )
            index += 1
            if message["role"] == "assistant" and message.get("tool_calls"):
                index = self._check_results(messages, index, [call["id"] for call in message["tool_calls"]])

    def _check_results(self, messages: list[Json], start: int, expected: list[str]) -> int:
        """Check the results that follow a batch of calls and return where they end."""
        answered: dict[str, int] = {}
        index = start
        while index < len(messages) and messages[index]["role"] == "tool":
            call_id = messages[index]["tool_call_id"]
            if call_id not in expected:
                raise self.error(
                    f"Invalid parameter: 'tool_call_id' of '{call_id}' not found in 'tool_calls' of previous message.",
                    param=f"messages.[{index}].tool_call_id",
                )
            if call_id in answered:
                raise self.error(
                    f"Invalid parameter: Duplicate value for 'tool_call_id' of '{call_id}', in "
                    f"messages[{answered[call_id]}] and messages[{index}].",
                    param=f"messages.[{index}].tool_call_id",
                )
            answered[call_id] = index
            index += 1
        unanswered = [call_id for call_id in expected if call_id not in answered]
        if unanswered:
            raise self.error(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                "'tool_call_id'. The following tool_call_ids did not have response messages: " + ", ".join(unanswered),
                param=f"messages.[{index}].role",
            )
        return index

    def _check_alternation(self, messages: list[Json]) -> None:
        def fail(sentence: str) -> ApiError:
            return ApiError(
                400, {"error": {"message": sentence, "type": "BadRequestError", "param": None, "code": 400}}
            )

        opening = next((i for i, message in enumerate(messages) if message["role"] not in _SYSTEM), len(messages))
        rest = messages[opening:]
        if any(message["role"] in _SYSTEM for message in rest):
            raise fail("Only user and assistant roles are supported, with the exception of an initial system message!")
        spoken = [message["role"] for message in rest if message["role"] != "tool" and not message.get("tool_calls")]
        if any(role != ("user", "assistant")[index % 2] for index, role in enumerate(spoken)):
            raise fail(
                "After the optional system message, conversation roles must alternate user/assistant/user/assistant/..."
            )

    def respond(self, index: int, body: Json, reply: Reply, usage: Usage) -> Json:
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
            for call in reply.tool_calls
        ]
        message: Json = {"role": "assistant", "content": reply.text, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(reply)}
        head = _head(index, body, "chat.completion")
        return {**head, "choices": [choice], **({"usage": reported} if (reported := self._reported(usage)) else {})}

    def stream(self, index: int, body: Json, reply: Reply, usage: Usage) -> Iterator[str]:
        asked_for_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        head = _head(index, body, "chat.completion.chunk")
        if asked_for_usage:
            head["usage"] = None

        def chunk(delta: Json, finish_reason: str | None = None) -> str:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
            return _event({**head, "choices": [choice]})

        yield chunk({"role": "assistant", "content": "" if reply.text else None, "refusal": None})
        for piece in pieces(reply.reasoning or ""):
            yield chunk({"reasoning_content": piece})
        for piece in pieces(reply.text or ""):
            yield chunk({"content": piece})
        for position, call in enumerate(reply.tool_calls):
            opening = {"name": call.name, "arguments": ""}
            yield chunk({"tool_calls": [{"index": position, "id": call.id, "type": "function", "function": opening}]})
            for piece in pieces(call.arguments_json):
                yield chunk({"tool_calls": [{"index": position, "function": {"arguments": piece}}]})
        yield chunk({}, _finish_reason(reply))
        reported = self._reported(usage)
        if asked_for_usage and reported:
            yield _event({**head, "choices": [], "usage": reported})
        yield "data: [DONE]\n\n"

    def _reported(self, usage: Usage) -> Json | None:
        if self.usage_mode == "none":
            return None
        prompt = usage.prompt - usage.cached if self.usage_mode == "net_of_cache" else usage.prompt
        total = {"total_tokens": prompt + usage.completion}
        if self.usage_mode == "total_only":
            return total
        return {
            "prompt_tokens": prompt,
            "completion_tokens": usage.completion,
            **total,
            "prompt_tokens_details": {"cached_tokens": usage.cached, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning, "audio_tokens": 0},
        }

    def _missing(self, path: str) -> ApiError:
        return self.error(f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter")

    def _empty_array(self, path: str) -> ApiError:
        return self.error(
            f"Invalid '{path}': empty array. Expected an array with minimum length 1, but got an empty array instead.",
            param=path,
            code="empty_array",
        )

    def _invalid_type(self, path: str, expected: str, value: Any) -> ApiError:
        names = {dict: "an object", list: "an array", str: "a string", int: "an integer", type(None): "null"}
        found = names.get(type(value), f"a {type(value).__name__}")
        return self.error(
            f"Invalid type for '{path}': expected {expected}, but got {found} instead.", param=path, code="invalid_type"
        )

    def _unsupported(self, value: str, supported: tuple[str, ...], path: str) -> ApiError:
        *most, last = (f"'{name}'" for name in supported)
        listed = f"{', '.join(most)}, and {last}" if most else last
        return self.error(
            f"Invalid value: '{value}'. Supported values are: {listed}.", param=path, code="invalid_value"
        )


def _head(index: int, body: Json, kind: str) -> Json:
    return {"id": f"chatcmpl-{index}", "object": kind, "created": 1_700_000_000, "model": body.get("model", "scripted")}


def _finish_reason(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")


def _event(data: Json) -> str:
    return f"data: {json.dumps(data)}\n\n"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
