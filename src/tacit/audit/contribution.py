"""The contribution of each party, as a cooperative game: `utility(S)` is the quality of the model of
parties S.

L. S. Shapley: "A Value for n-person Games", 1953; A. Ghorbani, J. Zou: "Data Shapley", ICML 2019, Algorithm 1
(truncated Monte Carlo); T. Song, Y. Tong, S. Wei: "Profit Allocation for Federated Learning", IEEE Big Data
2019 (models of coalitions reconstructed from the updates of one run).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import BadParameter
from ..numbers import bisect

Coalition = frozenset[int]
# of many coalitions, which are trained side by side: one number each, or that number and its jackknife
# replicates, the values without each group of the test rows
Utility = Callable[[Sequence[Coalition]], Sequence[Any]]
EXACT = 12  # parties: 4,096 coalitions


@dataclass(frozen=True)
class Values:
    """The value of each party, with a confidence interval for what was sampled: orders, or test rows.

    `whole` and `empty` are the utilities of all parties and of none.
    """

    value: np.ndarray
    low: np.ndarray
    high: np.ndarray
    whole: float
    empty: float
    coalitions: int
    known: dict[Coalition, float] = field(repr=False, default_factory=dict)

    @property
    def significant(self) -> np.ndarray:
        """The values whose interval is above 0; the others are 0."""
        return np.where(self.low > 0, self.value, 0.0)


class _Cache:
    """Utilities, each computed once."""

    def __init__(self, utility: Utility):
        self.utility = utility
        self.arrays: dict[Coalition, np.ndarray] = {}

    def __call__(self, coalitions: Sequence[Coalition]) -> list[np.ndarray]:
        """The utility of each, followed by its replicates if it has any."""
        new = [s for s in dict.fromkeys(coalitions) if s not in self.arrays]
        if new:
            self.arrays |= dict(
                zip(new, (np.atleast_1d(np.asarray(u, dtype=float)) for u in self.utility(new)), strict=True)
            )
        return [self.arrays[s] for s in coalitions]

    @property
    def known(self) -> dict[Coalition, float]:
        return {s: float(u[0]) for s, u in self.arrays.items()}

    def values(self, each: np.ndarray, confidence: float, whole: np.ndarray, empty: np.ndarray) -> Values:
        """Return values [n, 1 + replicates] with the intervals of the delete-a-group jackknife.

        (P. Kott: "The Delete-A-Group Jackknife", Journal of Official Statistics 2001.)
        """
        value, replicates = each[:, 0], each[:, 1:]
        reach = np.zeros(len(value))
        if (groups := replicates.shape[1]) > 1:
            off = replicates - replicates.mean(1, keepdims=True)
            error = np.sqrt((groups - 1) / groups * (off**2).sum(1))
            reach = student(confidence, groups - 1) * error
        ends = value - reach, value + reach
        return Values(value, *ends, float(whole[0]), float(empty[0]), len(self.arrays), self.known)


def leave_one_out(utility: Utility, n: int, confidence: float = 0.95) -> Values:
    """U(all) − U(all except k), with intervals if utilities have replicates.

    The values do not add up to U(all), and two parties with the same rows have the value 0 each.
    """
    cached, everyone = _Cache(utility), frozenset(range(n))
    whole, empty, *without = cached([everyone, frozenset(), *(everyone - {k} for k in range(n))])
    return cached.values(whole - np.array(without), confidence, whole, empty)


def shapley(utility: Utility, n: int, confidence: float = 0.95) -> Values:
    """Exactly, over all 2^n coalitions: φ_k = Σ_S |S|!(n − |S| − 1)!/n! · (U(S ∪ k) − U(S)).

    With intervals if utilities have replicates.
    """
    if n > EXACT:
        raise BadParameter(
            f"contribution: the exact Shapley value of {n} parties needs {2**n:,} coalitions. Use "
            f"method='sampled'; up to {EXACT} it is exact."
        )
    cached = _Cache(utility)
    coalitions = [frozenset(s) for size in range(n + 1) for s in itertools.combinations(range(n), size)]
    u = dict(zip(coalitions, cached(coalitions)))
    value = np.zeros((n, len(u[frozenset()])))
    for s in coalitions:
        for k in set(range(n)) - s:
            value[k] += (
                math.factorial(len(s))
                * math.factorial(n - len(s) - 1)
                / math.factorial(n)
                * (u[s | {k}] - u[s])
            )
    return cached.values(value, confidence, u[frozenset(range(n))], u[frozenset()])


def sample_shapley(
    utility: Utility,
    n: int,
    permutations: int,
    tolerance: float,
    confidence: float,
    seed: int,
    at_once: int = 8,
) -> Values:
    """The mean marginal gain over random orders in which parties join.

    An order is truncated when its utility is within `tolerance` of U(all): the remaining gains are taken as
    0. The confidence interval over the orders uses Student's t distribution.
    """
    cached, everyone, rng = _Cache(utility), frozenset(range(n)), np.random.default_rng(seed)
    whole, empty = (float(u[0]) for u in cached([everyone, frozenset()]))
    gains: list[np.ndarray] = []
    while len(gains) < permutations:
        orders = [rng.permutation(n) for _ in range(min(at_once, permutations - len(gains)))]
        marginal, last, open_ = [np.zeros(n) for _ in orders], [empty] * len(orders), list(range(len(orders)))
        for i in range(n):  # all orders together, so that their coalitions are trained as one stack
            open_ = [o for o in open_ if abs(whole - last[o]) > tolerance]
            if not open_:
                break
            joined = cached([frozenset(orders[o][: i + 1].tolist()) for o in open_])
            for o, u in zip(open_, (float(v[0]) for v in joined)):
                marginal[o][orders[o][i]], last[o] = u - last[o], u
        gains += marginal
    x = np.array(gains)
    value, error = x.mean(0), x.std(0, ddof=1) / math.sqrt(len(x)) if len(x) > 1 else np.full(n, math.inf)
    reach = student(confidence, len(x) - 1) * error if len(x) > 1 else error
    return Values(value, value - reach, value + reach, whole, empty, len(cached.known), cached.known)


def student(confidence: float, freedom: int) -> float:
    """The two-sided quantile of Student's t, by bisection on its distribution function (Simpson's rule)."""

    def density(t: float) -> float:
        log = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
        return math.exp(log - (freedom + 1) / 2 * math.log1p(t * t / freedom))

    def inside(t: float) -> float:
        n = 2000
        x = np.linspace(0, t, n + 1)
        y = np.array([density(v) for v in x])
        return float(2 * (t / n / 3) * (y[0] + 4 * y[1:-1:2].sum() + 2 * y[2:-1:2].sum() + y[-1]))

    high = 1.0
    while inside(high) < confidence:
        high *= 2
        if high > 1e6:
            return math.inf
    return bisect(lambda t: inside(t) >= confidence, 0.0, high, 60)[1]


def payout(value: np.ndarray, total: float) -> np.ndarray:
    """Divide `total` in proportion to the positive values; parties with values of 0 or below get nothing."""
    gain = np.clip(value, 0, None)
    return total * gain / gain.sum() if gain.sum() else np.zeros_like(gain)
