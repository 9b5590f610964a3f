# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""Writing a report as one HTML file."""

import base64
import hashlib
import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from haystack_compaction.cli.html.charts import DrawnBars, DrawnPlot, DrawnTable
from haystack_compaction.cli.html.data import BarChart, Block, ConversationView, Plot, Report, Table

# What shows nothing, turns the direction of what follows, or has no UTF-8. The newline and the tab do show.
_UNSHOWN = re.compile(
    "\r\n|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2060\u2066-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
_CONTROL_PICTURES = 0x2400


def write_html(path: Path, report: Report) -> None:
    """
    Write a report as one HTML file that needs no network.

    Whatever the texts hold is shown and not run: it gets into the page escaped, and the page's own policy allows no
    script but the one that comes with it, and no request.

    :param path: The file to write. One that is there is overwritten.
    :param report: What it is to show.
    :raises OSError: If the file can't be written.
    """
    path.write_bytes(rendered(report).encode("utf-8"))


def rendered(report: Report) -> str:
    """
    Return a report as the text of an HTML file.

    :param report: What it is to show.
    :returns: The text, which has UTF-8.
    """
    style, script = Markup(_asset("report.css")), Markup(_asset("report.js"))
    sections = [_drawn(section) for section in report.sections]
    plots = [section for _, section in sections if isinstance(section, DrawnPlot)]
    template = _environment().get_template("report.html")
    return template.render(
        report=report,
        sections=sections,
        style=style,
        script=script,
        policy=_policy(style, script),
        data=_json({"plots": list(map(_plot_data, plots)), **_conversations(report.views)}),
    )


def shown(text: str) -> str:
    """
    Return a text in which everything shows, for a reader and not for a machine.

    Control characters become their pictures, and what turns the direction of the text or has no shape becomes its
    number in brackets, so that a text looks like what it is.

    :param text: Any text.
    :returns: The text, which has UTF-8.
    """
    return _UNSHOWN.sub(_picture, text)


def _picture(match: re.Match[str]) -> str:
    if match[0] == "\r\n":
        return "\n"
    code = ord(match[0])
    if code < 0x20:
        return chr(_CONTROL_PICTURES + code)
    return f"[U+{code:04X}]"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_asset),
        autoescape=True,
        finalize=_finalized,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent="{:.3f}%".format, cell=_cell)
    return environment


def _finalized(value: Any) -> Any:
    """Every value of the template goes through here, before it is escaped."""
    return shown(value) if type(value) is str else value


def _cell(value: str | int | None) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:,}"


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """What the browser may do with the page: run its own style and script, known by their hashes, and nothing else."""
    style_hash, script_hash = (
        base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() for content in (style, script)
    )
    return (
        f"default-src 'none'; script-src 'sha256-{script_hash}'; style-src 'sha256-{style_hash}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _drawn(section: Table | BarChart | Plot) -> tuple[str, DrawnTable | DrawnBars | DrawnPlot]:
    """What the template draws a section with, and of what."""
    if isinstance(section, Table):
        return "table", DrawnTable(section)
    return ("bars", DrawnBars(section)) if isinstance(section, BarChart) else ("plot", DrawnPlot(section))


def _json(value: Any) -> Markup:
    """JSON that can stand in a script element: nothing in it ends the element or opens a comment."""
    return Markup(json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"))


def _plot_data(plot: DrawnPlot) -> dict[str, Any]:
    """What the page's script reads the sizes at the pointer from."""
    return {
        "first": plot.first,
        "width": plot.width,
        "step_label": shown(plot.step_label),
        "series": [{"label": shown(series.label), "points": series.points} for series in plot.series],
    }


def _conversations(views: tuple[ConversationView, ...]) -> dict[str, Any]:
    """All views, each message once: most are in both columns, and in the columns of every strategy."""
    messages: dict[Any, int] = {}

    def cell(block: Block | None) -> list[int | None] | None:
        if block is None:
            return None
        message = (block.role, block.kind, block.tokens, block.marks, block.parts)
        return [block.index, block.step, messages.setdefault(message, len(messages))]

    drawn = [
        {
            "title": shown(view.title),
            "lines": [[shown(line.label), line.tokens] for line in view.lines],
            "rows": [[row.status, cell(row.before), cell(row.after)] for row in view.rows],
        }
        for view in views
    ]
    pool = [
        {
            "role": role,
            "kind": kind,
            "tokens": tokens,
            "marks": marks,
            "parts": [[part.kind, shown(part.name), shown(part.text)] for part in parts],
        }
        for role, kind, tokens, marks, parts in messages
    ]
    return {"views": drawn, "messages": pool}
