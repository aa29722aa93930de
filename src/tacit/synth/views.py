"""Real, synthetic and held-out rows in common encodings: numbers, cells, and points.

Everything is scaled by the real table. Identifiers are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..errors import BadData
from .columns import Column, check_known, map_values, scalar
from .constraints import row_keys
from .table import Table

CELLS = 10  # bins of a number in a joint table, as in SDMetrics
MAX_LEVELS = 200  # levels with an axis of their own in distances; rarer ones share one
CHUNK = 2_000_000  # distances in memory at a time


@dataclass
class View:
    """One table's rows. `x` contains numbers, NaN where missing.

    A discrete column is coded by level; missing is a level of its own. `person` numbers the people of the
    rows from 0, if people have several.
    """

    name: str
    x: np.ndarray
    person: np.ndarray | None = None

    @property
    def rows(self) -> int:
        return len(self.x)

    def subsample(self, rng: np.random.Generator, most: int) -> View:
        """Return at most `most` rows, in random order."""
        return View(self.name, self.x[rng.permutation(self.rows)[:most]])


class Views:
    """The tables of an evaluation in one encoding.

    `columns[j]` is column j of every `x`; `levels[j]` are its values if it is discrete.
    """

    def __init__(
        self,
        real: pd.DataFrame,
        synthetic: pd.DataFrame,
        holdout: pd.DataFrame | None,
        table: Table | None = None,
    ):
        self.table = table or Table.infer(real)
        self.columns = self.table.modeled
        frames = {"real": real, "synthetic": synthetic} | (
            {"holdout": holdout} if holdout is not None else {}
        )
        for name, frame in frames.items():
            self._check(name, frame)
        parts = {name: np.empty((len(f), len(self.columns))) for name, f in frames.items()}
        self.levels: dict[int, list[Any]] = {}
        for j, column in enumerate(self.columns):
            series = {
                name: frame.iloc[:, [str(c) for c in frame.columns].index(column.name)]
                for name, frame in frames.items()
            }
            if column.is_number:
                numbers = {name: column.to_numbers_unchecked(s) for name, s in series.items()}
            else:
                self.levels[j], numbers = _levels(column, series)
            for name, x in numbers.items():
                parts[name][:, j] = x
        self.real, self.synthetic = View("real", parts["real"]), View("synthetic", parts["synthetic"])
        self.holdout = View("holdout", parts["holdout"]) if holdout is not None else None
        self.ends = np.array(
            [_ends(self.real.x[:, j]) if c.is_number else (0.0, 1.0) for j, c in enumerate(self.columns)]
        )

    def _check(self, name: str, frame: pd.DataFrame) -> None:
        if not isinstance(frame, pd.DataFrame):
            raise BadData(
                f"evaluate: the {name} table is a {type(frame).__name__}; expected a pandas DataFrame."
            )
        if len(frame) < 2:
            raise BadData(
                f"evaluate: the {name} table has {len(frame)} row{'s' * (len(frame) != 1)}; at least 2 are "
                "needed."
            )
        check_known(
            self.names,
            list(map(str, frame.columns)),
            f"evaluate: the {name} table has no column",
            ", which the real one has",
        )

    @property
    def numbers(self) -> list[int]:
        return [j for j, c in enumerate(self.columns) if c.is_number]

    @property
    def names(self) -> list[str]:
        return [c.name for c in self.columns]

    def column_index(self, name: str) -> int:
        """Return the index of a column."""
        check_known([name], self.names, "evaluate: there is no column")
        return self.names.index(name)

    def cells(self, view: View, j: int, bins: int = CELLS) -> tuple[np.ndarray, int]:
        """Return the codes of a column and their number.

        Levels, or bins of equal width over the real range, with one below, one above and one for missing.
        """
        x = view.x[:, j]
        if j in self.levels:
            return x.astype(np.int64), len(self.levels[j])
        real = self.real.x[:, j]
        present = real[~np.isnan(real)]
        edges = np.histogram_bin_edges(present, bins) if len(present) else np.zeros(bins + 1)
        edges[-1] = np.nextafter(edges[-1], np.inf)  # the last bin includes the largest real value
        return np.where(np.isnan(x), bins + 2, np.digitize(np.nan_to_num(x), edges)), bins + 3

    def joint(self, view: View, columns: tuple[int, ...], bins: int = CELLS) -> np.ndarray:
        """Return the shares of all combinations of the columns' cells, flattened."""
        codes, sizes = zip(*(self.cells(view, j, bins) for j in columns))
        return np.bincount(np.ravel_multi_index(codes, sizes), minlength=int(np.prod(sizes))) / view.rows

    def points(self, view: View, columns: list[int] | None = None) -> np.ndarray:
        """Return rows as points in a Euclidean space.

        A number is scaled to 0 … 1 over the real range (without its outer percent); two different categories
        have distance 1.
        """
        parts = []
        for j in range(len(self.columns)) if columns is None else columns:
            x = view.x[:, j]
            if j in self.levels:
                parts.append(self._axes(j, x.astype(np.int64)) * np.sqrt(0.5))
            else:
                low, high = self.ends[j]
                present = np.clip((x - low) / (high - low), -0.5, 1.5)
                parts.append(np.where(np.isnan(x), 0.5, present)[:, None])
                if np.isnan(self.real.x[:, j]).any():
                    parts.append(np.isnan(x)[:, None] * 1.0)
        return np.concatenate(parts, axis=1) if parts else np.zeros((view.rows, 0))

    def _axes(self, j: int, codes: np.ndarray) -> np.ndarray:
        size = len(self.levels[j])
        if size > MAX_LEVELS:
            counts = np.bincount(self.real.x[:, j].astype(np.int64), minlength=size)
            rank = np.empty(size, np.int64)
            rank[np.argsort(-counts, kind="stable")] = np.arange(size)
            codes, size = np.minimum(rank[codes], MAX_LEVELS), MAX_LEVELS + 1
        return np.asarray(np.eye(size)[codes])

    def keys(self, view: View) -> np.ndarray:
        """Return each row as bytes, so that exact copies can be found."""
        return row_keys(np.where(np.isnan(view.x), np.inf, view.x))

    def pairs(self) -> list[tuple[int, int]]:
        """Return all pairs of columns."""
        return list(itertools.combinations(range(len(self.columns)), 2))


