"""The geometric median, by the smoothed Weiszfeld algorithm.

K. Pillutla, S. M. Kakade, Z. Harchaoui: "Robust Aggregation for Federated Learning" (RFA), IEEE
Transactions on Signal Processing 70, 2022, Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..parameters import flag, real, whole
from .rule import State
from .stack import SeesEach, Updates


@dataclass(frozen=True)
class GeometricMedian(SeesEach):
    """The point with the least sum of distances to all updates.

    Breakdown point 1/2 of the parties (of the rows they report, if `weighted`).
    """

    smoothing: float = real(
        1e-6,
        above=0,
        doc="ν, the smallest distance used as a divisor, relative to the mean distance",
    )
    iterations: int = whole(
        100, least=1, doc="the largest number of Weiszfeld steps; it stops earlier at a fixed point"
    )
    weighted: bool = flag(False, doc="weight parties by the rows they report, as RFA does (else equally)")

    def aggregate(self, updates: Updates) -> State:
        weights = updates.weights.double()
        alpha = weights if self.weighted else torch.ones_like(weights)
        alpha = alpha / alpha.sum()
        # the median is Σ share_i·x_i, and its distance from every update follows from the inner products
        g, share = updates.products(centered=True), alpha
        nu = self.smoothing * max(float(g.diagonal().clamp(min=0).sqrt().mean()), 1e-30)
        for _ in range(self.iterations):
            distance = (g.diagonal() - 2 * g @ share + share @ g @ share).clamp(min=0).sqrt()
            beta = alpha / distance.clamp(min=nu)
            before, share = share, beta / beta.sum()
            if float((share - before).abs().max()) < 1e-12:
                break
        return updates.weighted_sum(share)
