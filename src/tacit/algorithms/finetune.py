"""Local fine-tuning: the baseline of personalised federated learning. K. Wang, R. Mathews, C. Kiddon, H.
Eichner, F. Beaufays, D. Ramage: "Federated Evaluation of On-device Personalization", 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .personal import Personal
from .types import Batches, State, Upload


@dataclass(frozen=True)
class FineTune(Personal):
    """FedAvg, in which a party keeps for itself where its own walk last led: the common model, tuned on its
    rows.
    """

    def client_state(self, w: torch.Tensor) -> State:
        return {"v": w}

    def local(self, task: Any, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        walk = batches.fold(self.step, self.solver.start(down), task, down, mine)
        return self.upload(batches, walk.w - down["w"], walk.buffers), {"v": walk.w}

    def personal(self, task: Any, down: State, mine: State) -> State:
        return {"w": mine["v"]}
