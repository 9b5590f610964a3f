# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What fills the context window."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Annotated, Any

import typer
from haystack.dataclasses import ChatMessage
from rich.console import Console
from rich.table import Table
from rich.text import Text

from haystack_compaction.cli import options
from haystack_compaction.cli.bars import PART_STYLES, stacked_bar
from haystack_compaction.cli.comparison import Budget, Comparison, Result, Subject, candidates
from haystack_compaction.cli.console import new_console, one_line, print_json, warnings_at_the_end, with_progress
from haystack_compaction.cli.findings import Fault, Repetition, faults, repetitions
from haystack_compaction.cli.html.conversation import conversation_view
from haystack_compaction.cli.html.data import Bar, BarChart, BarPart, Fact, Line, Report
from haystack_compaction.cli.html.data import Table as HtmlTable
from haystack_compaction.cli.message_rows import summary
from haystack_compaction.cli.window_parts import (
    ARGUMENTS,
    ASSISTANT,
    ATTACHMENTS,
    NOTES,
    REASONING,
    RESULTS,
    SYSTEM,
    TOOLS,
    USER,
    WindowPart,
    window_parts,
)
from haystack_compaction.compactors.sliding_window import SlidingWindowCompactor
from haystack_compaction.config import STRATEGIES
from haystack_compaction.hook import CompactionHook
from haystack_compaction.tokens.ledger import TokenLedger

_LETTERS = {
    SYSTEM: "S",
    TOOLS: "T",
    USER: "U",
    ASSISTANT: "A",
    REASONING: "R",
    ARGUMENTS: "C",
    RESULTS: "O",
    ATTACHMENTS: "I",
    NOTES: "N",
}
_LARGEST = 10
# How many tools, faults or repeated calls are listed one by one in the terminal.
_LISTED = 10
_LISTED_TOOLS = 5


def inspect(
    file: options.TranscriptFile,
    context_window: options.ContextWindow = None,
    target_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The size to compact to in the table of strategies. If not given, what the hook would aim for in the "
            "window, or half of the conversation where that is smaller or no window is given.",
        ),
    ] = None,
    row: options.Row = None,
    tools: options.ToolsFile = None,
    as_json: options.Json = False,
    html: options.Html = None,
    force: options.Force = False,
) -> None:
    """Show what fills the context window, what is broken or repeated, and which strategy would free what."""
    options.require_writable(html, force=force)
    window = None if context_window is None else options.context_window_of(context_window)
    transcript = options.transcript_in(file, row)
    subject = Subject.repaired(options.name_of(file), transcript.messages, options.tools_of(transcript, tools))
    with warnings_at_the_end():
        inspection = _inspected(subject, transcript.messages, window, target_tokens)
    if as_json:
        print_json(inspection.to_dict())
    else:
        _print(new_console(), inspection)
    if html is not None:
        options.write_report(html, _report(inspection, transcript.messages))


@dataclass(frozen=True)
class Large:
    """
    One of the largest messages.

    :param message: Its number, from 1 on.
    :param role: Its role.
    :param tokens: Its size in tokens.
    :param summary: Its first words, in one line that is safe to print.
    """

    message: int
    role: str
    tokens: int
    summary: str


@dataclass(frozen=True)
class Inspection:
    """
    What was found out about a conversation.

    :param name: What it is called.
    :param messages: How many messages it has.
    :param context_window: The size of the window in tokens, where it was given.
    :param trigger: The size at which a hook would compact, in tokens, with a window.
    :param parts: What it is made of.
    :param largest: The largest messages.
    :param faults: What providers would reject.
    :param repetitions: Calls that were made more than once.
    :param freed: What each strategy would make of it.
    """

    name: str
    messages: int
    context_window: int | None
    trigger: int | None
    parts: list[WindowPart]
    largest: list[Large]
    faults: list[Fault]
    repetitions: list[Repetition]
    freed: list[Result]

    @property
    def tokens(self) -> int:
        """The size of the whole, in tokens."""
        return sum(part.tokens for part in self.parts)

    @property
    def scale(self) -> int:
        """What shares are shares of: the window, or the conversation where there is none."""
        return self.context_window or self.tokens

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "tokens": self.tokens}


