"""Cells of numeric columns that follow the column's distribution, chosen under differential privacy.

Cells of equal width lose two things that tell synthetic rows from real ones. Of a skewed column nearly
all rows are in one cell; and a value that many rows share (no capital gain, a standard rate) becomes any
number of its cell. Both are found with a part ρ of the budget: a third of it for each of three noisy
histograms of a column. One record added or removed changes one count of each by one.

    values    distinct values that occur; one is listed, and becomes a cell of its own, if its noisy count
              reaches a threshold that a value of a single row reaches with probability at most δ
              (A. Korolova, K. Kenthapadi, N. Mishra, A. Ntoulas: *Releasing search queries and clicks
              privately*, WWW 2009)
    coarse    `bins` cells of equal width, of all values that are not listed
    fine      the same cells, each divided into 32

Everything else follows from these counts. Cells have about equal mass; ranges in which no coarse count is
above the noise are cells of their own. Within a cell, values are drawn along quantiles of the fine counts.
Columns with one cell for each value stay as they are. The counts of the new cells are measured
afterwards, with the rest of the budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pandas as pd

from ..accounting.gaussian import stability_threshold
from ..parties.secret import Secret
from .domains import NoisyAnswers
from .marginals import Grid

PARTS = 32  # fine cells of a coarse one: 1,024 in all, for columns that span three orders of magnitude
ABOVE = 3.0  # standard deviations of the noise above which a cell counts as occupied
QUANTILES = 8  # parts of equal mass within a cell
THRESHOLDS = 0.05  # share of δ for values of single rows: a larger one takes more from other counts
# Two columns of k cells are counted with about k² √(2/π) σ rows of noise. With k² = n / (3σ) that is a
# quarter of the n rows. With up to twice as many cells, figures of four tables were equal; with four times
# as many, no pair of the amounts of credit cards was worth its noise.
MASS = 3.0


@dataclass(frozen=True)
class CellEstimate:
    """A grid with cells of its own for some columns, and the ρ and δ that they cost."""

    grid: Grid
    rho: Fraction = Fraction(0)
    delta: float = 0.0


def open_numbers(grid: Grid) -> list[int]:
    """Return the numeric columns that have more values than cells."""
    return [
        j
        for j, c in enumerate(grid.columns)
        if c.is_number and c.ends[0] < c.ends[1] and (grid.count_values(j) or math.inf) > grid.bins
    ]


def estimate_cells(
    frame: pd.DataFrame, grid: Grid, rho: float, delta: float, secret: Secret, pair_noise: float = 0.0
) -> CellEstimate:
    """Choose cells of numeric columns for at most ρ of zero-concentrated privacy and δ of thresholds.

    `pair_noise` is the standard deviation of the noise with which pairs of columns will be counted: more
    of it makes fewer cells.
    """
    columns = open_numbers(grid)
    if not columns or not rho:
        return CellEstimate(grid)
    answers = NoisyAnswers(secret, rho)
    # a sum of shares that is rounded up would be refused
    share = rho / (3 * len(columns)) * (1 - 1e-9)
    cells = {}
    for j in columns:
        place = grid.places(j, frame[grid.columns[j].name])
        cells[j] = _choose_cells(
            grid, j, place[~np.isnan(place)], share, delta / len(columns), answers, pair_noise
        )
    return CellEstimate(replace(grid, knots=cells), answers.spent, delta)


def _choose_cells(
    grid: Grid, j: int, place: np.ndarray, rho: float, delta: float, answers: NoisyAnswers, pair_noise: float
) -> np.ndarray:
    """Return the knots of the cells of one column."""
    shared, listed = _list_values(place, grid.bins, rho, delta, answers)
    rest = place[~np.isin(place, shared)]
    # multiples of the step, or numbers: the ends of `bins` and of 32 · bins cells of equal width
    whole = grid.count_values(j)
    low, high = (0.0, float(whole)) if whole else grid.columns[j].ends
    fine = np.linspace(low, high, grid.bins * PARTS + 1)
    if whole:
        fine = np.round(fine)
    counts = []
    for edges in (fine[::PARTS], fine):
        code = np.clip(np.searchsorted(edges, rest, side="right") - 1, 0, len(edges) - 2)
        counts.append(answers.count(np.bincount(code, minlength=len(edges) - 1), rho))
    (coarse, variance), (parts, _) = counts
    sigma = math.sqrt(variance)
    occupied = coarse >= ABOVE * sigma
    mass = _spread(np.where(occupied, coarse, 0.0), parts, np.diff(fine), sigma)
    if occupied.any():
        share = mass.sum() / (mass.sum() + listed)
        most = math.sqrt((mass.sum() + listed) / (MASS * pair_noise)) if pair_noise else grid.bins
        starts = _divide(fine, mass, occupied, max(round(share * min(most, grid.bins)), 2))
    else:
        starts = fine[:-1:PARTS]
    after = shared + 1 if whole else np.nextafter(shared, np.inf)
    starts = np.unique(np.concatenate([starts, shared, after[after < high]]))
    return _quantiles(starts, high, fine, mass, np.isin(starts, shared))


def _list_values(
    x: np.ndarray, bins: int, rho: float, delta: float, answers: NoisyAnswers
) -> tuple[np.ndarray, float]:
    """Return values that many rows share, and about how many rows have them.

    At most half of the cells: those with the largest noisy counts.
    """
    values, exact = np.unique(x, return_counts=True)
    counts, variance = answers.count(exact, rho)
    listed = counts >= 1 + stability_threshold(float(variance), delta)
    order = np.flatnonzero(listed)[np.argsort(-counts[listed], kind="stable")[: bins // 2]]
    return np.sort(values[order]), float(counts[order].sum())


def _spread(coarse: np.ndarray, parts: np.ndarray, widths: np.ndarray, sigma: float) -> np.ndarray:
    """Return the mass of all fine cells: counts above the noise, and the rest of each coarse cell evenly.

    A fine cell without width has no mass: a column with a step may have fewer values than fine cells.
    """
    widths = widths.reshape(-1, PARTS)
    clear = np.where((parts >= ABOVE * sigma) & (widths.ravel() > 0), parts, 0.0).reshape(-1, PARTS)
    clear *= (np.minimum(clear.sum(axis=1), coarse) / np.maximum(clear.sum(axis=1), 1.0))[:, None]
    rest = (coarse - clear.sum(axis=1)) / widths.sum(axis=1)
    return np.asarray(clear + rest[:, None] * widths).ravel()


def _divide(fine: np.ndarray, mass: np.ndarray, occupied: np.ndarray, number: int) -> np.ndarray:
    """Return the starts of about `number` cells of equal mass, and of each run of empty coarse ones.

    `fine` are the ends of all fine cells, `occupied` tells which coarse cells are not.
    """
    before = np.cumsum(mass)
    cuts = np.searchsorted(before, before[-1] * np.arange(1, number) / number) + 1
    runs = np.flatnonzero(np.diff(occupied.astype(np.int64))) + 1
    return np.unique(fine[np.r_[0, cuts[cuts < len(mass)], runs * PARTS]])


def _quantiles(
    starts: np.ndarray, high: float, fine: np.ndarray, mass: np.ndarray, single: np.ndarray
) -> np.ndarray:
    """Return the ends of `QUANTILES` parts of equal mass of each cell; all equal if the cell is a value."""
    ends = np.append(starts[1:], high)
    widths = np.diff(fine)
    # where nothing was counted, parts have equal width: the sum must rise there too
    total = np.append(0.0, np.cumsum(mass + max(mass.sum(), 1.0) * 1e-6 * widths / widths.sum()))
    (a, b) = (np.interp(e, fine, total) for e in (starts, ends))
    knots = np.interp(a[:, None] + (b - a)[:, None] * np.linspace(0, 1, QUANTILES + 1), total, fine)
    knots[:, 0], knots[:, -1] = starts, ends
    return np.where(single[:, None], starts[:, None], knots)
