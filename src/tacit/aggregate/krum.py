"""Krum, multi-Krum and Bulyan: updates near many others are kept.

P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer: "Machine Learning with Adversaries: Byzantine
Tolerant Gradient Descent", NIPS 2017. E. M. El Mhamdi, R. Guerraoui, S. Rouault: "The Hidden Vulnerability of
Distributed Learning in Byzantium", ICML 2018.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import BadParameter
from ..parameters import real, whole
from .median import middle
from .stack import Each, Updates


@dataclass(frozen=True)
class Krum(Each):
    """The one update nearest to its n − f − 2 nearest others. Breakdown: f parties of n ≥ 2f + 3, whatever
    they send.
    """

    byzantine: float = real(
        0.2,
        least=0,
        below=0.5,
        doc="the share of parties that may lie; f is that of those in a round, rounded down",
    )

    def kept(self, n: int, f: int) -> int:
        return 1

    def one(self, updates: Updates) -> dict[str, Tensor]:
        n = len(updates)
        f = liars(self, n, 2)
        best = scores(updates.distances(), f).argsort(stable=True)[: self.kept(n, f)]
        return updates.combined(_even(n, best))


@dataclass(frozen=True)
class MultiKrum(Krum):
    """The mean of the m updates with Krum's best scores. Breakdown as Krum's; m = n − f if not given, which
    loses less of what honest parties know.
    """

    keep: int | None = whole(None, least=1, none=True, doc="m, how many updates are averaged; None: n − f")

    def kept(self, n: int, f: int) -> int:
        return n - f if self.keep is None else min(self.keep, n - f)


@dataclass(frozen=True)
class Bulyan(Each):
    """Krum picks n − 2f updates one by one, then every coordinate is the mean of its values nearest to the
    median. Breakdown: f of n ≥ 4f + 3.
    """

    byzantine: float = real(
        0.2,
        least=0,
        below=0.25,
        doc="the share of parties that may lie; f is that of those in a round, rounded down",
    )

    def one(self, updates: Updates) -> dict[str, Tensor]:
        n = len(updates)
        f = liars(self, n, 4)
        d, left = updates.distances(), list(range(n))
        for _ in range(n - 2 * f):
            among = torch.tensor(left, device=d.device)
            here = d[among][:, among]
            score = scores(here, f)
            ties = score <= score.min() * (
                1 + 1e-9
            )  # of two that are each other's nearest, the one nearer to all
            left.pop(int(torch.where(ties, here.sum(1), torch.inf).argmin()))
        kept = torch.ones(n, dtype=torch.bool, device=d.device)
        kept[left] = False
        near = n - 4 * f
        return updates.only(kept).by_coordinate(lambda x: _nearest(x, near))


def liars(rule: Krum | Bulyan, n: int, times: int) -> int:
    """f, if n parties can outvote it."""
    f = int(rule.byzantine * n)
    if n < times * f + 3 and f:
        raise BadParameter(
            f"{type(rule).__name__}: {f} of {n} parties in a round may lie (byzantine is "
            f"{rule.byzantine:g}), and it needs at least "
            f"{times * f + 3} parties then. Ask more parties in each round, or assume fewer liars."
        )
    return f


def scores(d: Tensor, f: int) -> Tensor:
    """Krum's score: the sum of squared distances to the n − f − 2 nearest others."""
    n = len(d)
    near = max(1, n - f - 2)
    return d.sort(1).values[:, 1 : 1 + near].sum(1)


def _even(n: int, kept: Tensor) -> Tensor:
    share = torch.zeros(n, device=kept.device)
    share[kept] = 1 / len(kept)
    return share


def _nearest(x: Tensor, many: int) -> Tensor:
    """The mean of the `many` values nearest to the median. In ascending order they stand side by side: find
    the window that reaches least far.
    """
    m = middle(x)[:, None]
    last = x.shape[1] - many + 1
    reach = torch.maximum(m - x[:, :last], x[:, many - 1 :] - m)
    at = reach.argmin(1)[:, None]
    return x.gather(1, at + torch.arange(many, device=x.device)).mean(1)
