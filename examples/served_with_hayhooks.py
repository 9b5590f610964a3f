# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
A model behind hayhooks, over HTTP, for clients that know nothing of compaction (extra `serve`).

This script starts the server on the loopback, talks to it, and stops it. By hand:

    hayhooks run --pipelines-dir examples/served
    curl localhost:1416/v1/chat/completions -H "Content-Type: application/json" \
        -d '{"model": "tides", "messages": [{"role": "user", "content": "When is high tide?"}]}'

With a real model: served/tides/pipeline_wrapper.py says at its top what to replace.
"""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

SERVED = Path(__file__).parent / "served"


def free_port() -> int:
    """Find a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(url: str, server: "subprocess.Popen[bytes]") -> None:
    """Wait until the server answers."""
    deadline = time.monotonic() + 60
    while server.poll() is None and time.monotonic() < deadline:
        try:
            urlopen(url).close()
            return
        except URLError:
            time.sleep(0.2)
    raise SystemExit("hayhooks did not start. Without `stderr=subprocess.DEVNULL` it says why.")


def chat(url: str, messages: list[dict[str, str]]) -> str:
    """Send the conversation and return the answer."""
    data = json.dumps({"model": "tides", "messages": messages}).encode()
    request = Request(f"{url}/v1/chat/completions", data=data, headers={"Content-Type": "application/json"})
    with urlopen(request) as response:
        completion: dict[str, Any] = json.load(response)
        answer: str = completion["choices"][0]["message"]["content"]
        return answer


hayhooks = Path(sys.executable).with_name("hayhooks")
if not hayhooks.exists():
    raise SystemExit("This example needs the extra `serve`: pip install -e '.[serve]'")
port = free_port()
url = f"http://127.0.0.1:{port}"
server = subprocess.Popen(
    [str(hayhooks), "run", "--host", "127.0.0.1", "--port", str(port), "--pipelines-dir", str(SERVED)],
    stderr=subprocess.DEVNULL,
)
try:
    wait_for(f"{url}/status", server)
    messages = [{"role": "system", "content": "You know everything about tides."}]
    for day in range(60):
        messages.append({"role": "user", "content": f"When is high tide on day {day}? " + "Please be precise. " * 10})
        answer = chat(url, messages)
        messages.append({"role": "assistant", "content": answer})
        if day % 10 == 9:
            print(f"{len(messages)} messages so far. {answer}")
finally:
    server.terminate()
    server.wait()
