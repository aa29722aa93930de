"""Tables of parties with different columns: read by a job file, read to be scored, and predictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...config.vertical import TableParty
from ...data.cells import to_text
from ...data.recipe import OTHER, Recipe
from ...data.table_files import read_header, read_table, reading_in, write_table
from ...data.tables import from_frame
from ...data.vertical import Columns
from ...errors import BadData
from ...parameters import nearest
from .split_parts import SplitShare

TABLE = {f.name for f in fields(TableParty)}


def table_of(file: str | Path, entry: Mapping[str, Any], regression: bool = False) -> Columns:
    """Read a party's table as its entry in the job file says."""
    settings = TableParty(**{k: v for k, v in entry.items() if k in TABLE})
    others = {*settings.drop, *settings.categories, *(settings.dates or ())}
    frame = read_table(file, ids=(settings.id,), **reading_in(entry), text_columns=others)
    label = settings.label or None
    leave = {settings.id, settings.label, *settings.drop}
    values = settings.categories if isinstance(settings.categories, dict) else {}
    known = list(map(str, frame.columns))
    absent = [c for c in (*settings.drop, *settings.categories, *settings.missing) if c not in known]
    if absent:
        raise BadData(f"{file} has no column {absent[0]!r}. {nearest(absent[0], known)}")
    recipe = Recipe.infer(
        frame[[c for c in known if c not in leave]],
        list(settings.categories),
        dates=settings.dates,
        missing_codes=settings.missing_codes,
        scaling=settings.scaling,
        winsorize=settings.winsorize,
        impute=settings.impute,
        unseen=settings.unseen,
    )
    recipe = replace(
        recipe,
        categories={**recipe.categories, **{c: tuple(v) for c, v in values.items()}},
        missing=tuple(dict.fromkeys((*recipe.missing, *settings.missing))),
    )
    make: Any = from_frame
    table = make(
        frame,
        label,
        id=settings.id,
        name=Path(file).name.split(".")[0],
        drop=list(settings.drop),
        fit=recipe,
        **({"regression": regression, "test_fraction": 0} if label is not None else {}),
    )
    return table if isinstance(table, Columns) else Columns.of(table)


def read_new_rows(
    file: str | Path, share: SplitShare, reading: Mapping[str, Any]
) -> tuple[Columns, list[str]]:
    """Read rows to predict; return them and notes on cells that are missing or new, for this party alone.

    A missing column is an error that names it. A missing cell and a category that was not seen in training
    are handled as the recipe says.
    """
    recipe = share.recipe
    assert recipe is not None
    names = read_header(file, reading.get("separator"), reading.get("encoding")).names
    others = set(names) - set(recipe.numbers)
    frame = read_table(file, ids=(share.id,), **reading, text_columns=others)
    try:
        x = recipe.transform(frame)
    except BadData as error:
        raise BadData(f"{file}: {error}") from None
    notes = []
    for name in recipe.inputs:
        column = recipe.column_of(frame, name)
        blank = int(column.isna().sum())
        if blank and name not in recipe.missing:
            what = (
                "count as no category" if name in recipe.categories else "were replaced by the training rows'"
            )
            what += "" if name in recipe.categories else f" {recipe.impute}"
            notes.append(f"{file}, column {name!r}: {blank} of {len(frame)} cells are missing and {what}.")
        new = set(to_text(column.dropna())) - set(recipe.categories.get(name, ()))
        if name in recipe.categories and new:
            where = "as 'other'" if OTHER in recipe.categories[name] else "as no category"
            notes.append(
                f"{file}, column {name!r}: {len(new)} values were not seen in training, like "
                f"{min(new)!r:.60}; they count {where}."
            )
    ids = frame[share.id].to_numpy(dtype=object)
    return Columns(Path(file).name, ids, x, recipe.columns, recipe, frame=frame[list(recipe.inputs)]), notes


def write_predictions(out: Path, values: torch.Tensor, ids: np.ndarray | None, share: SplitShare) -> None:
    """Write one row per id: class probabilities `p(LABEL)` and the most likely class, or the number."""
    import pandas

    frame = pandas.DataFrame({share.id or "row": ids if ids is not None else np.arange(len(values))})
    if share.terms.loss == "mse":
        frame["prediction"] = values.numpy()
    else:
        chances = values if values.dim() == 2 else torch.stack([1 - values, values], 1)
        names = list(share.labels) or [str(k) for k in range(chances.shape[1])]
        for k, name in enumerate(names):
            frame[f"p({name})"] = chances[:, k].numpy()
        frame["prediction"] = [names[k] for k in chances.argmax(1).tolist()]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_table(frame, out)
