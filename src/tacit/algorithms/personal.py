"""What personalized algorithms share: a global model, and a part that stays with each party."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..errors import BadParameter
from ..parameters import flag, part, real
from .solvers import SGD, SOLVER
from .types import Algorithm, Batch, Batches, LocalState, LocalTask, Solver, State, Upload, share


@dataclass(frozen=True)
class Personal(Algorithm):
    """FedAvg's local step and mean; `personal` computes a party's model from the global one and its state."""

    lr: float = real(0.1, above=0, doc="η, the clients' learning rate")
    weighted: bool = flag(True, doc="weight clients by their rows n_k (else equally)")
    solver: Solver = part(SGD(), doc="the local step: SGD(…) or Adam(…)", of=SOLVER)
    personalizes: ClassVar[bool] = True

    def step(
        self, current: LocalState, batch: Batch, task: LocalTask, down: State, mine: State
    ) -> LocalState:
        g, current = task.gradient(current, batch)
        return self.solver.step(current, g, self.solver.rate(self.lr, down))

    def upload(self, batches: Batches, delta: Tensor, buffers: State) -> Upload:
        return Upload(share(batches, self.weighted), {"delta": delta, **buffers})

    def merge(self, w: Tensor, state: State, mean: State, fraction: Tensor | float) -> tuple[Tensor, State]:
        return w + mean["delta"], state


def last_layers(task: LocalTask, many: int) -> Tensor:
    """[D]: whether a coordinate belongs to one of the last `many` layers that have parameters."""
    owners = list(dict.fromkeys(s.name.rpartition(".")[0] for s in task.parameters))
    if many >= len(owners):
        raise BadParameter(
            f"head is {many}, and the model has {len(owners)} layers with parameters, of which at least one "
            "must be shared. Use a smaller head."
        )
    own = set(owners[-many:])
    return _mask(task, [s.name for s in task.parameters if s.name.rpartition(".")[0] in own])


def norms(task: LocalTask) -> Tensor:
    """[D]: whether a coordinate belongs to a normalization layer."""
    kinds = (
        nn.modules.batchnorm._BatchNorm,
        nn.LayerNorm,
        nn.GroupNorm,
        nn.LocalResponseNorm,
        nn.modules.instancenorm._InstanceNorm,
    )
    own = {name for name, m in task.module.named_modules() if isinstance(m, kinds)}
    return _mask(task, [s.name for s in task.parameters if s.name.rpartition(".")[0] in own])


def _mask(task: LocalTask, names: list[str]) -> Tensor:
    mask = torch.zeros(task.dim, dtype=torch.bool, device=task.x.device)
    for s in task.parameters:
        if s.name in names:
            mask[s.start : s.stop] = True
    return mask
