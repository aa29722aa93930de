"""Breast cancer Wisconsin (diagnostic): 569 tumors, 30 measurements.

W. Wolberg et al. 1995; the copy in scikit-learn.
"""

from __future__ import annotations

from .arrays import load_bundled
from .federation import Dataset


def breast_cancer(test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Malignant (0) or benign (1).

    Standardised by the mean and deviation of all training rows.
    """
    return load_bundled("breast_cancer", "load_breast_cancer", test_fraction, seed)
