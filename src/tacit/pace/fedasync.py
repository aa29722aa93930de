"""FedAsync. C. Xie, S. Koyejo, I. Gupta: "Asynchronous Federated Optimization", 2019 (arXiv 1903.03934),
Algorithm 1.

Its clients' proximal term ρ is FedProx's μ: use it with FedProx.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..parameters import part, real
from .desk import Arrival, Desk, State
from .fedbuff import Buffer
from .staleness import STALENESS, Polynomial


@dataclass(frozen=True)
class FedAsync:
    """Every model that comes is mixed into the server's at once: w ← (1 − α_t)·w + α_t·w_new, with α_t =
    α·s(t − τ).
    """

    alpha: float = real(0.6, above=0, most=1, doc="α, the share of a fresh model in the mixture")
    staleness: Any = part(
        Polynomial(0.5), doc="s(t − τ), by which α shrinks for a model that began τ", of=STALENESS
    )

    sends_models: ClassVar[bool] = True

    def desk(self, names: Sequence[str], at_once: int, seed: int) -> Desk:
        return Buffer(names, at_once, seed, 1)

    def moves(self, batch: list[Arrival], version: int, now: State) -> list[tuple[float, State]]:
        (new,) = batch
        alpha = self.alpha * self.staleness.weight(version - new.order.version)  # α_t ← α·s(t − τ)
        return [
            (1.0, {k: alpha * (v - now[k]) for k, v in new.vectors.items()})
        ]  # x_t − x_{t−1} = α_t·(x_new − x_{t−1})
