"""Subgroups of held-out rows that a model is judged on: by the values of a column, or by bands of a number.

    "sex"              one subgroup for each value
    "age: 40, 65"      below 40, 40 to 65 (without 65), 65 or more
    "party"            one for each party (also "site", where no column has that name)

Which subgroups there are is declared before any row is read, so that parties count the same ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData
from ..parameters import bad, nearest

if TYPE_CHECKING:
    from pandas import Series

    from .federation import Federation, Rows

MISSING, OTHER = "missing", "other"
PARTY = "party"
SITE = "site"
MOST_VALUES = 50  # of a column: each takes its own counts
FLAG = ("0", "1", MISSING)  # of a number without bands, where no row can be read to find its values
MUST_BE = 'a list of columns, such as ["sex", "age: 40, 65", "party"]; a number needs the bounds of its bands'


class Declared(NamedTuple):
    """One column of `subgroups`, as it was declared."""

    column: str
    bounds: tuple[float, ...]

    @property
    def values(self) -> tuple[str, ...]:
        """The names of the bands; none for a column of texts."""
        if not self.bounds:
            return ()
        texts = [f"{b:g}" for b in self.bounds]
        between = [f"{a} to {b}" for a, b in itertools.pairwise(texts)]
        return (f"below {texts[0]}", *between, f"{texts[-1]} or more", MISSING)


def read_declared(value: Any, owner: str) -> tuple[str, ...]:
    """Return declared subgroups in canonical form: texts like "sex" and "age: 40, 65"."""
    if value is None:
        return ()
    items: list[Any]
    if isinstance(value, Mapping):
        items = [f"{k}: {', '.join(map(str, v))}" if v else k for k, v in value.items()]
    elif isinstance(value, Sequence) and not isinstance(value, str):
        items = list(value)
    else:
        raise bad(owner, "subgroups", value, MUST_BE)
    declared = []
    for item in items:
        if not isinstance(item, str) or not item.strip():
            raise bad(owner, "subgroups", value, MUST_BE)
        declared.append(parse(item))
    names = [d.column for d in declared]
    if len(set(names)) < len(names):
        raise bad(owner, "subgroups", value, "a list of different columns")
    for d in declared:
        if list(d.bounds) != sorted(set(d.bounds)) or not all(map(math.isfinite, d.bounds)):
            raise bad(owner, "subgroups", value, f"increasing bounds for {d.column!r}")
    return tuple(
        d.column + (f": {', '.join(f'{b:g}' for b in d.bounds)}" if d.bounds else "") for d in declared
    )


def parse(text: str) -> Declared:
    """Read "age: 40, 65"; a text whose end is not a list of numbers is the name of a column."""
    column, colon, rest = text.rpartition(":")
    try:
        bounds = tuple(float(b) for b in rest.split(",")) if colon else ()
    except ValueError:
        bounds = ()
    return Declared(column.strip(), bounds) if bounds else Declared(text.strip(), ())


class Subgroups(NamedTuple):
    """The subgroups of the rows of a federation: `codes[i, j]` is the value of row i in column j."""

    columns: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]  # of each column
    codes: Tensor  # [rows, columns]
    test: Tensor  # [test rows, columns]
    parties: bool = False  # whether each party is a subgroup, too

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(map(len, self.values))

    def select(self, index: Tensor) -> Subgroups:
        """Return those of some of the rows, without the global test set."""
        return self._replace(codes=self.codes[index], test=self.test[:0])

    @classmethod
    def without_rows(
        cls, declared: Sequence[str], categories: Mapping[str, Sequence[str]], numbers: Sequence[str]
    ) -> Subgroups | None:
        """Return the subgroups of a job for real parties, whose columns [data] describes."""
        if not declared:
            return None
        parsed = [parse(text) for text in declared]
        known = [*categories, *numbers]
        parties = [d for d in parsed if d.column in (PARTY, SITE) and d.column not in known]
        columns, values = [], []
        for d in parsed:
            if d in parties:
                continue
            if d.column not in known:
                raise BadData(f"subgroups: [data] has no column {d.column!r}. {nearest(d.column, known)}")
            if d.bounds and d.column not in numbers:
                raise BadData(f"subgroups: {d.column!r} is a column of texts; write its name alone.")
            texts = tuple(map(str, categories.get(d.column, ())))
            extra = tuple(t for t in (OTHER, MISSING) if t not in texts)
            columns.append(d.column)
            values.append(d.values or (FLAG if d.column in numbers else (*texts, *extra)))
        none = torch.zeros(0, len(columns), dtype=torch.int64)
        return cls(tuple(columns), tuple(values), none, none, bool(parties))

    def encode(self, declared: Sequence[str], frame: Mapping[str, Series], rows: int) -> Tensor:
        """Return the codes [rows, columns] of a table, whose columns have these values."""
        parsed = {d.column: d for d in map(parse, declared)}
        columns = [
            encode_column(frame[name].to_numpy(dtype=object), parsed[name], values)
            for name, values in zip(self.columns, self.values)
        ]
        shape = (rows, len(columns))
        return torch.from_numpy(np.stack(columns, 1) if columns else np.zeros(shape, dtype=np.int64))


def is_missing(values: np.ndarray) -> np.ndarray:
    """Whether each value is absent: None, NaN or an empty text."""
    absent = [v is None or v != v or str(v).strip() in ("", "nan", "None", "<NA>") for v in values]
    return np.array(absent, dtype=bool)


def encode_column(values: np.ndarray, declared: Declared, names: Sequence[str]) -> np.ndarray:
    """Return the position of each value in `names`; unknown texts are `other`."""
    absent = is_missing(values)
    if declared.bounds:
        numbers = np.full(len(values), np.nan)
        for i in np.flatnonzero(~absent):
            try:
                numbers[i] = float(values[i])
            except (TypeError, ValueError):
                raise BadData(
                    f"subgroups: {declared.column!r} has a value that is not a number, so it has no bands. "
                    f'Declare it without bounds: "{declared.column}".'
                ) from None
        codes = np.searchsorted(np.array(declared.bounds), numbers, side="right")
    else:
        place = {name: i for i, name in enumerate(names)}
        rest = place.get(OTHER, -1)
        codes = np.array([place.get(_text(v), rest) for v in values], dtype=np.int64)
        if tuple(names) == FLAG and (codes[~absent] < 0).any():
            raise BadData(
                f"subgroups: {declared.column!r} is a number with other values than 0 and 1; write its "
                f'bands, like "{declared.column}: 40, 65".'
            )
    codes[absent] = list(names).index(MISSING) if MISSING in names else -1
    return codes.astype(np.int64)


def _text(value: Any) -> str:
    """A whole number is written without decimals, as in a table that has no missing cell."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def attach(fed: Federation, declared: Sequence[str]) -> Federation:
    """Return the federation with its rows' subgroups; BadData if it has no such columns."""
    from dataclasses import replace

    if not declared:
        return fed
    columns, values, codes, tests, parties = [], [], [], [], False
    for d in map(parse, declared):
        raw = _column(fed, d.column)
        if raw is None:
            if d.column in (PARTY, SITE) and not d.bounds:
                if len(fed.test.y) and (raw := _party_column(fed)) is not None:
                    names = _names(d.column, np.concatenate(raw))
                    columns.append(PARTY)
                    values.append(names)
                    codes.append(encode_column(raw[0], d, names))
                    tests.append(encode_column(raw[1], d, names))
                    continue
                parties = True
                continue
            raise BadData(_unknown(fed, d.column))
        rows, test = raw
        names = d.values or _names(d.column, np.concatenate([rows, test]))
        columns.append(d.column)
        values.append(names)
        codes.append(encode_column(rows, d, names))
        tests.append(encode_column(test, d, names))
    if parties and len(fed.test.y):
        raise BadData(
            f"subgroups: the metrics are those of the test set of {fed.name}, whose rows have no party. "
            "Leave out 'party', or split data without a test set."
        )

    def stack(parts: list[np.ndarray], rows: Rows) -> Tensor:
        shape = (len(rows.y), len(parts))
        return torch.from_numpy(np.stack(parts, 1) if parts else np.zeros(shape, dtype=np.int64))

    return replace(
        fed,
        subgroups=Subgroups(
            tuple(columns), tuple(values), stack(codes, fed.rows), stack(tests, fed.test), parties
        ),
    )


