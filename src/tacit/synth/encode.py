"""From a table's numbers to what generators learn from: variables (`Layout`), and variables cut into few
cells (`Cells`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData
from .constraints import Combinations
from .table import Table

if TYPE_CHECKING:
    from .conditions import Conditions

ROWS_A_VALUE = 4  # a value fewer rows share than this is one person's, and is blurred into an interval
ROWS_A_KNOT = 5  # likewise for the knots that shape an interval
MOST_KNOTS = 8  # in an interval: a bend every eighth of it follows any smooth density


@dataclass(frozen=True)
class Variable:
    """`levels` > 0: codes 0 … levels − 1, of which the last means missing if `missing`. `levels` = 0: a
    number, NaN if missing.
    """

    name: str
    columns: tuple[int, ...]
    levels: int
    missing: bool = False
    ordered: bool = False
    low: float | None = None
    high: float | None = None


class Layout:
    """The table's modelled columns as variables: a column each, but for those that only come in fixed
    combinations, which are one.
    """

    def __init__(self, table: Table):
        self.table = table
        columns = table.modelled
        groups = {
            tuple(map(table.at, c.columns)): c for c in table.constraints if isinstance(c, Combinations)
        }
        self.allowed: dict[int, np.ndarray] = {}  # of a combined variable: [levels, columns]
        self.variables: list[Variable] = []
        for j, c in enumerate(columns):
            group = next((at for at in groups if j in at), None)
            if group is None:
                levels = 0 if c.is_number else len(c.values) + c.missing
                self.variables.append(
                    Variable(
                        c.name, (j,), levels, c.missing, c.kind == "ordinal" or c.is_number, c.low, c.high
                    )
                )
            elif j == min(group):
                rows = np.array(groups[group].allowed, dtype=np.float64)
                self.allowed[len(self.variables)] = rows
                self.variables.append(Variable(" × ".join(groups[group].columns), group, len(rows)))

    def forward(self, x: np.ndarray) -> np.ndarray:
        out = np.empty((len(x), len(self.variables)))
        for i, v in enumerate(self.variables):
            if i in self.allowed:
                out[:, i] = self._combined(x[:, list(v.columns)], i)
            elif v.levels:
                out[:, i] = np.where(np.isnan(x[:, v.columns[0]]), v.levels - 1, x[:, v.columns[0]])
            else:
                out[:, i] = x[:, v.columns[0]]
        return out

    def _combined(self, part: np.ndarray, i: int) -> np.ndarray:
        place = {row.tobytes(): k for k, row in enumerate(self.allowed[i] + 0.0)}
        codes = np.array([place.get(row.tobytes(), -1) for row in np.ascontiguousarray(part + 0.0)])
        if (codes < 0).any():
            raise BadData(
                f"{int((codes < 0).sum())} rows have a combination of {self.variables[i].name} that is not "
                "allowed, the first of them row "
                f"{int(np.flatnonzero(codes < 0)[0])}. Add it to `allowed`, or put the rows right."
            )
        return codes

    def back(self, v: np.ndarray) -> np.ndarray:
        x = np.empty((len(v), len(self.table.modelled)))
        for i, var in enumerate(self.variables):
            if i in self.allowed:
                x[:, list(var.columns)] = self.allowed[i][v[:, i].astype(np.int64)]
            elif var.levels and var.missing:
                x[:, var.columns[0]] = np.where(v[:, i] >= var.levels - 1, np.nan, v[:, i])
            else:
                x[:, var.columns[0]] = v[:, i]
        return x

    def fitting(self, given: Conditions) -> dict[int, np.ndarray]:
        """For each discrete variable that `given` speaks about: which of its levels may be."""
        found = {}
        for i, v in enumerate(self.variables):
            if v.levels and any(j in given.among or j in given.between for j in v.columns):
                probe = np.zeros((v.levels, len(self.table.modelled)))
                for j in {*given.among, *given.between} - set(v.columns):  # the other columns must not decide
                    probe[:, j] = given.among[j][0] if j in given.among else given.between[j][0]
                alone = np.zeros((v.levels, len(self.variables)))
                alone[:, i] = np.arange(v.levels)
                probe[:, list(v.columns)] = self.back(alone)[:, list(v.columns)]
                found[i] = given.hold(probe)
        return found


class Cells:
    """Every variable as a code: levels as they are; a number by the interval it lies in, or the value itself
    where many rows share it; missing last.

    `edges[i]` are the inner boundaries of a number's cells, `knots[i]` [cells, m + 1] the quantiles within
    each, equal where a cell is one value.
    """

    def __init__(
        self, variables: Sequence[Variable], edges: Mapping[int, np.ndarray], knots: Mapping[int, np.ndarray]
    ):
        self.variables, self.edges, self.knots = list(variables), dict(edges), dict(knots)
        self.sizes = [v.levels or len(self.knots[i]) + v.missing for i, v in enumerate(self.variables)]

    @classmethod
    def of_data(cls, variables: Sequence[Variable], v: np.ndarray, bins: int = 256) -> Cells:
        """At most about `bins` cells a number, of about equally many rows, from the data."""
        made = {i: _quantile_cells(v[:, i], bins) for i, var in enumerate(variables) if not var.levels}
        return cls(variables, {i: m[0] for i, m in made.items()}, {i: m[1] for i, m in made.items()})

    @classmethod
    def of_domain(cls, variables: Sequence[Variable], bins: int = 32) -> Cells:
        """Cells of equal width over [low, high], whatever the data."""
        knots = {}
        for i, var in enumerate(variables):
            if not var.levels:
                assert var.low is not None
                assert var.high is not None
                ends = (
                    np.linspace(var.low, var.high, bins + 1)
                    if var.high > var.low
                    else np.array([var.low, var.low])
                )
                knots[i] = np.column_stack([ends[:-1], ends[1:]])
        return cls(variables, {i: k[1:, 0] for i, k in knots.items()}, knots)

    def encode(self, v: np.ndarray) -> np.ndarray:
        """int64 [rows, variables]."""
        codes = np.empty(v.shape, dtype=np.int64)
        for i, size in enumerate(self.sizes):
            if i in self.edges:
                codes[:, i] = np.where(
                    np.isnan(v[:, i]), size - 1, np.searchsorted(self.edges[i], v[:, i], side="right")
                )
            else:
                codes[:, i] = v[:, i]
        return codes

    def decode(self, codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A value in each cell; a number's is drawn along the cell's quantiles."""
        v = codes.astype(np.float64)
        for i, knots in self.knots.items():
            cells, m = knots.shape[0], knots.shape[1] - 1
            at = rng.random(len(codes)) * m
            piece, k = at.astype(np.int64), np.minimum(codes[:, i], cells - 1)
            left = knots[k, piece]
            v[:, i] = np.where(
                codes[:, i] < cells, left + (at - piece) * (knots[k, piece + 1] - left), np.nan
            )
        return v

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"cells.{what}.{i}": torch.from_numpy(a.copy())
            for what, parts in (("edges", self.edges), ("knots", self.knots))
            for i, a in parts.items()
        }

    @classmethod
    def from_tensors(cls, variables: Sequence[Variable], tensors: Mapping[str, Tensor]) -> Cells:
        parts = [
            {i: tensors[f"cells.{what}.{i}"].numpy() for i, v in enumerate(variables) if not v.levels}
            for what in ("edges", "knots")
        ]
        return cls(variables, *parts)


