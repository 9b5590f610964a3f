# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""When the hook would have compacted a run, and what the run would have cost."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from haystack.dataclasses import ChatMessage
from rich.console import Console
from rich.table import Table
from rich.text import Text

from haystack_compaction.cli import options
from haystack_compaction.cli.bars import Column, column_chart
from haystack_compaction.cli.console import (
    INTERRUPTED,
    fail,
    new_console,
    one_line,
    print_json,
    warnings_at_the_end,
    with_progress,
)
from haystack_compaction.cli.html.conversation import conversation_view
from haystack_compaction.cli.html.data import Compaction, Fact, Line, Plot, Report, Series
from haystack_compaction.cli.html.data import Table as HtmlTable
from haystack_compaction.cli.replaying import (
    Bill,
    Prices,
    Replay,
    Request,
    bill_with_compaction,
    bill_without_compaction,
)
from haystack_compaction.compaction_pass import strategy_name
from haystack_compaction.config import CompactionConfig
from haystack_compaction.hook import CompactionHook
from haystack_compaction.tokens.ledger import TokenLedger

_CHART_ROWS = 12
# How many compactions are listed in the terminal.
_LISTED = 20
# A line further above the columns than this would make them flat.
_HIGHEST_LINE = 1.5


def replay(
    file: options.TranscriptFile,
    context_window: Annotated[
        str,
        typer.Option(metavar="TOKENS|MODEL", help=options.CONTEXT_WINDOW_HELP, show_default=False),
    ],
    strategy: options.Strategy = "sliding_window",
    compact_at: Annotated[float, typer.Option(help="The share of the window at which compaction starts.")] = 0.7,
    compact_to: Annotated[
        float | None,
        typer.Option(help="The share of the window to compact to.", show_default="what suits the strategy"),
    ] = None,
    reserve_tokens: Annotated[
        int | None, typer.Option(min=0, help="The tokens kept free for a reply. 5% of the window if not given.")
    ] = None,
    preserve_recent_turns: options.PreserveRecentTurns = 0,
    drop_system_prompt: options.DropSystemPrompt = False,
    row: options.Row = None,
    tools: options.ToolsFile = None,
    model: options.Model = None,
    api_base_url: options.ApiBaseUrl = None,
    price: Annotated[
        float | None, typer.Option(min=0, help="The price of a million tokens of input, for a bill in money.")
    ] = None,
    cached_price: Annotated[
        float, typer.Option(min=0, help="The price of cached input, as a share of the full price.")
    ] = 0.1,
    write_price: Annotated[
        float,
        typer.Option(
            min=0, help="The price of input that is written to the cache, likewise: 1 for OpenAI, 1.25 for Anthropic."
        ),
    ] = 1.0,
    as_json: options.Json = False,
    html: options.Html = None,
    force: options.Force = False,
) -> None:
    """
    Replay a transcript through the Agent's hook: when it would compact, what each pass frees, what the run costs.

    Exit code 1 if the run would end because it can't be made to fit. Ctrl-C ends it with what is replayed so far, and
    exit code 130.
    """
    options.require_writable(html, force=force)
    window = options.context_window_of(context_window)
    generator = options.chat_generator(model, api_base_url)
    try:
        config = CompactionConfig(
            strategy=strategy,
            preserve_recent_turns=preserve_recent_turns,
            preserve_system_prompt=not drop_system_prompt,
        )
        hook = CompactionHook(
            config.build_compactor(generator),
            context_window=window,
            compact_at=compact_at,
            compact_to=compact_to,
            reserve_tokens=reserve_tokens,
        )
    except ValueError as error:
        fail(str(error))
    transcript = options.transcript_in(file, row)
    replayed = Replay(transcript.messages, options.tools_of(transcript, tools), hook)
    if len(replayed) == 0:
        fail(f"{options.name_of(file)}: holds no reply of a model, and so there is no request to replay")
    with warnings_at_the_end():
        run = _Run.of(options.name_of(file), replayed, Prices(cached_price, write_price), price)
        if as_json:
            print_json(run.to_dict())
        else:
            _print(new_console(), run)
    if html is not None:
        options.write_report(html, _report(run))
    if run.is_interrupted:
        raise typer.Exit(INTERRUPTED)
    if replayed.error is not None:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Run:
    """What came of a replay."""

    name: str
    replay: Replay
    requests: list[Request]
    is_interrupted: bool
    prices: Prices
    price: float | None

    @classmethod
    def of(cls, name: str, replay: Replay, prices: Prices, price: float | None) -> "_Run":
        """Replay to the end, or until Ctrl-C."""
        requests: list[Request] = []
        try:
            for request in with_progress(replay, total=len(replay), description="replaying"):
                requests.append(request)
        except KeyboardInterrupt:
            return cls(name, replay, requests, True, prices, price)
        return cls(name, replay, requests, False, prices, price)

    @property
    def strategy(self) -> str:
        return strategy_name(self.replay.hook.compactor)

    @property
    def passes(self) -> list[Request]:
        """The requests before which the hook tried something."""
        return [request for request in self.requests if request.report is not None]

    @property
    def first_refused(self) -> int | None:
        """The first request that no provider would have taken, had nothing been compacted."""
        window = self.replay.hook.context_window
        return next((request.step for request in self.requests if request.uncompacted > window), None)

    @property
    def bills(self) -> dict[str, Bill]:
        return {
            "nothing": bill_without_compaction(self.requests, self.prices),
            self.strategy: bill_with_compaction(self.requests, self.prices),
        }

    def in_money(self, tokens: float) -> float | None:
        return None if self.price is None else tokens * self.price / 1_000_000

    def to_dict(self) -> dict[str, Any]:
        window = self.replay.hook.window
        return {
            "complete": not self.is_interrupted and self.replay.error is None,
            "error": self.replay.error,
            "conversation": self.name,
            "strategy": self.strategy,
            "context_window": window.context_window,
            "trigger": int(window.trigger),
            "target": window.target,
            "tokens_for_each_counted": self.replay.ratio,
            "first_refused_without_compaction": self.first_refused,
            "requests": [request.to_dict() for request in self.requests],
            "prices": {"per_million": self.price, **asdict(self.prices)},
            "bills": {
                "without_compaction": self._bill_to_dict("nothing"),
                "with_compaction": self._bill_to_dict(self.strategy),
            },
        }

    def _bill_to_dict(self, name: str) -> dict[str, Any]:
        tokens = asdict(self.bills[name])
        return {"tokens": tokens, "cost": {key: self.in_money(value) for key, value in tokens.items()}}


