"""The selection rules.

BySize: X. Li, K. Huang, W. Yang, S. Wang, Z. Zhang: "On the Convergence of FedAvg on Non-IID Data", ICLR
2020.
PowerOfChoice: Y. J. Cho, J. Wang, G. Joshi: "Towards Understanding Biased Client Selection in Federated
Learning", AISTATS 2022.
Fast: T. Nishio, R. Yonetani: "Client Selection for Federated Learning with Heterogeneous Resources in Mobile
Edge", ICC 2019 (the idea of FedCS: no round takes longer than the deadline).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..parameters import real, whole
from .rule import PartyInfo, SelectionRule


def draw_by_size(rng: np.random.Generator, sizes: np.ndarray, many: int) -> np.ndarray:
    """`many` parties, drawn without replacement with probabilities proportional to their sizes."""
    probabilities = sizes / sizes.sum()
    return rng.choice(
        len(probabilities), min(many, int((probabilities > 0).sum())), replace=False, p=probabilities
    )


@dataclass(frozen=True)
class BySize(SelectionRule):
    """Drawn without replacement, with probabilities proportional to the parties' rows."""

    fills: ClassVar[bool] = True

    def choose(self, known: PartyInfo, per_round: int, rng: np.random.Generator) -> np.ndarray:
        return draw_by_size(rng, known.sizes, per_round)


@dataclass(frozen=True)
class PowerOfChoice(SelectionRule):
    """Candidates are drawn by size, and those with the largest losses take part."""

    fills: ClassVar[bool] = True
    candidates: int = whole(
        20, least=1, doc="d, the number of parties that report their loss; at least as many as take part"
    )

    def choose(self, known: PartyInfo, per_round: int, rng: np.random.Generator) -> np.ndarray:
        among = draw_by_size(rng, known.sizes, self.candidates)
        return among[np.argsort(-known.loss(among), kind="stable")[:per_round]]


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
