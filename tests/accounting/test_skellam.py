"""Skellam noise: drawn as its proof says, and worth no less than its bound says. Statistical tests run on
fixed seeds and state how often they would fail a correct sampler under fresh ones.
"""

from __future__ import annotations

import decimal
import math
import os
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from scipy import special, stats

from tacit.accounting import discrete, skellam_epsilon, skellam_rdp
from tacit.accounting import skellam as room
from tacit.errors import BadParameter
from tacit.parties.secret import SeededSecret

ALARM = 1e-6
MEANS = [Fraction(1, 3), Fraction(1), Fraction(7, 2), Fraction(20), Fraction(1001, 8), Fraction(5000)]


def p_value(drawn: np.ndarray, pmf: np.ndarray, low: int) -> float:
    """χ² of integers from `low` on; cells with fewer than 5 expected are merged with those outside."""
    seen = np.bincount(drawn - low, minlength=len(pmf))[: len(pmf)]
    expected = pmf * len(drawn)
    many = expected >= 5
    a, b = (
        np.append(seen[many], len(drawn) - seen[many].sum()),
        np.append(expected[many], len(drawn) - expected[many].sum()),
    )
    return float(stats.chisquare(a, b).pvalue)


@pytest.mark.parametrize("mean", MEANS, ids=str)
def test_poisson_numbers_have_the_poisson_distribution(mean: Fraction) -> None:
    drawn = room.poisson(mean, 40_000, SeededSecret(1).bytes)
    assert p_value(drawn, stats.poisson.pmf(np.arange(int(mean) * 2 + 40), float(mean)), 0) > ALARM


@pytest.mark.parametrize("mean", [Fraction(1, 3), Fraction(20)], ids=str)
def test_draws_decided_in_long_arithmetic_have_it_too(mean: Fraction) -> None:
    """With `doubt` every single one is, which in the usual way happens once in 10⁹."""
    drawn = room.poisson(mean, 1500, SeededSecret(2).bytes, doubt=1e18)
    assert p_value(drawn, stats.poisson.pmf(np.arange(80), float(mean)), 0) > ALARM


@pytest.mark.parametrize("variance", [Fraction(1, 2), Fraction(9), Fraction(400)], ids=str)
def test_skellam_numbers_have_the_skellam_distribution(variance: Fraction) -> None:
    drawn = room.skellam(variance, 40_000, SeededSecret(3).bytes)
    reach = math.ceil(12 * math.sqrt(variance)) + 20
    assert p_value(drawn, special.ive(np.arange(-reach, reach + 1), float(variance)), -reach) > ALARM


def test_large_variances_have_the_right_width() -> None:
    """2⁴⁰ units²: the deviation of the variance is √(2/n), of the mean σ/√n; five of each are passed by
    chance less than once in 10⁵.
    """
    drawn = room.skellam(1 << 40, 20_000, SeededSecret(4).bytes) / 2.0**20
    assert abs(drawn.mean()) < 5 / math.sqrt(20_000)
    assert abs(drawn.var() - 1) < 5 * math.sqrt(2 / 20_000)
    assert len(np.unique(drawn)) > 19_000  # no grid of its own


@pytest.mark.parametrize("mean", [*MEANS, Fraction(10**8), Fraction(10**12), Fraction(2**50)], ids=str)
def test_the_error_of_the_fast_decision_is_below_its_bound_and_no_chance_above_one(mean: Fraction) -> None:
    """γ in floating point against γ in 60 digits, from 8 deviations below the mean to 12 above. A negative γ
    would be a probability above one.
    """
    middle, scale, top = math.floor(mean), room._scale(mean), room._peak(mean)
    places = np.unique(
        np.clip([middle + round(x * math.sqrt(mean)) for x in np.linspace(-8, 12, 61)], 0, None)
    ).astype(np.int64)
    fast = (
        room._log_poisson(np.array([top]), mean)
        - room._log_poisson(places, mean)
        + (abs(top - middle) - abs(places - middle)) / scale
    )
    bound = 2e-16 * (32 * (abs(places - middle) + abs(top - middle) + 1) + 16 * abs(fast) + 64)
    with decimal.localcontext(prec=160):
        for k, found, most in zip(places.tolist(), fast.tolist(), bound.tolist()):
            exact = room._log_ratio(k, top, mean, 60) + Decimal(abs(top - middle) - abs(k - middle)) / scale
            assert exact > -(Decimal(10) ** -40)
            assert abs(exact - Decimal(found)) <= Decimal(most)