def _inspected(
    subject: Subject, messages: list[ChatMessage], window: int | None, target_tokens: int | None
) -> Inspection:
    hook = None if window is None else CompactionHook(SlidingWindowCompactor(), context_window=window)
    parts = window_parts(messages, subject.tools)
    half = max(sum(part.tokens for part in parts) // 2, 1)
    target = target_tokens or (half if hook is None else min(half, max(hook.window.target, 1)))
    comparison = Comparison(
        [subject], [Budget(str(target), tokens=target)], candidates([*STRATEGIES], preserve_recent_turns=0)
    )
    compactions = with_progress(comparison, total=len(comparison), description="trying strategies")
    return Inspection(
        name=subject.name,
        messages=len(messages),
        context_window=window,
        trigger=None if hook is None else int(hook.window.trigger),
        parts=parts,
        largest=_largest(messages),
        faults=faults(messages),
        repetitions=repetitions(messages),
        freed=[compacted.result for compacted in compactions],
    )


def _largest(messages: Sequence[ChatMessage]) -> list[Large]:
    sizes = TokenLedger().sizes(messages)
    indexes = sorted(range(len(messages)), key=lambda index: -sizes[index])[:_LARGEST]
    return [Large(index + 1, messages[index].role.value, sizes[index], summary(messages[index])) for index in indexes]


def _print(console: Console, inspection: Inspection) -> None:
    console.print(Text(one_line(_title(inspection)), style="bold"))
    letters = [(_LETTERS[part.name], part.tokens) for part in inspection.parts]
    console.print(stacked_bar(console, letters, total=inspection.scale, cells=console.width))
    console.print(_parts_table(inspection))
    _print_room(console, inspection)
    console.print(Text("\nThe largest messages", style="bold"))
    console.print(_largest_table(inspection))
    _print_findings(console, inspection)
    console.print(Text(f"\nWhat would be freed, down to {inspection.freed[0].target_tokens:,} tokens", style="bold"))
    console.print(_freed_table(inspection.freed))


def _title(inspection: Inspection) -> str:
    title = f"{inspection.name}: {inspection.tokens:,} tokens in {inspection.messages:,} messages"
    if inspection.context_window is None:
        return title
    return f"{title}, {_share(inspection.tokens, inspection)} of a window of {inspection.context_window:,}"


def _parts_table(inspection: Inspection) -> Table:
    table = _new_table(("", ""), ("part", "left"), ("tokens", "right"), ("share", "right"), ("number", "right"))
    for number, part in enumerate(inspection.parts):
        style = PART_STYLES[number % len(PART_STYLES)]
        letter = Text(_LETTERS[part.name], style=f"black on {style}")
        table.add_row(letter, part.name, f"{part.tokens:,}", _share(part.tokens, inspection), f"{part.count:,}")
        for tool, tokens in islice(part.by_tool.items(), _LISTED_TOOLS):
            table.add_row("", Text(f"  {one_line(tool)}"), f"{tokens:,}", _share(tokens, inspection), "", style="dim")
        if rest := [*part.by_tool.values()][_LISTED_TOOLS:]:
            label = f"  {len(rest):,} more"
            table.add_row("", label, f"{sum(rest):,}", _share(sum(rest), inspection), "", style="dim")
    return table


def _print_room(console: Console, inspection: Inspection) -> None:
    if inspection.context_window is None or inspection.trigger is None:
        return
    left, room = inspection.context_window - inspection.tokens, inspection.trigger - inspection.tokens
    free = f"{left:,} tokens are free" if left >= 0 else f"{-left:,} tokens do not fit"
    when = f"starts in {room:,} tokens" if room > 0 else "is due"
    console.print(Text(f"{free}; compaction at {inspection.trigger:,} tokens {when}."))


def _largest_table(inspection: Inspection) -> Table:
    table = _new_table(("#", "right"), ("role", "left"), ("tokens", "right"), ("share", "right"), expand=True)
    table.add_column("message", no_wrap=True, overflow="ellipsis", ratio=1)
    for large in inspection.largest:
        share = _share(large.tokens, inspection)
        table.add_row(str(large.message), large.role, f"{large.tokens:,}", share, Text(large.summary))
    return table


def _print_findings(console: Console, inspection: Inspection) -> None:
    if not inspection.faults:
        console.print("\nNothing in it is what providers would reject.")
    else:
        console.print(Text(f"\nBroken, and repaired before a request: {len(inspection.faults):,}", style="bold yellow"))
        for fault in inspection.faults[:_LISTED]:
            console.print(Text(f"  message {fault.message}: {one_line(fault.what)}"))
        _print_more(console, len(inspection.faults))
    if not inspection.repetitions:
        console.print("No call was repeated.")
        return
    console.print(Text(f"\nCalls made again with the same arguments: {len(inspection.repetitions):,}", style="bold"))
    console.print(_repetitions_table(inspection.repetitions[:_LISTED]))
    _print_more(console, len(inspection.repetitions))


def _repetitions_table(repetitions: Sequence[Repetition]) -> Table:
    table = _new_table(("times", "right"), expand=True)
    table.add_column("call", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("tokens in older results", justify="right", no_wrap=True)
    for repetition in repetitions:
        call = Text(one_line(f"{repetition.tool_name}({repetition.arguments})"))
        table.add_row(f"{len(repetition.messages):,}", call, f"{repetition.tokens:,}")
    return table


def _print_more(console: Console, number: int) -> None:
    if number > _LISTED:
        console.print(Text(f"  and {number - _LISTED:,} more; --json has all", style="dim"))


def _freed_table(results: Sequence[Result]) -> Table:
    table = _new_table(("strategy", "left"), ("frees", "right"), ("share", "right"), ("leaves", "right"), ("", "left"))
    for result in results:
        freed = result.tokens_before - result.tokens_after
        share = f"{freed / max(result.tokens_before, 1):.0%}"
        outcome = "" if result.reached else "as far as it goes"
        table.add_row(result.strategy, f"{freed:,}", share, f"{result.tokens_after:,}", outcome)
    return table


def _new_table(*columns: tuple[str, Any], expand: bool = False) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", expand=expand)
    for header, justify in columns:
        table.add_column(header, justify=justify or "left", no_wrap=True)
    return table


def _share(tokens: int, inspection: Inspection) -> str:
    return f"{tokens / max(inspection.scale, 1):.0%}"


def _report(inspection: Inspection, messages: list[ChatMessage]) -> Report:
    window = inspection.context_window
    lines = [] if window is None else [Line("window", window), Line("compaction", inspection.trigger or 0)]
    parts = tuple(BarPart(part.name, part.tokens) for part in inspection.parts)
    return Report(
        title="What fills the context window",
        subtitle=inspection.name,
        facts=(
            Fact("tokens", inspection.tokens, f"of {window:,}" if window else ""),
            Fact("messages", inspection.messages),
            Fact("largest part", *_largest_part(inspection)),
            Fact("to be repaired", len(inspection.faults)),
            Fact("repeated calls", len(inspection.repetitions)),
        ),
        sections=(
            BarChart("By part", (Bar("now", parts),), tuple(lines)),
            *_html_tables(inspection),
        ),
        views=(conversation_view(inspection.name, messages, messages, TokenLedger()),),
    )


def _largest_part(inspection: Inspection) -> tuple[str, str]:
    part = max(inspection.parts, key=lambda part: part.tokens)
    return part.name, _share(part.tokens, inspection)


def _html_tables(inspection: Inspection) -> list[HtmlTable]:
    tools = {tool: None for part in inspection.parts for tool in part.by_tool}
    sizes = {part.name: part.by_tool for part in inspection.parts}
    share = "share" if inspection.context_window is None else "share of the window"
    by_tool = [name for name in (TOOLS, ARGUMENTS, RESULTS) if name in sizes]
    tables = [
        HtmlTable(
            "Parts",
            ("part", "tokens", share, "number"),
            tuple((part.name, part.tokens, _share(part.tokens, inspection), part.count) for part in inspection.parts),
        ),
        HtmlTable(
            "Tools", ("tool", *by_tool), tuple((tool, *(sizes[name].get(tool) for name in by_tool)) for tool in tools)
        ),
        HtmlTable(
            "The largest messages",
            ("#", "role", "message", "tokens", share),
            tuple(
                (large.message, large.role, large.summary, large.tokens, _share(large.tokens, inspection))
                for large in inspection.largest
            ),
            text_columns=(1, 2),
        ),
        HtmlTable(
            "Broken, and repaired before a request",
            ("#", "what"),
            tuple((fault.message, fault.what) for fault in inspection.faults),
            text_columns=(1,),
        ),
        HtmlTable(
            "Calls made again with the same arguments",
            ("tool", "arguments", "times", "tokens in older results"),
            tuple(
                (repeated.tool_name, one_line(repeated.arguments), len(repeated.messages), repeated.tokens)
                for repeated in inspection.repetitions
            ),
            text_columns=(0, 1),
        ),
        HtmlTable(
            f"What would be freed, down to {inspection.freed[0].target_tokens:,} tokens",
            ("strategy", "frees", "leaves", "target"),
            tuple(
                (
                    result.strategy,
                    result.tokens_before - result.tokens_after,
                    result.tokens_after,
                    "reached" if result.reached else "missed",
                )
                for result in inspection.freed
            ),
        ),
    ]
    return [table for table in tables if table.rows]
