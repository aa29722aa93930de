"""Parties that are available."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..parameters import real
from .rule import PartyInfo, SelectionRule


@dataclass(frozen=True)
class Available(SelectionRule):
    """Each party is available with some probability; those that are, are drawn uniformly.

    Fewer than `per_round` may be available. In a deployment with a deadline, parties that are not connected
    are never chosen.
    """

    probability: float = real(0.8, above=0, most=1, doc="the probability that a party is available")

    def choose(self, known: PartyInfo, per_round: int, rng: np.random.Generator) -> np.ndarray:
        available = rng.random(len(known.sizes)) < self.probability
        if known.there is not None:
            available &= known.there
        return rng.permutation(np.flatnonzero(available))[:per_round]
