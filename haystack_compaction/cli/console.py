# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What all commands print with: a console, texts that can't harm a terminal, and errors of one line."""

import os
import re
import unicodedata
from typing import NoReturn

import typer
from rich.console import Console

_PIPED_WIDTH = 120
_SPACES = re.compile(r"\s+")
# Joins emoji to one picture, and is the only invisible character that a terminal needs.
_ZERO_WIDTH_JOINER = "\u200d"


def new_console() -> Console:
    """Return a console for standard output, 120 columns wide where that is no terminal."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_WIDTH
    return console


def one_line(text: str, *, limit: int = 400) -> str:
    """
    Return the beginning of a text in one line that does nothing to a terminal but show.

    Control characters, and with them escape sequences, direction marks and lone surrogates are replaced.

    :param text: Any text.
    :param limit: How many characters are returned at most.
    :returns: The line.
    """
    # A little more is looked at, since spaces fall together.
    return _SPACES.sub(" ", "".join(map(_shown, text[: 4 * limit]))).strip()[:limit]


def fail(message: str) -> NoReturn:
    """
    End the command with exit code 2 and one line on standard error.

    :param message: What is wrong, and what to do.
    """
    typer.echo(f"Error: {one_line(message, limit=1000)}", err=True)
    raise typer.Exit(2)


def _shown(character: str) -> str:
    if character.isspace():
        return " "
    if unicodedata.category(character) in ("Cc", "Cf", "Cs") and character != _ZERO_WIDTH_JOINER:
        return "\N{REPLACEMENT CHARACTER}"
    return character
