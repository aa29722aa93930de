"""The Skellam distribution, sampled exactly, and its privacy guarantee.

N. Agarwal, P. Kairouz, Z. Liu: "The Skellam Mechanism for Differentially Private Federated Learning", NeurIPS
2021. A Skellam variable is the difference of two Poisson variables; a sum of Skellam variables is Skellam,
and variances add. So the sum of the clients' noise has exactly the distribution of the proof, which holds for
the discrete Gaussian only approximately, and the grid may be coarse.

A Poisson variable is sampled by rejection from a discrete Laplace one (discrete.py), by comparing random bits
with exp(−γ). γ is known in floating point up to a bounded error. If that does not decide the comparison,
about once in 10⁹ samples, precision and bits are increased until it does. So every sample is exact, whatever
the machine's arithmetic.
"""

from __future__ import annotations

import decimal
import math
import os
from decimal import Decimal
from fractions import Fraction
from functools import cache, lru_cache

import numpy as np

from ..parameters import bad
from . import discrete
from .discrete import Source

MOST = 1 << 50  # the largest mean: beyond it the error bound would leave too many comparisons undecided
# below this ln k! comes from a table, above it from Stirling's series, whose error there is below 1e-14
_SMALL = 16
_LOG_FACTORIAL = np.array([math.log(math.factorial(k)) for k in range(_SMALL)])
# integers, as the theorem requires, up to 2¹⁸
WHOLE_ORDERS = (*range(2, 65), *(round(64 * 2 ** (i / 8)) for i in range(1, 97)))


def skellam(variance: Fraction | int, n: int, source: Source = os.urandom) -> np.ndarray:
    """`n` integers with P(x) = exp(−μ) I_x(μ), where μ is the variance."""
    variance = Fraction(variance)
    if not 0 < variance <= 2 * MOST:
        raise bad("skellam", "variance", variance, f"a rational number above 0 and at most {2 * MOST}")
    first, second = np.split(poisson(variance / 2, 2 * n, source), 2)
    return np.asarray(first - second)


def poisson(mean: Fraction | int, n: int, source: Source = os.urandom, doubt: float = 1.0) -> np.ndarray:
    """`n` integers with P(k) = exp(−λ) λ^k / k!.

    `doubt` above 1 widens the error bound, for tests: more samples use long arithmetic, with equal results.
    """
    mean = Fraction(mean)
    if not 0 < mean <= MOST:
        raise bad("poisson", "mean", mean, f"a rational number above 0 and at most {MOST}")
    middle, top = math.floor(mean), _peak(mean)
    scale = _scale(mean)

    def propose(size: int) -> np.ndarray:
        y = discrete.laplace(scale, size, source)
        k = middle + y[y >= -middle]
        gamma = (
            _log_poisson(np.array([top]), mean)
            - _log_poisson(k, mean)
            + (abs(top - middle) - abs(k - middle)) / scale
        )
        # the terms of γ are accurate to a few units in the last place; the largest is 7·|k − λ|, in the
        # deviance
        error = doubt * 2e-16 * (32 * (abs(k - middle) + abs(top - middle) + 1) + 16 * abs(gamma) + 64)
        chance = np.exp(-np.maximum(gamma, 0.0))
        bits = discrete._words(len(k), source)  # 63 of them
        u, margin = bits * 2.0**-63, chance * np.expm1(np.minimum(error, 700.0)) + 4e-16
        keep = u < chance
        for i in np.flatnonzero(abs(u - chance) <= margin):
            keep[i] = _decide(int(bits[i]), int(k[i]), top, mean, source)
        return np.asarray(k[keep])

    return discrete.until_enough(n, propose, 1.5)  # about 76% are accepted


def _scale(mean: Fraction) -> int:
    return max(1, math.isqrt(math.floor(mean)))


def _log_poisson(k: np.ndarray, mean: Fraction) -> np.ndarray:
    """ln P(k), by C. Loader's deviance (2000), which avoids cancellation."""
    middle, part = math.floor(mean), float(mean - math.floor(mean))
    away, rate = (k - middle) - part, float(mean)
    x = away / rate
    large = np.maximum(k, _SMALL).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        deviance = rate * ((1 + x) * np.log1p(x) - x)
        stirling = 1 / (12 * large) - 1 / (360 * large**3) + 1 / (1260 * large**5) - 1 / (1680 * large**7)
        wide = -0.5 * np.log(2 * math.pi * large) - stirling - deviance
    narrow = np.minimum(k, _SMALL - 1)
    return np.asarray(np.where(k >= _SMALL, wide, narrow * math.log(rate) - rate - _LOG_FACTORIAL[narrow]))