def _print(console: Console, run: _Run) -> None:
    console.print(Text(one_line(_title(run)), style="bold"))
    if run.requests:
        console.print()
        _print_chart(console, run)
        console.print()
        _print_passes(console, run)
        console.print()
        console.print(_bill_table(run))
    if (first_refused := run.first_refused) is not None:
        console.print(Text(f"Without compaction, request {first_refused} is the first that does not fit the window."))
    if run.replay.ratio != 1.0:
        console.print(Text(f"Sizes are the provider's, {run.replay.ratio:.2f} tokens for each that was estimated."))
    if run.replay.error is not None:
        console.print(Text(f"The run would end at {one_line(run.replay.error)}", style="red"))
    if run.is_interrupted:
        console.print(Text(f"Stopped after {len(run.requests)} of {len(run.replay)} requests.", style="yellow"))


def _title(run: _Run) -> str:
    window = run.replay.hook.window
    return (
        f"{run.name}: {len(run.requests):,} requests in a window of {window.context_window:,} tokens; {run.strategy} "
        f"from {int(window.trigger):,} down to {window.target:,}"
    )


def _print_chart(console: Console, run: _Run) -> None:
    columns = [Column(request.tokens, request.tokens + request.freed) for request in run.requests]
    highest = _HIGHEST_LINE * max(column.before for column in columns)
    lines = [(line.label, line.tokens) for line in _lines(run) if line.tokens <= highest]
    for line in column_chart(console, columns, lines=lines, rows=_CHART_ROWS, width=console.width):
        console.print(line, no_wrap=True)


def _lines(run: _Run) -> tuple[Line, ...]:
    window = run.replay.hook.window
    return (
        Line("window", window.context_window),
        Line("trigger", int(window.trigger)),
        Line("target", window.target),
    )


def _print_passes(console: Console, run: _Run) -> None:
    if not run.passes:
        largest = max(request.tokens for request in run.requests)
        trigger = int(run.replay.hook.window.trigger)
        console.print(f"Nothing would be compacted: the largest request has {largest:,} tokens of {trigger:,}.")
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", expand=True)
    for header in _PASS_HEADERS:
        table.add_column(header, justify="right", no_wrap=True, min_width=len(header))
    table.add_column("", ratio=1)
    for request in run.passes[:_LISTED]:
        *numbers, outcome = _pass_cells(request)
        table.add_row(*(f"{number:,}" for number in numbers), Text(str(outcome), style="yellow"))
    console.print(table)
    if len(run.passes) > _LISTED:
        console.print(Text(f"and {len(run.passes) - _LISTED:,} more; --json and --html have all", style="dim"))


