# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Which strategy keeps what of one's own conversations."""

from functools import partial
from itertools import groupby
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from haystack_compaction.cli import options
from haystack_compaction.cli.comparison import (
    WITH_MODEL,
    Budget,
    Compacted,
    Comparison,
    Result,
    Subject,
    candidates,
    totals,
)
from haystack_compaction.cli.console import (
    INTERRUPTED,
    counted,
    fail,
    new_console,
    one_line,
    print_json,
    warnings_at_the_end,
    with_progress,
)
from haystack_compaction.cli.html.conversation import conversation_view
from haystack_compaction.cli.html.data import Bar, BarChart, BarPart, ConversationView, Fact, Line, Report
from haystack_compaction.cli.html.data import Table as HtmlTable
from haystack_compaction.cli.prices import cost_of
from haystack_compaction.config import STRATEGIES
from haystack_compaction.tokens.ledger import TokenLedger

_DEFAULT_BUDGET = "30%"
# How many conversations are named at the top of a report.
_NAMED = 3
_MODEL_HEADERS = ("calls", "cost")
_HEADERS = ("strategy", "tokens", "share", "msgs", "steps", "user", "ids", "time")
_NOTE = (
    "Shares of what there was: tokens; messages and steps (replies of the model) that are left, whole or shortened; "
    "messages of the user in their own words; identifiers (paths, addresses, ids, numbers) still named. "
    "!: the target was missed."
)


def compare(
    files: options.TranscriptFiles,
    strategy: Annotated[
        list[str] | None,
        typer.Option(help=f"A strategy to compare, repeatable: {', '.join(STRATEGIES)}. All if not given."),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A size to compact to, repeatable: tokens (8000) or a share of the conversation (30%). "
            f"{_DEFAULT_BUDGET} if not given."
        ),
    ] = None,
    preserve_recent_turns: options.PreserveRecentTurns = 0,
    drop_system_prompt: options.DropSystemPrompt = False,
    row: options.Row = None,
    tools: options.ToolsFile = None,
    model: options.Model = None,
    api_base_url: options.ApiBaseUrl = None,
    each: Annotated[
        bool, typer.Option("--each", help="Show each conversation, and not only what they come to together.")
    ] = False,
    as_json: options.Json = False,
    html: options.Html = None,
    force: options.Force = False,
) -> None:
    """
    Compare strategies on your own transcripts: what each keeps, and what it costs.

    All conversations of a file are taken unless --row picks one. Ctrl-C ends it with what is finished so far, and exit
    code 130.
    """
    options.require_writable(html, force=force)
    generator = options.chat_generator(model, api_base_url)
    try:
        budgets = [Budget.parsed(text) for text in budget or [_DEFAULT_BUDGET]]
        strategies = candidates(
            strategy or [*STRATEGIES],
            generator,
            preserve_recent_turns=preserve_recent_turns,
            preserve_system_prompt=not drop_system_prompt,
        )
    except ValueError as error:
        fail(str(error))
    subjects = [
        Subject.repaired(name, transcript.messages, options.tools_of(transcript, tools))
        for file in files
        for name, transcript in options.transcripts_in(file, row)
    ]
    costs = partial(cost_of, model=model or "", api_base_url=api_base_url)
    comparison = Comparison(subjects, budgets, strategies, costs)
    with warnings_at_the_end():
        done, is_complete = _finished(comparison)
        results = [compacted.result for compacted in done]
        if as_json:
            print_json(
                {
                    "complete": is_complete,
                    "totals": [result.to_dict() for result in totals(results)],
                    "results": [result.to_dict() for result in results],
                }
            )
        else:
            repairs = sum(subject.repairs for subject in subjects)
            _print_results(new_console(), results, each=each, model=model, repairs=repairs)
    if html is not None:
        options.write_report(html, _report(done, model=model))
    if not is_complete:
        typer.echo(f"Stopped after {len(done)} of {len(comparison)} compactions.", err=True)
        raise typer.Exit(INTERRUPTED)


def _finished(comparison: Comparison) -> tuple[list[Compacted], bool]:
    """What was done until it was done, or until Ctrl-C, and whether that is all."""
    done: list[Compacted] = []
    try:
        for compacted in with_progress(comparison, total=len(comparison), description="compacting"):
            done.append(compacted)
    except KeyboardInterrupt:
        return done, False
    return done, True


def _overview(results: list[Result]) -> list[Result]:
    """All results of a single conversation, the totals of several."""
    return results if len({result.conversation for result in results}) == 1 else totals(results)


def _print_results(console: Console, results: list[Result], *, each: bool, model: str | None, repairs: int) -> None:
    overview = _overview(results)
    if each and overview is not results:
        for _, of_conversation in groupby(results, key=lambda result: result.conversation):
            _print_tables(console, list(of_conversation))
    _print_tables(console, overview)
    if results:
        console.print(Text(_NOTE, style="dim"))
    if repairs:
        console.print(Text(f"Repaired before, since providers reject it: {counted(repairs, 'message')}.", style="dim"))
    if any(result.strategy.endswith(WITH_MODEL) for result in results):
        console.print(Text(f"{WITH_MODEL}: with {one_line(str(model))}", style="dim"))


