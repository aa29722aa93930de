"""FedAsync. C. Xie, S. Koyejo, I. Gupta: "Asynchronous Federated Optimization", 2019 (arXiv 1903.03934),
Algorithm 1.

Its clients' proximal term ρ is FedProx's μ: use it with FedProx.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..parameters import part, real
from .fedbuff import Buffer
from .scheduler import Arrival, Pace, State
from .staleness import STALENESS, Polynomial, Staleness


@dataclass(frozen=True)
class FedAsync(Pace):
    """Every arriving model is mixed into the server's: w ← (1 − α_t)·w + α_t·w_new, with α_t = α·s(t − τ)."""

    alpha: float = real(0.6, above=0, most=1, doc="α, the weight of an up-to-date model in the mixture")
    staleness: Staleness = part(
        Polynomial(0.5), doc="s(t − τ), the factor on α for a model computed from version τ", of=STALENESS
    )

    sends_models: ClassVar[bool] = True

    def scheduler(self, names: Sequence[str], at_once: int, seed: int) -> Buffer:
        return Buffer(names, at_once, seed, 1)

    def updates(self, batch: list[Arrival], version: int, now: State) -> list[tuple[float, State]]:
        (new,) = batch
        alpha = self.alpha * self.staleness.weight(version - new.order.version)  # α_t ← α·s(t − τ)
        # x_t − x_{t−1} = α_t·(x_new − x_{t−1})
        return [(1.0, {k: alpha * (v - now[k]) for k, v in new.vectors.items()})]
