"""Iris: 150 flowers of three species, four measurements.

R. A. Fisher 1936; the copy in scikit-learn.
"""

from __future__ import annotations

from .arrays import load_bundled
from .federation import Dataset


def iris(test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Standardised by the mean and deviation of all training rows."""
    return load_bundled("iris", "load_iris", test_fraction, seed)
