"""Estimates of population uniques from a sample.

A row that is unique in a sample of 1 in 100 is often not unique in the population. There are four estimators
of the number of population uniques. Their input is the class sizes of the sample s_1, s_2, … (s_i classes of
i rows; n rows, u classes), the population size N and the sampling fraction π = n / N. All assume a random
sample, which the register of one hospital is not. Each is an estimate without a confidence interval: use its
order of magnitude only.

zayatz   L. Zayatz: Estimation of the percent of unique population elements on a microdata file using the
         sample. US Bureau of the Census, SRD 91/08, 1991. Assumes that class sizes are distributed in the
         population as in the sample; then P(1 in the population | 1 in the sample) follows by Bayes' rule
         from hypergeometric probabilities. The smaller π is, the less the assumption holds.
pitman   N. Hoshino: Applying Pitman's sampling formula to microdata disclosure risk assessment. Journal of
         Official Statistics 17(4), 2001.
         The population is a draw from Pitman's two-parameter (α, θ) partition, fitted by maximum likelihood:
         large classes grow, and new ones keep appearing.
snb      G. Chen, S. Keller-McNulty: Estimation of identification disclosure risk in microdata. Journal of
         Official Statistics 14(1), 1998. Slide negative binomial: class sizes in the population are
         independently 1 + NB(α, p), and every person is in the sample with probability π.
dankar   F. Dankar, K. El Emam, A. Neisa, T. Roffey: Estimating the re-identification risk of clinical data
         sets. BMC Medical Informatics and Decision Making 12:66, 2012.
         A decision rule: for π ≤ 0.1 Pitman, or Zayatz if Pitman has no fit; otherwise the smaller of Zayatz
         and SNB.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..parameters import bad

SMALL_SAMPLE = 0.1  # the sampling fraction at which Dankar's rule changes the estimator
HIGHEST_ALPHA = 1 - 1e-4  # of Pitman's partition; at 1 every new person is a new class
STEPS = 80  # bisections or golden sections: beyond the resolution of a float


@dataclass(frozen=True)
class Estimate:
    """Population uniques by one estimator. `uniques` is NaN if it has no fit; `why` gives the reason."""

    model: str
    uniques: float
    population: int
    why: str = ""

    @property
    def share(self) -> float:
        """The share of the population."""
        return self.uniques / self.population


@dataclass(frozen=True)
class Sample:
    """Distinct class sizes and the number of classes of each size: the input of every estimator."""

    sizes: np.ndarray
    counts: np.ndarray
    population: int

    @property
    def n(self) -> int:
        return int((self.sizes * self.counts).sum())

    @property
    def u(self) -> int:
        return int(self.counts.sum())

    @property
    def s1(self) -> int:
        return int(self.counts[self.sizes == 1].sum())

    @property
    def fraction(self) -> float:
        return self.n / self.population


def sample_of(class_sizes: np.ndarray, population: int) -> Sample:
    sizes, counts = np.unique(np.asarray(class_sizes, dtype=np.int64), return_counts=True)
    rows = int((sizes * counts).sum())
    if (
        isinstance(population, bool)
        or not isinstance(population, int | np.integer)
        or population < max(1, rows)
    ):
        raise bad(
            "risk",
            "population_size",
            population,
            f"a whole number of at least {max(1, rows)}, the number of rows published",
        )
    return Sample(sizes, counts, int(population))


def zayatz(s: Sample) -> Estimate:
    n, total = s.n, s.population
    # P(1 in the sample | i in the population), hypergeometric
    once = np.array([_probability_of_one(int(i), n, total) for i in s.sizes])
    evidence = float((s.counts * once).sum())  # / u, which cancels
    # P(1 in the population | 1 in the sample)
    posterior = s.s1 * _probability_of_one(1, n, total) / evidence if evidence > 0 else 0.0
    return Estimate("zayatz", s.s1 * posterior / s.fraction, total)


def _probability_of_one(size: int, n: int, total: int) -> float:
    """The hypergeometric probability that exactly one of a class of `size` is among n drawn from `total`."""
    if size - 1 > total - n:
        return 0.0
    return math.exp(math.log(size) + _log_binomial(total - size, n - 1) - _log_binomial(total, n))


def _log_binomial(a: int, b: int) -> float:
    return math.lgamma(a + 1) - math.lgamma(b + 1) - math.lgamma(a - b + 1) if 0 <= b <= a else -math.inf


def pitman(s: Sample) -> Estimate:
    if s.u == s.n or s.u == 1:
        return Estimate(
            "pitman",
            math.nan,
            s.population,
            "all classes have one row, or there is one class: the likelihood has no interior maximum",
        )
    alpha, theta = fit_pitman(s)
    if alpha > HIGHEST_ALPHA - 1e-6:
        return Estimate(
            "pitman",
            math.nan,
            s.population,
            "the likelihood increases up to α = 1, where every new person is a new class",
        )
    # E S_1 = N (θ+α)(θ+α+1)…(θ+α+N−2) / ((θ+1)…(θ+N−1)): none of the other N − 1 joins a person's class
    log = (
        math.log(s.population)
        + math.lgamma(theta + alpha + s.population - 1)
        - math.lgamma(theta + alpha)
        - math.lgamma(theta + s.population)
        + math.lgamma(theta + 1)
    )
    return Estimate("pitman", math.exp(log), s.population)


def fit_pitman(s: Sample) -> tuple[float, float]:
    """(α, θ) by maximum likelihood; α is at an end of its range if the likelihood has no interior maximum."""
    sizes, counts = s.sizes.tolist(), s.counts.tolist()

    def shape(alpha: float) -> float:  # the part of the likelihood without θ
        below = math.lgamma(1 - alpha)
        return math.fsum(c * (math.lgamma(j - alpha) - below) for j, c in zip(sizes, counts))

    def theta_of(alpha: float) -> float:
        # θ > −α; on a logarithmic scale, up to more classes than there can be
        return (
            math.exp(
                _maximize(
                    lambda x: _likelihood(s, alpha, math.exp(x) - alpha), math.log(1e-6), math.log(1e3 * s.n)
                )
            )
            - alpha
        )

    alpha = _maximize(lambda a: shape(a) + _likelihood(s, a, theta_of(a)), 1e-4, HIGHEST_ALPHA)
    return alpha, theta_of(alpha)


def _likelihood(s: Sample, alpha: float, theta: float) -> float:
    """log Π_{i<u} (θ + iα) / Π_{i<n} (θ + i), without constants; the class sizes add `shape(α)`."""
    new = (s.u - 1) * math.log(alpha) + math.lgamma(theta / alpha + s.u) - math.lgamma(theta / alpha + 1)
    return new - math.lgamma(theta + s.n) + math.lgamma(theta + 1)


def snb(s: Sample) -> Estimate:
    total, fraction = s.population, s.fraction
    missed = 1 - fraction

    def moments(alpha: float, p: float) -> tuple[float, float, float]:
        """K, and the expected numbers of classes and of uniques in the sample; K (1 + α q / p) = N."""
        q = 1 - p
        classes = total * p / (p + alpha * q)
        g = math.exp(alpha * (math.log(p) - math.log1p(-q * missed)))
        return (
            classes,
            classes * (1 - missed * g),
            classes * fraction * g * (1 + missed * alpha * q / (1 - q * missed)),
        )

    def p_of(alpha: float) -> float:  # the expected number of classes grows with p, from 0 to n
        return _logistic(_find_root(lambda x: moments(alpha, _logistic(x))[1] - s.u, -60.0, 30.0))

    def excess_uniques(x: float) -> float:
        return moments(math.exp(x), p_of(math.exp(x)))[2] - s.s1

    grid = np.linspace(math.log(1e-3), math.log(1e3), 49)
    values = [excess_uniques(x) for x in grid]
    for a, b, fa, fb in zip(grid, grid[1:], values, values[1:]):
        if fa == 0 or (fa < 0) != (fb < 0):
            alpha = math.exp(_find_root(excess_uniques, float(a), float(b)))
            p = p_of(alpha)
            return Estimate("snb", moments(alpha, p)[0] * p**alpha, total)
    return Estimate(
        "snb",
        math.nan,
        total,
        "no slide negative binomial gives the numbers of classes and uniques of the sample",
    )


def dankar(s: Sample) -> Estimate:
    if s.s1 == 0 or s.n == s.population:  # no sample uniques, or the sample is the population
        return Estimate("none", float(s.s1), s.population)
    if s.fraction <= SMALL_SAMPLE:
        first, second = pitman(s), zayatz(s)
        return second if math.isnan(first.uniques) else first
    return min(zayatz(s), snb(s), key=lambda e: math.inf if math.isnan(e.uniques) else e.uniques)


MODELS: dict[str, Callable[[Sample], Estimate]] = {
    "zayatz": zayatz,
    "pitman": pitman,
    "snb": snb,
    "dankar": dankar,
}


def expected_risk(sizes: np.ndarray, fraction: float, alpha: float = 0.0) -> np.ndarray:
    """E[1/F | f]: the probability of choosing the right person of a class with f people in the sample.

    F − f given f is negative binomial (f − α, π). Then E[1/F | f] = ∫₀¹ π u^(f−1) (π + (1−π) u)^(−1−α) du,
    which for f = 1 and α = 0 is π/(1−π) · ln(1/π).
    With α = 0 this is R. Benedetti, L. Franconi: Statistical and technological solutions for controlled data
    dissemination, NTTS 1998, whose π is the sampling fraction. It is too low if the population has many small
    classes: `class_risk` fits α and π.
    """
    f = np.asarray(sizes, dtype=np.float64)
    if fraction >= 1:
        return 1 / f
    nodes, weights = np.polynomial.legendre.leggauss(256)
    y = (nodes + 1) / 2
    u = y**4  # dense near 0, where the integrand is concentrated for small π
    mixed = fraction + (1 - fraction) * u
    inside = np.log(weights / 2 * 4 * y**3 * fraction) - (1 + alpha) * np.log(mixed)
    distinct, inverse = np.unique(f, return_inverse=True)
    small = distinct[distinct <= 300]
    exact = np.exp(np.log(u) * (small[:, None] - 1) + inside).sum(1)
    large = distinct[distinct > 300]  # 1/E F · (1 + Var F / (E F)²), with a relative error below 10⁻⁵
    mean = large + (large - alpha) * (1 - fraction) / fraction
    variance = (large - alpha) * (1 - fraction) / fraction**2
    return np.concatenate([exact, (1 + variance / mean**2) / mean])[inverse]


def class_risk(sizes: np.ndarray, population: int) -> np.ndarray:
    """E[1/F | f] of each class if the population is a draw from Pitman's partition, fitted to all classes.

    Given the sample, class j grows by F − f, which is negative binomial (f − α, (θ + n)/(θ + N)) up to terms
    of order f/n (Pitman's urn). If all classes have one row there is no fit, and the risk is 1/f.

    On six populations, three of them Adult, the mean over rows was .8 to 2.5 times the true one in samples of
    5% and 30%, and .4 to 3.4 times in samples of 1% (from 300 rows), too high rather than too low. Benedetti
    and Franconi's estimate was .07 to 1.6 times the true one (`tests/anonymity/test_marketer.py`).
    """
    s = sample_of(sizes, population)
    if s.u == s.n:
        return 1 / np.asarray(sizes, dtype=np.float64)
    if s.u == 1:
        return expected_risk(sizes, s.fraction)
    alpha, theta = fit_pitman(s)
    return expected_risk(sizes, (theta + s.n) / (theta + s.population), alpha)


def marketer_bounds(s: Sample) -> tuple[float, float]:
    """Bounds of the expected marketer risk that hold for every population, without a model.

    Σ f/F over the classes of a random sample has the expectation π K, so the risk has K/N: K is the number of
    classes of the population. It is at least that of A. Chao, C.-W. Lin: Nonparametric lower bounds for
    species richness and shared species richness under sampling without replacement, Biometrics 68, 2012. It
    is at most u + (N − n) s₁/n: the chance that a further person is the first of a class is s₁/n (I. J. Good,
    Biometrika 40, 1953) and decreases with every person.
    """
    n, total = s.n, s.population
    if n == total:
        return s.u / total, s.u / total
    twice = int(s.counts[s.sizes == 2].sum())
    unseen = 2 * n / max(n - 1, 1) * twice + s.fraction / (1 - s.fraction) * s.s1
    low = s.u + (s.s1**2 / unseen if unseen else 0.0)
    high = s.u + (total - n) * s.s1 / n
    return min(low, high) / total, min(high / total, s.u / n)


def mean_risk(sizes: np.ndarray, risk: np.ndarray) -> float:
    """The mean over rows of the risk of their class."""
    return float((sizes * risk).sum() / sizes.sum())


def _maximize(f: Callable[[float], float], low: float, high: float) -> float:
    """The maximizer of a unimodal f between low and high, by golden section."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    fa, fb = f(a), f(b)
    for _ in range(STEPS):
        if fa < fb:
            low, a, fa = a, b, fb
            b = low + ratio * (high - low)
            fb = f(b)
        else:
            high, b, fb = b, a, fa
            a = high - ratio * (high - low)
            fa = f(a)
        if high - low < 1e-9 * (1 + abs(low)):
            break
    return (low + high) / 2


def _find_root(f: Callable[[float], float], low: float, high: float) -> float:
    start = f(low) < 0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if (f(middle) < 0) == start:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))
