"""The geometric median, by the smoothed Weiszfeld algorithm. K. Pillutla, S. M. Kakade, Z. Harchaoui: "Robust
Aggregation for Federated Learning" (RFA), IEEE Transactions on Signal Processing 70, 2022, Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parameters import flag, real, whole
from .stack import Each, Updates


@dataclass(frozen=True)
class GeometricMedian(Each):
    """The point with the least sum of distances to all updates. Breakdown point 1/2 of the parties (of the
    rows they state, if `weighted`).
    """

    smoothing: float = real(
        1e-6,
        above=0,
        doc="ν: distances below this count as this, relative to the mean distance, so that no step divides "
        "by zero",
    )
    iterations: int = whole(
        100, least=1, doc="Weiszfeld steps at most; it stops earlier where nothing moves any more"
    )
    weighted: bool = flag(False, doc="weigh parties by the rows they state, as RFA does (else all alike)")

    def one(self, updates: Updates) -> dict[str, Tensor]:
        n = len(updates)
        alpha = (
            updates.weights.double()
            if self.weighted
            else torch.ones(n, dtype=torch.float64, device=updates.weights.device)
        )
        alpha = alpha / alpha.sum()
        g, share = (
            updates.products(centred=True),
            alpha,
        )  # the median is Σ share_i·x_i, and every distance from it follows from the products
        nu = self.smoothing * max(float(g.diagonal().clamp(min=0).sqrt().mean()), 1e-30)
        for _ in range(self.iterations):
            far = (g.diagonal() - 2 * g @ share + share @ g @ share).clamp(min=0).sqrt()
            beta = alpha / far.clamp(min=nu)
            before, share = share, beta / beta.sum()
            if float((share - before).abs().max()) < 1e-12:
                break
        return updates.combined(share)
