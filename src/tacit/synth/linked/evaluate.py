"""Evaluation of linked tables and sequences: each table, the links between them, and order in time.

    evaluation = evaluate_linked(real, synthetic, keys, order={"visits": "date"}, holdout=unseen)
    print(evaluation)
    evaluation.statistics  # real beside synthetic

The quality score, cardinality (KS complement of the number of children) and parent–child pairs are those of
SDMetrics' multi-table report (MIT), computed here from their definitions. `holdout` are entities of the same
population that the model never saw, with all their rows: what they reach is the best that can be expected.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from ...errors import BadData
from ...parties.ledger import Ledger
from ...results import JobResult
from ..columns import Column
from ..evaluate import MAX_COPY_RATIO
from ..fidelity import correlation, ks_complement, quality
from ..generator import unprotected_ledger
from ..privacy import copy_share
from ..scores import tvd, wilson_interval
from ..table import Table
from ..views import View, Views
from .fit import learned_keys, sort_rows
from .keys import ForeignKey, Key, Schema, build_schema
from .new_keys import plan_key
from .rows import DAY

LAGS = (1, 2, 3)
SLICES = 4  # parts of the real time range, with equally many real rows
LEAST_ROWS = 20  # below this a correlation says nothing


@dataclass(frozen=True)
class LinkedScore:
    """One value of a metric about a table or a link. `real` is the value of unseen real entities."""

    about: str
    metric: str
    value: float
    real: float | None = None
    better: str = "higher"
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass
class LinkedEvaluation(JobResult):
    """The scores of synthetic linked tables, and statistics of both beside each other."""

    scores: list[LinkedScore]
    statistics: pd.DataFrame
    warnings: list[str]

    title: ClassVar[str] = "Synthetic linked tables beside the real ones"

    def __getitem__(self, name: tuple[str, str]) -> LinkedScore:
        for score in self.scores:
            if (score.about, score.metric) == name:
                return score
        known = ", ".join(repr((s.about, s.metric)) for s in self.scores)
        raise BadData(f"there is no score {name!r} in this evaluation. It has: {known}.")

    def table(self) -> pd.DataFrame:
        """Return one row per score."""
        return pd.DataFrame(
            [
                {
                    "about": s.about,
                    "metric": s.metric,
                    "value": s.value,
                    "real": math.nan if s.real is None else s.real,
                    "better": s.better,
                }
                for s in self.scores
            ]
        ).set_index(["about", "metric"])

    @property
    def value(self) -> pd.DataFrame:
        return self.table()

    @property
    def ledger(self) -> Ledger:
        return unprotected_ledger()

    def to_dict(self) -> dict[str, Any]:
        return {
            "scores": [
                {
                    "about": s.about,
                    "metric": s.metric,
                    "value": s.value,
                    "real": s.real,
                    "better": s.better,
                }
                for s in self.scores
            ],
            "statistics": self.statistics.reset_index().to_dict("records"),
            "warnings": self.warnings,
            "ledger": self.ledger.to_dict(),
        }

    def __str__(self) -> str:
        text = self.table().to_string(float_format=lambda v: f"{v:.3f}", na_rep="")
        return "\n".join([text, *(f"! {w}" for w in self.warnings)])


@dataclass
class _Set:
    """One set of tables: links sorted like the rows, and the top entity of each row."""

    frames: dict[str, pd.DataFrame]
    links: dict[ForeignKey, np.ndarray]
    people: dict[str, np.ndarray] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)


def evaluate_linked(
    real: Mapping[str, pd.DataFrame],
    synthetic: Mapping[str, pd.DataFrame],
    keys: Sequence[Key],
    order: Mapping[str, str] | None = None,
    holdout: Mapping[str, pd.DataFrame] | None = None,
    *,
    tables: Mapping[str, Mapping[str, str | Column]] | None = None,
) -> LinkedEvaluation:
    """Compare synthetic linked tables with the real ones that they were generated from.

    `order` names the columns by which children are ordered. `tables` overrides the kinds of columns, as in
    `LinkedTables.fit`. Tables of which a key is broken are refused.
    """
    sets: dict[str, _Set] = {}
    schema: Schema | None = None
    for name, frames in (("real", real), ("synthetic", synthetic), ("holdout", holdout)):
        if frames is None:
            continue
        missing = [t for t in real if t not in frames]
        if missing:
            raise BadData(f"evaluate_linked: the {name} tables have no {', '.join(missing)}.")
        chosen = {t: frames[t] for t in real}
        found, links = build_schema(chosen, keys, order, f"evaluate_linked, {name} tables")
        schema = schema or found
        sets[name] = _Set(*sort_rows(chosen, links, schema))
    assert schema is not None
    comparison = _Comparison(schema, sets, tables or {})
    return LinkedEvaluation(comparison.scores(), comparison.statistics(), comparison.warnings)


class _Comparison:
    def __init__(
        self, schema: Schema, sets: dict[str, _Set], tables: Mapping[str, Mapping[str, str | Column]]
    ):
        self.schema, self.sets = schema, sets
        self.views: dict[str, Views] = {}
        self.warnings: list[str] = []
        for t in schema.tables:
            self._view(t, tables.get(t, {}))
            for part in sets.values():
                link = self._link(part, t)
                parent = schema.parent(t)
                part.people[t] = (
                    np.arange(len(part.frames[t])) if parent is None else part.people[parent][link]
                )

    def _link(self, part: _Set, t: str) -> np.ndarray:
        keys = self.schema.foreign[t]
        return part.links[keys[0]] if keys else np.arange(len(part.frames[t]))

    def _view(self, t: str, known: Mapping[str, str | Column]) -> None:
        """Encode the columns of a table that are not keys."""
        real = self.sets["real"].frames[t]
        rules = plan_key(self.schema, t, real, self._link(self.sets["real"], t))
        keys = set(self.schema.key_columns(t)) - set(learned_keys(self.schema, t, rules))
        frames = {name: part.frames[t].drop(columns=list(keys)) for name, part in self.sets.items()}
        if not len(frames["real"].columns):
            return
        table = Table.infer_columns(frames["real"], (), known)
        if not table.modeled:
            return
        views = Views(frames["real"], frames["synthetic"], frames.get("holdout"), table)
        self.views[t] = views
        for name, view in (("real", views.real), ("synthetic", views.synthetic), ("holdout", views.holdout)):
            if view is not None:
                self.sets[name].views[t] = view

    def scores(self) -> list[LinkedScore]:
        out: list[LinkedScore] = []
        for t in self.schema.tables:
            if t in self.views:
                out += self._scores_of_table(t)
        for t in self.schema.tables:
            for k in self.schema.foreign[t]:
                if k not in self.schema.implied:
                    out += self._scores_of_link(k)
            if self.schema.parent(t) is not None and t in self.views:
                out += self._scores_of_order(t)
        return [*out, *self._entity_copies()]

    def _compare(
        self, about: str, metric: str, parts: dict[str, dict[str, float]], better: str = "higher"
    ) -> list[LinkedScore]:
        """One score from the parts of the synthetic and the held-out tables."""
        if not parts["synthetic"]:
            return []
        means = {name: float(np.mean(list(p.values()))) for name, p in parts.items() if p}
        return [
            LinkedScore(about, metric, means["synthetic"], means.get("holdout"), better, parts["synthetic"])
        ]

    @property
    def others(self) -> dict[str, _Set]:
        return {name: part for name, part in self.sets.items() if name != "real"}

    def _scores_of_table(self, t: str) -> list[LinkedScore]:
        views = self.views[t]
        parts = {n: {"quality": quality(views, part.views[t])[0]} for n, part in self.others.items()}
        copies = {n: {"copies": copy_share(views, part.views[t])} for n, part in self.others.items()}
        return [
            *self._compare(t, "quality score", parts),
            *self._compare(t, "exact copies of rows", copies, "lower"),
        ]

    def _scores_of_link(self, k: ForeignKey) -> list[LinkedScore]:
        real = self.sets["real"]
        counts = {n: self._counts(part, k) for n, part in self.sets.items()}
        cardinality = {n: {"": ks_complement(counts["real"], counts[n])} for n in self.others}
        out = self._compare(str(k), "cardinality", cardinality)
        if k.table in self.views and k.references in self.views:
            pairs = {n: self._pairs(k, real, part) for n, part in self.others.items()}
            out += self._compare(str(k), "parent–child pairs", pairs)
        return out

    def _counts(self, part: _Set, k: ForeignKey) -> np.ndarray:
        link = part.links[k]
        return np.bincount(link[link >= 0], minlength=len(part.frames[k.references])).astype(np.float64)

    def _pairs(self, k: ForeignKey, real: _Set, other: _Set) -> dict[str, float]:
        above, below = self.views[k.references], self.views[k.table]
        out = {}
        for a, column in enumerate(above.columns):
            for b, child in enumerate(below.columns):
                value = _similarity(
                    *(
                        _pair(part, k, above, below, a, b, column.is_number and child.is_number)
                        for part in (real, other)
                    )
                )
                if not math.isnan(value):
                    out[f"{column.name} × {child.name}"] = value
        return out

    def _scores_of_order(self, t: str) -> list[LinkedScore]:
        views, time = self.views[t], self.schema.order.get(t)
        auto: dict[str, dict[str, float]] = {n: {} for n in self.others}
        moves: dict[str, dict[str, float]] = {n: {} for n in self.others}
        real = self.sets["real"]
        for j, c in enumerate(views.columns):
            if c.name == time:
                continue
            for n, part in self.others.items():
                if not c.is_number:
                    both = [self._transitions(p, t, j) for p in (real, part)]
                    if all(b.sum() for b in both):
                        moves[n][c.name] = 1 - tvd(*both)
                    continue
                for lag in LAGS:
                    r, s = (self._autocorrelation(p, t, j, lag) for p in (real, part))
                    if not math.isnan(r):
                        auto[n][f"{c.name}, lag {lag}"] = 0.0 if math.isnan(s) else 1 - abs(r - s) / 2
        out = [
            *self._compare(t, "autocorrelation", auto),
            *self._compare(t, "transitions", moves),
        ]
        if time in views.names:
            gaps = {n: self._gaps(part, t) for n, part in self.sets.items()}
            between = {n: {"": ks_complement(gaps["real"], gaps[n])} for n in self.others}
            slices = {n: self._slices(t, part) for n, part in self.others.items()}
            out += self._compare(t, "inter-event times", between)
            out += self._compare(t, "cross sections", slices)
        return out

    def _lagged(self, part: _Set, t: str, lag: int) -> np.ndarray:
        """Rows that have an earlier sibling `lag` places before; rows are sorted by parent and order."""
        link = self._link(part, t)
        return np.flatnonzero(link[lag:] == link[:-lag]) + lag

    def _autocorrelation(self, part: _Set, t: str, j: int, lag: int) -> float:
        rows, x = self._lagged(part, t, lag), part.views[t].x[:, j]
        return correlation(x[rows], x[rows - lag]) if len(rows) >= LEAST_ROWS else math.nan

    def _transitions(self, part: _Set, t: str, j: int) -> np.ndarray:
        codes, size = self.views[t].cells(part.views[t], j)
        rows = self._lagged(part, t, 1)
        return np.bincount(codes[rows - 1] * size + codes[rows], minlength=size**2) / max(1, len(rows))

    def _gaps(self, part: _Set, t: str) -> np.ndarray:
        x = part.views[t].x[:, self.views[t].column_index(self.schema.order[t])]
        rows = self._lagged(part, t, 1)
        return np.asarray(x[rows] - x[rows - 1])

    def _slices(self, t: str, part: _Set) -> dict[str, float]:
        """Similarity of each column within each part of the time range, and of the number of rows."""
        views, out = self.views[t], {}
        at = views.column_index(self.schema.order[t])
        real, other = self.sets["real"].views[t].x, part.views[t].x
        edges = np.quantile(real[:, at], np.linspace(0, 1, SLICES + 1)[1:-1])
        slices = [np.searchsorted(edges, x[:, at], side="right") for x in (real, other)]
        shares = [np.bincount(s, minlength=SLICES) / len(s) for s in slices]
        out["rows"] = 1 - tvd(*shares)
        for k in range(SLICES):
            a, b = (View("", x[s == k]) for x, s in zip((real, other), slices))
            for j, c in enumerate(views.columns):
                if j != at and a.rows and b.rows:
                    out[f"{c.name}, part {k + 1}"] = (
                        1 - tvd(views.joint(a, (j,)), views.joint(b, (j,)))
                        if j in views.levels
                        else ks_complement(a.x[:, j], b.x[:, j])
                    )
        return out

    def _entity_copies(self) -> list[LinkedScore]:
        """The share of entities that equal a real one in all columns of all their rows."""
        out = []
        for root in self.schema.roots:
            below = [t for t in self.schema.tables if t == root or root in self.schema.ancestors(t)]
            marks = {n: self._fingerprints(part, root, below) for n, part in self.sets.items()}
            copies = {n: float(np.isin(marks[n], marks["real"]).mean()) for n in self.others}
            natural = copies.get("holdout")
            out.append(LinkedScore(root, "exact copies of entities", copies["synthetic"], natural, "lower"))
            n = len(marks["synthetic"])
            _, low, _ = wilson_interval(copies["synthetic"] * n, n)
            if natural is not None and low > natural and copies["synthetic"] > MAX_COPY_RATIO * natural:
                self.warnings.append(
                    f"{copies['synthetic']:.1%} of the synthetic {root} are copies of real ones with all "
                    f"their rows, compared with {natural:.1%} of unseen ones."
                )
        if "holdout" not in self.sets:
            self.warnings.append(
                "Without a holdout the natural rate of copies is unknown: give holdout=…, entities that were "
                "not learned from."
            )
        return out

    def _fingerprints(self, part: _Set, root: str, below: Sequence[str]) -> np.ndarray:
        """A number for each entity, equal for equal entities (a collision has probability n²/2⁶⁴)."""
        marks = np.zeros(len(part.frames[root]), np.uint64)
        for i, t in enumerate(below):
            people = part.people[t]
            order = np.argsort(people, kind="stable")
            counts = np.bincount(people, minlength=len(marks))
            place = np.empty(len(people), np.int64)
            place[order] = np.arange(len(people)) - np.repeat(np.cumsum(counts) - counts, counts)
            mixed = _mix(
                np.uint64(i + 1) * np.ones(len(people), np.uint64) + place.astype(np.uint64) * np.uint64(64)
            )
            if t in part.views:
                x = np.where(np.isnan(part.views[t].x), np.inf, part.views[t].x + 0.0)
                for column in np.ascontiguousarray(x.T).view(np.uint64):
                    mixed = _mix(mixed ^ column)
            np.add.at(marks, people, mixed)
        return marks

    def statistics(self) -> pd.DataFrame:
        """Statistics of the real and the synthetic tables beside each other."""
        values = {name: dict(self._statistics_of(part)) for name, part in self.sets.items()}
        table = pd.DataFrame(values)
        table.index = pd.MultiIndex.from_tuples(table.index, names=["about", "statistic"])
        return table[table["real"].notna()]

    def _statistics_of(self, part: _Set) -> Iterator[tuple[tuple[str, str], float]]:
        for t in self.schema.tables:
            yield (t, "rows"), float(len(part.frames[t]))
            for k in self.schema.foreign[t]:
                if k not in self.schema.implied:
                    counts = self._counts(part, k)
                    for name, value in (
                        ("mean", counts.mean()),
                        ("standard deviation", counts.std()),
                        ("largest", counts.max()),
                    ):
                        yield (str(k), f"children, {name}"), float(value)
            if self.schema.parent(t) is None or t not in self.views:
                continue
            time, views = self.schema.order.get(t), self.views[t]
            if time is not None and time in views.names:
                is_date = views.columns[views.column_index(time)].kind == "datetime"
                gaps = self._gaps(part, t) / (DAY if is_date else 1)
                for share in (0.25, 0.5, 0.75):
                    unit = "days between" if is_date else f"{time} between"
                    value = float(np.quantile(gaps, share)) if len(gaps) else math.nan
                    yield (t, f"{unit}, {share:.0%} quantile"), value
            for j, c in enumerate(views.columns):
                if c.is_number and c.name != time:
                    for lag in LAGS:
                        value = self._autocorrelation(part, t, j, lag)
                        yield (t, f"autocorrelation of {c.name}, lag {lag}"), value


def _pair(
    part: _Set, k: ForeignKey, above: Views, below: Views, a: int, b: int, numbers: bool
) -> float | np.ndarray:
    """The correlation of a parent's and a child's column, or their joint table."""
    link = part.links[k]
    rows = np.flatnonzero(link >= 0)
    parent, child = part.views[k.references], part.views[k.table]
    if numbers:
        return correlation(parent.x[link[rows], a], child.x[rows, b])
    first, size = above.cells(parent, a)
    second, width = below.cells(child, b)
    joint = first[link[rows]] * width + second[rows]
    return np.bincount(joint, minlength=size * width) / max(1, len(rows))


def _similarity(real: float | np.ndarray, other: float | np.ndarray) -> float:
    if isinstance(real, np.ndarray) and isinstance(other, np.ndarray):
        return 1 - tvd(real, other)
    if math.isnan(float(real)):  # a constant column
        return math.nan
    return 0.0 if math.isnan(float(other)) else 1 - abs(float(real) - float(other)) / 2


def _mix(z: np.ndarray) -> np.ndarray:
    """splitmix64: every bit of the input changes half of the output."""
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))
