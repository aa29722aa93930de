"""Times to an event, coarsened to a declared grid, and counted by sums over parties.

    step 0   every party: kinds and levels of its columns, its times by powers of two  → levels, the grid
    step 1   counts of events, exits and entries for each cell of the grid, group and stratum

A time t belongs to the first grid point that is not before it. Only the sums over all parties are opened: how
many people of all parties together had an event, left or entered at each grid point.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from ..errors import BadData, ProtocolError
from ..parameters import bad
from ..protocols.sum_steps import BEGIN_AGAIN, Down
from . import design
from .columns import level_sets
from .level_sketch import LEVEL_ROWS
from .outcomes import RECODE
from .recall import recall

MOST_CELLS = 1 << 17  # of a grid; more is a wrong unit rather than a wish
_POWERS = 41  # bit lengths of a cell's position: 0 … 40
COUNT_BOUND = (1 << 32) - 1
FINER = (1, 10, 100, 1000)  # parts of a cell into which a finer grid would divide it

Grid = float | Sequence[float]


def check_grid(grid: Any, owner: str) -> float | list[float]:
    """Return a grid as plain values: the width of its cells, or its points."""
    if isinstance(grid, bool) or grid is None:
        raise bad(owner, "grid", grid, "the width of a cell, or increasing times")
    if isinstance(grid, int | float | np.number):
        if not 0 < float(grid) < float("inf"):
            raise bad(owner, "grid", grid, "a width above 0, or increasing times")
        return float(grid)
    try:
        points = [float(v) for v in grid]
    except (TypeError, ValueError):
        raise bad(owner, "grid", grid, "a width above 0, or increasing times") from None
    if len(points) < 1 or points[0] < 0 or any(b <= a for a, b in pairwise(points)):
        raise bad(owner, "grid", grid, "a width above 0, or increasing times of at least 0")
    return points


def describe_grid(grid: float | list[float], cells: int) -> str:
    """A sentence for the ledger."""
    if not isinstance(grid, float | int):
        return f"{len(grid)} declared times from {grid[0]:g} to {grid[-1]:g}"
    return f"multiples of {grid:g} up to {grid * (cells - 1):g}"


def to_cells(times: np.ndarray, grid: float | list[float], name: str) -> np.ndarray:
    """Return the position of each time on the grid; raise BadData for times that it does not cover."""
    if not np.isfinite(times).all() or (times < 0).any():
        raise BadData(f"column {name!r} has negative or infinite times.")
    if not isinstance(grid, float | int):
        points = np.asarray(grid)
        cells = np.searchsorted(points, times - 1e-9 * np.maximum(np.abs(times), 1e-300), side="left")
        if (cells >= len(points)).any():
            raise BadData(
                f"column {name!r} has times after the last point of the grid, {points[-1]:g}. Extend the "
                "grid."
            )
        return cells  # type: ignore[no-any-return]
    share = times / grid
    return np.ceil(share - 1e-9 * np.maximum(share, 1.0)).astype(np.int64)


def count_rounded(times: np.ndarray, grid: float | list[float]) -> np.ndarray:
    """Return how many times are not on the grid, and not on the grids with 10, 100 and 1000 times its points.

    Declared points have no finer grid: the first count is repeated. Who chooses the grid learns no more from
    these sums than from the counts at each of its points.
    """
    if not isinstance(grid, float | int):
        points = np.asarray(grid)
        near = points[np.clip(np.searchsorted(points, times - 1e-9 * np.abs(times)), 0, len(points) - 1)]
        return np.full(
            len(FINER), int((np.abs(near - times) > 1e-9 * np.maximum(np.abs(times), 1e-300)).sum())
        )
    shares = [times / grid * parts for parts in FINER]
    return np.array(
        [int((np.abs(s - np.round(s)) > 1e-9 * np.maximum(s, 1.0)).sum()) for s in shares], dtype=np.int64
    )


def note_rounded(
    rounded: Sequence[int],
    grid: float | list[float],
    cells: int,
    rows: int,
    events: int,
    points: int,
    least: int,
) -> tuple[str, ...]:
    """Return a note if times were rounded, with a grid that keeps their order.

    That is the coarsest one on which all times are. If none is, as of continuous times, it is the coarsest
    with 20 points for each event, so that few events tie.
    """
    if not rounded[0]:
        return ()
    count = f"{rounded[0]}" if rounded[0] >= least else f"Fewer than {least}"
    what = f"{count} of {rows} times are not on the grid and were rounded up"
    what += f": {events} events are at {points} of its points, and the order within a point is lost."
    if not isinstance(grid, float | int):
        return (f"{what} Declare more points.",)
    exact = [parts for parts, count in zip(FINER, rounded) if count == 0]
    near = [parts for parts in FINER[1:] if cells * parts >= 20 * events]
    parts = [p for p in (*exact[:1], *near[:1], FINER[-1]) if p * cells <= MOST_CELLS]
    if not parts:
        return (
            f"{what} A grid with so many points is not possible; strata='site' uses the times as they are.",
        )
    keeps = "keeps it" if parts[0] in exact else "keeps nearly all of it"
    return (
        f"{what} grid={grid / parts[0]:g} {keeps}, and opens sums at more points (min_exits merges them); "
        "strata='site' opens no grid and uses the times as they are.",
    )


def grid_times(grid: float | list[float], cells: int) -> np.ndarray:
    return np.asarray(grid[:cells]) if not isinstance(grid, float | int) else np.arange(cells) * grid


def count_powers(cells: np.ndarray) -> np.ndarray:
    """Return how many positions have each bit length."""
    lengths = np.zeros(len(cells), dtype=np.int64)
    positive = cells > 0
    lengths[positive] = np.frexp(cells[positive].astype(np.float64))[1]
    return np.bincount(np.minimum(lengths, _POWERS - 1), minlength=_POWERS)


def cells_from_powers(total: np.ndarray, grid: float | list[float], owner: str) -> int:
    """Return how many cells the grid needs."""
    if not isinstance(grid, float | int):
        return len(grid)
    used = np.flatnonzero(total)
    cells = 1 << int(used[-1]) if len(used) else 1
    if cells > MOST_CELLS:
        raise BadData(
            f"{owner}: with cells of width {grid:g} the grid has {cells:,} points; at most "
            f"{MOST_CELLS:,} are "
            "allowed. Declare a coarser one: grid=30."
        )
    return cells


def check_cells(cells: int, grid: float | list[float]) -> None:
    """Refuse a number of grid points that no times need: it is the coordinator's word, and takes memory."""
    most = MOST_CELLS if isinstance(grid, float | int) else len(grid)
    if not 0 < cells <= most:
        raise ProtocolError(
            f"the coordinator asks for {cells:,} grid points; this grid has at most {most:,}. Nothing was "
            "sent."
        )


