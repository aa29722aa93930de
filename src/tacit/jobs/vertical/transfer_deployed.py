"""Transfer whose parties are organisations: one job file that both have, each with its own table.

    [ftl]                                   [parties.bank]            [parties.shop]              [parties.notary]
    width = 8                               file = "bank.csv"         file = "shop.csv"           helper = true
    epochs = 60                             id = "id"                 id = "customer"
    secure = "shared"                       label = "default"

The party with a label is the source, the other one with an id the target; on shares a third one helps, and
has no table. The target's table may hold the label under the same name in its own entry as `measure`: it
is measured by, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from ...data.vertical import drop_repeated_ids
from ...errors import BadJob, BadParameter
from ...files import write_atomic
from ...mpc import transfer as hidden
from ...parameters import check, from_table
from ...parties.ledger import Ledger
from ...parties.party import Party
from ...protocols.ftl import TransferTerms
from ...protocols.splitnn_guards import ACTIVATIONS, GRADIENTS
from ...protocols.splitnn_terms import Asked, Route
from . import transfer as job_of
from .psi import align_rows
from .split import told
from .split_deployed import (
    agreed,
    answer,
    check_guards,
    everybody,
    join,
    policy_in,
    same_job,
    table_of,
    tables_of,
)

if TYPE_CHECKING:
    from ...runtimes.kits import Kit

FTL: dict[str, Any] = {
    "secure": "cut",
    "width": 8,
    "epochs": 60,
    "first_epochs": 100,
    "batch_size": 64,
    "lr": 0.01,
    "weight_decay": 0.03,
    "gamma": 1.0,
    "own": 1.0,
    "rebuild": 1.0,
    "seed": 0,
    "guards": [],
    "protect": None,
}
PARTY: dict[str, Any] = {
    "file": str,
    "id": str,
    "label": str,
    "drop": list[str],
    "categories": list[str],
    "helper": bool,
    "measure": str,
    "duplicates": str,
}


def read(path: str | Path) -> dict[str, Any]:
    """A job file, checked: {"ftl": every setting, "parties": {name: …}}."""
    settings, who = tables_of(path, "ftl", FTL, PARTY)
    sources, targets, helpers = _roles(who)
    if settings["secure"] not in job_of.SECURE:
        raise BadJob(
            f"{path}, ftl: secure is {settings['secure']!r}; it must be one of "
            f"{', '.join(map(repr, job_of.SECURE))}."
        )
    wanted = 1 if settings["secure"] == "shared" else 0
    if (len(sources), len(targets), len(helpers), len(who)) != (1, 1, wanted, 2 + wanted):
        raise BadJob(
            f"{path}: the parties are {len(sources)} with id and label (the source), {len(targets)} with id "
            "alone (the target) and "
            f"{len(helpers)} with helper = true; there must be one, one and {wanted} with secure = "
            f"{settings['secure']!r}."
        )
    if wanted and (settings["guards"] or settings["protect"] is not None):
        raise BadJob(
            f"{path}, ftl: guards and protect stand at a cut, and with secure = 'shared' nothing crosses "
            "one. Leave them out."
        )
    check_guards(f"{path}, ftl", settings)
    try:
        _terms(settings, sources[0], targets[0], f"{path}, ftl")
    except BadParameter as error:
        raise BadJob(str(error)) from None
    return {"ftl": settings, "parties": who}


def _terms(settings: Mapping[str, Any], source: str, target: str, owner: str) -> TransferTerms:
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
    return cast(TransferTerms, check(terms, owner))


def _roles(who: Mapping[str, Any]) -> tuple[list[str], list[str], list[str]]:
    return (
        [n for n, t in who.items() if "id" in t and "label" in t],
        [n for n, t in who.items() if "id" in t and "label" not in t],
        [n for n, t in who.items() if t.get("helper") is True and "id" not in t],
    )


async def attend(me: Party, job: Mapping[str, Any], file: str, out: str, kit: str = "") -> dict[str, Any]:
    """A party's program: read its table, find whom it shares, learn, save its predictor. The target also
    writes its answers for all its rows.
    """
    settings, who = job["ftl"], job["parties"]
    (source,), (target,), helpers = _roles(who)
    terms = _terms(settings, source, target, "ftl")
    await same_job(me, who, agreed(job))
    if me.name in helpers:
        rows = (await me.recv(source, Asked)).rows
        await hidden.helper(me, (source, target), rows, terms.width)
        return {"history": [], "rows": rows, "folder": "", "metrics": {}, "notes": []}
    entry = who[me.name]
    table = table_of(file, {**entry, "label": entry["measure"]} if "measure" in entry else entry)
    table, notes = drop_repeated_ids(table, f"the table of {me.name!r}", entry.get("duplicates", "refuse"))
    names: tuple[str, ...] = ()
    if me.name == source:
        names = job_of.labelled(table)
    found = await align_rows(me, table.ids.tolist(), parties=[source, target], policy=policy_in(kit))
    rows_here, notes = torch.as_tensor(found.rows, dtype=torch.int64), [*notes, *found.notes]
    job_of.some(len(rows_here), (source, target))
    terms = replace(terms, rows=(len(rows_here),))
    guards = tuple(from_table(g, ACTIVATIONS, "ftl.guards") for g in settings["guards"])
    protect = (
        None if settings["protect"] is None else from_table(settings["protect"], GRADIENTS, "ftl.protect")
    )
    given = job_of.prepared(terms, me.name, table, rows_here, None, guards, protect, found.key)
    if helpers and me.name == source:
        await me.send(helpers, Asked(len(rows_here), agreed(job)))
    made = await (job_of.secret_seat(me, given, helpers[0]) if helpers else job_of.seat(me, given))
    names = await _labels(me, source, target, names)
    share = replace(job_of.finished(terms, me.name, table, given, made, names), id=entry["id"])
    folder = share.write(Path(out))
    write_atomic(folder / "ledger.json", json.dumps(me.ledger.to_dict(), indent=1))
    metrics = {}
    if me.name == target:
        metrics = job_of.measured_on_the_rest(terms, share, table, rows_here, names)
        answer(folder / "answers.csv", told(terms.loss, job_of.outputs(share, table)), table.ids, share)
    return {
        "history": made["history"],
        "rows": len(rows_here),
        "folder": str(folder),
        "metrics": metrics,
        "notes": notes,
    }


async def _labels(me: Party, source: str, target: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """What the classes are called, which the target cannot know."""
    if me.name == source:
        await me.send(target, job_of.ClassNames(list(names)))
        return names
    return tuple((await me.recv(source, job_of.ClassNames)).names)


def here(
    path: str | Path, out: str | Path, runtime: Any = None, ledger: Ledger | None = None
) -> dict[str, Any]:
    """All parties of a job on this machine, each with the file the job names: to try it out."""
    job = read(path)
    (source,), (target,), _ = _roles(job["parties"])
    made = everybody("ftl", path, job, attend, out, runtime, ledger)
    return {
        "history": made[source]["history"],
        "rows": made[source]["rows"],
        "folder": str(out),
        "metrics": made[target]["metrics"],
        "notes": [note for one in made.values() for note in one["notes"]],
    }


def take_part(
    kit: Kit, path: str | Path, file: str | Path | None, out: str | Path | None, patience: float = 300.0
) -> dict[str, Any]:
    """One party's side of a job, over the federation's hub."""
    return join("ftl", kit, path, read(path), attend, file, out, patience)
