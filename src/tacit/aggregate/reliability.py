"""Weights by how far an update can be relied on, layer by layer or by how coarsely it was rounded.

K. Varma, Y. Zhou, N. Baracaldo, A. Anwar: "LEGATO: A LayerwisE Gradient AggregaTiOn Algorithm for Mitigating
Byzantine Attacks in Federated Learning", 2021: there a layer's reliability comes from how its norm varies
over rounds (`Legato`); here from how it varies over the parties of one round. S. Chen, C. Shen, L. Zhang, Y.
Tang: "Dynamic Aggregation for Heterogeneous Quantization in Federated Learning" (FedHQ), IEEE Transactions on
Wireless Communications 20, 2021: weights ∝ 1 / (1 + quantisation error). The error is stated there; here it
is read off the update's own grid.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .stack import Each, Updates

LOOK = 1 << 16  # coordinates from which a grid is read


@dataclass(frozen=True)
class Layerwise(Each):
    """A mean in which a party's layer counts less the more unusual its length is among the parties. It
    assumes that most lengths are honest.
    """

    layers: tuple[
        int, ...
    ] = ()  # how many coordinates each layer has; filled in by the job, which knows the model

    def fitted(self, layers: tuple[int, ...]) -> Layerwise:
        return replace(self, layers=layers)

    def one(self, updates: Updates) -> dict[str, Tensor]:
        out = {}
        for key, chunks in updates.chunks.items():
            size = chunks[0].shape[1]
            cuts = self.layers if sum(self.layers) == size else (size,)
            parts, a = [], 0
            for width in cuts:
                x = updates.block(key, a, a + width)
                length = x.double().norm(dim=1)
                middle = length.median()
                usual = (
                    (length - middle).abs().median().clamp(min=1e-3 * float(middle) + 1e-30)
                )  # the median deviation
                share = 1 / (1 + ((length - middle) / usual).square())
                parts.append((share / share.sum()).to(x.dtype) @ x)
                a += width
            out[key] = torch.cat(parts).view(updates.shapes[key])
        return out


@dataclass(frozen=True)
class QualityWeighted(Each):
    """A mean in which coarsely quantised updates count less. It assumes honest parties with unequal links:
    breakdown point 0.
    """

    def one(self, updates: Updates) -> dict[str, Tensor]:
        key = max(updates.chunks, key=lambda k: updates.chunks[k][0].shape[1])
        x = updates.block(key, 0, min(LOOK, updates.chunks[key][0].shape[1]))
        share = updates.weights.double() / (1 + torch.stack([_error(row) for row in x]))
        return updates.combined(share / share.sum())


def _error(row: Tensor) -> Tensor:
    """The rounding error of values that lie on a grid, relative to their size: step²/12 over the mean square.
    0 where there is no grid to see.
    """
    values = row.double().unique()
    if len(values) < 2 or len(values) > len(row) // 2:
        return row.new_zeros((), dtype=torch.float64)
    step = values.diff().min()
    return step.square() / 12 / row.double().square().mean().clamp(min=1e-60)
