"""Protection of outliers: unusual rows are made usual, or left out, before anything is learned.

    rare combination  two values that `floor` people should have if columns were independent (three times
                      over), and that fewer than `floor` have: a widower of 19. Numbers count by tenths
    isolated row      its distance to the `floor`-th nearest row of other people is beyond Tukey's fence,
                      Q3 + 1.5 (Q3 − Q1) of all such distances, or among the farthest 2%
    generalized       one value of a rare combination is replaced by that of a usual row nearby; of an
                      isolated row, those that differ most, until it is as close to a usual row as half of
                      the rows are
    left out          a row of which more than half of the values would have to be replaced, or that still has
                      a rare combination

What is learned from such rows shows whose they are more than anything else (T. Stadler, B. Oprisanu, C.
Troncoso: *Synthetic Data – Anonymisation Groundhog Day*, 2022). It is a rule, not a guarantee: the rows that
stay are learned as they are.
"""

from __future__ import annotations

import itertools

import numpy as np

from .constraints import Combinations, Ordered
from .protect import count_people
from .table import Table

FENCE = 1.5  # Tukey's: 0.7% of normal values lie beyond it
FARTHEST = 0.02  # share of the rows that are isolated if fewer are beyond the fence
EXPECTED = 3.0  # times the floor: below, few people have two values because few have either
TENTHS = 10  # quantile cells of a number in a combination
ROUNDS = 3  # attempts to replace rare combinations: a replaced value can form another
ROUNDING = 1e-3  # of distances by float32
MAX_LEVELS = 200  # categories with an axis of their own in distances; rarer ones share one
MAX_CELLS = 1_000_000  # combinations of two columns that are counted; columns of more values are not combined
BASE = 10_000  # rows that distances are measured to; a larger table is sampled
CHUNK = 20_000_000  # distances in memory at a time


def protect_outliers(
    x: np.ndarray, table: Table, floor: int, rng: np.random.Generator, people: np.ndarray | None = None
) -> tuple[np.ndarray, dict[str, int]]:
    """Return rows without outliers, and how many were generalized and left out.

    `x` has a column for each modeled column of the table, NaN where a value is missing.
    """
    whose = np.arange(len(x)) if people is None else people
    work = _Outliers(x, table, floor, rng, whose)
    out = x.copy()
    stays = work.move_isolated(out)
    stays &= work.replace_rare(out)
    changed = ~((out == x) | (np.isnan(out) & np.isnan(x))).all(axis=1)
    for constraint in table.constraints:
        if isinstance(constraint, Ordered):
            stays &= constraint.holds(out, table) | ~changed
    return out[stays], {"generalized": int((changed & stays).sum()), "left out": int((~stays).sum())}


