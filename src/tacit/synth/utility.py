"""Utility: what is learnt from the synthetic table, does it hold for real people? Everything is tested on
held-out real rows.

Train on synthetic, test on real (Esteban, Hyland, Rätsch 2017), for three kinds of model, against the same
models trained on the real table; whether they find the same columns important; and how far three-way tables,
as an analyst would ask for, are off.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import BadData
from .scores import Metric, Score, area, tvd
from .views import View, Views, filled

IMPORTANCE = Metric(
    "importance agreement",
    "utility",
    "prediction",
    -1,
    1,
    "higher",
    "Spearman's correlation of the columns' importance in a forest trained on synthetic and one trained on "
    "real rows",
)
WORKLOAD = Metric(
    "workload error",
    "utility",
    "queries",
    0,
    1,
    "lower",
    "mean total variation distance of three-way tables from those of the held-out rows, numbers in five "
    "cells",
)
MODELS = ("logistic regression", "random forest", "gradient boosting")
MOST_ROWS = 50_000  # of a training table
MOST_TABLES = 60
FEW_VALUES = 10  # a whole number with no more values than this is predicted as a class


def prediction(model: str, regression: bool) -> Metric:
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


def measure(views: Views, target: str | None, rng: np.random.Generator) -> list[Score]:
    assert (
        views.holdout is not None
    )  # without held-out rows there is no utility to speak of; `evaluate` sees to it
    return ([] if target is None else predictions(views, views.at(target), rng)) + [workload(views, rng)]


def predictions(views: Views, target: int, rng: np.random.Generator) -> list[Score]:
    column = views.columns[target]
    known = views.real.x[:, target]
    regression = column.is_number and len(np.unique(known[~np.isnan(known)])) > FEW_VALUES
    if len(np.unique(known[~np.isnan(known)])) < 2:
        raise BadData(
            f"evaluate: the target {column.name!r} has one value only in the real table, so there is "
            "nothing to predict. Choose another target."
        )
    others = [j for j in range(len(views.columns)) if j != target]
    if not others:
        raise BadData("evaluate: a target needs at least one other column to be predicted from.")
    assert views.holdout is not None
    test = _rows(views.holdout, target, rng)
    found, weight = [], {}
    for model, make in learners(regression).items():
        reached = {}
        for view in (views.synthetic, views.real):
            rows = _rows(view, target, rng)
            fitted = _fitted(make, views, view, rows, others, target, model, regression)
            if model == "random forest" and fitted is not None:
                weight[view.name] = np.asarray(fitted.feature_importances_)
            reached[view.name] = _reached(fitted, views, test, others, target, model, regression)
        found.append(Score(prediction(model, regression), reached["synthetic"], reached["real"]))
    if len(weight) == 2 and len(others) > 2:
        from scipy.stats import spearmanr

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            agreement = float(spearmanr(weight["synthetic"], weight["real"]).statistic)
        shares = {views.names[j]: float(s) for j, s in zip(others, weight["synthetic"])}
        found.append(
            Score(
                IMPORTANCE,
                agreement if math.isfinite(agreement) else 0.0,
                1.0,
                parts=shares,
                note="parts: importance in the synthetic table",
            )
        )
    return found


def _rows(view: View, target: int, rng: np.random.Generator) -> np.ndarray:
    """Places of rows whose target is known, at most MOST_ROWS."""
    rows = np.flatnonzero(~np.isnan(view.x[:, target]))
    return rows if len(rows) <= MOST_ROWS else np.sort(rng.choice(rows, MOST_ROWS, replace=False))


def _inputs(views: Views, view: View, rows: np.ndarray, others: list[int], model: str) -> np.ndarray:
    """Linear models get points (scaled, one axis a category), trees the numbers and codes as they are."""
    part = View(view.name, view.x[rows])
    if model == MODELS[0]:
        return views.points(part, others)
    return filled(part.x[:, others])


def _fitted(
    make: Callable[[], Any],
    views: Views,
    view: View,
    rows: np.ndarray,
    others: list[int],
    target: int,
    model: str,
    regression: bool,
) -> Any:
    answer = view.x[rows, target]
    if len(rows) < 2 or (not regression and len(np.unique(answer)) < 2):
        return None  # a synthetic table with one class, or none, teaches nothing
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # a logistic regression that has not fully converged is scored as it is
        return make().fit(
            _inputs(views, view, rows, others, model), answer if regression else answer.astype(np.int64)
        )


def _reached(
    fitted: Any, views: Views, test: np.ndarray, others: list[int], target: int, model: str, regression: bool
) -> float:
    assert views.holdout is not None
    answer = views.holdout.x[test, target]
    if fitted is None:
        return 0.0 if regression else 0.5
    inputs = _inputs(views, views.holdout, test, others, model)
    if regression:
        rest, spread = ((answer - fitted.predict(inputs)) ** 2).sum(), ((answer - answer.mean()) ** 2).sum()
        return float(1 - rest / spread) if spread else 0.0
    shares = fitted.predict_proba(inputs)
    classes = [int(c) for c in np.unique(answer)]
    score = {int(c): shares[:, k] for k, c in enumerate(fitted.classes_)}
    zero = np.zeros(len(answer))
    each = [
        area(score.get(c, zero)[answer == c], score.get(c, zero)[answer != c])[0]
        for c in classes[1 if len(classes) == 2 else 0 :]
        if (answer != c).any()
    ]
    return float(np.mean(each)) if each else math.nan


def workload(views: Views, rng: np.random.Generator) -> Score:
    assert views.holdout is not None
    every = list(itertools.combinations(range(len(views.columns)), min(3, len(views.columns))))
    chosen = [every[i] for i in rng.permutation(len(every))[:MOST_TABLES]]
    parts, held = {}, []
    for columns in chosen:
        truth = views.joint(views.holdout, columns, 5)
        parts[" × ".join(views.names[j] for j in columns)] = tvd(
            views.joint(views.synthetic, columns, 5), truth
        )
        held.append(tvd(views.joint(views.real, columns, 5), truth))
    return Score(WORKLOAD, float(np.mean(list(parts.values()))), float(np.mean(held)), parts=parts)
