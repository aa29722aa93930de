"""Parties drawn with probabilities proportional to their rows.

X. Li, K. Huang, W. Yang, S. Wang, Z. Zhang: "On the Convergence of FedAvg on Non-IID Data", ICLR 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .rule import PartyInfo, SelectionRule, draw_by_size


@dataclass(frozen=True)
class BySize(SelectionRule):
    """Drawn without replacement, with probabilities proportional to the parties' rows."""

    fills: ClassVar[bool] = True

    def choose(self, known: PartyInfo, per_round: int, rng: np.random.Generator) -> np.ndarray:
        return draw_by_size(rng, known.sizes, per_round)
