"""Small data sets bundled with scikit-learn: digits, iris, wine and breast cancer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ..errors import MissingExtra
from .arrays import from_arrays
from .federation import Dataset, Rows


def digits(images: bool = False, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Digits: 1,797 handwritten digits of 8×8 pixels.

    E. Alpaydin, C. Kaynak 1998. 64 pixels / 16, so in [0, 1], and ten labels; `images=True` gives
    [N, 1, 8, 8].
    """
    return _load("digits", test_fraction, seed, scale=16, shape=(1, 8, 8) if images else ())


def iris(test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Iris: 150 flowers of three species, four measurements.

    R. A. Fisher 1936. Standardized by the mean and standard deviation of all training rows.
    """
    return _load("iris", test_fraction, seed)


def breast_cancer(test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Breast cancer Wisconsin (diagnostic): 569 tumors, 30 measurements.

    W. Wolberg et al. 1995. Malignant (0) or benign (1). Standardized by the mean and standard deviation of
    all training rows.
    """
    return _load("breast_cancer", test_fraction, seed)


def wine(test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Wine: 178 wines of three growers, 13 chemical measurements.

    M. Forina et al. 1991. Standardized by the mean and standard deviation of all training rows.
    """
    return _load("wine", test_fraction, seed)


def _load(
    name: str,
    test_fraction: float,
    seed: int,
    scale: float | None = None,
    shape: tuple[int, ...] = (),
) -> Dataset:
    """Features are divided by `scale`, or standardized by mean and deviation of the training rows."""
    try:
        from sklearn import datasets
    except ImportError:
        raise MissingExtra(f"data.{name}()", "data", "scikit-learn") from None
    raw = getattr(datasets, f"load_{name}")()
    x = np.asarray(raw.data, dtype=np.float64) / (scale or 1)
    dataset = from_arrays(
        x.reshape(len(x), *shape) if shape else x,
        raw.target,
        name=name,
        columns=[str(f) for f in raw.feature_names],
        labels=[str(t) for t in raw.target_names],
        test_fraction=test_fraction,
        seed=seed,
    )
    if scale:
        return dataset
    std, mean = torch.std_mean(dataset.rows.matrix(dataset.name).double(), dim=0, correction=0)
    std = torch.where(std > 0, std, 1.0)  # with few training rows a feature may be constant
    rows, test = (
        Rows(((r.matrix(dataset.name).double() - mean) / std).float(), r.y)
        for r in (dataset.rows, dataset.test)
    )
    return replace(dataset, rows=rows, test=test)
