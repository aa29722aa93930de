"""Exact samplers: the discrete Gaussian, the discrete Laplace distribution, and the exponential mechanism.

Canonne, Kamath, Steinke: *The Discrete Gaussian for Differential Privacy*, NeurIPS 2020, Algorithms 1, 2 and
3.

Gaussian noise in floating point is not the Gaussian of the proof: its lowest bits reveal the value it was
added to (Mironov, CCS 2012). Here every sample uses integer arithmetic only, without rounding. The bits come
from the operating system; numpy's generator is never used for noise. `source` is a function from n to n
bytes; one that can be replayed is for tests only, and its user must stamp the ledger NOT PRIVATE.

The samplers are *not* constant-time: the number of iterations depends on the samples, so an adversary that
can time the process learns something about the noise. Keep the machine that adds noise out of its reach.

Discrete Gaussian noise of parameter σ² on integer counts whose L2 sensitivity is Δ is Δ²/(2σ²)-zCDP (Theorem
4), as the continuous one is, and its variance is at most σ² (Corollary 9).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache

import numpy as np

from ..numbers import bisect
from ..parameters import bad

Source = Callable[[int], bytes]
_BITS = 63
_ROOM = 1 << 62  # products in int64 stay below this; larger ones use Python's integers


def uniform(below: int, n: int, source: Source = os.urandom) -> np.ndarray:
    """`n` uniform integers in 0 … below − 1: int64 if that fits, else Python's integers."""
    if below < 1:
        raise bad("uniform", "below", below, "at least 1")
    if below > _ROOM:
        return np.array([_uniform_large(below, source) for _ in range(n)], dtype=object)
    limit = (1 << _BITS) // below * below  # reject beyond a multiple of `below`, to avoid modulo bias
    out = _words(n, source)
    late = np.flatnonzero(out >= limit) if limit < (1 << _BITS) else np.empty(0, np.int64)
    while len(late):
        out[late] = _words(len(late), source)
        late = late[out[late] >= limit]
    return out % below


def _words(n: int, source: Source) -> np.ndarray:
    return (np.frombuffer(source(8 * n), dtype="<u8") >> np.uint64(1)).astype(np.int64)


def _uniform_large(below: int, source: Source) -> int:
    size = (below.bit_length() + 7) // 8
    shift = 8 * size - below.bit_length()
    while True:
        drawn = int.from_bytes(source(size), "big") >> shift
        if drawn < below:
            return drawn


def bernoulli_exp(numerator: np.ndarray, denominator: int, source: Source = os.urandom) -> np.ndarray:
    """For each γ = numerator / denominator ≥ 0, True with probability exp(−γ). Algorithm 1."""
    whole, part = numerator // denominator, numerator % denominator
    alive = np.ones(len(numerator), bool)
    one = np.array([denominator], dtype=part.dtype)
    # γ > 1: the product of ⌊γ⌋ draws of Bernoulli(exp(−1)), given up at the first that fails, times one for
    # the rest
    left = whole.copy()
    while len(busy := np.flatnonzero(alive & (left > 0))):
        alive[busy] = _bernoulli_exp_unit(np.repeat(one, len(busy)), denominator, source)
        left[busy] -= 1
    rest = np.flatnonzero(alive)
    alive[rest] = _bernoulli_exp_unit(part[rest], denominator, source)
    return alive


def _bernoulli_exp_unit(numerator: np.ndarray, denominator: int, source: Source) -> np.ndarray:
    """γ in [0, 1]: the first k with Bernoulli(γ/k) = 0 is odd with probability exp(−γ)."""
    odd = np.zeros(len(numerator), bool)
    busy, k = np.arange(len(numerator)), 1
    while len(busy):
        again = uniform(denominator * k, len(busy), source) < numerator[busy]
        odd[busy[~again]] = k % 2 == 1
        busy, k = busy[again], k + 1
    return odd


