"""FedSGD. H. B. McMahan et al.: "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017, Section 2: the baseline of FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..parameters import real
from .solvers import start
from .types import Algorithm, Batch, Batches, LocalState, LocalTask, State, Upload


@dataclass(frozen=True)
class FedSGD(Algorithm):
    """Each client sends the gradient over all its rows, and the server takes one gradient step.

    It equals centralized gradient descent up to rounding.
    """

    lr: float = real(0.1, above=0, doc="η, the server's learning rate")
    takes_steps = False
    local_epochs = 1  # one pass is the whole gradient; batches only limit the memory it takes

    def step(self, current: LocalState, batch: Batch, task: LocalTask, down: State) -> LocalState:
        g, current = task.gradient(current, batch)  # the mean over the batch's live rows, at w_t
        return current._replace(memory={"sum": current.memory["sum"] + batch.live.sum() * g})

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        current = batches.fold(self.step, start(down, "sum"), task, down)
        g_k = current.memory["sum"] / batches.live.sum()  # g_k = ∇F_k(w_t)
        return Upload(batches.size, {"g": g_k, **current.buffers}), mine

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        return w - self.lr * mean["g"], state  # w_{t+1} ← w_t − η Σ n_k/n g_k
