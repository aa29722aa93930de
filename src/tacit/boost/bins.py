"""Bins: how the columns of a table become small integers, the same at every party.

A number's cell is the number of cuts that are not above it, so that `x < cuts[j]` is "its cell is at most j"
(numbers are compared as float32, as XGBoost does). A category's cell is the place of its level; other levels
share the cell after the last. The last cell of every feature is that of missing values.

    number      0 … len(cuts)              | missing
    category    0 … len(levels)-1 | other  | missing

A node's histogram is one row of all cells of all features; `offsets` says where a feature's begin.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ..data.cells import kind_of_moment, without_codes
from ..errors import BadData
from ..parameters import nearest
from ..stats.columns import holds_numbers, is_number, numbers, text_of

MOST_CELLS = 256  # of a feature, the missing one included: a cell is one byte
MOST_CUTS = MOST_CELLS - 2
MOST_LEVELS = MOST_CELLS - 2


def refuse_dates(column: pd.Series, who: str) -> None:
    """Raise BadData if a column contains dates or durations: as levels, they would be single values."""
    if column.dtype.kind in "mM" or isinstance(column.dtype, pd.DatetimeTZDtype | pd.PeriodDtype):
        raise BadData(
            f"the table of {who!r}: column {column.name!r} contains dates. Convert it to a number, like days "
            "since a date, or leave it out.",
            outside=f"its column {column.name!r} of the agreed job contains dates",
        )


def refuse_moments(column: pd.Series, who: str) -> None:
    """Raise BadData if all cells of a column that nobody declared are dates or times written as text."""
    if is_number(column) or pd.api.types.is_bool_dtype(column.dtype):
        return
    known = column.dropna()
    if kind_of_moment(known.iloc[:1]) is None:  # most columns, at once
        return
    moment = kind_of_moment(pd.Series(known.unique()))
    if moment is not None:
        raise BadData(
            f"the table of {who!r}: column {column.name!r} contains {moment}s, like {str(known.iloc[0])!r}: "
            "dates or times, not categories. Convert it to a number, like days since a date, or leave it "
            f"out; if it is a category, declare all: categories=[{column.name!r}, …].",
            outside=f"its column {column.name!r} of the agreed job contains {moment}s",
        )


def refuse_cells(column: pd.Series, who: str) -> None:
    """Raise BadData if cells of a column are lists or the like, which have no text as a level."""
    if column.dtype == object:
        odd = [v for v in column.to_numpy() if isinstance(v, list | tuple | dict | set | np.ndarray)]
        if odd:
            kind = type(odd[0]).__name__
            raise BadData(
                f"the table of {who!r}: column {column.name!r} contains {kind} objects. Split it into "
                "columns of numbers or text, or leave it out.",
                outside=f"its column {column.name!r} of the agreed job contains neither numbers nor text",
            )


def refuse_mixed(column: pd.Series, who: str) -> None:
    """Raise BadData if words stand among numbers: as a category, every number would be a level."""
    if is_number(column) or pd.api.types.is_bool_dtype(column.dtype) or column.dtype == "category":
        return
    if holds_numbers(column):
        return
    codes, values = pd.factorize(column)  # a category has few values, and reading a text takes a microsecond
    read = pd.to_numeric(pd.Series(values), errors="coerce").to_numpy(float, na_value=np.nan)
    is_word = np.isnan(read)
    if is_word.all() or not is_word.any():
        return
    counts = np.bincount(codes[codes >= 0], minlength=len(values))  # the code of a missing value is −1
    if 2 * int(counts[is_word].sum()) < len(codes[codes >= 0]):
        raise BadData(
            f"the table of {who!r}: column {column.name!r} contains {values[is_word][0]!r} among numbers. "
            "Replace such cells by missing values; if it is a category, declare all: "
            f"categories=[{column.name!r}, …].",
            outside=f"its column {column.name!r} of the agreed job has words among numbers",
        )


@dataclass(frozen=True)
class Feature:
    """One column: a number with its cuts (float32, ascending), or a category with its levels."""

    name: str
    cuts: tuple[float, ...] | None = None
    levels: tuple[str, ...] | None = None
    missing: tuple[str, ...] = ()  # codes that mean "missing"

    def __post_init__(self) -> None:
        if (self.cuts is None) == (self.levels is None):
            raise BadData(f"feature {self.name!r} needs cuts or levels, and not both.")
        if len(self.cuts or self.levels or ()) > MOST_CUTS:
            kind = "cuts" if self.levels is None else "levels"
            raise BadData(
                f"feature {self.name!r} has {len(self.cuts or self.levels or ())} {kind}; at most "
                f"{MOST_CUTS} are possible. Declare fewer; other levels share a cell."
            )
        if self.cuts is not None:
            cuts = np.asarray(self.cuts, dtype=np.float32)
            if not np.isfinite(cuts).all() or (np.diff(cuts) <= 0).any():
                raise BadData(f"the cuts of {self.name!r} are not ascending float32 numbers.")

    def to_dict(self) -> dict[str, object]:
        """Return the cuts or levels, and the codes of missing values, as plain values."""
        codes = {"missing": list(self.missing)} if self.missing else {}
        if self.levels is not None:
            return {"levels": list(self.levels), **codes}
        return {"cuts": list(self.cuts or ()), **codes}

    @property
    def is_category(self) -> bool:
        return self.levels is not None

    @property
    def width(self) -> int:
        """The number of cells without that of missing values."""
        return len(self.levels) + 1 if self.levels is not None else len(self.cuts or ()) + 1

    def values(self, frame: pd.DataFrame) -> np.ndarray:
        """Return the numbers of a column, NaN where they are missing."""
        if self.missing:
            frame = without_codes(frame[self.name], self.missing).to_frame(self.name)
        return numbers(frame, self.name)

    def _places(self, frame: pd.DataFrame) -> np.ndarray:
        """Return the place of each row's level; other levels and missing values come after the last."""
        assert self.levels is not None
        place = {level: k for k, level in enumerate(self.levels)}
        codes, values = pd.factorize(without_codes(frame[self.name], self.missing))
        places = [place.get(text_of(v), len(self.levels)) for v in values]
        return np.asarray(np.array([*places, self.width])[codes])  # the code of a missing value is −1

    def encode(self, frame: pd.DataFrame) -> np.ndarray:
        """Return the cell of each row (uint8)."""
        if self.levels is not None:
            return self._places(frame).astype(np.uint8)
        with np.errstate(over="ignore"):
            values = self.values(frame).astype(np.float32)
        cuts = np.asarray(self.cuts, dtype=np.float32)
        cells = np.searchsorted(cuts, values, side="right")
        return np.where(np.isnan(values), self.width, cells).astype(np.uint8)


