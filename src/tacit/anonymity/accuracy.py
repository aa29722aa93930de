"""Classification accuracy: train on the published rows, test on original ones, beside a model that was
trained on the originals.

Iyengar (KDD 2002) and LeFevre, DeWitt, Ramakrishnan (Workload-aware anonymization, KDD 2006) judge an
anonymous table by a classifier trained on it. Whoever trains on a published table will use the model on real
people, so the test rows are original. A published word stands for several values: for training, each such
cell is replaced by one of them, drawn by how often they occur, so that a model trained on "40–49" can be
asked about 43.

Cross-validated: the rows a model is tested on, original or published, are never among those it was trained
on.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import BadData, MissingExtra
from .classes import numbered
from .measures import Column

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_KINDS = 40  # values of a category with a feature of their own; the rest share one
MOST_ROWS = (
    10_000  # drawn at random beyond it: a standard error below half a point, and a second instead of minutes
)


class Score(NamedTuple):
    """Accuracy on original rows. `majority` is what saying the most frequent class would reach."""

    model: str
    original: float
    anonymous: float
    majority: float


def accuracy(
    before: DataFrame,
    after: DataFrame,
    target: str,
    cells: Sequence[Column],
    at: np.ndarray | None,
    *,
    folds: int = 3,
    seed: int = 0,
) -> list[Score]:
    """One score a model. Features are the quasi-identifiers other than the target."""
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedKFold
        from sklearn.tree import DecisionTreeClassifier
    except ImportError:
        raise MissingExtra("classification accuracy", "data", "scikit-learn") from None
    names = {
        "logistic regression": lambda: LogisticRegression(max_iter=100, tol=1e-3),
        "decision tree": lambda: DecisionTreeClassifier(max_depth=8, min_samples_leaf=10, random_state=seed),
    }
    used = [c for c in cells if c.name != target]
    if (
        at is None
        or not used
        or any(
            w not in c.below or not c.counts[c.below[w]].sum()
            for c in used
            for w in np.unique(c.published).tolist()
        )
    ):
        return [Score(name, math.nan, math.nan, math.nan) for name in names]
    y, labels = numbered(before[target])
    if min(np.bincount(y)) < folds:  # too rare to be in every fold
        rare = labels[int(np.bincount(y).argmin())]
        raise BadData(
            f"risk: {rare!r} occurs fewer than {folds} times in {target!r}, so it cannot be tested. Give a "
            "target with few, frequent values."
        )
    label = {w: i for i, w in enumerate(labels)}
    said, words = numbered(after[target])
    told = np.array([label.get(w, -1) for w in words])[said]  # −1: the label itself was generalised
    features = [_features(c) for c in used]
    rng = np.random.default_rng(seed)
    x = np.hstack([own[c.codes] for c, own in zip(used, features)])
    xa = np.hstack([own[_drawn(c, rng)] for c, own in zip(used, features)])
    chosen = rng.permutation(len(y))[:MOST_ROWS]
    published = np.full(len(y), -1)
    published[at] = np.arange(len(at))
    got: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    for train, test in StratifiedKFold(folds, shuffle=True, random_state=seed).split(chosen, y[chosen]):
        mine, tested = chosen[train], chosen[test]
        theirs = published[mine][published[mine] >= 0]
        theirs = theirs[told[theirs] >= 0]
        for name, make in names.items():
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", ConvergenceWarning
                )  # a model near its optimum says enough about the table
                own = _score(make, x[mine], y[mine], x[tested], y[tested])
                other = _score(make, xa[theirs], told[theirs], x[tested], y[tested])
            got[name].append((own, other, float((y[tested] == np.bincount(y[mine]).argmax()).mean())))
    return [Score(name, *(float(np.mean(column)) for column in zip(*rows))) for name, rows in got.items()]


def _score(make: Any, x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> float:
    if not len(y):
        return 0.0  # nothing was published to learn from
    if len(np.unique(y)) == 1:
        return float((y_test == y[0]).mean())
    return float((make().fit(x, y).predict(x_test) == y_test).mean())


def _features(c: Column) -> np.ndarray:
    """A row of features for each original value: a number standardised, a category as one of a few."""
    counts = c.counts.astype(float)
    try:
        at = np.array([float(w) for w in c.words])
        if not np.isfinite(at).all():
            raise ValueError  # the text "nan" is a category
    except ValueError:
        rank = np.minimum(np.argsort(np.argsort(-counts, kind="stable"), kind="stable"), MOST_KINDS)
        return np.eye(int(rank.max()) + 1)[rank]
    mean = np.average(at, weights=counts)
    return ((at - mean) / (math.sqrt(np.average((at - mean) ** 2, weights=counts)) or 1.0))[:, None]


def _drawn(c: Column, rng: np.random.Generator) -> np.ndarray:
    """For each published row one of the originals its word stands for."""
    out = np.zeros(len(c.published), dtype=np.int64)
    for w in np.unique(c.published).tolist():
        here, weights = np.flatnonzero(c.published == w), c.counts[c.below[w]].astype(float)
        out[here] = rng.choice(c.below[w], len(here), p=weights / weights.sum())
    return out
