"""What may be published of a data-dependent cost: the change is never larger than it is said to be, and the
release costs what it says.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from tacit.accounting import smooth, votes

TEACHERS, CLASSES, SIGMA2 = 30, 4, 16
GAPS = votes.gaussian_gaps(Fraction(SIGMA2), TEACHERS + 2)
PRICE = votes.CostTable("gaussian", float(SIGMA2), votes.ORDERS)
AT = int(np.searchsorted(votes.ORDERS, 6.0))


def cost(counts: np.ndarray) -> float:
    return float(PRICE.of(GAPS.other(counts))[:, AT].sum())


def moved(counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One teacher votes otherwise, on every question."""
    out = counts.copy()
    for row in out:
        i = rng.choice(np.flatnonzero(row))
        row[i] -= 1
        row[rng.integers(CLASSES)] += 1
    return out


def some(rng: np.random.Generator) -> np.ndarray:
    shares = rng.dirichlet(np.array([6.0, 1, 0.5, 0.5]), 5)
    return np.array([rng.multinomial(TEACHERS, s) for s in shares])


def changes(counts: np.ndarray) -> np.ndarray:
    return smooth.change_of_votes(PRICE, GAPS, CLASSES, GAPS.other(counts), AT, TEACHERS + 2)


def test_the_cost_of_a_neighbor_differs_by_at_most_the_stated_change():
    """From counts that are d votes away, one more vote changes the cost by at most changes[d]: random walks
    of neighbors, from random counts.
    """
    rng = np.random.default_rng(0)
    largest = 0.0
    for _ in range(60):
        start = here = some(rng)
        bound = changes(start)
        for d in range(12):
            there = moved(here, rng)
            step = abs(cost(there) - cost(here))
            assert step <= bound[d] + 1e-12
            largest, here = max(largest, step / bound[d]), there
    assert largest > 0.2, "a bound that nothing comes near would prove nothing"


def test_the_worst_neighbor_of_equal_gaps_attains_the_change():
    """Where all gaps are equal and all of them move by 2 as with two classes, the bound is met but for the
    grid.
    """
    gaps = votes.gaussian_gaps(Fraction(SIGMA2), 40)
    counts, near = np.array([[22, 10]]), (np.array([[21, 11]]), np.array([[23, 9]]))
    bound = smooth.change_of_votes(PRICE, gaps, 2, gaps.other(counts), AT, 1)[0]
    found = max(abs(PRICE.of(gaps.other(n))[0, AT] - PRICE.of(gaps.other(counts))[0, AT]) for n in near)
    assert 0.9 * bound <= found <= bound + 1e-12


def test_smooth_sensitivity_is_smooth():
    rng = np.random.default_rng(1)
    beta = 0.1
    for _ in range(40):
        here = some(rng)
        there = moved(here, rng)
        a, b = smooth.smooth(changes(here), beta), smooth.smooth(changes(there), beta)
        assert a <= math.exp(beta) * b + 1e-12
        assert b <= math.exp(beta) * a + 1e-12


def test_the_change_of_a_check_by_hand():
    """Costs 0 0 1 5 5 by the largest count. Next to count 1 one vote makes 0 or 1 of difference; from two
    votes away it may make 4.
    """
    table = np.array([0.0, 0, 1, 5, 5])
    assert smooth.change_of_check(table, np.array([0]), 4).tolist() == [0, 1, 4, 4]
    assert smooth.change_of_check(table, np.array([1, 3]), 2).tolist() == [1 + 4, 4 + 4]


@pytest.mark.parametrize(
    ("order", "beta", "kappa", "z"), [(8.0, 0.02, 10.0, 3.0), (3.0, 0.1, 4.0, 0.0), (20.0, 0.01, 30.0, 4.0)]
)
def test_the_release_costs_the_divergence_of_its_two_gaussians(order, beta, kappa, z):
    """By numerical integration, over deviations that differ by e^b and means as far apart as they may be."""
    told = smooth.release_cost(order, beta, kappa, z)
    for b in np.linspace(-beta, beta, 9):
        s0, s1 = kappa, kappa * math.exp(b)
        apart = min(1.0, math.exp(b)) + z * abs(
            s1 - s0
        )  # the cost moves by at most either sensitivity, the lift by z times the difference
        x = np.linspace(-60 * kappa, 60 * kappa, 400_001)
        log = order * _log(x, 0.0, s0) + (1 - order) * _log(x, apart, s1)
        exact = (log.max() + math.log(np.exp(log - log.max()).sum() * (x[1] - x[0]))) / (order - 1)
        assert exact <= told + 1e-6
    assert told < math.inf


def _log(x: np.ndarray, mean: float, sigma: float) -> np.ndarray:
    return -((x - mean) ** 2) / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi))


def test_deviations_too_unlike_for_an_order_have_no_guarantee():
    assert smooth.release_cost(10.0, 0.2, 5.0, 1.0) == math.inf


def test_what_is_published_is_rarely_below_the_cost():
    """Below with probability 0.05. 400 draws: more than 45 of them are below with probability 1e-6 (binomial
    tail).
    """
    shake = np.random.default_rng(2)
    found = [smooth.release(1.0, np.full(10, 0.01), 8.0, 0.05, source=shake.bytes) for _ in range(400)]
    assert sum(r.cost < 1.0 for r in found) <= 45
    assert sum(r.cost < 1.0 for r in found) >= 2, "it is noise: 1 or none of 400 has probability 1e-7"
    assert {r.own for r in found} == {smooth.release(1.0, np.full(10, 7.0), 8.0, 0.05).own}, (
        "what it costs does not depend on the votes"
    )
