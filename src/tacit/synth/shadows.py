"""Membership by shadow models: does a sample show whose rows a generator was fitted to?

T. Stadler, B. Oprisanu, C. Troncoso: *Synthetic Data – Anonymisation Groundhog Day*, USENIX Security 2022;
counts of rows that agree in a few columns after M. Meeus, F. Guépin, A.-M. Crețu, Y.-A. de Montjoye:
*Achilles' Heels: Vulnerable Record Identification in Synthetic Data Publishing*, 2023; each record's own
calibration after N. Carlini et al.: *Membership Inference Attacks From First Principles*, S&P 2022.

The attacker knows the generator with its parameters, and everyone who may be in the training table.

1. Training and held-out people are pooled. Generators are fitted to random halves of them and the
   complementary halves, so that everyone is in half of the fits.
2. For every record and every fit, the record is compared with the synthetic rows: distances to the nearest
   ones, and how many agree with it in two, three and four random columns.
3. What is unusual for this record is what differs from the fits without it and is like the fits with it. A
   logistic regression learns from other fits how to weigh this, and is tried on one fit after the other,
   and on the table that is to be released. A fit and its complement are left out together: everyone is then
   in half of the others, and nothing but the synthetic rows tells whether they were in this one.

The fits are smaller than the real one, and a smaller table is easier to attack: the figure is cautious.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ..errors import BadData
from ..parameters import bad
from ..people import encode_person
from .generator import Generator
from .scores import Metric, MetricScore, auc_with_interval
from .views import View, Views, nearest_rows

SHADOW = Metric(
    "membership AUC (shadow fits)",
    "privacy",
    "membership",
    0,
    1,
    "lower",
    "AUC of an attacker who knows the generator and fits it to samples of all candidates; 0.5 is chance",
)
EXPOSED = Metric(
    "membership AUC (outliers)",
    "privacy",
    "membership",
    0,
    1,
    "lower",
    "the same for the 5% of the rows that are farthest from others",
)
RELEASED = Metric(
    "membership AUC (this table)",
    "privacy",
    "membership",
    0,
    1,
    "lower",
    "the same attack on the table to be released, for training against held-out rows",
)
SHADOWS = 8  # fits; everyone is in four of them
LEAST_POOL = 80  # rows of training and held-out people: a half must be above twice the floor of 10
MOST_ROWS = 5_000  # of one fit, so that the attack takes about as long as a few fits
QUERIES = 20  # random sets of each number of columns
WIDTHS = (2, 3, 4)  # columns of a query
NEIGHBORS = 5
CELLS = 20  # quantile cells of a number in a query
OUTLIERS = 0.05  # share of the rows that count as outliers
T_975 = {3: 3.182, 5: 2.571, 7: 2.365, 9: 2.262, 11: 2.201, 13: 2.160, 15: 2.131}  # quantiles of Student's t


@dataclass(frozen=True)
class Shadow:
    """One fit: which records were in its training table, and how each record looks beside its sample."""

    members: np.ndarray  # booleans [records]
    features: np.ndarray  # [records, features]


def check_shadows(shadows: Any, owner: str) -> int:
    """Return the number of shadow fits, or raise."""
    if isinstance(shadows, bool) or not isinstance(shadows, int) or not 6 <= shadows <= 64 or shadows % 2:
        raise bad(owner, "shadows", shadows, "an even number from 6 to 64")
    return shadows


def attack_with_shadows(
    generator: Generator,
    real: pd.DataFrame,
    synthetic: pd.DataFrame,
    holdout: pd.DataFrame,
    *,
    shadows: int = SHADOWS,
    seed: int = 0,
    watch: Callable[[dict[str, Any]], None] | None = None,
    **options: Any,
) -> list[MetricScore]:
    """Return the scores of the attack on a fitted generator and the table sampled from it.

    `real` is the table it was fitted to, `options` are those of its `fit`: table, floor, person, protect and
    dependencies.
    """
    check_shadows(shadows, "attack_with_shadows")
    rng = np.random.default_rng([seed, 7])
    person = options.get("person")
    pool = pd.concat([real, holdout], ignore_index=True)
    was_member = np.arange(len(pool)) < len(real)
    whose = np.arange(len(pool)) if person is None else encode_person(pool, person, [], "attack_with_shadows")
    number = int(whose.max()) + 1
    if number < LEAST_POOL:
        raise BadData(
            f"the table has {number} {'rows' if person is None else 'people'} with the held-out ones; shadow "
            f"fits need at least {LEAST_POOL}, so nothing can show that a release is safe. Give more rows."
        )
    is_capped = len(pool) > 2 * MOST_ROWS
    if is_capped:  # by people, so that nobody's rows are in both halves
        chosen = rng.permutation(number)[: max(LEAST_POOL, number * 2 * MOST_ROWS // len(pool))]
        kept = np.isin(whose, chosen)
        pool, was_member = pool[kept].reset_index(drop=True), was_member[kept]
        whose = np.unique(whose[kept], return_inverse=True)[1].reshape(-1)
        number = int(whose.max()) + 1
    frame = pool if person is None else pool.drop(columns=person)
    table = generator.table
    views = Views(frame, synthetic, None, table)
    subsets = _draw_subsets(len(views.columns), rng)
    fits: list[Shadow] = []
    for k in range(shadows):
        if k % 2 == 0:
            first = np.isin(whose, rng.permutation(number)[: number // 2])
        members = first if k % 2 == 0 else ~first
        part = pool[members].reset_index(drop=True)
        made = _refit(generator, seed + k).fit(part, **options).sample(len(part), seed=seed + k)
        fits.append(Shadow(members, _describe(views, Views(frame, made, None, table), subsets)))
        if watch is not None:
            watch({"kind": "shadow", "shadow": k + 1, "shadows": shadows})
    rows = _rows_to_judge(whose, rng)
    isolated = _isolated(views)
    aucs: list[float] = []
    exposed: list[float] = []
    for k, fit in enumerate(fits):
        score = _score(_leave_out(fits, k), fit.features)
        for found, at in ((aucs, rows), (exposed, rows[isolated[rows]])):
            inside, outside = (at[fit.members[at] == m] for m in (True, False))
            if len(inside) and len(outside):
                found.append(auc_with_interval(score[inside], score[outside])[0])
    note = f"{shadows} fits to {len(pool) // 2:,} rows"
    scores = [_mean_score(SHADOW, aucs, note), _mean_score(EXPOSED, exposed, note)]
    if not is_capped:  # otherwise the table is from a far larger fit than those that the attack has learned
        score = _score(fits, _describe(views, views, subsets))
        inside, outside = (rows[was_member[rows] == m] for m in (True, False))
        value, low, high = auc_with_interval(score[inside], score[outside])
        scores.append(MetricScore(RELEASED, value, 0.5, (low, high)))
    return [s for s in scores if math.isfinite(s.value)]


def _refit(generator: Generator, seed: int) -> Generator:
    """Return an unfitted generator with the same parameters, and another seed unless it is private."""
    fresh: Any = replace(generator) if generator.private else replace(generator, seed=seed)  # type: ignore[type-var]
    return fresh  # type: ignore[no-any-return]


def _rows_to_judge(whose: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return one row of each person, so that intervals count people."""
    order = rng.permutation(len(whose))
    return np.sort(order[np.unique(whose[order], return_index=True)[1]])


