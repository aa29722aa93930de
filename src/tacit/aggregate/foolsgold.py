"""Weights by how alike updates are. C. Fung, C. J. M. Yoon, I. Beschastnikh: "The Limitations of Federated Learning in Sybil Settings", RAID 2020,
Algorithm 1. The paper compares the sums of each party's updates over all rounds; we compare those of the round, so that nobody's history is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parameters import real
from .stack import Each, Updates


@dataclass(frozen=True)
class FoolsGold(Each):
    """Parties whose updates point the same way share one vote. It assumes that honest parties differ from each other more than sybils do."""

    confidence: float = real(1.0, above=0, doc="κ: how sharply the weights are drawn apart")

    def one(self, updates: Updates) -> dict[str, Tensor]:
        n = len(updates)
        if n == 1:
            return updates.combined(torch.ones(1, device=updates.weights.device))
        g = updates.products(centred=False)
        length = g.diagonal().clamp(min=1e-60).sqrt()
        alike = (g / length[:, None] / length[None, :]).fill_diagonal_(-1)
        most = alike.max(1).values  # v_i
        pardon = torch.where(most[None, :] > most[:, None], most[:, None] / most[None, :].clamp(min=1e-12), torch.ones_like(alike))
        share = (1 - (alike * pardon).max(1).values).clamp(0, 1)  # pardoned: an honest party is not punished for a sybil that looks like it
        if float(share.max()) < 1e-6:
            return updates.combined(torch.full((n,), 1 / n, device=g.device))  # all say the same: there is nothing to tell apart
        share = share / share.max()
        share = (self.confidence * (torch.log(share.clamp(1e-12, 1 - 1e-6) / (1 - share.clamp(1e-12, 1 - 1e-6))) + 0.5)).clamp(0, 1)
        return updates.combined(share / share.sum())
