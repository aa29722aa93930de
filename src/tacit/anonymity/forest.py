"""Hierarchies as trees of numbered nodes, for local recoding: where two cells meet, and what a cell there
stands for.

A node is a value, or a word of a higher level. `row(a)` gives, for node a and every node b at once, the share
of the domain their lowest common ancestor stands for; `join(a, b)` the ancestor. Small columns are *fused*:
one node for a tuple of nodes, shares added up, so that the distance between two rows of nine columns is four
look-ups. Large ones (thousands of postal codes) answer without the table of all pairs.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .encoded import Column

FUSED = (
    1024  # nodes a fused column may have: a table of all pairs of 4 MB, a row of it within the fastest cache
)
PAIRS = 4096  # nodes up to which all pairs are kept


class Tree:
    """One column. Node numbers run level by level: level 0 first, so a value's node is its code."""

    def __init__(self, column: Column):
        starts = np.cumsum([0] + [len(w) for w in column.words])
        self.size = int(starts[-1])
        self.level = np.repeat(np.arange(len(column.words)), np.diff(starts))
        self.code = np.arange(self.size) - starts[self.level]
        self.words = [word for words in column.words for word in words]
        leaf = np.zeros(self.size, np.int64)  # a value below each node
        self.share = np.zeros(self.size)
        for level, up in enumerate(column.up):
            leaf[starts[level] + up] = np.arange(len(up))
            self.share[starts[level] + up] = column.share[level]
        # the node of each level above (or at) each node; below its own level a node has none, and stands for
        # itself
        self.above = np.stack(
            [
                np.where(self.level <= level, starts[level] + up[leaf], np.arange(self.size))
                for level, up in enumerate(column.up)
            ]
        )
        self.known = np.stack([self.level <= level for level in range(len(column.up))])

    def meet(self, a: int) -> np.ndarray:
        """The lowest common ancestor of a and every node."""
        met = np.full(self.size, self.above[-1, a])
        for level in range(len(self.above) - 2, int(self.level[a]) - 1, -1):
            same = self.known[level] & (self.above[level] == self.above[level, a])
            met[same] = self.above[level, a]
        return met

    @lru_cache(maxsize=512)  # noqa: B019  the tree lives as long as one run
    def row(self, a: int) -> np.ndarray:
        return self.share[self.meet(a)].astype(np.float32)

    def join(self, a: int, b: int) -> int:
        for level in range(max(int(self.level[a]), int(self.level[b])), len(self.above)):
            if self.above[level, a] == self.above[level, b]:
                return int(self.above[level, a])
        return int(self.above[-1, a])


class Fused:
    """Several small columns as one, or a single one; node numbers in mixed radix."""

    def __init__(self, trees: list[Tree]):
        self.trees, self.sizes = trees, [t.size for t in trees]
        self.size = int(np.prod(self.sizes))
        self.whole = self.size <= PAIRS
        if self.whole:
            rows, joins = np.zeros((1, 1), np.float32), np.zeros((1, 1), np.int64)
            for t in trees:
                meet = np.stack([t.meet(a) for a in range(t.size)])
                rows = (rows[:, None, :, None] + t.share[meet].astype(np.float32)[None, :, None, :]).reshape(
                    len(rows) * t.size, -1
                )
                joins = (joins[:, None, :, None] * t.size + meet[None, :, None, :]).reshape(
                    len(joins) * t.size, -1
                )
            self.rows, self.joins = rows, joins

    def row(self, a: int) -> np.ndarray:
        return self.rows[a] if self.whole else self.trees[0].row(a)

    def join(self, a: int, b: int) -> int:
        return int(self.joins[a, b]) if self.whole else self.trees[0].join(a, b)

    def nodes(self, codes: np.ndarray) -> np.ndarray:
        """Codes [combinations, columns of this one] as nodes."""
        made = np.zeros(len(codes), np.intp)
        for j, size in enumerate(self.sizes):
            made = made * size + codes[:, j]
        return made

    def parts(self, nodes: np.ndarray) -> list[np.ndarray]:
        """The reverse: each column's node."""
        made = []
        for size in reversed(self.sizes):
            made.append(nodes % size)
            nodes = nodes // size
        return made[::-1]


class Forest:
    """All columns of a table."""

    def __init__(self, columns: list[Column]):
        self.columns = columns
        trees = [Tree(c) for c in columns]
        self.groups: list[list[int]] = []
        room: list[int] = []
        for j in sorted(
            range(len(trees)), key=lambda j: -trees[j].size
        ):  # largest first, each into the first group with room
            for g, size in enumerate(room):
                if size * trees[j].size <= FUSED:
                    self.groups[g].append(j)
                    room[g] *= trees[j].size
                    break
            else:
                self.groups.append([j])
                room.append(trees[j].size)
        self.fused = [Fused([trees[j] for j in group]) for group in self.groups]
        self.trees = trees

    def nodes(self, codes: np.ndarray) -> np.ndarray:
        """Codes of combinations as nodes, [fused columns, combinations]."""
        return np.ascontiguousarray(np.stack([f.nodes(codes[:, g]) for f, g in zip(self.fused, self.groups)]))

    def shares(self, node: tuple[int, ...], nodes: np.ndarray) -> np.ndarray:
        """What a row would lose in every column together, were `node` joined with each of `nodes`."""
        total = self.fused[0].row(node[0])[nodes[0]]
        for f, a, others in zip(self.fused[1:], node[1:], nodes[1:]):
            total += f.row(a)[others]
        return total

    def join(self, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(f.join(x, y) for f, x, y in zip(self.fused, a, b))

    def share(self, node: tuple[int, ...]) -> float:
        return float(sum(f.row(a)[a] for f, a in zip(self.fused, node)))

    def cells(self, nodes: np.ndarray) -> list[np.ndarray]:
        """Each original column's node, of nodes [fused columns, records]."""
        made: list[np.ndarray] = [np.zeros(0, np.int64)] * len(self.trees)
        for f, group, mine in zip(self.fused, self.groups, nodes):
            for j, part in zip(group, f.parts(mine)):
                made[j] = part
        return made
