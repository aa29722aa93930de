"""The update of whoever does best. S. Park, Y. Suh, J. Lee: "FedPSO", Sensors 21(2), 2021, Algorithm 2."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import BadParameter
from .stack import Each, Updates


@dataclass(frozen=True)
class Best(Each):
    """The update with the lowest score its party states. It needs an algorithm that sends scores (FedPSO). Breakdown point 0: who lies about it wins."""

    def one(self, updates: Updates) -> dict[str, Tensor]:
        if "score" not in updates.chunks:
            raise BadParameter(f"Best: the updates hold {', '.join(updates.chunks)}, and no score to tell the best by. Train with algorithms.FedPSO.")
        best = updates.block("score", 0, 1)[:, 0].argmin()
        return updates.only(torch.arange(len(updates), device=best.device) == best).combined(torch.ones(1, device=best.device))
