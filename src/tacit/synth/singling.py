"""Singling out: predicates that hold for one synthetic row, and how many hold for one real person.

M. Giomi, F. Boenisch, C. Wehmeyer, B. Tasnádi: *A Unified Framework for Quantifying Privacy Risk in Synthetic
Data*, PETS 2023, with the attacks of their program Anonymeter (own implementation; agreement:
`benchmarks/anonymeter_agree.py`). The attacker has the whole synthetic table and writes predicates in two
ways:

    one column        the only missing value, the smallest and the largest number, every value of one row
    three columns     the cells of a random row: equal for categories, and for numbers at least as far from
                      the median

A predicate succeeds if it holds for exactly one person of the whole training table. The same predicates are
tried on the holdout: that success is knowledge about the population. If the holdout is smaller than the
training table, its success is extrapolated to that size, because a predicate that holds for a share w of the
population holds for exactly one of n people with probability n w (1 − w)^(n − 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .constraints import row_keys
from .scores import Metric, MetricScore, excess_risk, wilson_interval
from .views import View, Views

SINGLING = Metric(
    "singling-out risk",
    "privacy",
    "guidance",
    0,
    1,
    "lower",
    "excess success rate of predicates over three columns that hold for one synthetic row only",
)
UNIVARIATE = Metric(
    "singling-out risk (one column)",
    "privacy",
    "guidance",
    0,
    1,
    "lower",
    "the same for extreme, missing and unique values of one column",
)
PREDICATES = 500  # of each attack; the intervals are then a few percent wide
COLUMNS = 3  # of a predicate, as in Anonymeter
WORK = 2e9  # cells compared to find predicates, about ten seconds
FEWEST_TRIES, MOST_TRIES = 2_000, 20_000
SIZES, REPEATS = 10, 5  # samples of the holdout to which the extrapolation is fitted
# shares of the population up to which predicates hold that are tried in the fit
WEIGHTS = np.geomspace(1e-7, 1, 141)

Condition = tuple[int, str, float]  # column, one of = ≤ ≥ ∅, value
Predicate = tuple[Condition, ...]


@dataclass(frozen=True)
class PeopleTable:
    """A table by column, the person of each row, and the number of people.

    If every row is a person, equal rows count once: no predicate tells them apart.
    """

    columns: list[np.ndarray]
    person: np.ndarray
    people: int

    @classmethod
    def from_view(cls, view: View) -> PeopleTable:
        x, person = view.x, view.person
        if person is None:
            keys = row_keys(np.where(np.isnan(x), np.inf, x) + 0.0)
            x = x[np.sort(np.unique(keys, return_index=True)[1])]
            person = np.arange(len(x))
        return cls([np.ascontiguousarray(c) for c in x.T], person, int(person.max(initial=-1)) + 1)

    @property
    def rows(self) -> int:
        return len(self.person)

    def find(self, predicate: Predicate) -> np.ndarray:
        """Return the people for whom a predicate holds."""
        rows: np.ndarray | None = None
        for j, operator, value in predicate:
            column = self.columns[j] if rows is None else self.columns[j][rows]
            inside = np.flatnonzero(COMPARE[operator](column, value))
            rows = inside if rows is None else rows[inside]
            if not len(rows):
                break
        return np.unique(self.person[rows])

    def row(self, i: int) -> list[float]:
        return [float(c[i]) for c in self.columns]


COMPARE: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "=": lambda x, v: x == v,
    "≤": lambda x, v: x <= v,
    "≥": lambda x, v: x >= v,
    "∅": lambda x, v: np.isnan(x),
}


def measure(views: Views, rng: np.random.Generator) -> list[MetricScore]:
    """Run both attacks on whole tables."""
    assert views.holdout is not None
    attacker, train, control = (
        PeopleTable.from_view(v) for v in (View("synthetic", views.synthetic.x), views.real, views.holdout)
    )
    three = multivariate(attacker, views, rng)
    one = univariate(attacker, views, rng)
    return [
        _score(SINGLING, three, train, control, rng, views),
        _score(UNIVARIATE, one, train, control, rng, views),
    ]


def univariate(table: PeopleTable, views: Views, rng: np.random.Generator) -> list[Predicate]:
    """Return predicates on one column that hold for one row, in random order."""
    found: dict[Predicate, None] = {}
    for j, x in enumerate(table.columns):
        number = j not in views.levels
        present = x[~np.isnan(x)]
        if len(x) - len(present) == 1:
            found[((j, "∅", 0.0),)] = None
        values, counts = np.unique(present, return_counts=True)
        if number and len(values):
            for end, operator, rows in ((0, "≤", counts[0]), (-1, "≥", counts[-1])):
                if rows == 1:
                    found[((j, operator, float(values[end])),)] = None
        for value in values[counts == 1]:
            found[((j, "=", float(value)),)] = None
    order = rng.permutation(len(found))[:PREDICATES]
    everything = list(found)
    return [everything[i] for i in order]


def multivariate(table: PeopleTable, views: Views, rng: np.random.Generator) -> list[Predicate]:
    """Return predicates from the cells of random rows that hold for one row."""
    d = len(table.columns)
    middle = [
        float(np.nanmedian(x)) if j not in views.levels and not np.isnan(x).all() else 0.0
        for j, x in enumerate(table.columns)
    ]
    found: dict[Predicate, None] = {}
    width = min(COLUMNS, d)
    for _ in range(int(np.clip(WORK / max(table.rows * width, 1), FEWEST_TRIES, MOST_TRIES))):
        row = table.row(int(rng.integers(table.rows)))
        predicate: Predicate = tuple(
            (
                (j, "∅", 0.0)
                if np.isnan(row[j])
                else (j, "=", row[j])
                if j in views.levels
                else (j, "≥" if row[j] > middle[j] else "≤", row[j])
            )
            for j in sorted(rng.choice(d, width, replace=False).tolist())
        )
        if predicate not in found and len(table.find(predicate)) == 1:
            found[predicate] = None
            if len(found) >= PREDICATES:
                break
    return list(found)


def _score(
    metric: Metric,
    predicates: Sequence[Predicate],
    train: PeopleTable,
    control: PeopleTable,
    rng: np.random.Generator,
    views: Views,
) -> MetricScore:
    if not predicates:
        return MetricScore(metric, 0.0, 0.0, (0.0, 1.0), note="no predicate singles out a synthetic row")
    n = len(predicates)
    hit = np.array([len(train.find(p)) == 1 for p in predicates])
    matches = [control.find(p) for p in predicates]
    expected = extrapolate(matches, control.people, train.people, rng)
    center, low, high = wilson_interval(expected, n)
    if train.people > control.people:
        ends = extrapolated_interval(matches, control.people, train.people, rng)
        low, high = min(low, ends[0] / n), max(high, ends[1] / n)
    value, low, high = excess_risk(wilson_interval(int(hit.sum()), n), (center, low, high))
    parts = {}
    if metric is UNIVARIATE:
        names = np.array([views.names[p[0][0]] for p in predicates])
        parts = {str(name): float(hit[names == name].mean()) for name in dict.fromkeys(names.tolist())}
    note = f"{n} predicates: {hit.mean():.1%} single out a training row, {expected / n:.1%} a held-out one"
    return MetricScore(metric, value, 0.0, (low, high), parts=parts, note=note)


def extrapolate(matches: Sequence[np.ndarray], people: int, wanted: int, rng: np.random.Generator) -> float:
    """Return how many predicates would hold for exactly one of `wanted` people of the population.

    `matches` are the people of the holdout, of `people`, for whom each predicate holds. If their numbers
    differ, the model c ∫₀^w n v (1 − v)^(n−1) dv of Giomi et al., with the weights v of the predicates spread
    evenly up to w, is fitted to samples of the holdout, and the count is scaled by it.
    """
    count = float(sum(len(m) == 1 for m in matches))
    if wanted == people or not count:
        return count
    if wanted < people:  # a holdout larger than the table: its samples tell without a model
        draws = [_count_single(matches, people, wanted, rng) for _ in range(2 * SIZES)]
        return float(np.mean(draws))
    error, factor = _fit_weights(matches, people, wanted, rng)
    return float(min(len(matches), count * factor[error.argmin()]))


def extrapolated_interval(
    matches: Sequence[np.ndarray], people: int, wanted: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the 95% interval of `extrapolate` to more people than the holdout has.

    Predicates that hold for the same person depend on each other, so people are counted; and a small holdout
    is compatible with several weights, which differ in how fast single matches grow.
    """
    single = np.array([m[0] for m in matches if len(m) == 1], dtype=np.int64)
    variance = float((np.bincount(single) ** 2).sum()) if len(single) else 1.0
    error, factor = _fit_weights(matches, people, wanted, rng)
    factor = factor[error <= error.min() + 4 * variance]
    half = 2 * np.sqrt(variance)
    low, high = max(0.0, len(single) - half) * factor.min(), (len(single) + half) * factor.max()
    return float(low), float(min(len(matches), high))


