"""A tree of columns: C. K. Chow, C. N. Liu, *Approximating discrete probability distributions with dependence
trees*, 1968.

Among all trees, the one whose edges carry the most mutual information is the likeliest. Columns are drawn
from the root outwards, each given its parent; conditions are passed through the tree first (J. Pearl,
*Reverend Bayes on inference engines*, 1982), so no row is drawn in vain.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from ..parameters import flag, real, whole
from .conditions import Conditions
from .encode import EVEN, Cells, Layout, uniforms_within
from .generator import Generator, Learned, Watch


@dataclass(frozen=True)
class Bayes(Generator):
    """The best tree, and one conditional table an edge."""

    bins: int = whole(24, least=2, doc="cells a number is cut into; more make the tables sparse")
    smoothing: float = real(
        0.5, least=0, doc="rows' worth of the child's own distribution added to every line of a table"
    )
    even: bool = flag(True, doc=EVEN)
    seed: int = whole(0, least=0, doc="of all that is random in fitting")

    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> Learned:
        cells = Cells.of_data(layout.variables, v, self.bins)
        codes, sizes = cells.encode(v), cells.sizes
        order, parent = tree(codes, sizes)
        tensors: dict[str, Tensor] = {
            "order": torch.tensor(order),
            "parent": torch.tensor(parent),
            **cells.tensors(),
        }
        for i, up in enumerate(parent):
            own = np.bincount(codes[:, i], minlength=sizes[i]) / len(v)
            if up >= 0:
                table = counts_of(codes, sizes, up, i) + self.smoothing * own
                own = np.divide(
                    table,
                    table.sum(axis=1, keepdims=True),
                    out=np.tile(own, (sizes[up], 1)),
                    where=table.sum(axis=1, keepdims=True) > 0,
                )
            tensors[f"share.{i}"] = torch.from_numpy(own)
        return Learned(tensors)

    def draw(
        self, learned: Learned, layout: Layout, n: int, rng: np.random.Generator, given: Conditions
    ) -> np.ndarray:
        cells = Cells.from_tensors(layout.variables, learned.tensors)
        order, parent = learned.tensors["order"].tolist(), learned.tensors["parent"].tolist()
        likely = _evidence(layout, cells, given)
        tables = {}
        for i in reversed(
            order
        ):  # from the leaves up: how likely is what is given, for each value of the parent
            tables[i] = learned.tensors[f"share.{i}"].numpy() * likely[i]
            if parent[i] >= 0:
                likely[parent[i]] = likely[parent[i]] * tables[i].sum(axis=1)
        if not tables[
            order[0]
        ].sum():  # cannot happen together: drawn freely, nothing will match, and the caller says so
            tables = {i: learned.tensors[f"share.{i}"].numpy() for i in order}
        codes = np.empty((n, len(order)), dtype=np.int64)
        for i in order:
            above = codes[:, parent[i]] if parent[i] >= 0 else np.zeros(n, dtype=np.int64)
            codes[:, i] = pick(np.atleast_2d(tables[i]), above, uniforms_within(above, rng, self.even))
        return cells.decode(codes, rng)


def tree(codes: np.ndarray, sizes: list[int]) -> tuple[list[int], list[int]]:
    """The columns from the root outwards, and the parent of each (−1: the root). Prim's algorithm on mutual
    information.
    """
    d = len(sizes)
    gain = np.full((d, d), -np.inf)
    for i, j in combinations(range(d), 2):
        gain[i, j] = gain[j, i] = information(counts_of(codes, sizes, i, j))
    order, parent = [0], [-1] * d
    best, by = gain[0].copy(), np.zeros(d, dtype=np.int64)
    best[0] = -np.inf
    for _ in range(d - 1):
        new = int(np.argmax(np.where(np.isin(np.arange(d), order), -np.inf, best)))
        parent[new] = int(by[new])
        order.append(new)
        nearer = gain[new] > best
        best, by = np.where(nearer, gain[new], best), np.where(nearer, new, by)
    return order, parent


def counts_of(codes: np.ndarray, sizes: list[int], i: int, j: int) -> np.ndarray:
    return (
        np.bincount(codes[:, i] * sizes[j] + codes[:, j], minlength=sizes[i] * sizes[j])
        .reshape(sizes[i], sizes[j])
        .astype(np.float64)
    )


def information(table: np.ndarray) -> float:
    """Mutual information in nats, less what independent columns of so many cells show by chance (Miller
    1955).
    """
    n = table.sum()
    p = table / n
    outer = p.sum(axis=1, keepdims=True) * p.sum(axis=0, keepdims=True)
    there = p > 0
    used = (int((p.sum(axis=1) > 0).sum()) - 1) * (int((p.sum(axis=0) > 0).sum()) - 1)
    return float((p[there] * np.log(p[there] / outer[there])).sum() - used / (2 * n))


def pick(tables: np.ndarray, rows: np.ndarray, u: np.ndarray) -> np.ndarray:
    """For each u, the cell where the distribution in line `rows` of the tables passes it: one sorted search
    over all lines.
    """
    total = np.cumsum(tables, axis=1)
    sums = total[:, -1:]
    total = np.divide(total, sums, out=np.zeros_like(total), where=sums > 0) + np.arange(len(tables))[:, None]
    found = np.searchsorted(total.ravel(), rows + u, side="right") - rows * tables.shape[1]
    last = tables.shape[1] - 1 - np.argmax(tables[:, ::-1] > 0, axis=1)
    return np.clip(found, 0, last[rows])


def _evidence(layout: Layout, cells: Cells, given: Conditions) -> list[np.ndarray]:
    """For each column, 1 for the cells that what is given allows."""
    likely = [np.ones(size) for size in cells.sizes]
    for i, fine in layout.fitting(given).items():
        likely[i] = fine.astype(np.float64)
    for i, var in enumerate(layout.variables):
        j = var.columns[0]
        if var.levels or (j not in given.among and j not in given.between):
            continue
        low, high = cells.knots[i][:, 0], cells.knots[i][:, -1]
        wanted = [given.between[j]] if j in given.between else [(w, w) for w in given.among[j] if w == w]
        half = (
            layout.table.modelled[j].step or 0
        ) / 2  # a value is rounded to the grid, so half a step beside it may become it
        touched = np.any(
            [(low <= b + half) & (high >= a - half) for a, b in wanted] or [np.zeros(len(low), dtype=bool)],
            axis=0,
        )
        if var.missing:
            touched = np.append(touched, j in given.among and bool(np.isnan(given.among[j]).any()))
        likely[i] = touched.astype(np.float64)
    return likely