def read_times(frame: pd.DataFrame, name: str) -> np.ndarray:
    if not pd.api.types.is_numeric_dtype(frame[name].dtype):
        raise BadData(f"column {name!r} contains non-numeric values; times are numbers.")
    return frame[name].to_numpy(dtype=np.float64)  # type: ignore[no-any-return]


def read_events(frame: pd.DataFrame, name: str, causes: Sequence[Any]) -> np.ndarray:
    """Return 0 for a censored row, and k for the k-th cause; raise BadData for other values."""
    codes = np.zeros(len(frame), dtype=np.int64)
    values = frame[name]
    plain = np.array([design.plain_level(v) for v in values], dtype=object)
    known = plain == 0
    for k, cause in enumerate(causes, 1):
        here = plain == cause
        codes[here], known = k, known | here
    if not known.all():
        found = set(plain)
        texts = len(found) == 2 and all(isinstance(v, str) for v in found)
        advice = f"It is text, {' and '.join(map(repr, sorted(found)))}. {RECODE}" if texts else ""
        raise BadData(
            f"column {name!r} has values other than 0 (censored) and {', '.join(map(repr, causes))} (event). "
            + (advice or "Code it so, or leave these rows out."),
            outside=f"its column {name!r} has values that are not among the agreed events",
        )
    return codes


@dataclass
class LifetimeCounts:
    """What is opened: counts by stratum, group and grid point."""

    times: np.ndarray  # of the grid
    groups: list[Any]
    strata: list[Any]
    causes: list[Any]
    events: np.ndarray  # stratum, group, cause, cell
    exits: np.ndarray  # stratum, group, cell: all who leave, with an event or without
    entries: np.ndarray  # stratum, group, cell: those who enter after this grid point
    rows: int
    dropped: int
    parties: int
    grid: str

    @property
    def at_risk(self) -> np.ndarray:
        """How many are at risk at each grid point: entered before it, not left before it."""

        def after(counts: np.ndarray) -> np.ndarray:
            return np.cumsum(counts[..., ::-1], axis=-1)[..., ::-1]

        return after(self.exits) - after(self.entries)  # type: ignore[no-any-return]

    @property
    def smallest(self) -> int:
        """The fewest people who left at one grid point, of points where someone did."""
        leaving = self.exits.sum(axis=(0, 1))
        return int(leaving[leaving > 0].min()) if leaving.any() else 0


