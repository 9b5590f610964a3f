# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""
Runs all benchmarks in an environment of their own and writes docs/benchmarks.md.

Run `python benchmarks/run.py`, or with `--quick` for smaller sizes. It needs nothing but Python and a package index.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from datetime import date
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PAGE = ROOT / "docs" / "benchmarks.md"
REQUIREMENTS = HERE / "requirements.txt"


@dataclass(frozen=True)
class Section:
    """
    A part of the page, and the script that measures it.

    :param title: Its heading.
    :param script: The name of the script in this folder.
    :param about: How to read the results.
    :param options: What the script is given.
    :param quick: What it is given instead where time is short.
    """

    title: str
    script: str
    about: str
    options: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()


SECTIONS = (
    Section(
        "The bill of a long run",
        "bill.py",
        """\
An Agent makes 200 tool calls in a window of 32,000 tokens. The provider caches prefixes: a token of the prompt costs
0.1 where the request begins like an earlier one, message by message, and 1.25 where it is new. A request for a summary
comes once and costs 1 a token. Hooks and compactors have their defaults, `compact_to` in every second table aside;
`no compaction` has a window without limit. By default ours with a digest or a summary aim for 0.2 of the window, all
others for 0.4.

Before the task and in the run, 60 facts are said: rules, preferences, decisions, identifiers, open points, results of
tools. Each is needed three times later, soon after most often and much later now and then. *Known when needed* is the
share of these times at which the request held the fact letter by letter, *known at the end* the share of facts in the
last request. The summaries of the scripted model tell every fact that is in their prompt, which is more than a real
model does, so the rows with a model show the best that can be hoped for. What is written is not billed here.""",
        quick=("--seeds", "1", "--sizes", "mixed"),
    ),
    Section(
        "Dead runs in a small window",
        "dead_runs.py",
        """\
Each library's own Agent, against the same strict server with a window of 8,000 tokens. The server counts 0.9 tokens for
a Chinese character and half a token for one of base64, as hard tokenizers do. A run is dead when a request is refused,
when anything raises, or when a request lacks the task. Everybody is told the window, to begin at 70 % of it, and to go
down to 40 % where that can be set. Canned summaries tell the task.""",
        quick=("--kinds", "english", "base64"),
    ),
    Section(
        "Valid requests",
        "validity.py",
        """\
Compacted requests, judged by a server as strict as OpenAI's: first as the transcripts are, then after a damage that
happens in practice: a result that is lost, sent twice, or behind a message of the user. Repair is a part of ours; a
compaction that promises only to break nothing passes such damage on.""",
        quick=("--most", "1"),
    ),
    Section(
        "Time, library by library",
        "field.py",
        """\
Counters differ between the libraries, and so does what they do with their time: those that clear or remove by position
are as fast as can be, ours with a digest read the whole conversation.""",
        quick=("--messages", "2000"),
    ),
    Section(
        "Time, with the same counter",
        "speed.py",
        "What planning costs beside counting, the counter being the same on both sides.",
        quick=("--messages", "2000"),
    ),
    Section(
        "What survives",
        "fidelity.py",
        "A smaller version of the benchmark on the [page about fidelity](fidelity.md), which says how to read it.",
        options=("--seeds", "2", "--size", "60", "150"),
        quick=("--seeds", "1", "--size", "60", "--rounds", "1", "3"),
    ),
    Section("Archive", "archiving.py", "The [page about the archive](archive.md) says how to read it."),
    Section(
        "Our hook and Haystack's, more runs",
        "survival.py",
        "OpenAI's and Anthropic's rules, six kinds of output, sync and async, with and without usage.",
    ),
    Section("Token estimates", "token_estimate.py", "The results have [their own page](token-estimates.md)."),
)

# These take minutes whatever their options, or have a page of their own.
_NOT_QUICK = ("archiving.py", "survival.py", "token_estimate.py")
_OWN_PAGE = ("token_estimate.py",)


def main() -> None:
    """Run what was asked for and write the page."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        python = _environment(arguments.environment or Path(folder))
        parts = [_introduction(python, quick=arguments.quick)]
        for section in SECTIONS:
            if arguments.quick and section.script in _NOT_QUICK:
                continue
            if section.script == "validity.py" and not arguments.transcripts:
                print("no --transcripts: validity.py is left out", flush=True)
                continue
            options = section.quick if arguments.quick else section.options
            output = _measured(python, [section.script, *options], arguments.transcripts)
            command = " ".join(["python", f"benchmarks/{section.script}", *options])
            parts += [f"## {section.title}", f"`{command}`", section.about]
            if section.script not in _OWN_PAGE:
                parts.append(output if "|---" in output else f"```text\n{output}\n```")
        PAGE.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller sizes, and not all of them")
    parser.add_argument(
        "--environment", type=Path, help="a folder to keep the environment in; default: a temporary one"
    )
    parser.add_argument(
        "--transcripts",
        type=Path,
        default=os.environ.get("TRANSCRIPTS"),
        help="a folder of real conversations as JSON lines; default: the variable TRANSCRIPTS",
    )
    return parser.parse_args()


def _environment(folder: Path) -> Path:
    """The Python of an environment with this package and all peers."""
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    print("installing", flush=True)
    install = [python, "-m", "pip", "install", "-q", "-r", REQUIREMENTS, "-e", f"{ROOT}[test]"]
    subprocess.run(list(map(str, install)), check=True)
    return python


def _introduction(python: Path, *, quick: bool) -> str:
    code = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    installed = json.loads(subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout)
    names = [line.partition("==")[0].partition("[")[0] for line in REQUIREMENTS.read_text().splitlines()]
    versions = "\n".join(f"- {name} {installed[name]}" for name in ["haystack-compaction", *names] if name in installed)
    size = "\nThese are the results of `--quick`." if quick else ""
    return f"""\
# Benchmarks

Written by `python benchmarks/run.py`, which makes its own environment, on {date.today()}. Both sides of each comparison
were measured in one run; times are processor times, so that only their ratios mean anything elsewhere.{size}

- Python {platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores
{versions}"""


def _measured(python: Path, command: list[str], transcripts: Path | None) -> str:
    """What a script prints."""
    environment = dict(os.environ)
    if transcripts:
        environment["TRANSCRIPTS"] = str(Path(transcripts).resolve())
    print(*command, flush=True)
    script, *options = command
    done = subprocess.run(
        [str(python), str(HERE / script), *options], stdout=subprocess.PIPE, text=True, env=environment
    )
    if done.returncode:
        sys.exit(f"{script} failed; the page was not written")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
