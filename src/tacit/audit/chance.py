"""How probable an attack's success is by chance: the false-alarm probability of "the attack works"."""

from __future__ import annotations

import math


def binomial_tail(right: int, trials: int, p: float) -> float:
    """P(at least `right` of `trials` guesses are correct), each with probability p."""
    if right <= 0 or p >= 1:
        return 1.0
    if p <= 0:
        return 0.0

    def log_mass(k: int) -> float:
        choose = math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        return choose + k * math.log(p) + (trials - k) * math.log1p(-p)

    return min(1.0, math.fsum(math.exp(log_mass(k)) for k in range(right, trials + 1)))


def matches(right: int) -> float:
    """A bound on P(at least `right` classes are assigned to themselves | names of classes are exchangeable).

    The expected number of sets of k classes that a random permutation fixes is at most 1/k!.
    """
    return 1 / math.factorial(right)


def more_often(a: int, of_a: int, b: int, of_b: int) -> float:
    """P(at least this difference a/of_a − b/of_b | both have the same rate): the pooled normal limit."""
    rate = (a + b) / (of_a + of_b)
    variance = rate * (1 - rate) * (1 / of_a + 1 / of_b)
    if variance <= 0:
        return 1.0
    return 0.5 * math.erfc((a / of_a - b / of_b) / math.sqrt(2 * variance))


def correlated(r: float, n: int) -> float:
    """P(a correlation of at least r of n pairs | independent): Fisher's z and its normal limit."""
    z = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, r)))
    return 0.5 * math.erfc(z * math.sqrt(max(n - 3, 0) / 2))


def fisher(p_values: list[float]) -> float:
    """One p-value of several independent ones (R. A. Fisher 1925): the tail of χ² with 2k degrees."""
    half = -math.fsum(math.log(max(p, 1e-300)) for p in p_values)
    term = total = 1.0
    for i in range(1, len(p_values)):
        term *= half / i
        total += term
    return min(1.0, math.exp(-half) * total)
