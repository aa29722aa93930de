"""`tacit predict` with a split network: between organizations, or with all parts on this machine."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import BadData, BadKit, MissingFiles
from ...parameters import nearest
from ...parties.ledger import Ledger
from ...parties.party import Party
from ...protocols import splitnn
from ...protocols.splitnn_worker import CHUNK
from ...runtimes.choose import choose_runtime
from ..kit_run import telling
from ..threads import is_small, one_thread_if
from . import split_parts as parts
from .joint_prediction import NO_READING, check_output, predict_with_kit
from .party_tables import read_new_rows, write_predictions
from .split_deployed import align_parties

if TYPE_CHECKING:
    from ...runtimes.kits import Kit


async def run_prediction(
    me: Party,
    folder: str,
    file: str,
    out: str,
    kit: str = "",
    duplicates: str = "refuse",
    wait: float | None = None,
    reading: Mapping[str, Any] = NO_READING,
) -> dict[str, Any]:
    """Run a party of a joint prediction with its saved part; the holder of the top writes to `out`."""
    share = parts.read(folder)
    route = share.terms.routes[0]
    if share.party != me.name:
        raise BadKit(
            f"{folder} contains the part of {share.party!r}, and this party is {me.name!r}. Use its own part."
        )
    mark = hashlib.sha256(json.dumps([share.terms.text()]).encode()).hexdigest()
    table, new_values = None, list[str]()
    if me.name in route.sources:
        if not file:
            raise BadData(f"{me.name!r} has columns in this network; give the file with its rows.")
        table, new_values = read_new_rows(file, share, reading)
    first = [n for n in route.sources if n == route.stops[-1]]
    holders = (*first, *(n for n in route.sources if n not in first))
    table, count, order, notes, _ = await align_parties(
        me, table, holders, route.parties, mark, kit, duplicates, wait, share.terms.join
    )
    share = replace(share, terms=replace(share.terms, rows=(0,), tests=(count,)), fingerprint=order)
    inputs = share.inputs()
    notes = [*new_values, *notes]
    if table is not None:
        assert share.recipe is not None
        inputs.test_x[0] = share.recipe.transform(table.frame)
    outputs = await splitnn.predict(me, share.terms, inputs)
    if outputs is None:
        return {"rows": count, "notes": notes}
    write_predictions(Path(out), share.to_predictions(outputs), None if table is None else table.ids, share)
    return {"rows": count, "out": out, "notes": notes}


def predict_part(
    kit: Kit,
    folder: str | Path,
    file: str | Path | None,
    out: str | Path,
    patience: float = 300.0,
    force: bool = False,
    duplicates: str = "refuse",
    wait: float | None = None,
    reading: Mapping[str, Any] = NO_READING,
) -> dict[str, Any]:
    """Run one party of a joint prediction over the federation's hub."""
    with telling(kit):
        share = parts.read(folder)
    route = share.terms.routes[0]
    with one_thread_if(is_small(share.modules(), CHUNK)):
        return predict_with_kit(
            kit,
            run_prediction,
            route.stops[-1],
            route.parties,
            folder,
            file,
            out,
            patience=patience,
            force=force,
            duplicates=duplicates,
            reading=dict(reading),
            wait=wait,
        )


def predict_here(
    folder: str | Path,
    files: Mapping[str, str],
    out: str | Path,
    runtime: Any = None,
    ledger: Ledger | None = None,
    force: bool = False,
    duplicates: str = "refuse",
    reading: Mapping[str, Any] = NO_READING,
) -> dict[str, Any]:
    """Predict with all parts and files on this machine."""
    places = {p.parent for p in Path(folder).glob("*/part.json")}
    if not places:
        raise MissingFiles(
            f"there is no saved split network in {folder}. Give the folder that `tacit split --out` or "
            "`tacit ftl --out` wrote."
        )
    check_output(out, force)
    shares = {parts.read(p).party: p for p in sorted(places)}
    for name in files:
        if name not in shares:
            raise BadData(f"there is no party {name!r} in {folder}. {nearest(name, list(shares))}")
    names = [n for n, p in shares.items() if set(files) & set(parts.read(p).terms.routes[0].parties)] or list(
        shares
    )  # a folder may contain several predictors
    programs = {
        n: functools.partial(
            run_prediction,
            folder=str(shares[n]),
            file=files.get(n, ""),
            out=str(out),
            duplicates=duplicates,
            reading=dict(reading),
        )
        for n in names
    }
    modules = [m for n in names for m in parts.read(shares[n]).modules()]
    with one_thread_if(is_small(modules, CHUNK)):
        results = choose_runtime("predict", runtime, all_stay=True).run_sync(programs, ledger=ledger)
    return {
        "rows": next(iter(results.values()))["rows"],
        "out": str(out),
        "notes": list(dict.fromkeys(n for one in results.values() for n in one["notes"])),
    }
