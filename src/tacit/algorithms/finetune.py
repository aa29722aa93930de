"""Local fine-tuning, the baseline of personalized federated learning. K. Wang, R. Mathews, C. Kiddon, H.
Eichner, F. Beaufays, D. Ramage: "Federated Evaluation of On-device Personalization", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .personal import Personal
from .types import Batches, LocalTask, State, Upload


@dataclass(frozen=True)
class FineTune(Personal):
    """FedAvg; a party uses the model of its last local training, which is fine-tuned to its rows."""

    def client_state(self, w: Tensor) -> State:
        return {"v": w}

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        current = self.train(task, down, mine, batches)
        return self.upload(batches, current.w - down["w"], current.buffers), {"v": current.w}

    def personal(self, task: LocalTask, down: State, mine: State) -> State:
        return {"w": mine["v"]}
