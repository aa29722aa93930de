"""How well one column alone predicts the label: too well if it is known only after the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .cells import to_numbers, to_text

if TYPE_CHECKING:
    from pandas import Series

CODES = 20  # a number with more values than this is not a list of codes
EXACT = 0.9999  # the R² of two columns above which the outcome is their sum, mean or difference
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
        if is_flat:
            return 0.0, repr(name)
        # of ranks, too: the logarithm of the outcome is the outcome
        ranks = pd.Series(x).rank(), pd.Series(y).rank()
        best = max(abs(np.corrcoef(x, y)[0, 1]), abs(np.corrcoef(*ranks)[0, 1]))
        return float(best), repr(name)
    if levels is None and 2 < len(np.unique(x)) <= CODES:  # codes need not be in the order of the classes
        as_text = column.astype(str)
        return max(predict_alone(as_text, target, name, labels), _largest_auc(x, None, target, name, labels))
    return _largest_auc(x, levels, target, name, labels)


def predict_together(columns: Mapping[str, Series], target: Series) -> tuple[str, str, float] | None:
    """Return two numbers of which a linear function is the outcome, and R²; None if there are none.

    An outcome that is the mean of two scores, or the difference of two weights, is known with them.
    """
    names = list(columns)
    z = np.stack([*(to_numbers(columns[name]) for name in names), to_numbers(target)], axis=1)
    z = z[np.isfinite(z).all(axis=1)]
    if len(z) < CODES or len(names) < 2:
        return None
    spread = z.std(axis=0)
    kept = np.flatnonzero(spread[:-1] > 0)
    if spread[-1] == 0 or len(kept) < 2:
        return None
    r = np.corrcoef(z[:, [*kept, -1]], rowvar=False)
    inner, outer = r[:-1, :-1], r[:-1, -1]
    left = 1 - inner**2  # what one of a pair has beside the other
    explained = outer[:, None] ** 2 + outer[None] ** 2 - 2 * outer[:, None] * outer[None] * inner
    both = np.where(left > 1e-6, explained / np.maximum(left, 1e-6), 0.0)
    a, b = np.unravel_index(both.argmax(), both.shape)
    return (names[kept[a]], names[kept[b]], float(both[a, b])) if both[a, b] >= EXACT else None


def predict_by_gaps(
    is_known: Series, target: Series, name: str, labels: Sequence[str] | None
) -> tuple[float, str]:
    """Return how well a class is predicted by whether a column has a value, as the date of death does."""
    gaps = int((~is_known).sum())
    if labels is None or not FEWEST <= gaps <= len(is_known) - FEWEST:
        return 0.0, ""
    return _largest_auc(is_known.to_numpy(dtype=np.float64), None, target, name, labels)


def _largest_auc(
    x: np.ndarray, levels: np.ndarray | None, target: Series, name: str, labels: Sequence[str]
) -> tuple[float, str]:
    """Return the largest AUC of a class against the rest by numbers or by levels, and which class it is."""
    import pandas as pd

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
