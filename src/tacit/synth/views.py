"""Real, synthetic and held-out rows seen in one way: as numbers, as cells, and as points whose distances can
be compared.

Everything is scaled by the real table, so that the three are measured with one ruler. Identifiers are left
out: they are made anew and mean nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..errors import BadData
from ..parameters import nearest as similar
from .columns import Column, scalar
from .table import Table

if TYPE_CHECKING:
    from pandas import DataFrame, Series

CELLS = (
    10  # cells of a number where a joint table is needed; SDMetrics' choice, so that figures can be compared
)
MOST_LEVELS = (
    200  # levels of a category that are axes of their own in a distance; the others, rare, share one
)
CHUNK = 2_000_000  # distances held at a time


@dataclass
class View:
    """`x`: numbers, NaN where missing; of a listed column the code of its level, missing being a level of its
    own.
    """

    name: str
    x: np.ndarray
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = len(self.x)


class Views:
    """The tables side by side. `columns[j]` is column j of every `x`; `levels[j]` are its values if it is
    listed.
    """

    def __init__(
        self, real: DataFrame, synthetic: DataFrame, holdout: DataFrame | None, table: Table | None = None
    ):
        self.table = table or Table.infer(real)
        self.columns = self.table.modelled
        frames = {"real": real, "synthetic": synthetic} | (
            {"holdout": holdout} if holdout is not None else {}
        )
        for name, frame in frames.items():
            self._check(name, frame)
        parts = {name: np.empty((len(f), len(self.columns))) for name, f in frames.items()}
        self.levels: dict[int, list] = {}
        for j, column in enumerate(self.columns):
            series = {
                name: frame.iloc[:, [str(c) for c in frame.columns].index(column.name)]
                for name, frame in frames.items()
            }
            if column.is_number:
                for name, s in series.items():
                    parts[name][:, j] = column.numbers_unchecked(s)
            else:
                self.levels[j], codes = _levels(column, series)
                for name, code in codes.items():
                    parts[name][:, j] = code
        self.real, self.synthetic = View("real", parts["real"]), View("synthetic", parts["synthetic"])
        self.holdout = View("holdout", parts["holdout"]) if holdout is not None else None
        self.ends = np.array(
            [_ends(self.real.x[:, j]) if c.is_number else (0.0, 1.0) for j, c in enumerate(self.columns)]
        )

    def _check(self, name: str, frame: DataFrame) -> None:
        import pandas as pd

        if not isinstance(frame, pd.DataFrame):
            raise BadData(f"evaluate: the {name} table is a {type(frame).__name__}. Give a pandas DataFrame.")
        if len(frame) < 2:
            raise BadData(
                f"evaluate: the {name} table has {len(frame)} row{'s' * (len(frame) != 1)}; at least 2 are "
                "needed to compare anything."
            )
        names = [str(c) for c in frame.columns]
        for column in self.columns:
            if column.name not in names:
                raise BadData(
                    f"evaluate: the {name} table has no column {column.name!r}, which the real one has. "
                    f"{similar(column.name, names)}"
                )

    @property
    def numbers(self) -> list[int]:
        return [j for j, c in enumerate(self.columns) if c.is_number]

    @property
    def listed(self) -> list[int]:
        return [j for j, c in enumerate(self.columns) if not c.is_number]

    @property
    def names(self) -> list[str]:
        return [c.name for c in self.columns]

    def at(self, name: str) -> int:
        if name not in self.names:
            raise BadData(
                f"evaluate: there is no column {name!r} to look at. {similar(str(name), self.names)}"
            )
        return self.names.index(name)

    def cells(self, view: View, j: int, bins: int = CELLS) -> tuple[np.ndarray, int]:
        """Codes of a column, and how many there are: levels, or intervals of equal width over the real range,
        one below, one above, one for missing.
        """
        x = view.x[:, j]
        if j in self.levels:
            return x.astype(np.int64), len(self.levels[j])
        real = self.real.x[:, j]
        there = real[~np.isnan(real)]
        edges = np.histogram_bin_edges(there, bins) if len(there) else np.zeros(bins + 1)
        edges[-1] = np.nextafter(
            edges[-1], np.inf
        )  # the largest real value is in the last interval, not beyond it
        return np.where(np.isnan(x), bins + 2, np.digitize(np.nan_to_num(x), edges)), bins + 3

    def joint(self, view: View, columns: tuple[int, ...], bins: int = CELLS) -> np.ndarray:
        """Shares of all combinations of the columns' cells, flat."""
        codes, sizes = zip(*(self.cells(view, j, bins) for j in columns))
        flat = np.ravel_multi_index(codes, sizes)
        return np.bincount(flat, minlength=int(np.prod(sizes))) / view.rows

    def points(self, view: View, columns: list[int] | None = None) -> np.ndarray:
        """Rows as points: a number from 0 to 1 over the real range (without its outer percent), two different
        categories at distance 1.
        """
        parts = []
        for j in range(len(self.columns)) if columns is None else columns:
            x = view.x[:, j]
            if j in self.levels:
                parts.append(self._axes(j, x.astype(np.int64)) * np.sqrt(0.5))
            else:
                low, high = self.ends[j]
                there = np.clip((x - low) / (high - low), -0.5, 1.5)
                parts.append(np.where(np.isnan(x), 0.5, there)[:, None])
                if np.isnan(self.real.x[:, j]).any():
                    parts.append(np.isnan(x)[:, None] * 1.0)
        return np.concatenate(parts, axis=1) if parts else np.zeros((view.rows, 0))

    def _axes(self, j: int, codes: np.ndarray) -> np.ndarray:
        size = len(self.levels[j])
        if size > MOST_LEVELS:
            seen = np.bincount(self.real.x[:, j].astype(np.int64), minlength=size)
            rank = np.empty(size, np.int64)
            rank[np.argsort(-seen, kind="stable")] = np.arange(size)
            codes, size = np.minimum(rank[codes], MOST_LEVELS), MOST_LEVELS + 1
        return np.eye(size)[codes]

    def keys(self, view: View) -> np.ndarray:
        """Each row as bytes, so that equal rows are found without measuring: a copy is a copy in every
        column.
        """
        whole = np.ascontiguousarray(np.where(np.isnan(view.x), np.inf, view.x) + 0.0)
        return whole.view(f"V{whole.shape[1] * 8}").ravel()

    def pairs(self) -> list[tuple[int, int]]:
        return list(itertools.combinations(range(len(self.columns)), 2))


