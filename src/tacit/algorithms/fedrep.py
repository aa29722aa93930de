"""FedRep. L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai: "Exploiting Shared Representations for
Personalized Federated Learning", ICML 2021, Algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parameters import real
from .fedper import FedPer
from .personal import last_layers
from .types import Batch, Batches, LocalState, LocalTask, State, Upload


@dataclass(frozen=True)
class FedRep(FedPer):
    """As FedPer, but a party first trains its head, then the shared layers."""

    head_steps: float = real(
        0.5,
        above=0,
        below=1,
        doc="the share of a round's local steps that train the head; the rest train the shared layers",
    )

    def turn(
        self, current: LocalState, batch: Batch, task: LocalTask, down: State, head: Tensor, until: Tensor
    ) -> LocalState:
        g, current = task.gradient(current, batch)
        own = torch.where(current.steps < until, head, ~head)  # lines 7-9, then line 10
        after = self.solver.step(
            current, torch.where(own, g, torch.zeros_like(g)), self.solver.rate(self.lr, down)
        )
        # momentum and weight decay must not change the other part
        return after._replace(w=torch.where(own, after.w, current.w))

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        head, begin = last_layers(task, self.head), self.start(task, down, mine)
        until = torch.ceil(self.head_steps * (batches.live.sum(-1) > 0).sum().to(begin.dtype))
        current = batches.fold(self.turn, self.solver.start({**down, "w": begin}), task, down, head, until)
        return self.upload(
            batches, torch.where(head, torch.zeros_like(begin), current.w - begin), current.buffers
        ), {"v": current.w}