@dataclass(frozen=True)
class LifetimeProgram:
    """Counts of events on a grid. All fields are plain values."""

    if_left: ClassVar[str] = BEGIN_AGAIN
    is_repeatable: ClassVar[bool] = True
    time: str
    event: str
    by: str | None = None
    strata: tuple[str, ...] = ()
    entry: str | None = None
    grid: Any = 1.0
    causes: tuple[Any, ...] = (1,)
    levels: Mapping[str, Sequence[Any]] | None = None
    missing: str = "drop"
    owner: str = "kaplan_meier"
    min_level_rows: int = LEVEL_ROWS  # of one party, for a level that is found

    @property
    def max_steps(self) -> int:
        return 2

    @property
    def bound(self) -> int:
        return COUNT_BOUND

    @property
    def categories(self) -> list[str]:
        return list(dict.fromkeys([c for c in (self.by, *self.strata) if c]))

    @property
    def used(self) -> list[str]:
        return list(dict.fromkeys([c for c in (self.time, self.event, self.entry, *self.categories) if c]))

    def length(self, step: int, down: Down) -> int:
        if step == 0:
            return 3 + _POWERS + design.kinds_length(self.categories)
        cells = int(down["cells"])
        groups, strata = self._shape(design.Agreement.from_tensor(down["levels"]))
        return groups * len(strata) * cells * (len(self.causes) + 2)

    def _shape(self, agreement: design.Agreement) -> tuple[int, list[tuple[Any, ...]]]:
        strata: list[tuple[Any, ...]] = [()]
        for name in self.strata:
            strata = [(*s, level) for s in strata for level in agreement.levels[name]]
        return len(agreement.levels[self.by]) if self.by else 1, strata

    def row_sets(self, table: pd.DataFrame) -> dict[str, np.ndarray]:
        """The rows that the sums are about, complete cases, and those of each group."""
        design.check_columns(table, self.used)
        complete = design.has_all(table, self.used)
        groups = level_sets(table, self.by) if self.by else {}
        return {"all rows": complete, **{name: rows & complete for name, rows in groups.items()}}

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        design.check_columns(table, self.used)
        frame = recall(table, repr(self), lambda: design.complete_cases(table, self.used, self.missing))
        cells = to_cells(read_times(frame, self.time), self.grid, self.time)
        if step == 0:
            kinds = design.count_kinds(
                frame, self.categories, self.categories, self.levels or {}, self.min_level_rows
            )
            head = [1, len(frame), len(table) - len(frame)]
            return np.concatenate([np.array(head), count_powers(cells), kinds])
        agreement = design.Agreement.from_tensor(down["levels"])
        design.check_found(frame, agreement, self.levels or {}, self.min_level_rows)
        groups, strata = self._shape(agreement)
        count = int(down["cells"])
        check_cells(count, self.grid)
        if len(cells) and int(cells.max()) >= count:
            raise BadData("the coordinator's grid ends before the last time of this party.")
        place = {s: k for k, s in enumerate(strata)}
        group = _codes(frame, self.by, agreement) if self.by else np.zeros(len(frame), dtype=np.int64)
        parts = [_codes(frame, name, agreement) for name in self.strata]
        names = [agreement.levels[name] for name in self.strata]
        stratum = np.array(
            [place[tuple(n[c] for n, c in zip(names, row))] for row in zip(*parts)], dtype=np.int64
        ) if parts else np.zeros(len(frame), dtype=np.int64)  # fmt: skip
        kind = read_events(frame, self.event, self.causes)
        row = stratum * groups + group
        size, k = groups * len(strata), len(self.causes)
        out = np.zeros((size, k + 2, count), dtype=np.int64)
        np.add.at(out, (row[kind > 0], kind[kind > 0] - 1, cells[kind > 0]), 1)
        np.add.at(out, (row, np.full(len(row), k), cells), 1)
        if self.entry:
            start = read_times(frame, self.entry)
            begin = to_cells(start, self.grid, self.entry)
            if (begin >= cells).any():
                raise BadData(
                    f"some rows enter ({self.entry!r}) at or after the grid point at which they leave "
                    f"({self.time!r}). "
                    "Use a finer grid."
                )
            late = start > 0
            np.add.at(out, (row[late], np.full(int(late.sum()), k + 1), begin[late]), 1)
        return out.reshape(-1)

    def coordinate(self) -> Generator[Down, np.ndarray, LifetimeCounts]:
        total = yield {}
        parties, rows, dropped = (int(v) for v in total[:3])
        if rows == 0:
            raise BadData(f"{self.owner}: no party has a complete row.")
        agreement = design.agree(
            total[3 + _POWERS :], self.categories, self.levels or {}, self.owner, self.min_level_rows
        )
        cells = cells_from_powers(total[3 : 3 + _POWERS], self.grid, self.owner)
        groups, strata = self._shape(agreement)
        k = len(self.causes)
        total = yield {"levels": agreement.to_tensor(), "cells": torch.tensor(cells)}
        counts = np.asarray(total).reshape(len(strata), groups, k + 2, cells)
        last = int(np.flatnonzero(counts[:, :, k].sum(axis=(0, 1)))[-1]) + 1
        counts = counts[..., :last]
        return LifetimeCounts(
            grid_times(self.grid, last),
            list(agreement.levels[self.by]) if self.by else ["all"],
            [s[0] if len(s) == 1 else s for s in strata],
            list(self.causes),
            counts[:, :, :k],
            counts[:, :, k],
            counts[:, :, k + 1],
            rows,
            dropped,
            parties,
            describe_grid(self.grid, last),
        )


def _codes(frame: pd.DataFrame, name: str, agreement: design.Agreement) -> np.ndarray:
    return np.asarray(design.to_levels(frame[name], agreement.levels[name], name).codes, dtype=np.int64)
