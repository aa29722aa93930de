"""A party's own columns as cells, found from its own rows alone, and its splits as bytes.

Cells with few rows are merged, so that no sum over all rows is about a few people: numbers by their cuts,
levels of a category (and missing values) with the cell that has most rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..errors import BadData
from ..parameters import nearest
from ..stats.columns import _natural, holds_numbers, is_number, numbers, text_of
from .bins import (
    MOST_CELLS,
    MOST_LEVELS,
    Bins,
    Feature,
    refuse_cells,
    refuse_dates,
    refuse_mixed,
    refuse_moments,
)
from .cut_search import LEVELS, CutSearch, count_keys, count_rounded
from .trees import Split

RECORD = 36  # column (2), cut, whether missing values go left, 256 bits: cells that go left
_IS_SET = 2


@dataclass(frozen=True)
class OwnBins:
    """The bins of one party's columns; `merge` says for each column which cell each cell becomes."""

    bins: Bins
    merge: tuple[tuple[int, ...], ...]

    @classmethod
    def fit(
        cls,
        frame: pd.DataFrame,
        categories: Sequence[str],
        most: int,
        min_rows: int,
        who: str,
        missing_codes: Mapping[str, Sequence[str]] | None = None,
        most_levels: int = MOST_LEVELS,
    ) -> OwnBins:
        """Find cuts by quantiles, and levels, of these rows. `missing_codes` are kept for rows to predict."""
        known = list(map(str, frame.columns))
        for name in categories:
            if name not in known:
                raise BadData(f"the table of {who!r} has no column {name!r}. {nearest(name, known)}")
        features, merge = [], []
        for name in known:
            column, codes = frame[name], tuple((missing_codes or {}).get(name, ()))
            is_numeric = (
                is_number(column) or pd.api.types.is_bool_dtype(column.dtype) or holds_numbers(column)
            )
            if name in categories or not is_numeric:
                refuse_dates(column, who)
                refuse_cells(column, who)
                if name not in categories:
                    refuse_moments(column, who)
                    refuse_mixed(column, who)
                counts = column.dropna().map(text_of).value_counts()
                kept = [str(v) for v, n in counts.items() if n >= min_rows][:most_levels]
                feature = Feature(name, levels=tuple(sorted(kept, key=_natural)), missing=codes)
            else:
                feature = Feature(name, _cuts(numbers(frame, name), most, min_rows), missing=codes)
            cells = np.bincount(feature.encode(frame), minlength=feature.width + 1)
            largest = int(cells.argmax())
            # other levels, if no row has one: rows to predict may, and must not count as the largest level
            free = feature.width - 1 if feature.levels is not None and not cells[feature.width - 1] else -1
            merge.append(
                tuple(k if n >= min_rows or k == free else largest for k, n in enumerate(cells.tolist()))
            )
            features.append(feature)
        return cls(Bins(tuple(features)), tuple(merge))

    def encode(self, frame: pd.DataFrame) -> np.ndarray:
        """Return the cells of all rows: uint8, rows × columns."""
        codes = self.bins.encode(frame)
        for k, table in enumerate(self.merge):
            codes[:, k] = np.asarray(table, dtype=np.uint8)[codes[:, k]]
        return codes

    def to_dict(self) -> dict[str, Any]:
        return {"features": self.bins.to_dict(), "merge": [list(m) for m in self.merge]}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> OwnBins:
        bins = Bins.from_dict(table["features"])
        merge = tuple(tuple(int(v) for v in m) for m in table["merge"])
        sizes = (bins.widths + 1).tolist()
        if len(merge) != len(sizes) or any(
            len(m) != size or not all(0 <= v < size for v in m) for m, size in zip(merge, sizes)
        ):
            raise ValueError("merged cells of other columns")
        return cls(bins, merge)


