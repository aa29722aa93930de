"""Gaussian blobs: any number of rows, for tests and for federations of many parties."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..parameters import check, real, whole
from .arrays import from_arrays
from .federation import Dataset


@dataclass(frozen=True)
class GaussianBlobs:
    rows: int = whole(least=2)
    classes: int = whole(least=2)
    features: int = whole(least=1)
    spread: float = real(least=0)
    seed: int = whole(least=0)


def gaussian_blobs(
    rows: int = 1000,
    classes: int = 3,
    features: int = 2,
    spread: float = 1.0,
    seed: int = 0,
    test_fraction: float = 0.2,
) -> Dataset:
    """Gaussian blobs: any number of rows, for tests and for federations of many parties.

    Classes have equal size, each a Gaussian with standard deviation `spread`. Their centers are drawn with
    standard deviation 3.
    """
    check(GaussianBlobs(rows, classes, features, spread, seed))
    rng = np.random.default_rng([seed, 5])
    y = rng.permutation(np.arange(rows) % classes)
    centers = 3 * rng.standard_normal((classes, features), dtype=np.float32)
    x = centers[y] + np.float32(spread) * rng.standard_normal((rows, features), dtype=np.float32)
    return from_arrays(x, y, classes=classes, name="gaussian_blobs", test_fraction=test_fraction, seed=seed)
