# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""A conversation out of an archive, as it would be without any compaction."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from haystack_compaction.archive import full_transcript
from haystack_compaction.cli import options
from haystack_compaction.cli.archives import opened_archive, require_conversation
from haystack_compaction.cli.console import counted, fail, one_line
from haystack_compaction.cli.transcripts import TranscriptError, replace_file


def export(
    archive: options.ArchiveFile,
    conversation: Annotated[str, typer.Argument(help="The id of the conversation.", show_default=False)],
    messages: Annotated[
        Path | None,
        typer.Option(
            help="The conversation as it is now, whose messages the archive does not hold: a transcript, or - for the "
            "standard input."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Write to this file instead of the standard output.")] = None,
    force: options.Force = False,
) -> None:
    """Write a conversation with all that was ever in it: one message a line, as ChatMessage.to_dict()."""
    options.require_writable(output, force=force)
    left = [] if messages is None else options.transcript_in(messages, None).messages
    with opened_archive(archive) as opened:
        require_conversation(opened, conversation)
        transcript = full_transcript(opened, conversation, left)
        missing = opened.outline(conversation).end - len(transcript)
    # A lone surrogate has no UTF-8, but Python's way to escape it is JSON's, too.
    lines = "".join(json.dumps(message.to_dict(), ensure_ascii=False) + "\n" for message in transcript)
    data = lines.encode("utf-8", "backslashreplace")
    if output is None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        try:
            replace_file(output, data)
        except TranscriptError as error:
            fail(f"{output}: {error}")
        typer.echo(f"Written to {one_line(str(output))}", err=True)
    if missing > 0:
        typer.echo(
            f"Warning: not in the archive, because no pass took it out: {counted(missing, 'message')}. Give the "
            f"conversation as it is now to --messages.",
            err=True,
        )
