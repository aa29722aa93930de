"""Majority vote on signs. J. Bernstein, J. Zhao, K. Azizzadenesheli, A. Anandkumar: "signSGD with Majority
Vote is Communication Efficient and Fault Tolerant", ICLR 2019. There every step has one fixed size; here a
coordinate goes as far as those who outvoted the rest, on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

Total = dict[str, Tensor]


@dataclass(frozen=True)
class SignMajority:
    """Each coordinate goes the way most parties go. Fewer than half cannot turn it, where the honest agree;
    how far it goes is a mean, breakdown 0.
    """

    sees_each: ClassVar[bool] = True

    def start(self) -> Total:
        return {}

    def add(self, total: Total, weights: Tensor, vectors: dict[str, Tensor]) -> Total:
        """Four sums a coordinate (how many go up, how many down, how far each), whatever the size of the
        cohort.
        """
        whole = torch.stack([torch.isfinite(v.reshape(len(v), -1)).all(1) for v in vectors.values()]).all(0)
        votes = ((weights != 0) & whole).to(torch.float32)
        new = {"": votes.sum(1)}
        for key, v in vectors.items():
            x = torch.where(whole[:, None], v.reshape(len(v), -1), 0)
            four = torch.stack(
                [
                    votes @ (x > 0).float(),
                    votes @ (x < 0).float(),
                    votes @ x.clamp(min=0),
                    votes @ x.clamp(max=0),
                ],
                1,
            )
            new[key] = four.view(len(votes), 4, *v.shape[1:])
        return {k: total[k] + v for k, v in new.items()} if total else new

    def result(self, total: Total) -> dict[str, Tensor]:
        none = total[""] == 0
        out = {}
        for key, four in total.items():
            if key:
                up, down, rise, fall = four.unbind(1)
                way = torch.where(
                    up > down,
                    rise / up.clamp(min=1),
                    torch.where(down > up, fall / down.clamp(min=1), torch.zeros_like(rise)),
                )
                out[key] = way.masked_fill(none.view(-1, *[1] * (way.dim() - 1)), torch.nan)
        return out
