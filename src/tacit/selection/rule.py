"""The interface of a selection rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np


class PartyInfo(NamedTuple):
    """What a server knows about the parties before a round; a rule may look at nothing else."""

    sizes: np.ndarray  # the number of training rows of each party
    # the loss of the current model on the rows of these parties; deployed, each is sent the model and
    # reports it
    loss: Callable[[np.ndarray], np.ndarray]
    # the seconds each party would take for this round, if the run has a speed; of deployed parties, the
    # seconds they took last (0: not known yet)
    seconds: np.ndarray | None
    there: np.ndarray | None = None  # who is connected, if a round may start without some


class SelectionRule(ABC):
    """A frozen dataclass that chooses which parties take part in a round."""

    fills: ClassVar[bool] = (
        False  # True: it chooses `per_round` parties if it can, so `per_round` is required
    )
    needs_speed: ClassVar[bool] = False  # True: it needs `seconds`, so a simulation must have a speed

    @abstractmethod
    def choose(self, known: PartyInfo, per_round: int, rng: np.random.Generator) -> np.ndarray:
        """The indices of at most `per_round` parties."""


class LossesNeeded(Exception):
    """A rule needs the losses of the parties `who`."""

    def __init__(self, who: np.ndarray):
        self.who = who


def select(rule: SelectionRule, seed: int, number: int, known: PartyInfo, per_round: int) -> np.ndarray:
    """The parties of round `number`, in ascending order.

    A second call draws the same numbers, so that a rule can be called again once the losses it needs are
    known.
    """
    rng = np.random.default_rng(
        [seed, number, 0x5E1]
    )  # 0x5E1 separates these draws from others with this seed
    return np.sort(rule.choose(known, per_round, rng))
