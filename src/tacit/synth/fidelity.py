"""Fidelity: how similar the synthetic table is to the real one.

Columns, pairs of columns, and all columns at once. KS and TV complement, correlation and contingency
similarity and their mean are those of SDMetrics (MIT), computed here from their definitions, because the
package installs `copulas`, which is not free software. `benchmarks/sdmetrics_agree.py` compares the two: they
are equal except for pairs of a numeric and a discrete column, where SDMetrics bins the two tables at
different edges and we bin both at those of the real one. High fidelity is not sufficient: a copy of the real
table has the best. Read it with the copy rate and the membership AUC.
"""

from __future__ import annotations

import math
import warnings

import numpy as np

from .scores import Metric, MetricScore, auc_with_interval, tvd
from .views import View, Views, fill_missing

KS = Metric(
    "KS complement",
    "fidelity",
    "columns",
    0,
    1,
    "higher",
    "1 − Kolmogorov–Smirnov statistic, of numeric columns",
)
TV = Metric(
    "TV complement",
    "fidelity",
    "columns",
    0,
    1,
    "higher",
    "1 − total variation distance, of discrete columns",
)
MOMENTS = Metric(
    "moments",
    "fidelity",
    "columns",
    0,
    math.inf,
    "lower",
    "errors of mean, standard deviation and skewness of numbers, in real standard deviations",
)
CORRELATION = Metric(
    "correlation similarity",
    "fidelity",
    "pairs",
    0,
    1,
    "higher",
    "1 − half the difference of Pearson correlations, of two numeric columns",
)
CONTINGENCY = Metric(
    "contingency similarity",
    "fidelity",
    "pairs",
    0,
    1,
    "higher",
    "1 − total variation distance of the joint table of two columns, at least one discrete; numbers in ten "
    "bins",
)
QUALITY = Metric(
    "quality score",
    "fidelity",
    "columns and pairs",
    0,
    1,
    "higher",
    "mean of the columns' mean and the pairs' mean, as in SDMetrics; a copy of the real table scores highest",
)
DETECTION = Metric(
    "detection AUC",
    "fidelity",
    "all columns",
    0.5,
    1,
    "lower",
    "AUC of a gradient-boosted classifier of synthetic against real rows (3-fold); 0.5 is chance",
)
CLUSTERS = Metric(
    "latent clusters",
    "fidelity",
    "all columns",
    -math.inf,
    0,
    "lower",
    "log of the mean squared imbalance of real and synthetic rows over common clusters (Yan et al. 2022)",
)
ROWS = 5_000  # of each table, for classifiers and clustering
CLUSTER_COUNT = 20


def ks_complement(a: np.ndarray, b: np.ndarray) -> float:
    """Return 1 − the Kolmogorov–Smirnov statistic, without missing values.

    0 if a column is entirely missing in one table only.
    """
    a, b = np.sort(a[~np.isnan(a)]), np.sort(b[~np.isnan(b)])
    if not len(a) or not len(b):
        return float(len(a) == len(b))
    both = np.concatenate([a, b])
    return 1 - float(
        np.abs(np.searchsorted(a, both, "right") / len(a) - np.searchsorted(b, both, "right") / len(b)).max()
    )


def shapes(views: Views, synthetic: View) -> dict[str, float]:
    """Return the KS or TV complement of each column."""
    return {
        name: 1 - tvd(views.joint(views.real, (j,)), views.joint(synthetic, (j,)))
        if j in views.levels
        else ks_complement(views.real.x[:, j], synthetic.x[:, j])
        for j, name in enumerate(views.names)
    }


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Return Pearson's correlation of the complete pairs; NaN if it is undefined."""
    there = ~(np.isnan(x) | np.isnan(y))
    x, y = x[there], y[there]
    defined = len(x) > 1 and x.std() != 0 and y.std() != 0
    return float(np.corrcoef(x, y)[0, 1]) if defined else math.nan


def trends(views: Views, synthetic: View) -> tuple[dict[str, float], dict[str, float]]:
    """Return the similarities of numeric pairs (correlation) and other pairs (contingency).

    A pair without a correlation (a constant column) is left out.
    """
    numbers, joint = {}, {}
    for a, b in views.pairs():
        name = f"{views.names[a]} × {views.names[b]}"
        if views.columns[a].is_number and views.columns[b].is_number:
            r, s = (correlation(v.x[:, a], v.x[:, b]) for v in (views.real, synthetic))
            if not math.isnan(r):
                numbers[name] = 0.0 if math.isnan(s) else 1 - abs(r - s) / 2
        else:
            joint[name] = 1 - tvd(views.joint(views.real, (a, b)), views.joint(synthetic, (a, b)))
    return numbers, joint


