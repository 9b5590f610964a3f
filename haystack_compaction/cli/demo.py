# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""An Agent on a long task in a small window, with compaction and without."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import typer
from haystack.components.agents import Agent
from haystack.components.agents.state.state import State
from haystack.components.generators.chat.types import ChatGenerator
from haystack.dataclasses import ChatMessage, ChatRole
from haystack.hooks.from_function import FunctionHook
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from haystack_compaction.cli import options
from haystack_compaction.cli.bars import bar
from haystack_compaction.cli.console import new_console, one_line
from haystack_compaction.cli.incident import SYSTEM_PROMPT, TASK, Incident, investigation
from haystack_compaction.cli.message_rows import summary
from haystack_compaction.cli.scripted import ScriptedChatGenerator
from haystack_compaction.compaction_pass import changes_between
from haystack_compaction.compactors.sliding_window import SlidingWindowCompactor
from haystack_compaction.conversation.notes import is_note
from haystack_compaction.conversation.structure import Conversation
from haystack_compaction.hook import CompactionHook
from haystack_compaction.tokens.ledger import TokenLedger

_BAR_CELLS = 24
# Long enough to watch the table grow, short enough for the whole demo to take seconds.
_PAUSE_SECONDS = 0.1
_MAX_STEPS = 80


def demo(
    window: Annotated[int, typer.Option(min=3000, help="The model's context window, in tokens.")] = 8000,
    model: Annotated[
        str | None,
        typer.Option(
            help="Use this model of an OpenAI-compatible API instead of the scripted one; see OPENAI_API_KEY."
        ),
    ] = None,
    api_base_url: options.ApiBaseUrl = None,
) -> None:
    """Watch an Agent work through a long task in a small context window. Needs no key and no network."""
    chat_generator = options.chat_generator(model, api_base_url)
    console = new_console()
    console.print(Panel(Text(TASK), title="the task", title_align="left", border_style="dim"))
    hook = CompactionHook(SlidingWindowCompactor(), context_window=window)
    if chat_generator is None:
        console.print("The model's replies come from a script. The Agent, its tools and the compaction are real.")
    console.print(
        f"A window of {window:,} tokens. The hook compacts at {hook.compact_at:.0%} of it, down to "
        f"{hook.compact_to:.0%}.\n"
    )
    console.print(_table(show_header=True))
    run = _Run(hook, on_step=lambda step: _print_step(console, step, window))
    if chat_generator is not None:
        run.start(chat_generator)
        _print_outcome(console, run, window)
        _print_uncompacted(console, run, window)
    else:
        run.start(ScriptedChatGenerator(investigation, context_window=window))
        _print_outcome(console, run, window)
        without_hook = _Run(hook=None)
        without_hook.start(ScriptedChatGenerator(investigation, context_window=window))
        _print_without_hook(console, without_hook, window)
    if run.error is not None:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Step:
    """One call of the model, with what the hook did right before it."""

    number: int
    before: list[ChatMessage]
    after: list[ChatMessage]
    tokens_before: int
    tokens: int

    @property
    def removed(self) -> list[ChatMessage]:
        """What compaction removed, earlier notes aside."""
        return [message for message in changes_between(self.before, self.after).removed if not is_note(message)]


@dataclass
class _Run:
    """One run of the Agent. It watches itself from the hook point where compaction happens."""

    hook: CompactionHook | None
    on_step: Callable[[_Step], None] = lambda step: None
    steps: list[_Step] = field(default_factory=list)
    reply: ChatMessage | None = None
    error: str | None = None
    #: The size that each request would have had if nothing had been removed.
    uncompacted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ledger = TokenLedger()
        self._seen: dict[int, ChatMessage] = {}

    def start(self, chat_generator: ChatGenerator) -> None:
        """Run the Agent to its end, whatever that is."""
        agent = Agent(
            chat_generator=chat_generator,
            tools=Incident().tools,
            system_prompt=SYSTEM_PROMPT,
            max_agent_steps=_MAX_STEPS,
            hooks={"before_llm": [FunctionHook(self._watch)]},
        )
        try:
            self.reply = agent.run(messages=[ChatMessage.from_user(TASK)])["last_message"]
        except Exception as error:
            self.error = f"{type(error).__name__}: {one_line(str(error))}"

    def _watch(self, state: State) -> None:
        """Let the compaction hook work, and take down what it did."""
        before = list(state.data["messages"])
        if self.hook is not None:
            self.hook.run(state)
        after, tools = list(state.data["messages"]), state.data["tools"]
        self._seen.update((id(message), message) for message in before if not is_note(message))
        self.uncompacted.append(self._ledger.count(list(self._seen.values()), tools))
        tokens_before, tokens = self._ledger.count(before, tools), self._ledger.count(after, tools)
        self.steps.append(_Step(len(self.steps) + 1, before, after, tokens_before, tokens))
        self.on_step(self.steps[-1])