@lru_cache(maxsize=256)
def _peak(mean: Fraction) -> int:
    """The k with the largest ratio of P(k) to the Laplace weight.

    On each side of the middle the ratio increases and then decreases, so a local maximum is the side's
    maximum.
    """
    middle, scale = math.floor(mean), _scale(mean)

    def rise(k: int) -> Decimal:
        return _log_ratio(middle, k, mean, 60) + Decimal(abs(k - middle)) / scale

    tops = []
    for side in (1, -1):
        k = (
            max(middle, math.floor(float(mean) * math.exp(1 / scale)))
            if side == 1
            else min(middle, math.floor(float(mean) * math.exp(-1 / scale)))
        )
        with decimal.localcontext(prec=100):
            while rise(k + 1) > rise(k) and (side == 1 or k < middle):
                k += 1
            while k > 0 and rise(k - 1) > rise(k) and (side == -1 or k > middle):
                k -= 1
            tops.append((rise(k), k))
    return max(tops)[1]


def _decide(bits: int, k: int, top: int, mean: Fraction, source: Source) -> bool:
    """Whether a uniform number that begins with these 63 bits is below exp(−γ), with as many digits as
    needed.
    """
    middle, scale, size, digits = math.floor(mean), _scale(mean), 63, 60
    while True:
        bits, size = bits << 128 | int.from_bytes(source(16), "big"), size + 128
        with decimal.localcontext(prec=2 * digits + 40):
            gamma = _log_ratio(k, top, mean, digits) + Decimal(abs(top - middle) - abs(k - middle)) / scale
            chance, doubt = (-gamma).exp(), Decimal(10) ** (10 - digits) + Decimal(2) ** -size
            u = Decimal(bits) / Decimal(1 << size)
            if abs(u - chance) > doubt:
                return u < chance
        digits *= 2


def _log_ratio(k: int, other: int, mean: Fraction, digits: int) -> Decimal:
    """ln P(other) − ln P(k), to about this number of decimal places."""
    with decimal.localcontext(prec=2 * digits + 40):
        rate = Decimal(mean.numerator) / Decimal(mean.denominator)
        return (other - k) * rate.ln() - (_log_factorial(other, digits) - _log_factorial(k, digits))


def _log_factorial(k: int, digits: int) -> Decimal:
    if k < 1000:
        return Decimal(math.factorial(k)).ln()
    x = Decimal(k)
    total = (x + Decimal("0.5")) * x.ln() - x + (2 * _pi(digits)).ln() / 2
    for j in range(1, 10 * digits):  # the error is below the first omitted term
        b = _bernoulli(2 * j)
        term = Decimal(b.numerator) / Decimal(b.denominator) / (2 * j * (2 * j - 1)) / x ** (2 * j - 1)
        if abs(term) < Decimal(10) ** -(digits + 5):
            break
        total += term
    return total


@cache
def _bernoulli(m: int) -> Fraction:
    """B_m, by its recurrence."""
    return (
        Fraction(1)
        if m == 0
        else -sum((math.comb(m + 1, i) * _bernoulli(i) for i in range(m)), Fraction(0)) / (m + 1)
    )


def _pi(digits: int) -> Decimal:
    """Machin: π = 16 arctan(1/5) − 4 arctan(1/239), in integers."""
    one: int = 10 ** (digits + 20)

    def arctan(inverse: int) -> int:
        term = total = one // inverse
        n, sign = 3, -1
        while term:
            term //= inverse * inverse
            total, n, sign = total + sign * (term // n), n + 2, -sign
        return total

    return Decimal(16 * arctan(5) - 4 * arctan(239)) / Decimal(one)


# privacy guarantee ------------------------------------------------------------------------------------------


def skellam_rdp(order: int, variance: float, l2: float, l1: float) -> float:
    """The Rényi divergence of integer order for noise of this variance: Agarwal et al. 2021, Theorem 3.5 and
    Corollary 3.6.
    """
    return order * l2 * l2 / (2 * variance) + min(
        ((2 * order - 1) * l2 * l2 + 6 * l1) / (4 * variance**2), 3 * l1 / (2 * variance)
    )


def skellam_epsilon(multiplier: float, distance: float, dimension: int, steps: int, delta: float) -> float:
    """ε of this number of steps.

    The L2 sensitivity is `distance` units, and σ is `multiplier` times that. For integers the L1 sensitivity
    is at most distance² and at most √dimension·distance.
    """
    from .compose import google_accounting

    rdp = steps * skellam_rdp_curve(np.array(WHOLE_ORDERS), multiplier, distance, dimension)
    return float(google_accounting().rdp.rdp_privacy_accountant.compute_epsilon(WHOLE_ORDERS, rdp, delta)[0])


def skellam_rdp_curve(orders: np.ndarray, multiplier: float, distance: float, dimension: int) -> np.ndarray:
    """The Rényi divergence of one step at each of these integer orders."""
    l1 = min(distance * distance, math.sqrt(dimension) * distance)
    return np.array([skellam_rdp(a, (multiplier * distance) ** 2, distance, l1) for a in orders.tolist()])
