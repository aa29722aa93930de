"""`tacit regress`: a regression between organizations with one job file.

    [regress]                [parties.clinic]           [parties.lab]            [parties.notary]
    family = "cox"           file = "clinic.csv"        file = "lab.csv"         helper = true
    publish = true           id = "patient"             id = "person"
                             time = "days"
                             event = "death"

One party has the label (`label`, or `time` and `event`); the helper has no table and deals randomness. Each
party gets its own estimates; with publish = true all of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...config.vertical import RegressParty, RegressSettings, read_parties
from ...data.identifiers import normal
from ...data.table_files import read_header, read_table, reading_in
from ...errors import BadData, BadJob, ProtocolError
from ...files import write_atomic
from ...mpc import glm
from ...mpc.glm_terms import GlmTerms
from ...parameters import nearest
from ...parties.ledger import Ledger
from ...parties.message import Message
from ...parties.party import Party
from ...protocols.splitnn_terms import Asked, fingerprint
from .psi import align_rows
from .regress_design import Design, take_complete_rows
from .regress_parts import COLLINEAR, NOT_CONVERGED, make_part
from .regress_policy import admit_rows, check_settings, read_policy
from .regress_result import from_parts
from .regress_rows import LabelColumns, read_label
from .split_deployed import check_same_job, job_digest, policy_in, read_as, run_everyone, run_with_party_kit

if TYPE_CHECKING:
    import pandas as pd

    from ...runtimes.kits import Kit


class RowOrder(
    Message, reveals="a keyed fingerprint of the order of the shared rows: whether it is the same"
):
    mark: bytes


def read(path: str | Path) -> dict[str, Any]:
    """Read and check a job file: {"regress": all settings, "parties": {name: …}}."""
    settings, parties = read_parties(path, "regress", RegressSettings, RegressParty)
    check_matched(path, parties)
    wanted = ("time", "event") if settings["family"] == "cox" else ("label",)
    found = {key: [n for n, t in parties.items() if key in t] for key in ("label", "time", "event")}
    given = [key for key, names in found.items() if names]
    holders = {tuple(found[key]) for key in wanted}
    if sorted(given) != sorted(wanted) or len(holders) != 1 or len(next(iter(holders))) != 1:
        raise BadJob(
            f"{path}: family {settings['family']!r} needs {' and '.join(wanted)} at exactly one "
            f"party; the job "
            f"has {', '.join(f'{k} at {v}' for k, v in found.items() if v) or 'none'}."
        )
    (holder,) = next(iter(holders))
    misplaced = [n for n, t in parties.items() if n != holder and {"offset", "weights"} & set(t)]
    if misplaced:
        raise BadJob(
            f"{path}, parties.{misplaced[0]}: offset and weights belong to {holder!r}, with the label."
        )
    return {"regress": settings, "parties": parties}


def check_matched(path: str | Path, parties: Mapping[str, Any], needs_helper: bool = True) -> None:
    """Refuse parties that are neither holders of a table nor the one helper, which may be left out."""
    for name, table in parties.items():
        if ("id" in table) == (table.get("helper") is True):
            raise BadJob(
                f"{path}, parties.{name}: give id for a party with a table, or helper = true for one without."
            )
    holders, helpers = roles(parties)
    if len(holders) < 2 or not int(needs_helper) <= len(helpers) <= 1:
        raise BadJob(
            f"{path}: there are {len(holders)} parties with an id and {len(helpers)} with helper = "
            f"true; there "
            f"must be at least 2, and {'1' if needs_helper else 'at most 1'}."
        )


def roles(parties: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """(parties with a table, helpers)."""
    helpers = [n for n, t in parties.items() if t.get("helper") is True]
    return [n for n in parties if n not in helpers], helpers


def _label_columns(entry: Mapping[str, Any]) -> LabelColumns:
    return LabelColumns(*(entry.get(key) for key in ("label", "time", "event", "offset", "weights")))


class Matched(NamedTuple):
    """A party's complete rows of the shared people, in the common order; `rows`: their places."""

    frame: pd.DataFrame
    notes: list[str]
    rows: list[int]


