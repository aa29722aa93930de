"""Noise in counts of people over the cells of several parties' columns, for (ε, δ)-differential privacy.

Neighboring tables have other values, in any columns and the outcome, of one of the shared people. That moves
one person from one cell of a column to another: two counts by 1 each, √2 in L2. ρ of zCDP is shared:

    BIN_SHARE     cuts of numbers from noisy counts in equal cells of declared bounds, by number
    TOTAL_SHARE   events and others over all shared people
    the rest      others and events in each cell, by column

Every party draws its own noise, of the whole variance: what it sends is protected against all the others, who
do not know this noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..accounting import discrete
from ..accounting.compose import Release
from ..parties.ledger import Spend
from ..stats.noise_share import release_of

BIN_SHARE, TOTAL_SHARE = 0.15, 0.05
Source = Callable[[int], bytes]


@dataclass(frozen=True)
class CountNoise:
    """`columns`: of all parties; `searched`: how many of them are numbers without declared cuts."""

    epsilon: float
    delta: float
    columns: int
    searched: int

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> CountNoise | None:
        """Return the noise of agreed settings; None without an ε."""
        if settings.get("epsilon") is None:
            return None
        return cls(
            float(settings["epsilon"]),
            float(settings["delta"]),
            int(settings["columns"]),
            int(settings["searched"]),
        )

    @cached_property
    def rho(self) -> float:
        return discrete.rho_of(self.epsilon, self.delta)

    def variance(self, share: float) -> float:
        """The variance of noise that costs this share of ρ: Δ² / 2ρ with Δ = √2."""
        return 1.0 / (self.rho * share)

    @property
    def bin_share(self) -> float:
        """Of one number's cuts."""
        return BIN_SHARE / self.searched if self.searched else 0.0

    @property
    def cell_share(self) -> float:
        """Of one column's counts."""
        return (1.0 - TOTAL_SHARE - (BIN_SHARE if self.searched else 0.0)) / self.columns

    def draw(self, share: float, shape: tuple[int, ...], source: Source) -> np.ndarray:
        found = discrete.gaussian(discrete.rational_above(self.variance(share)), int(np.prod(shape)), source)
        return np.asarray(found, dtype=np.int64).reshape(shape)

    @property
    def release(self) -> Release:
        return release_of(self.epsilon, self.delta)

    @property
    def spend(self) -> Spend:
        return Spend(
            f"discrete Gaussian noise in rows and events in the bins of {self.columns} columns",
            self.epsilon,
            self.delta,
            "row",
            "every other party, if all follow their programs; not: who is among the shared people",
            "no",
        )
