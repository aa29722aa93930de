"""FoolsGold: weights by the similarity of updates.

C. Fung, C. J. M. Yoon, I. Beschastnikh: "The Limitations of Federated Learning in Sybil Settings", RAID 2020,
Algorithm 1. Over the rounds the common direction of sybils adds up, and the noise that hides it does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parameters import flag, real
from .rule import State, Total
from .stack import Updates, WithMemory


@dataclass(frozen=True)
class FoolsGold(WithMemory):
    """Parties whose updates point in the same direction share one vote.

    It assumes that honest parties differ from each other more than sybils do. With `history`, the sums of
    each party's updates so far are compared: the memory is one vector for every party that has taken part.
    """

    confidence: float = real(1.0, above=0, doc="κ, the steepness of the weights")
    history: bool = flag(True, doc="compare the updates of all rounds, as the paper does (else of the round)")

    def aggregate(self, updates: Updates) -> State:
        return updates.weighted_sum(self.shares(updates.without_buffers().products(centered=False)))

    def aggregate_with_memory(
        self, updates: Updates, parties: Tensor, memory: Total, down: State
    ) -> tuple[State, Total]:
        if not self.history:
            return self.aggregate(updates), memory
        x = updates.displacements(down)
        known = memory.get("who", parties[:0])
        everyone = torch.cat([known, parties[~torch.isin(parties, known)]])
        sums = torch.cat([memory.get("sum", x[:0]), x.new_zeros(len(everyone) - len(known), x.shape[1])])
        at = (everyone[None, :] == parties[:, None]).int().argmax(1)
        sums[at] += x  # H_i ← H_i + Δ_i
        h = sums[at].double()
        return updates.weighted_sum(self.shares(h @ h.T)), {"who": everyone, "sum": sums}

    def shares(self, g: Tensor) -> Tensor:
        """The weight of each update, from inner products [n, n]."""
        n = len(g)
        if n == 1:
            return torch.ones(1, device=g.device)
        norm = g.diagonal().clamp(min=1e-60).sqrt()
        cosine = (g / norm[:, None] / norm[None, :]).fill_diagonal_(-1)
        most = cosine.max(1).values  # v_i
        # pardoning: an honest party is not penalized because a sybil resembles it
        pardon = torch.where(
            most[None, :] > most[:, None],
            most[:, None] / most[None, :].clamp(min=1e-12),
            torch.ones_like(cosine),
        )
        share = (1 - (cosine * pardon).max(1).values).clamp(0, 1)
        share = share.masked_fill(g.diagonal() <= 0, 0)  # a zero vector has no direction, and so no vote
        if float(share.max()) < 1e-6:
            return torch.full((n,), 1 / n, device=g.device)  # all updates agree
        share = share / share.max()
        share = (
            self.confidence
            * (torch.log(share.clamp(1e-12, 1 - 1e-6) / (1 - share.clamp(1e-12, 1 - 1e-6))) + 0.5)
        ).clamp(0, 1)
        return share / share.sum()