def _cuts(values: np.ndarray, most: int, min_rows: int) -> tuple[float, ...]:
    """Return the cuts that the sums over parties of `agreement` would find for these rows."""
    search = CutSearch(1, most, max(min_rows, 1), count_rounded([values]).tolist())
    for level in range(LEVELS):
        search.narrow(count_keys([values], level, search.places))
    return search.cuts()[0]


def anonymous(widths: Sequence[int], is_category: Sequence[bool]) -> tuple[Feature, ...]:
    """Return features of which only the number of cells is known (with that of missing values)."""
    return tuple(
        Feature("", levels=tuple(map(str, range(w - 2))))
        if c
        else Feature("", tuple(float(v) for v in range(w - 2)))
        for w, c in zip(widths, is_category)
    )


def to_record(split: Split, column: int) -> bytes:
    """Return a split of a party's column as bytes."""
    cells = np.zeros(MOST_CELLS, dtype=bool)
    if split.left_set is not None:
        cells[: len(split.left_set)] = split.left_set
    flags = int(split.default_left) + (_IS_SET if split.left_set is not None else 0)
    return column.to_bytes(2, "little") + bytes([split.cut, flags]) + np.packbits(cells).tobytes()


@dataclass(frozen=True)
class OwnSplit:
    """A split of one of the party's own columns: which cells go left; the last is that of missing values."""

    column: int
    left: tuple[bool, ...]

    @classmethod
    def read(cls, record: bytes, bins: Bins) -> OwnSplit:
        """Read a record that another party sent; raise BadData if it is not a split of these columns."""
        column, cut, flags = int.from_bytes(record[:2], "little"), record[2], record[3]
        if len(record) != RECORD or column >= len(bins.features) or flags > 3:
            raise BadData("boost: a split is not one of this party's columns.")
        width, is_set = int(bins.widths[column]), bool(flags & _IS_SET)
        if is_set != bool(bins.is_category[column]) or (not is_set and cut >= width):
            raise BadData("boost: a split is not one of its column's cells.")
        cells = np.unpackbits(np.frombuffer(record, np.uint8, offset=4)).astype(bool)[:width]
        left = cells if is_set else np.arange(width) <= cut
        return cls(column, (*left.tolist(), bool(flags & 1)))

    def sides(self, codes: np.ndarray) -> np.ndarray:
        """Return which rows go left."""
        return np.asarray(np.asarray(self.left)[codes[:, self.column]])

    def to_dict(self, bins: Bins) -> dict[str, Any]:
        """Return the split in words: the threshold, or the levels."""
        feature = bins.features[self.column]
        cells: dict[str, Any] = {"column": feature.name, "missing_left": self.left[-1]}
        if feature.levels is not None:
            cells["levels"] = [v for v, left in zip((*feature.levels, None), self.left) if left]
        else:
            below = sum(self.left[:-1])
            cuts = feature.cuts or ()
            cells["below"] = float(cuts[below - 1]) if below <= len(cuts) else None  # None: every value
        return cells

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], bins: Bins) -> OwnSplit:
        column = bins.names.index(str(table["column"]))
        feature = bins.features[column]
        if feature.levels is not None:
            chosen = set(table["levels"])
            left = [v in chosen for v in (*feature.levels, None)]
        elif table["below"] is None:
            left = [True] * feature.width
        else:
            below = float(table["below"])
            if not math.isfinite(below) or below not in (feature.cuts or ()):
                raise ValueError(f"{below} is not a cut of {feature.name!r}")
            place = (feature.cuts or ()).index(below)
            left = [k <= place for k in range(feature.width)]
        return cls(column, (*left, bool(table["missing_left"])))


def to_permuted(record: bytes, order: np.ndarray) -> bytes:
    """Return the record of a split of column k of a shuffled table as one of column order[k]."""
    column = int.from_bytes(record[:2], "little")
    if column >= len(order):
        raise BadData("boost: a split is not one of this party's columns.")
    return int(order[column]).to_bytes(2, "little") + record[2:]