def laplace(scale: int, n: int, source: Source = os.urandom) -> np.ndarray:
    """`n` draws with P(y) ∝ exp(−|y| / scale). Algorithm 2 with s = 1."""
    if scale < 1:
        raise bad("laplace", "scale", scale, "a whole number of at least 1")

    def propose(size: int) -> np.ndarray:
        u = uniform(scale, size, source)
        u = u[bernoulli_exp(u, scale, source)]
        v = np.zeros(len(u), u.dtype)
        busy = np.arange(len(u))
        while len(busy):
            busy = busy[bernoulli_exp(np.ones(len(busy), np.int64), 1, source)]
            v[busy] += 1
        size_of = u + scale * v
        negative = uniform(2, len(u), source).astype(bool)
        # zero must not be counted twice
        return np.asarray(np.where(negative, -size_of, size_of)[~(negative & (size_of == 0))])

    # about 63% of U uniform in 0 … t − 1 are accepted, so this is nearly always enough for one pass
    return until_enough(n, propose, 1.8)


def until_enough(n: int, propose: Callable[[int], np.ndarray], excess: float) -> np.ndarray:
    """`n` accepted samples of `propose(size)`, which is called with `excess` times as many as are missing."""
    parts: list[np.ndarray] = []
    have = 0
    while have < n:
        parts.append(propose(int((n - have) * excess) + 16))
        have += len(parts[-1])
    return np.concatenate(parts)[:n] if n else np.empty(0, np.int64)


