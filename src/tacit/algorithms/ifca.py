"""IFCA. A. Ghosh, J. Chung, D. Yin, K. Ramchandran: "An Efficient Framework for Clustered Federated
Learning", NeurIPS 2020, Algorithm 1 (model averaging).

A party sends its cluster as a one-hot vector and its update in that cluster's row; the server needs only
the sums. It cannot be combined with stages that hide single updates, because the sum of a cluster with one
party is that party's update.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..parameters import real, whole
from .personal import Personal
from .solvers import start
from .types import Batch, Batches, LocalState, LocalTask, State, Upload, share


@dataclass(frozen=True)
class IFCA(Personal):
    """Several models; each party trains and uses the one with the lowest loss on its rows."""

    clusters: int = whole(2, least=2, doc="k, the number of models")
    spread: float = real(
        0.1,
        above=0,
        doc="the initial distance of the models, in standard deviations of the first model's weights",
    )
    sends = ("centers",)
    divides = True

    def server_state(self, w: Tensor) -> State:
        noise = torch.randn(self.clusters, len(w), generator=torch.Generator().manual_seed(0)).to(w)
        return {"centers": w + self.spread * w.std() * noise}

    def client_state(self, w: Tensor) -> State:
        return {"choice": torch.zeros_like(w[0])}

    def losses(self, current: LocalState, batch: Batch, task: LocalTask, centers: Tensor) -> LocalState:
        here = torch.stack([task.loss(c, batch, current.buffers) for c in centers]) * batch.live.sum()
        return current._replace(memory={"loss": current.memory["loss"] + here}, steps=current.steps + 1)

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        centers = down["centers"]
        begin = start(down)._replace(memory={"loss": torch.zeros_like(centers[:, 0])})
        evaluated = batches.fold(self.losses, begin, task, centers)
        choice = evaluated.memory["loss"].argmin()  # line 6
        mark = one_hot(choice, self.clusters).to(centers.dtype)
        center = mark @ centers
        current = self.train(task, {**down, "w": center}, mine, batches)  # line 13
        sent = {"delta": mark[:, None] * (current.w - center), "member": mark, **current.buffers}
        return Upload(share(batches, self.weighted), sent), {"choice": choice.to(centers.dtype)}

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        of = mean["member"][:, None]
        # line 10: the mean over the parties of each cluster; the delta of an empty cluster is zero
        centers = state["centers"] + mean["delta"] / of.clamp(min=1e-12)
        # the server's own model is the mean of the models over the parties
        return (mean["member"] / mean["member"].sum()) @ centers, {"centers": centers}

    def personal(self, task: LocalTask, down: State, mine: State) -> State:
        return {
            "w": one_hot(mine["choice"].long(), self.clusters).to(down["centers"].dtype) @ down["centers"]
        }
