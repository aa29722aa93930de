"""pFedMe. C. T. Dinh, N. H. Tran, T. D. Nguyen: "Personalized Federated Learning with Moreau Envelopes",
NeurIPS 2020, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..parameters import real, whole
from .personal import OwnModel
from .solvers import start
from .types import Batch, Batches, LocalState, LocalTask, State, Upload


@dataclass(frozen=True)
class PFedMe(OwnModel):
    """Each step finds a personal model near the local one by inner steps, and moves the local one toward
    it.
    """

    lr: float = real(0.02, above=0, doc="η, the learning rate of the local model")
    lam: float = real(15.0, above=0, doc="λ, the regularization of the personal model")
    inner_lr: float = real(0.05, above=0, doc="the learning rate of the personal model")
    inner_steps: int = whole(5, least=1, doc="K, the inner steps of a batch")
    beta: float = real(1.0, above=0, doc="β, the weight of the mean in the server's step")

    def step_toward(self, current: LocalState, batch: Batch, task: LocalTask, down: State) -> LocalState:
        theta, moved = current.w, current
        for _ in range(self.inner_steps):  # line 7: θ̃ ≈ argmin f(θ; batch) + λ/2 ‖θ − w‖²
            g, moved = task.gradient(current._replace(w=theta), batch)
            theta = theta - self.inner_lr * (g + self.lam * (theta - current.w))
        w = current.w - self.lr * self.lam * (current.w - theta)  # line 8
        return current._replace(w=w, buffers=moved.buffers, memory={"theta": theta}, steps=current.steps + 1)

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        begin = start(down)._replace(memory={"theta": down["w"]})
        current = batches.fold(self.step_toward, begin, task, down)
        return self.upload(batches, current.w - down["w"], current.buffers), {"v": current.memory["theta"]}

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        return w + self.beta * mean["delta"], state  # line 13: (1 − β)w + β · mean of the w_k
