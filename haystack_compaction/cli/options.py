# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The options that several commands take, and what each of them stands for."""

import os
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from haystack.components.generators.chat.types import ChatGenerator
from haystack.tools.tool import Tool

from haystack_compaction.checks import require_at_least
from haystack_compaction.cli.console import fail, one_line
from haystack_compaction.cli.html.data import Report
from haystack_compaction.cli.html.page import write_html
from haystack_compaction.cli.tool_schemas import read_tools, tools_from
from haystack_compaction.cli.transcripts import (
    STANDARD_INPUT,
    Transcript,
    TranscriptError,
    check_writable,
    read_transcript,
    read_transcripts,
)
from haystack_compaction.config import STRATEGIES
from haystack_compaction.models import window_size

_FORMATS = (
    "a JSON list of messages, an object with `messages`, or JSON lines, each message as Haystack's "
    "ChatMessage.to_dict() or in OpenAI's chat format; - for the standard input."
)

CONTEXT_WINDOW_HELP = "The model's context window: its size, or with genai-prices installed the model's name."

TranscriptFile: TypeAlias = Annotated[Path, typer.Argument(help=f"A transcript: {_FORMATS}", show_default=False)]
TranscriptFiles: TypeAlias = Annotated[list[Path], typer.Argument(help=f"Transcripts: {_FORMATS}", show_default=False)]
ArchiveFile: TypeAlias = Annotated[Path, typer.Argument(help="The file of a SQLiteArchive.", show_default=False)]
Row: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Which conversation, where the file holds several of them.")
]
ToolsFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--tools",
        help="A JSON file with the schemas of the tools that are sent along. Those that the transcript has under "
        "`tools` if not given.",
    ),
]
Strategy: TypeAlias = Annotated[str, typer.Option(help=f"How to compact: {', '.join(STRATEGIES)}.")]
ContextWindow: TypeAlias = Annotated[str | None, typer.Option(metavar="TOKENS|MODEL", help=CONTEXT_WINDOW_HELP)]
PreserveRecentTurns: TypeAlias = Annotated[
    int, typer.Option(min=0, help="How many turns before the current task stay whatever the target.")
]
DropSystemPrompt: TypeAlias = Annotated[
    bool, typer.Option("--drop-system-prompt", help="Let the system messages at the start go, too.")
]
Model: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="A model of an OpenAI-compatible API, for the strategies that can use one; see OPENAI_API_KEY.",
    ),
]
ApiBaseUrl: TypeAlias = Annotated[
    str | None, typer.Option(help="Where that API is, with --model.  [default: OpenAI's own]", show_default=False)
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Html: TypeAlias = Annotated[Path | None, typer.Option(help="Write a report as one HTML file, too.")]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")]


def transcript_in(file: Path, row: int | None) -> Transcript:
    """Read a transcript, or end the command with one line that says why not."""
    try:
        return read_transcript(file, row=row)
    except TranscriptError as error:
        fail(f"{name_of(file)}: {error}")


def transcripts_in(file: Path, row: int | None) -> list[tuple[str, Transcript]]:
    """All conversations of a file or the one of a row, each with its name, or the end of the command."""
    if row is not None:
        return [(f"{name_of(file)}:{row}", transcript_in(file, row))]
    try:
        transcripts = read_transcripts(file)
    except TranscriptError as error:
        fail(f"{name_of(file)}: {error}")
    if len(transcripts) == 1:
        return [(name_of(file), transcripts[0])]
    return [(f"{name_of(file)}:{number}", transcript) for number, transcript in enumerate(transcripts, 1)]


def name_of(file: Path) -> str:
    """What a file is called in what is printed."""
    return "standard input" if str(file) == STANDARD_INPUT else str(file)


def tools_of(transcript: Transcript, tools_file: Path | None) -> list[Tool]:
    """The tools that are sent along with a transcript, or the end of the command where they can't be read."""
    try:
        return tools_from(transcript.tools) if tools_file is None else read_tools(tools_file)
    except ValueError as error:
        fail(f"{tools_file or 'the `tools` of the transcript'}: {error}")


def require_writable(output: Path | None, *, force: bool) -> None:
    """End the command, before any work is done, where a file must not be written."""
    if output is None:
        return
    try:
        check_writable(output, force=force)
    except TranscriptError as error:
        fail(f"{output}: {error}")


def chat_generator(model: str | None, api_base_url: str | None) -> ChatGenerator | None:
    """What calls the model of --model; None without one. Ends the command where something is missing for it."""
    if model is None:
        if api_base_url is not None:
            fail("--api-base-url needs --model")
        return None
    if not os.environ.get("OPENAI_API_KEY"):
        fail("--model needs an API key in the environment variable OPENAI_API_KEY (any text for a server without keys)")
    # OpenAI's client takes longer to import than all else together.
    from haystack.components.generators.chat import OpenAIChatGenerator

    return OpenAIChatGenerator(model=model, api_base_url=api_base_url)


def context_window_of(text: str) -> int:
    """The size of a context window that was given in tokens or as a model's name, or the end of the command."""
    try:
        window = window_size(int(text) if text.lstrip("-").isdigit() else text)
        require_at_least(1, context_window=window)
    except (ValueError, ImportError) as error:
        fail(str(error))
    return window


def write_report(path: Path, report: Report) -> None:
    """Write a report and say so on standard error, or end the command with one line that says why not."""
    try:
        write_html(path, report)
    except OSError as error:
        fail(f"{path}: can't be written: {error.strerror or error}")
    typer.echo(f"Written to {one_line(str(path))}", err=True)
