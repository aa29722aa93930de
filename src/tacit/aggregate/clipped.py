"""Means of updates that are cut to a length, or left out for theirs: a long update cannot drag the mean far.

Z. Sun, P. Kairouz, A. T. Suresh, H. B. McMahan: "Can You Really Backdoor Federated Learning?", 2019 (norm
bounding). S. P. Karimireddy, L. He, M. Jaggi: "Learning from History for Byzantine Robust Optimization", ICML
2021 (centred clipping).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parameters import flag, real, whole
from .stack import Each, Updates


@dataclass(frozen=True)
class ClippedMean(Each):
    """The mean of updates cut to a length. Breakdown point 0, but f of n parties move it by no more than f/n
    times that length.
    """

    norm: float | None = real(
        None,
        above=0,
        none=True,
        doc="the length no update exceeds; None: the median length of the round's updates",
    )
    weighted: bool = flag(True, doc="weigh parties by the rows they state (else all alike)")

    def one(self, updates: Updates) -> dict[str, Tensor]:
        norms = updates.norms()
        most = norms.median() if self.norm is None else self.norm
        weight = updates.weights.double() if self.weighted else torch.ones_like(norms)
        return updates.combined(weight / weight.sum() * (most / norms.clamp(min=1e-30)).clamp(max=1))


@dataclass(frozen=True)
class NormBound(Each):
    """The mean of the updates that are not much longer than the rest. Breakdown point 1/2 against long
    updates, 0 against short ones that lie.
    """

    factor: float = real(
        2.0, least=1, doc="an update more than so many times as long as the median one is left out"
    )
    weighted: bool = flag(True, doc="weigh parties by the rows they state (else all alike)")

    def one(self, updates: Updates) -> dict[str, Tensor]:
        norms = updates.norms()
        weight = (updates.weights.double() if self.weighted else torch.ones_like(norms)) * (
            norms <= self.factor * norms.median()
        )
        return updates.combined(weight / weight.sum())


@dataclass(frozen=True)
class CenteredClip(Each):
    """A few steps of v ← v + mean of clip(x_i − v, τ), from v = 0. It needs an honest majority, and τ of
    about the honest updates' spread.
    """

    tau: float | None = real(
        None,
        above=0,
        none=True,
        doc="τ, how far one update pulls in a step; None: the median length of the round's updates",
    )
    iterations: int = whole(5, least=1, doc="L, the steps")

    def one(self, updates: Updates) -> dict[str, Tensor]:
        n, g = len(updates), updates.products(centred=False)
        tau = float(g.diagonal().clamp(min=0).sqrt().median()) if self.tau is None else self.tau
        share = torch.zeros(n, dtype=torch.float64, device=g.device)  # v = Σ share_i·x_i
        for _ in range(self.iterations):
            far = (g.diagonal() - 2 * g @ share + share @ g @ share).clamp(min=0).sqrt()
            pull = (tau / far.clamp(min=1e-30)).clamp(max=1) / n
            share = share * (1 - pull.sum()) + pull
        return updates.combined(share)
