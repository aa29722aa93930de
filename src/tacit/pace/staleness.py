"""Staleness functions: the weight of an update computed from an older version, 1 for the current one.

The three functions of C. Xie, S. Koyejo, I. Gupta: "Asynchronous Federated Optimization", 2019 (arXiv
1903.03934), Section 5.2.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from ..parameters import Kind, real, whole


class Staleness(ABC):
    """A frozen dataclass: the weight of an update by its staleness."""

    @abstractmethod
    def weight(self, staleness: int) -> float:
        """s(t − τ) of an update computed `staleness` versions ago."""


@dataclass(frozen=True)
class Constant(Staleness):
    """s(t − τ) = 1: an old update counts like a new one."""

    def weight(self, staleness: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Hinge(Staleness):
    """s(t − τ) = 1 up to b versions, then 1/(a·(t − τ − b) + 1)."""

    a: float = real(10.0, above=0, doc="a, the rate of decrease beyond b")
    b: int = whole(4, least=0, doc="b, the largest staleness with weight 1")

    def weight(self, staleness: int) -> float:
        return 1.0 if staleness <= self.b else 1 / (self.a * (staleness - self.b) + 1)


@dataclass(frozen=True)
class Polynomial(Staleness):
    """s(t − τ) = (t − τ + 1)^−a. FedBuff's 1/√(1 + τ) is a = 0.5."""

    a: float = real(0.5, above=0, doc="a, the exponent")

    def weight(self, staleness: int) -> float:
        return float((staleness + 1) ** -self.a)


ALL: dict[str, type[Staleness]] = {"Constant": Constant, "Hinge": Hinge, "Polynomial": Polynomial}
STALENESS = Kind("a staleness function", ALL, Staleness)