@dataclass(frozen=True)
class Bins:
    """The features of a model, in order."""

    features: tuple[Feature, ...]

    @cached_property
    def names(self) -> list[str]:
        return [f.name for f in self.features]

    @cached_property
    def widths(self) -> np.ndarray:
        return np.array([f.width for f in self.features], dtype=np.int64)

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where the cells of each feature begin in a histogram."""
        return np.concatenate([[0], np.cumsum(self.widths + 1)[:-1]]).astype(np.int64)

    @cached_property
    def places(self) -> np.ndarray:
        """The numbers of all features."""
        return np.arange(len(self.features))

    @cached_property
    def cells(self) -> int:
        """The length of one node's histogram."""
        return int((self.widths + 1).sum())

    @cached_property
    def is_category(self) -> np.ndarray:
        return np.array([f.is_category for f in self.features], dtype=bool)

    def encode(self, frame: pd.DataFrame) -> np.ndarray:
        """Return the cells of all rows: uint8, rows × features."""
        self._check(frame)
        out = np.empty((len(frame), len(self.features)), dtype=np.uint8)
        for k, feature in enumerate(self.features):
            out[:, k] = feature.encode(frame)
        return out

    def _check(self, frame: pd.DataFrame) -> None:
        """Raise BadData that names all columns of the model that the table does not have."""
        missing = [name for name in self.names if name not in frame.columns]
        if not missing:
            return
        names, several = ", ".join(map(repr, missing)), len(missing) > 1
        others = [str(c) for c in frame.columns if c not in self.names]
        advice = "" if several or not others else nearest(missing[0], others)
        if any(not isinstance(c, str) and str(c) in missing for c in frame.columns):
            advice = "Names of columns must be text: frame.rename(columns=str)."
        raise BadData(
            f"the table has no column{'s' * several} {names}; the model needs {'them' if several else 'it'}. "
            f"{advice}".strip(),
            outside=f"its table has no column {names} of the agreed job",
        )

    def to_matrix(self, frame: pd.DataFrame) -> np.ndarray:
        """Return the rows as XGBoost takes them: numbers as they are, categories as codes, NaN if missing."""
        self._check(frame)
        out = np.empty((len(frame), len(self.features)), dtype=np.float32)
        for k, feature in enumerate(self.features):
            if feature.levels is None:
                with np.errstate(over="ignore"):
                    out[:, k] = feature.values(frame).astype(np.float32)
            else:
                codes = feature._places(frame)
                out[:, k] = np.where(codes == feature.width, np.nan, codes)
        return out

    def to_bytes(self) -> bytes:
        return json.dumps(self.to_dict(), ensure_ascii=False).encode()

    def to_dict(self) -> list[dict[str, object]]:
        return [{"name": f.name, **f.to_dict()} for f in self.features]

    @classmethod
    def from_dict(cls, entries: Sequence[Mapping[str, object]]) -> Bins:
        """Return the bins of plain values; raise BadData for anything else."""
        try:
            return cls(tuple(feature_from_dict(entry) for entry in entries))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadData(f"these are not the bins of a model: {error}.") from None

    @classmethod
    def from_bytes(cls, data: bytes) -> Bins:
        try:
            entries = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise BadData(f"these are not the bins of a model: {error}.") from None
        if not isinstance(entries, list):
            raise BadData("these are not the bins of a model.")
        return cls.from_dict(entries)


def feature_from_dict(entry: Mapping[str, Any]) -> Feature:
    """Return the feature of plain values (`Feature.to_dict`, and its name)."""
    name, codes = str(entry["name"]), tuple(map(str, entry.get("missing", ())))
    if "levels" in entry:
        return Feature(name, levels=tuple(map(str, entry["levels"])), missing=codes)
    return Feature(name, tuple(float(np.float32(float(v))) for v in entry["cuts"]), missing=codes)
