# SPDX-FileCopyrightText: 2026 haystack-compaction contributors
#
# SPDX-License-Identifier: Apache-2.0

"""The task of the demo: a shop whose checkout fails, the files that tell why, and how a model would find out."""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from haystack.dataclasses import ChatMessage, ToolCall
from haystack.tools.from_function import create_tool_from_function
from haystack.tools.tool import Tool

SYSTEM_PROMPT = (
    "You are the on-call engineer of a web shop. Work step by step: read one file at a time, page by page, and save "
    "each finding with write_note as soon as you have it. Finish with a short report: root cause and evidence."
)
TASK = (
    "Since 14:07 on 12 March about one in five customers gets a 502 at checkout. Go through the logs, configurations "
    "and deployments of all services, find the root cause, and write the report. The report must end with the words "
    "'Incident SHOP-1207', and must not blame a service without evidence."
)

_PAGE_LINES = 20
_MAX_HITS = 12


@dataclass
class Incident:
    """
    The files of the incident, and the tools that work on them.

    ### Usage example

    ```python
    from haystack_compaction.cli.incident import Incident

    incident = Incident()
    assert "logs/checkout.log" in incident.list_files("logs")
    ```
    """

    files: dict[str, str] = field(default_factory=lambda: dict(_files()))
    notes: list[str] = field(default_factory=list)

    @property
    def tools(self) -> list[Tool]:
        """The tools for an Agent."""
        functions: list[Callable[..., str]] = [self.list_files, self.read_file, self.search, self.write_note]
        return [create_tool_from_function(function) for function in functions]

    def list_files(self, folder: Annotated[str, "The folder, or an empty text for all of them"] = "") -> str:
        """List the files of a folder with their number of lines."""
        names = [name for name in self.files if name.startswith(folder)]
        return "\n".join(f"{name}  {self.files[name].count(chr(10)) + 1} lines" for name in names) or "No such folder."

    def read_file(
        self, path: Annotated[str, "The path of the file"], page: Annotated[int, "The page, from 1 on"] = 1
    ) -> str:
        """Read one page of a file."""
        if path not in self.files:
            return f"No such file: {path}"
        lines = self.files[path].split("\n")
        pages = -(-len(lines) // _PAGE_LINES)
        shown = lines[(page - 1) * _PAGE_LINES : page * _PAGE_LINES] if page > 0 else []
        return "\n".join([f"{path}, page {page} of {pages}", *shown])

    def search(self, pattern: Annotated[str, "A regular expression"]) -> str:
        """Search all files for a regular expression."""
        try:
            expression = re.compile(pattern)
        except re.error as error:
            return f"Not a regular expression: {error}"
        lines = ((name, line) for name, text in self.files.items() for line in text.split("\n"))
        hits = [f"{name}: {line}" for name, line in lines if expression.search(line)]
        more = [f"... and {len(hits) - _MAX_HITS} more"] if len(hits) > _MAX_HITS else []
        return "\n".join([*hits[:_MAX_HITS], *more]) or "No match."

    def write_note(self, text: Annotated[str, "One finding, in one sentence"]) -> str:
        """Save a finding. Returns all findings so far."""
        self.notes.append(text)
        return "Notes so far:\n" + "\n".join(f"{number}. {note}" for number, note in enumerate(self.notes, 1))


def investigation(call: int, messages: list[ChatMessage]) -> ChatMessage:
    """
    Say what a model would say next: the script of the demo.

    :param call: The number of the model's call, from 0 on.
    :param messages: The messages that the model can see. The report at the end is written from these alone.
    :returns: The reply.
    """
    if call >= len(_MOVES):
        return ChatMessage.from_assistant(_report(messages))
    thought, tool, arguments = _MOVES[call]
    return ChatMessage.from_assistant(thought, tool_calls=[ToolCall(tool, dict(arguments), id=f"call_{call + 1}")])


def _report(messages: list[ChatMessage]) -> str:
    """The report, from the task and the notes as far as they can still be seen."""
    closing_words = re.findall(r"end with the words '([^']+)'", " ".join(m.text or "" for m in messages))
    results = [result for message in messages for result in message.tool_call_results]
    notes = [str(result.result) for result in results if result.origin.tool_name == "write_note"]
    if not closing_words or not notes:
        return "I can no longer see what I was asked or what I found."
    findings = notes[-1].partition("\n")[2]
    return (
        "Root cause: deployment 4471 of 14:05 set the inventory service's pool of database connections to 4 instead of "
        f"40. Set `pool.max_size` back to 40 and roll out again.\n\nEvidence:\n{findings}\n\n{closing_words[-1]}"
    )


def _read(path: str, page: int = 1) -> tuple[str, dict[str, Any]]:
    return "read_file", {"path": path, "page": page}


def _note(text: str) -> tuple[str, dict[str, Any]]:
    return "write_note", {"text": text}


# What the model thinks, which tool it calls, and with what.
_MOVES: list[tuple[str, str, dict[str, Any]]] = [
    ("First an overview of what there is.", "list_files", {"folder": ""}),
    ("The 502s come from the gateway, so I start there.", *_read("logs/gateway.log")),
    ("Nothing unusual before 14:00. On to the next page.", *_read("logs/gateway.log", 2)),
    ("The 502s begin at 14:07 and all of them are on /checkout.", *_read("logs/gateway.log", 3)),
    ("I save that.", *_note("Gateway: 502 only on POST /checkout, from 14:07 on; upstream is the checkout service.")),
    ("Was the gateway itself changed?", *_read("config/gateway.yaml")),
    ("Its timeout is 3 s, unchanged for months. Now the checkout service.", *_read("logs/checkout.log")),
    ("Healthy before 14:00. Next page.", *_read("logs/checkout.log", 2)),
    ("Here it waits for something.", *_read("logs/checkout.log", 3)),
    (
        "Checkout waits for inventory.",
        *_note("Checkout: fails with 'reserve stock: deadline of 2500 ms exceeded' on calls to inventory, from 14:07."),
    ),
    ("Payments is called by checkout as well, so I rule it out or in.", *_read("logs/payments.log")),
    ("A certificate warning. Does it matter?", *_read("logs/payments.log", 2)),
    ("All payments succeed within 300 ms; the warning is about April.", *_read("logs/payments.log", 3)),
    (
        "Not payments.",
        *_note("Payments: all calls succeed in under 300 ms; certificate warning is for April, unrelated."),
    ),
    ("Redis evictions could slow everything down.", *_read("logs/redis.log")),
    ("Evictions before anything broke. And after 14:07?", *_read("logs/redis.log", 3)),
    (
        "The same rate after 14:07 as before it.",
        *_note("Redis: steady evictions all day, no change at 14:07; unrelated."),
    ),
    ("Now inventory itself.", *_read("logs/inventory.log")),
    ("Reservations take about 20 ms. Next page.", *_read("logs/inventory.log", 2)),
    ("There: it restarts at 14:05 and then waits for connections.", *_read("logs/inventory.log", 3)),
    (
        "That is the symptom.",
        *_note(
            "Inventory: restarted 14:05 with deployment 4471; from 14:07 'waited for a connection, pool 4/4 in use'."
        ),
    ),
    ("Is the database slow, or is the pool small?", *_read("logs/postgres.log")),
    ("Queries take 5 ms.", *_read("logs/postgres.log", 2)),
    ("Still 5 ms after 14:07, with fewer connections than before.", *_read("logs/postgres.log", 3)),
    (
        "Not the database.",
        *_note("Postgres: queries stay at 5 ms; connections from inventory fall from 40 to 4 at 14:05."),
    ),
    ("Now the configuration of inventory.", *_read("config/inventory.yaml")),
    ("`max_size: 4`. Was it always?", "search", {"pattern": "max_size|4471"}),
    ("The changes of that deployment, in full.", *_read("deployments/2026-03-12.md")),
    (
        "A digit was lost.",
        *_note(
            "Deployment 4471 changed config/inventory.yaml: pool.max_size 40 -> 4; its description says 'no change'."
        ),
    ),
    (
        "The gateway's deployment of 13:52 has to be ruled out, too.",
        "search",
        {"pattern": "13:5[0-9].*(ERROR|WARN|502)"},
    ),
    (
        "Only the certificate again; no error around 13:52.",
        *_note("Gateway deployment of 13:52: no error until 14:07; ruled out."),
    ),
    ("Shipping also talks to inventory; is it affected?", *_read("logs/shipping.log")),
    ("Nothing unusual before 14:00. And after 14:07?", *_read("logs/shipping.log", 3)),
    (
        "It is asynchronous and tries again: delayed, not failing.",
        *_note("Shipping: retries its calls of inventory, no orders lost."),
    ),
    ("What does the runbook say about the pool?", *_read("runbooks/inventory.md")),
    (
        "That settles the fix.",
        *_note("Runbook: the pool needs 1 connection for each 5 requests/s; at 180/s that is 36, so 40."),
    ),
]


def _files() -> Iterator[tuple[str, str]]:
    """All files, the same ones every time."""
    pick = random.Random(1207)
    yield from ((f"logs/{service}.log", "\n".join(_log(service, pick))) for service in _LOG_LINES)
    yield from _DOCUMENTS.items()


def _log(service: str, pick: random.Random) -> Iterator[str]:
    """Three pages of log lines, from 13:25 on. The third begins with the deployments and turns bad at 14:07."""
    quiet, broken = _LOG_LINES[service]
    for line in range(3 * _PAGE_LINES):
        second = 13 * 3600 + 25 * 60 + line * 61
        clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.{pick.randint(0, 999):03}Z"
        if (service, line) == _RESTART:
            yield f"{clock} INFO stopped; starting again with deployment 4471, connection pool max_size=4"
            continue
        values = {
            "order": pick.randint(480_000, 489_999),
            "trace": f"{pick.getrandbits(32):08x}",
            "ms": pick.randint(10, 29),
        }
        bad = line >= 2 * _PAGE_LINES + 2
        yield f"{clock} {pick.choice(broken if bad else quiet).format(**values)}"


_RESTART = ("inventory", 2 * _PAGE_LINES)

# For each service the lines of a quiet log, and those from 14:07 on.
_LOG_LINES: dict[str, tuple[list[str], list[str]]] = {
    "gateway": (
        [
            "INFO GET /products/{order} 200 {ms} ms trace={trace} upstream=catalog",
            "INFO GET /cart 200 {ms} ms trace={trace} upstream=checkout",
            "INFO POST /checkout 200 4{ms} ms trace={trace} upstream=checkout order={order}",
            "INFO POST /login 204 {ms} ms trace={trace} upstream=accounts",
        ],
        [
            "INFO GET /products/{order} 200 {ms} ms trace={trace} upstream=catalog",
            "INFO POST /checkout 200 19{ms} ms trace={trace} upstream=checkout order={order}",
            "INFO POST /login 204 {ms} ms trace={trace} upstream=accounts",
            "INFO GET /cart 200 {ms} ms trace={trace} upstream=checkout",
            "ERROR POST /checkout 502 25{ms} ms trace={trace} upstream=checkout order={order}",
        ],
    ),
    "checkout": (
        [
            "INFO order {order} created, total checked, trace={trace}",
            "INFO order {order} stock reserved by inventory in {ms} ms, trace={trace}",
            "INFO order {order} paid, confirmation queued, trace={trace}",
        ],
        [
            "INFO order {order} created, total checked, trace={trace}",
            "WARN order {order} waiting for inventory since 19{ms} ms, trace={trace}",
            "ERROR order {order} reserve stock: deadline of 2500 ms exceeded, answering 502, trace={trace}",
            "INFO order {order} paid, confirmation queued, trace={trace}",
        ],
    ),
    "payments": (
        [
            "INFO payment for order {order} authorised in 2{ms} ms, trace={trace}",
            "INFO payment for order {order} captured in 1{ms} ms, trace={trace}",
            "WARN certificate of the acquirer's test endpoint expires on 30 April",
        ],
        [
            "INFO payment for order {order} authorised in 2{ms} ms, trace={trace}",
            "INFO payment for order {order} captured in 1{ms} ms, trace={trace}",
        ],
    ),
    "redis": (
        [
            "INFO evicted {ms} keys of sessions, memory 91 % of maxmemory",
            "INFO background save done in {ms} ms",
            "INFO {order} hits, 1{ms} misses in the last minute",
        ],
        [
            "INFO evicted {ms} keys of sessions, memory 91 % of maxmemory",
            "INFO {order} hits, 1{ms} misses in the last minute",
        ],
    ),
    "inventory": (
        [
            "INFO reserved stock for order {order} in {ms} ms, pool 2{ms}/40 in use, trace={trace}",
            "INFO released stock of expired cart {order} in {ms} ms, trace={trace}",
        ],
        [
            "WARN order {order} waited for a connection for 24{ms} ms, pool 4/4 in use, trace={trace}",
            "INFO reserved stock for order {order} in 21{ms} ms, pool 4/4 in use, trace={trace}",
            "ERROR order {order} gave up: the caller is gone, trace={trace}",
        ],
    ),
    "postgres": (
        [
            "LOG duration: 5.{ms} ms  UPDATE stock SET reserved = reserved + 1 WHERE sku = {order}",
            "LOG connections: inventory 40, checkout 20, payments 20, limit 200",
            "LOG checkpoint complete: wrote {order} buffers in {ms} ms",
        ],
        [
            "LOG duration: 5.{ms} ms  UPDATE stock SET reserved = reserved + 1 WHERE sku = {order}",
            "LOG connections: inventory 4, checkout 20, payments 20, limit 200",
        ],
    ),
    "shipping": (
        [
            "INFO parcel for order {order} announced to the carrier in 1{ms} ms, trace={trace}",
            "INFO stock of order {order} confirmed by inventory in {ms} ms, trace={trace}",
        ],
        [
            "WARN stock of order {order} not confirmed yet, trying again in 30 s, trace={trace}",
            "INFO parcel for order {order} announced to the carrier in 1{ms} ms, trace={trace}",
        ],
    ),
}

_DOCUMENTS = {
    "config/gateway.yaml": """\
# last changed 2025-11-02
listen: 0.0.0.0:8443
upstreams:
  checkout: {address: "checkout:8080", timeout_ms: 3000, retries: 0}
  catalog: {address: "catalog:8080", timeout_ms: 1000, retries: 2}
  accounts: {address: "accounts:8080", timeout_ms: 1000, retries: 1}
access_log: {format: json, fields: [method, path, status, duration, trace, upstream]}""",
    "config/inventory.yaml": """\
# last changed 2026-03-12, deployment 4471
listen: 0.0.0.0:8080
database:
  host: postgres
  pool:
    min_size: 2
    max_size: 4
    wait_ms: 2500
reservations: {expire_after_minutes: 20, batch: 50}""",
    "deployments/2026-03-12.md": """\
## 4469, 09:15, catalog, by nora
New translations. Rolled out in 4 minutes, no alert.

## 4470, 13:52, gateway, by theo
Access log as JSON. No change of routes or timeouts.

## 4471, 14:05, inventory, by theo
Description: "tidy up the configuration, no change in behaviour"
diff config/inventory.yaml
-    max_size: 40   # see runbooks/inventory.md
+    max_size: 4
-    wait_ms: 2500  # below the deadline of checkout
+    wait_ms: 2500

## 4472, 15:30, accounts, by nora
Planned, put on hold because of the incident.""",
    "runbooks/inventory.md": """\
# Inventory: pool of database connections
A reservation holds a connection for about 200 ms, so the pool needs 1 connection for each 5 requests a second.
At the evening peak of 180 requests a second that is 36; we run 40.
If it is too small, reservations wait, checkout gives up after 2500 ms, and the gateway answers 502.
Postgres takes up to 200 connections of all services.""",
}
