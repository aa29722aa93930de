"""The privacy cost of noisy votes: data-independent, and data-dependent.

N. Papernot, M. Abadi, U. Erlingsson, I. Goodfellow, K. Talwar: "Semi-supervised Knowledge Transfer for
Deep Learning from Private Training Data", ICLR 2017 (Laplace, moments). N. Papernot, S. Song, I. Mironov,
A. Raghunathan, K. Talwar, U. Erlingsson: "Scalable Private Learning with PATE", ICLR 2018 (Gaussian,
Rényi). One teacher's data determine one vote, so neighbors' counts differ by one in at most two classes.

    data-independent   Laplace 1/γ: ½(2γ)²λ at order λ (ICLR 2017, Theorem 2, whose moment l is order λ = l +
                       1); Gaussian σ: λ/σ² (ICLR 2018, Proposition 8)
    data-dependent     if the votes agree, an outcome other than the plurality has a small probability q, and
                       the answer costs less (ICLR 2017, Theorem 3; ICLR 2018, Theorem 6 with the orders of
                       Proposition 10)

Both papers bound q for continuous noise. The noise here is discrete (`discrete.py`), so q is computed from
its distribution, and a tie counts as the other outcome. A bound holds with any q̃ ≥ q in place of q;
`CostTable` uses the best on a grid, so that the cost never decreases in q.

A data-dependent ε depends on the votes and therefore reveals something about them: it must not be published
as it is (`smooth.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

WHOLE_ORDERS = np.arange(2.0, 258.0)  # moments 1 … 256: the first paper's moments are integers
ORDERS = np.unique(
    np.concatenate([np.arange(1.1, 10, 0.05), np.arange(10, 100, 0.5), np.geomspace(100, 4000, 80)])
)
FLOOR = 1e-300  # the smallest q: floats lose precision below; a q̃ that is too large is safe
FINE = 0.005  # step of log q̃ above 1e-12, the relevant range: half a percent
ROUNDING = 1 + 1e-9  # more than the rounding error of a sum of a few thousand floats


def classic_epsilon(cost: np.ndarray, orders: np.ndarray, delta: float) -> float:
    """ε = min over λ of cost(λ) + ln(1/δ)/(λ − 1), the conversion of both papers (Mironov 2017, Proposition
    3).
    """
    return float(np.min(cost + math.log(1 / delta) / (orders - 1)))


def laplace_votes_epsilon(gamma: float, answers: int, delta: float) -> float:
    """Data-independent ε of `answers` by LNMax: by moments, or 2γ per answer if that is less."""
    if not answers:
        return 0.0
    return min(
        classic_epsilon(answers * 2 * gamma**2 * WHOLE_ORDERS, WHOLE_ORDERS, delta), 2 * gamma * answers
    )


def gaussian_votes_epsilon(cost: float, delta: float) -> float:
    """Data-independent ε if the total costs λ·cost at every order λ: the minimum in closed form."""
    return cost + 2 * math.sqrt(cost * math.log(1 / delta))


# probability of another outcome -----------------------------------------------------------------------------


@dataclass(frozen=True)
class NoiseGaps:
    """`tail[reach + g]`: the probability that the noise of one class exceeds that of another by g votes or
    more, for g from −reach to reach.
    """

    tail: np.ndarray
    reach: int

    def of(self, gap: np.ndarray) -> np.ndarray:
        return np.asarray(self.tail[np.clip(gap, -self.reach, self.reach) + self.reach])

    def other(self, votes: np.ndarray) -> np.ndarray:
        """q of each row of counts: a union bound on the probability of a class other than the plurality; ties
        count as another class.
        """
        each = self.of(votes.max(1, keepdims=True) - votes)
        each[np.arange(len(votes)), votes.argmax(1)] = 0.0
        return np.asarray(np.clip(each.sum(1), FLOOR, 1.0))


def laplace_gaps(scale: int, step: int, reach: int) -> NoiseGaps:
    """Noise P(y) ∝ exp(−|y|/scale) on counts multiplied by `step`.

    The difference of two such variables is d with probability ((1−p)/(1+p))² p^|d| (|d| + (1+p²)/(1−p²)), p =
    exp(−1/scale); its tail has a closed form.
    """
    p = math.exp(-1 / scale)
    head, c = ((1 - p) / (1 + p)) ** 2, (1 + p * p) / (1 - p * p)

    def above(d: np.ndarray) -> np.ndarray:  # P(D ≥ d) for d ≥ 1
        return head * np.exp(-d / scale) * ((d + c) / (1 - p) + p / (1 - p) ** 2)

    d = step * np.arange(-reach, reach + 1, dtype=float)
    return NoiseGaps(
        np.where(d >= 1, above(np.maximum(d, 1)), 1 - above(np.maximum(1 - d, 1))) * ROUNDING, reach
    )  # P(D ≥ d) = 1 − P(D ≥ 1 − d)


def gaussian_gaps(variance: Fraction, reach: int) -> NoiseGaps:
    """Discrete Gaussian noise of this σ² on the counts themselves: P(X − Y ≥ g) = Σ_y P(Y = y) P(X ≥ y +
    g).
    """
    y, law, survive = _gaussian_law(variance)
    at = np.clip(y[None, :] + np.arange(-reach, reach + 1)[:, None] - y[0], 0, len(y))
    return NoiseGaps((law[None, :] * survive[at]).sum(1) * ROUNDING, reach)


def gaussian_above(variance: Fraction, margin: np.ndarray) -> np.ndarray:
    """P(X ≥ margin) for one discrete Gaussian variable and integer margins."""
    y, _, survive = _gaussian_law(variance)
    return np.asarray(survive[np.clip(margin - y[0], 0, len(y))])


def _gaussian_law(variance: Fraction) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, their probabilities, and survive[k] = P(X ≥ y[k]); beyond 38 σ, probabilities underflow."""
    sigma = math.sqrt(variance)
    y = np.arange(-math.ceil(38 * sigma) - 1, math.ceil(38 * sigma) + 2)
    law = np.exp(-(y.astype(float) ** 2) / (2 * float(variance)))
    law /= law.sum()
    return y, law, np.concatenate([np.cumsum(law[::-1])[::-1], [0.0]])


