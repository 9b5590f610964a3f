# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What a compaction would do to a transcript."""

import math
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from haystack_compaction.cli.console import fail, new_console, one_line
from haystack_compaction.cli.message_rows import MessageRow, message_rows
from haystack_compaction.cli.transcripts import Transcript, TranscriptError, check_writable, read_transcript
from haystack_compaction.compactors.sliding_window import SlidingWindowCompactor
from haystack_compaction.config import STRATEGIES, CompactionConfig
from haystack_compaction.hook import CompactionHook
from haystack_compaction.report import CompactionReport
from haystack_compaction.tokens.ledger import TokenLedger

# A run of rows with the same fate is folded when it is longer than this, down to so many at each of its ends.
_LONGEST_RUN = 40
_RUN_ENDS = 3

_SIGNS = {"kept": "=", "removed": "-", "rewritten": "~", "added": "+"}
_STYLES = {"kept": "", "removed": "red", "rewritten": "yellow", "added": "green"}


def preview(
    file: Annotated[
        Path,
        typer.Argument(
            help="A transcript: a JSON list of messages, an object with `messages`, or JSON lines, each message as "
            "Haystack's ChatMessage.to_dict() or in OpenAI's chat format.",
            show_default=False,
        ),
    ],
    strategy: Annotated[str, typer.Option(help=f"How to compact: {', '.join(STRATEGIES)}.")] = "sliding_window",
    target_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="The size to compact to. Half of the present size when no size is given."),
    ] = None,
    context_window: Annotated[
        int | None,
        typer.Option(min=1, help="Compact as inside an Agent whose model has this window, instead of to a fixed size."),
    ] = None,
    compact_at: Annotated[
        float | None,
        typer.Option(
            help="The share of the window at which compaction starts, with --context-window. 0.7 if not given."
        ),
    ] = None,
    compact_to: Annotated[
        float | None,
        typer.Option(help="The share of the window to compact to, with --context-window. 0.4 if not given."),
    ] = None,
    preserve_recent_turns: Annotated[
        int, typer.Option(min=0, help="How many turns before the current task stay whatever the target.")
    ] = 0,
    drop_system_prompt: Annotated[
        bool, typer.Option("--drop-system-prompt", help="Let the system messages at the start go, too.")
    ] = False,
    row: Annotated[
        int | None, typer.Option(min=1, help="Which conversation, where the file holds several of them.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the compacted transcript to this file, in the format that it came in."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --output overwrite a file.")] = False,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show every message; long runs are folded otherwise.")
    ] = False,
) -> None:
    """Show what a compaction would do to a transcript: what is kept, removed, rewritten and added."""
    if target_tokens is not None and context_window is not None:
        fail("give either --target-tokens or --context-window, not both")
    shares = {
        name: share for name, share in (("compact_at", compact_at), ("compact_to", compact_to)) if share is not None
    }
    if shares and context_window is None:
        fail("--compact-at and --compact-to are shares of a window; give --context-window too")
    transcript = _read(file, row=row)
    if output is not None:
        _check_output(output, force=force)
    console = new_console()
    options: dict[str, Any] = {
        "strategy": strategy,
        "preserve_recent_turns": preserve_recent_turns,
        "preserve_system_prompt": not drop_system_prompt,
    }
    if context_window is not None:
        options |= _window_options(context_window, shares)
    elif target_tokens is None:
        target_tokens = max(TokenLedger().count(transcript.messages) // 2, 1)
        console.print(f"No size was given; the target is half of the present one: {target_tokens:,} tokens.\n")
    try:
        compactor = CompactionConfig(**options).build_compactor()
    except ValueError as error:
        fail(str(error))
    result = compactor.run(messages=transcript.messages, target_tokens=target_tokens)
    rows = message_rows(transcript.messages, result["messages"])
    console.print(_table(rows, show_all=show_all))
    _print_report(console, result["report"], trigger=context_window is not None)
    if output is not None:
        _write(transcript, result["messages"], output, force=force)
        console.print(Text(f"Written to {one_line(str(output))}"), soft_wrap=True)


def _read(file: Path, *, row: int | None) -> Transcript:
    try:
        return read_transcript(file, row=row)
    except TranscriptError as error:
        fail(f"{file}: {error}")


def _check_output(output: Path, *, force: bool) -> None:
    try:
        check_writable(output, force=force)
    except TranscriptError as error:
        fail(f"{output}: {error}")


def _write(transcript: Transcript, messages: list[Any], output: Path, *, force: bool) -> None:
    try:
        transcript.write(messages, output, force=force)
    except TranscriptError as error:
        fail(f"{output}: {error}")


def _window_options(context_window: int, shares: dict[str, Any]) -> dict[str, int]:
    """The trigger and the target of a pipeline node that compacts when the hook would in this window."""
    try:
        hook = CompactionHook(SlidingWindowCompactor(), context_window=context_window, **shares)
    except ValueError as error:
        fail(str(error))
    return {
        "trigger_threshold_tokens": math.ceil(context_window * hook.compact_at),
        "target_tokens": int(context_window * hook.compact_to),
    }


def _table(rows: list[MessageRow], *, show_all: bool) -> Table:
    table = Table(box=None, padding=(0, 1), expand=True, header_style="bold")
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("role", no_wrap=True)
    table.add_column("message", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("tokens", justify="right", no_wrap=True)
    for fate, run in groupby(rows, key=lambda row: row.fate):
        _add_run(table, fate, list(run), show_all=show_all)
    return table


def _add_run(table: Table, fate: str, run: list[MessageRow], *, show_all: bool) -> None:
    folded = [] if show_all or len(run) <= _LONGEST_RUN else run[_RUN_ENDS:-_RUN_ENDS]
    for row in run if not folded else run[:_RUN_ENDS]:
        _add_row(table, row)
    if folded:
        tokens = sum(row.tokens for row in folded)
        summary = f"... {len(folded):,} messages {fate}, {tokens:,} tokens ..."
        table.add_row("", _SIGNS[fate], "", Text(summary, style="italic"), f"{tokens:,}", style=_STYLES[fate])
        for row in run[-_RUN_ENDS:]:
            _add_row(table, row)


def _add_row(table: Table, row: MessageRow) -> None:
    number = "" if row.number is None else str(row.number)
    tokens = f"{row.tokens:,}" if row.tokens_before is None else f"{row.tokens_before:,} > {row.tokens:,}"
    # Texts and not strings, which rich would read for markup.
    table.add_row(number, _SIGNS[row.fate], row.role, Text(row.summary), tokens, style=_STYLES[row.fate])


def _print_report(console: Console, report: CompactionReport, *, trigger: bool) -> None:
    kept = report.messages_before - report.removed_messages - report.rewritten_messages
    numbers = {
        "kept": kept,
        "removed": report.removed_messages,
        "rewritten": report.rewritten_messages,
        "added": report.messages_after - kept - report.rewritten_messages,
    }
    legend = Text("  ").join(
        Text(f"{_SIGNS[fate]} {number:,} {fate}", style=_STYLES[fate]) for fate, number in numbers.items()
    )
    lines = Table.grid(padding=(0, 2))
    lines.add_row("messages", legend)
    lines.add_row("before", f"{report.tokens_before:,} tokens in {report.messages_before:,} messages")
    share = report.tokens_after / max(report.tokens_before, 1)
    lines.add_row("after", f"{report.tokens_after:,} tokens in {report.messages_after:,} messages, {share:.0%}")
    lines.add_row("target", Text(f"{report.target_tokens:,} tokens, {_outcome(report, trigger=trigger)}"))
    lines.add_row("strategy", f"{report.strategy}, {1000 * report.duration_seconds:.1f} ms")
    console.print()
    console.print(lines)


def _outcome(report: CompactionReport, *, trigger: bool) -> str:
    if report.compacted:
        return "reached" if report.reached_target else f"not reached: {report.reason}"
    if report.reached_target and not trigger:
        return f"nothing to do: {report.tokens_before:,} tokens fit"
    return f"nothing would happen: {report.reason}"
