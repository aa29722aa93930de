"""AFL. M. Mohri, G. Sivek, A. T. Suresh: "Agnostic Federated Learning", ICML 2019, Algorithm 1.

The paper projects the mixture λ onto the simplex after each step; here λ_k is multiplied by exp(γ F_k), and
the mean normalizes it. Each party keeps its own log λ_k, its weight in the mean is λ_k, and the server
needs only sums.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parameters import part, real
from .local import LocalTraining
from .qfedavg import mean_loss
from .solvers import SGD, SOLVER
from .types import Batches, LocalTask, Solver, State, Upload


@dataclass(frozen=True)
class AFL(LocalTraining):
    """Minimize the loss of the worst mixture of the parties: the weight of a party grows with its loss."""

    lr: float = real(0.1, above=0, doc="γ_w, the clients' learning rate")
    mixture_lr: float = real(0.1, above=0, doc="γ_λ, the learning rate of the mixture")
    solver: Solver = part(SGD(), doc="the local step: SGD(…)", of=SOLVER)
    sends = ("level",)
    scales = False

    def server_state(self, w: Tensor) -> State:
        # the mean log λ of the last round: weights are relative to it, so that they stay bounded
        return {"level": torch.zeros_like(w[0])}

    def client_state(self, w: Tensor) -> State:
        return {"log": torch.zeros_like(w[0])}

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        log = mine["log"] + self.mixture_lr * mean_loss(batches, task, down)
        current = self.train(task, down, mine, batches)
        weight = torch.exp((log - down["level"]).clamp(-30, 30))
        return Upload(weight, {"delta": current.w - down["w"], "log": log, **current.buffers}), {"log": log}

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        return w + mean["delta"], {"level": mean["log"]}
