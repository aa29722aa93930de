"""Grow the trees of one round from summed histograms; the rows are elsewhere.

`grow` is a generator: it yields the growing trees and the nodes whose histograms it asks for, and receives
their sums. Of two siblings only the one with fewer rows is asked for; the other is the parent's minus it.
None is asked for where neither can be split, because the sums of both are too small for two children.

    level   all nodes of a depth at once: `depth` questions a round
    leaf    the leaf with the largest gain first: `leaves` − 1 questions a round
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

import numpy as np

from .bins import Bins
from .splits import Found, SplitRules, child_limits, find_splits
from .trees import Tree

Ask = tuple[int, int]  # (tree, node)
Growth = Generator[tuple[list[Tree], list[Ask]], np.ndarray, list[Tree]]
ANY = np.array([-np.inf, np.inf])


@dataclass(frozen=True)
class GrowRules:
    """How trees grow."""

    split: SplitRules = field(default_factory=SplitRules)
    learning_rate: float = 0.3
    depth: int = 6  # 0: any (with `leaves`)
    leaves: int = 0  # 0: level by level
    columns_by_level: float = 1.0
    columns_by_node: float = 1.0
    monotone: tuple[int, ...] | None = None
    seed: int = 0

    def steps(self) -> int:
        """The most questions a round asks."""
        return max(self.leaves - 1, 1) if self.leaves else self.depth


def sample_features(count: int, share: float, seed: Sequence[int]) -> np.ndarray:
    """Return which features are used (bool): at least one."""
    if share >= 1:
        return np.ones(count, dtype=bool)
    chosen = np.zeros(count, dtype=bool)
    k = max(1, round(share * count))
    chosen[np.random.default_rng(list(seed)).choice(count, k, replace=False)] = True
    return chosen


@dataclass
class _Node:
    """A node that may be split: its histogram, its sums, the range of its value."""

    tree: int
    node: int
    depth: int
    hist: np.ndarray
    total: np.ndarray
    limits: np.ndarray
    outer: np.ndarray  # the range of the parent
    found: Found | None = None


class _Round:
    def __init__(
        self, bins: Bins, features: np.ndarray, rules: GrowRules, scale: tuple[float, float], round_: int
    ):
        self.used = np.flatnonzero(features)
        self.bins = bins if features.all() else Bins(tuple(bins.features[k] for k in self.used))
        self.rules, self.scale, self.round = rules, scale, round_
        self.monotone = None
        if rules.monotone is not None and any(rules.monotone):
            self.monotone = np.asarray(rules.monotone)[self.used]

    def search(self, nodes: list[_Node]) -> None:
        """Find the best split of each node."""
        if not nodes:
            return
        limits = np.array([n.limits for n in nodes])
        found = find_splits(
            np.array([n.hist for n in nodes]),
            np.array([n.total for n in nodes]),
            self.bins,
            self.rules.split,
            self.scale,
            self._usable(nodes),
            self.monotone,
            limits if self.monotone is not None else None,
            np.array([n.outer for n in nodes]) if self.monotone is not None else None,
        )
        for node, best in zip(nodes, found):
            node.found = best

    def _usable(self, nodes: list[_Node]) -> np.ndarray | None:
        r, count = self.rules, len(self.bins.features)
        if r.columns_by_level >= 1 and r.columns_by_node >= 1:
            return None
        return np.array(
            [
                sample_features(count, r.columns_by_level, [r.seed, self.round, 1, n.depth])
                & self._of_node(n, count)
                for n in nodes
            ]
        )

    def _of_node(self, n: _Node, count: int) -> np.ndarray:
        level = sample_features(count, self.rules.columns_by_level, [self.rules.seed, self.round, 1, n.depth])
        chosen = np.zeros(count, dtype=bool)
        among = np.flatnonzero(level)
        seed = [self.rules.seed, self.round, 2, n.tree, n.node]
        chosen[among[sample_features(len(among), self.rules.columns_by_node, seed)]] = True
        return chosen

    def set_leaf(self, tree: Tree, node: int, total: np.ndarray, limits: np.ndarray) -> None:
        """Give a leaf its value by its sums."""
        g, h = int(total[0]) / self.scale[0], int(total[1]) / self.scale[1]
        w = min(max(self.rules.split.leaf(g, h), float(limits[0])), float(limits[1]))
        tree.value[node] = tree.weight[node] = float(np.float32(self.rules.learning_rate * w))
        tree.cover[node], tree.rows[node] = h, int(total[2])

    def can_split(self, node: _Node) -> bool:
        """Return whether a node's sums suffice for two children, whatever its histogram is."""
        rules = self.rules.split
        return bool(
            node.total[1] / self.scale[1] >= 2 * rules.min_child_weight  # exact: the scale is a power of two
            and node.total[2] >= 2 * max(rules.min_rows, 1)
        )

    def divide(self, tree: Tree, parent: _Node) -> tuple[_Node, _Node]:
        """Split a node; return its children without histograms."""
        assert parent.found is not None
        assert parent.found.split is not None
        found, split = parent.found, parent.found.split
        limits = parent.limits, parent.limits
        if self.monotone is not None:
            limits = child_limits(
                split, found, parent.limits, self.rules.split, self.scale, self.monotone.tolist()
            )
        split.feature = int(self.used[split.feature])
        children = []
        for node, total, range_ in zip(tree.divide(parent.node, split), (found.left, found.right), limits):
            self.set_leaf(tree, node, total, range_)
            children.append(_Node(parent.tree, node, parent.depth + 1, _NONE, total, range_, parent.limits))
        return children[0], children[1]


