"""One ledger for each party: `ledger.jsonl` in its start kit, to which every command between real parties
adds one line.

A line is {"time", "verb", "party", "failed", "ledger"}: when the command ended, what it was, the error it
ended with ("" if it was done), and what this party saw and spent. A command that fails or is refused adds its
line, too: what had arrived by then was seen.
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
    """Add what a party saw in one command to its ledger file (`KIT/ledger.jsonl`), durably. None: a party
    without a folder keeps none.
    """
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
def recorded(kit: Path | None, ledger: Ledger, verb: str, party: str) -> Iterator[None]:
    """Whatever happens inside, what `ledger` then holds is added to the ledger file of the kit in this
    folder.
    """
    path = None if kit is None else kit / NAME
    try:
        yield
    except BaseException as error:
        append_ledger(path, ledger, verb, party, f"{type(error).__name__}: {error}")
        raise
    append_ledger(path, ledger, verb, party)


def read_ledger_file(path: str | Path) -> list[LedgerEntry]:
    """Every command, oldest first. An incomplete last line, as a crash may leave it, is an error that names
    it: something was seen that is not there.
    """
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
            told = json.loads(line)
            entries.append(
                LedgerEntry(
                    str(told["time"]),
                    str(told["verb"]),
                    str(told["party"]),
                    str(told["failed"]),
                    Ledger.from_dict(told["ledger"]),
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
