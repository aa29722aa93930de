"""`tacit boost` with different columns of the same people: between organizations with one job file.

    [boost]                  [parties.bank]             [parties.telecom]        [parties.notary]
    trees = 20               file = "bank.csv"          file = "telecom.csv"     helper = true
    depth = 4                id = "customer"            id = "phone"
                             label = "default"

One party has the label; the helper has no table and deals randomness. Each party gets its own part of the
trees.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...boost.vertical_bins import OwnBins
from ...config import toml
from ...config.vertical import read_parties
from ...config.vertical_boost import BoostParty, VerticalBoostConfig
from ...errors import BadData, BadJob, QueryRefused
from ...files import write_atomic
from ...parties.ledger import Ledger
from ...parties.party import Party
from ...protocols.splitnn_terms import Asked
from ..boost.query import BoostPolicy
from ..boost.query import read_policy as read_boost_policy
from . import boost_programs
from .boost_parts import HelperPart, make_part, read_part
from .boost_result import VerticalBoostResult
from .boost_rows import read_target, to_tensor
from .regress_deployed import check_matched, match_rows, roles
from .regress_policy import RegressPolicy, admit_rows
from .split_deployed import check_same_job, job_digest, run_everyone, run_with_party_kit

if TYPE_CHECKING:
    from ...runtimes.kits import Kit

VERB = "boost"


def is_vertical_job(path: str | Path) -> bool:
    """Whether a job file has a table for each party, as for different columns; otherwise files by party."""
    parties = toml.load(path, (), (VERB, "data", "sums", "parties")).get("parties", {})
    return isinstance(parties, Mapping) and any(isinstance(v, Mapping) for v in parties.values())


def read(path: str | Path) -> dict[str, Any]:
    """Read and check a job file: {"boost": all settings, "parties": {name: …}}."""
    settings, parties = read_parties(path, VERB, VerticalBoostConfig, BoostParty)
    check_matched(path, parties)
    holders, _ = roles(parties)
    with_label = [n for n in holders if parties[n].get("label")]
    if len(with_label) != 1:
        raise BadJob(
            f"{path}: exactly one party with a table must have a label; {with_label or 'none'} have."
        )
    return {VERB: settings, "parties": parties}


def check_policy(policy: BoostPolicy, settings: Mapping[str, Any]) -> None:
    """Raise QueryRefused with all that the owner does not allow, before anything is sent."""
    problems = []
    if settings["min_rows"] < policy.min_rows:
        problems.append(f"min_rows is {settings['min_rows']}, and this party requires {policy.min_rows}")
    for name, most in (("trees", policy.max_trees), ("depth", policy.max_depth)):
        if most is not None and settings[name] > most:
            problems.append(f"{name} is {settings[name]}, and this party allows {most}")
    if policy.reveal == "splits" and settings["reveal"] == "sums":
        problems.append("reveal is 'sums', and this party requires 'splits'")
    if problems:
        raise QueryRefused(
            f"the job is not within this party's policy: {'; '.join(problems)}. Nothing was sent."
        )


async def run_party(
    me: Party, job: Mapping[str, Any], file: str, out: str, kit: str = "", wait: float | None = None
) -> dict[str, Any]:
    """Run a party: read its table, align, grow trees, save its part."""
    settings, parties = job[VERB], job["parties"]
    holders, (helper,) = roles(parties)
    label_at = next(n for n in holders if parties[n].get("label"))
    names = [label_at, *(n for n in holders if n != label_at)]
    digest, policy = job_digest(job), read_boost_policy(Path(kit) if kit else None)
    shared = {"names": names, "helper": helper, "settings": settings}
    if me.name != helper:
        check_policy(policy, settings)
    await check_same_job(me, parties, digest, wait)
    if me.name == helper:
        rows = (await me.recv(names[0], Asked)).rows
        mark = await boost_programs.help_all(me, label_at=label_at, rows=rows, **shared)
        folder = HelperPart(me.name, tuple(names), label_at, rows, digest, mark).write(Path(out))
        write_atomic(folder / "ledger.json", json.dumps(me.ledger.to_dict(), indent=1))
        return {"rows": rows, "folder": str(folder), "trees": None, "losses": [], "notes": []}
    entry = parties[me.name]
    label = entry.get("label", "")
    needed = [entry["id"], *([label] if label else [])]
    frame, notes = await match_rows(me, file, entry, names, kit, needed=needed)
    limits = RegressPolicy(
        min_rows=policy.min_shared, min_difference=policy.min_difference, max_models=policy.max_models
    )
    folder_of_queries = Path(kit) / VERB if kit else None
    admit_rows(folder_of_queries, limits, digest, frame[entry["id"]].tolist(), "columns")
    features = frame[[c for c in frame.columns if c not in needed]]
    if not len(features.columns) and me.name != label_at:
        raise BadData(f"the table of {me.name!r} has no columns beside its id.")
    own = OwnBins.fit(features, entry.get("categories", ()), settings["bins"], settings["min_rows"], me.name)
    codes, outputs = to_tensor(own.encode(features)), 1
    target = read_target(frame, label, settings["objective"]) if label else None
    if me.name == names[0]:
        await me.send(helper, Asked(len(frame), digest))
    if target is not None:
        y, labels = target
        result = await boost_programs.hold_label(
            me, codes=codes, bins=own.to_dict(), y=to_tensor(y), labels=list(labels), **shared
        )
        outputs = len(labels) if settings["objective"] == "multiclass" else 1
    else:
        result = await boost_programs.hold_columns(
            me, label_at=label_at, codes=codes, bins=own.to_dict(), **shared
        )
        outputs = int(result["outputs"])
    part = make_part(
        result,
        me.name,
        tuple(names),
        label_at,
        helper,
        settings["objective"],
        own,
        outputs,
        label,
        entry["id"],
        digest,
    )
    folder = part.write(Path(out))
    write_atomic(folder / "ledger.json", json.dumps(me.ledger.to_dict(), indent=1))
    return {
        "rows": len(frame),
        "folder": str(folder),
        "trees": len(part.trees),
        "splits": len(part.splits),
        "losses": list(part.losses),
        "notes": notes,
    }


def run_here(
    path: str | Path, out: str | Path, runtime: Any = None, ledger: Ledger | None = None
) -> VerticalBoostResult:
    """Run all parties of a job on this machine, each with its file in the job: for a test."""
    job = read(path)
    ledger = Ledger() if ledger is None else ledger
    results = run_everyone(VERB, path, job, run_party, out, runtime, ledger)
    holders, _ = roles(job["parties"])
    parts = {n: read_part(results[n]["folder"]) for n in holders}
    names = next(iter(parts.values())).parties
    notes = dict.fromkeys(n for r in results.values() for n in r["notes"])
    losses = parts[names[0]].losses
    best = min(range(len(losses)), key=losses.__getitem__) if losses else None
    return VerticalBoostResult({n: parts[n] for n in names}, ledger, best, tuple(notes))


def take_part(
    kit: Kit,
    path: str | Path,
    file: str | Path | None,
    out: str | Path | None,
    patience: float = 300.0,
    wait: float | None = None,
) -> dict[str, Any]:
    """Run one party of a job over the federation's hub."""
    return run_with_party_kit(VERB, kit, path, read, run_party, file, out, patience, wait)
