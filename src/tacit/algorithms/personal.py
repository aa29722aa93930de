"""What personalized algorithms share: a global model, and a part that stays with each party."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import BadParameter
from .local import Averaging
from .types import LocalTask, State


@dataclass(frozen=True)
class Personal(Averaging):
    """A global model by averaging; `personal` computes a party's model from the global one and its state."""

    personalizes = True


class OwnModel(Personal):
    """Each party keeps a model `v` of its own, which it uses itself."""

    def client_state(self, w: Tensor) -> State:
        return {"v": w}

    def personal(self, task: LocalTask, down: State, mine: State) -> State:
        return {"w": mine["v"]}


def last_layers(task: LocalTask, many: int) -> Tensor:
    """[D]: whether a coordinate belongs to one of the last `many` layers that have parameters."""
    owners = list(dict.fromkeys(s.name.rpartition(".")[0] for s in task.parameters))
    if many >= len(owners):
        raise BadParameter(
            f"head is {many}, and the model has {len(owners)} layers with parameters, of which at least one "
            "must be shared. Use a smaller head."
        )
    return _mask(task, set(owners[-many:]))


def norms(task: LocalTask) -> Tensor:
    """[D]: whether a coordinate belongs to a normalization layer."""
    kinds = (
        nn.modules.batchnorm._BatchNorm,
        nn.LayerNorm,
        nn.GroupNorm,
        nn.LocalResponseNorm,
        nn.modules.instancenorm._InstanceNorm,
    )
    return _mask(task, {name for name, m in task.module.named_modules() if isinstance(m, kinds)})


def _mask(task: LocalTask, layers: set[str]) -> Tensor:
    """[D]: whether a coordinate belongs to one of these layers."""
    mask = torch.zeros(task.dim, dtype=torch.bool, device=task.device)
    for s in task.parameters:
        mask[s.start : s.stop] = s.name.rpartition(".")[0] in layers
    return mask
