"""FedPer. M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary: "Federated Learning with Personalization
Layers", 2019, Algorithms 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parameters import whole
from .personal import OwnModel, last_layers
from .types import Batches, LocalTask, State, Upload


@dataclass(frozen=True)
class FedPer(OwnModel):
    """The first layers are shared, the last layers are each party's own; both are trained together.

    Only the last layers of a party's `v` are used.
    """

    head: int = whole(1, least=1, doc="how many of the last layers with parameters are a party's own")

    def start(self, task: LocalTask, down: State, mine: State) -> Tensor:
        return torch.where(last_layers(task, self.head), mine["v"], down["w"])

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        begin = self.start(task, down, mine)
        current = self.train(task, {**down, "w": begin}, mine, batches)
        delta = torch.where(
            last_layers(task, self.head), torch.zeros_like(begin), current.w - begin
        )  # the head is not sent
        return self.upload(batches, delta, current.buffers), {"v": current.w}

    def personal(self, task: LocalTask, down: State, mine: State) -> State:
        return {"w": self.start(task, down, mine)}
