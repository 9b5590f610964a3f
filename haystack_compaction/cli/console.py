# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What all commands print with: a console, texts that can't harm a terminal, and errors of one line."""

import json
import logging
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

#: What a shell expects of a program that was stopped with Ctrl-C.
INTERRUPTED = 130

_PIPED_WIDTH = 120
_SPACES = re.compile(r"\s+")
# Joins emoji to one picture, and is the only invisible character that a terminal needs.
_ZERO_WIDTH_JOINER = "\u200d"

_ItemT = TypeVar("_ItemT")


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


def several_lines(text: str) -> str:
    """
    Return a text that does nothing to a terminal but show, in its own lines.

    :param text: Any text.
    :returns: The text, without control characters other than line breaks.
    """
    lines = text.replace("\r\n", "\n").replace("\t", "    ").split("\n")
    return "\n".join("".join(map(_shown, line)).rstrip() for line in lines)


def counted(number: int, noun: str) -> str:
    """
    Return a number of things in words.

    :param number: How many there are.
    :param noun: What one of them is called.
    :returns: Such as "1 message" or "2,000 messages".
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def print_json(data: Any) -> None:
    """
    Print what a command found as JSON, and nothing else.

    :param data: Plain values.
    """
    typer.echo(json.dumps(data, ensure_ascii=False, indent=2))


def with_progress(items: Iterable[_ItemT], *, total: int, description: str) -> Iterator[_ItemT]:
    """
    Show a bar on standard error while items are worked on, where that is a terminal.

    :param items: The items.
    :param total: How many there are.
    :param description: What is being done.
    :returns: The items, one by one.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield from progress.track(items, total=total, description=description)


@contextmanager
def warnings_at_the_end() -> Iterator[None]:
    """Keep what the package logs out of bars and tables: it is printed once and in one line each, after them."""
    logger, handler = logging.getLogger("haystack_compaction"), _Collector()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate
        for message, times in handler.messages.items():
            typer.echo(f"Warning: {message}{f' ({times} times)' if times > 1 else ''}", err=True)


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: dict[str, int] = {}

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        reason = f" {type(error).__name__}: {error}" if error else ""
        message = one_line(f"{record.getMessage()}{reason}")
        self.messages[message] = self.messages.get(message, 0) + 1


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
