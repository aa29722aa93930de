"""Encodings of a table's numbers for generators.

`Layout` maps columns to variables, `Discretizer` maps variables to codes of few cells, and `Conditions` are
the values that a sample may have: `sample(n, conditions={"sex": "F", "age": (30, 40)})`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.cells import show_row
from ..errors import BadData, BadParameter
from .columns import check_known
from .constraints import Combinations
from .table import Table

MIN_ROWS_PER_VALUE = 4  # a value shared by fewer rows may identify a person, and is blurred into an interval
MIN_ROWS_PER_KNOT = 5  # likewise for the quantiles within an interval
MAX_KNOTS = 8  # quantiles within an interval: enough to follow a smooth density


@dataclass(frozen=True)
class Variable:
    """One variable that generators learn.

    `levels` > 0: codes 0 … levels − 1, of which the last means missing if `missing`. `levels` = 0: a number,
    NaN if missing.
    """

    name: str
    columns: tuple[int, ...]
    levels: int
    missing: bool = False
    ordered: bool = False


@dataclass(frozen=True)
class Conditions:
    """For each conditioned column, by index, the allowed values or interval.

    `fair`: a column that is sampled independently of the others named, by index (`ARGN` only).
    """

    mapping: Mapping[str, Any]  # as the user wrote it, for messages
    values: Mapping[int, np.ndarray]
    intervals: Mapping[int, tuple[float, float]]
    fair: tuple[int, tuple[int, ...]] | None = None

    @classmethod
    def parse(cls, table: Table, conditions: Mapping[str, Any]) -> Conditions:
        """Translate a dictionary of column names and values into numbers, or raise."""
        names = [c.name for c in table.modeled]
        allowed: dict[int, np.ndarray] = {}
        intervals: dict[int, tuple[float, float]] = {}
        for name, value in conditions.items():
            check_known([name], names, "conditions: there is no modeled column", error=BadParameter)
            j = names.index(name)
            column = table.modeled[j]
            if isinstance(value, tuple) and column.is_number and len(value) == 2:
                intervals[j] = (column.to_number(value[0]), column.to_number(value[1]))
                if not intervals[j][0] <= intervals[j][1]:
                    raise BadParameter(
                        f"conditions: {name}={value!r} is an empty interval; give (low, high)."
                    )
                continue
            values = list(value) if isinstance(value, list | set | tuple) else [value]
            if not values or (any(v is None for v in values) and not column.missing):
                raise BadParameter(
                    f"conditions: {name}={value!r} matches no value of this column. Give a value of its "
                    "domain."
                )
            allowed[j] = np.array([np.nan if v is None else column.to_number(v) for v in values])
        return cls(dict(conditions), allowed, intervals)

    def matches(self, x: np.ndarray) -> np.ndarray:
        """Return, for each row, whether it satisfies all conditions."""
        valid = np.ones(len(x), dtype=bool)
        for j, values in self.values.items():
            valid &= np.isin(x[:, j], values) | (np.isnan(x[:, j]) & bool(np.isnan(values).any()))
        for j, (low, high) in self.intervals.items():
            with np.errstate(invalid="ignore"):
                valid &= (x[:, j] >= low) & (x[:, j] <= high)
        return valid


def split_by_shares(
    table: Table, shares: Mapping[str, Mapping[Any, float]], conditions: Mapping[str, Any]
) -> list[tuple[float, dict[str, Any]]]:
    """Return the parts of a sample in which one column has given shares, each with its conditions."""
    if not isinstance(shares, Mapping) or len(shares) != 1:
        raise BadParameter(
            "shares: expected one column and the shares of its values, like {'income': {'>50K': 0.5}}, got "
            f"{shares!r}."
        )
    ((name, wanted),) = shares.items()
    check_known(
        [name], [c.name for c in table.modeled], "shares: there is no modeled column", error=BadParameter
    )
    column = table.modeled[table.column_index(name)]
    if name in conditions:
        raise BadParameter(f"shares: {name!r} has conditions as well. Remove one of them.")
    numbers = list(wanted.values()) if isinstance(wanted, Mapping) else []
    if not numbers or not all(
        isinstance(s, int | float) and not isinstance(s, bool) and 0 <= s <= 1 for s in numbers
    ):
        raise BadParameter(f"shares: {name}={wanted!r}; give values and their shares between 0 and 1.")
    parts = [(float(share), {**conditions, name: value}) for value, share in wanted.items()]
    rest = 1.0 - sum(numbers)
    if rest < -1e-9:
        raise BadParameter(f"shares: the shares of {name!r} sum to {sum(numbers):g}; at most 1 is possible.")
    if rest > 1e-9:
        others = [v for v in (*column.values, *([None] if column.missing else [])) if v not in wanted]
        if not others:
            why = "number" if column.is_number else "column whose values are all given"
            raise BadParameter(
                f"shares: the shares of {name!r} sum to {sum(numbers):g}; for a {why} they must sum to 1."
            )
        parts.append((rest, {**conditions, name: others}))
    return parts


class Layout:
    """The table's modeled columns as variables.

    Each column is one variable, except that the columns of a Combinations constraint form one together.
    """

    def __init__(self, table: Table):
        self.table = table
        columns = table.modeled
        groups = {
            tuple(map(table.column_index, c.columns)): c
            for c in table.constraints
            if isinstance(c, Combinations)
        }
        self.combinations: dict[int, np.ndarray] = {}  # by variable: [levels, columns]
        self.variables: list[Variable] = []
        for j, c in enumerate(columns):
            group = next((at for at in groups if j in at), None)
            if group is None:
                levels = 0 if c.is_number else len(c.values) + c.missing
                self.variables.append(
                    Variable(c.name, (j,), levels, c.missing, c.kind == "ordinal" or c.is_number)
                )
            elif j == min(group):
                rows = np.array(groups[group].allowed, dtype=np.float64)
                self.combinations[len(self.variables)] = rows
                self.variables.append(Variable(" × ".join(groups[group].columns), group, len(rows)))

    def encode(self, x: np.ndarray) -> np.ndarray:
        """Convert column numbers to variables."""
        out = np.empty((len(x), len(self.variables)))
        for i, v in enumerate(self.variables):
            if i in self.combinations:
                out[:, i] = self._encode_combination(x[:, list(v.columns)], i)
            else:
                column = x[:, v.columns[0]]
                out[:, i] = np.where(np.isnan(column), v.levels - 1, column) if v.levels else column
        return out

    def _encode_combination(self, part: np.ndarray, i: int) -> np.ndarray:
        place = {row.tobytes(): k for k, row in enumerate(self.combinations[i] + 0.0)}
        codes = np.array([place.get(row.tobytes(), -1) for row in np.ascontiguousarray(part + 0.0)])
        if (codes < 0).any():
            raise BadData(
                f"{int((codes < 0).sum())} rows have a combination of {self.variables[i].name} that is not "
                f"allowed, first in {show_row(int((codes < 0).argmax()))}. Add it to `allowed`, or "
                "correct the rows."
            )
        return codes

    def decode(self, v: np.ndarray) -> np.ndarray:
        """Convert variables to column numbers."""
        x = np.empty((len(v), len(self.table.modeled)))
        for i, var in enumerate(self.variables):
            if i in self.combinations:
                x[:, list(var.columns)] = self.combinations[i][v[:, i].astype(np.int64)]
            else:
                is_missing = bool(var.levels and var.missing) & (v[:, i] >= var.levels - 1)
                x[:, var.columns[0]] = np.where(is_missing, np.nan, v[:, i])
        return x

    def allowed_levels(self, conditions: Conditions) -> dict[int, np.ndarray]:
        """Return, for each conditioned discrete variable, which of its levels are allowed."""
        levels = {}
        for i, v in enumerate(self.variables):
            if v.levels and any(j in conditions.values or j in conditions.intervals for j in v.columns):
                probe = np.zeros((v.levels, len(self.table.modeled)))
                for j in {*conditions.values, *conditions.intervals} - set(
                    v.columns
                ):  # other conditions must not matter here
                    probe[:, j] = (
                        conditions.values[j][0] if j in conditions.values else conditions.intervals[j][0]
                    )
                alone = np.zeros((v.levels, len(self.variables)))
                alone[:, i] = np.arange(v.levels)
                probe[:, list(v.columns)] = self.decode(alone)[:, list(v.columns)]
                levels[i] = conditions.matches(probe)
        return levels


class Discretizer:
    """Maps every variable to a code: levels unchanged, numbers by interval, missing last.

    A value that many rows share has a cell of its own. `edges[i]` are the inner boundaries of a number's
    cells, `knots[i]` [cells, m + 1] the quantiles within each cell, all equal if the cell is one value.
    """

    def __init__(
        self, variables: Sequence[Variable], edges: Mapping[int, np.ndarray], knots: Mapping[int, np.ndarray]
    ):
        self.variables, self.edges, self.knots = list(variables), dict(edges), dict(knots)
        self.sizes = [v.levels or len(self.knots[i]) + v.missing for i, v in enumerate(self.variables)]

    @classmethod
    def from_data(cls, variables: Sequence[Variable], v: np.ndarray, bins: int = 256) -> Discretizer:
        """Build about `bins` cells per number, with about equally many rows each."""
        parts = {i: _quantile_cells(v[:, i], bins) for i, var in enumerate(variables) if not var.levels}
        return cls(variables, {i: p[0] for i, p in parts.items()}, {i: p[1] for i, p in parts.items()})

    def encode(self, v: np.ndarray) -> np.ndarray:
        """Return the codes, int64 [rows, variables]."""
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
        """Return a value in each cell; numbers are drawn along the cell's quantiles."""
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
    def from_tensors(cls, variables: Sequence[Variable], tensors: Mapping[str, Tensor]) -> Discretizer:
        return cls(
            variables,
            *[
                {i: tensors[f"cells.{what}.{i}"].numpy() for i, v in enumerate(variables) if not v.levels}
                for what in ("edges", "knots")
            ],
        )


