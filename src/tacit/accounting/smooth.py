"""Publish a data-dependent privacy cost, with noise calibrated to its smooth sensitivity.

K. Nissim, S. Raskhodnikova, A. Smith: "Smooth Sensitivity and Sampling in Private Data Analysis", STOC 2007,
Definition 2.2; for votes, N. Papernot and others: "Scalable Private Learning with PATE", ICLR 2018, Section
4.3 and Appendix B.

    S(D) = max over d of exp(−β d) · the largest change from any D' at most d votes away to a neighbor of it
    published = C(D) + z·κ·S(D) + κ·S(D)·N(0, 1)

z·κ·S shifts the mean, so that the published value is below C(D) with probability Φ(−z) only, which is part of
δ. Differences from the paper: it shows by six conditions that one path along q suffices, and adds nothing for
z; here the largest change is computed over all q that d votes can reach, and the release costs the exact
Rényi divergence of two Gaussians with different variances.

Why the number q is sufficient for all counts. One vote changes the gap between two classes by at most 2. Let
t(g) be the probability that noise closes a gap of g. The noise is log-concave, so the points (t(g), t(g − 2))
are on a concave curve and (t(g), t(g + 2)) on a convex one; by Jensen's inequality, of all counts with Σ t =
q those with equal gaps change most, and a neighbor's q is between (m − 1)·t(g + 2) and (m − 1)·t(g − 2) at
t(g) = q/(m − 1).
"""

from __future__ import annotations

import math
import os
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from . import discrete
from .votes import FLOOR, CostTable, NoiseGaps

DIGITS = 4  # of a published cost: coarse relative to its noise, so that no floating-point bits are revealed


class PublishedCost(NamedTuple):
    """A cost that may be published, at this order.

    `own` is the cost of publishing it, at the same order; `missed` the probability that it is too low.
    """

    cost: float
    order: float
    own: float
    missed: float


def change_of_votes(
    price: CostTable, gaps: NoiseGaps, classes: int, q: np.ndarray, at: int, steps: int
) -> np.ndarray:
    """[steps]: the largest change of the summed cost of these answers by one vote, from counts at most d = 0,
    1, … votes away. `at` is the index of the order.
    """
    cost, upper = price.table[:, at], np.exp(price.grid)
    lower = np.concatenate([[0.0], upper[:-1]])
    t = gaps.tail[::-1]  # increasing
    up = np.clip((classes - 1) * np.interp(upper / (classes - 1), t[:-2], t[2:]), FLOOR, 1.0)
    down = (classes - 1) * np.interp(lower / (classes - 1), t[2:], t[:-2])
    rise, fall = price.cell(up), price.cell(down)
    return _reach(np.maximum(cost[rise] - cost, cost - cost[fall]), rise, fall, price.cell(q), steps)


def change_of_check(cost: np.ndarray, largest: np.ndarray, steps: int) -> np.ndarray:
    """The same for a check of the largest count, which one vote changes by at most 1; `cost[c]` by count."""
    here = np.arange(len(cost))
    rise, fall = np.minimum(here + 1, len(cost) - 1), np.maximum(here - 1, 0)
    return _reach(
        np.maximum(np.abs(cost[rise] - cost), np.abs(cost[fall] - cost)), rise, fall, largest, steps
    )


def _reach(jump: np.ndarray, rise: np.ndarray, fall: np.ndarray, start: np.ndarray, steps: int) -> np.ndarray:
    """Σ over the starts of the largest jump within d steps down and d steps up, for each d."""
    levels = [jump]  # levels[k][i] = max of jump[i : i + 2^k]
    while (width := 1 << len(levels)) <= len(jump):
        before = levels[-1]
        levels.append(
            np.maximum(
                before[: len(jump) - width + 1], before[width // 2 : width // 2 + len(jump) - width + 1]
            )
        )
    places, counts = np.unique(start, return_counts=True)
    low, high = places.copy(), places.copy()
    reach = np.zeros(steps)
    for d in range(steps):
        k = np.log2(high - low + 1).astype(int)
        reach[d] = sum(
            n * max(levels[level][a], levels[level][b + 1 - (1 << level)])
            for n, level, a, b in zip(counts, k, low, high)
        )
        low, high = fall[low], rise[high]
    return reach


def smooth(changes: np.ndarray, beta: float) -> float:
    """max over d of exp(−β d) · change[d]. The last d must be the largest distance of two counts."""
    return float(np.max(changes * np.exp(-beta * np.arange(len(changes)))))


def release_cost(order: float, beta: float, kappa: float, z: float) -> float:
    """The cost of publishing at this order.

    Neighbors' standard deviations differ by a factor e^b with |b| ≤ β, their means by at most (1 + zκ(e^β −
    1))·S. With v = 1 + λ(e^2b − 1) the divergence is λ·shift²/(2v) + b + ln(e^2b/v)/(2(λ − 1)); its first
    term is largest at b = −β, and the rest at b = β or −β.
    """
    narrow = order - (order - 1) * math.exp(2 * beta)
    if narrow <= 0:
        return math.inf  # the divergence of such different variances is infinite at this order
    shift = 1 / kappa + z * math.expm1(beta)

    def spread(b: float) -> float:
        v = 1 + order * math.expm1(2 * b)
        return b + (2 * b - math.log(v)) / (2 * (order - 1))

    return order * shift * shift / (2 * narrow) + max(spread(beta), spread(-beta))


def release(
    cost: float,
    changes: np.ndarray,
    order: float,
    missed: float,
    share: float = 0.1,
    source: discrete.Source = os.urandom,
) -> PublishedCost:
    """Publish `cost`; publishing costs about `share` of ln(1/missed)/(λ − 1), the part of ε that is due to δ.

    Only `cost` and `changes` may depend on the votes.
    """
    z = NormalDist().inv_cdf(1 - missed)
    # below ½·ln(λ/(λ − 1)), beyond which there is no guarantee; a smaller one costs less here and increases S
    beta = 0.2 / order
    aim = share * math.log(1 / missed) / (order - 1)
    low, high = 1e-3, 1e6
    for _ in range(80):  # κ by bisection: the cost decreases in κ
        middle = math.sqrt(low * high)
        low, high = (
            (low, middle)
            if release_cost(order, beta, middle, z) <= max(aim, 2 * release_cost(order, beta, 1e9, z))
            else (middle, high)
        )
    deviation = high * smooth(changes, beta)
    unit = 1 << 20
    noise = int(discrete.gaussian_whole(unit, 1, source)[0]) / unit  # standard normal on a grid of 2⁻²⁰
    return PublishedCost(
        round(float(cost + deviation * (z + noise)), DIGITS),
        float(order),
        release_cost(float(order), beta, high, z),
        missed,
    )
