"""Convert the arguments of `tacit.boost.train` for vertical parties to aligned tables and a label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...boost.rows import read_label
from ...data.cells import code_texts, with_columns, without_codes
from ...data.federation import Dataset
from ...data.spellings import refuse_spellings
from ...data.vertical import Columns, Vertical
from ...errors import BadData
from ...parameters import bad, nearest
from ...parties.ledger import Ledger
from ...people import check_unique_names
from ...stats.columns import _natural, is_number, text_of
from .psi import align
from .regress_design import take_complete_rows

if TYPE_CHECKING:
    import pandas as pd

OWNER = "boost.train"
HELPER = "helper"


@dataclass
class BoostRows:
    """The aligned tables of features by party, and the label."""

    frames: dict[str, pd.DataFrame]
    categories: dict[str, list[str]]
    y: np.ndarray
    labels: tuple[str, ...]
    label: str
    label_at: str
    id: str = ""
    notes: list[str] = field(default_factory=list)
    # by party and column, the codes that were missing values in `frames`
    missing_codes: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)


def is_vertical(parties: Any, on: str | None) -> bool:
    """Whether the parties have different columns: a `Vertical`, tables with ids, or frames with `on`."""
    if isinstance(parties, Vertical) or on is not None:
        return True
    return (
        isinstance(parties, Mapping)
        and bool(parties)
        and all(isinstance(c, Columns | Dataset) for c in parties.values())
    )


def arrange(
    parties: Any,
    objective: str,
    on: str | None,
    label: str,
    runtime: Any,
    ledger: Ledger,
    declared: Sequence[str] = (),
) -> BoostRows:
    """Tables ({party: DataFrame} with `on`, or data.from_frame/from_csv) or aligned tables (Vertical).

    `declared`: the classes, if they are not taken from the rows; rows of DataFrames with others are left out.
    """
    if isinstance(parties, Vertical):
        train = parties.train.numpy()
        tables = {name: c.take(train) for name, c in parties.parties.items()}
        rows = _from_columns(tables, parties.label_at, objective)
        if len(parties.test):
            rows.notes.append(
                f"Trees were grown on the {len(train)} training rows; {len(parties.test)} test rows were not "
                "used."
            )
        return rows
    if not isinstance(parties, Mapping) or not parties or not all(isinstance(k, str) and k for k in parties):
        raise bad(
            OWNER, "parties", type(parties).__name__, 'tables by party, like {"bank": frame, "shop": frame}'
        )
    if all(isinstance(c, Columns | Dataset) for c in parties.values()):
        from .split_layout import align_tables

        tables = {n: Columns.of(c) if isinstance(c, Dataset) else c for n, c in parties.items()}
        with_label = [n for n, c in tables.items() if c.y is not None]
        if len(with_label) != 1:
            raise bad(OWNER, "the parties with a label", with_label, "exactly one")
        aligned, notes, _ = align_tables(tables, runtime, ledger)
        rows = _from_columns(aligned, with_label[0], objective)
        rows.notes = [*notes, *rows.notes]
        return rows
    return _from_frames(parties, objective, on or "", label, runtime, ledger, declared)


def _from_columns(tables: Mapping[str, Columns], holder: str, objective: str) -> BoostRows:
    import pandas as pd

    frames, categories, kept = {}, {}, dict[str, dict[str, tuple[str, ...]]]()
    for who, c in tables.items():
        if c.frame is None:
            names = c.columns or tuple(f"x{k}" for k in range(c.x.shape[1]))
            frames[who] = pd.DataFrame(c.x.numpy(), columns=list(names))
            categories[who] = list[str]()
            continue
        frame = c.frame.reset_index(drop=True)
        if c.recipe is not None:
            refuse_spellings(c.recipe.spellings, OWNER)
            codes = {k: v for k, v in c.recipe.missing_codes.items() if k in frame.columns}
            frame = with_columns(frame, {k: without_codes(frame[k], v) for k, v in codes.items()})
            kept[who] = {k: code_texts(v) for k, v in codes.items()}
        frames[who] = frame
        categories[who] = [k for k in c.recipe.categories if k in frame] if c.recipe else []
    y, classes = tables[holder].y, tables[holder].classes
    assert y is not None
    names = tables[holder].labels or tuple(map(str, range(classes or 0)))
    check_classes(objective, names if classes else (), "the label")
    y_rows, labels = y.double().numpy(), names if classes else ()
    return BoostRows(frames, categories, y_rows, labels, "", holder, missing_codes=kept)


def check_classes(objective: str, labels: Sequence[str], what: str) -> None:
    needed = {"binary": "two classes", "multiclass": "at least two classes"}.get(objective)
    found = f"{len(labels)} classes" if labels else "numbers"
    if (needed is None) != (not labels) or (objective == "binary" and len(labels) != 2) or len(labels) == 1:
        raise bad(
            OWNER,
            "objective",
            objective,
            "'binary' for two classes, 'multiclass' for more, 'regression' or 'poisson' for numbers",
            f"{what} has {found}.",
        )


def _from_frames(
    parties: Mapping[str, Any],
    objective: str,
    on: str,
    label: str,
    runtime: Any,
    ledger: Ledger,
    declared: Sequence[str],
) -> BoostRows:
    import pandas as pd

    for who, frame in parties.items():
        if not isinstance(frame, pd.DataFrame):
            raise bad(OWNER, f"the table of {who!r}", type(frame).__name__, "a DataFrame, like the others")
        if on not in frame.columns:
            known = list(map(str, frame.columns))
            raise BadData(f"the table of {who!r} has no column {on!r} (on). {nearest(on, known)}")
        check_names(frame, who)
    holders = [who for who, f in parties.items() if label in f.columns]
    if len(holders) != 1 or not label:
        raise bad(OWNER, "label", label, f"a column of exactly one party; {holders or 'none'} have it")
    for who, frame in parties.items():
        if len(frame.columns) < 2:
            raise BadData(f"the table of {who!r} has no columns beside its id.")
    notes: list[str] = []
    tables = {}
    for who, frame in parties.items():
        needed = [on, label] if who == holders[0] else [on]
        if who == holders[0] and declared:
            frame, more = keep_declared(frame, label, declared, who)
            notes += more
        tables[who], more = take_complete_rows(frame, who, on, needed=needed)
        notes += more
    shared = align({who: f[on].tolist() for who, f in tables.items()}, runtime=runtime)
    ledger.merge(shared.ledger)
    sizes = ", ".join(f"{len(f)} at {who}" for who, f in tables.items())
    notes.append(f"{shared.size} people are shared, of {sizes}.")
    tables = {who: f.iloc[shared.rows[who]].reset_index(drop=True) for who, f in tables.items()}
    if not shared.size:
        raise BadData("boost: the parties share no people. Are the ids written in the same way?")
    y, labels = read_target(tables[holders[0]], label, objective, declared)
    frames = {who: f[[c for c in f.columns if c not in (on, label)]] for who, f in tables.items()}
    return BoostRows(frames, {who: [] for who in frames}, y, labels, label, holders[0], on, notes)


def check_names(frame: pd.DataFrame, who: str) -> None:
    """Raise BadData unless the names of columns are different texts."""
    check_unique_names(frame, f"the table of {who!r}")
    others = [c for c in frame.columns if not isinstance(c, str)]
    if others:
        raise BadData(
            f"the table of {who!r} has a column whose name is not a text: {others[0]!r}. Rename it: "
            "frame.rename(columns=str)."
        )


def keep_declared(
    frame: pd.DataFrame, label: str, declared: Sequence[str], who: str
) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows whose label is one of the declared ones, and a note about the others."""
    good = frame[label].map(lambda v: text_of(v) in declared).to_numpy(dtype=bool)
    left = int((~good).sum())
    notes = [f"{left} of {len(frame)} rows of {who!r} have no declared {label!r}; they were left out."]
    return frame[good], notes if left else []


def read_target(
    frame: pd.DataFrame, label: str, objective: str, declared: Sequence[str] = ()
) -> tuple[np.ndarray, tuple[str, ...]]:
    """(numbers, names of classes) of the label's column; the classes are `declared`, or those it has."""
    column = frame[label]
    labels: tuple[str, ...] = tuple(declared)
    if objective in ("binary", "multiclass"):
        labels = labels or tuple(sorted({text_of(v) for v in column.unique()}, key=_natural))
        if len(labels) > 256:
            raise BadData(f"boost: the label {label!r} has {len(labels)} values; 256 classes are possible.")
        check_classes(objective, labels, f"{label!r}")
    elif not is_number(column):
        raise BadData(f"boost: the label {label!r} is not a number, as objective {objective!r} needs.")
    y = read_label(frame, label, labels)
    if not np.isfinite(y).all() or (objective == "poisson" and (y < 0).any()):
        raise BadData(f"boost: the label {label!r} has values that objective {objective!r} cannot have.")
    return y, labels


def to_tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(values))  # a copy: pandas may return read-only arrays
