"""A durable count of private set intersection queries, and a party's policy file.

KIT/policy.toml          [psi] reveal = ["both"], min_ids = 10, min_overlap = 10, queries_per_day = 10
KIT/psi-queries.jsonl    one line for each admitted query, written before it is answered
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from ...config import toml
from ...errors import BadJob, BadParameter, QueryRefused
from ...files import append_line
from ...parameters import nearest
from ...protocols.psi_policy import PsiPolicy

DAY = 24 * 3600.0
QUERIES = "psi-queries.jsonl"


class QueryLog:
    """A file with one line per query. An unreadable line (after a crash) counts for every receiver."""

    def __init__(self, path: str | Path, clock: Callable[[], float] = time.time):
        self.path, self.clock = Path(path), clock

    def admit(self, receiver: str, most: int) -> None:
        now = self.clock()

        def check(lines: list[str]) -> None:
            count = sum(_counts_query(line, receiver, now) for line in lines)
            if count >= most:
                raise QueryRefused(
                    f"{receiver!r} has made {count} queries within 24 hours; {most} are allowed "
                    f"({self.path})."
                )

        append_line(self.path, json.dumps({"time": now, "receiver": receiver}), check)


def _counts_query(line: str, receiver: str, now: float) -> bool:
    try:
        entry = json.loads(line)
        when, sender = float(entry["time"]), str(entry["receiver"])
    except (ValueError, KeyError, TypeError):
        return bool(line.strip())
    return (
        sender == receiver and when > now - DAY
    )  # future times count as well: setting the clock back does not restore queries


def read_policy(file: str | Path | None, kit: Path | None = None) -> PsiPolicy:
    """Read the [psi] table of `file`, or of policy.toml in the kit; without either, the default policy."""
    place = Path(file) if file is not None else None if kit is None else kit / "policy.toml"
    if place is None or (file is None and not place.is_file()):
        return PsiPolicy()
    try:
        tables = toml.read(place)
    except OSError as error:
        raise BadJob(
            f"{place} cannot be read: {error.strerror}. Give a policy file (TOML) with a [psi] table."
        ) from None
    if "psi" not in tables:
        if file is not None:
            raise BadJob(
                f"{place} has no [psi] table. Add one, for example with min_overlap = 20; other keys have "
                "defaults."
            )
        return PsiPolicy()
    table, where = toml.table(str(place), "psi", tables["psi"]), f"{place}, psi"
    keys = [f.name for f in fields(PsiPolicy)]
    for key in table:
        if key not in keys:
            raise BadJob(f"{where}: unknown key {key!r}. {nearest(key, keys)}")
    try:
        return PsiPolicy.of(table, where)
    except BadParameter as error:
        raise BadJob(str(error)) from None
