# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

import subprocess
import sys

import commands
import pytest

import haystack_compaction

_WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "{package}":
            raise {error}

sys.meta_path.insert(0, Missing())
from haystack_compaction.cli import main
main()
"""


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, encoding="utf-8")


def test_version() -> None:
    done = run("-m", "haystack_compaction.cli", "--version")
    assert (done.returncode, done.stdout) == (0, f"haystack-compaction {haystack_compaction.__version__}\n")


@pytest.mark.parametrize("command", ["demo", "preview", "compare", "inspect", "replay", "history", "export"])
def test_help(command: str) -> None:
    assert command in commands.run("--help").stdout
    done = commands.run(command, "--help")
    assert done.exit_code == 0
    assert f" {command} [OPTIONS]" in done.stdout


@pytest.mark.parametrize("package", ["typer", "rich", "jinja2"])
def test_without_its_extra_it_says_what_to_install(package: str) -> None:
    error = 'ModuleNotFoundError("no such module", name=name)'
    done = run("-c", _WITHOUT.format(package=package, error=error))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert 'pip install "haystack-compaction[cli]"' in done.stderr


def test_ctrl_c_while_it_starts() -> None:
    done = run("-c", _WITHOUT.format(package="typer", error="KeyboardInterrupt"))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