def fill_missing(x: np.ndarray) -> np.ndarray:
    """Replace NaN by a value far below all numbers, for decision trees."""
    return np.asarray(np.nan_to_num(x, nan=float(np.nanmin(x, initial=0.0)) - 1e9))


def _levels(column: Column, series: dict[str, pd.Series]) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Return all values of a discrete column in any table, and the codes of each table.

    A value that only occurs in the synthetic table is a level too, and so is missing.
    """
    index: dict[Any, int] = {value: i for i, value in enumerate(column.values)}
    codes = {
        name: map_values(s, lambda v: index.setdefault(scalar(v), len(index))) for name, s in series.items()
    }
    levels: list[Any] = list(index)
    if any((c < 0).any() for c in codes.values()):
        codes = {name: np.where(c < 0, len(levels), c) for name, c in codes.items()}
        levels.append(None)
    return levels, codes


def _ends(x: np.ndarray) -> tuple[float, float]:
    """Return the 1% and 99% quantiles, or the range if they are equal."""
    present = x[~np.isnan(x)]
    if not len(present):
        return 0.0, 1.0
    low, high = np.quantile(present, [0.01, 0.99])
    if high <= low:
        low, high = float(present.min()), float(present.max())
    return (float(low), float(high)) if high > low else (float(low), float(low) + 1.0)


def nearest_rows(
    query: np.ndarray, base: np.ndarray, k: int = 1, skip_self: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return distances and indices of the k nearest rows of `base`, [rows, k].

    `skip_self`: query is base, and a row is not its own neighbor. Candidates are found by one float32 matrix
    product; their distances are then computed directly, without its rounding.
    """
    k = min(k, len(base) - skip_self)
    if k < 1:
        raise BadData(f"evaluate: {len(base)} rows are too few for a nearest neighbor. Give more rows.")
    base32, half = base.astype(np.float32), (base**2).sum(axis=1).astype(np.float32) / 2
    where = np.empty((len(query), k), np.int64)
    step = max(1, CHUNK // len(base))
    for first in range(0, len(query), step):
        part = query[first : first + step].astype(np.float32)
        score = half - part @ base32.T
        if skip_self:
            score[np.arange(len(part)), np.arange(first, first + len(part))] = np.inf
        if k == 1:
            where[first : first + step, 0] = score.argmin(axis=1)
            continue
        best = np.argpartition(score, k - 1, axis=1)[:, :k] if k < len(base) else np.argsort(score, axis=1)
        where[first : first + step] = np.take_along_axis(
            best, np.argsort(np.take_along_axis(score, best, 1), axis=1, kind="stable"), 1
        )
    distance = np.stack([np.sqrt(((query - base[where[:, i]]) ** 2).sum(axis=1)) for i in range(k)], axis=1)
    order = np.argsort(distance, axis=1, kind="stable")
    return np.take_along_axis(distance, order, 1), np.take_along_axis(where, order, 1)


def nearest_rows_without(views: Views, query: View, base: View) -> Iterator[tuple[int, np.ndarray]]:
    """Yield, for each column j, the nearest rows of `base` in all columns except j.

    Squared distances of all columns are computed once, and those of j subtracted.
    """
    columns = [
        (views.points(query, [j]).astype(np.float32), views.points(base, [j]).astype(np.float32))
        for j in range(len(views.columns))
    ]
    where = np.empty((len(columns), query.rows), np.int64)
    step = max(1, CHUNK // base.rows)
    for first in range(0, query.rows, step):
        parts = [
            ((a[first : first + step] ** 2).sum(1)[:, None] + (b**2).sum(1))
            - 2 * a[first : first + step] @ b.T
            for a, b in columns
        ]
        total = np.sum(parts, axis=0)
        for j, part in enumerate(parts):
            where[j, first : first + step] = (total - part).argmin(axis=1)
    yield from enumerate(where)
