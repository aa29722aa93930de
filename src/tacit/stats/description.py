"""Counts, moments and order statistics of columns, by group: the sums behind `tacit.stats.describe`.

    step 1   rows by cell; numbers present and their sums; levels, others and missing values of categories
    step 2   squares about the means of step 1; counts by the first bits (ordered.py)
    step 3f  counts by the next bits, in the cells that hold the quantiles

A cell is a level of the column `by`, or the rows in no declared level. All rows together are the sum of the
cells. Nothing is opened but these sums over all parties.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import ClassVar

import numpy as np
import pandas as pd
import torch

from ..crypto import exact
from ..errors import ProtocolError
from ..protocols.sum_steps import BEGIN_AGAIN, Down
from . import ordered
from .columns import codes, level_sets, matrix
from .recall import recall
from .tables import check_columns

ALL = "all"
_BLOCK = 1 << 14  # numbers: 128 KiB
_FEW = 256  # numbers that math.fsum adds as fast


@dataclass(frozen=True)
class ColumnMoments:
    """A numeric column in one group: n, mean, standard deviation, and quantiles as (low, value, high)."""

    n: int
    missing: int
    mean: float
    sd: float
    quantiles: dict[float, tuple[float, float, float]] = field(default_factory=dict)
    interval: tuple[float, float] | None = None  # of the mean, where noise is in it
    se: float = math.nan  # of the mean, noise included; only where there is noise


@dataclass(frozen=True)
class Descriptions:
    """What the sums say. Groups are the levels of `by`, then "all"."""

    rows: dict[str, int]
    numbers: dict[str, dict[str, ColumnMoments]]  # column, group
    categories: dict[str, dict[str, np.ndarray]]  # column, group: counts of the levels, others, missing
    # where counts have noise, by column: as they were opened, by group, and the variance of each
    noisy_counts: dict[str, tuple[np.ndarray, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class DescribeProgram:
    """The program of sums. `categories` are (name, levels); `by` is one of those, or None."""

    if_left: ClassVar[str] = BEGIN_AGAIN
    is_repeatable: ClassVar[bool] = True
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
        if step == 0:
            return self._count(table)
        if step == 1:
            return self._square(table, down)
        return self._refine(step, table, down)

    def _cell(self, table: pd.DataFrame) -> np.ndarray:
        if self.by is None:
            return np.zeros(len(table), np.int64)
        cell: np.ndarray = np.minimum(codes(table, *self.by), self.cells - 1)
        return cell

    def _rows(self, table: pd.DataFrame) -> _CellRows:
        """The numbers, with the rows of a cell side by side; kept between the first two steps."""

        def read() -> _CellRows:
            check_columns(table, self.columns, "this party")
            x, cell = matrix(table, self.numeric), self._cell(table)
            sizes = np.bincount(cell, minlength=self.cells)
            if self.cells > 1:
                x = x[:, np.argsort(cell, kind="stable")]
            is_complete = bool(np.isfinite(x).all())  # infinite numbers were refused
            return _CellRows(x, np.concatenate([[0], np.cumsum(sizes)]), is_complete)

        return recall(table, ("rows", self), read)

    def _keys(self, table: pd.DataFrame) -> _CellKeys:
        """The sorted keys of each column and cell; kept from the second step on, in place of the numbers."""
        return recall(table, ("keys", self), lambda: _CellKeys.of(self._rows(table)))

    def _count(self, table: pd.DataFrame) -> np.ndarray:
        rows = self._rows(table)
        sizes = np.diff(rows.starts)
        counts = [
            sizes if rows.is_complete else [len(x) - np.count_nonzero(np.isnan(x)) for x in cells]
            for cells in rows.columns()
        ]
        sums = [[sum_exactly(x) for x in cells] for cells in rows.columns()]
        parts = [sizes, np.array(counts, np.int64).reshape(-1), exact.encode(np.array(sums).reshape(-1))]
        for name, levels in self.categories:
            width, cell = len(levels) + 2, self._cell(table)
            parts.append(np.bincount(cell * width + codes(table, name, levels), minlength=self.cells * width))
        return np.concatenate(parts)

    def _square(self, table: pd.DataFrame, down: Down) -> np.ndarray:
        mean = _check_means(down, self.cells + 1, len(self.numeric))
        rows = self._rows(table)
        squares = []
        for j, cells in enumerate(rows.columns()):
            squares += [sum_exactly(x, mean[k, j]) for k, x in enumerate(cells)]
            # without groups, about the mean of all rows is about the mean of the only cell
            same = self.cells == 1 and mean[0, j] == mean[1, j]
            squares.append(squares[-1] if same else sum_exactly(rows.x[j], mean[-1, j]))
        parts = [exact.encode(np.array(squares))]
        if self.quantiles:
            parts += [ordered.count_first(keys) for cells in self._keys(table).keys for keys in cells]
        return np.concatenate(parts)

    def _refine(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
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
        found = np.zeros((len(prefixes), ordered.NEXT), np.int64)
        keys, edges = self._keys(table).keys, ordered.next_edges(np.array(prefixes, np.uint32), step - 1)
        for (j, g), run in groupby(range(len(prefixes)), lambda i: (columns[i], groups[i])):
            places = list(run)
            part = slice(places[0], places[-1] + 1)
            # all rows are those of all cells
            for cell in keys[j] if self.groups[g] == ALL else keys[j][g : g + 1]:
                found[part] += ordered.count_next(cell, edges[part])
        return found.reshape(-1)

    def row_sets(self, table: pd.DataFrame) -> dict[str, np.ndarray]:
        """All rows, and those of each group: what a party's history of queries compares."""
        check_columns(table, self.columns, "this party")
        groups = {} if self.by is None else level_sets(table, *self.by)
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