def gaussian(variance: Fraction | int, n: int, source: Source = os.urandom) -> np.ndarray:
    """`n` integers with P(x) ∝ exp(−x² / (2σ²)), σ² a positive rational. Algorithm 3."""
    variance = Fraction(variance)
    if variance <= 0:
        raise bad("gaussian", "variance", variance, "a positive rational number")
    p, q = variance.numerator, variance.denominator
    t = math.isqrt(p // q) + 1  # ⌊σ⌋ + 1

    def propose(size: int) -> np.ndarray:
        y = laplace(t, size, source)
        # accept with probability exp(−(|Y| − σ²/t)² / (2σ²)) = exp(−(|Y| q t − p)² / (2 p q t²))
        denominator = 2 * p * q * t * t
        largest = max(abs(int(y.max())), abs(int(y.min())), 1) * q * t + p
        if largest * largest >= _ROOM or denominator >= _ROOM:
            y = y.astype(object)
        return np.asarray(y[bernoulli_exp((abs(y) * (q * t) - p) ** 2, denominator, source)], np.int64)

    return until_enough(n, propose, 1.4)


def gaussian_whole(sigma: int, n: int, source: Source = os.urandom) -> np.ndarray:
    """`gaussian` for an integer σ, in machine words up to 2²⁰.

    With t = σ in Algorithm 3, which holds for any t ≥ 1, the acceptance probability is exp(−(|Y| − σ)² /
    (2σ²)), and all numbers stay below 63 bits.
    """
    if sigma < 1:
        raise bad("gaussian_whole", "sigma", sigma, "a whole number of at least 1")

    def propose(size: int) -> np.ndarray:
        y = laplace(sigma, size, source)
        gap = abs(y) - sigma
        if sigma > 1 << 20 or (len(gap) and int(abs(gap).max()) > 1 << 30):
            gap = gap.astype(object)
        return np.asarray(y[bernoulli_exp(gap * gap, 2 * sigma * sigma, source)], np.int64)

    return until_enough(n, propose, 1.4)  # about 76% are accepted


def exponential(
    scores: Sequence[int], epsilon: Fraction | int, sensitivity: int, source: Source = os.urandom
) -> int:
    """Sample the index of one candidate with P(i) ∝ exp(ε · score_i / (2 · sensitivity)).

    McSherry, Talwar: *Mechanism Design via Differential Privacy*, FOCS 2007. By rejection: a uniform
    candidate is accepted with probability exp(−ε (best − score) / (2 · sensitivity)), which is exact for
    integer scores and a rational ε. ε-DP, and ε²/8-zCDP (Cesar, Rogers:
    *Bounding, Concentrating, and Truncating*, ALT 2021, by the mechanism's bounded range).
    """
    if not len(scores):
        raise bad("exponential", "scores", list(scores), "at least one candidate")
    if not epsilon > 0 or sensitivity < 1:
        raise bad(
            "exponential",
            "epsilon and sensitivity",
            (epsilon, sensitivity),
            "above 0, and a whole number of at least 1",
        )
    rate = Fraction(epsilon) / (2 * sensitivity)
    whole = [int(s) for s in scores]
    best = max(whole)
    while True:
        tried = uniform(len(whole), 64, source)  # several at a time; the first accepted one counts
        gaps = np.array([(best - whole[i]) * rate.numerator for i in tried], dtype=object)
        accepted = np.flatnonzero(bernoulli_exp(gaps, rate.denominator, source))
        if len(accepted):
            return int(tried[accepted[0]])


def rational_above(value: float) -> Fraction:
    """A rational at least `value` and less than 0.1% above it, of small integers: noise is rounded up."""
    denominator = 8
    while value * denominator < 1024:
        denominator *= 2
    return Fraction(math.ceil(Fraction(value) * denominator), denominator)


def rational_below(value: float, denominator: int = 1 << 20) -> Fraction:
    """A positive multiple of 1/denominator at most `value`, for an ε that must not be exceeded.

    The denominator is increased if that would be 0.
    """
    while (fraction := Fraction(math.floor(Fraction(value) * denominator), denominator)) <= 0 < value:
        denominator <<= 20
    return fraction


def delta_of(rho: float, epsilon: float) -> float:
    """The δ for which ρ-zCDP implies (ε, δ)-DP.

    δ = min over α > 1 of exp((α − 1)(αρ − ε)) / (α − 1) · (1 − 1/α)^α: Canonne, Kamath, Steinke 2020,
    Corollary 13 with τ = αρ. Any α gives a valid δ, so an imprecise minimum is still an upper bound.
    """
    if rho <= 0:
        return 0.0

    def log_delta(alpha: float) -> float:
        return (alpha - 1) * (alpha * rho - epsilon) + alpha * math.log1p(-1 / alpha) - math.log(alpha - 1)

    # log δ decreases, then increases, in log(α − 1): ternary search after a coarse grid over all relevant α
    grid = [1e-9 * 10 ** (k / 8) for k in range(8 * 17)]
    best = min(range(len(grid)), key=lambda k: log_delta(1 + grid[k]))
    low, high = math.log(grid[max(best - 1, 0)]), math.log(grid[min(best + 1, len(grid) - 1)])
    for _ in range(60):
        third = (high - low) / 3
        if log_delta(1 + math.exp(low + third)) < log_delta(1 + math.exp(high - third)):
            high -= third
        else:
            low += third
    return min(1.0, math.exp(min(0.0, log_delta(1 + math.exp((low + high) / 2)))))


def rho_of(epsilon: float, delta: float) -> float:
    """The largest ρ whose zCDP implies (ε, δ)-DP, approached from below."""
    if not epsilon > 0:
        raise bad("rho_of", "epsilon", epsilon, "a number above 0")
    if not 0 < delta < 1:
        raise bad(
            "rho_of",
            "delta",
            delta,
            "a probability above 0 and below 1",
            "zCDP implies no guarantee with δ = 0.",
        )
    return _largest_rho(epsilon, delta)


@lru_cache(1024)  # a search of milliseconds, which a release with noise needs for every number
def _largest_rho(epsilon: float, delta: float) -> float:
    return bisect(lambda rho: delta_of(rho, epsilon) > delta, 0.0, epsilon + 1.0, 80)[0]


@lru_cache(1024)
def epsilon_of(rho: float, delta: float) -> float:
    """The smallest ε for which ρ-zCDP implies (ε, δ)-DP, approached from above."""
    # Bun, Steinke 2016, Proposition 1.3: an upper bound
    bound = rho + 2 * math.sqrt(rho * math.log(1 / delta)) + 1e-12
    return bisect(lambda epsilon: delta_of(rho, epsilon) <= delta, 0.0, bound, 80)[1]
