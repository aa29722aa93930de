"""Privacy: what synthetic rows reveal about the training rows beyond the population.

Every attack runs twice: on training rows, and on held-out rows that the generator never saw. Success on both
is knowledge about the population; the difference is the leak. The attacker has the synthetic table only.
Failing attacks are no proof: a guarantee needs differential privacy (MST, AIM).

    copies        exact, near, and the ratios of distances to the nearest rows
    membership    Stadler et al. 2022; van Breugel et al. 2023 (DOMIAS); Yale et al. 2020 (adversarial
                  accuracy)
    attributes    Yan et al. 2022; meaningful identity disclosure after El Emam et al. 2020
    guidance      singling out (`singling.py`), linkability, inference: the three risks of the data-protection
                  guidance (WP 216), as defined by Giomi et al. 2023; own implementation
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import singling
from .scores import Metric, MetricScore, auc_with_interval, excess_risk, wilson_interval
from .views import View, Views, nearest_rows, nearest_rows_without

COPIES = Metric(
    "exact copies",
    "privacy",
    "copies",
    0,
    1,
    "lower",
    "share of synthetic rows that equal a training row in every column",
)
NEAR = Metric(
    "near copies",
    "privacy",
    "copies",
    0,
    1,
    "lower",
    "share of synthetic rows closer to a training row than the closest 5% of held-out rows",
)
RATIO = Metric(
    "distance ratio",
    "privacy",
    "copies",
    0,
    1,
    "higher",
    "median ratio of the distances to the nearest and second-nearest training row; 0 for a copy",
)
CLOSER = Metric(
    "nearer to training",
    "privacy",
    "copies",
    0,
    1,
    "lower",
    "share of synthetic rows closer to training rows than to equally many held-out rows; 0.5 is chance",
)
MEMBERSHIP = Metric(
    "membership AUC",
    "privacy",
    "membership",
    0,
    1,
    "lower",
    "AUC of the distance to the nearest synthetic row, for training against held-out rows; 0.5 is chance",
)
DENSITY = Metric(
    "membership AUC (calibrated)",
    "privacy",
    "membership",
    0,
    1,
    "lower",
    "the same for an attacker who also has rows of the population, relative to the distance to those",
)
LOSS = Metric(
    "adversarial accuracy loss",
    "privacy",
    "membership",
    -1,
    1,
    "lower",
    "nearest-neighbor accuracy of synthetic against held-out rows, minus that against training rows",
)
ATTRIBUTE = Metric(
    "attribute inference",
    "privacy",
    "attributes",
    0,
    1,
    "lower",
    "share of training rows whose hidden value equals that of the synthetic row nearest in the key columns",
)
DISCLOSURE = Metric(
    "identity disclosure",
    "privacy",
    "attributes",
    0,
    1,
    "lower",
    "expected share of people matched on the key columns for whom the match reveals a correct and unusual "
    "value",
)
LINKING = Metric(
    "linkability risk",
    "privacy",
    "guidance",
    0,
    1,
    "lower",
    "excess success rate of linking two halves of a row through the synthetic table",
)
INFERENCE = Metric(
    "inference risk",
    "privacy",
    "guidance",
    0,
    1,
    "lower",
    "excess success rate of inferring a column from all others through the synthetic table",
)

QUERIES = 2_000  # attacked rows; the intervals are then a few percent wide
WITHIN = 0.05  # an inferred number is correct within this share of its range
# a category is unusual up to this share of people; a number, if it is far from the median
UNUSUAL = 0.5


class AttackSetup:
    """Equally many training and held-out rows, so that no attack gains from the larger table."""

    def __init__(self, views: Views, keys: list[int], rng: np.random.Generator):
        assert views.holdout is not None
        self.views, self.rng, self.keys = views, rng, keys
        n = min(QUERIES, views.real.rows, views.holdout.rows)
        self.train, self.unseen = views.real.subsample(rng, n), views.holdout.subsample(rng, n)
        self.synthetic = views.synthetic
        self.hidden = [j for j in range(len(views.columns)) if j not in keys]


def measure(views: Views, keys: list[int], rng: np.random.Generator) -> list[MetricScore]:
    """Run all attacks; `keys` are the columns the attacker knows."""
    s = AttackSetup(views, keys, rng)
    return [
        *copy_scores(s),
        *membership(s),
        *attributes(s),
        *singling.measure(views, rng),
        linkability(s),
        inference(s),
    ]


def copy_share(views: Views, view: View) -> float:
    """Return the share of rows that occur in the real table, equal in all columns."""
    return float(np.isin(views.keys(view), views.keys(views.real)).mean())


def exact_copies(views: Views) -> MetricScore:
    """Return the rate of exact copies, with that of held-out rows as reference."""
    share = copy_share(views, views.synthetic)
    unseen = copy_share(views, views.holdout) if views.holdout else None
    _, low, high = wilson_interval(share * views.synthetic.rows, views.synthetic.rows)
    return MetricScore(COPIES, share, unseen, (low, high))


def copy_scores(s: AttackSetup) -> list[MetricScore]:
    """Return the rates of exact and near copies and the distance ratios."""
    views, rng = s.views, s.rng
    assert views.holdout is not None
    points = views.points(s.synthetic.subsample(rng, QUERIES))
    near, far = (nearest_rows(x, views.points(views.real), 2)[0] for x in (points, views.points(s.unseen)))
    bound = float(np.quantile(far[:, 0], 0.05))
    close, natural = ((d[:, 0] < bound) | ((d[:, 0] == 0) & (bound == 0)) for d in (near, far))
    _, low, high = wilson_interval(close.sum(), len(close))
    ratio, usual = (
        float(np.median(np.where(d[:, 1] > 0, d[:, 0] / np.where(d[:, 1] > 0, d[:, 1], 1), 1.0)))
        for d in (near, far)
    )
    # equally many rows of both: a larger table is closer to everything
    n = min(views.real.rows, views.holdout.rows)
    real, held_out = (
        _distance(points, views.points(v.subsample(rng, n))) for v in (views.real, views.holdout)
    )
    wins = float((real < held_out).sum() + 0.5 * (real == held_out).sum())
    return [
        exact_copies(views),
        MetricScore(NEAR, float(close.mean()), float(natural.mean()), (low, high)),
        MetricScore(RATIO, ratio, usual),
        MetricScore(CLOSER, wins / len(points), 0.5),
    ]


def membership(s: AttackSetup) -> list[MetricScore]:
    """Return the scores of the membership attacks."""
    rng = s.rng
    synthetic, train, unseen = (s.views.points(v) for v in (s.synthetic, s.train, s.unseen))
    auc, low, high = auc_with_interval(-_distance(train, synthetic), -_distance(unseen, synthetic))
    scores = [MetricScore(MEMBERSHIP, auc, 0.5, (low, high))]
    half = len(unseen) // 2
    if half >= 2:
        # DOMIAS: the attacker's own sample of the population calibrates the distances
        order = rng.permutation(len(unseen))
        own, others = unseen[order[:half]], unseen[order[half:]]
        inside, outside = (
            np.log(_distance(x, own) + 1e-6) - np.log(_distance(x, synthetic) + 1e-6)
            for x in (train[:half], others)
        )
        auc, low, high = auc_with_interval(inside, outside)
        scores.append(MetricScore(DENSITY, auc, 0.5, (low, high)))
    n = min(len(train), len(synthetic))
    some = synthetic[rng.permutation(len(synthetic))[:n]]
    return [*scores, MetricScore(LOSS, _adversarial(unseen[:n], some) - _adversarial(train[:n], some), 0.0)]


def _distance(query: np.ndarray, base: np.ndarray, skip_self: bool = False) -> np.ndarray:
    """Return the distance of each query to the nearest row of `base`."""
    return np.asarray(nearest_rows(query, base, 1, skip_self)[0][:, 0])


def _adversarial(real: np.ndarray, synthetic: np.ndarray) -> float:
    """Return the nearest-neighbor adversarial accuracy (Yale et al. 2020).

    The share of rows whose nearest neighbor is in their own table: 0.5 for indistinguishable tables, 0 for
    copies.
    """
    shares = (
        (_distance(mine, other) > _distance(mine, mine, skip_self=True)).mean()
        for mine, other in ((real, synthetic), (synthetic, real))
    )
    return 0.5 * float(sum(shares))


def _is_correct(views: Views, j: int, guess: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return which inferred values are correct: equal, or within `WITHIN` of the range."""
    low, high = views.ends[j]
    near = np.abs(guess - truth) <= (0 if j in views.levels else WITHIN * (high - low))
    return np.asarray(near | (np.isnan(guess) & np.isnan(truth)))


