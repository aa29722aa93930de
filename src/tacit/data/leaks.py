"""How well one column alone predicts the label: too well if it is known only after the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .cells import to_numbers, to_text

if TYPE_CHECKING:
    from pandas import Series

FEWEST = 5  # rows of a class, without which its AUC says little


def predict_alone(
    column: Series, target: Series, name: str, labels: Sequence[str] | None
) -> tuple[float, str]:
    """Return how well a column predicts the label `name`, and what of it.

    That is |correlation| with numbers (`labels` is None), or the largest AUC of a class against the rest.
    """
    import pandas as pd

    x = np.empty(0)
    levels: np.ndarray | None = None
    if pd.api.types.is_numeric_dtype(column):
        x = to_numbers(column)
    else:
        levels = np.unique(to_text(column).astype(str), return_inverse=True)[1]
        if levels.max() + 1 > 0.2 * len(levels):
            return 0.0, ""  # nearly one value for each row predicts anything
    if labels is None:
        y = to_numbers(target)
        x = x if levels is None else _means_of_others(levels, y)
        is_flat = x.std() == 0 or y.std() == 0
        return 0.0 if is_flat else float(abs(np.corrcoef(x, y)[0, 1])), repr(name)
    texts = to_text(target).astype(str)
    best, what = 0.0, ""
    for label in labels[: 1 if len(labels) == 2 else None]:
        y = (texts == label).astype(float)
        ones = y.sum()
        if not FEWEST <= ones <= len(y) - FEWEST:
            continue
        ranks = pd.Series(x if levels is None else _means_of_others(levels, y)).rank().to_numpy()
        auc = float((ranks[y == 1].sum() - ones * (ones + 1) / 2) / (ones * (len(y) - ones)))
        auc = max(auc, 1 - auc) if levels is None else auc
        if auc > best:
            best, what = auc, repr(name) if len(labels) == 2 else f"the {name!r} {label!r}"
    return best, what


def _means_of_others(levels: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return for each row the mean of its level: of even rows, the mean of the odd ones, and vice versa.

    With the row itself, levels of a few rows would predict anything.
    """
    out = np.empty(len(y))
    for half in (0, 1):
        mine, others = slice(half, None, 2), slice(1 - half, None, 2)
        counts = np.bincount(levels[others], minlength=levels.max() + 1)
        sums = np.bincount(levels[others], weights=y[others], minlength=len(counts))
        means = np.where(counts > 0, sums / np.maximum(counts, 1), y[others].mean())
        out[mine] = means[levels[mine]]
    return out
