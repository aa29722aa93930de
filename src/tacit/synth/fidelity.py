"""Fidelity: does the synthetic table look like the real one? Columns, pairs of columns, all columns at once.

KS and TV complement, correlation and contingency similarity and their mean are those of SDMetrics (MIT),
computed here from their definitions, because the package installs `copulas`, which is not free software.
`benchmarks/sdmetrics_agree.py` compares the two: they are equal but for a number beside a category, where
SDMetrics cuts the two tables at different edges and we cut both where the real one is cut. High fidelity is
no merit by itself: a copy of the real table has it all. Read it beside the copies and the membership AUC.
"""

from __future__ import annotations

import math
import warnings

import numpy as np

from .scores import Metric, Score, area, tvd
from .views import View, Views, filled

KS = Metric(
    "KS complement",
    "fidelity",
    "columns",
    0,
    1,
    "higher",
    "1 − the largest distance of the distribution functions, of numbers",
)
TV = Metric(
    "TV complement", "fidelity", "columns", 0, 1, "higher", "1 − the total variation distance, of categories"
)
MOMENTS = Metric(
    "moments",
    "fidelity",
    "columns",
    0,
    math.inf,
    "lower",
    "how far mean, standard deviation and skewness are off, in the real standard deviations, of numbers",
)
CORRELATION = Metric(
    "correlation similarity",
    "fidelity",
    "pairs",
    0,
    1,
    "higher",
    "1 − half the difference of Pearson's correlation, of two numbers",
)
CONTINGENCY = Metric(
    "contingency similarity",
    "fidelity",
    "pairs",
    0,
    1,
    "higher",
    "1 − the total variation distance of the joint table, where one column at least is listed; numbers in "
    "ten cells",
)
QUALITY = Metric(
    "quality score",
    "fidelity",
    "columns and pairs",
    0,
    1,
    "higher",
    "the mean of the columns' mean and the pairs' mean, as SDMetrics has it. A copy of the real table has "
    "the best of all",
)
DETECTION = Metric(
    "detection AUC",
    "fidelity",
    "all columns",
    0.5,
    1,
    "lower",
    "how well a gradient-boosted classifier tells synthetic from real rows (3-fold); 0.5 is not at all",
)
CLUSTERS = Metric(
    "latent clusters",
    "fidelity",
    "all columns",
    -math.inf,
    0,
    "lower",
    "log of the mean squared imbalance of real and synthetic rows over the clusters of both (Yan et al. "
    "2022)",
)
ROWS = 5_000  # of each table, for what trains or clusters
CLUSTER_COUNT = 20


def complement(a: np.ndarray, b: np.ndarray) -> float:
    """1 − the Kolmogorov–Smirnov statistic, missing values left out. A column that is all missing on one side
    only is as far as can be.
    """
    a, b = np.sort(a[~np.isnan(a)]), np.sort(b[~np.isnan(b)])
    if not len(a) or not len(b):
        return float(len(a) == len(b))
    both = np.concatenate([a, b])
    return 1 - float(
        np.abs(np.searchsorted(a, both, "right") / len(a) - np.searchsorted(b, both, "right") / len(b)).max()
    )


def shapes(views: Views, made: View) -> dict[str, float]:
    """KS or TV complement of each column."""
    out = {}
    for j, name in enumerate(views.names):
        if j in views.levels:
            out[name] = 1 - tvd(views.joint(views.real, (j,)), views.joint(made, (j,)))
        else:
            out[name] = complement(views.real.x[:, j], made.x[:, j])
    return out


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    there = ~(np.isnan(x) | np.isnan(y))
    x, y = x[there], y[there]
    if len(x) < 2 or x.std() == 0 or y.std() == 0:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def trends(views: Views, made: View) -> tuple[dict[str, float], dict[str, float]]:
    """Correlation similarity of pairs of numbers, contingency similarity of the others. A pair without a
    correlation (a constant column) is left out.
    """
    numbers, joint = {}, {}
    for a, b in views.pairs():
        name = f"{views.names[a]} × {views.names[b]}"
        if views.columns[a].is_number and views.columns[b].is_number:
            r, s = (correlation(v.x[:, a], v.x[:, b]) for v in (views.real, made))
            if not math.isnan(r):
                numbers[name] = 0.0 if math.isnan(s) else 1 - abs(r - s) / 2
        else:
            joint[name] = 1 - tvd(views.joint(views.real, (a, b)), views.joint(made, (a, b)))
    return numbers, joint


