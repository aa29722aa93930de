"""Learning-rate schedules over rounds, which are counted from 0."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import pi
from typing import Any

import torch

from ..parameters import Kind, real, whole


class Schedule(ABC):
    """A frozen dataclass that says how the clients' learning rate changes over the rounds."""

    @abstractmethod
    def factor(self, round: Any) -> Any:
        """The factor on the learning rate in this round (a number or a tensor)."""


@dataclass(frozen=True)
class Exponential(Schedule):
    """η·γ^round."""

    gamma: float = real(0.99, above=0, most=1, doc="γ, the factor a round")

    def factor(self, round: Any) -> Any:
        return self.gamma**round


@dataclass(frozen=True)
class Inverse(Schedule):
    """η / (1 + decay·round): the O(1/t) decay that FedAvg's convergence proofs need (Li et al. 2020)."""

    decay: float = real(0.01, above=0, doc="the rate of decay")

    def factor(self, round: Any) -> Any:
        return 1 / (1 + self.decay * round)


@dataclass(frozen=True)
class Cosine(Schedule):
    """η·(1 + cos(π·round/rounds))/2, from η to 0 over `rounds`."""

    rounds: int = whole(100, least=1, doc="the round at which it reaches zero")

    def factor(self, round: Any) -> Any:
        return (1 + torch.cos(pi * torch.clamp(torch.as_tensor(round) / self.rounds, max=1))) / 2


ALL: dict[str, type[Schedule]] = {"Exponential": Exponential, "Inverse": Inverse, "Cosine": Cosine}
SCHEDULE = Kind("a schedule", ALL, Schedule)
