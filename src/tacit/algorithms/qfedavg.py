"""q-FedAvg. T. Li, M. Sanjabi, A. Beirami, V. Smith: "Fair Resource Allocation in Federated Learning", ICLR
2020, Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parameters import part, real
from .local import LocalTraining
from .solvers import SGD, SOLVER, start
from .types import Batch, Batches, LocalState, LocalTask, Solver, State, Upload, share


def mean_loss(batches: Batches, task: LocalTask, down: State) -> Tensor:
    """F_k(w) over the rows of the plan, at the server's model."""
    zero = torch.zeros_like(down["w"][0])
    total = batches.fold(_add_loss, start(down)._replace(memory={"loss": zero}), task)
    return total.memory["loss"] / batches.live.sum()


def _add_loss(current: LocalState, batch: Batch, task: LocalTask) -> LocalState:
    loss = task.loss(current.w, batch, current.buffers).detach() * batch.live.sum()
    return current._replace(memory={"loss": current.memory["loss"] + loss}, steps=current.steps + 1)


@dataclass(frozen=True)
class QFedAvg(LocalTraining):
    """Parties with a larger loss count for more: minimize Σ F_k^(q+1).

    q = 0 is FedAvg with equal weights; a larger q reduces the largest losses more.
    """

    lr: float = real(0.1, above=0, doc="η, the clients' learning rate; 1/η replaces the Lipschitz constant L")
    q: float = real(1.0, least=0, doc="q, the weight of fairness")
    solver: Solver = part(SGD(), doc="the local step: SGD(…)", of=SOLVER)
    weighted = False
    scales = False
    divides = True

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        loss = mean_loss(batches, task, down).clamp(min=1e-10)
        current = self.train(task, down, mine, batches)
        delta = (down["w"] - current.w) / self.lr  # Δw_k = L(w − w̄_k)
        sent = {
            "delta": loss**self.q * delta,
            "h": self.q * loss ** (self.q - 1) * delta.square().sum() + loss**self.q / self.lr,
        }  # line 7
        return Upload(share(batches, False), {**sent, **current.buffers}), mine

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        return w - mean["delta"] / mean["h"], state  # line 9: w − ΣΔ_k / Σh_k
