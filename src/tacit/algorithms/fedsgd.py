"""FedSGD. H. B. McMahan et al.: "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, Section 2: the baseline that FedAvg is measured against.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from ..parameters import real
from .solvers import start
from .types import Algorithm, Batch, Batches, State, Upload, Walk


@dataclass(frozen=True)
class FedSGD(Algorithm):
    """Each client sends the gradient over all its rows; the server takes one step: centralised gradient
    descent, to rounding.
    """

    lr: float = real(0.1, above=0, doc="η, the learning rate, at the server")
    walks: ClassVar[bool] = False
    local_epochs: ClassVar[int] = 1  # one pass is the whole gradient; batches only bound the memory it takes
    local_steps: ClassVar[None] = None

    def step(self, walk: Walk, batch: Batch, task: Any, down: State) -> Walk:
        g, walk = task.visit(
            walk, batch
        )  # the mean over the batch's live rows, at w_t: the walk does not move
        return walk._replace(memory={"sum": walk.memory["sum"] + batch.live.sum() * g})

    def local(self, task: Any, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        walk = batches.fold(self.step, start(down, "sum"), task, down)
        g_k = walk.memory["sum"] / batches.live.sum()  # g_k = ∇F_k(w_t)
        return Upload(batches.size, {"g": g_k, **walk.buffers}), mine

    def merge(self, w: torch.Tensor, state: State, mean: State, fraction: Any) -> tuple[torch.Tensor, State]:
        return w - self.lr * mean["g"], state  # w_{t+1} ← w_t − η Σ n_k/n g_k