def cell_likelihoods(layout: Layout, cells: Discretizer, conditions: Conditions) -> list[np.ndarray]:
    """Return, for each variable, 1 for cells that the conditions allow, else 0."""
    likely = [np.ones(size) for size in cells.sizes]
    for i, mask in layout.allowed_levels(conditions).items():
        likely[i] = mask.astype(np.float64)
    for i, var in enumerate(layout.variables):
        j = var.columns[0]
        if var.levels or (j not in conditions.values and j not in conditions.intervals):
            continue
        low, high = cells.knots[i][:, 0], cells.knots[i][:, -1]
        intervals = (
            [conditions.intervals[j]]
            if j in conditions.intervals
            else [(w, w) for w in conditions.values[j] if w == w]
        )
        half = (layout.table.modeled[j].step or 0) / 2  # values are rounded to multiples of step
        allowed_cells = np.any(
            [(low <= b + half) & (high >= a - half) for a, b in intervals]
            or [np.zeros(len(low), dtype=bool)],
            axis=0,
        )
        if var.missing:
            allowed_cells = np.append(
                allowed_cells, j in conditions.values and bool(np.isnan(conditions.values[j]).any())
            )
        likely[i] = allowed_cells.astype(np.float64)
    return likely


def _quantile_cells(column: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    present = np.sort(column[~np.isnan(column)])
    if not len(present):
        return np.empty(0), np.zeros((1, 2))
    values, counts = np.unique(present, return_counts=True)
    few = len(values) <= bins and MIN_ROWS_PER_VALUE * len(values) <= len(present)
    shared = few | (counts >= max(MIN_ROWS_PER_VALUE, len(present) / bins))
    # a cell begins at and after every shared value, and after every len/bins other rows
    full = max(len(present) / bins, 2 * MIN_ROWS_PER_KNOT)
    blurred = np.where(shared, 0, counts)
    run = np.cumsum(shared)  # which gap between shared values a value is in
    before = np.cumsum(blurred) - blurred
    start_of_run = np.where(np.r_[True, run[1:] != run[:-1]] | shared, before, 0)
    start_of_run = np.maximum.accumulate(start_of_run)
    part = ((before - start_of_run) // full).astype(np.int64)
    key = np.stack([run, np.where(shared, -1, part)])
    first = np.flatnonzero(np.r_[True, (key[:, 1:] != key[:, :-1]).any(axis=0)])
    last = np.r_[first[1:], len(values)] - 1
    edges = (values[last[:-1]] + values[first[1:]]) / 2
    ends = np.cumsum(counts)
    rows = [present[(ends[a] - counts[a]) : ends[b]] for a, b in zip(first, last)]
    m = int(np.clip(full // MIN_ROWS_PER_KNOT, 1, MAX_KNOTS))
    return edges, np.stack([np.quantile(r, np.linspace(0, 1, m + 1)) for r in rows])


EVEN = "stratified sampling: columns follow the learned distribution as closely as n rows can"


def uniforms(n: int, rng: np.random.Generator, even: bool) -> np.ndarray:
    """Return `n` uniform numbers.

    `even`: stratified, one in each n-th of [0, 1), in random order; each is still uniform.
    """
    return (rng.permutation(n) + rng.random(n)) / n if even else rng.random(n)


def uniforms_within(groups: np.ndarray, rng: np.random.Generator, even: bool) -> np.ndarray:
    """Apply `uniforms` to every group of rows independently."""
    n = len(groups)
    if not even:
        return rng.random(n)
    order = np.lexsort((rng.random(n), groups))
    sorted_groups = groups[order]
    starts = np.flatnonzero(np.r_[True, sorted_groups[1:] != sorted_groups[:-1]])
    sizes = np.diff(np.r_[starts, n])
    u = np.empty(n)
    u[order] = (np.arange(n) - np.repeat(starts, sizes) + rng.random(n)) / np.repeat(sizes, sizes)
    return u