_NONE = np.zeros((0, 3), dtype=np.int64)


def _has_split(node: _Node) -> bool:
    return node.found is not None and node.found.split is not None


def _smaller(pair: tuple[_Node, _Node]) -> _Node:
    return pair[0] if pair[0].total[2] <= pair[1].total[2] else pair[1]


def _receive(hists: np.ndarray, pairs: list[tuple[_Node, _Node]], parents: list[_Node]) -> None:
    """Give children their histograms: the asked one's, and the parent's minus it."""
    for hist, pair, parent in zip(hists, pairs, parents):
        small = _smaller(pair)
        large = pair[1] if small is pair[0] else pair[0]
        small.hist, large.hist = hist, parent.hist - hist
        parent.hist = _NONE


def grow(
    bins: Bins, features: np.ndarray, rules: GrowRules, scale: tuple[float, float], round_: int, outputs: int
) -> Growth:
    """Grow one tree for each output. `features` (bool) are those whose histograms are asked for."""
    work = _Round(bins, features, rules, scale, round_)
    trees = [Tree() for _ in range(outputs)]
    hists = yield trees, [(k, 0) for k in range(outputs)]
    first = slice(0, int(work.bins.widths[0]) + 1)
    roots = [_Node(k, 0, 0, hists[k], hists[k][first].sum(axis=0), ANY, ANY) for k in range(outputs)]
    for root, tree in zip(roots, trees):
        work.set_leaf(tree, 0, root.total, root.limits)
    yield from _by_leaf(work, trees, roots) if rules.leaves else _by_level(work, trees, roots)
    return trees


def _by_level(work: _Round, trees: list[Tree], level: list[_Node]) -> Growth:
    for depth in range(1, work.rules.depth + 1):
        work.search(level)
        divided = [(n, work.divide(trees[n.tree], n)) for n in level if _has_split(n)]
        if depth == work.rules.depth:
            break
        live = [(n, pair) for n, pair in divided if any(map(work.can_split, pair))]
        if not live:
            break
        parents, pairs = [n for n, _ in live], [pair for _, pair in live]
        hists = yield trees, [(s.tree, s.node) for s in map(_smaller, pairs)]
        _receive(hists, pairs, parents)
        level = [child for pair in pairs for child in pair]
    return trees


def _by_leaf(work: _Round, trees: list[Tree], roots: list[_Node]) -> Growth:
    """Split the leaf with the largest gain of every tree, until each has its number of leaves."""
    work.search(roots)
    waiting = [[root] for root in roots]
    leaves = [1] * len(trees)
    while True:
        parents = []
        for k, nodes in enumerate(waiting):
            able = [n for n in nodes if _has_split(n)]
            if able and leaves[k] < work.rules.leaves:
                best = max(able, key=lambda n: n.found.gain if n.found is not None else 0.0)
                nodes.remove(best)
                parents.append(best)
                leaves[k] += 1
        pairs = [work.divide(trees[n.tree], n) for n in parents]
        # not split again: children at the last depth or with too small sums, and the last leaves of a tree
        deeper = [
            (parent, pair)
            for parent, pair in zip(parents, pairs)
            if leaves[parent.tree] < work.rules.leaves
            and pair[0].depth != work.rules.depth
            and any(map(work.can_split, pair))
        ]
        if not parents:
            return trees
        if not deeper:
            continue
        hists = yield trees, [(s.tree, s.node) for s in (_smaller(pair) for _, pair in deeper)]
        _receive(hists, [pair for _, pair in deeper], [parent for parent, _ in deeper])
        new = [child for _, pair in deeper for child in pair]
        work.search(new)
        for child in new:
            waiting[child.tree].append(child)
