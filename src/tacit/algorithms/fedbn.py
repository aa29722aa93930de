"""FedBN. X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou: "FedBN: Federated Learning on Non-IID Features via Local
Batch Normalization", ICLR 2021, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .personal import OwnModel, norms
from .types import Batches, LocalTask, State, Upload


@dataclass(frozen=True)
class FedBN(OwnModel):
    """All layers are averaged except normalization layers, which stay local with their running statistics.

    Only the normalization layers of a party's `v` are used; the engine adds the model's buffers.
    """

    own_buffers = True

    def begin(self, task: LocalTask, down: State, mine: State) -> State:
        own = {"buffers": mine["buffers"]} if "buffers" in mine else {}
        return {**down, "w": torch.where(norms(task), mine["v"], down["w"]), **own}

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        begin = self.begin(task, down, mine)
        current = self.train(task, begin, mine, batches)
        delta = torch.where(norms(task), torch.zeros_like(current.w), current.w - begin["w"])
        unmoved = {"buffers": down["buffers"]} if "buffers" in down else {}
        return self.upload(batches, delta, unmoved), {"v": current.w, **current.buffers}

    def personal(self, task: LocalTask, down: State, mine: State) -> State:
        begin = self.begin(task, down, mine)
        return {k: begin[k] for k in ("w", "buffers") if k in begin}
