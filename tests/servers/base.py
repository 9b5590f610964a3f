# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What every scripted provider shares: HTTP, the script, the token account and the prompt cache."""

import json
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

Json: TypeAlias = dict[str, Any]
UsageMode: TypeAlias = Literal["full", "net_of_cache", "none", "total_only"]

# Role markers, separators and the like, which every chat format spends on a message.
MESSAGE_TOKENS = 4
# Providers price an image by its size in pixels, never by its base64.
ATTACHMENT_TOKENS = 800

_ATTACHMENTS = {"image", "image_url", "input_audio", "document", "file"}
_READ_BY_THE_MODEL = {"arguments", "content", "function", "input", "name", "refusal", "text", "thinking", "tool_calls"}


@dataclass(frozen=True)
class Call:
    """A tool call in a reply. Without an id the server makes one up, as models do."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""

    @property
    def arguments_json(self) -> str:
        # As models write them, without escapes.
        return json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True)
class Reply:
    """What the model says next. `finish_reason` is worked out unless given."""

    text: str | None = None
    tool_calls: Sequence[Call] = ()
    finish_reason: str | None = None
    reasoning: str | None = None


Script: TypeAlias = Callable[[int, list[Json]], Reply | str] | Sequence[Reply | str]


class ApiError(Exception):
    """An error as it goes over the wire. A script may raise one to play an outage or a rate limit."""

    def __init__(self, status: int, body: Json) -> None:
        super().__init__(body["error"]["message"])
        self.status = status
        self.body = body


@dataclass(frozen=True)
class Usage:
    """The true numbers, whatever the usage mode then makes of them."""

    prompt: int
    cached: int
    newest: int
    completion: int
    reasoning: int


class Segment(NamedTuple):
    """A part of the prompt that the cache holds or misses as one: the tools, the system text, a message."""

    fingerprint: str
    tokens: int


def default_count(text: str) -> int:
    return len(text) // 4 + 1


def canonical(value: Any) -> str:
    """The same text for the same content. Cache marks may move between requests, so they are no content."""

    def unmarked(item: Any) -> Any:
        if isinstance(item, dict):
            return {key: unmarked(part) for key, part in item.items() if key != "cache_control"}
        return [unmarked(part) for part in item] if isinstance(item, list) else item

    return json.dumps(unmarked(value), sort_keys=True)


def pieces(text: str, size: int = 48) -> list[str]:
    """The text in the portions a stream would bring it in."""
    return [text[start : start + size] for start in range(0, len(text), size)]


ServerT = TypeVar("ServerT", bound="ChatServer")


class ChatServer(ABC):
    """
    A provider for tests, in a thread, on an ephemeral port of the loopback.

    It checks each request as the real provider does, prices it, and lets the script answer those that pass.

    :param script: The replies in order, or a callable given the index of the request and its messages. Only requests
        that were accepted take a reply and count in the index.
    :param count: Counts the tokens of a text.
    :param context_window: Longer prompts are rejected with the provider's own overflow error.
    :param max_output_tokens: Longer replies are cut off, as they are by the limit in the request and by what the
        prompt leaves of the window.
    :param usage: What the replies report. `full`: the whole prompt. `net_of_cache`: the prompt without the cached
        prefix, which is reported separately. `total_only`: one number. `none`: no usage at all.
    """

    paths: ClassVar[tuple[str, ...]]
    base_path: ClassVar[str] = ""
    call_id_prefix: ClassVar[str]

    def __init__(
        self,
        script: Script,
        *,
        count: Callable[[str], int] = default_count,
        context_window: int = 128_000,
        max_output_tokens: int | None = None,
        usage: UsageMode = "full",
    ) -> None:
        self.script = script
        self.count = count
        self.context_window = context_window
        self.max_output_tokens = max_output_tokens
        self.usage_mode = usage
        self.requests: list[Json] = []
        """The body of every request, in the order of arrival."""
        self.errors: list[ApiError] = []
        """Every error answered. Empty means that the provider accepted all it was sent."""
        self.usages: list[Usage] = []
        """The true numbers of every request that was answered."""
        self._accepted: list[list[Segment]] = []
        self._lock = threading.Lock()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}{self.base_path}"

    def __enter__(self: ServerT) -> ServerT:
        self._http = _Http(("127.0.0.1", 0), partial(_Handler, self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @abstractmethod
    def check(self, body: Json) -> None:
        """Raise the `ApiError` that the real provider answers this request with, if it does."""

    @abstractmethod
    def error(self, message: str, *, status: int = 400) -> ApiError: ...

    @abstractmethod
    def too_long(self, tokens: int, tool_tokens: int) -> ApiError: ...

    @abstractmethod
    def respond(self, index: int, body: Json, reply: Reply, usage: Usage) -> Json:
        """The answer in one piece."""

    @abstractmethod
    def stream(self, index: int, body: Json, reply: Reply, usage: Usage) -> Iterator[str]:
        """The answer as server-sent events."""

    def handle(self, path: str, raw: bytes) -> Json | Iterator[str] | ApiError:
        try:
            return self._answer(path, json.loads(raw))
        except Exception as exception:
            # A script that fails is to fail the test that runs it, and not to leave the client waiting.
            failure = f"{type(exception).__name__}: {exception}"
            error = exception if isinstance(exception, ApiError) else self.error(failure, status=500)
            self.errors.append(error)
            return error

    def _answer(self, path: str, body: Json) -> Json | Iterator[str]:
        self.requests.append(body)
        if path.partition("?")[0] not in self.paths:
            raise self.error(f"Unknown request URL: POST {path}.", status=404)
        self.check(body)
        segments = self._segments(body)
        prompt = sum(segment.tokens for segment in segments)
        if prompt > self.context_window:
            raise self.too_long(prompt, segments[0].tokens if body.get("tools") else 0)
        with self._lock:
            index = len(self._accepted)
            cached = max((_common_prefix(earlier, segments) for earlier in self._accepted), default=0)
            self._accepted.append(segments)
        reply = self._fitted(self._scripted(index, body["messages"]), self._room(body, prompt))
        reasoning = self.count(reply.reasoning) if reply.reasoning else 0
        newest = min(segments[-1].tokens, prompt - cached)
        usage = Usage(prompt, cached, newest, reasoning + self._spoken(reply), reasoning)
        self.usages.append(usage)
        return (self.stream if body.get("stream") else self.respond)(index, body, reply, usage)

    def _scripted(self, index: int, messages: list[Json]) -> Reply:
        if callable(self.script):
            reply = self.script(index, messages)
        elif index < len(self.script):
            reply = self.script[index]
        else:
            raise IndexError(f"the script has {len(self.script)} replies, and request {index} asks for another")
        if isinstance(reply, str):
            return Reply(reply)
        made_up = (f"{self.call_id_prefix}{index}_{position}" for position in range(len(reply.tool_calls)))
        calls = [replace(call, id=call.id or new) for call, new in zip(reply.tool_calls, made_up, strict=True)]
        return replace(reply, tool_calls=calls)

    def _room(self, body: Json, prompt: int) -> int:
        asked = body.get("max_completion_tokens") or body.get("max_tokens")
        limits = (self.max_output_tokens, asked, self.context_window - prompt)
        return min(limit for limit in limits if limit is not None)

    def _fitted(self, reply: Reply, room: int) -> Reply:
        """The reply of a model that stops where its tokens run out: it thinks, then speaks, then calls."""
        reasoning, room = self._cut(reply.reasoning, room)
        text, room = self._cut(reply.text, room)
        calls = list(reply.tool_calls)
        while calls and self._spoken(Reply(tool_calls=calls)) > room:
            calls.pop()
        if (reasoning, text, len(calls)) == (reply.reasoning, reply.text, len(reply.tool_calls)):
            return reply
        return Reply(text, calls, "length", reasoning)

    def _cut(self, text: str | None, room: int) -> tuple[str | None, int]:
        if not text:
            return text, room
        size = self.count(text)
        if size <= room:
            return text, room - size
        fitting = bisect_right(range(len(text)), room, key=lambda length: self.count(text[:length])) - 1
        return text[: max(fitting, 0)] or None, 0

    def _spoken(self, reply: Reply) -> int:
        calls = sum(self.count(call.name) + self.count(call.arguments_json) for call in reply.tool_calls)
        return calls + (self.count(reply.text) if reply.text else 0)

    def _segments(self, body: Json) -> list[Segment]:
        tools = body.get("tools") and json.dumps(body["tools"])
        parts = [part for part in (tools, body.get("system"), *body["messages"]) if part]
        return [Segment(canonical(part), MESSAGE_TOKENS + self._tokens(part)) for part in parts]

    def _tokens(self, value: Any) -> int:
        if isinstance(value, str):
            return self.count(value)
        if isinstance(value, list):
            return sum(self._tokens(item) for item in value)
        if not isinstance(value, dict):
            return 0
        if value.get("type") in _ATTACHMENTS:
            return ATTACHMENT_TOKENS
        if value.get("type") == "tool_use":
            return self.count(value["name"]) + self.count(json.dumps(value["input"], ensure_ascii=False))
        return sum(self._tokens(part) for key, part in value.items() if key in _READ_BY_THE_MODEL)


def _common_prefix(earlier: Iterable[Segment], later: Iterable[Segment]) -> int:
    tokens = 0
    for old, new in zip(earlier, later, strict=False):
        if old.fingerprint != new.fingerprint:
            break
        tokens += new.tokens
    return tokens


class _Http(ThreadingHTTPServer):
    # The default of 5 turns away the burst of a summarizer that asks for everything at once.
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    # The default, HTTP/1.0, closes each connection: no thread outlives its request. Nagle's algorithm would hold back
    # every second write of a stream.
    disable_nagle_algorithm = True

    def __init__(self, chat: ChatServer, *args: Any) -> None:
        self.chat = chat
        super().__init__(*args)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = self.chat.handle(self.path, raw)
        if isinstance(answer, ApiError):
            self._send_json(answer.status, answer.body)
        elif isinstance(answer, dict):
            self._send_json(200, answer)
        else:
            self._send_events(answer)

    def _send_json(self, status: int, body: Json) -> None:
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def _send_events(self, events: Iterator[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            for event in events:
                self.wfile.write(event.encode())
        except ConnectionError:
            # A client may hang up in the middle of a stream; real servers shrug, too.
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Silence: what a test has to know is in `requests` and `errors`."""
