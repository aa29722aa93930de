"""The baseline: every column is drawn independently."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..parameters import flag, whole
from .encode import EVEN, Conditions, Discretizer, Layout, uniforms
from .generator import Generator, GeneratorState, Watch


@dataclass(frozen=True)
class Independent(Generator):
    """Draws each column from its own distribution."""

    bins: int = whole(256, least=2, doc="cells of a numeric column")
    even: bool = flag(True, doc=EVEN)
    seed: int = whole(0, least=0, doc="random seed of the fit")

    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> GeneratorState:
        cells = Discretizer.from_data(layout.variables, v, self.bins)
        codes = cells.encode(v)
        shares = {
            f"share.{i}": torch.from_numpy(np.bincount(codes[:, i], minlength=size) / len(v))
            for i, size in enumerate(cells.sizes)
        }
        return GeneratorState({**cells.tensors(), **shares})

    def draw(
        self, state: GeneratorState, layout: Layout, n: int, rng: np.random.Generator, conditions: Conditions
    ) -> np.ndarray:
        cells = Discretizer.from_tensors(layout.variables, state.tensors)
        allowed = layout.allowed_levels(conditions)
        codes = np.empty((n, len(cells.sizes)), dtype=np.int64)
        for i in range(len(cells.sizes)):
            share = state.tensors[f"share.{i}"].numpy()
            masked = share * allowed[i] if i in allowed else share
            codes[:, i] = inverse(masked if masked.sum() else share, uniforms(n, rng, self.even))
        return cells.decode(codes, rng)


def inverse(shares: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Return the cell where the cumulative distribution exceeds u; never one of share 0."""
    total = np.cumsum(shares)
    cell = np.searchsorted(total, u * total[-1], side="right")
    return np.asarray(np.minimum(cell, np.flatnonzero(shares)[-1]))
