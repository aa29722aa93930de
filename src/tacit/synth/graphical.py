"""A distribution over many columns from noisy marginals of a few: junction tree, belief propagation, mirror
descent.

McKenna, Sheldon, Miklau: *Graphical-model based estimation and inference for differential privacy*, ICML 2019
(Private-PGM). Of all distributions whose marginals come nearest to the measured ones (least squares, weighted
by the noise), the one of maximum entropy is a Markov random field over the measured column sets; Algorithm 1
(proximal, entropic mirror descent) finds its parameters. All of it is post-processing: no row of data is read
here.

A column is a number 0 … d − 1, a clique a sorted tuple of columns, its marginal an array with one axis a
column in that order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import BadParameter

Clique = tuple[int, ...]


@dataclass(frozen=True)
class Measurement:
    """What was released about one set of columns: counts with noise of this variance in each cell."""

    clique: Clique
    counts: np.ndarray
    variance: float


def cells(clique: Iterable[int], sizes: Sequence[int]) -> int:
    """How many cells the marginal has, as a Python integer: products of many columns overflow others."""
    total = 1
    for column in clique:
        total *= int(sizes[column])
    return total


def triangulated(cliques: Iterable[Clique], sizes: Sequence[int]) -> list[Clique]:
    """Maximal cliques after eliminating columns one by one, always the one whose clique has the fewest cells
    (greedy; ties by number).
    """
    near: dict[int, set[int]] = {i: set() for i in range(len(sizes))}
    for clique in cliques:
        for a, b in itertools.permutations(clique, 2):
            near[a].add(b)
    made: list[set[int]] = []
    while near:
        column = min(near, key=lambda i: (cells(near[i] | {i}, sizes), i))
        around = near.pop(column)
        for a in around:
            near[a] |= around - {a}
            near[a].discard(column)
        made.append(around | {column})
    return sorted(
        tuple(sorted(c))
        for k, c in enumerate(made)
        if not any(c < o or (c == o and j < k) for j, o in enumerate(made))
    )


def tree_cells(cliques: Iterable[Clique], sizes: Sequence[int]) -> int:
    """The model's size: cells of all cliques of its junction tree."""
    return sum(cells(c, sizes) for c in triangulated(cliques, sizes))


@dataclass
class JunctionTree:
    """Cliques in an order where parents come first; `parent[k]` is −1 for the root alone. Parts that share no
    column hang on an empty separator.
    """

    cliques: list[Clique]
    parent: list[int]
    separator: list[Clique]

    @classmethod
    def over(cls, measured: Iterable[Clique], sizes: Sequence[int]) -> JunctionTree:
        cliques = triangulated(measured, sizes)
        # A spanning tree of maximum separator size over the cliques of a triangulated graph is a junction
        # tree (Prim's way).
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

    def home(self, clique: Clique) -> int:
        """The first clique that holds these columns."""
        return next(k for k, c in enumerate(self.cliques) if set(clique) <= set(c))


def _kept(clique: Clique, columns: Iterable[int]) -> tuple[int, ...]:
    """The axes of `clique` that are not in `columns`."""
    gone = set(columns)
    return tuple(axis for axis, c in enumerate(clique) if c not in gone)


def _wide(array: np.ndarray, columns: Clique, clique: Clique) -> np.ndarray:
    """An array over `columns` as one that broadcasts over `clique`."""
    shape = [1] * len(clique)
    for axis, column in enumerate(columns):
        shape[clique.index(column)] = array.shape[axis]
    return array.reshape(shape)


def _einsum(parts: list, kept: list[int]) -> np.ndarray:
    """Sum of products over all columns but `kept`. numpy names at most 52 axes, so columns are numbered anew
    for each call.
    """
    label = {column: k for k, column in enumerate(dict.fromkeys(c for axes in parts[1::2] for c in axes))}
    renamed = [part if k % 2 == 0 else [label[c] for c in part] for k, part in enumerate(parts)]
    return np.einsum(*renamed, [label[c] for c in kept], optimize=len(parts) > 2)


