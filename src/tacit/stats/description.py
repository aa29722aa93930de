"""Counts, moments and order statistics of columns, by group: the sums behind `tacit.stats.describe`.

    step 1   rows by cell; numbers present and their sums; levels, others and missing values of categories
    step 2   squares about the means of step 1; counts by the first bits (ordered.py)
    step 3f  counts by the next bits, in the cells that hold the quantiles

A cell is a level of the column `by`, or the rows in no declared level. All rows together are the sum of the
cells. Nothing is opened but these sums over all parties.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch

from ..crypto import exact
from ..errors import ProtocolError
from ..protocols.sum_steps import Down
from . import ordered
from .columns import codes, matrix
from .tables import check_columns

ALL = "all"


@dataclass(frozen=True)
class ColumnMoments:
    """A numeric column in one group: n, mean, standard deviation, and quantiles as (low, value, high)."""

    n: int
    missing: int
    mean: float
    sd: float
    quantiles: dict[float, tuple[float, float, float]] = field(default_factory=dict)
    interval: tuple[float, float] | None = None  # of the mean, where noise is in it


@dataclass(frozen=True)
class Descriptions:
    """What the sums say. Groups are the levels of `by`, then "all"."""

    rows: dict[str, int]
    numbers: dict[str, dict[str, ColumnMoments]]  # column, group
    categories: dict[str, dict[str, np.ndarray]]  # column, group: counts of the levels, others, missing


@dataclass(frozen=True)
class DescribeProgram:
    """The program of sums. `categories` are (name, levels); `by` is one of those, or None."""

    numeric: tuple[str, ...] = ()
    categories: tuple[tuple[str, tuple[str, ...]], ...] = ()
    by: tuple[str, tuple[str, ...]] | None = None
    quantiles: tuple[float, ...] = (0.25, 0.5, 0.75)
    bound: int = exact.BOUND

    @property
    def max_steps(self) -> int:
        return 1 if not self.numeric else 2 if not self.quantiles else 1 + len(ordered.BITS)

    @property
    def cells(self) -> int:
        """Groups and, if there are groups, the rows in none of them."""
        return 1 if self.by is None else len(self.by[1]) + 1

    @property
    def groups(self) -> tuple[str, ...]:
        return (ALL,) if self.by is None else (*self.by[1], ALL)

    @property
    def columns(self) -> list[str]:
        return [*self.numeric, *(name for name, _ in self.categories), *([self.by[0]] if self.by else [])]

    def length(self, step: int, down: Down) -> int:
        p = len(self.numeric)
        if step == 0:
            levels = sum(len(names) + 2 for _, names in self.categories)
            return self.cells * (1 + p * (1 + exact.LIMBS) + levels)
        if step == 1:
            histograms = self.cells * p * ordered.FIRST if self.quantiles else 0
            return (self.cells + 1) * p * exact.LIMBS + histograms
        return len(down["prefix"]) * ordered.NEXT

    # --- a party --------------------------------------------------------------------------------------------

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        check_columns(table, self.columns, "this party")
        cell = self._cell(table)
        if step == 0:
            return self._count(table, cell)
        if step == 1:
            return self._square(table, cell, down)
        return self._refine(step, table, cell, down)

    def _cell(self, table: pd.DataFrame) -> np.ndarray:
        if self.by is None:
            return np.zeros(len(table), np.int64)
        cell: np.ndarray = np.minimum(codes(table, *self.by), self.cells - 1)
        return cell

    def _count(self, table: pd.DataFrame, cell: np.ndarray) -> np.ndarray:
        x = matrix(table, self.numeric)
        present = ~np.isnan(x)
        counts = np.stack([present[:, cell == k].sum(1) for k in range(self.cells)], 1)
        sums = exact.encode(self._sum_cells(np.where(present, x, 0.0), cell).reshape(-1))
        parts = [np.bincount(cell, minlength=self.cells), counts.reshape(-1), sums]
        for name, levels in self.categories:
            width = len(levels) + 2
            parts.append(np.bincount(cell * width + codes(table, name, levels), minlength=self.cells * width))
        return np.concatenate(parts)

    def _sum_cells(self, values: np.ndarray, cell: np.ndarray) -> np.ndarray:
        """Sums by column and cell, correctly rounded in any order of rows."""
        if self.cells == 1:
            return sum_rows(values)[:, None]
        return np.stack([sum_rows(values[:, cell == k]) for k in range(self.cells)], 1)

    def _square(self, table: pd.DataFrame, cell: np.ndarray, down: Down) -> np.ndarray:
        mean = _check_means(down, self.cells + 1, len(self.numeric))
        x = matrix(table, self.numeric)
        present = ~np.isnan(x)
        squares = [
            self._sum_cells(np.where(present, x - mean[cell].T, 0.0) ** 2, cell),
            sum_rows(np.where(present, x - mean[-1][:, None], 0.0) ** 2)[:, None],
        ]
        parts = [exact.encode(np.concatenate(squares, 1).reshape(-1))]
        if self.quantiles:
            keys = ordered.keys(x)
            parts += [
                ordered.count_first(keys[j, present[j] & (cell == k)])
                for j in range(len(x))
                for k in range(self.cells)
            ]
        return np.concatenate(parts)

    def _refine(self, step: int, table: pd.DataFrame, cell: np.ndarray, down: Down) -> np.ndarray:
        columns, groups, prefixes = (down[k].to(torch.int64).tolist() for k in ("column", "group", "prefix"))
        most = len(self.groups) * len(self.numeric) * 2 * len(self.quantiles)
        room = 1 << sum(ordered.BITS[: step - 1])
        if (
            not len(columns) == len(groups) == len(prefixes) <= most
            or len(set(zip(columns, groups, prefixes))) < len(prefixes)
            or not all(0 <= p < room for p in prefixes)
            or not all(0 <= j < len(self.numeric) for j in columns)
            or not all(0 <= g < len(self.groups) for g in groups)
        ):
            raise ProtocolError(
                "the coordinator asks for cells that no search for the agreed quantiles needs. Nothing was "
                "sent."
            )
        known: dict[tuple[int, int], np.ndarray] = {}
        parts, x = [], matrix(table, self.numeric)
        for j, g, prefix in zip(columns, groups, prefixes):
            if (j, g) not in known:
                rows = ~np.isnan(x[j]) & ((cell == g) | (self.groups[g] == ALL))
                known[j, g] = np.sort(ordered.keys(x[j, rows]))
            parts.append(ordered.count_next(known[j, g], prefix, step - 1))
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def row_sets(self, table: pd.DataFrame) -> dict[str, np.ndarray]:
        """All rows, and those of each group: what a party's history of queries compares."""
        cell = self._cell(table)
        groups = {} if self.by is None else {f"{self.by[0]}={v}": cell == g for g, v in enumerate(self.by[1])}
        return {"all rows": np.ones(len(table), bool), **groups}

    def summed_values(self, table: pd.DataFrame) -> list[np.ndarray]:
        """The numbers in each sum: of a column, in a cell."""
        check_columns(table, self.columns, "this party")
        x, cell = matrix(table, self.numeric), self._cell(table)
        return [row[(cell == k) & ~np.isnan(row)] for row in x for k in range(self.cells)]

    # --- the coordinator ------------------------------------------------------------------------------------

    def coordinate(self) -> Generator[Down, np.ndarray, Descriptions]:
        total, at = (yield {}), 0

        def take(n: int) -> np.ndarray:
            nonlocal at
            at += n
            return total[at - n : at]

        cells, p = self.cells, len(self.numeric)
        rows = self._with_all(take(cells))
        n, mean = np.zeros((len(self.groups), p), np.int64), np.zeros((cells + 1, p))
        counts_of = take(p * cells).reshape(p, cells)
        sums_of = take(p * cells * exact.LIMBS).reshape(p, cells, exact.LIMBS)
        for j, (counts, sums) in enumerate(zip(counts_of, sums_of)):
            n[:, j] = self._with_all(counts)
            every = exact.decode(np.concatenate([sums.reshape(-1), sums.sum(0)]))
            mean[:, j] = every / np.maximum(np.append(counts, counts.sum()), 1)
        tables = {}
        for name, levels in self.categories:
            counts = take(cells * (len(levels) + 2)).reshape(cells, -1)
            tables[name] = dict(zip(self.groups, self._with_all(counts)))
        if not p:
            return Descriptions(dict(zip(self.groups, rows.tolist())), {}, tables)

        total, at = (yield {"mean": torch.from_numpy(mean)}), 0
        squares = exact.decode(take(p * (cells + 1) * exact.LIMBS)).reshape(p, cells + 1).T
        found: dict[tuple[int, int, int], tuple[int, int]] = {}  # (column, group, rank): prefix, rank in it
        if self.quantiles:
            for j in range(p):
                counts = self._with_all(take(cells * ordered.FIRST).reshape(cells, -1))
                for g in range(len(self.groups)):
                    for rank in self._ranks(int(n[g, j])):
                        found[j, g, rank] = ordered.descend(counts[g], rank)
            for _ in ordered.BITS[1:] if found else ():
                targets = sorted({(j, g, prefix) for (j, g, _), (prefix, _) in found.items()})
                columns = torch.tensor(targets, dtype=torch.int64).reshape(-1, 3)
                total = yield {k: columns[:, i].clone() for i, k in enumerate(("column", "group", "prefix"))}
                place = {target: i for i, target in enumerate(targets)}
                for (j, g, rank), (prefix, within) in found.items():
                    counts = total.reshape(-1, ordered.NEXT)[place[j, g, prefix]]
                    cell, rest = ordered.descend(counts, within)
                    found[j, g, rank] = prefix * ordered.NEXT + cell, rest
        which = [*range(len(self.groups) - 1), cells] if self.by else [cells]  # cells + 1: all rows
        moments = {
            name: {
                group: self._moments(
                    int(n[g, j]), int(rows[g]), mean[which[g], j], squares[which[g], j], found, j, g
                )
                for g, group in enumerate(self.groups)
            }
            for j, name in enumerate(self.numeric)
        }
        return Descriptions(dict(zip(self.groups, rows.tolist())), moments, tables)

    def _with_all(self, counts: np.ndarray) -> np.ndarray:
        """Counts by cell as counts by group, with all rows at the end."""
        groups = counts[:0] if self.by is None else counts[:-1]
        return np.concatenate([groups, counts.sum(0, keepdims=True)])

    def _ranks(self, n: int) -> list[int]:
        return sorted({r for q in self.quantiles for r in _neighbors(q, n)}) if n else []

    def _moments(
        self,
        n: int,
        rows: int,
        mean: float,
        squares: float,
        found: dict[tuple[int, int, int], tuple[int, int]],
        j: int,
        g: int,
    ) -> ColumnMoments:
        quantiles = {}
        for q in self.quantiles if n else ():
            (a, b), share = _neighbors(q, n), q * (n - 1) - math.floor(q * (n - 1))
            (low, high), (low2, high2) = (ordered.cell_bounds(found[j, g, r][0]) for r in (a, b))
            x, y = ordered.simplest(low, high), ordered.simplest(low2, high2)
            quantiles[q] = (
                low + share * (low2 - low),
                x + share * (y - x),
                high + share * (high2 - high),
            )
        return ColumnMoments(
            n,
            rows - n,
            float(mean) if n else math.nan,
            math.sqrt(max(float(squares), 0.0) / (n - 1)) if n > 1 else math.nan,
            quantiles,
        )