def _print_tables(console: Console, results: list[Result]) -> None:
    """A table for each budget."""
    for _, of_budget in groupby(results, key=lambda result: result.budget):
        group = list(of_budget)
        console.print(Text(one_line(_title(group[0])), style="bold"))
        console.print(Text(_measure(group[0])))
        headers = _headers(group)
        table = Table(box=None, padding=(0, 2 if headers == _HEADERS else 1, 0, 0), header_style="bold")
        for header in headers:
            # What is too long for a narrow terminal is the name of a strategy.
            if header == _HEADERS[0]:
                table.add_column(header, overflow="fold")
            else:
                table.add_column(header, justify="right", no_wrap=True)
        for result in group:
            table.add_row(*map(Text, _cells(result, group)), style="" if _is_reached(result) else "yellow")
        console.print(table)
        console.print()


def _title(result: Result) -> str:
    subject = result.conversation or f"all {result.conversations:,} conversations"
    return f"{subject}, compacted to {result.target_tokens:,} tokens ({result.budget})"


def _measure(result: Result) -> str:
    return (
        f"{counted(result.tokens_before, 'token')} in {counted(result.messages, 'message')}: "
        f"{counted(result.steps, 'step')}, {result.user_messages:,} from the user, "
        f"{counted(result.identifiers, 'identifier')}"
    )


def _headers(results: list[Result]) -> tuple[str, ...]:
    return (*_HEADERS, *_MODEL_HEADERS) if any(result.llm_calls for result in results) else _HEADERS


def _cells(result: Result, results: list[Result]) -> tuple[str, ...]:
    """The cells of a result in the table of several: columns about a model are only there where one was called."""
    cells = (
        result.strategy,
        f"{result.tokens_after:,}",
        f"{_share(result.tokens_after, result.tokens_before)}{'' if _is_reached(result) else '!'}",
        _share(result.kept + result.rewritten, result.messages),
        _share(result.steps_kept, result.steps),
        _share(result.user_messages_kept, result.user_messages),
        _share(result.identifiers_kept, result.identifiers),
        f"{result.seconds:.2f} s" if result.seconds >= 1 else f"{1000 * result.seconds:.0f} ms",
        f"{result.llm_calls:,}",
        _cost(result),
    )
    return cells[: len(_headers(results))]


def _is_reached(result: Result) -> bool:
    return result.reached == result.conversations


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def _cost(result: Result) -> str:
    if not result.llm_calls:
        return "0"
    return "-" if result.cost is None else f"${result.cost:.4f}"


def _report(done: list[Compacted], *, model: str | None) -> Report:
    results = [compacted.result for compacted in done]
    together = _overview(results)
    conversations = {id(compacted.subject): compacted.subject for compacted in done}
    best = max((result for result in together if _is_reached(result)), key=_kept_share, default=None)
    first = together[0] if together else None
    groups = [list(group) for _, group in groupby(together, key=lambda result: result.budget)]
    return Report(
        title="Strategies compared",
        subtitle=_subtitle([subject.name for subject in conversations.values()], model),
        facts=(
            Fact("conversations", len(conversations)),
            Fact("before", first.tokens_before if first else 0, "tokens"),
            Fact(
                "keeps most identifiers",
                best.strategy if best else None,
                f"{_kept_share(best):.0%} kept" if best else "",
            ),
        ),
        sections=(
            *(_chart(group) for group in groups),
            *(_html_table(_title(group[0]), group) for group in groups),
            *_conversation_tables(results, conversations=len(conversations)),
        ),
        # With several conversations a page would hold each of their texts as often as there are strategies.
        views=tuple(map(_view, done)) if len(conversations) == 1 else (),
    )


def _subtitle(names: list[str], model: str | None) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more + (f"; model {model}" if model else "")


def _kept_share(result: Result) -> float:
    return result.identifiers_kept / max(result.identifiers, 1)


def _chart(results: list[Result]) -> BarChart:
    before = results[0]
    return BarChart(
        title=f"Sizes at {before.budget}",
        bars=(
            Bar("before", (BarPart("messages", before.tokens_before),)),
            *(
                Bar(
                    result.strategy,
                    (
                        BarPart("messages", result.tokens_after - result.note_tokens),
                        BarPart("notes", result.note_tokens),
                    ),
                )
                for result in results
            ),
        ),
        lines=(Line("target", before.target_tokens),),
    )


def _html_table(title: str, results: list[Result]) -> HtmlTable:
    return HtmlTable(
        title=title,
        headers=_headers(results),
        rows=tuple(_cells(result, results) for result in results),
        note=f"{_measure(results[0])}. {_NOTE}",
    )


def _conversation_tables(results: list[Result], *, conversations: int) -> list[HtmlTable]:
    if conversations == 1:
        return []
    groups = groupby(results, key=lambda result: (result.conversation, result.budget))
    return [_html_table(_title(group[0]), group) for group in (list(found) for _, found in groups)]


def _view(compacted: Compacted) -> ConversationView:
    result = compacted.result
    return conversation_view(
        f"{result.strategy}, {result.budget}",
        compacted.subject.messages,
        compacted.messages,
        TokenLedger(),
        lines=[Line("target", result.target_tokens)],
    )
