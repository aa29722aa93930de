"""The coordinate-wise median and trimmed mean.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett: "Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates", ICML 2018, definitions 1 and 2.

All parties count equally: parties report their own weights, so a malicious party could report any weight.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..parameters import real
from .rule import State
from .stack import SeesEach, Updates


@dataclass(frozen=True)
class Median(SeesEach):
    """The median of every coordinate.

    Breakdown point 1/2: fewer than half of the parties cannot move it outside the range of the honest values.
    """

    def aggregate(self, updates: Updates) -> State:
        return updates.reduce_coordinates(middle)


@dataclass(frozen=True)
class TrimmedMean(SeesEach):
    """The mean of every coordinate without its largest and smallest values.

    Breakdown point: the share trimmed at each end.
    """

    trim: float = real(0.2, least=0, below=0.5, doc="β, the share of values excluded at each end")

    def aggregate(self, updates: Updates) -> State:
        n = len(updates)
        out = int(self.trim * n)
        return updates.reduce_coordinates(lambda x: x[:, out : n - out].mean(1))


def middle(x: Tensor) -> Tensor:
    """The median of each row of `x`, whose rows are in ascending order."""
    n = x.shape[1]
    return (x[:, (n - 1) // 2] + x[:, n // 2]) / 2
