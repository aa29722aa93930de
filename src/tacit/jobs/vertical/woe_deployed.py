"""`tacit stats woe` with different columns of the same people: between organizations with one job file.

Each party gets the bins of its own columns, and a copy of its table with values as weights of evidence, which
`tacit regress` takes. The helper has no table and deals randomness; without one, counts are encrypted. A run
that was killed is started again by all parties, and with ε charged again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...boost.count_noise import CountNoise
from ...boost.declared_bins import DeclaredColumns
from ...boost.scorecard import column_from_dict, column_to_dict, describe_columns, find_bins, look_up
from ...boost.woe_bins import WoeColumn
from ...config.vertical import read_parties
from ...config.vertical_woe import VerticalWoeConfig, WoeParty, first_bins
from ...data.cells import with_columns
from ...data.recipe import Recipe
from ...data.table_files import read_table, reading_in, write_table
from ...data.thousands import refuse_thousands
from ...errors import BadData, BadJob, QueryRefused
from ...files import write_atomic
from ...parties.ledger import Ledger
from ...parties.party import Party
from ...protocols.splitnn_terms import Asked
from ...release.score import interpret
from ...stats.columns import text_of
from ..boost.query import BoostPolicy
from ..boost.query import read_policy as read_boost_policy
from ..lifetime import read_lifetime
from ..stats.policy import StatsPolicy, charge, check_least
from ..stats.policy import read_policy as read_stats_policy
from .boost_rows import keep_declared, read_target
from .regress_deployed import check_matched, match_frame, match_rows, roles
from .regress_design import take_complete_rows
from .regress_policy import RegressPolicy, admit_rows
from .split_deployed import check_same_job, job_digest, names_of, read_as, run_everyone, run_with_party_kit
from .woe import SETTINGS, count_columns, find_events, prepare, prepare_private
from .woe_programs import help_counts, hold_columns, hold_label

if TYPE_CHECKING:
    import pandas as pd

    from ...runtimes.kits import Kit

VERB = "stats"
FORMAT = 1
DECLARED = ("bounds", "cuts", "categories")  # with ε, of every party; nobody may change them alone


def read(path: str | Path) -> dict[str, Any]:
    """Read and check a job file: {"stats": all settings, "parties": {name: …}}."""
    settings, parties = read_parties(path, VERB, VerticalWoeConfig, WoeParty)
    check_matched(path, parties, needs_helper=False)
    holders, _ = roles(parties)
    with_label = [n for n in holders if parties[n].get("label")]
    if len(with_label) != 1:
        raise BadJob(
            f"{path}: exactly one party with a table must have a label; {with_label or 'none'} have."
        )
    if settings["epsilon"] is None:
        given = [(n, k) for n in holders for k in ("bounds", "cuts") if parties[n].get(k)]
        if given:
            raise BadJob(f"{path}, parties.{given[0][0]}: {given[0][1]} is for jobs with epsilon.")
        return {VERB: settings, "parties": parties}
    declared, problems = {}, []
    for name in holders:
        try:
            declared[name] = _declared(parties[name], f"{path}, parties.{name}")
        except BadData as error:
            problems.append(str(error))
    if problems:
        raise BadJob("\n".join(problems))
    if not any(d.names for d in declared.values()):
        raise BadJob(f"{path}: no party declares a column (bounds, cuts or categories with levels).")
    # what all parties compare: how many columns there are determines the noise
    settings |= count_columns(declared)
    settings["declared"] = {n: {k: parties[n].get(k) for k in DECLARED} for n in holders}
    return {VERB: settings, "parties": parties}


def _declared(entry: Mapping[str, Any], where: str) -> DeclaredColumns:
    return DeclaredColumns.read(entry.get("bounds"), entry.get("cuts"), entry.get("categories"), None, where)


def check_policy(boost: BoostPolicy, stats: StatsPolicy, settings: Mapping[str, Any], helper: str) -> None:
    """Raise QueryRefused with all that the owner does not allow, before anything is sent."""
    problems, private = [], settings["epsilon"] is not None
    if stats.only_private and not private:
        problems.append("it has no ε, and this party answers only private queries (only_private)")
    if not private and settings["min_rows"] < boost.min_rows:
        problems.append(f"min_rows is {settings['min_rows']}, and this party requires {boost.min_rows}")
    backend = "shares" if helper else "he"
    if backend not in boost.backends:
        problems.append(
            f"{'with' if helper else 'without'} a helper the back-end is {backend!r}, and this party accepts "
            f"{' and '.join(map(repr, boost.backends))}"
        )
    if problems:
        raise QueryRefused(
            f"the job is not within this party's policy: {'; '.join(problems)}. Nothing was sent."
        )
    if not private:
        check_least(stats, settings)


async def run_party(
    me: Party, job: Mapping[str, Any], file: str, out: str, kit: str = "", wait: float | None = None
) -> dict[str, Any]:
    """Run a party: read its table, align, count, save its bins."""
    settings, parties = job[VERB], job["parties"]
    holders, helpers = roles(parties)
    helper = helpers[0] if helpers else ""
    label_at = next(n for n in holders if parties[n].get("label"))
    names, digest = [label_at, *(n for n in holders if n != label_at)], job_digest(job)
    place = Path(kit) if kit else None
    boost, stats = read_boost_policy(place), read_stats_policy(place)
    if me.name != helper:
        check_policy(boost, stats, settings, helper)
    await check_same_job(me, parties, digest, wait)
    agreed = {k: settings[k] for k in (*SETTINGS, "epsilon", "delta")}
    agreed |= {k: settings[k] for k in ("columns", "searched") if k in settings}
    shared: dict[str, Any] = {"names": names, "helper": helper, "settings": agreed}
    if me.name == helper:
        rows = (await me.recv(label_at, Asked)).rows
        await help_counts(me, names=names, label_at=label_at, settings=agreed, rows=rows)
        return {"rows": rows, "folder": "", "table": [], "iv": {}, "notes": []}
    entry = parties[me.name]
    noise, label = CountNoise.read(agreed), str(entry.get("label", ""))
    needed = [entry["id"], *([label] if label else [])]
    outcomes = [text_of(v) for v in settings["labels"] or ()]
    if noise is None:
        frame, notes, _ = await match_rows(me, file, entry, names, kit, needed=needed)
    else:
        declared = _declared(entry, f"parties.{me.name}")
        table, notes = _read_private(file, entry, declared, label, outcomes, me.name)
        frame, more, _ = await match_frame(me, table, entry, names, kit)
        notes = [*notes, *more]
    limits = RegressPolicy(
        min_rows=boost.min_shared, min_difference=boost.min_difference, max_models=boost.max_models
    )
    # noise protects each person, also in the difference of two jobs
    history = place / "boost" if place is not None and noise is None else None
    admit_rows(history, limits, digest, frame[entry["id"]].tolist(), "columns")
    features = frame[[c for c in frame.columns if c not in needed]]
    if not len(features.columns) and me.name != label_at:
        raise BadData(f"the table of {me.name!r} has no columns beside its id.")
    if noise is not None:
        if place is not None:
            charge(stats, noise.release, noise.delta, place / "state", read_lifetime(place))
        features = declared.take(features, me.name)
        shared |= prepare_private(features, declared, first_bins(settings), agreed, me.name)
    else:
        categories, most = list(entry.get("categories", ())), first_bins(settings)
        shared |= prepare(features, categories, most, settings["min_rows"], me.name)
    event = ""
    if label:
        y, labels = read_target(frame, label, "binary", outcomes)
        event, events = find_events(y, labels, label, settings["event"])
        counts = {n: len(_declared(parties[n], n).names) for n in holders} if noise is not None else None
        if helper:
            await me.send(helper, Asked(len(frame), digest))
        result = await hold_label(me, y=torch.from_numpy(events), declared=counts, **shared)
    else:
        result = await hold_columns(me, label_at=label_at, **shared)
    columns = [column_from_dict(c) for c in result["columns"]]
    totals = int(result["totals"][0]), int(result["totals"][1])
    folder = _write(Path(out), me, columns, totals, event, frame[needed], features, noise)
    return {
        "rows": len(frame),
        "folder": str(folder),
        "table": json.loads(describe_columns(columns, totals).to_json(orient="records")),
        "iv": {c.name: c.iv for c in columns},
        "event": event,
        "notes": notes,
    }


def _read_private(
    file: str,
    entry: Mapping[str, Any],
    declared: DeclaredColumns,
    label: str,
    outcomes: list[str],
    who: str,
) -> tuple[pd.DataFrame, list[str]]:
    """Read the declared columns of a file. What a cell means does not depend on the other rows."""
    known = list(names_of(file, entry))
    left = [c for c in known if c not in (*entry.get("drop", ()), entry["id"], label)]
    DeclaredColumns.read(entry.get("bounds"), entry.get("cuts"), entry.get("categories"), left, file)
    for column in (entry["id"], *([label] if label else ())):
        if column not in known:
            raise BadData(f"{file} has no column {column!r}.")
    wanted = [entry["id"], *([label] if label else ()), *declared.names]
    table = read_table(file, ids=[entry["id"]], text=True, **reading_in(entry))[wanted]
    if entry.get("decimal") == ",":
        refuse_thousands(file, table[[*declared.bounds, *declared.cuts]], least=0)
    levels = dict(declared.levels) | ({label: tuple(outcomes)} if label else {})
    cells = interpret(
        table.drop(columns=entry["id"]).astype(object),
        Recipe((*declared.bounds, *declared.cuts), levels),
    )
    frame = with_columns(cells, {entry["id"]: table[entry["id"]].astype(str)})[wanted]
    notes: list[str] = []
    if label:
        frame, notes = keep_declared(frame, label, outcomes, who)
    frame, more = take_complete_rows(frame, who, entry["id"], entry.get("duplicates", "refuse"), wanted[:1])
    return frame, [*notes, *more]


def _write(
    folder: Path,
    me: Party,
    columns: list[WoeColumn],
    totals: tuple[int, int],
    event: str,
    people: pd.DataFrame,
    features: pd.DataFrame,
    noise: CountNoise | None,
) -> Path:
    """Write bins.csv, part.json, woe.csv and ledger.json: what this party knows."""
    import pandas as pd

    folder.mkdir(parents=True, exist_ok=True)
    woe = look_up([[b.woe for b in c.bins] for c in columns], find_bins(columns, features))
    table = pd.DataFrame(woe, columns=[c.name for c in columns])
    write_table(pd.concat([people.reset_index(drop=True), table], axis=1), folder / "woe.csv")
    write_table(describe_columns(columns, totals), folder / "bins.csv")
    part = {
        "format": FORMAT,
        "party": me.name,
        "event": event,
        "totals": list(totals),
        "epsilon": None if noise is None else noise.epsilon,
        "columns": [column_to_dict(c) for c in columns],
    }
    write_atomic(folder / "part.json", json.dumps(part, ensure_ascii=False, indent=1))
    write_atomic(folder / "ledger.json", json.dumps(me.ledger.to_dict(), indent=1))
    return folder


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
    results = run_everyone(VERB, path, job, run_party, out, runtime, ledger)
    found = [results[n] for n in holders]
    return {
        "rows": found[0]["rows"],
        "folder": str(out),
        "table": [{"party": n, **row} for n, r in zip(holders, found) for row in r["table"]],
        "iv": {f"{n}.{c}": v for n, r in zip(holders, found) for c, v in r["iv"].items()},
        "event": next(r["event"] for r in found if r["event"]),
        "notes": list(dict.fromkeys(n for r in found for n in r["notes"])),
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
    return run_with_party_kit(VERB, kit, path, read, run_party, file, out, patience, wait, reading=reading)