def _neighbors(q: float, n: int) -> tuple[int, int]:
    """The ranks between which the quantile is interpolated (type 7, as in NumPy, pandas and R)."""
    low = math.floor(q * (n - 1))
    return low, min(low + 1, n - 1)


def sum_rows(values: np.ndarray) -> np.ndarray:
    """Return the correctly rounded sum of each row of a matrix, whatever the order of its columns.

    S. Rump, T. Ogita, S. Oishi: *Accurate Floating-Point Summation*, 2008, ExtractVector: adding and
    subtracting M = 2^k leaves the leading bits of every number, whose sum is exact in any order.
    """
    rest = np.array(values, dtype=np.float64)
    if not rest.shape[1]:
        return np.zeros(len(rest))
    parts = []
    room = math.ceil(math.log2(rest.shape[1] + 2)) + 1
    while (largest := np.abs(rest).max(1)).any():
        # numbers of 2^112 and more are refused by the encoding; here they only must not overflow
        power = np.minimum(np.frexp(largest)[1] + room, 1020)
        m = np.ldexp(1.0, power)[:, None]
        head = (rest + m) - m
        parts.append(head.sum(1))
        if not head.any():  # the rest is below the smallest number
            break
        rest -= head
    return np.array([math.fsum(row) for row in zip(*parts)]) if parts else np.zeros(len(rest))


def _check_means(down: Down, cells: int, columns: int) -> np.ndarray:
    mean = down["mean"]
    if mean.dtype != torch.float64 or tuple(mean.shape) != (cells, columns) or not mean.isfinite().all():
        raise ProtocolError("the coordinator sends means of another form than the agreed query has.")
    return mean.numpy()
