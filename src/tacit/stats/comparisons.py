"""Tests and effect sizes from counts, means and standard deviations: SciPy's formulas on summed numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import MissingExtra


class GroupTest(NamedTuple):
    """A test of a difference between groups; NaN where it cannot be computed."""

    name: str
    statistic: float
    p: float
    df: float = math.nan


def distributions() -> Any:
    try:
        from scipy import stats
    except ImportError:
        raise MissingExtra("a test or an interval", "stats", "scipy") from None
    return stats


def ttest(n: Sequence[int], mean: Sequence[float], sd: Sequence[float], equal_var: bool = False) -> GroupTest:
    """Welch's t test of two groups, or Student's with equal_var; each needs two rows."""
    name = "t" if equal_var else "Welch t"
    if min(n) < 2 or not any(sd):
        return GroupTest(name, math.nan, math.nan)
    found = distributions().ttest_ind_from_stats(
        mean[0], sd[0], n[0], mean[1], sd[1], n[1], equal_var=equal_var
    )
    if equal_var:
        df = n[0] + n[1] - 2.0
    else:
        a, b = sd[0] ** 2 / n[0], sd[1] ** 2 / n[1]
        df = (a + b) ** 2 / (a**2 / (n[0] - 1) + b**2 / (n[1] - 1))
    return GroupTest(name, float(found.statistic), float(found.pvalue), df)


def anova(n: Sequence[int], mean: Sequence[float], sd: Sequence[float]) -> GroupTest:
    """One-way analysis of variance of the groups that have rows."""
    sizes, means, sds = (np.array([v for v, k in zip(values, n) if k > 0], float) for values in (n, mean, sd))
    groups, total = len(sizes), sizes.sum()
    within = float(((sizes - 1) * np.where(sizes > 1, np.nan_to_num(sds), 0) ** 2).sum())
    if groups < 2 or total <= groups or within == 0:
        return GroupTest("ANOVA F", math.nan, math.nan)
    between = float((sizes * (means - (sizes * means).sum() / total) ** 2).sum())
    f = (between / (groups - 1)) / (within / (total - groups))
    return GroupTest(
        "ANOVA F", f, float(distributions().f.sf(f, groups - 1, total - groups)), float(groups - 1)
    )


def chi_square(counts: np.ndarray) -> GroupTest:
    """Pearson's χ² test of independence, without a correction; rows and columns without counts left out."""
    table = np.asarray(counts)
    table = table[table.sum(1) > 0][:, table.sum(0) > 0]
    if min(table.shape) < 2:
        return GroupTest("χ²", math.nan, math.nan)
    found = distributions().chi2_contingency(table, correction=False)
    return GroupTest("χ²", float(found.statistic), float(found.pvalue), float(found.dof))


def mean_difference(mean: Sequence[float], sd: Sequence[float]) -> float:
    """The standardized mean difference of two groups: |difference| / √((s₁² + s₂²)/2)."""
    spread = math.sqrt((sd[0] ** 2 + sd[1] ** 2) / 2)
    return abs(mean[0] - mean[1]) / spread if spread else math.nan


def share_difference(first: np.ndarray, second: np.ndarray) -> float:
    """The standardized difference of two distributions over levels (Yang, Dalton 2012)."""
    if first.sum() == 0 or second.sum() == 0 or len(first) < 2:
        return math.nan
    p, q = first[1:] / first.sum(), second[1:] / second.sum()
    covariance = (np.diag(p) - np.outer(p, p) + np.diag(q) - np.outer(q, q)) / 2
    difference = p - q
    squared = float(difference @ np.linalg.pinv(covariance) @ difference)
    return math.sqrt(max(squared, 0.0))


def mann_whitney(first: np.ndarray, second: np.ndarray) -> GroupTest:
    """The Mann–Whitney U test from counts by ordered cells; numbers in one cell are ties.

    U is that of the first group; p is two-sided, from the normal approximation with ties and a continuity
    correction, as scipy.stats.mannwhitneyu(method="asymptotic").
    """
    n, m = int(first.sum()), int(second.sum())
    total = first + second
    if n == 0 or m == 0:
        return GroupTest("Mann–Whitney U", math.nan, math.nan)
    before = np.cumsum(total) - total
    ranks = before + (total + 1) / 2  # the mean rank of a cell
    u = float((ranks * first).sum() - n * (n + 1) / 2)
    ties = float((total.astype(float) ** 3 - total).sum())
    size = n + m
    variance = n * m / 12 * (size + 1 - ties / (size * (size - 1)))
    if variance <= 0:
        return GroupTest("Mann–Whitney U", u, 1.0)
    z = (max(u, n * m - u) - n * m / 2 - 0.5) / math.sqrt(variance)
    return GroupTest("Mann–Whitney U", u, min(1.0, float(2 * distributions().norm.sf(z))))
