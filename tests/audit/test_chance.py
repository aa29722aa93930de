"""Chances of attacks against enumeration and other implementations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tacit.audit import chance


@pytest.mark.parametrize(
    ("right", "trials", "p"), [(0, 5, 0.2), (3, 5, 0.2), (90, 100, 0.5), (5, 5, 0.0), (1, 3, 1.0)]
)
def test_binomial_tail_is_that_of_scipy(right, trials, p):
    assert chance.binomial_tail(right, trials, p) == pytest.approx(
        stats.binom.sf(right - 1, trials, p), rel=1e-9
    )


def test_matches_bounds_the_share_of_permutations():
    """Of 6! permutations, those with at least k fixed points are at most 1/k! of all."""
    fixed = [sum(i == v for i, v in enumerate(order)) for order in itertools.permutations(range(6))]
    for k in range(7):
        share = np.mean([f >= k for f in fixed])
        assert share <= chance.matches(k) + 1e-12
    assert chance.matches(6) == pytest.approx(1 / math.factorial(6))


def test_differences_of_rates_are_pearsons_test():
    """One-sided: half of the p-value of χ² without correction."""
    expected = stats.chi2_contingency([[30, 10], [20, 20]], correction=False).pvalue / 2
    assert chance.more_often(30, 40, 20, 40) == pytest.approx(expected, rel=1e-9)
    assert chance.more_often(0, 40, 0, 40) == 1.0


def test_fishers_combination_is_that_of_scipy():
    assert chance.fisher([0.01, 0.2, 0.5]) == pytest.approx(stats.combine_pvalues([0.01, 0.2, 0.5]).pvalue)


def test_correlation_is_close_to_its_exact_test():
    x = np.random.default_rng(0).normal(size=(2, 50))
    exact = stats.pearsonr(*x, alternative="greater")
    assert chance.correlated(exact.statistic, 50) == pytest.approx(exact.pvalue, abs=0.01)