class _Outliers:
    """The rows of a table, their distances and their rare combinations."""

    def __init__(self, x: np.ndarray, table: Table, floor: int, rng: np.random.Generator, whose: np.ndarray):
        self.x, self.floor, self.rng, self.whose = x, floor, rng, whose
        together = [
            [table.column_index(n) for n in c.columns]
            for c in table.constraints
            if isinstance(c, Combinations)
        ]
        inside = {j for group in together for j in group}
        # the columns of a combination are replaced together
        self.groups = together + [[j] for j in range(len(table.modeled)) if j not in inside]
        self.points, self.axes = _points(x, table)
        self.edges = {
            j: np.unique(np.nanquantile(x[:, j], np.arange(1, TENTHS) / TENTHS))
            for j in range(x.shape[1])
            if table.modeled[j].is_number and not np.isnan(x[:, j]).all()
        }
        self.codes_of = [
            TENTHS + 2 if c.is_number else len(c.values) + 1 for c in table.modeled
        ]  # one more for missing
        self.base = np.sort(rng.permutation(len(x))[:BASE])
        self.k = max(2, round(floor * len(self.base) / len(x)))

    def move_isolated(self, out: np.ndarray) -> np.ndarray:
        """Replace values of isolated rows in place; return which rows stay."""
        stays = np.ones(len(out), dtype=bool)
        if len(np.unique(self.whose[self.base])) <= self.k:
            return stays
        base, k = self.base, self.k
        distance = _nearest(self.points, self.points[base], k, self.whose, self.whose[base])[0]
        far = distance[:, -1]
        q1, q3, top = np.quantile(far, [0.25, 0.75, 1 - FARTHEST])
        self.is_isolated = far > min(q3 + FENCE * (q3 - q1), top) + ROUNDING
        rows, usual = np.flatnonzero(self.is_isolated), base[~self.is_isolated[base]]
        if not len(rows) or len(usual) <= k:
            return stays
        near = self._neighbors(rows, usual)
        gap = (self.points[rows] - self.points[near[:, 0]]).astype(np.float64) ** 2
        share = np.column_stack(
            [gap[:, [a for j in g for a in self.axes[j]]].sum(axis=1) for g in self.groups]
        )
        order = np.argsort(-share, axis=1, kind="stable")
        removed = np.cumsum(np.take_along_axis(share, order, axis=1), axis=1)
        left = share.sum(axis=1, keepdims=True) - np.column_stack([np.zeros(len(rows)), removed])
        needed = (left > np.median(far) ** 2 + ROUNDING).sum(axis=1)  # how many are replaced
        for place in range(len(self.groups)):
            mine = np.flatnonzero(needed > place)
            self._replace(out, rows[mine], order[mine, place], near[mine])
        stays[rows[needed > len(self.groups) / 2]] = False
        return stays

    def replace_rare(self, out: np.ndarray) -> np.ndarray:
        """Replace a value of rare combinations in place; return which rows stay."""
        codes, sizes = self._codes(self.x)
        counts = [
            count_people(c, s, self.whose) if s <= MAX_CELLS else np.empty(0) for c, s in zip(codes, sizes)
        ]
        total = len(np.unique(self.whose))
        rare: dict[tuple[int, int], np.ndarray] = {}
        for a, b in itertools.combinations(range(len(codes)), 2):
            if sizes[a] * sizes[b] > MAX_CELLS:
                continue
            expected = np.outer(counts[a], counts[b]) / total
            if not (expected >= EXPECTED * self.floor).any():
                continue
            seen = count_people(codes[a] * sizes[b] + codes[b], expected.size, self.whose)
            seen = seen.reshape(expected.shape)
            unusual = (seen < self.floor) & (expected >= EXPECTED * self.floor)
            if (unusual & (seen > 0)).any():
                rare[a, b] = unusual
        marks = self._mark_rare(out, rare)
        usual = self.base[marks[self.base].sum(axis=1) == 0]
        if not rare or len(usual) <= self.k:
            return np.ones(len(out), dtype=bool)
        for _ in range(ROUNDS):
            rows = np.flatnonzero(marks.any(axis=1))
            if not len(rows):
                break
            self._replace(out, rows, marks[rows].argmax(axis=1), self._neighbors(rows, usual))
            marks = self._mark_rare(out, rare)
        return np.asarray(marks.sum(axis=1) == 0)

    def _codes(self, x: np.ndarray) -> tuple[list[np.ndarray], list[int]]:
        """Return a code of each group of columns in every row, and the numbers of codes."""
        codes, sizes = [], []
        for group in self.groups:
            parts = [
                np.where(np.isnan(x[:, j]), TENTHS + 1, np.searchsorted(self.edges[j], x[:, j]))
                if j in self.edges
                else np.nan_to_num(x[:, j], nan=-1.0).astype(np.int64) + 1
                for j in group
            ]
            code, size = np.zeros(len(x), dtype=np.int64), 1
            for part, j in zip(parts, group):
                code, size = code * self.codes_of[j] + part.astype(np.int64), size * self.codes_of[j]
            codes.append(code)
            sizes.append(size)
        return codes, sizes

    def _mark_rare(self, out: np.ndarray, rare: dict[tuple[int, int], np.ndarray]) -> np.ndarray:
        """Return in how many rare combinations each group of columns is, [rows, groups]."""
        codes, _ = self._codes(out)
        marks = np.zeros((len(out), len(self.groups)), dtype=np.int64)
        for (a, b), unusual in rare.items():
            found = unusual[codes[a], codes[b]]
            marks[found, a] += 1
            marks[found, b] += 1
        return marks

    def _neighbors(self, rows: np.ndarray, usual: np.ndarray) -> np.ndarray:
        """Return the usual rows that are nearest to these rows, of other people; [rows, k]."""
        found = _nearest(self.points[rows], self.points[usual], self.k, self.whose[rows], self.whose[usual])
        return np.asarray(usual[found[1]])

    def _replace(self, out: np.ndarray, rows: np.ndarray, groups: np.ndarray, near: np.ndarray) -> None:
        """Replace one group of columns in each row by that of a usual row nearby, in place."""
        for g in np.unique(groups):
            mine = np.flatnonzero(groups == g)
            donor = near[mine, self.rng.integers(0, near.shape[1], len(mine))]
            out[np.ix_(rows[mine], self.groups[g])] = self.x[np.ix_(donor, self.groups[g])]


def _points(x: np.ndarray, table: Table) -> tuple[np.ndarray, list[list[int]]]:
    """Return rows as points, float32, and the axes of each modeled column."""
    parts: list[np.ndarray] = []
    axes: list[list[int]] = []
    for j, column in enumerate(table.modeled):
        missing, at = np.isnan(x[:, j]), sum(p.shape[1] for p in parts)
        if column.is_number:
            present = x[~missing, j]
            low, high = np.quantile(present, [0.01, 0.99]) if len(present) else (0.0, 1.0)
            if high <= low:
                low, high = (float(present.min()), float(present.max())) if len(present) else (0.0, 1.0)
            place = np.clip((x[:, j] - low) / ((high - low) or 1.0), -0.5, 1.5)
            part = np.column_stack([np.where(missing, 0.5, place), missing])
        else:
            codes = np.where(missing, len(column.values), x[:, j]).astype(np.int64)
            counts = np.bincount(codes, minlength=len(column.values) + 1)
            rank = np.argsort(np.argsort(-counts, kind="stable"), kind="stable")
            part = np.eye(min(len(counts), MAX_LEVELS + 1))[np.minimum(rank[codes], MAX_LEVELS)] * np.sqrt(
                0.5
            )
        axes.append(list(range(at, at + part.shape[1])))
        parts.append(part.astype(np.float32))
    return np.concatenate(parts, axis=1), axes


def _nearest(
    query: np.ndarray, base: np.ndarray, k: int, whose: np.ndarray, others: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return distances and places of the k nearest rows of other people."""
    distance, where = np.empty((len(query), k)), np.empty((len(query), k), dtype=np.int64)
    size = (base**2).sum(axis=1)
    step = max(1, CHUNK // len(base))
    for first in range(0, len(query), step):
        part = query[first : first + step]
        total = size - 2 * (part @ base.T)
        total[whose[first : first + step, None] == others[None, :]] = np.inf
        best = np.argpartition(total, k - 1, axis=1)[:, :k]
        found = np.take_along_axis(total, best, axis=1) + (part**2).sum(axis=1, keepdims=True)
        order = np.argsort(found, axis=1, kind="stable")
        distance[first : first + step] = np.sqrt(np.maximum(np.take_along_axis(found, order, axis=1), 0))
        where[first : first + step] = np.take_along_axis(best, order, axis=1)
    return distance, where
