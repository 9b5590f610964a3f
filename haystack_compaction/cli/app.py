# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""All commands in one application."""

from typing import Annotated

import typer

from haystack_compaction import __version__
from haystack_compaction.cli.compare import compare
from haystack_compaction.cli.demo import demo
from haystack_compaction.cli.export import export
from haystack_compaction.cli.history import history
from haystack_compaction.cli.inspect import inspect
from haystack_compaction.cli.preview import preview
from haystack_compaction.cli.replay import replay

app = typer.Typer(
    name="haystack-compaction",
    help="Keeps Haystack Agent runs and chat pipelines inside the model's context window.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(preview)
app.command()(compare)
app.command()(inspect)
app.command()(replay)
app.command()(history)
app.command()(export)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"haystack-compaction {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Options that stand before the command."""
