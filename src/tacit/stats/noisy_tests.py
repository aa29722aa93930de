"""Tests and intervals from noisy sums, which know of the noise: it is in their standard errors.

Everything here is computed from numbers that are private already, so it costs no ε. p-values are calibrated:
without an effect they are below 0.05 in about 5% of the cases (tests/stats/test_noisy_tests.py). A test
whose groups are smaller than the noise has no result (NaN), not a wrong one.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..accounting.compose import Release
from ..parties.ledger import Spend
from ..protocols.sum_steps import Down
from . import noise_share
from .comparisons import GroupTest, distributions
from .declared import to_numbers
from .description import ColumnMoments
from .noise_share import BOUND, SCALE, Block
from .noisy import Z
from .tables import check_columns

CLEAR = 4.0  # a group has to have this many standard deviations of its own noise as rows
SIMULATED = 1999  # tables under the null hypothesis: p-values down to 1/2000


def is_clear(rows: float, variance: float) -> bool:
    """Whether a noisy count is far above its noise."""
    return rows > CLEAR * math.sqrt(variance)


def compare_means(parts: Sequence[ColumnMoments]) -> GroupTest:
    """Test whether groups have the same mean, by their standard errors, noise included.

    Two groups: the difference over its standard error, by Welch's degrees of freedom where the error is the
    rows' and by the normal distribution where it is the noise's. More: Wald's χ² of the weighted means.
    """
    n, mean, se = (np.array([getattr(m, k) for m in parts], dtype=float) for k in ("n", "mean", "se"))
    name = "Welch t, with noise" if len(parts) == 2 else "Wald χ², with noise"
    if not (np.isfinite(mean).all() and np.isfinite(se).all() and (se > 0).all() and (n >= 2).all()):
        return GroupTest(name, math.nan, math.nan)
    if len(parts) == 2:
        error = math.sqrt(float((se**2).sum()))
        statistic = float(mean[0] - mean[1]) / error
        df = degrees_of_freedom(parts)
        return GroupTest(name, statistic, float(2 * distributions().t.sf(abs(statistic), df)), df)
    weight = 1 / se**2
    center = float((weight * mean).sum() / weight.sum())
    statistic, df = float((weight * (mean - center) ** 2).sum()), len(parts) - 1.0
    return GroupTest(name, statistic, float(distributions().chi2.sf(statistic, df)), df)


def degrees_of_freedom(parts: Sequence[ColumnMoments]) -> float:
    """Welch's, of the part of the variance that the rows have: noise of known size has infinitely many."""
    total = sum(m.se**2 for m in parts)
    own = [m.sd**2 / m.n for m in parts]
    each = sum(v**2 / max(m.n - 1, 1) for v, m in zip(own, parts))
    return min(total**2 / each, 1e9) if each > 0 else 1e9


def rank_test(
    first: np.ndarray, second: np.ndarray, variance: float, rng: np.random.Generator
) -> tuple[float, float, float]:
    """Return U, the share of pairs in which the first is larger (ties: half), and p, from noisy counts.

    S. Couch, Z. Kazan, K. Shi, A. Bray, A. Groce: Differentially Private Nonparametric Hypothesis Testing,
    CCS 2019: the distribution under the null hypothesis is simulated, noise included. Here both groups are
    drawn from the counts of all rows. NaN where a group is not clear of its noise.
    """
    n, m, noise = float(first.sum()), float(second.sum()), variance * len(first)
    if not (is_clear(n, noise) and is_clear(m, noise)):
        return math.nan, math.nan, math.nan
    share = _auc(first[None], second[None])[0]
    pooled = np.maximum(first + second, 0.0)
    chances = pooled / pooled.sum()
    a, b = (rng.multinomial(round(k), chances, SIMULATED).astype(float) for k in (n, m))
    for drawn in (a, b):
        drawn += rng.normal(0.0, math.sqrt(variance), drawn.shape)
    reached = np.abs(_auc(a, b) - 0.5) >= abs(share - 0.5)
    return share * n * m, float(share), (1 + int(reached.sum())) / (SIMULATED + 1)


