"""A dependence tree of columns.

C. K. Chow, C. N. Liu, *Approximating discrete probability distributions with dependence trees*, 1968: the
tree whose edges carry the most mutual information has the highest likelihood. Columns are drawn from the root
outwards, each given its parent. Conditions are propagated through the tree first (J. Pearl, *Reverend Bayes
on inference engines*, 1982), so no row is rejected.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from ..parameters import flag, real, whole
from .encode import EVEN, Conditions, Discretizer, Layout, cell_likelihoods, uniforms_within
from .generator import Generator, GeneratorState, Watch


@dataclass(frozen=True)
class Bayes(Generator):
    """The maximum-likelihood tree, with one conditional table per edge."""

    bins: int = whole(24, least=2, doc="cells of a numeric column; more cells make the tables sparse")
    smoothing: float = real(
        0.5, least=0, doc="pseudo-rows of the child's marginal distribution added to every line of a table"
    )
    even: bool = flag(True, doc=EVEN)
    seed: int = whole(0, least=0, doc="random seed of the fit")

    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> GeneratorState:
        cells = Discretizer.from_data(layout.variables, v, self.bins)
        codes, sizes = cells.encode(v), cells.sizes
        order, parent = fit_tree(codes, sizes)
        tensors: dict[str, Tensor] = {
            "order": torch.tensor(order),
            "parent": torch.tensor(parent),
            **cells.tensors(),
        }
        for i, up in enumerate(parent):
            own = np.bincount(codes[:, i], minlength=sizes[i]) / len(v)
            if up >= 0:
                table = count_pairs(codes, sizes, up, i) + self.smoothing * own
                own = np.divide(
                    table,
                    table.sum(axis=1, keepdims=True),
                    out=np.tile(own, (sizes[up], 1)),
                    where=table.sum(axis=1, keepdims=True) > 0,
                )
            tensors[f"share.{i}"] = torch.from_numpy(own)
        return GeneratorState(tensors)

    def draw(
        self, state: GeneratorState, layout: Layout, n: int, rng: np.random.Generator, conditions: Conditions
    ) -> np.ndarray:
        cells = Discretizer.from_tensors(layout.variables, state.tensors)
        order, parent = state.tensors["order"].tolist(), state.tensors["parent"].tolist()
        likely = cell_likelihoods(layout, cells, conditions)
        tables = {}
        for i in reversed(order):  # from the leaves up: likelihood of the conditions for each parent value
            tables[i] = state.tensors[f"share.{i}"].numpy() * likely[i]
            if parent[i] >= 0:
                likely[parent[i]] = likely[parent[i]] * tables[i].sum(axis=1)
        if not tables[order[0]].sum():  # impossible conditions: draw unconditionally; the caller will raise
            tables = {i: state.tensors[f"share.{i}"].numpy() for i in order}
        codes = np.empty((n, len(order)), dtype=np.int64)
        for i in order:
            above = codes[:, parent[i]] if parent[i] >= 0 else np.zeros(n, dtype=np.int64)
            codes[:, i] = pick_cells(np.atleast_2d(tables[i]), above, uniforms_within(above, rng, self.even))
        return cells.decode(codes, rng)


def fit_tree(codes: np.ndarray, sizes: list[int]) -> tuple[list[int], list[int]]:
    """Return the columns from the root outwards, and the parent of each (−1: the root).

    Prim's algorithm on mutual information.
    """
    d = len(sizes)
    gain = np.full((d, d), -np.inf)
    for i, j in combinations(range(d), 2):
        gain[i, j] = gain[j, i] = mutual_information(count_pairs(codes, sizes, i, j))
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


def count_pairs(codes: np.ndarray, sizes: list[int], i: int, j: int) -> np.ndarray:
    """Return the two-way counts of columns i and j."""
    return (
        np.bincount(codes[:, i] * sizes[j] + codes[:, j], minlength=sizes[i] * sizes[j])
        .reshape(sizes[i], sizes[j])
        .astype(np.float64)
    )


def mutual_information(table: np.ndarray) -> float:
    """Return mutual information in nats, corrected for its bias (Miller 1955)."""
    n = table.sum()
    p = table / n
    outer = p.sum(axis=1, keepdims=True) * p.sum(axis=0, keepdims=True)
    positive = p > 0
    used = (int((p.sum(axis=1) > 0).sum()) - 1) * (int((p.sum(axis=0) > 0).sum()) - 1)
    return float((p[positive] * np.log(p[positive] / outer[positive])).sum() - used / (2 * n))


def pick_cells(tables: np.ndarray, rows: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Return, for each u, the cell where the distribution in its line of `tables` exceeds it.

    `rows` are the lines; one sorted search covers all of them.
    """
    total = np.cumsum(tables, axis=1)
    sums = total[:, -1:]
    total = np.divide(total, sums, out=np.zeros_like(total), where=sums > 0) + np.arange(len(tables))[:, None]
    cell = np.searchsorted(total.ravel(), rows + u, side="right") - rows * tables.shape[1]
    last = tables.shape[1] - 1 - np.argmax(tables[:, ::-1] > 0, axis=1)
    return np.asarray(np.clip(cell, 0, last[rows]))