def _fit_weights(
    matches: Sequence[np.ndarray], people: int, wanted: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the squared error of each of `WEIGHTS` on samples of the holdout, and how it scales counts."""
    sizes = np.unique(np.linspace(max(1, people // SIZES), people, SIZES).astype(int))
    seen = np.mean([[_count_single(matches, people, int(n), rng) for n in sizes] for _ in range(REPEATS)], 0)
    curves = np.array([_single_probability(sizes, w) for w in WEIGHTS])
    scale = (curves @ seen) / np.maximum((curves**2).sum(axis=1), 1e-300)
    error = ((scale[:, None] * curves - seen) ** 2).sum(axis=1)
    small, large = np.array([_single_probability(np.array([people, wanted]), w) for w in WEIGHTS]).T
    return error, large / np.maximum(small, 1e-300)


def _count_single(matches: Sequence[np.ndarray], people: int, n: int, rng: np.random.Generator) -> int:
    """How many predicates hold for exactly one of n people, drawn at random from all."""
    inside = np.zeros(people, bool)
    inside[rng.permutation(people)[:n]] = True
    return sum(int(inside[m].sum()) == 1 for m in matches)


def _single_probability(n: np.ndarray, w: float) -> np.ndarray:
    """∫₀^w n v (1 − v)^(n−1) dv = (1 − (n w + 1) (1 − w)^n) / (n + 1)."""
    return np.asarray((1 - (n * w + 1) * (1 - w) ** n) / (n + 1))
