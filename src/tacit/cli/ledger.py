"""tacit ledger: show what a party saw in all its commands, from the ledger in its start kit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..numbers import each
from .verbs import Answer, answer, arg


def add(verb: Callable[..., Any]) -> None:
    verb(
        "ledger",
        _ledger,
        "Show what your party has seen and spent in every command that it ran with other parties.",
        arg("--kit", required=True, metavar="DIR", help="your start kit; its ledger.jsonl is read"),
        arg(
            "--all", action="store_true", help="every kind of message, not only what was concluded and spent"
        ),
    )


def _ledger(args: Any) -> Answer:
    from ..jobs.ledger_file import NAME, read_ledger_file

    entries = read_ledger_file(Path(args.kit) / NAME)
    lines = []
    for entry in entries:
        lines.append(
            f"{entry.time} {entry.verb}" + (f", which failed: {entry.failed}" if entry.failed else "")
        )
        lines += [f"  {stamp}" for stamp in entry.ledger.stamps]
        lines += [
            f"  {entry.party} learned from {line.sender}: {line.reveals}"
            if line.kind == "Conclusion"
            else f"  {entry.party} saw {line.count} {line.kind} from {line.sender} ({line.bytes} B): "
            f"{line.reveals}"
            for line in entry.ledger.seen
            if args.all or line.kind == "Conclusion" or entry.failed
        ]
        lines += [
            f"  spent ε = {s.epsilon:.4g}, δ = {s.delta:.4g} for {each(s.unit)}, by {s.mechanism}"
            for s in entry.ledger.spent
        ]
    value = [
        {"time": e.time, "verb": e.verb, "party": e.party, "failed": e.failed, "ledger": e.ledger.to_dict()}
        for e in entries
    ]
    return answer(value, lines)
