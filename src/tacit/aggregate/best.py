"""The update of whoever does best. S. Park, Y. Suh, J. Lee: "FedPSO", Sensors 21(2), 2021, Algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import BadParameter
from .stack import Remembering, Total, Updates


@dataclass(frozen=True)
class Best(Remembering):
    """The update with the lowest score its party states; of equal ones the first party's. It needs an
    algorithm that sends scores (FedPSO). Breakdown point 0: who lies about it wins. It remembers nothing but
    whose update that was.
    """

    def one(self, updates: Updates) -> dict[str, Tensor]:
        return self.look(updates, torch.arange(len(updates), device=updates.weights.device), {}, {})[0]

    def look(
        self, updates: Updates, who: Tensor, memory: Total, down: dict[str, Tensor]
    ) -> tuple[dict[str, Tensor], Total]:
        if "score" not in updates.chunks:
            raise BadParameter(
                f"Best: the updates hold {', '.join(updates.chunks)}, and no score to tell the best by. "
                "Train with algorithms.FedPSO."
            )
        score = updates.block("score", 0, 1)[:, 0]
        best = who[score == score.min()].min()
        return updates.only(who == best).combined(torch.ones(1, device=score.device)), {"best": best}
