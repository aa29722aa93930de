"""Counts, means and quantiles with differential privacy: one sum over all parties, with noise in it.

Every party adds discrete Gaussian noise to its part before it is masked, so the coordinator opens a noisy
sum and nothing else. What one row may change is bounded by declaration: numbers are clipped to bounds that
the query states, and levels are declared. Neighboring tables differ by adding or removing one row.

    ρ of zCDP is that of (ε, δ), shared equally by the statistics: rows by group; for a numeric column its
    count, sum, squares and histogram; the levels of a category. Each has noise of variance Δ²/(2ρ_each).

The guarantee holds if at least half of the parties add their noise: each adds 1/⌈n/2⌉ of the variance, so
the sum of all has up to twice the noise that is needed.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import ClassVar

import numpy as np
import pandas as pd

from ..accounting import discrete, distributed_multiplier
from ..accounting.compose import Release
from ..parameters import bad
from ..parties.ledger import Spend
from ..protocols.sum_steps import END, Down
from .counts import count_cells
from .declared import level_codes, to_numbers
from .description import ALL, ColumnMoments, Descriptions
from .tables import check_columns

SCALE = 1 << 16  # numbers in [0, 1] are summed in units of 1/SCALE
Z = 1.959963984540054  # of a 95% interval
GROWTH = 1.02
BRANCHES = 8  # of a histogram's level


@dataclass(frozen=True)
class NoisyProgram:
    """The program of one noisy sum. `numeric` are (name, low, high); `wants` are "moments", "histogram"."""

    if_left: ClassVar[str] = END
    parties: int
    epsilon: float
    delta: float
    numeric: tuple[tuple[str, float, float], ...] = ()
    categories: tuple[tuple[str, tuple[str, ...]], ...] = ()
    by: tuple[str, tuple[str, ...]] | None = None
    quantiles: tuple[float, ...] = (0.25, 0.5, 0.75)
    bins: int = 512
    wants: tuple[str, ...] = ("moments", "histogram")
    max_steps: int = 1
    bound: int = 1 << 46

    @property
    def cells(self) -> int:
        return 1 if self.by is None else len(self.by[1]) + 1

    @property
    def groups(self) -> tuple[str, ...]:
        return (ALL,) if self.by is None else (*self.by[1], ALL)

    @property
    def honest(self) -> int:
        """Parties whose noise the guarantee counts on."""
        return math.ceil(self.parties / 2)

    # --- the noise ------------------------------------------------------------------------------------------

    @property
    def counts_rows(self) -> bool:
        """Whether rows have a count of their own; a histogram alone has them as its total."""
        return self.wants != ("histogram",) or len(self.numeric) != 1 or bool(self.categories)

    @property
    def widths(self) -> tuple[int, ...]:
        """How many bins each level of a histogram has: `bins`, and counts of every 8, 64, … of them.

        A rank is the sum of a few counts of each level, and not of all bins below it, which would add up
        their noise. One row is in one count of each level.
        """
        widths = [self.bins]
        while widths[0] % BRANCHES == 0 and widths[0] > BRANCHES:
            widths.insert(0, widths[0] // BRANCHES)
        return tuple(widths)

    @cached_property
    def blocks(self) -> list[tuple[str, int, float]]:
        """(statistic, how many numbers, what one row changes at most), in the order of the vector."""
        found: list[tuple[str, int, float]] = [("rows", self.cells, 1)] if self.counts_rows else []
        for name, _, _ in self.numeric:
            if "moments" in self.wants:
                found += [(f"count {name}", self.cells, 1), (f"sum {name}", self.cells, SCALE)]
                found += [(f"squares {name}", self.cells, SCALE)]
            if "histogram" in self.wants:
                found.append(
                    (f"histogram {name}", self.cells * sum(self.widths), math.sqrt(len(self.widths)))
                )
        for name, levels in self.categories:
            found.append((f"levels {name}", self.cells * (len(levels) + 2), 1))
        return found

    @cached_property
    def multiplier(self) -> float:
        """σ over the sensitivity of each statistic."""
        rho = discrete.rho_of(self.epsilon, self.delta) / len(self.blocks)
        return math.sqrt(1 / (2 * rho))

    @cached_property
    def release(self) -> Release:
        """The whole query for an account: composed, the statistics have this multiplier."""
        return Release(self.multiplier / math.sqrt(len(self.blocks)), accountant="zcdp")

    def sigma(self, length: int, sensitivity: float) -> float:
        """The standard deviation of one party's noise, such that `honest` of them suffice."""
        each = self.multiplier * sensitivity / math.sqrt(self.honest)
        if self.honest == 1:
            return each
        while distributed_multiplier(
            math.sqrt(self.honest) * each / sensitivity, each, self.honest, length
        ) < self.multiplier * (1 - 1e-9):
            each *= GROWTH
        return each

    def variance(self, length: int, sensitivity: float) -> float:
        """The variance of the noise in the sum over all parties."""
        return float(discrete.rational_above(self.sigma(length, sensitivity) ** 2)) * self.parties

    @property
    def spend(self) -> Spend:
        return Spend(
            f"discrete Gaussian noise in {len(self.blocks)} statistics, σ/Δ = {self.multiplier:.4g} each",
            self.epsilon,
            self.delta,
            "one row",
            f"everyone, if at least {self.honest} of {self.parties} parties add their noise",
            "none",
        )

    # --- a party --------------------------------------------------------------------------------------------

    def length(self, step: int, down: Down) -> int:
        return sum(n for _, n, _ in self.blocks)

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        names = [n for n, _, _ in self.numeric] + [n for n, _ in self.categories]
        check_columns(table, [*names, *([self.by[0]] if self.by else [])], "this party")
        parts = self._count(table)
        return np.concatenate(
            [
                part + discrete.gaussian(discrete.rational_above(self.sigma(n, sensitivity) ** 2), n)
                for part, (_, n, sensitivity) in zip(parts, self.blocks)
            ]
        )

    def _count(self, table: pd.DataFrame) -> list[np.ndarray]:
        if self.by is None:
            cell = np.zeros(len(table), np.int64)
        else:
            cell = np.minimum(level_codes(table[self.by[0]], self.by[1]), self.cells - 1)
        parts = [np.bincount(cell, minlength=self.cells)] if self.counts_rows else []
        for name, low, high in self.numeric:
            x = to_numbers(table[name])
            present = ~np.isnan(x)
            unit, c = (np.clip(x[present], low, high) - low) / (high - low), cell[present]
            if "moments" in self.wants:
                parts.append(np.bincount(c, minlength=self.cells))
                for values in (unit, unit**2):
                    whole = np.rint(values * SCALE).astype(np.int64)
                    sums = np.zeros(self.cells, np.int64)
                    np.add.at(sums, c, whole)
                    parts.append(sums)
            if "histogram" in self.wants:
                fine = np.stack(
                    [count_cells(unit[c == k], 0.0, 1.0, self.bins)[1:-1] for k in range(self.cells)]
                )
                levels_of = [fine.reshape(self.cells, w, -1).sum(2) for w in self.widths]
                parts.append(np.concatenate(levels_of, axis=1).reshape(-1))
        for name, levels in self.categories:
            width = len(levels) + 2
            place = cell * width + level_codes(table[name], levels)
            parts.append(np.bincount(place, minlength=self.cells * width))
        return parts

    # --- the coordinator ------------------------------------------------------------------------------------

    def coordinate(self) -> Generator[Down, np.ndarray, Descriptions]:
        total = yield {}
        ends = np.cumsum([n for _, n, _ in self.blocks])[:-1]
        found = {name: part for (name, _, _), part in zip(self.blocks, np.split(total, ends))}
        noise = {name: self.variance(n, s) for name, n, s in self.blocks}
        if self.counts_rows:
            rows = self._with_all(found["rows"])
        else:
            levels_of = found[f"histogram {self.numeric[0][0]}"].reshape(self.cells, -1)
            rows = self._with_all(levels_of[:, : self.widths[0]].sum(1))
        moments: dict[str, dict[str, ColumnMoments]] = {}
        for name, low, high in self.numeric:
            moments[name] = {
                group: self._moments(name, g, int(rows[g]), low, high, found, noise)
                for g, group in enumerate(self.groups)
            }
        tables = {
            name: dict(
                zip(self.groups, np.maximum(self._with_all(found[f"levels {name}"], len(levels) + 2), 0))
            )
            for name, levels in self.categories
        }
        raw = {
            name: (
                found[f"levels {name}"].reshape(self.cells, -1)[: len(self.groups) - 1].astype(float),
                noise[f"levels {name}"],
            )
            for name, _ in self.categories
        }
        return Descriptions(dict(zip(self.groups, np.maximum(rows, 0).tolist())), moments, tables, raw)

    def _with_all(self, counts: np.ndarray, width: int = 1) -> np.ndarray:
        counts = counts.reshape(self.cells, width) if width > 1 else counts
        groups = counts[:0] if self.by is None else counts[:-1]
        return np.concatenate([groups, counts.sum(0, keepdims=True)])

    def _moments(
        self,
        name: str,
        g: int,
        rows: int,
        low: float,
        high: float,
        found: dict[str, np.ndarray],
        noise: dict[str, float],
    ) -> ColumnMoments:
        cells = self.cells if self.groups[g] == ALL else 1  # whose noise is added up
        width = high - low
        n, mean, sd = float(max(rows, 0)), math.nan, math.nan
        interval: tuple[float, float] | None = None
        se = math.nan
        if "moments" in self.wants:
            n, sums, squares = (
                float(self._with_all(found[f"{kind} {name}"])[g]) for kind in ("count", "sum", "squares")
            )
            if n >= 1:
                unit = min(max(sums / SCALE / n, 0.0), 1.0)
                spread = max(squares / SCALE / n - unit**2, 0.0)
                mean, sd = low + width * unit, width * math.sqrt(spread * n / max(n - 1, 1))
                error = cells * (noise[f"sum {name}"] / SCALE**2 + unit**2 * noise[f"count {name}"]) / n**2
                se = width * math.sqrt(spread / n + error)
                margin = Z * se
                interval = max(mean - margin, low), min(mean + margin, high)
        quantiles = {}
        if "histogram" in self.wants:
            counts = self._with_all(found[f"histogram {name}"], sum(self.widths))[g]
            for q in self.quantiles:
                quantiles[q] = self._quantile(q, counts, cells * noise[f"histogram {name}"], low, width)
        return ColumnMoments(max(int(n), 0), max(rows - int(n), 0), mean, sd, quantiles, interval, se)

    def _quantile(
        self, q: float, counts: np.ndarray, variance: float, low: float, width: float
    ) -> tuple[float, float, float]:
        """The value and its 95% interval. `counts` are those of all levels, each with this variance."""
        below, noise = self._ranks(counts, variance)
        total = float(below[-1])
        edges = low + width * np.arange(self.bins + 1) / self.bins
        if q in (0, 1):
            fine = np.concatenate([[0.0], np.cumsum(counts[-self.bins :])])
            return _extreme(fine if q == 0 else fine[-1] - fine[::-1], variance, edges, is_min=q == 0)
        # never falling: between the running maximum from below and the running minimum from above
        rising = (np.maximum.accumulate(below) + np.minimum.accumulate(below[::-1])[::-1]) / 2
        place = int(np.clip(np.searchsorted(rising, q * total), 0, self.bins))
        # of the rank, of q times the number of rows (they have counts in common: together it is less), and of
        # the rows as a sample
        spread = noise[place] + noise[-1] * q**2 + max(total, 0.0) * q * (1 - q)
        margin = Z * math.sqrt(spread)
        values = [
            float(np.interp(min(max(q * total + shift, rising[0]), rising[-1]), rising, edges))
            for shift in (-margin, 0.0, margin)
        ]
        step = width / self.bins
        return max(values[0] - step, low), values[1], min(values[2] + step, low + width)

    def _ranks(self, counts: np.ndarray, variance: float) -> tuple[np.ndarray, np.ndarray]:
        """Rows below each edge of the bins, and the variance of their noise: few counts of each level."""
        below, noise, at = np.zeros(1), np.zeros(1), 0
        for level, w in enumerate(self.widths):
            part = counts[at : at + w].astype(float)
            at += w
            inside = part.reshape(len(below) - 1 if level else 1, -1)
            before = np.cumsum(inside, axis=1) - inside
            steps = np.broadcast_to(np.arange(inside.shape[1]), inside.shape)
            starts = below[:-1] if level else below
            first = noise[:-1] if level else noise
            new = (starts[:, None] + before).reshape(-1)
            new_noise = (first[:, None] + steps * variance).reshape(-1)
            end, end_noise = (below[-1], noise[-1]) if level else (float(part.sum()), variance * w)
            below, noise = np.append(new, end), np.append(new_noise, end_noise)
        return below, noise


