"""How much an update still counts whose party began s versions ago: 1 for a fresh one, less and less for
older ones.

The three functions of C. Xie, S. Koyejo, I. Gupta: "Asynchronous Federated Optimization", 2019 (arXiv
1903.03934), Section 5.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..parameters import Kind, real, whole


@dataclass(frozen=True)
class Constant:
    """s(t − τ) = 1: an old update counts like a fresh one."""

    def weight(self, staleness: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Hinge:
    """s(t − τ) = 1 up to b versions, then 1/(a·(t − τ − b) + 1)."""

    a: float = real(10.0, above=0, doc="a, how fast it falls beyond b")
    b: int = whole(4, least=0, doc="b, the staleness that costs nothing")

    def weight(self, staleness: int) -> float:
        return 1.0 if staleness <= self.b else 1 / (self.a * (staleness - self.b) + 1)


@dataclass(frozen=True)
class Polynomial:
    """s(t − τ) = (t − τ + 1)^−a. FedBuff's 1/√(1 + τ) is a = 0.5."""

    a: float = real(0.5, above=0, doc="a, the exponent")

    def weight(self, staleness: int) -> float:
        return float((staleness + 1) ** -self.a)


ALL = {"Constant": Constant, "Hinge": Hinge, "Polynomial": Polynomial}
STALENESS = Kind("a staleness function", ALL, ("weight",))
