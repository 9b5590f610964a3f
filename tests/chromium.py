# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
A real browser for tests of pages: a headless Chromium, driven over a pipe with its own DevTools protocol.

Nothing but the browser is needed, such as Debian's package `chromium`.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

_TIMEOUT_SECONDS = 30
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

# What a key is called in the protocol beyond its name.
_KEYS: dict[str, dict[str, Any]] = {
    "Enter": {"windowsVirtualKeyCode": 13, "text": "\r"},
    "Tab": {"windowsVirtualKeyCode": 9},
    "Escape": {"windowsVirtualKeyCode": 27},
    "End": {"windowsVirtualKeyCode": 35},
    "Home": {"windowsVirtualKeyCode": 36},
    "ArrowLeft": {"windowsVirtualKeyCode": 37},
    "ArrowUp": {"windowsVirtualKeyCode": 38},
    "ArrowRight": {"windowsVirtualKeyCode": 39},
    "ArrowDown": {"windowsVirtualKeyCode": 40},
}


def find_chromium() -> str | None:
    """Where Chromium is installed, None if it isn't."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


class Chromium:
    """
    A running browser. Close it.

    :param executable: The program.
    :param profile: An empty folder for what it has to write.
    """

    def __init__(self, executable: str, profile: Path) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        arguments = [executable, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        arguments += ["--no-first-run", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
        if os.geteuid() == 0:
            arguments.append("--no-sandbox")

        def give_pipe() -> None:
            # It reads from 3 and writes to 4. Out of the way first, lest one is put over the other.
            ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            arguments, preexec_fn=give_pipe, pass_fds=(3, 4), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._unread = b""
        self._calls = 0
        self._pages: dict[str, Page] = {}

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> "Page":
        """Open a file in a page of its own, and wait until it is loaded."""
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self._pages[session] = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        page.prefer(dark=dark)
        page.call("Page.navigate", {"url": path.as_uri()})
        page.wait_for("document.readyState === 'complete' && location.protocol === 'file:'")
        return page

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(_TIMEOUT_SECONDS)
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, parameters: dict[str, Any] | None = None, session: str | None = None) -> Any:
        """Call a method of the protocol and return its result."""
        self._calls += 1
        call = {"id": self._calls, "method": method, "params": parameters or {}}
        os.write(self._out, json.dumps(call | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            message = self._next_message(method)
            if message.get("id") == self._calls:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            if page := self._pages.get(message.get("sessionId", "")):
                page.note(message)

    def _next_message(self, method: str) -> dict[str, Any]:
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while b"\0" not in self._unread:
            if not select.select([self._in], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise TimeoutError(f"Chromium did not answer {method} within {_TIMEOUT_SECONDS} s")
            read = os.read(self._in, 1 << 20)
            if not read:
                raise RuntimeError("Chromium ended")
            self._unread += read
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)


class Page:
    """A page of the browser, and what it complained about and asked for."""

    def __init__(self, browser: Chromium, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target
        self.errors: list[str] = []
        self.requests: list[str] = []

    def call(self, method: str, parameters: dict[str, Any] | None = None) -> Any:
        return self._browser.call(method, parameters, self._session)

    def note(self, message: dict[str, Any]) -> None:
        """Take note of an event."""
        parameters = message.get("params", {})
        if message["method"] == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"]))
        elif message["method"] == "Runtime.consoleAPICalled":
            self.errors.append(json.dumps(parameters["args"]))
        elif message["method"] == "Log.entryAdded":
            self.errors.append(parameters["entry"]["text"])
        elif message["method"] == "Page.javascriptDialogOpening":
            self.errors.append(f"dialog: {parameters['message']}")
        elif message["method"] == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript, or of what it promises."""
        parameters = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", parameters)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not true within {_TIMEOUT_SECONDS} s: {expression}")
            time.sleep(0.02)

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, *, dark: bool) -> None:
        """Be on a system with a dark or a light theme."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", {"features": [scheme]})

    def press(self, *keys: str) -> None:
        """Press keys one after the other, by name: `Tab`, `ArrowDown`, `a`."""
        for key in keys:
            description = {"key": key, "code": key, **_KEYS.get(key, {"text": key, "code": ""})}
            self.call("Input.dispatchKeyEvent", {"type": "keyDown", **description})
            self.call("Input.dispatchKeyEvent", {"type": "keyUp", **description, "text": ""})

    def type(self, text: str) -> None:
        """Put a text into what has the focus, as an input method would."""
        self.call("Input.insertText", {"text": text})

    def click(self, selector: str) -> None:
        """Click the middle of the first element of a selector."""
        box = self.evaluate(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)});"
            "found.scrollIntoView({block: 'center'}); const box = found.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            event = {"type": kind, "x": box[0], "y": box[1], "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", event)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", {"format": "png"})["data"]))

    def close(self) -> None:
        self._browser.call("Target.closeTarget", {"targetId": self._target})
