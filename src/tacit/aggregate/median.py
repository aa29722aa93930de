"""The coordinate-wise median and trimmed mean. D. Yin, Y. Chen, K. Ramchandran, P. Bartlett:
"Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018, definitions 1 and 2.

All parties count alike: a weight is a number a party states of itself, and a rule that does not trust its
update need not trust that either.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..parameters import real
from .stack import Each, Updates


@dataclass(frozen=True)
class Median(Each):
    """The middle value of every coordinate. Breakdown point 1/2: fewer than half of the parties cannot move
    it beyond what honest ones say.
    """

    def one(self, updates: Updates) -> dict[str, Tensor]:
        return updates.by_coordinate(middle)


@dataclass(frozen=True)
class TrimmedMean(Each):
    """The mean of every coordinate without its largest and smallest values. Breakdown point: the share
    trimmed at each end.
    """

    trim: float = real(0.2, least=0, below=0.5, doc="β, the share of values left out at each end")

    def one(self, updates: Updates) -> dict[str, Tensor]:
        n = len(updates)
        out = int(self.trim * n)
        return updates.by_coordinate(lambda x: x[:, out : n - out].mean(1))


def middle(x: Tensor) -> Tensor:
    """The median of rows in ascending order; of an even number, halfway between the two in the middle."""
    n = x.shape[1]
    return (x[:, (n - 1) // 2] + x[:, n // 2]) / 2
