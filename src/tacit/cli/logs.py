"""Log lines of `tacit hub` and `tacit party` on stderr, as text for people or as JSON for programs.

A JSON line has `time` (UTC), `level`, `logger` and `text`, and what the line is about under names of its own.
Lines name parties and network addresses. They never contain rows, values, model parameters or metrics.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from .verbs import arg

LOG = arg(
    "--log",
    choices=("text", "json"),
    default="text",
    help="log lines on stderr: text, or one JSON object a line (default: text)",
)
MONITOR = arg(
    "--monitor",
    metavar="PORT",
    help="answer /healthz, /readyz and /metrics (Prometheus) at this port of this machine, or at "
    "ADDRESS:PORT (default: nowhere)",
)
FIELDS = "fields"  # the attribute of a record that holds further names and values
ROUND_FIELDS = ("round", "sampled", "bytes_up", "bytes_down", "seconds", "epsilon")


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
            **record.__dict__.get(FIELDS, {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__  # its text may quote data
        return json.dumps(line, ensure_ascii=False, allow_nan=False)


def start_logs(form: str = "text") -> None:
    """Log what happens to connections on stderr: an operator reads it when something is wrong."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def log_event(event: dict[str, Any]) -> None:
    """Log an event of a run: the number of a round and what it cost, no metric."""
    log = logging.getLogger("tacit.server")
    if event["kind"] == "round":
        fields = {name: event[name] for name in ROUND_FIELDS if isinstance(event.get(name), int | float)}
        fields["dropped"] = len(event.get("dropped", ()))
        log.info("round %d", event["round"], extra={FIELDS: {"event": "round", **fields}})
    elif event["kind"] == "start":
        log.info("the run starts", extra={FIELDS: {"event": "start", "rounds": event["rounds"]}})
    elif event["kind"] == "note":
        log.info("%s", event["text"], extra={FIELDS: {"event": "note"}})
    elif event["kind"] == "end":
        log.info("the run ends", extra={FIELDS: {"event": "end", "seconds": event["seconds"]}})
