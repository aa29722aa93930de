"""FedPSO. S. Park, Y. Suh, J. Lee: "FedPSO: Federated Learning Using Particle Swarm Optimization to Reduce
Communication Costs", Sensors 21(2), 2021, Algorithm 2.

With `aggregate.Best()` parties send only their loss, and the best one is then asked for its model
(protocols/picking.py). With a mean, every party sends its model together with its loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parameters import real
from .local import Averaging
from .qfedavg import mean_loss
from .types import Batches, LocalTask, State, Upload


@dataclass(frozen=True)
class FedPSO(Averaging):
    """Particle swarm: every party moves its own model toward its best and the global best, then trains.

    It is made for `aggregate=aggregate.Best()`, with which only the best party sends a model. With the
    mean, the default, every party sends a model, and the mean replaces the global best. The best party has
    the lowest loss on its own rows, so it assumes honest parties with similar rows.
    """

    inertia: float = real(0.3, least=0, below=1, doc="α, the inertia of a party's velocity")
    own_pull: float = real(0.7, least=0, doc="c₁, the acceleration toward the party's best model")
    swarm_pull: float = real(1.4, least=0, doc="c₂, the acceleration toward the global best")
    scales = False
    scores = True

    def server_state(self, w: Tensor) -> State:
        return {"score": torch.full_like(w[0], torch.inf)}

    def client_state(self, w: Tensor) -> State:
        none = torch.zeros_like(w)  # an infinite score marks a party that has not taken part yet
        return {"x": none, "v": none, "best": none, "score": torch.full_like(w[0], torch.inf)}

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        r1, r2 = _draws(batches.key[0], down["w"].dtype)
        # a new party starts at the global best
        x, best = (torch.where(mine["score"] == torch.inf, down["w"], mine[k]) for k in ("x", "best"))
        v = (
            self.inertia * mine["v"]
            + self.own_pull * r1 * (best - x)
            + self.swarm_pull * r2 * (down["w"] - x)
        )
        current = self.train(task, {**down, "w": x + v}, mine, batches)
        score = mean_loss(batches, task, {"w": current.w, **current.buffers})
        better = score < mine["score"]
        own = {
            "x": current.w,
            "v": v,
            "best": torch.where(better, current.w, best),
            "score": torch.where(better, score, mine["score"]),
        }
        return self.upload(batches, current.w - down["w"], {"score": score, **current.buffers}), own

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        better = mean["score"] < state["score"]  # the global best over all rounds
        return torch.where(better, w + mean["delta"], w), {
            "score": torch.where(better, mean["score"], state["score"])
        }


def _draws(key: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two numbers in [0, 1) from the plan's key: one draw for a party and round, not one for every layer."""
    low = (1 << 24) - 1  # as many bits as float32 holds exactly
    return (key & low).to(dtype) / (low + 1), ((key >> 24) & low).to(dtype) / (low + 1)
