"""A party's ledger file: `ledger.jsonl` in its start kit, with one line per command between real parties.

A line is {"time", "verb", "party", "failed", "ledger"}: when the command ended, its name, the error it ended
with ("" for success), and what this party saw and spent. A failed or refused command adds a line as well,
because messages may have arrived before.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ..errors import BadRun, MissingFiles
from ..files import append_line
from ..parties.ledger import Ledger

NAME = "ledger.jsonl"


@dataclass(frozen=True)
class LedgerEntry:
    """One command of a party. `failed`: the error it ended with, or ""."""

    time: str
    verb: str
    party: str
    failed: str
    ledger: Ledger


def append_ledger(path: str | Path | None, ledger: Ledger, verb: str, party: str, failed: str = "") -> None:
    """Append what a party saw in one command to its ledger file, durably; path None: do nothing."""
    if path is None:
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    append_line(
        Path(path),
        json.dumps(
            {"time": when, "verb": verb, "party": party, "failed": failed, "ledger": ledger.to_dict()}
        ),
    )


@contextmanager
def record_command(kit: Path | None, ledger: Ledger, verb: str, party: str) -> Iterator[None]:
    """Append `ledger` to the kit's ledger file at the end of the block, also after an error."""
    path = None if kit is None else kit / NAME
    try:
        yield
    except BaseException as error:
        append_ledger(path, ledger, verb, party, f"{type(error).__name__}: {error}")
        raise
    append_ledger(path, ledger, verb, party)


def read_ledger_file(path: str | Path) -> list[LedgerEntry]:
    """Return all commands, oldest first; an incomplete line (after a crash) becomes an entry with an "
    "error."""
    file = Path(path)
    if not file.is_file():
        raise MissingFiles(
            f"there is no ledger {file}. Commands between real parties (tacit psi, split, predict, ftl with "
            "--kit) write it."
        )
    entries = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            entries.append(
                LedgerEntry(
                    str(entry["time"]),
                    str(entry["verb"]),
                    str(entry["party"]),
                    str(entry["failed"]),
                    Ledger.from_dict(entry["ledger"]),
                )
            )
        except (ValueError, KeyError, TypeError, BadRun) as error:
            entries.append(
                LedgerEntry(
                    "",
                    "?",
                    "",
                    f"line {number} of {file} is incomplete ({type(error).__name__}): a command was stopped "
                    "while it wrote it",
                    Ledger(),
                )
            )
    return entries
