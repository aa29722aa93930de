"""Parties that finish before a deadline.

T. Nishio, R. Yonetani: "Client Selection for Federated Learning with Heterogeneous Resources in Mobile
Edge", ICC 2019 (the idea of FedCS: no round takes longer than the deadline).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..parameters import real
from .rule import PartyInfo, SelectionRule


@dataclass(frozen=True)
class Fast(SelectionRule):
    """The parties that finish before a deadline, in random order; a round may have fewer than `per_round`."""

    needs_speed: ClassVar[bool] = True
    deadline: float = real(
        1.0, above=0, doc="seconds, by the run's virtual clock; of deployed parties, by the server's clock"
    )

    def choose(self, known: PartyInfo, per_round: int, rng: np.random.Generator) -> np.ndarray:
        assert known.seconds is not None  # a plan with Fast has a speed
        return rng.permutation(np.flatnonzero(known.seconds <= self.deadline))[:per_round]
