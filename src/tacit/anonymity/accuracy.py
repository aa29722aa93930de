"""Classification accuracy: train on the published rows and on the originals, and test both on originals.

Iyengar (KDD 2002) and LeFevre, DeWitt, Ramakrishnan (Workload-aware anonymization, KDD 2006) judge an
anonymized table by a classifier that is trained on it. A model trained on a published table will be used on
real people, so the test rows are original. A published word covers several values: for training, each such
cell is replaced by one of them, drawn by frequency, so that a model trained on "40–49" can predict for 43.

The accuracy is cross-validated: the test rows of a model, original or published, are never among its training
rows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import BadData, MissingExtra
from .codes import encode_used
from .measures import Recoding

if TYPE_CHECKING:
    from pandas import DataFrame

MAX_CATEGORIES = 40  # categories with a feature of their own; the others share one
# rows used, drawn at random from larger tables: the standard error is below half a percentage point, and the
# training takes a second instead of minutes
MAX_ROWS = 10_000


class AccuracyScore(NamedTuple):
    """Accuracy on original rows. `majority` is the accuracy of always predicting the most frequent class."""

    model: str
    original: float
    anonymous: float
    majority: float


def measure_accuracy(
    before: DataFrame,
    after: DataFrame,
    target: str,
    columns: Sequence[Recoding],
    position: np.ndarray | None,
    *,
    folds: int = 3,
    seed: int = 0,
) -> list[AccuracyScore]:
    """One score per model. The features are the quasi-identifiers other than the target."""
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedKFold
        from sklearn.tree import DecisionTreeClassifier
    except ImportError:
        raise MissingExtra("classification accuracy", "data", "scikit-learn") from None
    models: dict[str, Callable[[], Any]] = {
        "logistic regression": lambda: LogisticRegression(max_iter=100, tol=1e-3),
        "decision tree": lambda: DecisionTreeClassifier(max_depth=8, min_samples_leaf=10, random_state=seed),
    }
    columns = [c for c in columns if c.name != target]
    if position is None or not columns or not all(_is_known(c) for c in columns):
        return [AccuracyScore(name, math.nan, math.nan, math.nan) for name in models]
    y, labels = encode_used(before[target])
    if min(np.bincount(y)) < folds:
        raise BadData(
            f"risk: {labels[int(np.bincount(y).argmin())]!r} occurs fewer than {folds} times in {target!r}, "
            "so it cannot be in every fold. Use a target with few, frequent values."
        )
    index = {w: i for i, w in enumerate(labels)}
    codes, words = encode_used(after[target])
    y_published = np.array([index.get(w, -1) for w in words])[codes]  # −1: the label was generalized
    features = [_build_features(c) for c in columns]
    rng = np.random.default_rng(seed)
    x = np.hstack([f[c.codes] for c, f in zip(columns, features)])
    x_published = np.hstack([f[_draw_values(c, rng)] for c, f in zip(columns, features)])
    rows = rng.permutation(len(y))[:MAX_ROWS]
    published = np.full(len(y), -1)
    published[position] = np.arange(len(position))
    scores: dict[str, list[tuple[float, float, float]]] = {name: [] for name in models}
    for train, test in StratifiedKFold(folds, shuffle=True, random_state=seed).split(rows, y[rows]):
        train_rows, test_rows = rows[train], rows[test]
        train_published = published[train_rows][published[train_rows] >= 0]
        train_published = train_published[y_published[train_published] >= 0]
        x_test, y_test = x[test_rows], y[test_rows]
        majority = float((y_test == np.bincount(y[train_rows]).argmax()).mean())
        for name, build in models.items():
            with warnings.catch_warnings():
                # a model near its optimum is good enough to compare the tables
                warnings.simplefilter("ignore", ConvergenceWarning)
                original = _score(build, x[train_rows], y[train_rows], x_test, y_test)
                anonymous = _score(
                    build, x_published[train_published], y_published[train_published], x_test, y_test
                )
            scores[name].append((original, anonymous, majority))
    return [
        AccuracyScore(name, *(float(np.mean(s)) for s in zip(*per_fold))) for name, per_fold in scores.items()
    ]


def _is_known(c: Recoding) -> bool:
    """Whether every published word covers known values."""
    return all(w in c.covers and c.counts[c.covers[w]].sum() for w in np.unique(c.published).tolist())


def _score(
    build: Callable[[], Any], x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray
) -> float:
    if not len(y):
        return 0.0  # no published row to train on
    if len(np.unique(y)) == 1:
        return float((y_test == y[0]).mean())
    return float((build().fit(x, y).predict(x_test) == y_test).mean())


def _build_features(c: Recoding) -> np.ndarray:
    """Features of each original value: numbers standardized, categories one-hot encoded."""
    counts = c.counts.astype(float)
    try:
        numbers = np.array([float(w) for w in c.values])
        if not np.isfinite(numbers).all():
            raise ValueError  # the text "nan" is a category
    except ValueError:
        order = np.argsort(np.argsort(-counts, kind="stable"), kind="stable")
        rank = np.minimum(order, MAX_CATEGORIES)
        return np.asarray(np.eye(int(rank.max()) + 1)[rank])
    mean = np.average(numbers, weights=counts)
    deviation = math.sqrt(np.average((numbers - mean) ** 2, weights=counts)) or 1.0
    return np.asarray(((numbers - mean) / deviation)[:, None])


def _draw_values(c: Recoding, rng: np.random.Generator) -> np.ndarray:
    """For each published row, one of the original values that its word covers."""
    drawn = np.zeros(len(c.published), dtype=np.int64)
    for w in np.unique(c.published).tolist():
        rows, weights = np.flatnonzero(c.published == w), c.counts[c.covers[w]].astype(float)
        drawn[rows] = rng.choice(c.covers[w], len(rows), p=weights / weights.sum())
    return drawn
