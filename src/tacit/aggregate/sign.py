"""Majority vote on signs.

J. Bernstein, J. Zhao, K. Azizzadenesheli, A. Anandkumar: "signSGD with Majority Vote is Communication
Efficient and Fault Tolerant", ICLR 2019. There every step has a fixed size; here it is the mean of the
majority's values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .rule import Rule, State, Total


@dataclass(frozen=True)
class SignMajority(Rule):
    """Each coordinate moves in the direction of the majority, by the mean of the majority's values.

    Fewer than half of the parties cannot turn the sign where honest parties agree. The size has breakdown
    point 0.
    """

    def add(self, total: Total, weights: Tensor, vectors: State) -> Total:
        """Add to four sums for each coordinate: positive and negative votes, positive and negative values."""
        finite = torch.stack([torch.isfinite(v.reshape(len(v), -1)).all(1) for v in vectors.values()]).all(0)
        votes = ((weights != 0) & finite).to(torch.float32)
        new = {"": votes.sum(1)}
        for key, v in vectors.items():
            x = torch.where(finite[:, None], v.reshape(len(v), -1), 0)
            four = [(x > 0).float(), (x < 0).float(), x.clamp(min=0), x.clamp(max=0)]
            new[key] = torch.stack([votes @ part for part in four], 1).view(len(votes), 4, *v.shape[1:])
        return {k: total[k] + v for k, v in new.items()} if total else new

    def result(self, total: Total) -> State:
        none = total[""] == 0
        out = {}
        for key, four in total.items():
            if key:
                up, down, rise, fall = four.unbind(1)
                step = torch.where(
                    up > down,
                    rise / up.clamp(min=1),
                    torch.where(down > up, fall / down.clamp(min=1), torch.zeros_like(rise)),
                )
                out[key] = step.masked_fill(none.view(-1, *[1] * (step.dim() - 1)), torch.nan)
        return out
