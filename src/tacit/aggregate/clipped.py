"""Means of updates whose L2 norm is limited: a long update cannot move the mean far.

Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan: "Can You Really Backdoor Federated Learning?", 2019 (norm
bounding). S. P. Karimireddy, L. He, M. Jaggi: "Learning from History for Byzantine Robust Optimization", ICML
2021 (centered clipping).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..parameters import flag, real, whole
from .rule import State
from .stack import SeesEach, Updates


@dataclass(frozen=True)
class ClippedMean(SeesEach):
    """The mean of updates clipped to a norm.

    Breakdown point 0, but f of n parties move the mean by at most f/n times that norm.
    """

    norm: float | None = real(
        None,
        above=0,
        none=True,
        doc="the largest L2 norm of an update; None: the median norm of the round's updates",
    )
    weighted: bool = flag(True, doc="weight parties by the rows they report (else equally)")

    def aggregate(self, updates: Updates) -> State:
        norms = updates.norms()
        most = norms.median() if self.norm is None else self.norm
        weight = updates.weights.double() if self.weighted else torch.ones_like(norms)
        return updates.weighted_sum(weight / weight.sum() * (most / norms.clamp(min=1e-30)).clamp(max=1))


@dataclass(frozen=True)
class NormBound(SeesEach):
    """The mean of the updates that are not much longer than the median one.

    Breakdown point 1/2 against long updates, 0 against short malicious ones.
    """

    factor: float = real(
        2.0, least=1, doc="an update with more than this many times the median norm is excluded"
    )
    weighted: bool = flag(True, doc="weight parties by the rows they report (else equally)")

    def aggregate(self, updates: Updates) -> State:
        norms = updates.norms()
        weight = (updates.weights.double() if self.weighted else torch.ones_like(norms)) * (
            norms <= self.factor * norms.median()
        )
        return updates.weighted_sum(weight / weight.sum())


@dataclass(frozen=True)
class CenteredClip(SeesEach):
    """A few steps of v ← v + mean of clip(x_i − v, τ), from v = 0.

    It needs an honest majority, and a τ of about the spread of the honest updates.
    """

    tau: float | None = real(
        None,
        above=0,
        none=True,
        doc="τ, the most that one update contributes to a step; None: the median norm of the round's updates",
    )
    iterations: int = whole(5, least=1, doc="L, the number of steps")

    def aggregate(self, updates: Updates) -> State:
        n, g = len(updates), updates.products(centered=False)
        tau = float(g.diagonal().clamp(min=0).sqrt().median()) if self.tau is None else self.tau
        share = torch.zeros(n, dtype=torch.float64, device=g.device)  # v = Σ share_i·x_i
        for _ in range(self.iterations):
            distance = (g.diagonal() - 2 * g @ share + share @ g @ share).clamp(min=0).sqrt()
            pull = (tau / distance.clamp(min=1e-30)).clamp(max=1) / n
            share = share * (1 - pull.sum()) + pull
        return updates.weighted_sum(share)