def _column(fed: Federation, name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return a column's values at the rows, and at the test rows; None if there is no such column."""
    if fed.source is None:
        return None
    try:
        rows = fed.source.column(name)
    except BadData:
        return None
    if rows is None or len(rows) != len(fed.rows.y):
        return None
    test = fed.source.column(name, test=True) if len(fed.test.y) else np.array([], dtype=object)
    if test is None:
        raise BadData(
            f"subgroups: the test set of {fed.name} has no column {name!r}, and the metrics are those of the "
            "test set."
        )
    return rows.astype(object), test.astype(object)


def _party_column(fed: Federation) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the column that says which party a row is from, if test rows have it, too."""
    from .skews import ByColumn

    return _column(fed, fed.skew.column) if isinstance(fed.skew, ByColumn) else None


def _unknown(fed: Federation, name: str) -> str:
    if fed.source is None or (fed.source.table is None and not fed.source.groups):
        return (
            f"subgroups: the rows of {fed.name} have no column {name!r}: they were not made from a table. "
            "Use data.from_csv or data.from_frame, or 'party'."
        )
    table = fed.source.table
    known = [*fed.source.groups, *([] if table is None else map(str, table.frame.columns)), PARTY]
    return f"subgroups: {fed.name} has no column {name!r}. {nearest(name, known)}"


def _names(column: str, values: np.ndarray) -> tuple[str, ...]:
    absent = is_missing(values)
    found = sorted({_text(v) for v in values[~absent]})
    if len(found) > MOST_VALUES:
        raise BadData(
            f"subgroups: {column!r} has {len(found)} different values; at most {MOST_VALUES} subgroups are "
            f'counted. If it is a number, give the bounds of its bands, like "{column}: 40, 65".'
        )
    return (*found, *([MISSING] if MISSING not in found else []))
