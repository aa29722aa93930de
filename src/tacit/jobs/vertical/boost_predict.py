"""`tacit predict` with boosted trees of several parties: each party brings its part and its own rows, one of
them gets the predictions, and no party sees another's columns, splits or leaves.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...boost.objectives import OBJECTIVES
from ...data.table_files import write_table
from ...errors import BadData, BadKit, BadParameter, MissingFiles, ProtocolError
from ...mpc import leaf_transfers
from ...mpc.leaf_scores import add_leaves, encode, help_leaves
from ...parameters import bad, nearest
from ...parties.ledger import Ledger
from ...parties.message import Message
from ...parties.party import Party
from ...runtimes.choose import choose_runtime
from ...stats.columns import text_of
from ..kit_run import telling
from .boost_parts import BoostPart, HelperPart, is_part, read_any
from .boost_programs import find_unit
from .joint_prediction import NO_READING, check_output, predict_with_kit
from .regress_deployed import match_rows
from .split_deployed import check_same_job

if TYPE_CHECKING:
    import pandas as pd

    from ...runtimes.kits import Kit

OPENED = (
    "OPENED: one party learned the score of each shared row. Nobody learned another's columns, splits or "
    "values of leaves, or which leaf a row reaches, beyond what the scores imply. Semi-honest parties; the "
    "helper colludes with none."
)

OPENED_WITHOUT_HELPER = (
    "OPENED: one party learned the score of each shared row. Nobody learned another's columns, splits or "
    "values of leaves, or which leaf a row reaches, beyond what the scores imply. Semi-honest parties; "
    "oblivious transfers under computational Diffie-Hellman, without a helper."
)


class ScoreClasses(
    Message,
    reveals="the names of the label's classes and the unit of the scores, to whom gets the predictions",
):
    labels: list[str]
    unit: float


def _digest(job: str, rows: int, mark: str, receiver: str) -> str:
    return hashlib.sha256(f"predict|boost|{job}|{rows}|{mark}|{receiver}".encode()).hexdigest()


def _check_receiver(part: BoostPart | HelperPart, receiver: str) -> str:
    receiver = receiver or part.label_at
    if receiver not in part.parties:
        raise bad("predict", "receiver", receiver, f"one of {', '.join(part.parties)}")
    return receiver


async def run_helper(
    me: Party, part: dict[str, Any], receiver: str, wait: float | None = None
) -> dict[str, Any]:
    """Run the helper of a joint prediction."""
    own = HelperPart.from_dict(part, "this part")
    if own.party != me.name:
        raise BadKit(f"this is the part of {own.party!r}, and this party is {me.name!r}. Use its own part.")
    receiver = _check_receiver(own, receiver)
    me.ledger.stamp(OPENED)
    await check_same_job(me, (*own.parties, me.name), _digest(own.job, own.rows, own.mark, receiver), wait)
    return {"rows": await help_leaves(me, own.parties, bytes.fromhex(own.leaf_key)), "notes": []}


async def run_prediction(
    me: Party,
    folder: str,
    file: str,
    out: str,
    kit: str = "",
    duplicates: str = "refuse",
    wait: float | None = None,
    receiver: str = "",
    reading: Mapping[str, Any] = NO_READING,
) -> dict[str, Any]:
    """Run a party of a joint prediction with its saved part; the receiver writes to `out`."""
    part = read_any(folder)
    if isinstance(part, HelperPart):
        return await run_helper(me, part.to_dict(), receiver, wait)
    if part.party != me.name:
        raise BadKit(
            f"{folder} contains the part of {part.party!r}, and this party is {me.name!r}. Use its own part."
        )
    if not file:
        raise BadData(f"{me.name!r} takes part in this prediction; give the file with its rows (--file).")
    receiver, names = _check_receiver(part, receiver), list(part.parties)
    me.ledger.stamp(OPENED if part.helper else OPENED_WITHOUT_HELPER)
    mark = _digest(part.job, part.rows, part.mark, receiver)
    await check_same_job(me, (*names, *([part.helper] if part.helper else [])), mark, wait)
    entry = {"id": part.id, "duplicates": duplicates, **reading}
    columns = part.bins.bins.names
    frame, notes, _ = await match_rows(me, file, entry, names, kit, columns, needed=[part.id])
    notes = [*_note_new_values(part, frame, file), *notes]
    unit = find_unit(part.trees, part.base or 0.0) if part.has_label else 1.0
    base = 0.0 if part.base is None else part.base / unit
    if part.helper:
        own, mask = torch.from_numpy(part.conditions(frame)), part.mask if part.has_label else None
        total = await add_leaves(
            me, names, part.helper, receiver, own, part.leaf_outputs, part.leaves, mask, base
        )
    else:
        factors = torch.from_numpy(part.factors(frame))
        own = encode(factors / unit, me.name) if part.has_label else factors.long()
        order = [part.label_at, *(n for n in names if n != part.label_at)]
        places = [term.tree % part.outputs for term in part.terms]
        total = await leaf_transfers.add_leaves(me, order, receiver, own, places, base)
    labels, unit = await _exchange_labels(me, part, receiver, unit)
    if total is None:
        return {"rows": len(frame), "notes": notes}
    write(Path(out), part, labels, frame[part.id].to_numpy(dtype=object), total.numpy() * unit)
    return {"rows": len(frame), "out": out, "notes": notes}


async def _exchange_labels(
    me: Party, part: BoostPart, receiver: str, unit: float
) -> tuple[tuple[str, ...], float]:
    """The names of classes and the unit of scores, at the receiver."""
    if receiver == part.label_at:
        return part.labels, unit
    if part.has_label:
        await me.send(receiver, ScoreClasses(list(part.labels), unit))
    if me.name != receiver:
        return (), unit
    return read_classes(part, await me.recv(part.label_at, ScoreClasses))


def read_classes(part: BoostPart, message: ScoreClasses) -> tuple[tuple[str, ...], float]:
    """The names of classes and the unit of scores that the label holder sent."""
    labels, unit = tuple(message.labels), message.unit
    if not 1 <= unit < math.inf or math.frexp(unit)[0] != 0.5:
        raise ProtocolError(f"{part.label_at!r} sent {unit} as the unit of scores; expected a power of two.")
    needed = {"binary": 2, "multiclass": part.outputs}.get(part.objective_name, 0)
    if len(labels) != needed:
        raise ProtocolError(f"{part.label_at!r} sent {len(labels)} names of classes; expected {needed}.")
    return labels, unit


def _note_new_values(part: BoostPart, frame: pd.DataFrame, file: str) -> list[str]:
    """Notes on values that no row of training had, for this party alone."""
    notes = []
    for feature in part.bins.bins.features:
        if feature.levels is None:
            continue
        new = {text_of(v) for v in frame[feature.name].dropna().unique()} - set(feature.levels)
        if new:
            notes.append(
                f"{file}, column {feature.name!r}: {len(new)} values are not among the levels of training "
                f"(new, or rare there), like {min(new)!r:.60}; they count as 'other'."
            )
    return notes


def write(out: Path, part: BoostPart, labels: tuple[str, ...], ids: np.ndarray, margin: np.ndarray) -> None:
    """Write one row per id: the number, or the most likely class and the probability of each."""
    import pandas as pd

    frame = pd.DataFrame({part.id or "row": ids})
    found = OBJECTIVES[part.objective_name](len(labels)).predict(margin)
    if labels:
        chances = found if found.ndim == 2 else np.stack([1 - found, found], 1)
        frame["prediction"] = [labels[k] for k in chances.argmax(1).tolist()]
        for k, name in enumerate(labels):
            frame[f"p({name})"] = chances[:, k]
    else:
        frame["prediction"] = found
    out.parent.mkdir(parents=True, exist_ok=True)
    write_table(frame, out)


def predict_part(
    kit: Kit,
    folder: str | Path,
    file: str | Path | None,
    out: str | Path,
    patience: float = 300.0,
    force: bool = False,
    duplicates: str = "refuse",
    wait: float | None = None,
    receiver: str = "",
    reading: Mapping[str, Any] = NO_READING,
) -> dict[str, Any]:
    """Run one party of a joint prediction over the federation's hub."""
    with telling(kit):
        part = read_any(folder)
        writer = _check_receiver(part, receiver)
    helper = part.party if isinstance(part, HelperPart) else part.helper
    return predict_with_kit(
        kit,
        run_prediction,
        writer,
        (*part.parties, *([helper] if helper else [])),
        folder,
        file,
        out,
        patience=patience,
        force=force,
        duplicates=duplicates,
        reading=dict(reading),
        wait=wait,
        receiver=receiver,
    )


