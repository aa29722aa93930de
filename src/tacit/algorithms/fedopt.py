"""FedAdagrad, FedAdam, FedYogi. S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S.
Kumar, H. B. McMahan: "Adaptive Federated Optimization", ICLR 2021, Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parameters import real
from .local import Averaging
from .types import State


@dataclass(frozen=True)
class FedAdagrad(Averaging):
    """The server uses the mean update Δ_t as the gradient of an adaptive optimizer.

    Clients train as in FedAvg (lines 3-9).
    """

    lr: float = real(0.1, above=0, doc="η_l, the clients' learning rate")
    server_lr: float = real(0.1, above=0, doc="η, the server's learning rate")
    beta1: float = real(0.0, least=0, below=1, doc="β₁, the server's momentum")
    tau: float = real(1e-3, above=0, doc="τ, the degree of adaptivity: smaller adapts more")

    def server_state(self, w: Tensor) -> State:
        return {"m": torch.zeros_like(w), "v": torch.full_like(w, 1.0) * self.tau**2}  # v_{−1} ≥ τ²

    def second(self, v: Tensor, delta: Tensor) -> Tensor:
        return v + delta**2  # line 12 (FedAdagrad)

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        delta = mean["delta"]  # line 10: Δ_t
        m = self.beta1 * state["m"] + (1 - self.beta1) * delta  # line 11
        v = self.second(state["v"], delta)
        return w + self.server_lr * m / (v.sqrt() + self.tau), {"m": m, "v": v}  # line 15


@dataclass(frozen=True)
class FedAdam(FedAdagrad):
    """The server's optimizer is Adam, without bias correction."""

    beta1: float = real(0.9, least=0, below=1, doc="β₁, the server's momentum")
    beta2: float = real(0.99, least=0, below=1, doc="β₂, the decay of the second moment")

    def second(self, v: Tensor, delta: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * delta**2  # line 14 (FedAdam)


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """The server's optimizer is Yogi: the second moment changes by steps of bounded size."""

    def second(self, v: Tensor, delta: Tensor) -> Tensor:
        return v - (1 - self.beta2) * delta**2 * torch.sign(v - delta**2)  # line 13 (FedYogi)
