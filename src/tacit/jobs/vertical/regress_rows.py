"""Convert the arguments of `tacit.regress` to columns in their own units, aligned by private set
intersection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...data.federation import Dataset
from ...data.vertical import Columns, Vertical
from ...errors import BadData
from ...mpc.glm_terms import FAMILIES
from ...parameters import bad, nearest
from ...parties.ledger import Ledger
from .psi import align
from .regress_design import Design, take_complete_rows

SYNONYMS = {"linear": "gaussian", "logistic": "binomial"}


@dataclass
class RegressRows:
    """The aligned columns by party, in their own units, and the label."""

    x: dict[str, Tensor]
    designs: dict[str, Design]
    y: Tensor
    label_at: str
    family: str
    labels: tuple[str, ...] = ()  # names of classes
    notes: list[str] = field(default_factory=list)
    offset: Tensor | None = None  # of the label holder, in the order of its rows
    weights: Tensor | None = None


@dataclass(frozen=True)
class LabelColumns:
    """The columns of the label holder that are not explained by: the label, or a time and an event, and the
    offset and weights of its rows (arrays, where the label is one).
    """

    label: str | None = None
    time: str | None = None
    event: str | None = None
    offset: Any = None
    weights: Any = None

    @property
    def names(self) -> list[str]:
        every = (self.label, self.time, self.event, self.offset, self.weights)
        return [name for name in every if isinstance(name, str) and name]

    def read_rows(self, frame: Any) -> dict[str, Tensor | None]:
        """The offset and the weights of a table's rows, by name."""
        found: dict[str, Tensor | None] = {}
        for key, name in (("offset", self.offset), ("weights", self.weights)):
            if name is not None and not isinstance(name, str):
                raise bad("regress", key, type(name).__name__, "the name of a column of the label's table")
            try:
                found[key] = torch.from_numpy(frame[name].to_numpy(dtype=np.float64).copy()) if name else None
            except (TypeError, ValueError):
                raise BadData(f"regress: column {name!r} ({key}) contains non-numeric values.") from None
        return found

    def check(self, family: str | None) -> None:
        cox = self.time is not None or self.event is not None
        if cox and (self.label is not None or self.time is None or self.event is None):
            raise bad(
                "regress", "label", self.label, "not given with time and event, which are given together"
            )
        if cox and family not in (None, "cox"):
            raise bad("regress", "family", family, "'cox' with time and event")
        if family == "cox" and not cox:
            raise bad("regress", "time and event", None, "two columns of one party with family='cox'")


def check_family(family: str | None) -> str | None:
    family = SYNONYMS.get(str(family), family)
    if family is not None and family not in FAMILIES:
        raise bad(
            "regress",
            "family",
            family,
            f"one of {', '.join(map(repr, FAMILIES))}",
            nearest(str(family), list(FAMILIES)),
        )
    return family


def arrange(
    parties: Any,
    labels: Any,
    family: str | None,
    on: str | None,
    columns: LabelColumns,
    runtime: Any,
    ledger: Ledger,
) -> RegressRows:
    """Tables ({party: DataFrame}, or data.from_frame/from_csv), aligned tables (Vertical) or arrays."""
    family = check_family(family)
    rows_of = {"offset": columns.offset, "weights": columns.weights}
    if isinstance(parties, Vertical) or (
        isinstance(parties, Mapping) and any(isinstance(c, Columns | Dataset) for c in parties.values())
    ):
        for key, given in rows_of.items():
            if given is not None:
                raise bad("regress", key, given, "left out with a Vertical or tables of data.from_frame",
                          "Give {party: DataFrame} and label=.")  # fmt: skip
    if isinstance(parties, Vertical):
        train = parties.train.numpy()
        tables = {name: c.take(train) for name, c in parties.parties.items()}
        rows = _from_columns(tables, parties.label_at, family)
        if len(parties.test):
            rows.notes.append(
                f"The fit is on the {len(train)} training rows; {len(parties.test)} test rows were not used."
            )
        return rows
    if not isinstance(parties, Mapping) or not parties or not all(isinstance(k, str) and k for k in parties):
        raise bad(
            "regress",
            "parties",
            type(parties).__name__,
            'columns by party, like {"clinic": frame, "lab": frame}',
        )
    if all(isinstance(c, Columns | Dataset) for c in parties.values()):
        from .split_layout import align_tables

        tables = {n: Columns.of(c) if isinstance(c, Dataset) else c for n, c in parties.items()}
        with_label = [n for n, c in tables.items() if c.y is not None]
        holder = labels if labels is not None else with_label[0] if len(with_label) == 1 else None
        if not isinstance(holder, str) or holder not in with_label:
            raise bad("regress", "labels", labels, f"the party that holds them, one of {', '.join(tables)}")
        aligned, notes, _ = align_tables(tables, runtime, ledger)
        rows = _from_columns(aligned, holder, family)
        rows.notes = [*notes, *rows.notes]
        return rows
    if columns.label or columns.time or columns.event:
        return _from_frames(parties, family, on, columns, runtime, ledger)
    rows = _from_arrays(parties, labels, family)
    for key, given in rows_of.items():
        if isinstance(given, str):
            raise bad("regress", key, given, "numbers by row, because the label is an array")
        if given is not None:
            setattr(rows, key, _array(f"the {key}", given))
    return rows


