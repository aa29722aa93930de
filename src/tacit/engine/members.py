"""Independent networks side by side: one model of several members, whose outputs are averaged.

B. Lakshminarayanan, A. Pritzel, C. Blundell: "Simple and Scalable Predictive Uncertainty Estimation using
Deep Ensembles", NeurIPS 2017. Members differ in their initial weights only. Each has a loss of its own, so
the gradient of a member does not depend on the others, and the members are one flat vector to all that
averages, hides or stores models.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Members(nn.Module):
    """Networks of one architecture; the output is the mean of their outputs.

    In training with `is_apart` the output is that of each member, [B, M, …], for a loss of each.
    """

    is_apart = False  # only a task's own copy is: the gradient of other code is that of the mean

    def __init__(self, members: Sequence[nn.Module]):
        super().__init__()
        self.members = nn.ModuleList(members)

    def each(self, x: Tensor) -> Tensor:
        """Return the outputs of every member, [B, M, …]."""
        return torch.stack([member(x) for member in self.members], 1)

    def forward(self, x: Tensor) -> Tensor:
        each = self.each(x)
        return each if self.is_apart and self.training else each.mean(1)


def members_of(module: nn.Module) -> list[nn.Module]:
    """Return the members of a model; empty for any other module."""
    return list(module.members) if type(module) is Members else []


def as_one_network(module: nn.Module) -> nn.Module:
    """Return the same function as one perceptron, whose hidden layers are as wide as those of all members.

    The weights between the units of two members are 0, and the last layer has the mean. The members are plain
    perceptrons. A module without members is returned as it is.
    """
    if not isinstance(module, Members):
        return module
    members = [list(member.children()) for member in module.members]
    last = max(k for k, layer in enumerate(members[0]) if isinstance(layer, nn.Linear))
    layers: list[nn.Module] = []
    is_first = True
    for k, side_by_side in enumerate(zip(*members)):
        linear = [layer for layer in side_by_side if isinstance(layer, nn.Linear)]
        if not linear:
            layers.append(side_by_side[0])
            continue
        weights = [layer.weight.detach() for layer in linear]
        biases = torch.stack([layer.bias.detach() for layer in linear])
        if k == last:  # with one layer in all, a linear model: the mean of the weights
            weight = torch.stack(weights).mean(0) if is_first else torch.cat(weights, 1) / len(weights)
            bias = biases.mean(0)
        else:
            weight = torch.cat(weights) if is_first else torch.block_diag(*weights)
            bias = biases.flatten()
        wide = nn.Linear(weight.shape[1], weight.shape[0], dtype=weight.dtype, device=weight.device)
        with torch.no_grad():
            wide.weight.copy_(weight)
            wide.bias.copy_(bias)
        layers.append(wide)
        is_first = False
    return nn.Sequential(*layers).train(module.training)
