"""A cross-tabulation with noise, and a test of independence that knows of the noise."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from ..protocols.sum_steps import Down
from .declared import level_codes
from .noisy import NoisyProgram

TABLES = 1999  # simulated tables: p-values down to 1/2000
LEAST_EXPECTED = 5.0  # smallest expected count of the χ² statistic, as in textbooks


@dataclass(frozen=True)
class NoisyCrosstab(NoisyProgram):
    """Counts by the levels of two columns, `categories`, in one noisy sum: one row is in one cell.

    Levels that were not declared, and missing values, come last, as in `CrosstabProgram`.
    """

    @property
    def shape(self) -> tuple[int, int]:
        (_, rows), (_, columns) = self.categories
        return len(rows) + 2, len(columns) + 2

    @cached_property
    def blocks(self) -> list[tuple[str, int, float]]:
        return [("counts", math.prod(self.shape), 1)]

    def _count(self, table: pd.DataFrame) -> list[np.ndarray]:
        rows, columns = self.categories
        i, j = (level_codes(table[name], levels) for name, levels in (rows, columns))
        place = i * self.shape[1] + j
        return [np.bincount(place, minlength=math.prod(self.shape))]

    def coordinate(self) -> Generator[Down, np.ndarray, np.ndarray]:  # type: ignore[override]
        total = yield {}
        return total.reshape(self.shape)


def independence_test(counts: np.ndarray, variance: float, rng: np.random.Generator) -> tuple[float, float]:
    """Return χ² of noisy counts and its p: how often independent columns, with the same noise, reach it.

    Gaboardi, Lim, Rogers, Vadhan: Differentially Private Chi-Squared Hypothesis Testing, ICML 2016, MCIndep.
    It uses the noisy counts alone, so it costs no ε. (NaN, NaN) where an expected count is below 5.
    """
    found = float(_chi_square(counts[None])[0])
    total = round(float(counts.sum()))
    if math.isnan(found):
        return math.nan, math.nan
    cells = np.outer(counts.sum(1), counts.sum(0)).reshape(-1)
    shares = cells / cells.sum()
    drawn = rng.multinomial(total, shares, TABLES).reshape(TABLES, *counts.shape)
    noisy = drawn + rng.normal(0.0, math.sqrt(variance), drawn.shape)
    simulated = _chi_square(noisy)
    # a table without a statistic counts as one that reaches it: p can only become larger
    reached = np.isnan(simulated) | (simulated >= found)
    return found, (1 + int(reached.sum())) / (TABLES + 1)


def _chi_square(tables: np.ndarray) -> np.ndarray:
    """χ² of each table; NaN where an expected count is too small."""
    rows, columns = tables.sum(2, keepdims=True), tables.sum(1, keepdims=True)
    total = tables.sum((1, 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = rows * columns / total[:, None, None]
        found = ((tables - expected) ** 2 / expected).sum((1, 2))
    usable = (total > 0) & (rows.min((1, 2)) > 0) & (expected.min((1, 2)) >= LEAST_EXPECTED)
    return np.where(usable & (min(tables.shape[1:]) > 1), found, np.nan)