# data-dependent cost ----------------------------------------------------------------------------------------


def laplace_cost(log_q: np.ndarray, gamma: float, orders: np.ndarray) -> np.ndarray:
    """[q, order] of a (2γ, 0)-DP mechanism with another outcome with probability at most q: ICLR 2017,
    Theorem 3, as Rényi cost.
    """
    base = np.minimum(2 * gamma**2 * orders, 2 * gamma)[None, :]
    q, l = np.exp(log_q)[:, None], orders[None, :] - 1  # noqa: E741  # the paper's letter
    ok = q < 1 / (math.exp(2 * gamma) + 1)  # (e^2γ − 1)/(e^4γ − 1)
    safe = np.where(ok, q, 0.0)
    one = np.log1p(-safe) + l * (np.log1p(-safe) - np.log1p(-math.exp(2 * gamma) * safe))
    two = np.log(np.where(ok, q, 1.0)) + 2 * gamma * l
    return np.where(ok, np.minimum(np.logaddexp(one, two) / l, base), base)


def gaussian_cost(log_q: np.ndarray, scale: float, orders: np.ndarray) -> np.ndarray:
    """[q, order] of a mechanism of cost λ/scale at every order λ, with another outcome with probability at
    most q: ICLR 2018, Theorem 6.
    """
    base = np.broadcast_to(orders[None, :] / scale, (len(log_q), len(orders)))
    mu2 = np.sqrt(scale * -np.minimum(log_q, -1e-15))[:, None]  # Proposition 10
    mu1 = mu2 + 1
    eps1, eps2, lq = mu1 / scale, mu2 / scale, log_q[:, None]
    with np.errstate(all="ignore"):  # values where the conditions fail are not used
        limit = (mu2 - 1) * eps2 - mu2 * (np.log(mu1 / (mu1 - 1)) + np.log(mu2 / (mu2 - 1)))
        ok = (mu2 > 1) & (orders[None, :] <= mu1) & (lq <= limit) & (lq + eps2 < 0)
        rest = np.log1p(-np.exp(lq))
        log_a = rest - np.log1p(-np.exp((lq + eps2) * (mu2 - 1) / mu2))
        log_b = eps1 - lq / (mu1 - 1)
        cost = np.logaddexp(rest + (orders - 1) * log_a, lq + (orders - 1) * log_b) / (orders - 1)
    return np.where(ok & np.isfinite(cost), np.minimum(np.maximum(cost, 0.0), base), base)


class CostTable:
    """The cost of an answer by its q, at each order; it never decreases in q.

    q is rounded up to the grid, and the best q̃ above it is used.
    """

    def __init__(self, mechanism: str, scale: float, orders: np.ndarray):
        self.orders = orders
        self.grid = np.concatenate(
            [np.arange(math.log(FLOOR), math.log(1e-12), 0.5), np.arange(math.log(1e-12), 0.0, FINE), [0.0]]
        )
        each = (laplace_cost if mechanism == "laplace" else gaussian_cost)(self.grid, scale, orders)
        self.table = np.minimum.accumulate(each[::-1], axis=0)[
            ::-1
        ]  # [grid, order], increasing along the grid

    def cell(self, q: np.ndarray) -> np.ndarray:
        """The index of the smallest grid value at least q."""
        at = np.searchsorted(self.grid, np.log(np.clip(q, FLOOR, 1.0)), side="left")
        return np.asarray(np.minimum(at, len(self.grid) - 1))

    def of(self, q: np.ndarray) -> np.ndarray:
        """[answers, order]."""
        return np.asarray(self.table[self.cell(q)])
