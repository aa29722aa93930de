"""Counts of events on a declared grid, with noise: Kaplan–Meier curves with differential privacy.

One sum: events and departures by group and grid point. One row is in one cell of each, so both have
sensitivity 1, and share the budget equally. The variance of log S adds to Greenwood's

    Σ_j σ_d² / (n_j − d_j)²  +  Σ_k σ_e² G(min(k, t))²,   G(k) = Σ_{j ≤ k} d_j / (n_j (n_j − d_j))

because an event's noise is in one factor of S, and the noise of a departure in all numbers at risk before it.
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
from .curves import log_log_interval
from .lifetimes import _codes, read_events, read_times, to_cells
from .noise_share import BOUND, SCALE, Block


@dataclass
class NoisyCounts:
    groups: list[Any]
    events: np.ndarray  # group, cell
    exits: np.ndarray
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
    missing: str = "drop"

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
        return [Block(size, 1.0, 0.5), Block(size, 1.0, 0.5)]

    def length(self, step: int, down: Down) -> int:
        return sum(block.length for block in self.blocks)

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        used = [c for c in (self.time, self.event, self.by) if c]
        design.check_columns(table, used)
        frame = design.complete_cases(table, used, self.missing)
        # later times are departures at the end of the grid: nothing about them is opened
        end = float(self.grid[-1])
        times = read_times(frame, self.time)
        cells = to_cells(np.minimum(times, end), list(self.grid), self.time)
        happened = (read_events(frame, self.event, (1,)) > 0) & (times <= end)
        group = np.zeros(len(frame), dtype=np.int64)
        if self.by:
            group = _codes(frame, self.by, design.Agreement({self.by: tuple(self.groups)}))
        place = group * len(self.grid) + cells
        size = self.blocks[0].length
        parts = [np.bincount(place[happened], minlength=size), np.bincount(place, minlength=size)]
        return noise_share.add_noise(parts, self.blocks, self.epsilon, self.delta, self.parties)

    def coordinate(self) -> Generator[Down, np.ndarray, NoisyCounts]:
        total = np.asarray((yield {}), dtype=np.float64) / SCALE
        shape = (len(self.names), len(self.grid))
        events, exits = (part.reshape(shape) for part in np.split(total, 2))
        noise = [noise_share.total_variance(self.epsilon, self.delta, self.parties, b) for b in self.blocks]
        return NoisyCounts(self.names, events, exits, (noise[0], noise[1]))


def noisy_survival_table(
    times: np.ndarray, events: np.ndarray, exits: np.ndarray, variances: tuple[float, float], level: float
) -> pd.DataFrame:
    """Return a survival curve from noisy counts, with intervals that include the noise."""
    n = np.maximum(np.cumsum(exits[::-1])[::-1], 1.0)
    d = np.clip(events, 0.0, 0.999 * n)
    survival = np.cumprod(1 - d / n)
    step = d / (n * (n - d))
    greenwood = np.cumsum(step)
    count = len(times)
    by_events = np.cumsum(variances[0] / (n - d) ** 2)
    by_exits = variances[1] * (np.cumsum(greenwood**2) + (count - 1 - np.arange(count)) * greenwood**2)
    variance = greenwood + by_events + by_exits
    low, high = log_log_interval(np.minimum(survival, 1 - 1e-12), variance, level)
    return pd.DataFrame(
        {
            "time": times,
            "at_risk": n,
            "events": d,
            "censored": np.maximum(exits - events, 0.0),
            "survival": survival,
            "se": survival * np.sqrt(variance),
            "low": low,
            "high": high,
        }
    )
