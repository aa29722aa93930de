"""`tacit predict` with a regression: each party brings its part and its own rows, the label holder gets the
predictions, and no party sees another's columns or coefficients.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...data.table_files import write_table
from ...errors import BadData, BadKit, MissingFiles
from ...mpc.joint_score import add_scores
from ...parameters import nearest
from ...parties.ledger import Ledger
from ...parties.party import Party
from ...runtimes.choose import choose_runtime
from ..kit_run import telling
from .joint_prediction import NO_READING, check_output, predict_with_kit
from .regress_deployed import match_rows
from .regress_parts import RegressionPart, is_part, read_part
from .regress_result import to_mean
from .split_deployed import check_same_job

if TYPE_CHECKING:
    from ...runtimes.kits import Kit


def _participants(part: RegressionPart) -> list[str]:
    """The label holder first: it receives."""
    return [part.label_at, *(n for n in part.parties if n != part.label_at)]


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
    """Run a party of a joint prediction with its saved part; the label holder writes to `out`."""
    part = read_part(folder)
    if part.party != me.name:
        raise BadKit(
            f"{folder} contains the part of {part.party!r}, and this party is {me.name!r}. Use its own part."
        )
    if not file:
        raise BadData(f"{me.name!r} takes part in this prediction; give the file with its rows (--file).")
    if not part.converged:
        raise BadData(f"{folder}: the fit did not converge, so it predicts nothing.")
    names = _participants(part)
    mark = hashlib.sha256(f"predict|{part.job}|{part.rows}".encode()).hexdigest()
    await check_same_job(me, names, mark, wait)
    entry = {"id": part.id, "duplicates": duplicates, **reading}
    wanted = [*part.design.columns, *([part.offset] if part.offset else [])]
    frame, notes, _ = await match_rows(me, file, entry, names, kit, wanted)
    scores = part.score(frame)
    if part.intercept is not None:
        scores = scores + torch.from_numpy(part.intercept)
    total = await add_scores(me, names, part.label_at, scores)
    if total is None:
        return {"rows": len(frame), "notes": notes}
    write(Path(out), part, frame[part.id].to_numpy(dtype=object), to_mean(part.family, total))
    return {"rows": len(frame), "out": out, "notes": notes}


def write(out: Path, part: RegressionPart, ids: np.ndarray, mean: torch.Tensor) -> None:
    """Write one row per id: the number, or the most likely class and the probability of each."""
    import pandas as pd

    frame = pd.DataFrame({part.id or "row": ids})
    if part.family in ("binomial", "multinomial"):
        chances = mean if mean.dim() == 2 else torch.stack([1 - mean, mean], 1)
        frame["prediction"] = [part.labels[k] for k in chances.argmax(1).tolist()]
        for k, name in enumerate(part.labels):
            frame[f"p({name})"] = chances[:, k].numpy()
    else:
        frame["relative hazard" if part.family == "cox" else "prediction"] = mean.numpy()
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
    reading: Mapping[str, Any] = NO_READING,
) -> dict[str, Any]:
    """Run one party of a joint prediction over the federation's hub."""
    with telling(kit):
        part = read_part(folder)
    return predict_with_kit(
        kit,
        run_prediction,
        part.label_at,
        part.parties,
        folder,
        file,
        out,
        patience=patience,
        force=force,
        duplicates=duplicates,
        reading=dict(reading),
        wait=wait,
    )


def has_parts(folder: str | Path) -> bool:
    """Whether a folder, or a folder in it, has a part of a regression."""
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
    reading: Mapping[str, Any] = NO_READING,
) -> dict[str, Any]:
    """Predict with all parts and files on this machine."""
    parts = {
        p.party: (p, f)
        for p, f in ((read_part(f.parent), f.parent) for f in sorted(Path(folder).glob("*/part.json")))
    }
    if not parts:
        raise MissingFiles(
            f"there is no saved regression in {folder}. Give the folder that `tacit regress --out` wrote."
        )
    check_output(out, force)
    for name in files:
        if name not in parts:
            raise BadData(f"there is no party {name!r} in {folder}. {nearest(name, list(parts))}")
    programs = {
        n: functools.partial(
            run_prediction,
            folder=str(place),
            file=files.get(n, ""),
            out=str(out),
            duplicates=duplicates,
            reading=dict(reading),
        )
        for n, (_, place) in parts.items()
    }
    results = choose_runtime("predict", runtime, all_stay=True).run_sync(programs, ledger=ledger)
    return {
        "rows": next(iter(results.values()))["rows"],
        "out": str(out),
        "notes": list(dict.fromkeys(n for one in results.values() for n in one["notes"])),
    }
