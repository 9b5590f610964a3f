# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""What an archive holds: its conversations, and the passes over each of them."""

from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from haystack_compaction.archive.protocol import Archive, PassRecord
from haystack_compaction.cli import options
from haystack_compaction.cli.archives import opened_archive, require_conversation
from haystack_compaction.cli.console import counted, new_console, one_line, print_json
from haystack_compaction.cli.message_rows import summary

_PASS_COLUMNS = ("pass", "when", "strategy", "before", "after", "removed", "rewritten", "calls")


def history(
    archive: options.ArchiveFile,
    conversation: Annotated[
        str | None, typer.Option(help="Show the passes over this conversation instead of all conversations.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List the conversations of an archive, or the passes over one of them."""
    with opened_archive(archive) as opened:
        if conversation is None:
            _show_conversations(archive, [_Archived.of(opened, name) for name in opened.conversations()], as_json)
        else:
            require_conversation(opened, conversation)
            _show_passes(conversation, opened.passes(conversation), as_json)


@dataclass(frozen=True)
class _Archived:
    """
    A conversation in an archive.

    :param conversation: Its id.
    :param passes: How many passes were archived.
    :param messages: How many messages it has had.
    :param archived: How many of them the archive holds; the others were left in the conversation.
    :param freed: What all passes together took from it, in tokens.
    :param newest: When the newest pass was archived, in ISO 8601; None where there was none.
    """

    conversation: str
    passes: int
    messages: int
    archived: int
    freed: int
    newest: str | None

    @classmethod
    def of(cls, archive: Archive, conversation: str) -> "_Archived":
        outline, passes = archive.outline(conversation), archive.passes(conversation)
        return cls(
            conversation=conversation,
            passes=len(passes),
            messages=outline.end,
            archived=len(outline.archived),
            freed=sum(_number(record, "tokens_before") - _number(record, "tokens_after") for record in passes),
            newest=_when(passes[-1]).isoformat(timespec="seconds") if passes else None,
        )


def _show_conversations(path: Path, conversations: list[_Archived], as_json: bool) -> None:
    if as_json:
        print_json([asdict(archived) for archived in conversations])
        return
    console = new_console()
    console.print(Text(f"{one_line(str(path))}: {counted(len(conversations), 'conversation')}", style="bold"))
    table = _new_table("conversation", "passes", "messages", "archived", "freed", "newest pass")
    for archived in conversations:
        newest = _minute(datetime.fromisoformat(archived.newest)) if archived.newest else ""
        numbers = (archived.passes, archived.messages, archived.archived, archived.freed)
        table.add_row(Text(one_line(archived.conversation)), *(f"{number:,}" for number in numbers), newest)
    if conversations:
        console.print(table)


def _show_passes(conversation: str, passes: list[PassRecord], as_json: bool) -> None:
    if as_json:
        print_json([_as_dict(record) for record in passes])
        return
    console = new_console()
    console.print(Text(f"The passes over {one_line(conversation)}", style="bold"))
    table = _new_table(*_PASS_COLUMNS)
    for record in passes:
        keys = ("tokens_before", "tokens_after", "removed_messages", "rewritten_messages", "llm_calls")
        numbers = [f"{_number(record, key):,}" for key in keys]
        table.add_row(
            str(record.number), _minute(_when(record)), Text(one_line(str(record.report.get("strategy")))), *numbers
        )
    console.print(table)


def _as_dict(record: PassRecord) -> dict[str, Any]:
    return {
        "number": record.number,
        "written_at": _when(record).isoformat(timespec="seconds"),
        "report": record.report,
        "replaced_notes": list(map(summary, record.notes)),
    }


def _number(record: PassRecord, key: str) -> int:
    """A number of the report, which may have been written by another version."""
    value = record.report.get(key, 0)
    return value if isinstance(value, int) else 0


def _when(record: PassRecord) -> datetime:
    return datetime.fromtimestamp(record.written_at).astimezone()


def _minute(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M}"


def _new_table(*headers: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for header in headers:
        is_text = header in ("conversation", "when", "strategy", "newest pass")
        table.add_column(header, justify="left" if is_text else "right", overflow="fold")
    return table
