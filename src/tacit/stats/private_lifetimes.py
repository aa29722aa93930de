"""Counts of events on a declared grid, with noise: survival curves with differential privacy.

One sum: events by group, cause and grid point, and departures by group and grid point. One row is in one cell
of each at most, so both have sensitivity 1, and share the budget equally. `noisy_curves.py` has what follows
from the counts.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..accounting.compose import Release
from ..parties.ledger import Spend
from ..protocols.sum_steps import Down
from . import design, noise_share
from .bounded_design import declared_exits
from .lifetimes import _codes, read_events, read_times, to_cells
from .noise_share import BOUND, SCALE, Block


@dataclass
class NoisyCounts:
    groups: list[Any]
    events: np.ndarray  # group, cause, cell
    exits: np.ndarray  # group, cell
    variances: tuple[float, float]


@dataclass(frozen=True)
class PrivateLifetimeProgram:
    time: str
    event: str
    grid: Sequence[float]
    parties: int
    epsilon: float
    delta: float
    by: str | None = None
    groups: Sequence[Any] = ()
    causes: Sequence[Any] = (1,)

    @property
    def max_steps(self) -> int:
        return 1

    @property
    def bound(self) -> int:
        return BOUND

    @property
    def release(self) -> Release:
        return noise_share.release_of(self.epsilon, self.delta)

    @property
    def spend(self) -> Spend:
        return noise_share.spend_of(
            self.epsilon, self.delta, self.parties, "counts of events and departures on the grid"
        )

    @property
    def names(self) -> list[Any]:
        return list(self.groups) if self.by else ["all"]

    @property
    def blocks(self) -> list[Block]:
        size = len(self.names) * len(self.grid)
        return [Block(size * len(self.causes), 1.0, 0.5), Block(size, 1.0, 0.5)]

    def length(self, step: int, down: Down) -> int:
        return sum(block.length for block in self.blocks)

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        used = [c for c in (self.time, self.event, self.by) if c]
        design.check_columns(table, used)
        levels = {self.by: [design.plain_level(v) for v in self.groups]} if self.by else {}
        frame = declared_exits(table, used, levels, self.time, self.event, self.causes)
        # later times are departures at the end of the grid: nothing about them is opened
        end = float(self.grid[-1])
        times = read_times(frame, self.time)
        cells = to_cells(np.minimum(times, end), list(self.grid), self.time)
        cause = read_events(frame, self.event, tuple(self.causes))
        happened = (cause > 0) & (times <= end)
        group = np.zeros(len(frame), dtype=np.int64)
        if self.by:
            group = _codes(frame, self.by, design.Agreement({self.by: tuple(self.groups)}))
        place = group * len(self.grid) + cells
        which = (group * len(self.causes) + cause - 1) * len(self.grid) + cells
        parts = [
            np.bincount(which[happened], minlength=self.blocks[0].length),
            np.bincount(place, minlength=self.blocks[1].length),
        ]
        return noise_share.add_noise(parts, self.blocks, self.epsilon, self.delta, self.parties)

    def coordinate(self) -> Generator[Down, np.ndarray, NoisyCounts]:
        total = np.asarray((yield {}), dtype=np.float64) / SCALE
        events, exits = np.split(total, [self.blocks[0].length])
        events = events.reshape(len(self.names), len(self.causes), len(self.grid))
        exits = exits.reshape(len(self.names), len(self.grid))
        noise = [noise_share.total_variance(self.epsilon, self.delta, self.parties, b) for b in self.blocks]
        return NoisyCounts(self.names, events, exits, (noise[0], noise[1]))
