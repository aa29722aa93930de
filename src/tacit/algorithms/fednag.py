"""FedNAG. Z. Yang, W. Bao, D. Yuan, N. H. Tran, A. Y. Zomaya:
"Federated Learning with Nesterov Accelerated Gradient", IEEE TPDS 2022 (arXiv 2009.08716), Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parameters import real
from .solvers import start
from .types import Algorithm, Batch, Batches, LocalState, LocalTask, State, Upload


@dataclass(frozen=True)
class FedNAG(Algorithm):
    """Clients use Nesterov momentum, and the server averages their momenta as well as their models."""

    lr: float = real(0.1, above=0, doc="η, the clients' learning rate")
    gamma: float = real(0.9, least=0, below=1, doc="γ, the momentum")
    sends = ("v",)

    def server_state(self, w: Tensor) -> State:
        return {"v": torch.zeros_like(w)}

    def step(self, current: LocalState, batch: Batch, task: LocalTask) -> LocalState:
        g, current = task.gradient(current, batch)
        v = self.gamma * current.memory["v"] - self.lr * g  # v_i(t) = γ·v_i(t−1) − η∇F_i(w_i(t−1))
        return current._replace(
            w=current.w + self.gamma * v - self.lr * g, memory={"v": v}, steps=current.steps + 1
        )

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        current = batches.fold(self.step, start(down)._replace(memory={"v": down["v"]}), task)
        return Upload(batches.size, {"w": current.w, "v": current.memory["v"], **current.buffers}), mine

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        return mean["w"], {"v": mean["v"]}  # w(t) = Σ D_i/D w_i(t),  v(t) = Σ D_i/D v_i(t)
