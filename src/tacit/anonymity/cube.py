"""A table of counts with all its totals, as cells and the sums that hold between them.

A dimension is a tree: its leaves are the values of a column, its root is the total, and the nodes between
come from a hierarchy (districts in regions). The table has a cell for every combination of nodes. For each
dimension and each node with children, the cell of the node is the sum of the cells of its children, whatever
the other dimensions are.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas

from ..errors import BadData
from .codes import encode_used
from .hierarchies import NULL, Hierarchy, as_hierarchy

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

MISSING = "missing"
MAX_CELLS = 10_000  # a linear program of this size takes a second, and there are two for each small cell


@dataclass(frozen=True)
class Dimension:
    """A tree of words. Leaves come first, the total last; `parent` of the total is −1."""

    name: str
    words: list[str]
    parent: np.ndarray
    leaves: int

    @classmethod
    def from_hierarchy(cls, name: str, hierarchy: Hierarchy, total: str) -> Dimension:
        """The nodes of a hierarchy; a node with a single child is the same as its child."""
        values = [MISSING if v == NULL else v for v in hierarchy.values]
        words, at = list(values), list(range(len(values)))  # the node of each value so far
        parent = [-1] * len(values)
        for level in hierarchy.levels[1:-1]:
            for word in dict.fromkeys(level):
                below = sorted({at[i] for i, w in enumerate(level) if w == word})
                if len(below) > 1:
                    words.append(MISSING if word == NULL else word)
                    parent.append(-1)
                    for node in below:
                        parent[node] = len(words) - 1
                    at = [len(words) - 1 if w == word else node for w, node in zip(level, at)]
        for node in set(at):
            parent[node] = len(words)
        words.append(total)
        parent.append(-1)
        repeated = sorted({w for w in words if words.count(w) > 1})
        if repeated:
            raise BadData(
                f"tabulate: {repeated[0]!r} would be two rows of column {name!r}. Use different words at "
                f"each level of its hierarchy, and none that is {total!r} (total=) or {MISSING!r} (nulls)."
            )
        return cls(name, words, np.array(parent), len(values))

    @cached_property
    def sums(self) -> np.ndarray:
        """[nodes, leaves]: the leaves below each node."""
        below = np.zeros((len(self.words), self.leaves), np.int64)
        below[: self.leaves] = np.eye(self.leaves, dtype=np.int64)
        for node in range(len(self.words) - 1):  # children come before their parents
            below[self.parent[node]] += below[node]
        return below

    @cached_property
    def equations(self) -> np.ndarray:
        """[nodes with children, nodes]: 1 for the node, −1 for its children."""
        rows = np.zeros((len(self.words) - self.leaves, len(self.words)))
        for node in range(len(self.words)):
            if node >= self.leaves:
                rows[node - self.leaves, node] = 1
            if self.parent[node] >= 0:
                rows[self.parent[node] - self.leaves, node] = -1
        return rows

    @property
    def depth(self) -> int:
        """Levels of sums: 1 for values and their total."""

        def height(node: int) -> int:
            return (
                0
                if node < self.leaves
                else 1 + max(height(int(c)) for c in np.flatnonzero(self.parent == node))
            )

        return height(len(self.words) - 1)


@dataclass(frozen=True)
class CountTable:
    """The counts of all cells, flattened in the order of `shape`."""

    dimensions: list[Dimension]
    counts: np.ndarray
    people: np.ndarray  # who contribute to each cell; the counts, unless people have several rows

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(d.words) for d in self.dimensions)

    @cached_property
    def equations(self) -> csr_matrix:
        """M with M · counts = 0: the sums between the cells."""
        from scipy import sparse

        parts = []
        for j, d in enumerate(self.dimensions):
            part = sparse.csr_matrix(np.ones((1, 1)))
            for i, other in enumerate(self.dimensions):
                part = sparse.kron(part, d.equations if i == j else sparse.identity(len(other.words)), "csr")
            parts.append(part)
        return sparse.vstack(parts, "csr")

    @cached_property
    def least(self) -> np.ndarray:
        """The smallest count of each cell for a reader who knows the empty ones: every other has a row."""
        inside = self.counts.reshape(self.shape)[tuple(slice(d.leaves) for d in self.dimensions)]
        return _add_totals((inside > 0).astype(np.int64), self.dimensions).reshape(-1)

    @property
    def is_network(self) -> bool:
        """Whether the extreme tables of a linear program have whole numbers: two dimensions at most, one of
        them with a single total."""
        deep = sum(d.depth > 1 for d in self.dimensions)
        return len(self.dimensions) <= 2 and deep <= 1

    def to_frame(self, values: Any) -> pandas.DataFrame:
        """One row per cell: the words of its nodes, and its value."""
        combinations = itertools.product(*(d.words for d in self.dimensions))
        frame = pandas.DataFrame(list(combinations), columns=[d.name for d in self.dimensions])
        return frame.assign(count=values)


def count_cells(
    frame: pandas.DataFrame,
    by: Sequence[str],
    hierarchies: Mapping[str, Any],
    total: str,
    person: np.ndarray | None,
) -> CountTable:
    """Count the rows of each cell, and the people in it."""
    dimensions, codes = [], []
    for name in by:
        code, words = encode_used(frame[name])
        source = hierarchies.get(name)
        # without a hierarchy: the values and the total, sorted as people expect them
        order = sorted(range(len(words)), key=lambda i: _sort_key(words[i]))
        rank = np.argsort(order)
        words = [words[i] for i in order]
        hierarchy = (
            Hierarchy.from_rows([[w, "*"] for w in words])
            if source is None
            else as_hierarchy(source, name, words)
        )
        position = {v: i for i, v in enumerate(hierarchy.values)}
        dimensions.append(Dimension.from_hierarchy(name, hierarchy, total))
        codes.append(np.array([position[w] for w in words])[rank][code])
    cells = int(np.prod([len(d.words) for d in dimensions], dtype=float))
    if cells > MAX_CELLS:
        raise BadData(
            f"tabulate: the table would have {cells:,} cells with its totals, more than {MAX_CELLS:,}. Use "
            "fewer columns, or columns with fewer values."
        )
    inner = np.zeros([d.leaves for d in dimensions], np.int64)
    np.add.at(inner, tuple(codes), 1)
    counts = _add_totals(inner, dimensions).reshape(-1)
    people = counts if person is None else _count_people(dimensions, codes, person)
    return CountTable(dimensions, counts, people)


def _sort_key(word: str) -> tuple[int, float, str]:
    try:
        return (0, float(word), word)
    except ValueError:
        return (2 if word == NULL else 1, 0.0, word)


def _add_totals(inner: np.ndarray, dimensions: Sequence[Dimension]) -> np.ndarray:
    for axis, d in enumerate(dimensions):
        inner = np.moveaxis(np.tensordot(d.sums, inner, axes=(1, axis)), 0, axis)
    return inner


def _count_people(
    dimensions: Sequence[Dimension], codes: Sequence[np.ndarray], person: np.ndarray
) -> np.ndarray:
    """People of each cell: a person with rows in two cells counts once in their total."""
    paths = []  # for each dimension, the node of each row at each level above it; −1 where there is none
    for d, code in zip(dimensions, codes):
        node, levels = code.copy(), []
        while (node >= 0).any():
            levels.append(node)
            node = np.where(node >= 0, d.parent[node], -1)
        paths.append(levels)
    shape = [len(d.words) for d in dimensions]
    number, pairs = int(person.max(initial=0)) + 1, []
    for nodes in itertools.product(*paths):
        inside = np.all([n >= 0 for n in nodes], axis=0)
        cell = np.ravel_multi_index(tuple(n[inside] for n in nodes), shape)
        pairs.append(np.unique(cell * number + person[inside]))
    return np.bincount(np.unique(np.concatenate(pairs)) // number, minlength=int(np.prod(shape)))
