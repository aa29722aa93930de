"""Metrics by subgroup, under the rule for small counts.

The subgroups of a column are a partition of the rows. One with fewer than `min_rows` rows is merged with the
other small ones into "small groups", and if these have too few together, the next smallest is merged with
them. So every subgroup that is shown has at least `min_rows` rows, and so has every difference between
subgroups of one column, or between them and all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .intervals import intervals
from .losses import Objective
from .metrics import SUBGROUP_BINS, Counts, measure_all
from .other_counts import count_rows

SMALL = "small groups"
PARTS = ("confusion", "positive", "negative")  # the whole numbers among counts
SUMS = ("rows", "loss", "moments")
NOTHING = torch.zeros(0, dtype=torch.float64)


class Tally(NamedTuple):
    """The counts of all rows and, where subgroups are declared, those of each ([cells, …]).

    `members` has the summed loss of each member of a model, where each member stops by its own; `own` has the
    sums of a user's own metrics. They are empty elsewhere.
    """

    total: Counts
    cells: Counts | None = None
    members: Tensor = NOTHING
    own: Tensor = NOTHING

    def add(self, other: Tally) -> Tally:
        cells = None if self.cells is None or other.cells is None else self.cells.add(other.cells)
        return Tally(self.total.add(other.total), cells, self.members + other.members, self.own + other.own)

    @property
    def parts(self) -> list[Counts]:
        return [self.total] if self.cells is None else [self.total, self.cells]

    @property
    def sums(self) -> Tensor:
        """Rows, summed loss and moments of every part, then losses of members and own metrics, in float64."""
        counted = [v.reshape(-1).double().cpu() for c in self.parts for v in (c.rows, c.loss, c.moments)]
        return torch.cat([*counted, self.members, self.own])

    @property
    def numbers(self) -> Tensor:
        """The number of rows in every cell of every part, as one vector of int64."""
        return torch.cat(
            [getattr(c, name).reshape(-1).round().long().cpu() for c in self.parts for name in PARTS]
        )

    def fill(self, sums: Tensor, numbers: Tensor) -> Tally:
        """Return a tally of this one's shapes with other numbers."""
        filled = []
        for c in self.parts:
            rows, loss, moments, sums = sums.split(
                [c.rows.numel(), c.loss.numel(), c.moments.numel(), len(sums) - _length(c, SUMS)]
            )
            *whole, numbers = numbers.split(
                [*(getattr(c, name).numel() for name in PARTS), len(numbers) - _length(c, PARTS)]
            )
            parts = {n: v.double().view(getattr(c, n).shape) for n, v in zip(PARTS, whole)}
            real = {n: v.view(getattr(c, n).shape) for n, v in zip(SUMS, (rows, loss, moments))}
            filled.append(Counts(**parts, **real))
        members, own = sums.split([len(self.members), len(sums) - len(self.members)])
        return Tally(filled[0], filled[1] if len(filled) > 1 else None, members, own)


def _length(counts: Counts, names: Sequence[str]) -> int:
    return sum(getattr(counts, name).numel() for name in names)


def count_subgroups(
    out: Tensor,
    y: Tensor,
    classes: int | None,
    codes: Tensor,
    sizes: Sequence[int],
    threshold: float | None = None,
    objective: Objective | None = None,
) -> Counts:
    """[cells] counts: for each column one cell for each of its values, and one for small groups.

    A row whose value is unknown (−1) is counted among the small groups.
    """
    cells = []
    for column, size in enumerate(sizes):
        own = codes[:, column]
        own = torch.where(own < 0, size, own)
        for value in range(size + 1):
            mine = own == value
            cells.append(count_rows(out[mine], y[mine], classes, objective, threshold, SUBGROUP_BINS))
    return Counts(*(torch.stack([getattr(c, name) for c in cells]) for name in Counts._fields))


def merge_small(counts: Counts, sizes: Sequence[int], min_rows: int) -> Counts:
    """Merge subgroups with fewer than `min_rows` rows into the last cell of their column."""
    merged, first = Counts(*(v.clone() for v in counts)), 0
    for size in sizes:
        small = first + size
        while True:
            rows = merged.rows[first:small]
            there = torch.nonzero(rows > 0).flatten()
            if not len(there):
                break
            least = first + int(there[rows[there].argmin()])
            is_short = 0 < float(merged.rows[small]) < min_rows
            if float(merged.rows[least]) >= min_rows and not is_short:
                break
            for v in merged:
                v[small] += v[least]
                v[least] = 0
        first = small + 1
    return merged


def measure_subgroups(
    counts: Counts,
    columns: Sequence[str],
    values: Sequence[Sequence[str]],
    min_rows: int,
    scale: float = 1.0,
) -> dict[str, dict[str, dict[str, Any]]]:
    """{column: {value: its metrics, with intervals and `rows`}}; a column with one subgroup is left out."""
    sizes, result, first = [len(v) for v in values], {}, 0
    merged = merge_small(counts, sizes, min_rows)
    for column, names in zip(columns, values):
        shown = {}
        for i, name in enumerate((*names, SMALL)):
            cell = Counts(*(v[first + i] for v in merged))
            if float(cell.rows) >= max(min_rows, 1):
                shown[name] = measure_cell(cell, scale)
        if len(shown) > 1:
            result[column] = shown
        first += len(names) + 1
    return result


def measure_cell(cell: Counts, scale: float = 1.0) -> dict[str, Any]:
    """The metrics of one subgroup."""
    return {"rows": int(cell.rows), **measure_all(cell, scale), **intervals(cell, scale)}
