"""Weights by the reliability of an update, layer by layer or by how coarsely it was quantized.

K. Varma, Y. Zhou, N. Baracaldo, A. Anwar: "LEGATO: A LayerwisE Gradient AggregaTiOn Algorithm for
Mitigating Byzantine Attacks in Federated Learning", 2021: there a layer's reliability comes from how its
norm varies over rounds (`Legato`); here from how it varies over the parties of one round. S. Chen, C. Shen,
L. Zhang, Y. Tang: "Dynamic Aggregation for Heterogeneous Quantization in Federated Learning" (FedHQ), IEEE
Transactions on Wireless Communications 20, 2021: weights ∝ 1 / (1 + quantization error). There parties
report the error; here it is estimated from the update's grid.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .rule import State
from .stack import SeesEach, Updates

SAMPLE = 1 << 16  # coordinates from which a grid is estimated


@dataclass(frozen=True)
class Layerwise(SeesEach):
    """A mean in which a party's layer counts less the more its norm differs from the other parties' norms.

    It assumes that most norms are honest.
    """

    layers: tuple[int, ...] = ()  # parameters of each layer; set by the job, which knows the model

    def with_layers(self, layers: tuple[int, ...]) -> Layerwise:
        return replace(self, layers=layers)

    def aggregate(self, updates: Updates) -> State:
        out = {}
        for key, chunks in updates.chunks.items():
            size = chunks[0].shape[1]
            widths = self.layers if sum(self.layers) == size else (size,)
            parts, a = [], 0
            for width in widths:
                x = updates.block(key, a, a + width)
                norm = x.double().norm(dim=1)
                middle = norm.median()
                deviation = (norm - middle).abs().median().clamp(min=1e-3 * float(middle) + 1e-30)
                share = 1 / (1 + ((norm - middle) / deviation).square())
                parts.append((share / share.sum()).to(x.dtype) @ x)
                a += width
            out[key] = torch.cat(parts).view(updates.shapes[key])
        return out


@dataclass(frozen=True)
class QualityWeighted(SeesEach):
    """A mean in which coarsely quantized updates count less.

    It assumes honest parties with unequal bandwidth: breakdown point 0.
    """

    def aggregate(self, updates: Updates) -> State:
        key = max(updates.chunks, key=lambda k: updates.chunks[k][0].shape[1])
        x = updates.block(key, 0, min(SAMPLE, updates.chunks[key][0].shape[1]))
        share = updates.weights.double() / (1 + torch.stack([_quantization_error(row) for row in x]))
        return updates.weighted_sum(share / share.sum())


def _quantization_error(row: Tensor) -> Tensor:
    """The rounding error of values on a grid, relative to their size: step²/12 over the mean square.

    0 where the values are on no visible grid.
    """
    values: Tensor = torch.unique(row.double())
    if len(values) < 2 or len(values) > len(row) // 2:
        return row.new_zeros((), dtype=torch.float64)
    step = values.diff().min()
    return step.square() / 12 / row.double().square().mean().clamp(min=1e-60)
