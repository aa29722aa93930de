"""FedPSO. S. Park, Y. Suh, J. Lee: "FedPSO: Federated Learning Using Particle Swarm Optimization to Reduce
Communication Costs", Sensors 21(2), 2021, Algorithm 2.

A party sends one number, how well it does, and only the best is then asked for its model
(protocols/picking.py): that takes `aggregate.Best()`. A mean is made of everybody's model, which then goes up
with that number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..parameters import flag, part, real
from .qfedavg import mean_loss
from .solvers import SGD, SOLVER
from .types import Algorithm, Batch, Batches, LocalState, LocalTask, Solver, State, Upload, share


@dataclass(frozen=True)
class FedPSO(Algorithm):
    """A swarm: every party flies on from its own model, pulled to the best it has had and to the best of all,
    then trains. Made for `aggregate=aggregate.Best()`, with which the others send one number; with the mean,
    the default, everybody sends a model, and the swarm's middle stands in for its best.

    The best is the one with the least loss on its own rows, so it assumes parties with rows alike, and scores
    nobody lies about.
    """

    lr: float = real(0.1, above=0, doc="η, the clients' learning rate")
    inertia: float = real(0.3, least=0, below=1, doc="α, how much of its speed a party keeps")
    own_pull: float = real(0.7, least=0, doc="c₁, the pull to the best model the party has had")
    swarm_pull: float = real(1.4, least=0, doc="c₂, the pull to the best of all")
    weighted: bool = flag(True, doc="weight clients by their rows n_k, where a mean is made (else equally)")
    solver: Solver = part(SGD(), doc="the local step: SGD(…) or Adam(…)", of=SOLVER)
    scales: ClassVar[bool] = False
    scores: ClassVar[bool] = True

    def server_state(self, w: Tensor) -> State:
        return {"score": torch.full_like(w[0], torch.inf)}

    def client_state(self, w: Tensor) -> State:
        none = torch.zeros_like(w)
        return {
            "x": none,
            "v": none,
            "best": none,
            "score": torch.full_like(w[0], torch.inf),
        }  # no score: it has not flown yet

    def step(self, current: LocalState, batch: Batch, task: LocalTask, down: State) -> LocalState:
        g, current = task.gradient(current, batch)
        return self.solver.step(current, g, self.solver.rate(self.lr, down))

    def local(self, task: LocalTask, down: State, mine: State, batches: Batches) -> tuple[Upload, State]:
        r1, r2 = _draws(batches.key[0], down["w"].dtype)
        x, best = (
            torch.where(mine["score"] == torch.inf, down["w"], mine[k]) for k in ("x", "best")
        )  # whoever is new begins at the best of all
        v = (
            self.inertia * mine["v"]
            + self.own_pull * r1 * (best - x)
            + self.swarm_pull * r2 * (down["w"] - x)
        )
        current = batches.fold(self.step, self.solver.start({**down, "w": x + v}), task, down)
        score = mean_loss(batches, task, {"w": current.w, **current.buffers})
        better = score < mine["score"]
        kept = {
            "x": current.w,
            "v": v,
            "best": torch.where(better, current.w, best),
            "score": torch.where(better, score, mine["score"]),
        }
        return Upload(
            share(batches, self.weighted), {"delta": current.w - down["w"], "score": score, **current.buffers}
        ), kept

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        better = mean["score"] < state["score"]  # the best of all rounds stays
        return torch.where(better, w + mean["delta"], w), {
            "score": torch.where(better, mean["score"], state["score"])
        }


def _draws(key: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two numbers in [0, 1), from the plan's key: one draw each for a party and round, where the paper draws
    anew for every layer.
    """
    low = (1 << 24) - 1  # as many bits as float32 holds exactly
    return (key & low).to(dtype) / (low + 1), ((key >> 24) & low).to(dtype) / (low + 1)
