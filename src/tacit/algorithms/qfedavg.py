"""q-FedAvg. T. Li, M. Sanjabi, A. Beirami, V. Smith: "Fair Resource Allocation in Federated Learning", ICLR
2020, Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..parameters import part, real
from .solvers import SGD, SOLVER
from .types import Algorithm, Batch, Batches, LocalState, LocalTask, Solver, State, Upload, share


def mean_loss(batches: Batches, task: LocalTask, down: State) -> Tensor:
    """F_k(w) over the rows of the plan, at the server's model."""
    zero = torch.zeros_like(down["w"][0])
    buffers = {"buffers": down["buffers"]} if "buffers" in down else {}
    seen = batches.fold(_look, LocalState(down["w"], buffers, {"loss": zero}, zero), task)
    return seen.memory["loss"] / batches.live.sum()


def _look(current: LocalState, batch: Batch, task: LocalTask) -> LocalState:
    here = task.loss(current.w, batch, current.buffers).detach() * batch.live.sum()
    return current._replace(memory={"loss": current.memory["loss"] + here}, steps=current.steps + 1)


@dataclass(frozen=True)
class QFedAvg(Algorithm):
    """Parties with a larger loss count for more: min Σ F_k^(q+1). With q = 0 it is FedAvg, all alike; a large
    q looks after the worst.
    """

    lr: float = real(
        0.1, above=0, doc="η, the clients' learning rate; 1/η stands for the Lipschitz constant L"
    )
    q: float = real(1.0, least=0, doc="q: how much fairness counts")
    solver: Solver = part(SGD(), doc="the local step: SGD(…)", of=SOLVER)
    weighted = False
    scales: ClassVar[bool] = False
    divides: ClassVar[bool] = True

    def step(
        self, current: LocalState, batch: Batch, task: LocalTask, down: State, mine: State
    ) -> LocalState:
        g, current = task.gradient(current, batch)
        return self.solver.step(current, g, self.solver.rate(self.lr, down))

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        loss = mean_loss(batches, task, down).clamp(min=1e-10)
        current = batches.fold(self.step, self.solver.start(down), task, down, mine)
        way = (down["w"] - current.w) / self.lr  # Δw_k = L(w − w̄_k)
        sent = {
            "delta": loss**self.q * way,
            "h": self.q * loss ** (self.q - 1) * way.square().sum() + loss**self.q / self.lr,
        }  # line 7
        return Upload(share(batches, False), {**sent, **current.buffers}), mine

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        return w - mean["delta"] / mean["h"], state  # line 9: w − ΣΔ_k / Σh_k
