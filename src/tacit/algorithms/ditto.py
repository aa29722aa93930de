"""Ditto. T. Li, S. Hu, A. Beirami, V. Smith: "Ditto: Fair and Robust Federated Learning Through
Personalization", ICML 2021, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..parameters import real
from .personal import OwnModel
from .solvers import SGD
from .types import Batch, Batches, LocalState, LocalTask, State, Upload


@dataclass(frozen=True)
class Ditto(OwnModel):
    """A global model by FedAvg; each party also trains its own model, regularized toward the global one."""

    lam: float = real(0.1, least=0, doc="λ, the regularization: 0 is local training, ∞ the global model")
    own_lr: float | None = real(None, above=0, none=True, doc="η of a party's own model; None: lr")

    def own(self, current: LocalState, batch: Batch, task: LocalTask, down: State) -> LocalState:
        g, current = task.gradient(current, batch)
        rate = SGD().rate(self.lr if self.own_lr is None else self.own_lr, down)
        return SGD().step(
            current, g + self.lam * (current.w - down["w"]), rate
        )  # v ← v − η(∇F(v) + λ(v − w))

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        current = self.train(task, down, mine, batches)
        v = batches.fold(self.own, SGD().start({**down, "w": mine["v"]}), task, down)
        return self.upload(batches, current.w - down["w"], current.buffers), {"v": v.w}