def attributes(s: AttackSetup) -> list[MetricScore]:
    """Return the attribute scores.

    The attacker knows a person's key columns and looks up the synthetic row nearest in them.
    """
    views = s.views
    if not s.hidden or not s.keys:
        return []
    synthetic = views.points(s.synthetic, s.keys)
    hits: dict[str, list[float]] = {views.names[j]: [] for j in s.hidden}
    for view in (s.train, s.unseen):
        where = nearest_rows(views.points(view, s.keys), synthetic, 1)[1][:, 0]
        for j in s.hidden:
            hits[views.names[j]].append(
                float(_is_correct(views, j, s.synthetic.x[where, j], view.x[:, j]).mean())
            )
    value, unseen = (float(np.mean([h[k] for h in hits.values()])) for k in (0, 1))
    return [
        MetricScore(
            ATTRIBUTE,
            value,
            unseen,
            parts={n: h[0] for n, h in hits.items()},
            note=f"keys: {', '.join(views.names[j] for j in s.keys)}",
        ),
        disclosure(s),
    ]


def disclosure(s: AttackSetup) -> MetricScore:
    """Return Σ over people of 1/f · I · R, divided by their number.

    f people share the key cells; I: a synthetic row has them too; R: a hidden value of that row is correct
    and unusual. The table is taken as the population and every match as verifiable, which can only overstate
    the risk.
    """
    views = s.views

    def risk(view: View) -> float:
        mine, other = (np.stack([views.cells(v, j)[0] for j in s.keys], axis=1) for v in (view, s.synthetic))
        groups, member, size = np.unique(mine, axis=0, return_inverse=True, return_counts=True)
        first = {row.tobytes(): i for i, row in reversed(list(enumerate(other)))}
        match = np.array([first.get(row.tobytes(), -1) for row in groups])[member]
        disclosed = np.zeros(view.rows, bool)
        for j in s.hidden:
            disclosed |= _is_correct(views, j, s.synthetic.x[match, j], view.x[:, j]) & _unusual(
                views, j, view.x[:, j]
            )
        return float(((match >= 0) & disclosed).astype(float) @ (1 / size[member]) / view.rows)

    return MetricScore(DISCLOSURE, risk(s.train), risk(s.unseen))


