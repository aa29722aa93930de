"""Weights by how alike updates are. C. Fung, C. J. M. Yoon, I. Beschastnikh: "The Limitations of Federated
Learning in Sybil Settings", RAID 2020, Algorithm 1. Over the rounds what sybils have in common adds up, and
the noise they hide it under does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parameters import flag, real
from .stack import Remembering, Total, Updates


@dataclass(frozen=True)
class FoolsGold(Remembering):
    """Parties whose updates point the same way share one vote. It assumes that honest parties differ from
    each other more than sybils do.

    With `history` the sum of each party's updates so far is compared: one vector for every party that has
    taken part, in memory and in what is saved.
    """

    confidence: float = real(1.0, above=0, doc="κ: how sharply the weights are drawn apart")
    history: bool = flag(
        True, doc="compare what each party sent over all rounds, as the paper does (else in the round alone)"
    )

    def one(self, updates: Updates) -> dict[str, Tensor]:
        return updates.combined(self.shares(updates.moved().products(centred=False)))

    def look(
        self, updates: Updates, who: Tensor, memory: Total, down: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], Total]:
        if not self.history:
            return self.one(updates), memory
        ways = updates.ways(down)
        known = memory.get("who", who[:0])
        everyone = torch.cat([known, who[~torch.isin(who, known)]])
        sums = torch.cat(
            [memory.get("sum", ways[:0]), ways.new_zeros(len(everyone) - len(known), ways.shape[1])]
        )
        at = (everyone[None, :] == who[:, None]).int().argmax(1)
        sums[at] += ways  # H_i ← H_i + Δ_i
        h = sums[at].double()
        return updates.combined(self.shares(h @ h.T)), {"who": everyone, "sum": sums}

    def shares(self, g: Tensor) -> Tensor:
        """The weight of each update, from inner products [n, n]."""
        n = len(g)
        if n == 1:
            return torch.ones(1, device=g.device)
        length = g.diagonal().clamp(min=1e-60).sqrt()
        alike = (g / length[:, None] / length[None, :]).fill_diagonal_(-1)
        most = alike.max(1).values  # v_i
        pardon = torch.where(
            most[None, :] > most[:, None],
            most[:, None] / most[None, :].clamp(min=1e-12),
            torch.ones_like(alike),
        )
        share = (1 - (alike * pardon).max(1).values).clamp(
            0, 1
        )  # pardoned: an honest party is not punished for a sybil that looks like it
        share = share.masked_fill(
            g.diagonal() <= 0, 0
        )  # whoever never moved points nowhere, and is not unlike the rest for it
        if float(share.max()) < 1e-6:
            return torch.full(
                (n,), 1 / n, device=g.device
            )  # all say the same: there is nothing to tell apart
        share = share / share.max()
        share = (
            self.confidence
            * (torch.log(share.clamp(1e-12, 1 - 1e-6) / (1 - share.clamp(1e-12, 1 - 1e-6))) + 0.5)
        ).clamp(0, 1)
        return share / share.sum()