def moments(views: Views, made: View) -> dict[str, float]:
    out = {}
    for j in views.numbers:
        real, other = (v.x[:, j][~np.isnan(v.x[:, j])] for v in (views.real, made))
        if len(real) < 2 or len(other) < 2 or real.std() == 0:
            continue
        sigma = real.std()
        skew = [float((((x - x.mean()) / (x.std() or 1)) ** 3).mean()) for x in (real, other)]
        out[views.names[j]] = float(
            np.mean(
                [
                    abs(other.mean() - real.mean()) / sigma,
                    abs(other.std() - sigma) / sigma,
                    min(1.0, abs(skew[0] - skew[1])),
                ]
            )
        )
    return out


def detection(views: Views, made: View, rng: np.random.Generator) -> float:
    """Cross-validated AUC of real against `made`, never below 0.5: a classifier that is worse than chance has
    found nothing.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import StratifiedKFold

    n = min(ROWS, views.real.rows, made.rows)
    if n < 6:
        return math.nan
    rows = np.concatenate([filled(v.x[rng.permutation(v.rows)[:n]]) for v in (views.real, made)])
    label = np.repeat([0, 1], n)
    score = np.empty(2 * n)
    for train, test in StratifiedKFold(3, shuffle=True, random_state=int(rng.integers(2**31))).split(
        rows, label
    ):
        model = HistGradientBoostingClassifier(max_iter=60, random_state=0).fit(rows[train], label[train])
        score[test] = model.predict_proba(rows[test])[:, 1]
    return max(0.5, area(score[n:], score[:n])[0])


def clusters(views: Views, made: View, rng: np.random.Generator) -> float:
    """Yan et al.: cluster real and synthetic rows together; in each cluster half should be synthetic."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    n = min(ROWS, views.real.rows, made.rows)
    points = np.concatenate([views.points(v)[rng.permutation(v.rows)[:n]] for v in (views.real, made)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer distinct points than clusters: those found are used
        flat = PCA(min(10, points.shape[1], len(points)), random_state=0).fit_transform(points)
        found = KMeans(min(CLUSTER_COUNT, 2 * n), n_init=2, random_state=0).fit_predict(flat)
    size = np.bincount(found)
    real = np.bincount(found[:n], minlength=len(size))
    return math.log(max(1e-12, float(np.mean((real[size > 0] / size[size > 0] - 0.5) ** 2))))


def quality(views: Views, made: View) -> tuple[float, list[dict[str, float]]]:
    """SDMetrics' score, and what it is made of: columns, pairs of numbers, other pairs."""
    columns = shapes(views, made)
    numbers, joint = trends(views, made)
    pairs = [*numbers.values(), *joint.values()]
    halves = [float(np.mean(list(columns.values()))), *([float(np.mean(pairs))] if pairs else [])]
    return float(np.mean(halves)), [columns, numbers, joint]


def measure(views: Views, rng: np.random.Generator) -> list[Score]:
    """All of it, each beside what the held-out real rows reach."""
    made, seed = views.synthetic, int(rng.integers(2**31))
    score, (columns, numbers, joint) = quality(views, made)
    natural, other = quality(views, views.holdout) if views.holdout else (None, None)
    listed = {n: v for n, v in columns.items() if views.at(n) in views.levels}
    plain = {n: v for n, v in columns.items() if n not in listed}
    found = [Score(QUALITY, score, natural)]
    for metric, parts, k in (
        (KS, plain, 0),
        (TV, listed, 0),
        (CORRELATION, numbers, 1),
        (CONTINGENCY, joint, 2),
    ):
        if parts:
            held = [v for n, v in other[k].items() if n in parts] if other else []
            found.append(
                Score(
                    metric,
                    float(np.mean(list(parts.values()))),
                    float(np.mean(held)) if held else None,
                    parts=parts,
                )
            )
    off = moments(views, made)
    if off:
        held = list(moments(views, views.holdout).values()) if views.holdout else []
        found.append(
            Score(
                MOMENTS, float(np.mean(list(off.values()))), float(np.mean(held)) if held else None, parts=off
            )
        )
    for metric, function in ((DETECTION, detection), (CLUSTERS, clusters)):
        value = function(views, made, np.random.default_rng(seed))
        found.append(
            Score(
                metric,
                value,
                function(views, views.holdout, np.random.default_rng(seed)) if views.holdout else None,
            )
        )
    return found
