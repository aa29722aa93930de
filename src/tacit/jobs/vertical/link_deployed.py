"""`tacit link`: link the records of two organizations with one job file.

    [link]                      [parties.clinic]           [parties.registry]          [parties.notary]
    threshold = 0.9             file = "clinic.csv"        file = "registry.csv"       helper = true
    [link.fields]                                          columns = {surname = "last_name"}
    surname = "name"
    born = "date"

Each party with a table writes its matched rows, all of its columns, in an order common to both: row k of one
file and row k of the other belong to one person.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...config import toml
from ...config.vertical import LinkParty, LinkSettings, read_parties
from ...data.table_files import read_chunks, read_header, read_table, reading_in, write_table
from ...errors import BadData, BadJob, BadParameter
from ...files import write_atomic
from ...parameters import from_fields, hold_to_type, nearest
from ...parties.ledger import Ledger
from ...parties.party import Party
from .link import make_plan
from .link_program import LinkPlan, LinkPolicy, check_policy, link_rows, serve
from .query_log import QueryLog
from .regress_deployed import roles
from .split_deployed import (
    check_same_job,
    job_digest,
    names_of,
    policy_in,
    read_as,
    run_everyone,
    run_with_party_kit,
)

if TYPE_CHECKING:
    from ...runtimes.kits import Kit

QUERIES = "link-queries.jsonl"
LINKED = "linked.csv"


def read_policy(kit: str) -> LinkPolicy:
    """Read the [link] table of policy.toml in the kit; without it, the default policy."""
    place = Path(kit) / "policy.toml" if kit else None
    if place is None or not place.is_file():
        return LinkPolicy()
    table = toml.read(place).get("link", {})
    where = f"{place}, link"
    if isinstance(table, dict) and "fields" in table:
        hold_to_type(where, "fields", table["fields"], list[str])
    return from_fields(table, LinkPolicy, where, "a policy has no key")


def read(path: str | Path) -> dict[str, Any]:
    """Read and check a job file: {"link": all settings, "parties": {name: …}}."""
    settings, parties = read_parties(path, "link", LinkSettings, LinkParty)
    job = {"link": settings, "parties": parties}
    holders, helpers = roles(parties)
    if len(holders) != 2 or len(helpers) != 1:
        raise BadJob(
            f"{path}: there are {len(holders)} parties with tables and {len(helpers)} with helper = true; "
            "there must be 2 and 1. Link a third table in a second job."
        )
    try:
        plan = _plan(job)
    except BadParameter as error:
        raise BadJob(f"{path}: {error}") from None
    names = [f.name for f in plan.fields]
    for name in parties:
        unknown = [c for c in parties[name].get("columns", {}) if c not in names]
        if unknown:
            raise BadJob(
                f"{path}, parties.{name}: columns names {unknown[0]!r}, which is no field. "
                f"{nearest(unknown[0], names)}"
            )
    return job


def _plan(job: Mapping[str, Any]) -> LinkPlan:
    s = job["link"]
    return make_plan(s["fields"], s["threshold"], s["blocks"], s["overlap"], s["max_block"])


def read_columns(file: str, plan: LinkPlan, entry: Mapping[str, Any]) -> dict[str, list[str]]:
    """Read the fields of a party's table as text; `columns` of its entry: its own name of each field."""
    columns = entry.get("columns", {})
    own = {f.name: columns.get(f.name, f.name) for f in plan.fields}
    known = list(names_of(file, entry))
    absent = [c for c in own.values() if c not in known]
    if absent:
        raise BadData(
            f"{file} has no column {absent[0]!r}. {nearest(absent[0], known)} If the party has another name "
            "for a field, give it in the job: columns = {field = name}."
        )
    table = read_table(file, ids=tuple(dict.fromkeys(own.values())), **reading_in(entry))
    if not len(table):
        raise BadData(f"{file} has no rows.")
    return {name: list(map(str, table[column].tolist())) for name, column in own.items()}


async def run_party(
    me: Party, job: Mapping[str, Any], file: str, out: str, kit: str = "", wait: float | None = None
) -> dict[str, Any]:
    """Run a party: link its records with the other's, and write the matched rows."""
    parties, plan = job["parties"], _plan(job)
    holders, (helper,) = roles(parties)
    policy, columns = read_policy(kit), parties[me.name].get("columns", {})
    texts = {}
    if me.name != helper:
        check_policy(policy, plan, columns)
        texts = read_columns(file, plan, parties[me.name])
    await check_same_job(me, parties, job_digest(job), wait)
    if me.name == helper:
        value = await serve(me, holders)
        return {"people": 0, "folder": "", "notes": [], **value}
    if kit:
        other = next(n for n in holders if n != me.name)
        QueryLog(Path(kit) / QUERIES).admit(other, policy.queries_per_day)
    result = await link_rows(me, texts, plan.to_dict(), holders, helper, asdict(policy), policy_in(kit))
    return _write(me, file, out, result, parties[me.name])


def _write(
    me: Party, file: str, out: str, result: dict[str, Any], entry: Mapping[str, Any]
) -> dict[str, Any]:
    import pandas as pd

    place = Path(out)
    place.mkdir(parents=True, exist_ok=True)
    rows: Sequence[int] = np.asarray(result.pop("rows")).tolist()
    reading = reading_in(entry)
    header = read_header(file, reading.get("separator"), reading.get("encoding"))
    table = pd.concat(read_chunks(file, header.names, **reading))  # all columns as they are written
    write_table(table.iloc[rows], place / LINKED, header.separator)
    content = {"people": len(rows), **result}
    write_atomic(
        place / "part.json",
        json.dumps({"kind": "link", **content, "rows": rows}, ensure_ascii=False, indent=1),
    )
    write_atomic(place / "ledger.json", json.dumps(me.ledger.to_dict(), indent=1))
    return {**content, "folder": str(place)}


def run_here(
    path: str | Path,
    out: str | Path,
    runtime: Any = None,
    ledger: Ledger | None = None,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run all parties of a job on this machine, each with its file in the job: for a test."""
    job = read_as(read(path), reading)
    holders, _ = roles(job["parties"])
    for name in holders:
        if not job["parties"][name].get("file"):
            raise BadJob(
                f"{path}, parties.{name}: file is missing; to run all parties here, the job must name both "
                "tables."
            )
    results = run_everyone("link", path, job, run_party, out, runtime, ledger)
    notes = list(dict.fromkeys(n for r in results.values() for n in r["notes"]))
    return {**results[holders[0]], "folder": str(out), "notes": notes}


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
    return run_with_party_kit("link", kit, path, read, run_party, file, out, patience, wait, reading=reading)
