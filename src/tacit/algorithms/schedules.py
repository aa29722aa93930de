"""How the clients' learning rate changes from round to round; round counts from 0."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from typing import Any

import torch

from ..parameters import Kind, real, whole


@dataclass(frozen=True)
class Exponential:
    """η·γ^round."""

    gamma: float = real(0.99, above=0, most=1, doc="γ, the factor a round")

    def factor(self, round: Any) -> Any:
        return self.gamma**round


@dataclass(frozen=True)
class Inverse:
    """η / (1 + decay·round): the O(1/t) decay that FedAvg's convergence proofs ask for (Li et al. 2020)."""

    decay: float = real(0.01, above=0, doc="how fast it falls")

    def factor(self, round: Any) -> Any:
        return 1 / (1 + self.decay * round)


@dataclass(frozen=True)
class Cosine:
    """η·(1 + cos(π·round/rounds))/2, from η to 0 over `rounds`."""

    rounds: int = whole(100, least=1, doc="the round at which it reaches zero")

    def factor(self, round: Any) -> Any:
        return (1 + torch.cos(pi * torch.clamp(torch.as_tensor(round) / self.rounds, max=1))) / 2


ALL = {"Exponential": Exponential, "Inverse": Inverse, "Cosine": Cosine}
SCHEDULE = Kind("a schedule", ALL, ("factor",))