def read_complete(
    name: str,
    file: str,
    entry: Mapping[str, Any],
    wanted: Sequence[str] | None = None,
    needed: Sequence[str] | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """Read a party's table: its complete rows, one for each id, and notes; as for `match_rows`."""
    names = read_header(file, entry.get("separator") or None, entry.get("encoding") or None).names
    others = set(entry.get("drop", ())) if wanted is None else set(names) - set(wanted)
    frame = read_table(file, ids=(entry["id"],), **reading_in(entry), text_columns=others)
    known = list(map(str, frame.columns))
    for column in (*entry.get("drop", ()), entry["id"], *(wanted or ()), *(needed or ())):
        if column not in known:
            raise BadData(f"{file} has no column {column!r}. {nearest(column, known)}")
    kept = [c for c in known if c not in entry.get("drop", ())]
    frame = frame[kept if wanted is None else list(dict.fromkeys([entry["id"], *wanted]))]
    return take_complete_rows(frame, name, entry["id"], entry.get("duplicates", "refuse"), needed=needed)


async def match_rows(
    me: Party,
    file: str,
    entry: Mapping[str, Any],
    holders: Sequence[str],
    kit: str,
    wanted: Sequence[str] | None = None,
    needed: Sequence[str] | None = None,
) -> Matched:
    """Read this party's table, align it with the others', and check that the order is the same.

    `wanted`: the columns to read; None: all but those it drops. `needed`: those that must have values in a
    row; None: all.
    """
    frame, notes = read_complete(me.name, file, entry, wanted, needed)
    frame, more, rows = await match_frame(me, frame, entry, holders, kit)
    return Matched(frame, [*notes, *more], rows)


async def match_frame(
    me: Party, frame: pd.DataFrame, entry: Mapping[str, Any], holders: Sequence[str], kit: str
) -> Matched:
    """Align a party's table, with one row for each id, and check that the order is the same."""
    alignment = await align_rows(
        me, frame[entry["id"]].tolist(), parties=list(holders), policy=policy_in(kit)
    )
    frame = frame.iloc[alignment.rows].reset_index(drop=True)
    if not len(frame):
        rest = ", ".join(n for n in holders if n != me.name)
        raise BadData(
            f"{me.name!r} has no complete rows of people whom {rest} have, too. Are the ids written in the "
            "same way?"
        )
    mark = fingerprint([normal(str(i)) for i in frame[entry["id"]]], alignment.key)
    others = [n for n in holders if n != me.name]
    await me.send(others, RowOrder(mark))
    for name, message in (await me.gather(others, RowOrder)).items():
        if message.mark != mark:
            raise ProtocolError(f"{name!r} and {me.name!r} have the shared people in different orders.")
    return Matched(frame, list(alignment.notes), [int(k) for k in alignment.rows])


async def run_party(
    me: Party, job: Mapping[str, Any], file: str, out: str, kit: str = "", wait: float | None = None
) -> dict[str, Any]:
    """Run a party: read its table, align, fit, save its part."""
    settings, parties = job["regress"], job["parties"]
    holders, (helper,) = roles(parties)
    digest = job_digest(job)
    label_at = next(n for n in holders if {"label", "time"} & set(parties[n]))

    def terms(rows: int) -> dict[str, Any]:
        made = GlmTerms(
            tuple(holders),
            label_at,
            helper,
            rows,
            settings["family"],
            settings["ties"],
            settings["steps"],
            settings["publish"],
            "offset" in parties[label_at],
            "weights" in parties[label_at],
        )
        return {**asdict(made), "names": list(holders)}

    policy = read_policy(kit)
    if me.name != helper:
        check_settings(policy, settings)
    await check_same_job(me, parties, digest, wait)
    if me.name == helper:
        rows = (await me.recv(holders[0], Asked)).rows
        await glm.helper(me, terms(rows))
        return {"rows": rows, "folder": "", "table": [], "converged": None, "notes": []}
    entry = parties[me.name]
    columns = _label_columns(entry)
    frame, notes, _ = await match_rows(me, file, entry, holders, kit)
    admit_rows(Path(kit) / "regress" if kit else None, policy, digest, frame[entry["id"]].tolist(), "columns")
    missing = [name for name in columns.names if name not in frame.columns]
    if missing:
        raise BadData(
            f"{file} has no column {missing[0]!r}. {nearest(missing[0], list(map(str, frame.columns)))}"
        )
    features = frame[[c for c in frame.columns if c not in (entry["id"], *columns.names)]]
    design = Design.infer(features, me.name, entry.get("categories", ()))
    y, labels = None, tuple[str, ...]()
    if me.name == label_at:
        y, labels, _ = read_label(frame[columns.names], settings["family"], columns)
    if me.name == holders[0]:
        await me.send(helper, Asked(len(frame), digest))
    result = await glm.holder(
        me,
        terms(len(frame)),
        design.encode(features, me.name),
        y,
        len(labels) or None,
        design.terms,
        **columns.read_rows(frame),
        least=policy.min_rows,
    )
    if result["collinear"]:
        raise BadData(COLLINEAR)
    part = make_part(
        result,
        me.name,
        settings["family"],
        holders,
        label_at,
        len(frame),
        design,
        labels,
        entry["id"],
        digest,
        entry.get("offset", ""),
    )
    notes += [] if part.converged else [NOT_CONVERGED]
    folder = part.write(Path(out))
    write_atomic(folder / "ledger.json", json.dumps(me.ledger.to_dict(), indent=1))
    table = part.published if part.published is not None else part.table()
    return {
        "rows": len(frame),
        "folder": str(folder),
        "table": table.reset_index().to_dict("records") if part.converged else [],
        "converged": part.converged,
        "metrics": part.metrics,
        "notes": notes,
    }


def run_here(
    path: str | Path,
    out: str | Path,
    runtime: Any = None,
    ledger: Ledger | None = None,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run all parties of a job on this machine, each with its file in the job: for a test."""
    from .regress_parts import read_part

    job = read_as(read(path), reading)
    holders, _ = roles(job["parties"])
    results = run_everyone("regress", path, job, run_party, out, runtime, ledger)
    parts = {n: read_part(results[n]["folder"]) for n in holders}
    fitted = from_parts(parts, ledger or Ledger(), [n for r in results.values() for n in r["notes"]])
    table = fitted.summary().reset_index().to_dict("records") if fitted.converged else []
    return {
        "rows": results[holders[0]]["rows"],
        "folder": str(out),
        "table": table,
        "converged": fitted.converged,
        "metrics": fitted.metrics,
        "notes": list(dict.fromkeys(fitted.notes)),
    }


def take_part(
    kit: Kit,
    path: str | Path,
    file: str | Path | None,
    out: str | Path | None,
    patience: float = 300.0,
    wait: float | None = None,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run one party of a job over the federation's hub."""
    return run_with_party_kit(
        "regress", kit, path, read, run_party, file, out, patience, wait, reading=reading
    )