def _unusual(views: Views, j: int, x: np.ndarray) -> np.ndarray:
    """Return which values are rare (categories) or far from the median (numbers)."""
    real = views.real.x[:, j]
    if j in views.levels:
        share = np.bincount(real.astype(np.int64), minlength=len(views.levels[j])) / len(real)
        return np.asarray(share[x.astype(np.int64)] <= UNUSUAL)
    if np.isnan(real).all():
        return np.zeros(len(x), bool)
    middle = np.nanmedian(real)
    # beyond one robust standard deviation
    return np.asarray(np.abs(x - middle) > 1.4826 * np.nanmedian(np.abs(real - middle)))


def _risk_score(metric: Metric, hits: np.ndarray, n: int, **more: Any) -> MetricScore:
    """Return the excess of hits on training rows over those on unseen rows, of `n` each."""
    value, low, high = excess_risk(*(wilson_interval(k, n) for k in hits))
    return MetricScore(metric, value, 0.0, (low, high), **more)


def linkability(s: AttackSetup) -> MetricScore:
    """Return the linkability risk.

    Two attackers know one half of a person's columns each; success: both halves are nearest to the same
    synthetic row.
    """
    views = s.views
    order = s.rng.permutation(len(views.columns))
    halves = [sorted(int(j) for j in order[k::2]) for k in (0, 1)]
    if not halves[1]:
        return MetricScore(LINKING, 0.0, 0.0, note="a single column cannot be split")
    hits = np.zeros(2)
    for k, view in enumerate((s.train, s.unseen)):
        first, second = (
            nearest_rows(views.points(view, h), views.points(s.synthetic, h), 1)[1][:, 0] for h in halves
        )
        hits[k] = (first == second).sum()
    return _risk_score(LINKING, hits, s.train.rows)


def inference(s: AttackSetup) -> MetricScore:
    """Return the inference risk.

    Each column is inferred from all others by the nearest synthetic row.
    """
    views, d = s.views, len(s.views.columns)
    if d < 2:
        return MetricScore(INFERENCE, 0.0, 0.0, note="there are no other columns to infer from")
    hits = np.zeros((d, 2))
    for k, view in enumerate((s.train, s.unseen)):
        for j, where in nearest_rows_without(views, view, s.synthetic):
            hits[j, k] = _is_correct(views, j, s.synthetic.x[where, j], view.x[:, j]).sum()
    n = s.train.rows
    parts = {views.names[j]: _risk_score(INFERENCE, hits[j], n).value for j in range(d)}
    # inferences about one row are dependent: the interval counts rows
    return _risk_score(INFERENCE, hits.sum(axis=0) / d, n, parts=parts)