@dataclass
class Model:
    """A calibrated Markov random field: the marginal of each clique, and each clique given its separator, as
    probabilities.
    """

    sizes: tuple[int, ...]
    tree: JunctionTree
    total: float
    marginals: list[np.ndarray] = field(repr=False)
    conditionals: list[np.ndarray] = field(repr=False)
    potentials: dict[Clique, np.ndarray] = field(repr=False, default_factory=dict)

    @classmethod
    def of_conditionals(
        cls,
        sizes: tuple[int, ...],
        tree: JunctionTree,
        total: float,
        conditionals: list[np.ndarray],
        potentials: dict[Clique, np.ndarray] | None = None,
    ) -> Model:
        """Root to leaves: a clique's marginal is its conditional times the separator's marginal, which the
        parent knows.
        """
        marginals = [conditionals[0]]
        for k in range(1, len(conditionals)):
            separator, up = tree.separator[k], tree.parent[k]
            held = marginals[up].sum(axis=_kept(tree.cliques[up], separator))
            marginals.append(conditionals[k] * _wide(np.asarray(held), separator, tree.cliques[k]))
        return cls(sizes, tree, total, marginals, conditionals, potentials or {})

    def marginal(self, columns: Sequence[int]) -> np.ndarray:
        """The model's probabilities over any columns, in the order given; variables are eliminated along the
        junction tree.
        """
        wanted = set(columns)
        if len(wanted) != len(columns) or not wanted <= set(range(len(self.sizes))):
            raise BadParameter(
                f"marginal: columns are {tuple(columns)!r}; they must be different numbers from 0 to "
                f"{len(self.sizes) - 1}."
            )
        below = self._below()
        top = max(
            k for k in range(len(self.tree.cliques)) if wanted <= below[k]
        )  # parents come first, so the last is the lowest
        found, axes = self._eliminated(top, wanted, below, self.marginals[top])
        return _einsum([found, axes], list(columns))

    def _below(self) -> list[set[int]]:
        below = [set(c) for c in self.tree.cliques]
        for k in range(len(below) - 1, 0, -1):
            below[self.tree.parent[k]] |= below[k]
        return below

    def _eliminated(
        self, k: int, wanted: set[int], below: list[set[int]], factor: np.ndarray
    ) -> tuple[np.ndarray, list[int]]:
        clique, separator = self.tree.cliques[k], self.tree.separator[k]
        parts: list = [factor, list(clique)]
        held = set(clique)
        for child in range(k + 1, len(self.tree.cliques)):
            if self.tree.parent[child] == k and (below[child] & wanted) - set(clique):
                parts += self._eliminated(child, wanted, below, self.conditionals[child])
                held |= set(parts[-1])
        top = factor is self.marginals[k]
        kept = sorted(held & (wanted | (set() if top else set(separator))))
        return _einsum(parts, kept), kept

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """`n` rows of codes. A clique is drawn given its separator, and rows alike in the separator are
        shuffled before they are dealt, so that columns the model holds to be independent given the separator
        are so in the sample too.

        Within such a group cells get their expected numbers rounded at random (systematic sampling): the
        expectation is the model's, and the sample strays from it by less than a row a cell, where independent
        draws would stray by a square root.
        """
        rows = np.zeros((n, len(self.sizes)), np.int64)
        for k, clique in enumerate(self.tree.cliques):
            separator = self.tree.separator[k]
            new = [c for c in clique if c not in separator]
            if not new:
                continue
            front = np.transpose(self.conditionals[k], [clique.index(c) for c in (*separator, *new)])
            given = front.reshape(cells(separator, self.sizes), -1)
            where = (
                np.ravel_multi_index(rows[:, list(separator)].T, [self.sizes[c] for c in separator])
                if separator
                else np.zeros(n, np.int64)
            )
            groups, member, count = np.unique(where, return_inverse=True, return_counts=True)
            order = np.lexsort((rng.random(n), member))
            drawn = np.empty(n, np.int64)
            start = 0
            step = max(1, 4_000_000 // given.shape[1])  # groups at a time, so that memory stays bounded
            for first in range(0, len(groups), step):
                size = count[first : first + step]
                edge = np.cumsum(given[groups[first : first + step]], axis=1)
                edge = edge / edge[:, -1:] * size[:, None]
                edge[:, -1] = size
                upto = np.floor(edge + rng.random((len(size), 1)))
                held = np.diff(upto, axis=1, prepend=0.0).astype(np.int64)
                held[:, -1] += size - held.sum(
                    axis=1
                )  # a start of u rounds down to 0 and ends at n: only floating point can miss it
                values = np.repeat(np.tile(np.arange(given.shape[1]), len(size)), held.ravel())
                drawn[order[start : start + len(values)]] = values
                start += len(values)
            for column, code in zip(new, np.unravel_index(drawn, [self.sizes[c] for c in new])):
                rows[:, column] = code
        return rows


def calibrated(
    tree: JunctionTree, sizes: Sequence[int], potentials: Mapping[Clique, np.ndarray], total: float
) -> Model:
    """Belief propagation: leaves to root with sums in log space, then root to leaves with probabilities
    (`of_conditionals`).
    """
    beliefs = [np.zeros([sizes[c] for c in clique]) for clique in tree.cliques]
    for clique, theta in potentials.items():
        k = tree.home(clique)
        beliefs[k] += _wide(theta, clique, tree.cliques[k])
    conditionals: list[np.ndarray] = [np.empty(0)] * len(beliefs)
    for k in range(len(beliefs) - 1, -1, -1):
        clique, separator = tree.cliques[k], tree.separator[k]
        over = _kept(clique, separator)
        top = beliefs[k].max(axis=over, keepdims=True)
        grown = np.exp(beliefs[k] - top)
        size = grown.sum(axis=over, keepdims=True)
        conditionals[k] = grown / size
        if k:
            message = (np.log(size) + top).reshape([sizes[c] for c in separator])
            up = tree.parent[k]
            beliefs[up] += _wide(message, separator, tree.cliques[up])
    return Model.of_conditionals(tuple(sizes), tree, total, conditionals, dict(potentials))


def estimated_total(measurements: Sequence[Measurement]) -> float:
    """The number of rows, from the noisy marginals alone: each sum of cells is an estimate, weighted by its
    variance.
    """
    weights = [1.0 / (m.variance * m.counts.size) for m in measurements]
    return max(1.0, sum(w * float(m.counts.sum()) for w, m in zip(weights, measurements)) / sum(weights))


def fit(
    measurements: Sequence[Measurement],
    sizes: Sequence[int],
    *,
    steps: int = 300,
    start: Model | None = None,
    tolerance: float = 1e-5,
) -> Model:
    """Algorithm 1 of the paper with its line search: μ = marginals(θ), θ ← θ − α ∇L(μ). A `start` gives the
    parameters it shares.
    """
    if not measurements:
        raise BadParameter("fit: there is no measurement; at least one noisy marginal is needed.")
    total = estimated_total(measurements)
    joined: dict[
        Clique, tuple[np.ndarray, float]
    ] = {}  # repeated measurements of one set, as their weighted mean
    for m in measurements:
        mean, weight = joined.get(m.clique, (np.zeros(m.counts.shape), 0.0))
        grown = weight + 1 / m.variance
        joined[m.clique] = ((mean * weight + m.counts / m.variance) / grown, grown)
    tree = JunctionTree.over(joined, sizes)
    heaviest = max(w for _, w in joined.values())
    targets = {c: (mean / total, weight / heaviest) for c, (mean, weight) in joined.items()}
    before = start.potentials if start else {}
    theta = {c: before.get(c, np.zeros([sizes[i] for i in c])) for c in joined}
    theta.update({c: p for c, p in before.items() if c not in joined})

    def loss(model: Model) -> tuple[float, dict[Clique, np.ndarray], dict[Clique, np.ndarray]]:
        value, slope, held = 0.0, {}, {}
        for clique, (target, weight) in targets.items():
            k = tree.home(clique)
            held[clique] = model.marginals[k].sum(axis=_kept(tree.cliques[k], clique))
            residual = held[clique] - target
            value += 0.5 * weight * float((residual**2).sum())
            slope[clique] = weight * residual
        return value, slope, held

    model = calibrated(tree, sizes, theta, total)
    value, slope, held = loss(model)
    alpha = 4.0 / sum(
        w for _, w in targets.values()
    )  # 1/L of the entropic geometry, and a little more; the search below corrects it
    quiet = 0
    for _ in range(steps):
        for _ in range(40):
            trial = theta | {c: theta[c] - alpha * g for c, g in slope.items()}
            tried = calibrated(tree, sizes, trial, total)
            new, new_slope, new_held = loss(tried)
            gained = sum(float((g * (held[c] - new_held[c])).sum()) for c, g in slope.items())
            if value - new >= 0.5 * gained:
                break
            alpha *= 0.5
        else:
            break
        quiet = quiet + 1 if value - new <= tolerance * value else 0
        theta, model, value, slope, held = trial, tried, new, new_slope, new_held
        if quiet >= 5:
            break
        alpha *= 1.4
    return model
