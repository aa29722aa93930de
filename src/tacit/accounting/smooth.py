"""A data-dependent cost that may be published: with noise as large as the cost could change from one
neighbour to the next.

K. Nissim, S. Raskhodnikova, A. Smith: "Smooth Sensitivity and Sampling in Private Data Analysis", STOC 2007,
Definition 2.2; for votes, N. Papernot and others: "Scalable Private Learning with PATE", ICLR 2018, Section
4.3 and Appendix B.

    S(D) = max over d of exp(−β d) · the largest change from any D' at most d votes away to a neighbour of it
    published = C(D) + z·κ·S(D) + κ·S(D)·N(0, 1)

z·κ·S lifts the mean, so that what is published lies below C(D) with probability Φ(−z) only; that chance goes
into δ. Where we differ from the paper: it shows with six conditions that one walk along q suffices and adds
nothing for z; here the largest change is looked up over all q that d votes can reach, and the release is the
Rényi divergence of two Gaussians of unlike deviation, which is exact.

Why one number q stands for all counts. One vote moves the gap between two classes by at most 2. Let t(g) be
the probability that noise closes a gap of g. The noise is log-concave, so the points (t(g), t(g − 2)) lie on
a concave line and (t(g), t(g + 2)) on a convex one; by Jensen, of all counts with Σ t = q the ones with equal
gaps change most, and a neighbour's q lies between (m − 1)·t(g + 2) and (m − 1)·t(g − 2) at t(g) = q/(m − 1).
"""

from __future__ import annotations

import math
import os
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from . import discrete
from .votes import FLOOR, Gaps, Price

DIGITS = 4  # of a published cost: coarse beside its noise, so that no bits of the floating-point sum are told


class Released(NamedTuple):
    """`cost` at `order` may be published; `own` is what publishing it costs at that order, `missed` the
    probability that it says too little.
    """

    cost: float
    order: float
    own: float
    missed: float


def change_of_votes(price: Price, gaps: Gaps, classes: int, q: np.ndarray, at: int, steps: int) -> np.ndarray:
    """[steps]: how much the summed cost of these answers can change by one vote, from counts at most d = 0,
    1, … votes away. `at` is the order's place.
    """
    cost, upper = price.table[:, at], np.exp(price.grid)
    lower = np.concatenate([[0.0], upper[:-1]])
    t = gaps.tail[::-1]  # rising
    up = np.clip((classes - 1) * np.interp(upper / (classes - 1), t[:-2], t[2:]), FLOOR, 1.0)
    down = (classes - 1) * np.interp(lower / (classes - 1), t[2:], t[:-2])
    rise, fall = price.cell(up), price.cell(down)
    jump = np.maximum(cost[rise] - cost, cost - cost[fall])
    return _reach(jump, rise, fall, price.cell(q), steps)


def change_of_check(cost: np.ndarray, largest: np.ndarray, steps: int) -> np.ndarray:
    """The same for a check of the largest count: `cost[c]` by that count, which one vote moves by at most
    1.
    """
    here = np.arange(len(cost))
    rise, fall = np.minimum(here + 1, len(cost) - 1), np.maximum(here - 1, 0)
    jump = np.maximum(np.abs(cost[rise] - cost), np.abs(cost[fall] - cost))
    return _reach(jump, rise, fall, largest, steps)


def _reach(jump: np.ndarray, rise: np.ndarray, fall: np.ndarray, start: np.ndarray, steps: int) -> np.ndarray:
    """Σ over the starts of the largest jump between where d steps down and d steps up lead, for each d."""
    levels = [jump]  # levels[k][i] = max of jump[i : i + 2^k]
    while (width := 1 << len(levels)) <= len(jump):
        before = levels[-1]
        levels.append(
            np.maximum(
                before[: len(jump) - width + 1], before[width // 2 : width // 2 + len(jump) - width + 1]
            )
        )
    places, many = np.unique(start, return_counts=True)
    low, high = places.copy(), places.copy()
    found = np.zeros(steps)
    for d in range(steps):
        k = np.log2(high - low + 1).astype(int)
        found[d] = sum(
            n * max(levels[level][a], levels[level][b + 1 - (1 << level)])
            for n, level, a, b in zip(many, k, low, high)
        )
        low, high = fall[low], rise[high]
    return found


def smooth(changes: np.ndarray, beta: float) -> float:
    """max over d of exp(−β d) · change[d]. The last d must be as far as counts can lie apart."""
    return float(np.max(changes * np.exp(-beta * np.arange(len(changes)))))


def release_cost(order: float, beta: float, kappa: float, z: float) -> float:
    """What publishing costs at this order.

    Neighbours' deviations differ by a factor e^b with |b| ≤ β, their means by at most (1 + zκ(e^β − 1))·S. With v = 1 + λ(e^2b − 1) the divergence is
    λ·shift²/(2v) + b + ln(e^2b/v)/(2(λ − 1)); its first part is largest at b = −β, and the rest at b = β
    or −β.
    """
    narrow = order - (order - 1) * math.exp(2 * beta)
    if narrow <= 0:
        return math.inf  # deviations so unlike have no divergence at this order
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
) -> Released:
    """Publish `cost`, so that publishing costs about `share` of ln(1/missed)/(λ − 1), the part of ε that δ
    makes. Nothing here may depend on the votes but `cost` and `changes`.
    """
    z = NormalDist().inv_cdf(1 - missed)
    beta = (
        0.2 / order
        # below ½·ln(λ/(λ − 1)), beyond which there is no guarantee; smaller ones cost less here and make S
        # larger
    )
    aim = share * math.log(1 / missed) / (order - 1)
    low, high = 1e-3, 1e6
    for _ in range(80):  # κ by bisection: the cost falls in κ
        middle = math.sqrt(low * high)
        low, high = (
            (low, middle)
            if release_cost(order, beta, middle, z) <= max(aim, 2 * release_cost(order, beta, 1e9, z))
            else (middle, high)
        )
    deviation = high * smooth(changes, beta)
    unit = 1 << 20
    drawn = (
        int(discrete.gaussian_whole(unit, 1, source)[0]) / unit
    )  # a standard normal number on a grid of 2⁻²⁰
    return Released(
        round(float(cost + deviation * (z + drawn)), DIGITS),
        float(order),
        release_cost(float(order), beta, high, z),
        missed,
    )
