"""The lattice of full-domain generalisations: one level a column, and what a node costs.

`Evaluator` looks at one node: it groups the combinations, asks the models about the classes, and prices the
result. It is the inner loop of the optimal search: classes are counted, not sorted, wherever the keys are
dense enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .encoded import LARGEST, Encoded, packed, ranked
from .losses import CellMetric, ClassMetric
from .models import Classes, KAnonymity, Model, held

Node = tuple[int, ...]
DENSE = 16  # keys a combination, up to which counting them all beats a sort


@dataclass(frozen=True)
class Outcome:
    """A node that was looked at. `lost` are the combinations whose class fails a model; `doomed`: no node
    below can be feasible either.
    """

    classes: int  # that are published
    suppressed: int  # rows
    loss: float
    lost: np.ndarray
    feasible: bool
    doomed: bool
    floor: float  # no more general node costs less


class Evaluator:
    def __init__(
        self, table: Encoded, models: tuple[Model, ...], metric: CellMetric | ClassMetric, limit: int
    ):
        self.table, self.models, self.metric, self.limit = table, models, metric, limit
        self.only_k = (
            max(m.k for m in models if isinstance(m, KAnonymity))
            if all(isinstance(m, KAnonymity) for m in models)
            else None
        )
        self.firm = all(m.suppressible for m in models)
        self.merges = all(m.merges for m in models)
        self.superset = self.firm and all(m.superset for m in models)
        self.enough = tuple(m for m in models if m.superset)
        weight = [
            np.bincount(table.codes[:, j], table.counts, len(c.hierarchy))
            for j, c in enumerate(table.columns)
        ]
        # column j's charge at each level, were nothing suppressed
        self.totals = [
            p @ w
            for p, w in zip(
                metric.price if isinstance(metric, CellMetric) else [c.share for c in table.columns], weight
            )
        ]
        if isinstance(metric, CellMetric):
            self.gone = metric.suppressed(table)
        self._halves()

    def _halves(self) -> None:
        """A node's classes are pairs of a class of the left half of its columns and one of the right half. A
        half's classes are ranked once a combination of its levels and kept, at most a quarter of a gigabyte
        of them.
        """
        table, q = self.table, len(self.table.columns)
        self.cut = (q + 1) // 2

        def half(lo: int, hi: int) -> Callable[[Node], tuple[np.ndarray, int]]:
            @lru_cache(maxsize=max(4, 2**26 // max(len(table.codes), 1)))
            def classes(levels: Node) -> tuple[np.ndarray, int]:
                if not levels:
                    return np.zeros(len(table.codes), np.int32), 1
                key, space = packed(
                    [
                        table.columns[j].up[level][table.codes[:, j]]
                        for j, level in zip(range(lo, hi), levels)
                    ],
                    [len(table.columns[j].words[level]) for j, level in zip(range(lo, hi), levels)],
                )
                if space > len(key):
                    key, space = ranked(key)
                return key.astype(np.int32 if space < 2**31 else np.int64), space

            return classes

        self.left, self.right = half(0, self.cut), half(self.cut, q)

    def classes(self, node: Node) -> tuple[np.ndarray, int]:
        """(class of each combination, number of classes, some of which may be empty)."""
        left, lefts = self.left(node[: self.cut])
        right, rights = self.right(node[self.cut :])
        if lefts * rights > LARGEST:
            left, lefts = ranked(left)
        key = left.astype(np.int64) * rights + right
        if lefts * rights <= DENSE * len(key):
            return key, lefts * rights
        return ranked(key)

    def __call__(self, node: Node) -> Outcome:
        table = self.table
        label, number = self.classes(node)
        if self.only_k is not None:
            sizes = np.bincount(label, table.counts, number)
            kept = sizes >= self.only_k
        else:
            classes = Classes(table, label, number)
            sizes = classes.sizes
            kept = held(self.models, classes)
        lost = np.flatnonzero(~kept[label])
        suppressed = int(table.counts[lost].sum())
        feasible = suppressed <= self.limit and (self.firm or not len(lost))
        doomed = not feasible and (self.superset or (not self.limit and self.merges))
        if not feasible and not doomed and self.enough:  # what fails these alone fails them below
            doomed = int(table.counts[~held(self.enough, classes)[label]].sum()) > self.limit
        if isinstance(self.metric, CellMetric):
            whole = sum(float(t[level]) for t, level in zip(self.totals, node))
            codes, weight = table.codes[lost], table.counts[lost]
            mine = sum(
                (p[level][codes[:, j]] for j, (p, level) in enumerate(zip(self.metric.price, node))),
                np.zeros(len(lost)),
            )
            loss = (whole + float((self.gone[lost] - mine) @ weight)) / self.metric.scale
            floor = whole / self.metric.scale
        else:
            there = sizes > 0
            loss, floor = self.metric.value(sizes[there], kept[there]), self.metric.floor(sizes[there])
        return Outcome(int((kept & (sizes > 0)).sum()), suppressed, loss, lost, feasible, doomed, floor)

    def below(self, node: Node, lost: np.ndarray) -> list[np.ndarray]:
        """For nodes at or below this one, whose lost combinations are lost too: each column's charge by
        level, of the rows not known to be lost.
        """
        assert isinstance(self.metric, CellMetric)
        codes, weight = self.table.codes[lost], self.table.counts[lost]
        made = []
        for j, (p, total, level) in enumerate(zip(self.metric.price, self.totals, node)):
            known = p[: level + 1] @ np.bincount(codes[:, j], weight, p.shape[1])
            made.append((total[: level + 1] - known) / self.metric.scale)
        return made
