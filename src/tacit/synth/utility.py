"""Utility: whether conclusions from the synthetic table hold for real people.

Everything is tested on held-out real rows: train on synthetic, test on real (TSTR; Esteban, Hyland, Rätsch
2017) for three kinds of model, against the same models trained on the real table; agreement of feature
importances; and the error of three-way tables.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import BadData
from .scores import Metric, MetricScore, auc_with_interval, tvd
from .views import View, Views, fill_missing

IMPORTANCE = Metric(
    "importance agreement",
    "utility",
    "prediction",
    -1,
    1,
    "higher",
    "Spearman correlation of feature importances in random forests trained on synthetic and on real rows",
)
WORKLOAD = Metric(
    "workload error",
    "utility",
    "queries",
    0,
    1,
    "lower",
    "mean total variation distance of three-way tables from those of the held-out rows; numbers in five bins",
)
MODELS = ("logistic regression", "random forest", "gradient boosting")
MAX_ROWS = 50_000  # rows of a training table
MAX_TABLES = 60
FEW_VALUES = 10  # a number with at most this many distinct values is predicted as a class


def prediction(model: str, regression: bool) -> Metric:
    """Return the TSTR metric of a model."""
    what = "R²" if regression else "AUC"
    name = "ridge regression" if regression and model == MODELS[0] else model
    return Metric(
        f"TSTR {name}",
        "utility",
        "prediction",
        -math.inf if regression else 0,
        1,
        "higher",
        f"{what} on held-out real rows of a model trained on synthetic rows; the reference is the same "
        "model trained on the real ones",
    )


def learners(regression: bool) -> dict[str, Callable[[], Any]]:
    """Return constructors of the scikit-learn models by name."""
    from sklearn import ensemble, linear_model

    if regression:
        return {
            MODELS[0]: lambda: linear_model.Ridge(),
            MODELS[1]: lambda: ensemble.RandomForestRegressor(60, min_samples_leaf=3, random_state=0),
            MODELS[2]: lambda: ensemble.HistGradientBoostingRegressor(random_state=0),
        }
    return {
        MODELS[0]: lambda: linear_model.LogisticRegression(max_iter=300),
        MODELS[1]: lambda: ensemble.RandomForestClassifier(60, min_samples_leaf=3, random_state=0),
        MODELS[2]: lambda: ensemble.HistGradientBoostingClassifier(random_state=0),
    }


def measure(views: Views, target: str | None, rng: np.random.Generator) -> list[MetricScore]:
    """Return all utility scores."""
    assert views.holdout is not None  # `evaluate` computes utility only with held-out rows
    return ([] if target is None else predictions(views, views.column_index(target), rng)) + [
        workload(views, rng)
    ]


def predictions(views: Views, target: int, rng: np.random.Generator) -> list[MetricScore]:
    """Return the TSTR scores and the agreement of feature importances."""
    column = views.columns[target]
    known = views.real.x[:, target]
    values = len(np.unique(known[~np.isnan(known)]))
    regression = column.is_number and values > FEW_VALUES
    if values < 2:
        raise BadData(
            f"evaluate: the target {column.name!r} has a single value in the real table. Choose another "
            "target."
        )
    others = [j for j in range(len(views.columns)) if j != target]
    if not others:
        raise BadData("evaluate: the target is the only column. Add columns to predict it from.")
    assert views.holdout is not None
    test = _rows(views.holdout, target, rng)
    scores, importance = [], {}
    for name, make in learners(regression).items():
        by_table = {}
        for view in (views.synthetic, views.real):
            model = _fit(make, name, views, view, _rows(view, target, rng), others, target, regression)
            if name == "random forest" and model is not None:
                importance[view.name] = np.asarray(model.feature_importances_)
            by_table[view.name] = _score(model, name, views, test, others, target, regression)
        scores.append(MetricScore(prediction(name, regression), by_table["synthetic"], by_table["real"]))
    if len(importance) == 2 and len(others) > 2:
        from scipy.stats import spearmanr

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            agreement = float(spearmanr(importance["synthetic"], importance["real"]).statistic)
        shares = {views.names[j]: float(s) for j, s in zip(others, importance["synthetic"])}
        scores.append(
            MetricScore(
                IMPORTANCE,
                agreement if math.isfinite(agreement) else 0.0,
                1.0,
                parts=shares,
                note="parts: importance in the synthetic table",
            )
        )
    return scores


def _rows(view: View, target: int, rng: np.random.Generator) -> np.ndarray:
    """Return indices of rows whose target is known, at most MAX_ROWS."""
    rows = np.flatnonzero(~np.isnan(view.x[:, target]))
    return rows if len(rows) <= MAX_ROWS else np.sort(rng.choice(rows, MAX_ROWS, replace=False))


def _inputs(name: str, views: Views, view: View, rows: np.ndarray, others: list[int]) -> np.ndarray:
    """Return scaled one-hot inputs for linear models, numbers and codes for trees."""
    part = View(view.name, view.x[rows])
    return views.points(part, others) if name == MODELS[0] else fill_missing(part.x[:, others])


def _fit(
    make: Callable[[], Any],
    name: str,
    views: Views,
    view: View,
    rows: np.ndarray,
    others: list[int],
    target: int,
    regression: bool,
) -> Any:
    y = view.x[rows, target]
    if len(rows) < 2 or (not regression and len(np.unique(y)) < 2):
        return None  # nothing can be learned from a table with fewer than two classes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a logistic regression is scored even if it has not converged
        return make().fit(_inputs(name, views, view, rows, others), y if regression else y.astype(np.int64))


def _score(
    model: Any,
    name: str,
    views: Views,
    test: np.ndarray,
    others: list[int],
    target: int,
    regression: bool,
) -> float:
    """Return R² or the mean one-against-rest AUC on held-out rows; chance without a model."""
    assert views.holdout is not None
    y = views.holdout.x[test, target]
    if model is None:
        return 0.0 if regression else 0.5
    inputs = _inputs(name, views, views.holdout, test, others)
    if regression:
        residual, total = ((y - model.predict(inputs)) ** 2).sum(), ((y - y.mean()) ** 2).sum()
        return float(1 - residual / total) if total else 0.0
    shares = model.predict_proba(inputs)
    classes = [int(c) for c in np.unique(y)]
    score = {int(c): shares[:, k] for k, c in enumerate(model.classes_)}
    zero = np.zeros(len(y))
    each = [
        auc_with_interval(score.get(c, zero)[y == c], score.get(c, zero)[y != c])[0]
        for c in classes[1 if len(classes) == 2 else 0 :]
        if (y != c).any()
    ]
    return float(np.mean(each)) if each else math.nan


def workload(views: Views, rng: np.random.Generator) -> MetricScore:
    """Return the error of random three-way tables."""
    assert views.holdout is not None
    every = list(itertools.combinations(range(len(views.columns)), min(3, len(views.columns))))
    chosen = [every[i] for i in rng.permutation(len(every))[:MAX_TABLES]]
    parts, holdout_values = {}, []
    for columns in chosen:
        truth = views.joint(views.holdout, columns, 5)
        parts[" × ".join(views.names[j] for j in columns)] = tvd(
            views.joint(views.synthetic, columns, 5), truth
        )
        holdout_values.append(tvd(views.joint(views.real, columns, 5), truth))
    return MetricScore(
        WORKLOAD, float(np.mean(list(parts.values()))), float(np.mean(holdout_values)), parts=parts
    )
