"""Hierarchies as trees of numbered nodes, for local recoding: lowest common ancestors and their shares.

A node is a value, or a word of a higher level. `row(a)` is, for node a and every node b, the share of the
domain that their lowest common ancestor covers; `join(a, b)` is the ancestor. Small columns are *fused*: one
node for a tuple of nodes, with the shares added up, so that the distance between two rows of nine columns
takes four lookups. Large columns (thousands of postal codes) answer without the table of all pairs.
"""

from __future__ import annotations

import functools

import numpy as np

from .table import Column

# nodes a fused column may have: a table of all pairs of 4 MB, one row of which fits into the L1 cache
FUSED = 1024
PAIRS = 4096  # nodes up to which all pairs are stored


class ColumnTree:
    """One column. Nodes are numbered level by level, level 0 first, so the node of a value is its code."""

    def __init__(self, column: Column):
        starts = np.cumsum([0] + [len(w) for w in column.words])
        self.size = int(starts[-1])
        self.level = np.repeat(np.arange(len(column.words)), np.diff(starts))
        self.words = [word for words in column.words for word in words]
        leaf = np.zeros(self.size, np.int64)  # a value below each node
        self.share = np.zeros(self.size)
        for level, up in enumerate(column.up):
            leaf[starts[level] + up] = np.arange(len(up))
            self.share[starts[level] + up] = column.share[level]
        # the ancestor of each node at each level; at levels below its own, the node itself
        self.above = np.stack(
            [
                np.where(self.level <= level, starts[level] + up[leaf], np.arange(self.size))
                for level, up in enumerate(column.up)
            ]
        )
        self.has_ancestor = np.stack([self.level <= level for level in range(len(column.up))])

    def meet(self, a: int) -> np.ndarray:
        """The lowest common ancestor of a and every node."""
        ancestor = np.full(self.size, self.above[-1, a])
        for level in range(len(self.above) - 2, int(self.level[a]) - 1, -1):
            is_shared = self.has_ancestor[level] & (self.above[level] == self.above[level, a])
            ancestor[is_shared] = self.above[level, a]
        return ancestor

    @functools.lru_cache(maxsize=512)  # noqa: B019  the tree lives as long as one run
    def row(self, a: int) -> np.ndarray:
        return np.asarray(self.share[self.meet(a)].astype(np.float32))

    def join(self, a: int, b: int) -> int:
        for level in range(max(int(self.level[a]), int(self.level[b])), len(self.above)):
            if self.above[level, a] == self.above[level, b]:
                return int(self.above[level, a])
        return int(self.above[-1, a])


class FusedColumn:
    """Several small columns as one, or a single column; node numbers in mixed radix."""

    def __init__(self, trees: list[ColumnTree]):
        self.trees, self.sizes = trees, [t.size for t in trees]
        self.size = int(np.prod(self.sizes))
        self.has_pairs = self.size <= PAIRS
        if self.has_pairs:
            rows, joins = np.zeros((1, 1), np.float32), np.zeros((1, 1), np.int32)
            for t in trees:
                meet = np.stack([t.meet(a) for a in range(t.size)]).astype(np.int32)
                share = t.share[meet].astype(np.float32)
                size = len(rows) * t.size
                rows = (rows[:, None, :, None] + share[None, :, None, :]).reshape(size, -1)
                joins = (joins[:, None, :, None] * t.size + meet[None, :, None, :]).reshape(size, -1)
            self.rows, self.joins = rows, joins

    def row(self, a: int) -> np.ndarray:
        return self.rows[a] if self.has_pairs else self.trees[0].row(a)

    def join(self, a: int, b: int) -> int:
        return self.joins.item(a, b) if self.has_pairs else self.trees[0].join(a, b)

    def encode(self, codes: np.ndarray) -> np.ndarray:
        """Nodes of codes [combinations, columns]."""
        nodes = np.zeros(len(codes), np.intp)
        for j, size in enumerate(self.sizes):
            nodes = nodes * size + codes[:, j]
        return nodes

    def decode(self, nodes: np.ndarray) -> list[np.ndarray]:
        """The node of each column."""
        parts = []
        for size in reversed(self.sizes):
            parts.append(nodes % size)
            nodes = nodes // size
        return parts[::-1]


class Forest:
    """All columns of a table."""

    def __init__(self, columns: list[Column]):
        self.trees = trees = [ColumnTree(c) for c in columns]
        self.groups: list[list[int]] = []
        sizes: list[int] = []
        # largest column first, each into the first group that has room for it
        for j in sorted(range(len(trees)), key=lambda j: -trees[j].size):
            for g, size in enumerate(sizes):
                if size * trees[j].size <= FUSED:
                    self.groups[g].append(j)
                    sizes[g] *= trees[j].size
                    break
            else:
                self.groups.append([j])
                sizes.append(trees[j].size)
        self.fused = [FusedColumn([trees[j] for j in group]) for group in self.groups]

    def nodes(self, codes: np.ndarray) -> np.ndarray:
        """Nodes of combinations, [fused columns, combinations]."""
        return np.ascontiguousarray(
            np.stack([f.encode(codes[:, g]) for f, g in zip(self.fused, self.groups)])
        )

    def shares(self, node: tuple[int, ...], nodes: np.ndarray) -> np.ndarray:
        """The share a row loses over all columns if `node` is joined with each of `nodes`."""
        # nodes are valid indices; "wrap" skips the check that makes the default twice as slow
        total: np.ndarray = self.fused[0].row(node[0]).take(nodes[0], mode="wrap")
        part = np.empty_like(total)
        for f, a, others in zip(self.fused[1:], node[1:], nodes[1:]):
            total += f.row(a).take(others, out=part, mode="wrap")
        return total

    def join(self, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(f.join(x, y) for f, x, y in zip(self.fused, a, b))

    def span(self, members: list[int], nodes: np.ndarray) -> tuple[int, ...]:
        """The lowest node above all members, columns of `nodes`."""
        return functools.reduce(self.join, zip(*nodes[:, members].tolist()))

    def share(self, node: tuple[int, ...]) -> float:
        return float(sum(f.row(a)[a] for f, a in zip(self.fused, node)))

    def cells(self, nodes: np.ndarray) -> list[np.ndarray]:
        """The node of each original column, for nodes [fused columns, records]."""
        cells: list[np.ndarray] = [np.zeros(0, np.int64)] * len(self.trees)
        for f, group, fused in zip(self.fused, self.groups, nodes):
            for j, part in zip(group, f.decode(fused)):
                cells[j] = part
        return cells


def as_node(column: np.ndarray) -> tuple[int, ...]:
    return tuple(column.tolist())
