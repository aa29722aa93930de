"""FedDyn. D. A. E. Acar, Y. Zhao, R. Matas Navarro, M. Mattina, P. N. Whatmough, V. Saligrama:
"Federated Learning Based on Dynamic Regularization", ICLR 2021, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parameters import part, real
from .local import LocalTraining
from .solvers import SGD, SOLVER
from .types import Batches, LocalTask, Solver, State, Upload, share


@dataclass(frozen=True)
class FedDyn(LocalTraining):
    """Dynamic regularization: at convergence the optima of the local objectives are the global optimum."""

    lr: float = real(0.1, above=0, doc="η, the clients' learning rate")
    alpha: float = real(0.01, above=0, doc="α, the strength of the regularizer")
    solver: Solver = part(SGD(), doc="the local step: SGD(…)", of=SOLVER)
    weighted = False

    def server_state(self, w: Tensor) -> State:
        return {"h": torch.zeros_like(w)}

    def client_state(self, w: Tensor) -> State:
        return {"grad": torch.zeros_like(w)}  # ∇L_k(θ_k), by the first-order condition of the local problem

    def correct(self, g: Tensor, w: Tensor, down: State, mine: State) -> Tensor:
        return g - mine["grad"] + self.alpha * (w - down["w"])

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        # line 5: θ_k ≈ argmin of the local problem
        current = self.train(task, down, mine, batches)
        delta = current.w - down["w"]
        return Upload(share(batches, False), {"delta": delta, **current.buffers}), {
            "grad": mine["grad"] - self.alpha * delta
        }  # line 6

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        h = state["h"] - self.alpha * fraction * mean["delta"]  # line 10: h ← h − α/m Σ (θ_k − θ)
        return w + mean["delta"] - h / self.alpha, {"h": h}  # line 11: θ ← mean of the θ_k − h/α