def _from_columns(tables: Mapping[str, Columns], holder: str, family: str | None) -> RegressRows:
    x, designs = {}, {}
    complete = np.ones(len(tables[holder]), bool)
    for c in tables.values():
        if c.frame is not None:
            complete &= ~c.frame.isna().any(axis=1).to_numpy()
        else:
            complete &= ~torch.isnan(c.x).any(1).numpy()
    for who, c in tables.items():
        if c.frame is not None:
            frame = c.frame[complete].reset_index(drop=True)
            designs[who] = Design.infer(
                frame, who, [k for k in c.recipe.categories if k in frame] if c.recipe else []
            )
            x[who] = designs[who].encode(frame, who)
        else:
            names = c.columns or tuple(f"x{k}" for k in range(c.x.shape[1]))
            designs[who], x[who] = Design(names, ((),) * len(names)), c.x[complete].double()
    y = tables[holder].y
    assert y is not None
    classes = tables[holder].classes
    values = y[torch.from_numpy(complete)].double()
    notes = (
        [] if complete.all() else [f"{int((~complete).sum())} rows have missing values; they were left out."]
    )
    names = tables[holder].labels or tuple(map(str, range(classes or 0)))
    return RegressRows(x, designs, values, holder, family or _guess(values), names if classes else (), notes)


def _from_frames(
    parties: Mapping[str, Any],
    family: str | None,
    on: str | None,
    columns: LabelColumns,
    runtime: Any,
    ledger: Ledger,
) -> RegressRows:
    columns.check(family)
    if columns.time is not None:
        family = "cox"
    import pandas as pd

    for who, frame in parties.items():
        if not isinstance(frame, pd.DataFrame):
            raise bad(
                "regress", f"the table of {who!r}", type(frame).__name__, "a DataFrame, like the others"
            )
        if on is not None and on not in frame.columns:
            known = list(map(str, frame.columns))
            raise BadData(f"the table of {who!r} has no column {on!r} (on). {nearest(on, known)}")
    holders = [who for who, f in parties.items() if any(name in f.columns for name in columns.names)]
    if len(holders) != 1 or any(name not in parties[holders[0]].columns for name in columns.names):
        raise bad(
            "regress",
            "label",
            columns.names,
            f"columns of exactly one party; {holders or 'none'} have one of them",
        )
    notes: list[str] = []
    tables = {}
    for who, frame in parties.items():
        if on is not None:
            tables[who], more = take_complete_rows(frame, who, on)
            notes += more
    if on is None:
        if len({len(f) for f in parties.values()}) > 1:
            lengths = {who: len(f) for who, f in parties.items()}
            raise bad(
                "regress", "on", None, f"the id column, because the tables have different rows: {lengths}"
            )
        complete = np.logical_and.reduce([~f.isna().any(axis=1).to_numpy() for f in parties.values()])
        if not complete.all():
            notes.append(f"{int((~complete).sum())} rows have missing values; they were left out.")
        tables = {who: f[complete].reset_index(drop=True) for who, f in parties.items()}
    else:
        shared = align({who: f[on].tolist() for who, f in tables.items()}, runtime=runtime)
        ledger.merge(shared.ledger)
        sizes = ", ".join(f"{len(f)} at {who}" for who, f in tables.items())
        notes.append(f"{shared.size} people are shared, of {sizes}.")
        tables = {who: f.iloc[shared.rows[who]].reset_index(drop=True) for who, f in tables.items()}
    holder = holders[0]
    label = tables[holder][columns.names]
    if not len(label):
        raise BadData("regress: the parties share no complete row. Are the ids written in the same way?")
    y, names, family = read_label(label, family, columns)
    left = {*columns.names, *([on] if on is not None else [])}
    x, designs = {}, {}
    for who, f in tables.items():
        features = f[[c for c in f.columns if c not in left]]
        designs[who] = Design.infer(features, who)
        x[who] = designs[who].encode(features, who)
    return RegressRows(x, designs, y, holder, family, names, notes, **columns.read_rows(tables[holder]))


