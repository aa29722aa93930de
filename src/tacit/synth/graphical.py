"""A distribution over many columns from noisy marginals of a few.

R. McKenna, D. Sheldon, G. Miklau: *Graphical-model based estimation and inference for differential privacy*,
ICML 2019 (Private-PGM). Of all distributions whose marginals are closest to the measured ones (least squares,
weighted by the noise), the one of maximum entropy is a Markov random field over the measured column sets.
Algorithm 1 (proximal, entropic mirror descent) finds its parameters, with belief propagation on a junction
tree. All of this is post-processing: no row of data is read.

A column is a number 0 … d − 1, a clique a sorted tuple of columns, its marginal an array with one axis per
column in that order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import BadParameter

Clique = tuple[int, ...]


@dataclass(frozen=True)
class Measurement:
    """A released marginal: counts with noise of this variance in each cell."""

    clique: Clique
    counts: np.ndarray
    variance: float


def count_cells(clique: Iterable[int], sizes: Sequence[int]) -> int:
    """Return the cells of a marginal as a Python integer, which does not overflow."""
    return math.prod(int(sizes[column]) for column in clique)


def triangulate(cliques: Iterable[Clique], sizes: Sequence[int]) -> list[Clique]:
    """Return the maximal cliques after eliminating columns one by one.

    Greedy: always the column whose clique has the fewest cells; ties by number.
    """
    neighbors: dict[int, set[int]] = {i: set() for i in range(len(sizes))}
    for clique in cliques:
        for a, b in itertools.permutations(clique, 2):
            neighbors[a].add(b)
    eliminated: list[set[int]] = []
    while neighbors:
        column = min(neighbors, key=lambda i: (count_cells(neighbors[i] | {i}, sizes), i))
        adjacent = neighbors.pop(column)
        for a in adjacent:
            neighbors[a] |= adjacent - {a}
            neighbors[a].discard(column)
        eliminated.append(adjacent | {column})
    return sorted(
        tuple(sorted(c))
        for k, c in enumerate(eliminated)
        if not any(c < o or (c == o and j < k) for j, o in enumerate(eliminated))
    )


def tree_cells(cliques: Iterable[Clique], sizes: Sequence[int]) -> int:
    """Return the size of the model: the cells of all cliques of its junction tree."""
    return sum(count_cells(c, sizes) for c in triangulate(cliques, sizes))


@dataclass
class JunctionTree:
    """Cliques in an order where parents come first.

    `parent[k]` is −1 for the root alone. Components that share no column are joined by an empty separator.
    """

    cliques: list[Clique]
    parent: list[int]
    separator: list[Clique]
    _homes: dict[Clique, int] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def over(cls, measured: Iterable[Clique], sizes: Sequence[int]) -> JunctionTree:
        """Build a junction tree over the measured cliques."""
        cliques = triangulate(measured, sizes)
        # A maximum spanning tree by separator size of a triangulated graph's cliques is a junction tree
        # (Prim's algorithm).
        parent = [-1]
        separator: list[Clique] = [()]
        joined: list[Clique] = [cliques[0]]
        left = set(range(1, len(cliques)))
        best = {k: (len(set(cliques[k]) & set(cliques[0])), 0) for k in left}
        while left:
            k = max(left, key=lambda j: (best[j][0], -j))
            left.remove(k)
            parent.append(best[k][1])
            separator.append(tuple(sorted(set(cliques[k]) & set(joined[best[k][1]]))))
            joined.append(cliques[k])
            for j in left:
                best[j] = max(
                    best[j],
                    (len(set(cliques[j]) & set(cliques[k])), len(joined) - 1),
                    key=lambda pair: pair[0],
                )
        return cls(joined, parent, separator)

    def find_clique(self, clique: Clique) -> int:
        """Return the first clique that contains these columns."""
        if clique not in self._homes:  # asked in every step of a fit
            wanted = set(clique)
            self._homes[clique] = next(k for k, c in enumerate(self.cliques) if wanted <= set(c))
        return self._homes[clique]

    def growth_bounds(self, sizes: Sequence[int]) -> Callable[[int, int], int]:
        """Return a function that bounds how many cells the tree gains if a pair of columns is added.

        A pair of columns from two components is one more clique. Within a component, one of the two may be
        added to all cliques on the way to the other: that is a junction tree again, so a best one has at most
        as many cells. Triangulating anew for each of 5,000 pairs would take half a minute.
        """
        cells = [count_cells(c, sizes) for c in self.cliques]
        near: list[list[int]] = [[] for _ in self.cliques]
        for k, (up, separator) in enumerate(zip(self.parent, self.separator)):
            if separator:
                near[k].append(up)
                near[up].append(k)
        reached: list[dict[int, int]] = []  # of each column: the cells that it would add on the way to others
        for a, size in enumerate(sizes):
            cost = {k: 0 for k, c in enumerate(self.cliques) if a in c}
            queue = list(cost)
            for k in queue:  # grows while it is read
                for other in near[k]:
                    if other not in cost:
                        cost[other] = cost[k] + cells[other] * (size - 1)
                        queue.append(other)
            column: dict[int, int] = {}
            for k, c in cost.items():
                for b in self.cliques[k]:
                    column[b] = min(c, column.get(b, c))
            reached.append(column)

        def bound(a: int, b: int) -> int:
            if b not in reached[a]:
                return sizes[a] * sizes[b]
            return min(reached[a][b], reached[b][a])

        return bound


def _axes_without(clique: Clique, columns: Iterable[int]) -> tuple[int, ...]:
    """Return the axes of `clique` that are not in `columns`."""
    return tuple(axis for axis, c in enumerate(clique) if c not in set(columns))


def _broadcast(array: np.ndarray, columns: Clique, clique: Clique) -> np.ndarray:
    """Reshape an array over `columns` so that it broadcasts over `clique`."""
    shape = [1] * len(clique)
    for axis, column in enumerate(columns):
        shape[clique.index(column)] = array.shape[axis]
    return array.reshape(shape)


def _einsum(parts: list[Any], columns: list[int]) -> np.ndarray:
    """Sum products over all columns except `columns`.

    numpy allows at most 52 axis labels, so columns are relabeled for each call.
    """
    label = {column: k for k, column in enumerate(dict.fromkeys(c for axes in parts[1::2] for c in axes))}
    renamed = [part if k % 2 == 0 else [label[c] for c in part] for k, part in enumerate(parts)]
    return np.asarray(np.einsum(*renamed, [label[c] for c in columns], optimize=len(parts) > 2))


@dataclass
class Model:
    """A calibrated Markov random field.

    The marginal of each clique, and each clique given its separator, as probabilities.
    """

    sizes: tuple[int, ...]
    tree: JunctionTree
    total: float
    marginals: list[np.ndarray] = field(repr=False)
    conditionals: list[np.ndarray] = field(repr=False)
    potentials: dict[Clique, np.ndarray] = field(repr=False, default_factory=dict)

    @classmethod
    def from_conditionals(
        cls,
        sizes: tuple[int, ...],
        tree: JunctionTree,
        total: float,
        conditionals: list[np.ndarray],
        potentials: dict[Clique, np.ndarray] | None = None,
    ) -> Model:
        """Compute the marginals from root to leaves.

        A clique's marginal is its conditional times the separator's marginal, which comes from the parent.
        """
        marginals = [conditionals[0]]
        for k in range(1, len(conditionals)):
            separator, up = tree.separator[k], tree.parent[k]
            marginal = marginals[up].sum(axis=_axes_without(tree.cliques[up], separator))
            marginals.append(conditionals[k] * _broadcast(np.asarray(marginal), separator, tree.cliques[k]))
        return cls(sizes, tree, total, marginals, conditionals, potentials or {})

    def marginal(self, columns: Sequence[int]) -> np.ndarray:
        """Return the model's probabilities over any columns, in this order.

        Variables are eliminated along the junction tree.
        """
        targets = set(columns)
        if len(targets) != len(columns) or not targets <= set(range(len(self.sizes))):
            raise BadParameter(
                f"marginal: columns are {tuple(columns)!r}; they must be distinct numbers from 0 to "
                f"{len(self.sizes) - 1}."
            )
        below = self._below()
        # parents come first, so the last clique is the lowest
        top = max(k for k in range(len(self.tree.cliques)) if targets <= below[k])
        table, axes = self._eliminate(top, targets, below, self.marginals[top])
        return _einsum([table, axes], list(columns))

    def _below(self) -> list[set[int]]:
        below = [set(c) for c in self.tree.cliques]
        for k in range(len(below) - 1, 0, -1):
            below[self.tree.parent[k]] |= below[k]
        return below

    def _eliminate(
        self, k: int, targets: set[int], below: list[set[int]], factor: np.ndarray
    ) -> tuple[np.ndarray, list[int]]:
        clique, separator = self.tree.cliques[k], self.tree.separator[k]
        parts: list[Any] = [factor, list(clique)]
        axes = set(clique)
        for child in range(k + 1, len(self.tree.cliques)):
            if self.tree.parent[child] == k and (below[child] & targets) - set(clique):
                parts += self._eliminate(child, targets, below, self.conditionals[child])
                axes |= set(parts[-1])
        top = factor is self.marginals[k]
        remaining = sorted(axes & (targets | (set() if top else set(separator))))
        return _einsum(parts, remaining), remaining

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Sample `n` rows of codes.

        A clique is drawn given its separator. Rows with equal separators are shuffled first, so that columns
        that are conditionally independent in the model are so in the sample. Within such a group, cells
        receive their expected numbers rounded at random (systematic sampling): the expectation is the
        model's, and the error is less than one row per cell, instead of a square root for independent draws.
        """
        rows = np.zeros((n, len(self.sizes)), np.int64)
        for k, clique in enumerate(self.tree.cliques):
            separator = self.tree.separator[k]
            new = [c for c in clique if c not in separator]
            if not new:
                continue
            front = np.transpose(self.conditionals[k], [clique.index(c) for c in (*separator, *new)])
            conditional = front.reshape(count_cells(separator, self.sizes), -1)
            where = (
                np.ravel_multi_index(rows[:, list(separator)].T, [self.sizes[c] for c in separator])
                if separator
                else np.zeros(n, np.int64)
            )
            groups, member, count = np.unique(where, return_inverse=True, return_counts=True)
            order = np.lexsort((rng.random(n), member))
            drawn = np.empty(n, np.int64)
            start = 0
            step = max(1, 4_000_000 // conditional.shape[1])  # groups at a time, to bound memory
            for first in range(0, len(groups), step):
                size = count[first : first + step]
                edge = np.cumsum(conditional[groups[first : first + step]], axis=1)
                edge = edge / edge[:, -1:] * size[:, None]
                edge[:, -1] = size
                cumulative = np.floor(edge + rng.random((len(size), 1)))
                numbers = np.diff(cumulative, axis=1, prepend=0.0).astype(np.int64)
                numbers[:, -1] += size - numbers.sum(axis=1)  # corrects floating-point errors
                values = np.repeat(np.tile(np.arange(conditional.shape[1]), len(size)), numbers.ravel())
                drawn[order[start : start + len(values)]] = values
                start += len(values)
            for column, code in zip(new, np.unravel_index(drawn, [self.sizes[c] for c in new])):
                rows[:, column] = code
        return rows


def propagate_beliefs(
    tree: JunctionTree, sizes: Sequence[int], potentials: Mapping[Clique, np.ndarray], total: float
) -> Model:
    """Run belief propagation: leaves to root in log space, then root to leaves."""
    beliefs = [np.zeros([sizes[c] for c in clique]) for clique in tree.cliques]
    for clique, theta in potentials.items():
        k = tree.find_clique(clique)
        beliefs[k] += _broadcast(theta, clique, tree.cliques[k])
    conditionals: list[np.ndarray] = [np.empty(0)] * len(beliefs)
    for k in range(len(beliefs) - 1, -1, -1):
        clique, separator = tree.cliques[k], tree.separator[k]
        over = _axes_without(clique, separator)
        top = beliefs[k].max(axis=over, keepdims=True)
        grown = np.exp(beliefs[k] - top)
        size = grown.sum(axis=over, keepdims=True)
        conditionals[k] = grown / size
        if k:
            message = (np.log(size) + top).reshape([sizes[c] for c in separator])
            up = tree.parent[k]
            beliefs[up] += _broadcast(message, separator, tree.cliques[up])
    return Model.from_conditionals(tuple(sizes), tree, total, conditionals, dict(potentials))


def estimate_total(measurements: Sequence[Measurement]) -> float:
    """Estimate the number of rows from the noisy marginals alone.

    Each marginal's sum is an estimate, weighted by its variance.
    """
    weights = [1.0 / (m.variance * m.counts.size) for m in measurements]
    return max(1.0, sum(w * float(m.counts.sum()) for w, m in zip(weights, measurements)) / sum(weights))


def fit_model(
    measurements: Sequence[Measurement],
    sizes: Sequence[int],
    *,
    steps: int = 300,
    start: Model | None = None,
    tolerance: float = 1e-5,
) -> Model:
    """Fit a model by Algorithm 1 with line search: μ = marginals(θ), θ ← θ − α ∇L(μ).

    `start` provides initial parameters for the cliques it shares.
    """
    if not measurements:
        raise BadParameter("fit_model: there are no measurements; at least one noisy marginal is needed.")
    total = estimate_total(measurements)
    # repeated measurements of one set are averaged, weighted by their precision
    means: dict[Clique, tuple[np.ndarray, float]] = {}
    for m in measurements:
        mean, weight = means.get(m.clique, (np.zeros(m.counts.shape), 0.0))
        combined = weight + 1 / m.variance
        means[m.clique] = ((mean * weight + m.counts / m.variance) / combined, combined)
    tree = JunctionTree.over(means, sizes)
    heaviest = max(w for _, w in means.values())
    targets = {c: (mean / total, weight / heaviest) for c, (mean, weight) in means.items()}
    before = start.potentials if start else {}
    theta = {c: before.get(c, np.zeros([sizes[i] for i in c])) for c in means}
    theta.update({c: p for c, p in before.items() if c not in means})

    def loss(model: Model) -> tuple[float, dict[Clique, np.ndarray], dict[Clique, np.ndarray]]:
        value, slope, current = 0.0, {}, {}
        for clique, (target, weight) in targets.items():
            k = tree.find_clique(clique)
            current[clique] = model.marginals[k].sum(axis=_axes_without(tree.cliques[k], clique))
            residual = current[clique] - target
            value += 0.5 * weight * float((residual**2).sum())
            slope[clique] = weight * residual
        return value, slope, current

    model = propagate_beliefs(tree, sizes, theta, total)
    value, slope, current = loss(model)
    # somewhat more than 1/L of the entropic geometry; the line search corrects it
    alpha = 4.0 / sum(w for _, w in targets.values())
    quiet = 0
    for _ in range(steps):
        for _ in range(40):
            trial = theta | {c: theta[c] - alpha * g for c, g in slope.items()}
            tried = propagate_beliefs(tree, sizes, trial, total)
            new, new_slope, new_current = loss(tried)
            gained = sum(float((g * (current[c] - new_current[c])).sum()) for c, g in slope.items())
            if value - new >= 0.5 * gained:
                break
            alpha *= 0.5
        else:
            break
        quiet = quiet + 1 if value - new <= tolerance * value else 0
        theta, model, value, slope, current = trial, tried, new, new_slope, new_current
        if quiet >= 5:
            break
        alpha *= 1.4
    return model
