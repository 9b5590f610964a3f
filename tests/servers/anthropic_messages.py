# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""A messages endpoint as strict as Anthropic's about tool results, blank texts and signed thinking."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from servers.base import ApiError, ChatServer, Json, Reply, Script, Usage, UsageMode, canonical, default_count, pieces

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_THINKING = ("thinking", "redacted_thinking")


@dataclass(frozen=True)
class _Block:
    """A content block, and the message and place it was sent in."""

    message: int
    place: int
    data: Json

    @property
    def type(self) -> str:
        return str(self.data.get("type"))

    @property
    def path(self) -> str:
        return f"messages.{self.message}.content.{self.place}"


@dataclass
class _Turn:
    """Consecutive messages of one role, which the API reads as one."""

    role: str
    blocks: list[_Block]

    def of_type(self, kind: str) -> list[_Block]:
        return [block for block in self.blocks if block.type == kind]


class StrictAnthropicServer(ChatServer):
    """
    Answers `/v1/messages`, in one piece and streaming; see `ChatServer` for what all servers share.

    :param bind_thinking: Besides, hold a thinking block to the system prompt, the tools and the turns it was written
        after, as the newest models do: to change any of these is to invalidate every later block.
    """

    paths = ("/v1/messages",)
    call_id_prefix = "toolu_"

    def __init__(
        self,
        script: Script,
        *,
        count: Callable[[str], int] = default_count,
        context_window: int = 128_000,
        max_output_tokens: int | None = None,
        usage: UsageMode = "full",
        bind_thinking: bool = False,
    ) -> None:
        super().__init__(
            script, count=count, context_window=context_window, max_output_tokens=max_output_tokens, usage=usage
        )
        self.bind_thinking = bind_thinking

    @staticmethod
    def sign(thinking: str, *before: Any) -> str:
        """
        The signature this server gives a thinking block. For conversations that a test makes up, the text will do.

        :param before: What the block is bound to, where the server binds it.
        """
        return f"{_digest(thinking)}.{_digest(*before)}"

    def error(self, message: str, *, status: int = 400) -> ApiError:
        kind = {400: "invalid_request_error", 404: "not_found_error"}.get(status, "api_error")
        return ApiError(status, {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"})

    def too_long(self, tokens: int, tool_tokens: int) -> ApiError:
        return self.error(f"prompt is too long: {tokens} tokens > {self.context_window} maximum")

    def check(self, body: Json) -> None:
        for name in ("model", "max_tokens", "messages"):
            if name not in body:
                raise self.error(f"{name}: Field required")
        messages = body["messages"]
        if not messages:
            raise self.error("messages: at least one message is required")
        for index, message in enumerate(messages):
            if message.get("role") not in ("user", "assistant"):
                raise self.error(
                    f'messages: Unexpected role "{message.get("role")}". The Messages API accepts a top-level `system` '
                    'parameter, not "system" as an input message role.'
                )
            if not message.get("content") and (message["role"] == "user" or index < len(messages) - 1):
                raise self.error(
                    f"messages.{index}: all messages must have non-empty content except for the optional final "
                    "assistant message"
                )
        if messages[0]["role"] != "user":
            raise self.error('messages: first message must use the "user" role')
        if isinstance(body.get("system"), list):
            self._check_texts(body["system"], "system")
        turns = _turns(messages)
        self._check_blocks(turns)
        self._check_tools(turns)
        if (body.get("thinking") or {}).get("type") == "enabled":
            self._check_running_loop(turns)
        self._check_signatures(body, turns)

    def _check_texts(self, blocks: list[Any], where: str) -> None:
        for block in blocks:
            if block.get("type") == "text" and not block.get("text"):
                raise self.error(f"{where}: text content blocks must be non-empty")
            if block.get("type") == "text" and not block["text"].strip():
                raise self.error(f"{where}: text content blocks must contain non-whitespace text")

    def _check_blocks(self, turns: list[_Turn]) -> None:
        used: set[str] = set()
        for turn in turns:
            for block in turn.blocks:
                self._check_texts([block.data], "messages")
                if block.type == "tool_result":
                    if turn.role != "user":
                        raise self.error(
                            f"messages.{block.message}: `tool_result` blocks can only be in `user` messages"
                        )
                    if isinstance(block.data.get("content"), list):
                        self._check_texts(block.data["content"], "messages")
                if block.type == "tool_use":
                    if turn.role != "assistant":
                        raise self.error(
                            f"messages.{block.message}: `tool_use` blocks can only be in `assistant` messages"
                        )
                    if not re.fullmatch(r"[a-zA-Z0-9_-]+", str(block.data.get("id"))):
                        raise self.error(f"{block.path}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
                    if block.data["id"] in used:
                        raise self.error(f"{block.path}: `tool_use` ids must be unique")
                    used.add(block.data["id"])

    def _check_tools(self, turns: list[_Turn]) -> None:
        before = _Turn("user", [])
        for turn, after in zip(turns, [*turns[1:], _Turn("user", [])], strict=True):
            calls = [block.data["id"] for block in before.of_type("tool_use")]
            answered: set[Any] = set()
            for block in turn.of_type("tool_result"):
                call_id = block.data.get("tool_use_id")
                if call_id not in calls:
                    raise self.error(
                        f"{block.path}: unexpected `tool_use_id` found in `tool_result` blocks: {call_id}. Each "
                        "`tool_result` block must have a corresponding `tool_use` block in the previous message."
                    )
                if call_id in answered:
                    raise self.error(
                        f"{block.path}: each tool_use must have a single result. Found multiple `tool_result` blocks "
                        f"with id: {call_id}"
                    )
                answered.add(call_id)
            # A result behind anything else, even in the right message, counts as none.
            results = {block.data.get("tool_use_id") for block in _leading(after, "tool_result")}
            missing = [block for block in turn.of_type("tool_use") if block.data["id"] not in results]
            if missing:
                raise self.error(
                    f"messages.{missing[0].message}: `tool_use` ids were found without `tool_result` blocks "
                    f"immediately after: {', '.join(block.data['id'] for block in missing)}. Each `tool_use` block "
                    "must have a corresponding `tool_result` block in the next message."
                )
            before = turn

    def _check_running_loop(self, turns: list[_Turn]) -> None:
        start = max(
            (index for index, turn in enumerate(turns) if turn.role == "user" and not turn.of_type("tool_result")),
            default=-1,
        )
        replies = [turn for turn in turns[start + 1 :] if turn.role == "assistant" and turn.blocks]
        if any(turn.of_type("tool_use") for turn in replies) and replies[0].blocks[0].type not in _THINKING:
            first = replies[0].blocks[0]
            raise self.error(
                f"{first.path}.type: Expected `thinking` or `redacted_thinking`, but found `{first.type}`. When "
                "`thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the "
                "lastmost set of `tool_use` and `tool_result` blocks). We recommend you include thinking blocks from "
                "previous turns. To avoid this requirement, disable `thinking`. Please consult our documentation at "
                "https://docs.claude.com/en/docs/build-with-claude/extended-thinking"
            )

    def _check_signatures(self, body: Json, turns: list[_Turn]) -> None:
        for index, turn in enumerate(turns):
            for block in turn.blocks:
                if block.type == "redacted_thinking":
                    raise self.error(f"{block.path}: Invalid `data` in `redacted_thinking` block")
                if block.type != "thinking":
                    continue
                of_text, _, of_conversation = str(block.data.get("signature")).partition(".")
                expected = self.sign(block.data.get("thinking", ""), *_before(body, turns[:index]))
                if of_text != expected.partition(".")[0]:
                    raise self.error(f"{block.path}: Invalid `signature` in `thinking` block")
                if self.bind_thinking and of_conversation != expected.partition(".")[2]:
                    raise self.error(
                        f"{block.path}: Invalid `signature` in `thinking` block. The block is bound to a different "
                        "conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "
                        '"drop_block". That setting requires the `thinking-binding-controls-2026-08-01` value in the '
                        "`anthropic-beta` header."
                    )

    def respond(self, index: int, body: Json, reply: Reply, usage: Usage) -> Json:
        return {
            **_head(index, body),
            "content": self._content(body, reply),
            "stop_reason": _stop_reason(reply),
            **self._reported(usage, usage.completion),
        }

    def stream(self, index: int, body: Json, reply: Reply, usage: Usage) -> Iterator[str]:
        opening = {**_head(index, body), "content": [], "stop_reason": None, "usage": {}, **self._reported(usage, 1)}
        yield _event("message_start", message=opening)
        for position, block in enumerate(self._content(body, reply)):
            empty, deltas = _portions(block)
            yield _event("content_block_start", index=position, content_block=empty)
            for delta in deltas:
                yield _event("content_block_delta", index=position, delta=delta)
            yield _event("content_block_stop", index=position)
        closing = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
        yield _event("message_delta", delta=closing, **{"usage": {}, **self._reported(usage, usage.completion)})
        yield _event("message_stop")

    def _content(self, body: Json, reply: Reply) -> list[Json]:
        content: list[Json] = []
        mode = (body.get("thinking") or {}).get("type", "disabled")
        # With a budget the model always thinks first; when adaptive, only where it sees a reason to.
        thought = reply.reasoning or ("Let me think." if mode == "enabled" else None)
        if mode != "disabled" and thought:
            signature = self.sign(thought, *_before(body, _turns(body["messages"])))
            content.append({"type": "thinking", "thinking": thought, "signature": signature})
        if reply.text:
            content.append({"type": "text", "text": reply.text})
        for call in reply.tool_calls:
            content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": dict(call.arguments)})
        return content

    def _reported(self, usage: Usage, output_tokens: int) -> Json:
        if self.usage_mode == "none":
            return {}
        if self.usage_mode == "total_only":
            return {"usage": {"total_tokens": usage.prompt + output_tokens}}
        read = written = 0
        if self.usage_mode == "net_of_cache":
            # As with a breakpoint on the last message but one: the newest message is neither read nor written.
            read, written = usage.cached, usage.prompt - usage.cached - usage.newest
        return {
            "usage": {
                "input_tokens": usage.prompt - read - written,
                "cache_read_input_tokens": read,
                "cache_creation_input_tokens": written,
                "output_tokens": output_tokens,
            }
        }


def _turns(messages: list[Json]) -> list[_Turn]:
    turns: list[_Turn] = []
    for index, message in enumerate(messages):
        content = message.get("content") or []
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        blocks = [_Block(index, place, part) for place, part in enumerate(parts)]
        if turns and turns[-1].role == message["role"]:
            turns[-1] = replace(turns[-1], blocks=turns[-1].blocks + blocks)
        else:
            turns.append(_Turn(message["role"], blocks))
    return turns


def _leading(turn: _Turn, kind: str) -> list[_Block]:
    others = (place for place, block in enumerate(turn.blocks) if block.type != kind)
    return turn.blocks[: next(others, len(turn.blocks))]


def _before(body: Json, turns: list[_Turn]) -> list[Any]:
    """What a thinking block is bound to. Earlier thinking may go, oldest first, so it does not count."""
    spoken = [[turn.role, [block.data for block in turn.blocks if block.type not in _THINKING]] for turn in turns]
    return [body.get("system"), body.get("tools"), spoken]


def _digest(*parts: Any) -> str:
    return hashlib.sha256(canonical(parts).encode()).hexdigest()[:24]


def _portions(block: Json) -> tuple[Json, list[Json]]:
    """A block as a stream starts it, and what the deltas then bring."""
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [*deltas, signed]
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
    arguments = pieces(json.dumps(block["input"]))
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in arguments]


def _head(index: int, body: Json) -> Json:
    return {
        "id": f"msg_{index}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "stop_sequence": None,
    }


def _stop_reason(reply: Reply) -> str:
    reason = reply.finish_reason or ("tool_calls" if reply.tool_calls else "stop")
    return _STOP_REASONS.get(reason, reason)


def _event(kind: str, **data: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n"
