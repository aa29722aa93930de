"""What personalised algorithms share: a model for everyone, and something of each party's own that never
leaves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import BadParameter
from ..parameters import flag, part, real
from .solvers import SGD, SOLVER
from .types import Algorithm, Batch, Batches, State, Upload, Walk, share


@dataclass(frozen=True)
class Personal(Algorithm):
    """FedAvg's walk and mean. `personal` gives the model a party uses for itself, from the server's and from
    what it keeps.
    """

    lr: float = real(0.1, above=0, doc="η, the clients' learning rate")
    weighted: bool = flag(True, doc="weigh clients by their rows n_k (else all alike)")
    solver: Any = part(SGD(), doc="the local step: SGD(…) or Adam(…)", of=SOLVER)
    personalises: ClassVar[bool] = True

    def step(self, walk: Walk, batch: Batch, task: Any, down: State, mine: State) -> Walk:
        g, walk = task.visit(walk, batch)
        return self.solver.step(walk, g, self.solver.rate(self.lr, down))

    def upload(self, batches: Batches, delta: Tensor, buffers: State) -> Upload:
        return Upload(share(batches, self.weighted), {"delta": delta, **buffers})

    def merge(self, w: Tensor, state: State, mean: State, fraction: Any) -> tuple[Tensor, State]:
        return w + mean["delta"], state


def last_layers(task: Any, many: int) -> Tensor:
    """[D]: whether a coordinate belongs to one of the last `many` layers that have parameters."""
    owners = list(dict.fromkeys(s.name.rpartition(".")[0] for s in task.parameters))
    if many >= len(owners):
        raise BadParameter(
            f"head is {many}, and the model has {len(owners)} layers with parameters; at least one must be "
            "shared. Give a smaller head."
        )
    own = set(owners[-many:])
    return _marked(task, [s.name for s in task.parameters if s.name.rpartition(".")[0] in own])


def norms(task: Any) -> Tensor:
    """[D]: whether a coordinate belongs to a normalisation layer."""
    kinds = (
        nn.modules.batchnorm._BatchNorm,
        nn.LayerNorm,
        nn.GroupNorm,
        nn.LocalResponseNorm,
        nn.modules.instancenorm._InstanceNorm,
    )
    own = {name for name, m in task.module.named_modules() if isinstance(m, kinds)}
    return _marked(task, [s.name for s in task.parameters if s.name.rpartition(".")[0] in own])


def _marked(task: Any, names: list[str]) -> Tensor:
    mask = torch.zeros(task.dim, dtype=torch.bool, device=task.x.device)
    for s in task.parameters:
        if s.name in names:
            mask[s.start : s.stop] = True
    return mask
