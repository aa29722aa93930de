"""Power-of-choice.

Y. J. Cho, J. Wang, G. Joshi: "Towards Understanding Biased Client Selection in Federated Learning", AISTATS
2022.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..parameters import whole
from .rule import PartyInfo, SelectionRule, draw_by_size


@dataclass(frozen=True)
class PowerOfChoice(SelectionRule):
    """PartyInfo are drawn by size, and those with the largest losses take part."""

    fills: ClassVar[bool] = True
    candidates: int = whole(
        20, least=1, doc="d, the number of parties that report their loss; at least as many as take part"
    )

    def choose(self, known: PartyInfo, per_round: int, rng: np.random.Generator) -> np.ndarray:
        among = draw_by_size(rng, known.sizes, self.candidates)
        return among[np.argsort(-known.loss(among), kind="stable")[:per_round]]