def _extreme(
    below: np.ndarray, variance: float, edges: np.ndarray, is_min: bool
) -> tuple[float, float, float]:
    """The smallest or largest number as far as noise lets it be seen, and its interval.

    The first window of 1, 2, 4, … bins, from the end, that has more rows than its noise explains: with
    probability 97.5%, also over all windows, some row is there. Beyond it may be rows, up to the declared
    bound, which ends the interval.
    """
    bins = len(edges) - 1
    widths = [1 << k for k in range(bins.bit_length()) if 1 << k <= bins]
    limit = math.sqrt(variance) * NormalDist().inv_cdf(1 - 0.025 / (bins * len(widths)))
    last = bins - 1
    for width in widths:
        found = np.flatnonzero(below[width:] - below[:-width] > limit * math.sqrt(width))
        last = min(last, int(found[0]) + width - 1 if len(found) else last)
    if is_min:
        return float(edges[0]), float(edges[last + 1]), float(edges[last + 1])
    value = float(edges[bins - 1 - last])
    return value, value, float(edges[-1])


@dataclass(frozen=True)
class NoisyHistogram(NoisyProgram):
    """The noisy counts of one column themselves."""

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.bins,)  # the counts themselves are of interest

    @cached_property
    def blocks(self) -> list[tuple[str, int, float]]:
        return [("histogram", self.cells * self.bins, 1)]

    def coordinate(self) -> Generator[Down, np.ndarray, np.ndarray]:  # type: ignore[override]
        total = yield {}
        return total.reshape(self.cells, self.bins)


def check_privacy(owner: str, epsilon: float, delta: float) -> None:
    """Raise unless ε and δ are a guarantee."""
    if not isinstance(epsilon, int | float) or not 0 < epsilon < math.inf:
        raise bad(owner, "epsilon", epsilon, "a number above 0")
    if not isinstance(delta, int | float) or not 0 < delta < 1:
        raise bad(owner, "delta", delta, "a probability between 0 and 1, well below 1 / rows")
