"""Wine: 178 wines of three growers, 13 chemical measurements.

M. Forina et al. 1991; the copy in scikit-learn.
"""

from __future__ import annotations

from .arrays import load_bundled
from .federation import Dataset


def wine(test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Standardised by the mean and deviation of all training rows."""
    return load_bundled("wine", "load_wine", test_fraction, seed)