def read_label(label: Any, family: str | None, columns: LabelColumns) -> tuple[Tensor, tuple[str, ...], str]:
    """(numbers, names of classes, family) of the label's columns."""
    from pandas.api import types

    from ...data.cells import to_text

    if columns.time is not None:
        values = label[[columns.time, columns.event]]
        if not all(
            types.is_numeric_dtype(values[c]) or types.is_bool_dtype(values[c]) for c in values.columns
        ):
            raise BadData("regress: time and event must be numbers, and the event 0 or 1.")
        return torch.from_numpy(values.to_numpy(dtype=np.float64).copy()), (), "cox"
    column = label[columns.label]
    numeric = types.is_numeric_dtype(column) and not types.is_bool_dtype(column)
    found = sorted(set(to_text(column)), key=lambda v: (0, float(v), v) if numeric else (1, 0.0, v))
    if family is None:
        numbers = torch.from_numpy(column.to_numpy(dtype=np.float64).copy()) if numeric else None
        family = _guess(numbers) if numbers is not None and len(found) > 2 else "binomial"
    if family in ("gaussian", "poisson"):
        if not numeric:
            raise BadData(
                f"regress: the label {columns.label!r} is not a number, as family {family!r} needs."
            )
        return torch.from_numpy(column.to_numpy(dtype=np.float64).copy()), (), family
    if (family == "binomial") != (len(found) == 2):
        wanted = "two values" if family == "binomial" else "more than two values"
        raise BadData(
            f"regress: family {family!r} needs a label with {wanted}; {columns.label!r} has {len(found)}."
        )
    codes = {name: float(k) for k, name in enumerate(found)}
    return torch.tensor([codes[v] for v in to_text(column)], dtype=torch.float64), tuple(found), family


def _from_arrays(parties: Mapping[str, Any], labels: Any, family: str | None) -> RegressRows:
    if not isinstance(labels, Mapping) or len(labels) != 1:
        raise bad(
            "regress",
            "labels",
            type(labels).__name__,
            'the label and its holder, like {"lab": y}; of tables, label="…" names its column',
        )
    ((holder, y),) = labels.items()
    target = _array(f"the label of {holder!r}", y)
    x, designs = {}, {}
    for who, values in parties.items():
        names = tuple(map(str, values.columns)) if hasattr(values, "columns") else None
        matrix = _array(f"the columns of {who!r}", values)
        if matrix.dim() != 2 or len(matrix) != len(target):
            raise BadData(
                f"regress: the columns of {who!r} have shape {tuple(matrix.shape)}, and there are "
                f"{len(target)} "
                "labels. Give (rows, columns), with the same rows in the same order at all parties."
            )
        names = names or tuple(f"x{k}" for k in range(matrix.shape[1]))
        x[who], designs[who] = matrix, Design(names, ((),) * len(names))
    family = family or ("cox" if target.dim() == 2 else _guess(target))
    names = tuple(map(str, range(int(target.max()) + 1))) if family in ("binomial", "multinomial") else ()
    return RegressRows(x, designs, target, holder, family, names)


def _array(what: str, values: Any) -> Tensor:
    try:
        array = (
            values.detach().double()
            if isinstance(values, Tensor)
            else torch.from_numpy(np.array(values, dtype=np.float64))
        )
    except (TypeError, ValueError):
        raise BadData(f"regress: {what} contain non-numeric values.") from None
    if not bool(torch.isfinite(array).all()):
        raise BadData(f"regress: {what} contain NaN or infinite values. Drop these rows.")
    return array


def _guess(y: Tensor) -> str:
    if bool((y != y.round()).any()):
        return "gaussian"
    if float(y.min()) >= 0 and float(y.max()) == 1:
        return "binomial"
    raise bad(
        "regress",
        "family",
        None,
        "'multinomial' for classes, 'poisson' for counts, or 'gaussian' for numbers",
        f"The label has whole numbers from {float(y.min()):g} to {float(y.max()):g}.",
    )
