"""APFL. Y. Deng, M. M. Kamani, M. Mahdavi: "Adaptive Personalized Federated Learning", 2020, Algorithm 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..parameters import flag, real
from .personal import Personal
from .solvers import descend
from .types import Batch, Batches, State, Upload, Walk


@dataclass(frozen=True)
class APFL(Personal):
    """A party uses a mixture v̄ = αv + (1 − α)w of a model of its own and its copy of the global one; α is
    learned.
    """

    alpha: float = real(0.5, least=0, most=1, doc="α to begin with: 0 is the global model, 1 a party's own")
    adaptive: bool = flag(True, doc="learn α as well")

    def client_state(self, w: torch.Tensor) -> State:
        return {"v": w, "alpha": torch.zeros_like(w[0]) + self.alpha, "w": w}

    def both(self, walk: Walk, batch: Batch, task: Any, down: State) -> Walk:
        rate = self.solver.rate(self.lr, down)
        g, moved = task.visit(walk, batch)
        v, alpha = walk.memory["own"], walk.memory["alpha"]
        at = alpha * v + (1 - alpha) * walk.w
        h, _ = task.visit(walk._replace(w=at), batch)
        memory = {k: m for k, m in walk.memory.items() if k not in ("own", "alpha")}
        after = self.solver.step(moved._replace(memory=memory), g, rate)  # line 5: w_k
        mixing = (
            (alpha - rate * ((v - walk.w) * h).sum()).clamp(0, 1) if self.adaptive else alpha
        )  # equation 11
        return after._replace(
            memory={**after.memory, "own": descend(v, alpha * h, rate), "alpha": mixing}
        )  # line 6: v_k

    def local(self, task: Any, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        begin = self.solver.start(down)
        begin = begin._replace(memory={**begin.memory, "own": mine["v"], "alpha": mine["alpha"]})
        walk = batches.fold(self.both, begin, task, down)
        kept = {"v": walk.memory["own"], "alpha": walk.memory["alpha"], "w": walk.w}
        return self.upload(batches, walk.w - down["w"], walk.buffers), kept

    def personal(self, task: Any, down: State, mine: State) -> State:
        return {"w": mine["alpha"] * mine["v"] + (1 - mine["alpha"]) * mine["w"]}
