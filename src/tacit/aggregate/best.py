"""The update of the party with the lowest loss.

S. Park, Y. Suh, J. Lee: "FedPSO", Sensors 21(2), 2021, Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import BadParameter
from .rule import State, Total
from .stack import Updates, WithMemory


@dataclass(frozen=True)
class Best(WithMemory):
    """The update with the lowest score that its party reports; of equal scores, the first party's.

    It needs an algorithm that sends scores (FedPSO). Breakdown point 0: a party that reports a false score
    wins.
    """

    remembers = False  # its memory only tells whose update was taken in the round

    def aggregate(self, updates: Updates) -> State:
        everyone = torch.arange(len(updates), device=updates.weights.device)
        return self.aggregate_with_memory(updates, everyone, {}, {})[0]

    def aggregate_with_memory(
        self, updates: Updates, parties: Tensor, memory: Total, down: State
    ) -> tuple[State, Total]:
        if "score" not in updates.chunks:
            raise BadParameter(
                f"Best: the updates contain {', '.join(updates.chunks)} but no score. "
                "Train with algorithms.FedPSO."
            )
        score = updates.block("score", 0, 1)[:, 0]
        best = parties[score == score.min()].min()
        return updates.select(parties == best).weighted_sum(torch.ones(1, device=score.device)), {
            "best": best
        }