@dataclass(frozen=True)
class _CellRows:
    """Numeric columns as the rows of a matrix, ordered by cell."""

    x: np.ndarray
    starts: np.ndarray  # where each cell begins, and the number of rows
    is_complete: bool  # no number is missing

    def columns(self) -> Iterator[list[np.ndarray]]:
        """For each column, its numbers in each cell."""
        for row in self.x:
            yield [row[a:b] for a, b in pairwise(self.starts)]


@dataclass(frozen=True)
class _CellKeys:
    keys: list[list[np.ndarray]]  # column, cell

    @classmethod
    def of(cls, rows: _CellRows) -> _CellKeys:
        def present(x: np.ndarray) -> np.ndarray:
            return x if rows.is_complete else x[~np.isnan(x)]

        return cls([[ordered.sort_keys(present(x)) for x in cells] for cells in rows.columns()])


def sum_exactly(values: np.ndarray, center: float | None = None) -> float:
    """Return the correctly rounded sum of numbers in any order, or of squares about a center; no NaN.

    S. Rump, T. Ogita, S. Oishi: *Accurate Floating-Point Summation*, 2008, ExtractVector: adding and
    subtracting M = 2^k leaves the leading bits of every number, whose sum is exact in any order. A block is
    read several times, so it is small enough for a core's cache. Few numbers have bits after the second time.
    """
    parts: list[float] = []
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        if center is None:
            rest = np.array(block, dtype=np.float64)
        else:
            rest = np.subtract(block, center, dtype=np.float64)
            rest *= rest
        largest = max(float(rest.max()), -float(rest.min()))
        if math.isnan(largest):
            np.nan_to_num(rest, copy=False, posinf=np.inf, neginf=-np.inf)
            largest = max(float(rest.max()), -float(rest.min()))
        room = math.ceil(math.log2(len(rest) + 2)) + 1
        head = np.empty_like(rest)
        # numbers of 2^112 and more are refused by the encoding; here they only must not overflow
        power = min(math.frexp(largest)[1] + room, 1020)
        while largest > 0:
            for _ in range(2):  # the leading bits, and the next: what is left of the others is 0
                if power > -1000:  # far from the smallest numbers
                    m = math.ldexp(1.0, power)
                    np.add(rest, m, out=head)
                    head -= m
                    rest -= head
                    parts.append(float(head.sum()))
                    power += room - 53  # no number in the rest is above 2^(power − 53)
            rest = rest[np.flatnonzero(rest)]
            if len(rest) <= _FEW or power <= -1000:
                parts += rest.tolist()
                break
            head = head[: len(rest)]
    return math.fsum(parts)


def _check_means(down: Down, cells: int, columns: int) -> np.ndarray:
    mean = down["mean"]
    if mean.dtype != torch.float64 or tuple(mean.shape) != (cells, columns) or not mean.isfinite().all():
        raise ProtocolError("the coordinator sends means of another form than the agreed query has.")
    return mean.numpy()
