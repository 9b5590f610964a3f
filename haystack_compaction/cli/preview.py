# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What a compaction would do to a transcript."""

import math
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from haystack.dataclasses import ChatMessage
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from haystack_compaction.cli import options
from haystack_compaction.cli.console import fail, new_console, one_line, print_json, several_lines, warnings_at_the_end
from haystack_compaction.cli.html.conversation import conversation_view
from haystack_compaction.cli.html.data import Fact, Line, Report
from haystack_compaction.cli.message_rows import MessageRow, message_rows
from haystack_compaction.cli.transcripts import Transcript, TranscriptError
from haystack_compaction.compaction_pass import changes_between
from haystack_compaction.config import STRATEGIES, CompactionConfig
from haystack_compaction.hook import CompactionHook
from haystack_compaction.report import CompactionReport
from haystack_compaction.tokens.ledger import TokenLedger

# A run of rows with the same fate is folded when it is longer than this, down to so many at each of its ends.
_LONGEST_RUN = 40
_RUN_ENDS = 3
# How much of a note is shown unless all of it is wanted.
_NOTE_LINES = 12

_SIGNS = {"kept": "=", "removed": "-", "rewritten": "~", "added": "+"}
_STYLES = {"kept": "", "removed": "red", "rewritten": "yellow", "added": "green"}


def preview(
    file: options.TranscriptFile,
    strategy: options.Strategy = "sliding_window",
    target_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="The size to compact to. Half of the present size when no size is given."),
    ] = None,
    context_window: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS|MODEL",
            help="Compact as inside an Agent whose model has this window, instead of to a fixed size: its size, or "
            "with genai-prices installed the model's name.",
        ),
    ] = None,
    compact_at: Annotated[
        float | None,
        typer.Option(
            help="The share of the window at which compaction starts, with --context-window. 0.7 if not given."
        ),
    ] = None,
    compact_to: Annotated[
        float | None,
        typer.Option(
            help="The share of the window to compact to, with --context-window. What suits the strategy if not given."
        ),
    ] = None,
    preserve_recent_turns: options.PreserveRecentTurns = 0,
    drop_system_prompt: options.DropSystemPrompt = False,
    row: options.Row = None,
    tools: options.ToolsFile = None,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the compacted transcript to this file, in the format that it came in."),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show every message; long runs are folded otherwise.")
    ] = False,
    notes: Annotated[
        bool,
        typer.Option(
            "--notes", help=f"Show all of the notes that are added; their first {_NOTE_LINES} lines otherwise."
        ),
    ] = False,
    as_json: options.Json = False,
    html: options.Html = None,
    force: options.Force = False,
) -> None:
    """Show what a compaction would do to a transcript: what is kept, removed, rewritten and added."""
    if target_tokens is not None and context_window is not None:
        fail("give either --target-tokens or --context-window, not both")
    shares = {
        name: share for name, share in (("compact_at", compact_at), ("compact_to", compact_to)) if share is not None
    }
    if shares and context_window is None:
        fail("--compact-at and --compact-to are shares of a window; give --context-window too")
    for written in (output, html):
        options.require_writable(written, force=force)
    transcript = options.transcript_in(file, row)
    schemas = options.tools_of(transcript, tools)
    console = new_console()
    settings: dict[str, Any] = {
        "strategy": strategy,
        "preserve_recent_turns": preserve_recent_turns,
        "preserve_system_prompt": not drop_system_prompt,
    }
    if context_window is not None:
        settings |= _window_options(strategy, options.context_window_of(context_window), shares)
    elif target_tokens is None:
        target_tokens = max(TokenLedger().count(transcript.messages, schemas) // 2, 1)
        if not as_json:
            console.print(f"No size was given; the target is half of the present one: {target_tokens:,} tokens.\n")
    try:
        compactor = CompactionConfig(**settings).build_compactor()
    except ValueError as error:
        fail(str(error))
    with warnings_at_the_end():
        result = compactor.run(messages=transcript.messages, target_tokens=target_tokens, tools=schemas or None)
    messages, report = result["messages"], result["report"]
    rows = message_rows(transcript.messages, messages)
    if as_json:
        print_json({"report": report.to_dict(), "messages": [asdict(row) for row in rows]})
    else:
        console.print(_table(rows, show_all=show_all))
        _print_report(console, report, trigger=context_window is not None)
        _print_notes(
            console, changes_between(transcript.messages, messages).added, lines=None if notes else _NOTE_LINES
        )
    if output is not None:
        _write(transcript, messages, output, force=force)
        if not as_json:
            console.print(Text(f"Written to {one_line(str(output))}"), soft_wrap=True)
    if html is not None:
        options.write_report(html, _html_report(options.name_of(file), transcript.messages, messages, report))


def _write(transcript: Transcript, messages: list[ChatMessage], output: Path, *, force: bool) -> None:
    try:
        transcript.write(messages, output, force=force)
    except TranscriptError as error:
        fail(f"{output}: {error}")


def _window_options(strategy: str, context_window: int, shares: dict[str, Any]) -> dict[str, int]:
    """The trigger and the target of a pipeline node that compacts when the hook would in this window."""
    try:
        hook = CompactionHook(STRATEGIES[strategy](), context_window=context_window, **shares)
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


def _print_notes(console: Console, added: list[ChatMessage], *, lines: int | None) -> None:
    """Show what the model will read in place of what is gone, no more than so many lines of each note."""
    for message in added:
        text = several_lines(message.text or "").splitlines()
        console.print()
        console.print(Text("+ note", style="bold green"))
        console.print(Padding(Text("\n".join(text[:lines])), (0, 0, 0, 2)))
        if lines is not None and len(text) > lines:
            console.print(Text(f"  ... {len(text) - lines:,} more lines; --notes shows them", style="dim"))


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


def _html_report(name: str, before: list[ChatMessage], after: list[ChatMessage], report: CompactionReport) -> Report:
    share = report.tokens_after / max(report.tokens_before, 1)
    return Report(
        title="What a compaction would do",
        subtitle=f"{name}, {report.strategy}",
        facts=(
            Fact("tokens before", report.tokens_before),
            Fact("tokens after", report.tokens_after, f"{share:.0%}"),
            Fact("target", report.target_tokens, "reached" if report.reached_target else report.reason or "missed"),
            Fact("messages", report.messages_after, f"of {report.messages_before:,}"),
        ),
        views=(
            conversation_view(
                report.strategy, before, after, TokenLedger(), lines=[Line("target", report.target_tokens)]
            ),
        ),
    )
