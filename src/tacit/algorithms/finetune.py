"""Local fine-tuning, the baseline of personalized federated learning. K. Wang, R. Mathews, C. Kiddon, H.
Eichner, F. Beaufays, D. Ramage: "Federated Evaluation of On-device Personalization", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

from .personal import OwnModel
from .types import Batches, LocalTask, State, Upload


@dataclass(frozen=True)
class FineTune(OwnModel):
    """FedAvg; a party uses the model of its last local training, which is fine-tuned to its rows."""

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        current = self.train(task, down, mine, batches)
        return self.upload(batches, current.w - down["w"], current.buffers), {"v": current.w}
