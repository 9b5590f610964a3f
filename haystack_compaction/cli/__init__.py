# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The command line: one command a file, put together in `app.py`."""

import sys

_MISSING_EXTRA = 'The command line needs its extra: pip install "haystack-compaction[cli]"'


def main() -> None:
    """Run the command line, or say what to install where something is missing."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal may not be able to show everything that a conversation holds.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        from haystack_compaction.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "jinja2"):
            raise
        sys.stderr.write(_MISSING_EXTRA + "\n")
        sys.exit(2)
    except KeyboardInterrupt:
        # Importing takes a moment. What comes after it knows by itself what to do.
        sys.exit(130)
    app()