def has_parts(folder: str | Path) -> bool:
    """Whether a folder, or a folder in it, has a part of boosted trees."""
    place = Path(folder)
    return is_part(place) or any(is_part(p.parent) for p in place.glob("*/part.json"))


def predict_here(
    folder: str | Path,
    files: Mapping[str, str],
    out: str | Path,
    runtime: Any = None,
    ledger: Ledger | None = None,
    force: bool = False,
    duplicates: str = "refuse",
    receiver: str = "",
    reading: Mapping[str, Any] = NO_READING,
) -> dict[str, Any]:
    """Predict with all parts and files on this machine."""
    places = [f.parent for f in sorted(Path(folder).glob("*/part.json"))]
    parts = {p.party: (p, f) for p, f in ((read_any(f), f) for f in places) if isinstance(p, BoostPart)}
    if not parts:
        raise MissingFiles(
            f"there are no parts of boosted trees of all parties in {folder}. Give the folder that "
            "`tacit boost --out` wrote, or --kit."
        )
    first = next(iter(parts.values()))[0]
    missing = [n for n in first.parties if n not in parts]
    if missing:
        raise MissingFiles(f"{folder} has no part of {missing[0]!r}, which has columns of these trees.")
    if not first.id:
        raise BadParameter(
            "predict: these trees were grown on tables without an id, so rows cannot be matched."
        )
    _check_receiver(first, receiver)
    check_output(out, force)
    for name in files:
        if name not in parts:
            raise BadData(f"there is no party {name!r} in {folder}. {nearest(name, list(parts))}")
    programs: dict[str, Any] = {
        n: functools.partial(
            run_prediction,
            folder=str(place),
            file=files.get(n, ""),
            out=str(out),
            duplicates=duplicates,
            reading=dict(reading),
            receiver=receiver,
        )
        for n, (_, place) in parts.items()
    }
    if first.helper:
        holder = parts[first.label_at][0]
        helper = HelperPart(
            first.helper,
            first.parties,
            first.label_at,
            first.rows,
            first.job,
            holder.mark,
            holder.leaf_key,
        )
        programs[first.helper] = functools.partial(run_helper, part=helper.to_dict(), receiver=receiver)
    results = choose_runtime("predict", runtime, all_stay=True).run_sync(programs, ledger=ledger)
    return {
        "rows": results[first.label_at]["rows"],
        "out": str(out),
        "notes": list(dict.fromkeys(n for one in results.values() for n in one["notes"])),
    }