def _table(*, show_header: bool = False) -> Table:
    """A table whose rows are printed one at a time, as they come."""
    table = Table(box=None, padding=(0, 1), show_header=show_header, header_style="bold", expand=True)
    table.add_column("step", justify="right", width=4)
    table.add_column("the model's latest move", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("context", width=_BAR_CELLS, no_wrap=True)
    table.add_column("tokens", justify="right", width=6)
    return table


def _print_step(console: Console, step: _Step, window: int) -> None:
    if step.removed:
        table = _table()
        size = _bar(console, step.tokens_before, window)
        table.add_row("", "compaction", size, f"{step.tokens_before:,}", style="bold yellow")
        console.print(table)
        console.print(Padding(Text(f"-  gone: {_gone(step)}", style="red"), (0, 0, 0, 4)))
        console.print(Padding(Text(f"=  stays: {_staying(step)}", style="green"), (0, 0, 0, 4)))
    table = _table()
    table.add_row(str(step.number), Text(_latest_move(step)), _bar(console, step.tokens, window), f"{step.tokens:,}")
    console.print(table)
    if console.is_terminal:
        time.sleep(_PAUSE_SECONDS)


def _gone(step: _Step) -> str:
    moves = [message for message in step.removed if message.role is ChatRole.ASSISTANT]
    first = one_line(moves[0].text or summary(moves[0]), limit=50) if moves else ""
    return f"{len(step.removed)} messages, the {len(moves)} moves from '{first}' on"


def _staying(step: _Step) -> str:
    kept, all_moves = len(Conversation(step.after).steps), len(Conversation(step.before).steps)
    return f"system prompt, task, note, the newest {kept} of {all_moves} moves"


def _latest_move(step: _Step) -> str:
    moves = [message for message in step.before if message.role is ChatRole.ASSISTANT]
    return summary(moves[-1]) if moves else "(nothing yet)"


def _bar(console: Console, tokens: int, window: int) -> Text:
    return bar(console, tokens / window, cells=_BAR_CELLS, style="red" if tokens > window else "")


def _print_outcome(console: Console, run: _Run, window: int) -> None:
    console.print()
    largest = max((step.tokens for step in run.steps), default=0)
    compactions = sum(1 for step in run.steps if step.removed)
    if run.error is not None:
        console.print(Text(f"With compaction the run ended at step {len(run.steps)}: {run.error}", style="red"))
        return
    console.print(
        f"[bold green]With compaction[/] the Agent finished. Steps: {len(run.steps)}, compactions: {compactions}, "
        f"largest request: {largest:,} of {window:,} tokens."
    )
    known = any(message.text == TASK for message in run.steps[-1].after)
    console.print(f"The task in its own words is {'still' if known else 'no longer'} in the context of the last step.")
    text = run.reply.text if run.reply is not None and run.reply.text else f"(no reply within {_MAX_STEPS} steps)"
    console.print(Panel(Text(text), title="the Agent's report", title_align="left", border_style="green"))


def _print_without_hook(console: Console, run: _Run, window: int) -> None:
    last = run.steps[-1]
    if run.error is None:
        console.print(
            f"[bold]Without compaction[/] the Agent finished too: {last.tokens:,} of {window:,} tokens at the end."
        )
        return
    console.print(f"[bold red]Without compaction[/] the same run died at step {last.number}:")
    table = _table()
    table.add_row(str(last.number), Text(_latest_move(last)), _bar(console, last.tokens, window), f"{last.tokens:,}")
    console.print(table)
    console.print(Text(run.error, style="red"))


def _print_uncompacted(console: Console, run: _Run, window: int) -> None:
    too_large = [number for number, tokens in enumerate(run.uncompacted, 1) if tokens > window]
    if too_large:
        console.print(
            f"[bold red]Without compaction[/] the request of step {too_large[0]} would have been the first one over "
            f"{window:,} tokens, and that of step {len(run.uncompacted)} would have had {run.uncompacted[-1]:,}."
        )
    elif run.error is None:
        console.print("[bold]Without compaction[/] this run would have fitted the window, too.")
