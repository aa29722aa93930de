"""The noise is what its proof says. Statistical tests run on fixed seeds; each states how often it would fail
a correct sampler under fresh seeds.
"""

from __future__ import annotations

import math
import os
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from tacit.accounting import discrete
from tacit.errors import BadParameter
from tacit.parties.secret import SeededSecret

ALARM = 1e-6


def chi_square(drawn: np.ndarray, log_weight, reach: int) -> float:
    """The p-value of the drawn whole numbers against P(x) ∝ exp(log_weight(x)), cells below 5 expected put
    together.
    """
    x = np.arange(-reach, reach + 1)
    p = np.exp([log_weight(int(v)) for v in x])
    p /= p.sum()
    seen = np.array([(drawn == v).sum() for v in x])
    assert seen.sum() == len(drawn), "a draw beyond the reach, which has a probability below 1e-12"
    expected = p * len(drawn)
    few = expected < 5
    a, b = np.append(seen[~few], seen[few].sum()), np.append(expected[~few], expected[few].sum())
    return float(stats.chisquare(a[b > 0], b[b > 0] * a.sum() / b[b > 0].sum()).pvalue)


@pytest.mark.parametrize("variance", [Fraction(1, 4), Fraction(1), Fraction(21, 8), Fraction(100)])
def test_the_discrete_gaussian_has_its_law(variance):
    """False alarm: 1e-6 for each variance."""
    drawn = discrete.gaussian(variance, 40_000, SeededSecret(f"gauss {variance}").bytes)
    assert (
        chi_square(drawn, lambda x: -x * x / (2 * float(variance)), math.ceil(8 * math.sqrt(variance)) + 2)
        > ALARM
    )


@pytest.mark.parametrize("scale", [1, 2, 7])
def test_the_discrete_laplace_has_its_law(scale):
    """False alarm: 1e-6 for each scale."""
    drawn = discrete.laplace(scale, 40_000, SeededSecret(f"laplace {scale}").bytes)
    assert chi_square(drawn, lambda x: -abs(x) / scale, 40 * scale) > ALARM


@pytest.mark.parametrize("variance", [Fraction(10**4), Fraction(10**12), Fraction(10**18 + 1, 3)])
def test_a_large_variance_is_kept_where_int64_would_overflow(variance):
    """Sample variance of n normal-like draws: relative standard error √(2/n). 5.5 of them: a false alarm of
    4e-8.
    """
    n = 4_000
    drawn = discrete.gaussian(variance, n, SeededSecret("large").bytes).astype(float)
    assert abs(drawn.var() / float(variance) - 1) < 5.5 * math.sqrt(2 / n)
    assert abs(drawn.mean()) < 5.5 * math.sqrt(float(variance) / n)


def test_bernoulli_exp_is_exact_beyond_one():
    """exp(−γ) for γ from 0 to 3: binomial, 5.5 standard errors; a false alarm of 4e-8 each."""
    n = 30_000
    for numerator in (0, 1, 3, 4, 7, 12):
        hits = discrete.bernoulli_exp(np.full(n, numerator), 4, SeededSecret(numerator).bytes).mean()
        p = math.exp(-numerator / 4)
        assert abs(hits - p) <= 5.5 * math.sqrt(p * (1 - p) / n)


