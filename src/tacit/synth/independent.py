"""Every column by itself: the baseline. What is as good as this has learnt nothing about how columns go
together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..parameters import flag, whole
from .conditions import Conditions
from .encode import EVEN, Cells, Layout, uniforms
from .generator import Generator, Learned, Watch


@dataclass(frozen=True)
class Independent(Generator):
    """Draw each column from its own distribution."""

    bins: int = whole(256, least=2, doc="cells a number is cut into")
    even: bool = flag(True, doc=EVEN)
    seed: int = whole(0, least=0, doc="of all that is random in fitting")

    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> Learned:
        cells = Cells.of_data(layout.variables, v, self.bins)
        codes = cells.encode(v)
        shares = {
            f"share.{i}": torch.from_numpy(np.bincount(codes[:, i], minlength=size) / len(v))
            for i, size in enumerate(cells.sizes)
        }
        return Learned({**cells.tensors(), **shares})

    def draw(
        self, learned: Learned, layout: Layout, n: int, rng: np.random.Generator, given: Conditions
    ) -> np.ndarray:
        cells = Cells.from_tensors(layout.variables, learned.tensors)
        fitting = layout.fitting(given)
        codes = np.empty((n, len(cells.sizes)), dtype=np.int64)
        for i in range(len(cells.sizes)):
            share = learned.tensors[f"share.{i}"].numpy()
            kept = share * fitting[i] if i in fitting else share
            codes[:, i] = inverse(kept if kept.sum() else share, uniforms(n, rng, self.even))
        return cells.decode(codes, rng)


def inverse(shares: np.ndarray, u: np.ndarray) -> np.ndarray:
    """The cell in which the distribution function passes u; never one of share 0."""
    total = np.cumsum(shares)
    last = int(np.flatnonzero(shares)[-1])
    return np.minimum(np.searchsorted(total, u * total[-1], side="right"), last)
