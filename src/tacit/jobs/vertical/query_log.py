"""Counts private set intersection queries on disk, so that a restart does not forget them; and reads a
party's policy file.

KIT/policy.toml          [psi] reveal = ["both"], min_ids = 10, min_overlap = 10, max_ids = 100000000, queries_per_day = 10
KIT/psi-queries.jsonl    one line for each query that was admitted, written before it is answered
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
    """A file with one line for each query. A line that cannot be read, as a crash may leave it, counts for
    every receiver.
    """

    def __init__(self, path: str | Path, clock: Callable[[], float] = time.time):
        self.path, self.clock = Path(path), clock

    def admit(self, receiver: str, most: int) -> None:
        now = self.clock()

        def check(lines: list[str]) -> None:
            asked = sum(_counts(line, receiver, now) for line in lines)
            if asked >= most:
                raise QueryRefused(
                    f"{receiver!r} has asked {asked} times within 24 hours; {most} are allowed ({self.path})."
                )

        append_line(self.path, json.dumps({"time": now, "receiver": receiver}), check)


def _counts(line: str, receiver: str, now: float) -> bool:
    try:
        told = json.loads(line)
        when, who = float(told["time"]), str(told["receiver"])
    except (ValueError, KeyError, TypeError):
        return bool(line.strip())
    return (
        who == receiver and when > now - DAY
    )  # one that lies in the future counts, too: a clock that was set back refunds nothing


def read_policy(file: str | Path | None, kit: Path | None = None) -> PsiPolicy:
    """The [psi] table of `file`, or of policy.toml in the kit; the default policy where there is neither.
    Other tables are other verbs'.
    """
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
                f"{place} has no [psi] table. Write one, for instance with min_overlap = 20; what it leaves "
                "out has its default."
            )
        return PsiPolicy()
    table, where = toml.table(str(place), "psi", tables["psi"]), f"{place}, psi"
    known = [f.name for f in fields(PsiPolicy)]
    for key in table:
        if key not in known:
            raise BadJob(f"{where}: there is no {key!r}. {nearest(key, known)}")
    try:
        return PsiPolicy.of(table, where)
    except BadParameter as error:
        raise BadJob(str(error)) from None