def moments(views: Views, synthetic: View) -> dict[str, float]:
    """Return the mean error of mean, standard deviation and skewness of each numeric column."""
    out = {}
    for j in views.numbers:
        real, other = (v.x[:, j][~np.isnan(v.x[:, j])] for v in (views.real, synthetic))
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


def detection(views: Views, synthetic: View, rng: np.random.Generator) -> float:
    """Return the cross-validated AUC of real against synthetic rows, at least 0.5."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import StratifiedKFold

    n = min(ROWS, views.real.rows, synthetic.rows)
    if n < 6:
        return math.nan
    rows = np.concatenate([fill_missing(v.x[rng.permutation(v.rows)[:n]]) for v in (views.real, synthetic)])
    label = np.repeat([0, 1], n)
    score = np.empty(2 * n)
    for train, test in StratifiedKFold(3, shuffle=True, random_state=int(rng.integers(2**31))).split(
        rows, label
    ):
        model = HistGradientBoostingClassifier(max_iter=60, random_state=0).fit(rows[train], label[train])
        score[test] = model.predict_proba(rows[test])[:, 1]
    return max(0.5, auc_with_interval(score[n:], score[:n])[0])


def clusters(views: Views, synthetic: View, rng: np.random.Generator) -> float:
    """Return the imbalance of real and synthetic rows in common clusters (Yan et al.).

    Half of the rows of each cluster should be synthetic.
    """
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    n = min(ROWS, views.real.rows, synthetic.rows)
    points = np.concatenate([views.points(v)[rng.permutation(v.rows)[:n]] for v in (views.real, synthetic)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there may be fewer distinct points than clusters
        flat = PCA(min(10, points.shape[1], len(points)), random_state=0).fit_transform(points)
        labels = KMeans(min(CLUSTER_COUNT, 2 * n), n_init=2, random_state=0).fit_predict(flat)
    size = np.bincount(labels)
    real = np.bincount(labels[:n], minlength=len(size))
    return math.log(max(1e-12, float(np.mean((real[size > 0] / size[size > 0] - 0.5) ** 2))))


def quality(views: Views, synthetic: View) -> tuple[float, list[dict[str, float]]]:
    """Return SDMetrics' score and its parts: columns, numeric pairs, other pairs."""
    columns = shapes(views, synthetic)
    numbers, joint = trends(views, synthetic)
    pairs = [*numbers.values(), *joint.values()]
    halves = [float(np.mean(list(columns.values()))), *([float(np.mean(pairs))] if pairs else [])]
    return float(np.mean(halves)), [columns, numbers, joint]


def measure(views: Views, rng: np.random.Generator) -> list[MetricScore]:
    """Return all scores, with those of the held-out rows as reference."""
    synthetic, seed = views.synthetic, int(rng.integers(2**31))
    score, (columns, numbers, joint) = quality(views, synthetic)
    natural, other = quality(views, views.holdout) if views.holdout else (None, [{}, {}, {}])
    discrete = {n: v for n, v in columns.items() if views.column_index(n) in views.levels}
    numeric = {n: v for n, v in columns.items() if n not in discrete}
    scores = [MetricScore(QUALITY, score, natural)]
    for metric, parts, reference in (
        (KS, numeric, other[0]),
        (TV, discrete, other[0]),
        (CORRELATION, numbers, other[1]),
        (CONTINGENCY, joint, other[2]),
        (MOMENTS, moments(views, synthetic), moments(views, views.holdout) if views.holdout else {}),
    ):
        if parts:
            # errors of moments are compared over all columns of each table
            values = [v for n, v in reference.items() if n in parts or metric is MOMENTS]
            mean = float(np.mean(list(parts.values())))
            scores.append(MetricScore(metric, mean, float(np.mean(values)) if values else None, parts=parts))
    for metric, function in ((DETECTION, detection), (CLUSTERS, clusters)):
        value = function(views, synthetic, np.random.default_rng(seed))
        natural = function(views, views.holdout, np.random.default_rng(seed)) if views.holdout else None
        scores.append(MetricScore(metric, value, natural))
    return scores
