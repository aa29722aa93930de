"""`tacit ftl`: transfer learning between organizations with one job file.

    [ftl]                  [parties.bank]            [parties.shop]              [parties.notary]
    width = 8              file = "bank.csv"         file = "shop.csv"           helper = true
    epochs = 60            id = "id"                 id = "customer"
    secure = "shared"      label = "default"

The party with a label is the source, the other party with an id the target; with secure = "shared" a third
party helps and has no table. If the target's table has labels, name their column in its entry as `measure`:
they are used only for metrics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...config.vertical import TransferParty, TransferSettings, read_parties
from ...data.vertical import drop_repeated_ids
from ...errors import BadJob
from ...files import write_atomic
from ...mpc import transfer as hidden
from ...parameters import check, from_table
from ...parties.ledger import Ledger
from ...parties.party import Party
from ...protocols.ftl import TransferTerms
from ...protocols.splitnn_guards import ACTIVATIONS, GRADIENTS
from ...protocols.splitnn_terms import Asked, Route
from . import transfer as job_of
from .party_tables import table_of, write_predictions
from .psi import align_rows
from .split_deployed import (
    check_same_job,
    job_digest,
    policy_in,
    read_as,
    run_everyone,
    run_with_party_kit,
)

if TYPE_CHECKING:
    from ...runtimes.kits import Kit


def read(path: str | Path) -> dict[str, Any]:
    """Read and check a job file: {"ftl": all settings, "parties": {name: …}}."""
    settings, parties = read_parties(path, "ftl", TransferSettings, TransferParty)
    sources, targets, helpers = _roles(parties)
    helpers_needed = 1 if settings["secure"] == "shared" else 0
    if (len(sources), len(targets), len(helpers), len(parties)) != (1, 1, helpers_needed, 2 + helpers_needed):
        raise BadJob(
            f"{path}: there are {len(sources)} parties with id and label (the source), {len(targets)} with "
            f"only an id (the target) and {len(helpers)} with helper = true; with secure = "
            f"{settings['secure']!r} there must be 1, 1 and {helpers_needed}."
        )
    if helpers_needed and (settings["guards"] or settings["protect"] is not None):
        raise BadJob(
            f"{path}, ftl: guards and protect apply to a cut, and with secure = 'shared' there is none. "
            "Remove them."
        )
    return {"ftl": settings, "parties": parties}


def _terms(settings: Mapping[str, Any], source: str, target: str) -> TransferTerms:
    terms = TransferTerms(
        (Route((target,), (source,)),),
        (0,),
        (0,),
        settings["epochs"],
        settings["batch_size"],
        1,
        settings["seed"],
        "bce",
        **{
            k: settings[k] for k in ("width", "first_epochs", "lr", "weight_decay", "gamma", "own", "rebuild")
        },
    )
    return check(terms, "ftl")


def _roles(parties: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
    return (
        [n for n, t in parties.items() if "id" in t and "label" in t],
        [n for n, t in parties.items() if "id" in t and "label" not in t],
        [n for n, t in parties.items() if t.get("helper") is True and "id" not in t],
    )


async def run_party(
    me: Party, job: Mapping[str, Any], file: str, out: str, kit: str = "", wait: float | None = None
) -> dict[str, Any]:
    """Run a party: read its table, align, train, save its predictor.

    The target also writes predictions for all its rows.
    """
    settings, parties = job["ftl"], job["parties"]
    (source,), (target,), helpers = _roles(parties)
    terms = _terms(settings, source, target)
    await check_same_job(me, parties, job_digest(job), wait)
    if me.name in helpers:
        rows = (await me.recv(source, Asked)).rows
        await hidden.helper(me, (source, target), rows, terms.width)
        return {"history": [], "rows": rows, "folder": "", "metrics": {}, "notes": []}
    entry = parties[me.name]
    table = table_of(file, {**entry, "label": entry["measure"]} if "measure" in entry else entry)
    table, notes = drop_repeated_ids(table, f"the table of {me.name!r}", entry.get("duplicates", "refuse"))
    names: tuple[str, ...] = ()
    if me.name == source:
        names = job_of.check_source_labels(table)
    alignment = await align_rows(me, table.ids.tolist(), parties=[source, target], policy=policy_in(kit))
    rows_here, notes = torch.as_tensor(alignment.rows, dtype=torch.int64), [*notes, *alignment.notes]
    job_of.check_shared(len(rows_here), (source, target))
    terms = replace(terms, rows=(len(rows_here),))
    guards = tuple(from_table(g, ACTIVATIONS, "ftl.guards") for g in settings["guards"])
    protect = (
        None if settings["protect"] is None else from_table(settings["protect"], GRADIENTS, "ftl.protect")
    )
    inputs = job_of.prepare_inputs(terms, me.name, table, rows_here, None, guards, protect, alignment.key)
    if helpers and me.name == source:
        await me.send(helpers, Asked(len(rows_here), job_digest(job)))
    result = await (
        job_of.run_party_on_shares(me, inputs, helpers[0]) if helpers else job_of.run_party(me, inputs)
    )
    names = await _labels(me, source, target, names)
    share = replace(job_of.build_predictor(terms, me.name, table, inputs, result, names), id=entry["id"])
    folder = share.write(Path(out))
    write_atomic(folder / "ledger.json", json.dumps(me.ledger.to_dict(), indent=1))
    metrics = {}
    if me.name == target:
        metrics = job_of.measure_unshared(terms, share, table, rows_here, names)
        write_predictions(
            folder / "answers.csv", share.to_predictions(job_of.outputs(share, table)), table.ids, share
        )
    return {
        "history": result["history"],
        "rows": len(rows_here),
        "folder": str(folder),
        "metrics": metrics,
        "notes": notes,
    }


async def _labels(me: Party, source: str, target: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Send the names of the classes to the target."""
    if me.name == source:
        await me.send(target, job_of.ClassNames(list(names)))
        return names
    return tuple((await me.recv(source, job_of.ClassNames)).names)


def run_here(
    path: str | Path,
    out: str | Path,
    runtime: Any = None,
    ledger: Ledger | None = None,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Run all parties of a job on this machine, each with its file in the job: for a test."""
    job = read_as(read(path), reading)
    (source,), (target,), _ = _roles(job["parties"])
    results = run_everyone("ftl", path, job, run_party, out, runtime, ledger)
    return {
        "history": results[source]["history"],
        "rows": results[source]["rows"],
        "folder": str(out),
        "metrics": results[target]["metrics"],
        "notes": [note for one in results.values() for note in one["notes"]],
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
    return run_with_party_kit("ftl", kit, path, read, run_party, file, out, patience, wait, reading=reading)