_PASS_HEADERS = ("request", "before", "after", "freed", "removed", "rewritten")


def _pass_cells(request: Request) -> tuple[int, int, int, int, int, int, str]:
    report = request.report
    assert report is not None
    return (
        request.step,
        request.tokens + request.freed,
        request.tokens,
        request.freed,
        report.removed_messages,
        report.rewritten_messages,
        report.reason or "",
    )


def _bill_table(run: _Run) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(_bill_title(run), no_wrap=False)
    table.add_column("no cache", justify="right", no_wrap=True)
    table.add_column("with a prompt cache", justify="right", no_wrap=True)
    for label, bill in _bill_rows(run):
        table.add_row(label, _amount(run, bill.without_cache), _amount(run, bill.with_cache))
    return table


def _bill_title(run: _Run) -> str:
    return "input, in tokens at full price" if run.price is None else f"input, at {run.price:g} for a million tokens"


def _bill_rows(run: _Run) -> list[tuple[str, Bill]]:
    return [
        ("with nothing compacted" if name == "nothing" else f"with {name}", bill) for name, bill in run.bills.items()
    ]


def _amount(run: _Run, tokens: float) -> str:
    money = run.in_money(tokens)
    return f"{tokens:,.0f}" if money is None else f"{money:,.4f}"


def _report(run: _Run) -> Report:
    largest = max((request.tokens for request in run.requests), default=0)
    before, after = run.bills.values()
    return Report(
        title="A run, replayed",
        subtitle=_title(run),
        facts=(
            Fact("requests", len(run.requests)),
            Fact("compactions", sum(request.freed > 0 for request in run.requests)),
            Fact("largest request", largest, f"of {run.replay.hook.context_window:,}"),
            Fact("bill, cached", _amount(run, after.with_cache), f"uncompacted {_amount(run, before.with_cache)}"),
            Fact(
                "bill, no cache", _amount(run, after.without_cache), f"uncompacted {_amount(run, before.without_cache)}"
            ),
            Fact("first refused without", run.first_refused),
        ),
        sections=(
            Plot(
                "Size of the requests",
                (
                    Series(f"with {run.strategy}", tuple(_points(run.requests)), tuple(_compactions(run.requests))),
                    Series(
                        "with nothing compacted", tuple((request.step, request.uncompacted) for request in run.requests)
                    ),
                ),
                _lines(run),
                step_label="request",
            ),
            *_html_tables(run),
        ),
        views=(conversation_view("at the end", *_before_and_after(run), TokenLedger()),) if run.requests else (),
    )


def _points(requests: list[Request]) -> list[tuple[int, int]]:
    points = []
    for request in requests:
        if request.freed:
            points.append((request.step, request.tokens + request.freed))
        points.append((request.step, request.tokens))
    return points


def _compactions(requests: list[Request]) -> list[Compaction]:
    return [
        Compaction(request.step, request.tokens + request.freed, request.tokens)
        for request in requests
        if request.freed
    ]


def _html_tables(run: _Run) -> list[HtmlTable]:
    bill = HtmlTable(
        "The bill",
        (_bill_title(run), "no cache", "with a prompt cache"),
        tuple(
            (label, _amount(run, bill.without_cache), _amount(run, bill.with_cache)) for label, bill in _bill_rows(run)
        ),
        note=f"Cached input at {run.prices.cached:g} of the full price, input written to the cache at "
        f"{run.prices.written:g}. Cached is what a request begins with in common with the one before it.",
    )
    if not run.passes:
        return [bill]
    return [
        HtmlTable(
            "Compactions", (*_PASS_HEADERS, "why not all"), tuple(map(_pass_cells, run.passes)), text_columns=(6,)
        ),
        bill,
    ]


def _before_and_after(run: _Run) -> tuple[list[ChatMessage], list[ChatMessage]]:
    """The transcript as far as it was replayed, and what is left of it."""
    replay = run.replay
    end = run.requests[-1].message if run.requests else 0
    seen = list(replay.messages[:end]) if run.is_interrupted or replay.error else list(replay.messages)
    return seen, replay.final
