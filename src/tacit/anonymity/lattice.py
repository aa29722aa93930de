"""The lattice of full-domain generalizations (one level per column) and the evaluation of a node.

`Evaluator` groups the combinations of a node, checks the models and computes the loss. It is the inner loop
of the optimal search: classes are counted, not sorted, if the keys are dense enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .classes import Classes
from .codes import LARGEST, pack_keys, rank_keys
from .losses import CellMetric, ClassMetric
from .models import KAnonymity, PrivacyModel, check_models
from .table import EncodedTable

Node = tuple[int, ...]
DENSE = 16  # keys per combination up to which counting all keys is faster than sorting


@dataclass(frozen=True)
class NodeOutcome:
    """The evaluation of a node."""

    classes: int  # published classes
    suppressed: int  # rows
    loss: float
    suppressed_combinations: np.ndarray  # those whose class violates a model
    suppressed_below: np.ndarray  # those that every node below suppresses, too
    is_feasible: bool
    excludes_below: bool  # no node below is feasible either
    lower_bound: float  # no more general node costs less


class Evaluator:
    """Evaluate nodes for a table, models, a metric and a limit on suppressed rows."""

    def __init__(
        self,
        table: EncodedTable,
        models: tuple[PrivacyModel, ...],
        metric: CellMetric | ClassMetric,
        limit: int,
    ):
        self.table, self.models, self.metric, self.limit = table, models, metric, limit
        self.only_k = (
            max(m.k for m in models if isinstance(m, KAnonymity))
            if all(isinstance(m, KAnonymity) for m in models) and table.person is None
            else None
        )
        self.allows_suppression = all(m.allows_suppression for m in models)
        self.is_closed_under_merging = all(m.is_closed_under_merging for m in models)
        self.monotone_models = tuple(m for m in models if m.is_monotone)
        self.is_monotone = self.allows_suppression and len(self.monotone_models) == len(models)
        weights = [
            np.bincount(table.codes[:, j], table.counts, len(c.hierarchy))
            for j, c in enumerate(table.columns)
        ]
        prices = metric.price if isinstance(metric, CellMetric) else [c.share for c in table.columns]
        # the charge of each column at each level if nothing is suppressed
        self.totals = [price @ weight for price, weight in zip(prices, weights)]
        if isinstance(metric, CellMetric):
            self.suppressed_charge = metric.charge_suppressed(table.codes)
        q = len(table.columns)
        self.cut = (q + 1) // 2
        self.left, self.right = self._half(0, self.cut), self._half(self.cut, q)

    def _half(self, low: int, high: int) -> Callable[[Node], tuple[np.ndarray, int]]:
        """Classes over half of the columns. A node's classes are pairs of a left and a right class.

        The classes of a half are computed once per combination of its levels and cached, up to a quarter of a
        gigabyte.
        """
        codes, columns = self.table.codes, self.table.columns[low:high]

        @lru_cache(maxsize=max(4, 2**26 // max(len(codes), 1)))
        def classes(levels: Node) -> tuple[np.ndarray, int]:
            if not levels:
                return np.zeros(len(codes), np.int32), 1
            key, space = pack_keys(
                [c.up[level][codes[:, low + j]] for j, (c, level) in enumerate(zip(columns, levels))],
                [len(c.words[level]) for c, level in zip(columns, levels)],
            )
            if space > len(key):
                key, space = rank_keys(key)
            return key.astype(np.int32 if space < 2**31 else np.int64), space

        return classes

    def classes(self, node: Node) -> Classes:
        """The classes of the combinations at a node; some may be empty."""
        left, lefts = self.left(node[: self.cut])
        right, rights = self.right(node[self.cut :])
        if lefts * rights > LARGEST:
            left, lefts = rank_keys(left)
        key = left.astype(np.int64) * rights + right
        if lefts * rights <= DENSE * len(key):
            return self.table.partition(key, lefts * rights)
        return self.table.partition(*rank_keys(key))

    def __call__(self, node: Node) -> NodeOutcome:
        table, classes = self.table, self.classes(node)
        label = classes.label
        if self.only_k is not None:  # without converting the sizes to integers
            sizes = np.bincount(label, table.counts, classes.number)
            is_published = sizes >= self.only_k
            below = combinations = np.flatnonzero(~is_published[label])
        else:
            sizes = classes.sizes
            # classes that violate the monotone models also violate them below, so those are checked first
            is_published = check_models(self.monotone_models, classes)
            below = combinations = np.flatnonzero(~is_published[label])
            is_enough = self.is_monotone or int(table.counts[below].sum()) <= self.limit
            if is_enough and not self.is_monotone:
                is_published = check_models(self.models, classes, is_table=True)
                combinations = np.flatnonzero(~is_published[label])
        suppressed = int(table.counts[combinations].sum())
        is_feasible = suppressed <= self.limit and (self.allows_suppression or not len(combinations))
        excludes_below = not is_feasible and (
            self.is_monotone
            or (not self.limit and self.is_closed_under_merging)
            or int(table.counts[below].sum()) > self.limit
        )
        if isinstance(self.metric, CellMetric):
            total = sum(float(t[level]) for t, level in zip(self.totals, node))
            charge = self.metric.charge(table.codes[combinations], node)
            extra = float((self.suppressed_charge[combinations] - charge) @ table.counts[combinations])
            loss, lower_bound = (total + extra) / self.metric.scale, total / self.metric.scale
        else:
            occupied = sizes > 0
            loss = self.metric.value(sizes[occupied], is_published[occupied])
            lower_bound = self.metric.lower_bound(sizes[occupied])
        return NodeOutcome(
            int((is_published & (sizes > 0)).sum()),
            suppressed,
            loss,
            combinations,
            below,
            is_feasible,
            excludes_below,
            lower_bound,
        )

    def charges_below(self, node: Node, suppressed: np.ndarray) -> list[np.ndarray]:
        """For the nodes at or below this one, the charge of each column by level of the other rows.

        The combinations that this node suppresses are suppressed in all of them.
        """
        assert isinstance(self.metric, CellMetric)
        codes, weight = self.table.codes[suppressed], self.table.counts[suppressed]
        charges = []
        for j, (price, total, level) in enumerate(zip(self.metric.price, self.totals, node)):
            known = price[: level + 1] @ np.bincount(codes[:, j], weight, price.shape[1])
            charges.append((total[: level + 1] - known) / self.metric.scale)
        return charges