def _quantile_cells(column: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    there = np.sort(column[~np.isnan(column)])
    if not len(there):
        return np.empty(0), np.zeros((1, 2))
    values, counts = np.unique(there, return_counts=True)
    if len(values) <= bins and ROWS_A_VALUE * len(values) <= len(there):
        shared = np.ones(len(values), dtype=bool)
    else:
        shared = counts >= max(ROWS_A_VALUE, len(there) / bins)
    # a cell begins at every shared value, after every shared value, and wherever another len/bins rows have
    # passed
    full = max(len(there) / bins, 2 * ROWS_A_KNOT)
    blurred = np.where(shared, 0, counts)
    run = np.cumsum(shared)  # which gap between shared values a value lies in
    before = np.cumsum(blurred) - blurred
    start_of_run = np.where(np.r_[True, run[1:] != run[:-1]] | shared, before, 0)
    start_of_run = np.maximum.accumulate(start_of_run)
    part = ((before - start_of_run) // full).astype(np.int64)
    key = np.stack([run, np.where(shared, -1, part)])
    begins = np.r_[True, (key[:, 1:] != key[:, :-1]).any(axis=0)]
    first = np.flatnonzero(begins)
    last = np.r_[first[1:], len(values)] - 1
    edges = (values[last[:-1]] + values[first[1:]]) / 2
    ends = np.cumsum(counts)
    rows = [there[(ends[a] - counts[a]) : ends[b]] for a, b in zip(first, last)]
    m = int(np.clip(full // ROWS_A_KNOT, 1, MOST_KNOTS))
    knots = np.stack([np.quantile(r, np.linspace(0, 1, m + 1)) for r in rows])
    return edges, knots


EVEN = (
    "draw evener than chance: columns follow what was learnt as closely as n rows can, so a sample shows "
    "the table's counts almost exactly"
)


def uniforms(n: int, rng: np.random.Generator, even: bool) -> np.ndarray:
    """`n` uniform numbers. `even`: in random order, one in each n-th of [0, 1); each is uniform still,
    together they are evener than chance.
    """
    return (rng.permutation(n) + rng.random(n)) / n if even else rng.random(n)


def uniforms_within(groups: np.ndarray, rng: np.random.Generator, even: bool) -> np.ndarray:
    """As `uniforms`, in every group of rows by itself."""
    n = len(groups)
    if not even:
        return rng.random(n)
    order = np.lexsort((rng.random(n), groups))
    sorted_groups = groups[order]
    first = np.r_[True, sorted_groups[1:] != sorted_groups[:-1]]
    starts = np.flatnonzero(first)
    sizes = np.diff(np.r_[starts, n])
    u = np.empty(n)
    u[order] = (np.arange(n) - np.repeat(starts, sizes) + rng.random(n)) / np.repeat(sizes, sizes)
    return u
