"""q-FedAvg. T. Li, M. Sanjabi, A. Beirami, V. Smith: "Fair Resource Allocation in Federated Learning", ICLR
2020, Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..parameters import part, real
from .solvers import SGD, SOLVER
from .types import Algorithm, Batch, Batches, State, Upload, Walk, share


def mean_loss(batches: Batches, task: Any, down: State) -> torch.Tensor:
    """F_k(w) over the rows of the plan, at the server's model."""
    zero = torch.zeros_like(down["w"][0])
    buffers = {"buffers": down["buffers"]} if "buffers" in down else {}
    seen = batches.fold(_look, Walk(down["w"], buffers, {"loss": zero}, zero), task)
    return seen.memory["loss"] / batches.live.sum()


def _look(walk: Walk, batch: Batch, task: Any) -> Walk:
    here = task.loss(walk.w, batch, walk.buffers).detach() * batch.live.sum()
    return walk._replace(memory={"loss": walk.memory["loss"] + here}, steps=walk.steps + 1)


@dataclass(frozen=True)
class QFedAvg(Algorithm):
    """Parties with a larger loss count for more: min Σ F_k^(q+1). With q = 0 it is FedAvg, all alike; a large
    q looks after the worst.
    """

    lr: float = real(
        0.1, above=0, doc="η, the clients' learning rate; 1/η stands for the Lipschitz constant L"
    )
    q: float = real(1.0, least=0, doc="q: how much fairness counts")
    solver: Any = part(SGD(), doc="the local step: SGD(…)", of=SOLVER)
    weighted: ClassVar[bool] = False
    scales: ClassVar[bool] = False
    divides: ClassVar[bool] = True

    def step(self, walk: Walk, batch: Batch, task: Any, down: State, mine: State) -> Walk:
        g, walk = task.visit(walk, batch)
        return self.solver.step(walk, g, self.solver.rate(self.lr, down))

    def local(self, task: Any, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        loss = mean_loss(batches, task, down).clamp(min=1e-10)
        walk = batches.fold(self.step, self.solver.start(down), task, down, mine)
        way = (down["w"] - walk.w) / self.lr  # Δw_k = L(w − w̄_k)
        sent = {
            "delta": loss**self.q * way,
            "h": self.q * loss ** (self.q - 1) * way.square().sum() + loss**self.q / self.lr,
        }  # line 7
        return Upload(share(batches, False), {**sent, **walk.buffers}), mine

    def merge(self, w: torch.Tensor, state: State, mean: State, fraction: Any) -> tuple[torch.Tensor, State]:
        return w - mean["delta"] / mean["h"], state  # line 9: w − ΣΔ_k / Σh_k
