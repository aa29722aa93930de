"""Closed forms: one Gaussian, one Laplace, and the sum of many clients' discrete Gaussians.

B. Balle, Y.-X. Wang: "Improving the Gaussian Mechanism for Differential Privacy: Analytical Calibration and
Optimal Denoising", ICML 2018, Theorem 8, which is exact. T Gaussian releases of multiplier z are one of
multiplier z/√T (J. Dong, A. Roth, W. J. Su, 2022, Corollary 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..numbers import bisect
from ..parameters import bad


def gaussian_delta(multiplier: float, epsilon: float) -> float:
    """The smallest δ for which a Gaussian of σ = multiplier · sensitivity is (ε, δ)-DP."""
    a, b = 1 / (2 * multiplier), epsilon * multiplier
    first = _log_cdf(a - b)
    second = epsilon + _log_cdf(-a - b)
    return 0.0 if second >= first else math.exp(first) * -math.expm1(second - first)


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The smallest ε, approached from above."""
    if gaussian_delta(multiplier, 0.0) <= delta:
        return 0.0
    return _smallest(lambda epsilon: gaussian_delta(multiplier, epsilon) <= delta, 0.0)


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """The smallest σ over sensitivity that is (ε, δ)-DP, approached from above."""
    return _smallest(lambda multiplier: gaussian_delta(multiplier, epsilon) <= delta, 1e-6)


def stability_threshold(variance: float, delta: float) -> int:
    """The smallest m for which discrete Gaussian noise Z of this variance has P(Z ≥ m) ≤ δ.

    By P(Z ≥ m) ≤ P(N ≥ m − 1) for the continuous Gaussian N and m ≥ 1 (Canonne, Kamath, Steinke 2020,
    Proposition 25). A value that only one record has is listed with probability at most δ if its noisy count
    must reach 1 + m.
    """
    if not variance > 0:
        raise bad("stability_threshold", "variance", variance, "a number above 0")
    if not 0 < delta < 1:
        raise bad("stability_threshold", "delta", delta, "a probability above 0 and below 1")
    scale = math.sqrt(2 * variance)
    exceeds = _smallest(lambda t: math.erfc(t / scale) / 2 <= delta, 0.0) if delta < 0.5 else 0.0
    return math.ceil(exceeds) + 1


def _smallest(holds: Callable[[float], bool], low: float) -> float:
    """The smallest number above `low` from which on `holds` is True, approached from above."""
    high = 1.0
    while not holds(high):
        low, high = high, 2 * high
    return bisect(holds, low, high)[1]


def laplace_scale(epsilon: float, sensitivity: float = 1.0, steps: int = 1) -> float:
    """The scale b with which `steps` Laplace releases are ε-DP together: b = steps · Δ₁/ε."""
    if not epsilon > 0 or not sensitivity > 0 or steps < 1:
        raise bad(
            "laplace_scale",
            "epsilon, sensitivity and steps",
            (epsilon, sensitivity, steps),
            "above 0, above 0, and at least 1",
        )
    return steps * sensitivity / epsilon


def laplace_epsilon(scale: float, sensitivity: float = 1.0, steps: int = 1) -> float:
    """The inverse: ε = steps · Δ₁/b, with δ = 0."""
    return steps * sensitivity / scale


def response_epsilon(keep: float, answers: int = 2) -> float:
    """ε of randomized response with truth probability `keep`: ln(keep · (answers − 1)/(1 − keep))."""
    return math.inf if keep >= 1 else math.log(keep * (answers - 1) / (1 - keep))


def distributed_multiplier(multiplier: float, sigma: float, clients: int, dimension: int) -> float:
    """The multiplier of a Gaussian with the zCDP of a sum of `clients` discrete Gaussians of `sigma` units.

    `multiplier` is √clients·sigma over the L2 bound. Kairouz, Liu, Steinke, ICML 2021, Theorem 1: ½ε²-zCDP
    with ε = min(√(1/z² + τd/2), 1/z + τ√d), τ = 10 Σ_{k=1}^{n−1} exp(−2π²σ²·k/(k+1)).
    """
    tau = 10 * sum(math.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)) for k in range(1, clients))
    return 1 / min(
        math.sqrt(multiplier**-2 + tau * dimension / 2), 1 / multiplier + tau * math.sqrt(dimension)
    )


def _log_cdf(x: float) -> float:
    """log Φ(x), accurate in the left tail."""
    if x > -30:
        return math.log(0.5 * math.erfc(-x / math.sqrt(2)))
    # the asymptotic series of Mills' ratio; its third term is already below 1e-6 here, and the sign is that
    # of an upper bound
    return -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi)) + math.log1p(-1 / x**2 + 3 / x**4)
