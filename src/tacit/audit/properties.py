"""Property inference: a fact about all rows of a training set, from a model or an update.

G. Ateniese, L. Mancini, A. Spognardi, A. Villani, D. Vitali, G. Felici: "Hacking Smart Machines with Smarter
Ones", IJSN 10(3), 2015: shadow models of two kinds and a classifier of models. L. Melis, C. Song, E. De
Cristofaro, V. Shmatikov: "Exploiting Unintended Feature Leakage in Collaborative Learning", S&P 2019: the
same of updates. W. Zhang, S. Tople, O. Ohrimenko: "Leakage of Dataset Properties in Multi-Party Machine
Learning", USENIX Security 2021: a model is described by its outputs on fixed rows, which does not depend on
the order of its neurons.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

RIDGE = 0.1  # of the mean squared length of a centered description


@dataclass(frozen=True)
class MetaClassifier:
    """A linear classifier of models, fitted by ridge regression; a positive score means the second kind."""

    center: Tensor
    scale: Tensor
    direction: Tensor
    offset: float

    @classmethod
    def fit(cls, described: Tensor, kind: Tensor) -> MetaClassifier:
        """From descriptions [S, F] and which of two kinds (False, True) each shadow is."""
        x, y = described.double(), kind.double() * 2 - 1
        center = x.mean(0)
        scale = x.std(0).clamp(min=1e-3 * float(x.std(0).max()) + 1e-30)
        z = (x - center) / scale
        gram = z @ z.T  # in the dual: there are fewer shadows than features
        ridge = RIDGE * gram.diagonal().mean() + 1e-12
        weights = torch.linalg.solve(gram + ridge * torch.eye(len(z)), y - y.mean())
        return cls(center, scale, z.T @ weights, float(y.mean()))

    def score(self, described: Tensor) -> Tensor:
        """[S]: below 0 for the first kind, above 0 for the second."""
        found: Tensor = (described.double() - self.center) / self.scale @ self.direction + self.offset
        return found


def draw_rows(has: np.ndarray, size: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """`size` different rows, of which a `share` has the property."""
    n = round(size * share)
    yes, no = np.flatnonzero(has), np.flatnonzero(~has)
    return rng.permutation(np.concatenate([rng.permutation(yes)[:n], rng.permutation(no)[: size - n]]))


def largest_size(has: np.ndarray, shares: tuple[float, float]) -> int:
    """How many different rows can be drawn with either share."""
    yes, no = int(has.sum()), int((~has).sum())
    low, high = min(shares), max(shares)
    return int(min(yes / high if high else np.inf, no / (1 - low) if low < 1 else np.inf))
