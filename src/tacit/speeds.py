"""How long a piece of local work takes, in a simulation: what the virtual clock is moved by. From (seed,
party, piece of work) alone.

Real parties take the time they take; there no speed is given.
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

_SPEED = 6  # what a hash is for: how long something takes. algorithms.plan, guarding and pace use 1 to 5
PER = ("round", "step")
VARIES = ("party", "work")


def _uniform(seed: int, varies: str, numbers: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """In (0, 1): one for each party for good, or one for each piece of work."""
    drawn = mix(seed, _SPEED, ids) if varies == "party" else mix(seed, _SPEED, ids, numbers)
    return ((drawn >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53


@dataclass(frozen=True)
class Constant:
    """Everyone alike."""

    seconds: float = real(1.0, above=0, doc="how long it takes")
    per: str = choice(
        "round",
        PER,
        doc="round: a piece of work, whatever is in it; step: a local step, so that more rows take longer",
    )

    def draw(self, seed: int, numbers: np.ndarray, ids: np.ndarray, places: np.ndarray) -> np.ndarray:
        return np.full(len(ids), self.seconds)


@dataclass(frozen=True)
class Lognormal:
    """Many of about one speed and a long tail of slow ones: median·exp(σ·z)."""

    median: float = real(1.0, above=0, doc="half of them take less")
    sigma: float = real(0.5, above=0, doc="σ, the spread of the logarithm")
    varies: str = choice(
        "party",
        VARIES,
        doc="party: each party has its own speed for good; work: it is drawn anew for each piece of work",
    )
    per: str = choice(
        "round",
        PER,
        doc="round: a piece of work, whatever is in it; step: a local step, so that more rows take longer",
    )

    def draw(self, seed: int, numbers: np.ndarray, ids: np.ndarray, places: np.ndarray) -> np.ndarray:
        z = np.array([NormalDist().inv_cdf(u) for u in _uniform(seed, self.varies, numbers, ids)])
        return self.median * np.exp(self.sigma * z)


@dataclass(frozen=True)
class Exponential:
    """Without memory: −mean·ln(u), drawn anew for each piece of work unless told otherwise."""

    mean: float = real(1.0, above=0, doc="how long it takes on average")
    varies: str = choice(
        "work",
        VARIES,
        doc="party: each party has its own speed for good; work: it is drawn anew for each piece of work",
    )
    per: str = choice(
        "round",
        PER,
        doc="round: a piece of work, whatever is in it; step: a local step, so that more rows take longer",
    )

    def draw(self, seed: int, numbers: np.ndarray, ids: np.ndarray, places: np.ndarray) -> np.ndarray:
        return -self.mean * np.log(_uniform(seed, self.varies, numbers, ids))


@dataclass(frozen=True)
class Given:
    """Measured, or made up: a number for each party, in the federation's order."""

    seconds: tuple[float, ...] = field()
    per: str = choice(
        "round",
        PER,
        doc="round: a piece of work, whatever is in it; step: a local step, so that more rows take longer",
    )

    def draw(self, seed: int, numbers: np.ndarray, ids: np.ndarray, places: np.ndarray) -> np.ndarray:
        return np.array(self.seconds, dtype=np.float64)[places]

    def check(self) -> None:
        good = (
            isinstance(self.seconds, tuple | list)
            and len(self.seconds) > 0
            and all(
                isinstance(s, int | float) and not isinstance(s, bool) and isfinite(s) and s > 0
                for s in self.seconds
            )
        )
        if not good:
            raise bad("Given", "seconds", self.seconds, "a list with a number above 0 for each party")


ALL: dict[str, type] = {
    "Constant": Constant,
    "Lognormal": Lognormal,
    "Exponential": Exponential,
    "Given": Given,
}

Seconds = Callable[[np.ndarray, np.ndarray], np.ndarray]


def seconds(speed: Any, seed: int, ids: np.ndarray, steps: np.ndarray) -> Seconds:
    """(which parties, which pieces of work of theirs) → how long each takes."""

    def take(places: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        one = speed.draw(seed, numbers.astype(np.uint64), ids[places], places)
        return one * steps[places] if speed.per == "step" else one

    return take