def test_long_logarithms_of_factorials_are_right() -> None:
    """999! in whole numbers against Stirling's series with what follows it: ln 1000! = ln 999! + ln 1000."""
    with decimal.localcontext(prec=160):
        assert (
            abs(room._log_factorial(1000, 60) - room._log_factorial(999, 60) - Decimal(1000).ln())
            < Decimal(10) ** -55
        )
        assert (
            abs(
                room._log_factorial(20_000, 60) - sum((Decimal(k).ln() for k in range(1, 20_001)), Decimal(0))
            )
            < Decimal(10) ** -50
        )


def test_it_draws_from_its_source_which_is_the_operating_system() -> None:
    assert np.array_equal(
        room.skellam(9, 50, SeededSecret(5).bytes), room.skellam(9, 50, SeededSecret(5).bytes)
    )
    assert not np.array_equal(room.skellam(9, 50), room.skellam(9, 50))
    assert room.skellam.__defaults__ == (os.urandom,)


# what it is worth -------------------------------------------------------------------------------------------


def divergence(order: int, variance: float, shift: int) -> float:
    """The Rényi divergence between two Skellam distributions with distance `shift`, summed over all relevant values."""
    reach = math.ceil(40 * math.sqrt(variance)) + 40 * order + 10 * shift
    x = np.arange(-reach, reach + 1)
    with np.errstate(divide="ignore"):
        p, q = (np.log(special.ive(abs(x - s), variance)) for s in (shift, 0))
    far = np.isneginf(p) | np.isneginf(q)
    return float(
        special.logsumexp(
            np.where(far, -np.inf, order * np.where(far, 0, p) - (order - 1) * np.where(far, 0, q))
        )
    ) / (order - 1)


@pytest.mark.parametrize("variance", [2.0, 8.0, 50.0, 400.0, 1e4])
def test_the_divergence_is_never_above_its_bound_and_never_below_that_of_the_gaussian_by_much(
    variance: float,
) -> None:
    for shift in (1, 2, 5, 20):
        for order in (2, 3, 5, 8, 16):
            if order * shift > 12 * variance:
                continue  # there the sum leaves what floating point can hold
            exact, bound = divergence(order, variance, shift), skellam_rdp(order, variance, shift, shift)
            assert exact <= bound * (1 + 1e-9)
            assert bound <= 2.6 * order * shift**2 / (2 * variance) + 3 * shift / variance


def test_on_a_fine_grid_it_is_the_gaussian_and_on_a_coarse_one_it_costs_more() -> None:
    """zCDP of ½z⁻² a step is the Gaussian's; converted through whole orders only, Skellam's is a little above
    it.
    """
    gaussian = discrete.epsilon_of(10 / (2 * 4.0**2), 1e-5)
    fine, coarse = (skellam_epsilon(4.0, distance, 1000, 10, 1e-5) for distance in (1e6, 2.0))
    assert gaussian <= fine * (1 + 1e-9) <= 1.02 * gaussian
    assert coarse > fine
    found = [skellam_epsilon(z, 100.0, 1000, 10, 1e-5) for z in (1.0, 2.0, 4.0, 8.0)]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: room.skellam(0, 3),
            r"skellam: variance is Fraction\(0, 1\); it must be a rational number above 0",
        ),
        (
            lambda: room.poisson(-1, 3),
            r"poisson: mean is Fraction\(-1, 1\); it must be a rational number above 0",
        ),
        (lambda: room.poisson(2**51, 3), "and at most 1125899906842624"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, words) -> None:
    with pytest.raises(BadParameter, match=words):
        call()