def filled(x: np.ndarray) -> np.ndarray:
    """For trees: a missing value lies below every number, where one split takes it off."""
    low = np.nanmin(x, initial=0.0)
    return np.nan_to_num(x, nan=float(low) - 1e9)


def _levels(column: Column, series: dict[str, Series]) -> tuple[list, dict[str, np.ndarray]]:
    """All values of a listed column in any of the tables; a synthetic one that is new is a level too, and so
    is missing.
    """
    import pandas as pd

    place: dict = {value: i for i, value in enumerate(column.values)}
    codes = {}
    for name, s in series.items():
        found, distinct = pd.factorize(s)
        of = [place.setdefault(scalar(v), len(place)) for v in distinct]
        codes[name] = np.array([*of, -1], np.int64)[found]
    levels: list = list(place)
    if any((c < 0).any() for c in codes.values()):
        codes = {name: np.where(c < 0, len(levels), c) for name, c in codes.items()}
        levels.append(None)
    return levels, codes


def _ends(x: np.ndarray) -> tuple[float, float]:
    there = x[~np.isnan(x)]
    if not len(there):
        return 0.0, 1.0
    low, high = np.quantile(there, [0.01, 0.99])
    if high <= low:
        low, high = float(there.min()), float(there.max())
    return (float(low), float(high)) if high > low else (float(low), float(low) + 1.0)


def nearest(
    query: np.ndarray, base: np.ndarray, k: int = 1, skip_self: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Distances and places of the k nearest rows of `base`, [rows, k]. `skip_self`: query is base, and a row
    is not its own neighbour.

    Squares are compared by one matrix product, and the distances of the chosen few are then computed
    directly, which the product would round.
    """
    k = min(k, len(base) - skip_self)
    if k < 1:
        raise BadData(f"evaluate: {len(base)} rows are too few to have neighbours.")
    quick, half = base.astype(np.float32), (base**2).sum(axis=1).astype(np.float32) / 2
    where = np.empty((len(query), k), np.int64)
    step = max(1, CHUNK // len(base))
    for first in range(0, len(query), step):
        part = query[first : first + step].astype(np.float32)
        score = half - part @ quick.T
        if skip_self:
            score[np.arange(len(part)), np.arange(first, first + len(part))] = np.inf
        if k == 1:
            where[first : first + step, 0] = score.argmin(axis=1)
            continue
        found = np.argpartition(score, k - 1, axis=1)[:, :k] if k < len(base) else np.argsort(score, axis=1)
        where[first : first + step] = np.take_along_axis(
            found, np.argsort(np.take_along_axis(score, found, 1), axis=1, kind="stable"), 1
        )
    far = np.stack([np.sqrt(((query - base[where[:, i]]) ** 2).sum(axis=1)) for i in range(k)], axis=1)
    order = np.argsort(far, axis=1, kind="stable")
    return np.take_along_axis(far, order, 1), np.take_along_axis(where, order, 1)


def nearest_without(views: Views, query: View, base: View) -> Iterator[tuple[int, np.ndarray]]:
    """For each column j the place of the row of `base` that is nearest in all columns but j: squares of all
    columns once, less those of j.
    """
    alone = [
        (views.points(query, [j]).astype(np.float32), views.points(base, [j]).astype(np.float32))
        for j in range(len(views.columns))
    ]
    where = np.empty((len(alone), query.rows), np.int64)
    step = max(1, CHUNK // base.rows)
    for first in range(0, query.rows, step):
        parts = [
            ((a[first : first + step] ** 2).sum(1)[:, None] + (b**2).sum(1))
            - 2 * a[first : first + step] @ b.T
            for a, b in alone
        ]
        total = np.sum(parts, axis=0)
        for j, part in enumerate(parts):
            where[j, first : first + step] = (total - part).argmin(axis=1)
    yield from enumerate(where)
