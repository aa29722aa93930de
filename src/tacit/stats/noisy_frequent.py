"""Frequent values with differential privacy: noise in every count of every step.

W. Zhu, P. Kairouz, B. McMahan, H. Sun, W. Li: Federated Heavy Hitters Discovery with Differential Privacy,
AISTATS 2020 (a trie, letter by letter); here every count has Gaussian noise, those of letters that nobody has
too, and the steps share the budget equally. One row is in one count of a step. A prefix is continued if its
count is above `least` and above what noise alone reaches in any count of the step with probability 1%.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import numpy as np
import pandas as pd

from ..accounting.compose import Release
from ..parties.ledger import Spend
from ..protocols.sum_steps import END, Down
from . import noise_share
from .counts import FrequentProgram
from .declared import to_texts
from .noise_share import BOUND, SCALE, Block

FALSE_ALARM = 0.01  # that a step finds something in noise alone


@dataclass(frozen=True)
class NoisyFrequentProgram(FrequentProgram):
    if_left: ClassVar[str] = END
    bound: int = BOUND
    parties: int = 2
    epsilon: float = 1.0
    delta: float = 1e-6

    @property
    def release(self) -> Release:
        return noise_share.release_of(self.epsilon, self.delta)

    @property
    def spend(self) -> Spend:
        what = f"the counts of {self.max_steps} steps"
        return noise_share.spend_of(self.epsilon, self.delta, self.parties, what)

    def block(self, length: int) -> Block:
        return Block(length, 1.0, 1 / self.max_steps)

    def deviation(self, prefixes: int) -> float:
        """The standard deviation of the noise of a count in a step with so many prefixes."""
        variance = noise_share.total_variance(
            self.epsilon, self.delta, self.parties, self.block(257 * prefixes)
        )
        return math.sqrt(variance)

    def _values(self, table: pd.DataFrame) -> pd.Series:
        return pd.Series(to_texts(table[self.column]), dtype=object).dropna().value_counts()

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        counts = super().local(step, table, down)
        blocks = [self.block(len(counts))]
        return noise_share.add_noise([counts], blocks, self.epsilon, self.delta, self.parties)

    def _read_counts(self, total: np.ndarray, step: int) -> np.ndarray:
        return np.asarray(total, dtype=np.float64) / SCALE

    def _threshold(self, prefixes: int) -> float:
        reach = NormalDist().inv_cdf(1 - FALSE_ALARM / (257 * prefixes))
        return max(float(self.least), reach * self.deviation(prefixes))
