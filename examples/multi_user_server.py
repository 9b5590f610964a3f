# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
One Agent with one hook behind an HTTP server, for many users at the same time; nobody sees anything of anybody else's
conversation.

The hook keeps nothing of a run once it is over, so one of it serves all. The server keeps each user's conversation as
the run returned it, compacted, and a lock for each user, so that two messages of one user come one after the other.

With a real model: replace `ScriptedChatGenerator(reply)` by
`haystack.components.generators.chat.OpenAIChatGenerator(model="gpt-5.4-nano")`, set OPENAI_API_KEY, set
`context_window` to that of the model, and put authentication before it: here users are who they say they are.
"""

import json
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import Request, urlopen

from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage
from scripted import ScriptedChatGenerator

from haystack_compaction import CompactionHook, EstimateTokenCounter, SummarizationCompactor

WINDOW = 2_000


def reply(number: int, messages: list[ChatMessage]) -> ChatMessage:
    """Refuse what does not fit, and answer with all the booking codes that are visible."""
    size = EstimateTokenCounter().count(messages)
    if size > WINDOW:
        raise RuntimeError(f"the context of {size} tokens does not fit the window of {WINDOW}")
    words = " ".join(message.text or "" for message in messages).replace(".", " ").split()
    codes = sorted({word for word in words if word.startswith("BOOKING-")})
    return ChatMessage.from_assistant(f"I know of {', '.join(codes)}. " + "The ferry leaves at noon. " * 10)


class Conversations:
    """The conversation of each user."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.messages: defaultdict[str, list[ChatMessage]] = defaultdict(list)
        self.locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def answer(self, user: str, text: str) -> str:
        """Go on with the user's conversation."""
        with self.locks[user]:
            result = self.agent.run(messages=[*self.messages[user], ChatMessage.from_user(text)])
            # The Agent puts its system prompt in front of each run.
            self.messages[user] = [message for message in result["messages"] if not message.is_from("system")]
            return result["last_message"].text or ""


class Handler(BaseHTTPRequestHandler):
    """Takes `{"user": ..., "text": ...}` and answers `{"text": ...}`."""

    conversations: Conversations

    def do_POST(self) -> None:
        """Answer a message."""
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"text": self.conversations.answer(message["user"], message["text"])}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing of each request."""


def say(url: str, user: str, text: str) -> str:
    """Send a message to the server as a user."""
    data = json.dumps({"user": user, "text": text}).encode()
    with urlopen(Request(url, data=data)) as response:
        answer: str = json.load(response)["text"]
        return answer


def chat(url: str, user: str) -> str:
    """Book first, then talk until the beginning has long been compacted, and ask."""
    say(url, user, f"My booking is BOOKING-{user.upper()}. Please keep it in mind.")
    for day in range(30):
        say(url, user, f"What is the weather on day {day}? " + "I hope that the crossing is calm. " * 5)
    return say(url, user, "What is my booking?")


Handler.conversations = Conversations(
    Agent(
        chat_generator=ScriptedChatGenerator(reply),
        system_prompt="You work for the ferry.",
        hooks={"before_llm": [CompactionHook(SummarizationCompactor(), context_window=WINDOW)]},
    )
)
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()

users = ["anna", "bela", "carl", "dora"]
with ThreadPoolExecutor() as pool:
    answers = list(pool.map(lambda user: chat(f"http://127.0.0.1:{server.server_port}", user), users))
for user, answer in zip(users, answers, strict=True):
    print(f"{user}: {answer.split('.')[0]}, after {len(Handler.conversations.messages[user])} messages left of 64")
    if answer.split(".")[0] != f"I know of BOOKING-{user.upper()}":
        raise SystemExit(f"{user} was told something else: {answer}")
server.shutdown()
