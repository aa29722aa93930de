"""APFL. Y. Deng, M. M. Kamani, M. Mahdavi: "Adaptive Personalized Federated Learning", 2020, Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parameters import flag, real
from .personal import Personal
from .solvers import descend
from .types import Batch, Batches, LocalState, LocalTask, State, Upload


@dataclass(frozen=True)
class APFL(Personal):
    """A party uses a mixture v̄ = αv + (1 − α)w of its own model and its copy of the global one; α is
    learned.
    """

    alpha: float = real(0.5, least=0, most=1, doc="the initial α: 0 is the global model, 1 the party's own")
    adaptive: bool = flag(True, doc="learn α")

    def client_state(self, w: Tensor) -> State:
        return {"v": w, "alpha": torch.zeros_like(w[0]) + self.alpha, "w": w}

    def both(self, current: LocalState, batch: Batch, task: LocalTask, down: State) -> LocalState:
        rate = self.solver.rate(self.lr, down)
        g, moved = task.gradient(current, batch)
        v, alpha = current.memory["own"], current.memory["alpha"]
        at = alpha * v + (1 - alpha) * current.w
        h, _ = task.gradient(current._replace(w=at), batch)
        memory = {k: m for k, m in current.memory.items() if k not in ("own", "alpha")}
        after = self.solver.step(moved._replace(memory=memory), g, rate)  # line 5: w_k
        mixing = (
            (alpha - rate * ((v - current.w) * h).sum()).clamp(0, 1) if self.adaptive else alpha
        )  # equation 11
        return after._replace(
            memory={**after.memory, "own": descend(v, alpha * h, rate), "alpha": mixing}
        )  # line 6: v_k

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        begin = self.solver.start(down)
        begin = begin._replace(memory={**begin.memory, "own": mine["v"], "alpha": mine["alpha"]})
        current = batches.fold(self.both, begin, task, down)
        state = {"v": current.memory["own"], "alpha": current.memory["alpha"], "w": current.w}
        return self.upload(batches, current.w - down["w"], current.buffers), state

    def personal(self, task: LocalTask, down: State, mine: State) -> State:
        return {"w": mine["alpha"] * mine["v"] + (1 - mine["alpha"]) * mine["w"]}
