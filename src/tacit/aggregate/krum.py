"""Krum, multi-Krum and Bulyan: keep the updates that are close to many others.

P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer: "Machine Learning with Adversaries: Byzantine
Tolerant Gradient Descent", NIPS 2017. E. M. El Mhamdi, R. Guerraoui, S. Rouault: "The Hidden Vulnerability of
Distributed Learning in Byzantium", ICML 2018.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import BadParameter
from ..parameters import real, whole
from .median import middle
from .rule import State
from .stack import SeesEach, Updates

BYZANTINE = "the share of parties that may be malicious; f is this share of a round's parties, rounded down"


@dataclass(frozen=True)
class Krum(SeesEach):
    """The update with the smallest distances to its n − f − 2 nearest others.

    Breakdown: f parties of n ≥ 2f + 3, whatever they send.
    """

    byzantine: float = real(0.2, least=0, below=0.5, doc=BYZANTINE)

    def count(self, n: int, f: int) -> int:
        """How many updates are averaged."""
        return 1

    def check_parties(self, counts: Iterable[int]) -> None:
        for n in counts:
            max_malicious(self, n, 2)

    def aggregate(self, updates: Updates) -> State:
        n = len(updates)
        f = max_malicious(self, n, 2)
        best = scores(updates.distances(), f).argsort(stable=True)[: self.count(n, f)]
        share = torch.zeros(n, device=best.device)
        share[best] = 1 / len(best)
        return updates.weighted_sum(share)


@dataclass(frozen=True)
class MultiKrum(Krum):
    """The mean of the m updates with the best Krum scores.

    Breakdown as Krum's. The default, m = n − f, uses more of the honest updates than Krum does.
    """

    keep: int | None = whole(None, least=1, none=True, doc="m, how many updates are averaged; None: n − f")

    def count(self, n: int, f: int) -> int:
        return n - f if self.keep is None else min(self.keep, n - f)


@dataclass(frozen=True)
class Bulyan(SeesEach):
    """Krum selects n − 2f updates one by one; each coordinate is the mean of the values nearest to the
    median.

    Breakdown: f parties of n ≥ 4f + 3.
    """

    byzantine: float = real(0.2, least=0, below=0.25, doc=BYZANTINE)

    def check_parties(self, counts: Iterable[int]) -> None:
        for n in counts:
            max_malicious(self, n, 4)

    def aggregate(self, updates: Updates) -> State:
        n = len(updates)
        f = max_malicious(self, n, 4)
        d, left = updates.distances(), list(range(n))
        for _ in range(n - 2 * f):
            among = torch.tensor(left, device=d.device)
            here = d[among][:, among]
            score = scores(here, f)
            # two updates that are each other's nearest tie: take the one that is nearer to all
            ties = score <= score.min() * (1 + 1e-9)
            left.pop(int(torch.where(ties, here.sum(1), torch.inf).argmin()))
        selected = torch.ones(n, dtype=torch.bool, device=d.device)
        selected[left] = False
        return updates.select(selected).reduce_coordinates(lambda x: _mean_near_median(x, n - 4 * f))


def max_malicious(rule: Krum | Bulyan, n: int, times: int) -> int:
    """f, the number of malicious parties among n; BadParameter if the rule needs more parties for it."""
    f = int(rule.byzantine * n)
    if n < times * f + 3 and f:
        raise BadParameter(
            f"{type(rule).__name__}: byzantine is {rule.byzantine:g}, so {f} of {n} parties in a round may "
            f"be malicious, and it then needs at least {times * f + 3} parties. "
            "Ask more parties in each round, or set a smaller byzantine."
        )
    return f


def scores(d: Tensor, f: int) -> Tensor:
    """Krum's score: the sum of squared distances to the n − f − 2 nearest others."""
    near = max(1, len(d) - f - 2)
    return d.sort(1).values[:, 1 : 1 + near].sum(1)


def _mean_near_median(x: Tensor, many: int) -> Tensor:
    """The mean of the `many` values nearest to the median, for each row of `x` in ascending order.

    They are a window of the row: the one whose farthest value is nearest to the median.
    """
    m = middle(x)[:, None]
    reach = torch.maximum(m - x[:, : x.shape[1] - many + 1], x[:, many - 1 :] - m)
    at = reach.argmin(1)[:, None]
    return x.gather(1, at + torch.arange(many, device=x.device)).mean(1)