def test_uniform_numbers_are_uniform_and_below_their_bound():
    """χ² over the values, p > 1e-6; the large bound is one that a plain remainder would get visibly wrong."""
    drawn = discrete.uniform(7, 20_000, SeededSecret("u").bytes)
    assert stats.chisquare(np.bincount(drawn, minlength=7)).pvalue > ALARM
    large = 3 << 70
    thirds = np.array([int(v) * 3 // large for v in discrete.uniform(large, 6_000, SeededSecret("v").bytes)])
    assert thirds.max() == 2
    assert stats.chisquare(np.bincount(thirds, minlength=3)).pvalue > ALARM


def test_the_exponential_mechanism_has_its_law():
    """Scores 0, 1, 3 at ε = 2, sensitivity 1: P ∝ 1, e, e³. χ², p > 1e-6."""
    source = SeededSecret("choice").bytes
    seen = np.bincount([discrete.exponential([0, 1, 3], 2, 1, source) for _ in range(4_000)], minlength=3)
    p = np.exp([0, 1, 3])
    assert stats.chisquare(seen, p / p.sum() * 4_000).pvalue > ALARM


def test_neighbors_are_distinguished_no_better_than_epsilon_allows():
    """ε-DP of the choice, seen from outside: scores of neighboring tables differ by the sensitivity, so no
    outcome may be e^ε times likelier. Exact laws, no sampling: computed from the same rational weights that
    the sampler uses.
    """
    a, b, epsilon = [5, 3, 4], [4, 4, 5], 1.0
    pa, pb = (np.exp(np.array(s) * epsilon / 2) for s in (a, b))
    assert np.abs(np.log(pa / pa.sum()) - np.log(pb / pb.sum())).max() <= epsilon + 1e-12


def test_noise_comes_from_the_operating_system(monkeypatch):
    asked = []
    real = os.urandom

    def counted(n):
        asked.append(n)
        return real(n)

    state = np.random.get_state()[1].copy()
    np.random.seed(0)
    first = discrete.gaussian(9, 50, counted)
    np.random.seed(0)
    second = discrete.gaussian(9, 50, counted)
    np.random.seed(int(state[0]))
    assert sum(asked) > 50
    assert (first != second).any()  # equal by chance with probability below 1e-40
    assert discrete.gaussian.__defaults__ == (os.urandom,)


def test_zcdp_conversion_is_no_worse_than_the_classic_one_and_consistent():
    """Bun and Steinke's ε = ρ + 2√(ρ ln 1/δ) is an upper bound; the two directions undo each other."""
    for rho in (1e-4, 0.01, 0.3, 4.0):
        for delta in (1e-9, 1e-5):
            epsilon = discrete.epsilon_of(rho, delta)
            assert epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta)) + 1e-9
            assert discrete.rho_of(epsilon, delta) == pytest.approx(rho, rel=1e-6)
            assert discrete.delta_of(discrete.rho_of(epsilon, delta), epsilon) <= delta


def test_zcdp_conversion_never_promises_more_than_the_gaussian_itself_gives():
    """The Gaussian mechanism is ρ-zCDP with ρ = 1/(2σ²) and has an exact δ(ε) (Balle, Wang, ICML 2018): ours must be
    above it, and close.
    """
    normal = stats.norm
    for sigma in (1.0, 5.0, 20.0):
        for epsilon in (0.1, 0.5, 1.0, 3.0):
            exact = normal.cdf(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * normal.cdf(
                -0.5 / sigma - epsilon * sigma
            )
            ours = discrete.delta_of(1 / (2 * sigma**2), epsilon)
            assert ours >= exact * (1 - 1e-9)
            if exact > 1e-200:
                assert ours < max(exact * 60, 1e-300)


def test_zcdp_conversion_is_that_of_dp_accounting():
    """Google's accountant minimizes the same bound over a grid of orders, so it is slightly above ours."""
    import dp_accounting
    from dp_accounting import rdp

    orders = list(1 + np.exp(np.linspace(-5, 8, 2000)))
    for rho in (0.001, 0.015, 1.0):
        for delta in (1e-9, 1e-5):
            account = rdp.RdpAccountant(orders=orders)
            account.compose(dp_accounting.ZCDpEvent(rho))
            theirs = account.get_epsilon(delta)
            assert discrete.epsilon_of(rho, delta) <= theirs * (1 + 1e-9)
            assert discrete.epsilon_of(rho, delta) == pytest.approx(theirs, rel=1e-5)


def test_noise_is_rounded_up_and_epsilon_down():
    for value in (0.3, 33.41, 1e-9, 1234.0001):
        assert discrete.rational_above(value) >= Fraction(value)
        assert 0 < discrete.rational_below(value) <= Fraction(value)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: discrete.gaussian(0, 1),
            "variance is Fraction(0, 1); it must be a positive rational number.",
        ),
        (lambda: discrete.laplace(0, 1), "scale is 0; it must be a whole number of at least 1."),
        (lambda: discrete.exponential([], 1, 1), "scores is []; it must be at least one candidate."),
        (lambda: discrete.exponential([1], 0, 1), "epsilon and sensitivity is (0, 1); it must be above 0"),
        (lambda: discrete.rho_of(0, 0.1), "epsilon is 0; it must be a number above 0."),
        (lambda: discrete.rho_of(1, 0), "delta is 0; it must be a probability above 0 and below 1."),
        (lambda: discrete.uniform(0, 1), "below is 0; it must be at least 1."),
    ],
)
def test_what_is_impossible_is_refused(call, says):
    with pytest.raises(BadParameter) as error:
        call()
    assert says in str(error.value)
