"""The duration of local work in a simulation, for its virtual clock: it follows from (seed, party, work).

Deployed parties take real time, and have no speed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from statistics import NormalDist
from typing import Any

import numpy as np

from .algorithms.plan import mix
from .parameters import bad, choice, real

_SPEED = 6  # the purpose of a hash: durations. algorithms.plan, guarding and pace use 1 to 5


def _per() -> Any:
    return choice("round", ("round", "step"), "what takes this long: the work of a round, or one local step")


def _varies(default: str) -> Any:
    doc = "party: one draw for each party; work: one draw for each piece of work"
    return choice(default, ("party", "work"), doc)


def _uniform(seed: int, varies: str, numbers: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """In (0, 1): one number for each party, or one for each piece of work."""
    hashes = mix(seed, _SPEED, ids) if varies == "party" else mix(seed, _SPEED, ids, numbers)
    return ((hashes >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53


@dataclass(frozen=True)
class Constant:
    """The same duration for all parties."""

    seconds: float = real(1.0, above=0, doc="the duration in seconds")
    per: str = _per()

    def draw(self, seed: int, numbers: np.ndarray, ids: np.ndarray, places: np.ndarray) -> np.ndarray:
        return np.full(len(ids), self.seconds)


@dataclass(frozen=True)
class Lognormal:
    """A log-normal duration, median·exp(σ·z): many similar parties and a long tail of slow ones."""

    median: float = real(1.0, above=0, doc="the median in seconds")
    sigma: float = real(0.5, above=0, doc="σ, the standard deviation of the logarithm")
    varies: str = _varies("party")
    per: str = _per()

    def draw(self, seed: int, numbers: np.ndarray, ids: np.ndarray, places: np.ndarray) -> np.ndarray:
        z = np.array([NormalDist().inv_cdf(u) for u in _uniform(seed, self.varies, numbers, ids)])
        return self.median * np.exp(self.sigma * z)


@dataclass(frozen=True)
class Exponential:
    """An exponential duration, −mean·ln(u), by default independent for each piece of work."""

    mean: float = real(1.0, above=0, doc="the mean in seconds")
    varies: str = _varies("work")
    per: str = _per()

    def draw(self, seed: int, numbers: np.ndarray, ids: np.ndarray, places: np.ndarray) -> np.ndarray:
        return -self.mean * np.log(_uniform(seed, self.varies, numbers, ids))


@dataclass(frozen=True)
class Given:
    """A given duration for each party, in the order of the federation."""

    seconds: tuple[float, ...] = field()
    per: str = _per()

    def draw(self, seed: int, numbers: np.ndarray, ids: np.ndarray, places: np.ndarray) -> np.ndarray:
        return np.array(self.seconds, dtype=np.float64)[places]

    def check(self) -> None:
        if (
            not isinstance(self.seconds, tuple | list)
            or not self.seconds
            or any(isinstance(s, bool) or not isinstance(s, int | float) for s in self.seconds)
            or not all(isfinite(s) and s > 0 for s in self.seconds)
        ):
            raise bad("Given", "seconds", self.seconds, "a list with a number above 0 for each party")


ALL: dict[str, type] = {
    "Constant": Constant,
    "Lognormal": Lognormal,
    "Exponential": Exponential,
    "Given": Given,
}

Seconds = Callable[[np.ndarray, np.ndarray], np.ndarray]


def seconds(speed: Any, seed: int, ids: np.ndarray, steps: np.ndarray) -> Seconds:
    """A function (parties, numbers of their works) → seconds of each."""

    def take(places: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        one = speed.draw(seed, numbers.astype(np.uint64), ids[places], places)
        return one * steps[places] if speed.per == "step" else one

    return take