def _auc(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    below = np.cumsum(second, axis=1) - second / 2
    found: np.ndarray = (first * below).sum(1) / (first.sum(1) * second.sum(1))
    return found


# correlation ------------------------------------------------------------------------------------------------

_SUMS = 6  # rows, Σa, Σb, Σa², Σb², Σab of a pair


@dataclass(frozen=True)
class NoisyCorrelation:
    """Pearson's correlations from one noisy sum: numbers are clipped and scaled to [−1, 1].

    A row changes each of the six sums of each pair by at most 1, so it changes the vector of all by at most
    √(6 · pairs).
    """

    parties: int
    epsilon: float
    delta: float
    numeric: tuple[tuple[str, float, float], ...]
    max_steps: int = 1
    bound: int = BOUND

    @property
    def columns(self) -> list[str]:
        return [name for name, _, _ in self.numeric]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        p = len(self.numeric)
        return [(i, j) for i in range(p) for j in range(i + 1, p)]

    @property
    def block(self) -> Block:
        length = _SUMS * len(self.pairs)
        return Block(length, math.sqrt(length), 1.0)

    @property
    def release(self) -> Release:
        return noise_share.release_of(self.epsilon, self.delta)

    @property
    def spend(self) -> Spend:
        return noise_share.spend_of(self.epsilon, self.delta, self.parties, "sums and products of columns")

    @property
    def variance(self) -> float:
        return noise_share.total_variance(self.epsilon, self.delta, self.parties, self.block)

    def length(self, step: int, down: Down) -> int:
        return self.block.length

    def sums(self, table: pd.DataFrame) -> np.ndarray:
        """The sums of one party, without noise."""
        check_columns(table, self.columns, "this party")
        scaled = [
            (2 * np.clip(to_numbers(table[name]), low, high) - low - high) / (high - low)
            for name, low, high in self.numeric
        ]
        x = np.array(scaled).reshape(len(self.numeric), len(table))
        found = []
        for i, j in self.pairs:
            both = ~(np.isnan(x[i]) | np.isnan(x[j]))
            a, b = x[i, both], x[j, both]
            found.append([len(a), a.sum(), b.sum(), a @ a, b @ b, a @ b])
        return np.array(found, dtype=float).reshape(-1)

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        return noise_share.add_noise([self.sums(table)], [self.block], self.epsilon, self.delta, self.parties)

    def coordinate(self) -> Generator[Down, np.ndarray, list[tuple[float, float, float, float]]]:
        """(rows, r, low, high) of each pair: 95% intervals by Fisher's z, with the noise."""
        total = np.asarray((yield {}), dtype=float).reshape(-1, _SUMS) / SCALE
        return [correlate(sums, self.variance) for sums in total]


def correlate(sums: np.ndarray, variance: float) -> tuple[float, float, float, float]:
    """Return rows, r and its 95% interval from noisy sums; NaN where the noise is too large for one."""
    n, r = float(sums[0]), _pearson(sums)
    if not is_clear(n, variance) or not abs(r) < 1:
        return n, math.nan, -1.0, 1.0
    step = math.sqrt(variance)
    slopes = [(_pearson(sums + e) - _pearson(sums - e)) / (2 * step) for e in np.eye(_SUMS) * step]
    # noise that may move a variance below 0 has no slope
    if not np.isfinite(slopes).all():
        return n, math.nan, -1.0, 1.0
    noise = variance * float(np.square(slopes).sum()) / (1 - r**2) ** 2
    half = Z * math.sqrt(1 / max(n - 3, 1) + noise)
    return n, r, math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)


def _pearson(sums: np.ndarray) -> float:
    n, a, b, aa, bb, ab = map(float, sums)
    spread = (aa - a * a / n) * (bb - b * b / n)
    positive = aa - a * a / n > 0 and bb - b * b / n > 0
    return (ab - a * b / n) / math.sqrt(spread) if n > 0 and positive else math.nan
