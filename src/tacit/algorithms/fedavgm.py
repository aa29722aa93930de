"""FedAvgM. T.-M. H. Hsu, H. Qi, M. Brown: "Measuring the Effects of Non-Identical Data Distribution for
Federated Visual Classification", arXiv 1909.06335 (2019), Section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parameters import real
from .local import Averaging
from .types import State


@dataclass(frozen=True)
class FedAvgM(Averaging):
    """FedAvg with server momentum, which reduces the influence of an unusual cohort."""

    server_lr: float = real(1.0, above=0, doc="η_g, the server's learning rate")
    beta: float = real(0.9, least=0, below=1, doc="β, the server's momentum; 0 is FedAvg")

    def server_state(self, w: Tensor) -> State:
        return {"v": torch.zeros_like(w)}

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        v = self.beta * state["v"] + mean["delta"]  # v ← βv + Δw
        return w + self.server_lr * v, {"v": v}  # w ← w + η_g·v (their Δw has the opposite sign)