def _mean_score(metric: Metric, values: list[float], note: str) -> MetricScore:
    """Return the mean over fits, with Student's interval."""
    if len(values) < 4:
        return MetricScore(metric, math.nan)
    mean = float(np.mean(values))
    half = T_975.get(len(values) - 1, 2.1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return MetricScore(metric, mean, 0.5, (max(0.0, mean - half), min(1.0, mean + half)), note=note)


def _draw_subsets(columns: int, rng: np.random.Generator) -> list[list[tuple[int, ...]]]:
    """Return the sets of columns of the queries, by width."""
    widths = sorted({min(w, columns) for w in WIDTHS})
    return [
        sorted({tuple(sorted(rng.permutation(columns)[:w].tolist())) for _ in range(QUERIES)}) for w in widths
    ]


def _describe(records: Views, made: Views, subsets: list[list[tuple[int, ...]]]) -> np.ndarray:
    """Return how every record of `records.real` looks beside the synthetic rows of `made`."""
    base = made.points(made.synthetic)
    query = made.points(made.real)
    distance = nearest_rows(query, base, min(NEIGHBORS, len(base)))[0]
    features = [-np.log(distance[:, 0] + 1e-6), -np.log(distance.mean(axis=1) + 1e-6)]
    cells = [_pair_cells(made.real, made.synthetic, j, made) for j in range(len(made.columns))]
    for group in subsets:
        features.append(np.mean([_count_agreeing(cells, columns) for columns in group], axis=0))
    return np.column_stack(features)


def _pair_cells(real: View, synthetic: View, j: int, views: Views) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the codes of a column in both tables, and their number; numbers by quantiles of the real one."""
    a, b = real.x[:, j], synthetic.x[:, j]
    if j in views.levels:
        return a.astype(np.int64), b.astype(np.int64), len(views.levels[j])
    present = a[~np.isnan(a)]
    edges = np.unique(np.quantile(present, np.arange(1, CELLS) / CELLS)) if len(present) else np.empty(0)
    codes = [np.where(np.isnan(x), len(edges) + 1, np.searchsorted(edges, x)) for x in (a, b)]
    return codes[0], codes[1], len(edges) + 2


def _count_agreeing(cells: list[tuple[np.ndarray, np.ndarray, int]], columns: tuple[int, ...]) -> np.ndarray:
    """Return log(1 + the synthetic rows that agree with a record in these columns)."""
    real, made = np.zeros_like(cells[0][0]), np.zeros_like(cells[0][1])
    for j in columns:
        mine, others, size = cells[j]
        real, made = real * size + mine, made * size + others
    values, counts = np.unique(made, return_counts=True)
    at = np.minimum(np.searchsorted(values, real), len(values) - 1)
    return np.log1p(np.where(values[at] == real, counts[at], 0))


def _leave_out(fits: list[Shadow], k: int) -> list[Shadow]:
    """Return the fits without the k-th one and its complement."""
    return [f for j, f in enumerate(fits) if j // 2 != k // 2]


def _calibrate(fits: list[Shadow], features: np.ndarray) -> np.ndarray:
    """Return each record's features relative to the fits with it and without it."""
    stack = np.stack([f.features for f in fits])
    inside = np.stack([f.members for f in fits])[:, :, None]
    with_it, without = ((stack * m).sum(axis=0) / np.maximum(m.sum(axis=0), 1) for m in (inside, ~inside))
    spread = features.std(axis=0) + 1e-9
    excess = (features - without) / spread
    gain = (with_it - without) / spread
    return np.column_stack([excess, gain * (excess - gain / 2)])  # the second part: the likelihood ratio


def _score(fits: list[Shadow], features: np.ndarray) -> np.ndarray:
    """Learn the attack from some fits, and return its score for every record beside another sample."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    parts, labels = [], []
    for k, fit in enumerate(fits):
        parts.append(_calibrate(_leave_out(fits, k), fit.features))
        labels.append(fit.members)
    scale = StandardScaler().fit(np.concatenate(parts))
    model = LogisticRegression(max_iter=500).fit(
        np.clip(scale.transform(np.concatenate(parts)), -10, 10), np.concatenate(labels)
    )
    mine = np.clip(scale.transform(_calibrate(fits, features)), -10, 10)
    return np.asarray(mine @ model.coef_[0])


def _isolated(views: Views) -> np.ndarray:
    """Return which records are the 5% that are farthest from their nearest neighbors."""
    points = views.points(views.real)
    distance = nearest_rows(points, points, min(NEIGHBORS, len(points) - 1), skip_self=True)[0][:, -1]
    order = np.argsort(-distance, kind="stable")
    out = np.zeros(len(points), dtype=bool)
    out[order[: max(1, round(OUTLIERS * len(points)))]] = True
    return out
