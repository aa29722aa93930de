"""What votes cost: the papers' own figures, and every bound against the exact divergence of the mechanism
that is run.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from tacit.accounting import votes


def laplace_law(scale: int, far: int) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(-far, far + 1)
    p = np.exp(-np.abs(y) / scale)
    return y, p / p.sum()


def gaussian_law(variance: float, far: int) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(-far, far + 1)
    p = np.exp(-(y**2) / (2 * variance))
    return y, p / p.sum()


def outcome(counts: list[int], y: np.ndarray, p: np.ndarray, step: int = 1) -> np.ndarray:
    """The probability of each class, exactly: its noisy count must exceed those of lower classes and reach
    those of higher ones.
    """
    below = np.concatenate([[0.0], np.cumsum(p)])  # P(noise < y[k])
    out = []
    for j, c in enumerate(counts):
        win = p.copy()
        for i, other in enumerate(counts):
            if i != j:
                gap = step * (c - other) + (1 if j < i else 0)  # a tie goes to the lower class
                win *= below[np.clip(np.arange(len(y)) + gap, 0, len(y))]
        out.append(win.sum())
    return np.array(out)


def renyi(a: np.ndarray, b: np.ndarray, order: float) -> float:
    terms = order * np.log(a) + (1 - order) * np.log(b)
    return float((terms.max() + np.log(np.exp(terms - terms.max()).sum())) / (order - 1))


def neighbors(counts: list[int]) -> list[list[int]]:
    """Counts after one teacher voted otherwise."""
    return [
        [c - (k == i) + (k == j) for k, c in enumerate(counts)]
        for i in range(len(counts))
        for j in range(len(counts))
        if i != j and counts[i] > 0
    ]


COUNTS = [[20, 3, 2], [12, 12, 1], [25, 0, 0], [9, 8, 8], [18, 7, 0]]


def test_the_data_independent_figures_of_the_papers():
    assert votes.laplace_votes_epsilon(0.05, 100, 1e-5) == pytest.approx(5.3026, abs=5e-5)
    assert votes.gaussian_votes_epsilon(286 / 40**2, 1e-5) == pytest.approx(3.0479, abs=5e-5)


def test_few_answers_by_laplace_cost_no_more_than_pure_composition():
    assert votes.laplace_votes_epsilon(0.05, 1, 1e-5) == pytest.approx(0.1)
    assert votes.laplace_votes_epsilon(0.05, 0, 1e-5) == 0


@pytest.mark.parametrize(("scale", "step"), [(3, 1), (5, 2), (1, 1)])
def test_laplace_gaps_are_those_of_the_law_written_out(scale, step):
    _, p = laplace_law(scale, 60 * scale)
    difference = np.convolve(p, p[::-1])
    d = np.arange(-(len(difference) // 2), len(difference) // 2 + 1)
    gaps = votes.laplace_gaps(scale, step, 8)
    for g in range(-8, 9):
        assert gaps.of(np.array([g]))[0] == pytest.approx(difference[d >= step * g].sum(), rel=1e-6)


@pytest.mark.parametrize("variance", [Fraction(7, 2), Fraction(16), Fraction(1, 4)])
def test_gaussian_gaps_are_those_of_the_law_written_out(variance):
    y, p = gaussian_law(float(variance), 100)
    difference = np.convolve(p, p[::-1])
    d = np.arange(-200, 201)
    gaps = votes.gaussian_gaps(variance, 12)
    for g in range(-12, 13):
        assert gaps.of(np.array([g]))[0] == pytest.approx(difference[d >= g].sum(), rel=1e-6, abs=1e-290)
        assert votes.gaussian_above(variance, np.array([g]))[0] == pytest.approx(
            p[y >= g].sum(), rel=1e-6, abs=1e-290
        )


def test_large_noise_is_near_the_papers_continuous_formulas():
    gaps = votes.gaussian_gaps(Fraction(1600), 250)
    laplace = votes.laplace_gaps(20, 1, 250)
    for g in (10, 50, 150, 250):
        assert gaps.of(np.array([g]))[0] == pytest.approx(math.erfc(g / 80) / 2, rel=0.05)
        assert laplace.of(np.array([g]))[0] == pytest.approx(
            (2 + 0.05 * g) / (4 * math.exp(0.05 * g)), rel=0.03
        )


@pytest.mark.parametrize("counts", COUNTS)
def test_another_outcome_than_the_plurality_is_at_most_as_likely_as_q(counts):
    table = np.array([counts])
    y, p = gaussian_law(9.0, 150)
    assert 1 - outcome(counts, y, p)[0] <= votes.gaussian_gaps(Fraction(9), 30).other(table)[0]
    y, p = laplace_law(4, 300)
    assert 1 - outcome(counts, y, p)[0] <= votes.laplace_gaps(4, 1, 30).other(table)[0]


@pytest.mark.parametrize("counts", COUNTS)
def test_the_gaussian_cost_bounds_the_exact_divergence_to_every_neighbor(counts):
    """Data-dependent Rényi privacy by its definition: D_λ(M(D) ‖ M(D')) for all D', with the probabilities of
    the discrete mechanism.
    """
    variance = 16
    y, p = gaussian_law(variance, 250)
    price = votes.CostTable("gaussian", float(variance), votes.ORDERS)
    cost = price.of(votes.gaussian_gaps(Fraction(variance), 30).other(np.array([counts])))[0]
    here = outcome(counts, y, p)
    for other in neighbors(counts):
        there = outcome(other, y, p)
        for k in range(0, len(votes.ORDERS), 20):
            assert renyi(here, there, votes.ORDERS[k]) <= cost[k] + 1e-9


@pytest.mark.parametrize("counts", COUNTS)
def test_the_laplace_cost_bounds_the_exact_divergence_to_every_neighbor(counts):
    scale, step = 10, 3  # γ = 0.3
    y, p = laplace_law(scale, 600)
    price = votes.CostTable("laplace", step / scale, votes.WHOLE_ORDERS)
    cost = price.of(votes.laplace_gaps(scale, step, 30).other(np.array([counts])))[0]
    here = outcome(counts, y, p, step)
    for other in neighbors(counts):
        there = outcome(other, y, p, step)
        for k in range(0, len(votes.WHOLE_ORDERS), 15):
            assert renyi(here, there, votes.WHOLE_ORDERS[k]) <= cost[k] + 1e-9


def test_the_bound_is_not_a_loose_one_where_teachers_agree():
    """25 of 25 votes at σ = 4: the data-dependent cost is far below the data-independent one, and above the
    exact divergence.
    """
    price = votes.CostTable("gaussian", 16.0, votes.ORDERS)
    cost = price.of(votes.gaussian_gaps(Fraction(16), 30).other(np.array([[25, 0, 0]])))[0]
    at = int(np.searchsorted(votes.ORDERS, 5.0))
    assert cost[at] < 0.05 * votes.ORDERS[at] / 16


@pytest.mark.parametrize(
    ("kind", "scale", "orders"),
    [
        ("gaussian", 1600.0, votes.ORDERS),
        ("laplace", 0.05, votes.WHOLE_ORDERS),
        ("gaussian", 4.0, votes.ORDERS),
        ("laplace", 2.0, votes.WHOLE_ORDERS),
    ],
)
def test_the_cost_never_falls_as_q_grows_and_never_exceeds_the_data_independent_one(kind, scale, orders):
    price = votes.CostTable(kind, scale, orders)
    assert (np.diff(price.table, axis=0) >= 0).all()
    whatever = orders / scale if kind == "gaussian" else 2 * scale**2 * orders
    assert (price.table <= whatever + 1e-12).all()
    assert (price.table >= 0).all()
    q = np.geomspace(1e-300, 1, 50)
    assert (np.exp(price.grid[price.cell(q)]) >= q * (1 - 1e-12)).all(), "q is rounded up, never down"
