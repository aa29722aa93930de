"""FedBN. X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou: "FedBN: Federated Learning on Non-IID Features via Local
Batch Normalization", ICLR 2021, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .personal import Personal, norms
from .types import Batches, LocalTask, State, Upload


@dataclass(frozen=True)
class FedBN(Personal):
    """All layers are averaged except normalization layers, which stay local with their running statistics."""

    own_buffers: ClassVar[bool] = True

    def client_state(self, w: Tensor) -> State:
        return {"v": w}  # only the normalization layers' part is used; the engine adds the model's buffers

    def begin(self, task: LocalTask, down: State, mine: State) -> State:
        kept = {"buffers": mine["buffers"]} if "buffers" in mine else {}
        return {**down, "w": torch.where(norms(task), mine["v"], down["w"]), **kept}

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        begin = self.begin(task, down, mine)
        current = self.train(task, begin, mine, batches)
        delta = torch.where(norms(task), torch.zeros_like(current.w), current.w - begin["w"])
        unmoved = {"buffers": down["buffers"]} if "buffers" in down else {}
        return self.upload(batches, delta, unmoved), {"v": current.w, **current.buffers}

    def personal(self, task: LocalTask, down: State, mine: State) -> State:
        begin = self.begin(task, down, mine)
        return {k: begin[k] for k in ("w", "buffers") if k in begin}
