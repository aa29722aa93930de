"""Trees over binned rows, and their form on the wire.

A tree is arrays over its nodes; node 0 is the root, and the children of a node are neighbors: the left one at
`left`, the right one at `left + 1`. At a split, cells up to `cut` go left; of a category, the cells in its
set. Rows without a value go where `default_left` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import BadData
from .bins import MOST_CELLS, Bins

LEAF = -1
SET_BYTES = MOST_CELLS // 8


@dataclass
class Split:
    """What divides a node: a cut of a number, or the set of a category's cells that go left."""

    feature: int
    cut: int  # of a number: cells up to this one go left
    default_left: bool
    gain: float
    left_set: np.ndarray | None = None  # of a category: bool, one for each cell but the missing one


@dataclass
class Tree:
    """One regression tree. `gain`, `cover` and `rows` describe training; predictions need none of them."""

    feature: list[int] = field(default_factory=lambda: [LEAF])
    cut: list[int] = field(default_factory=lambda: [0])
    default_left: list[bool] = field(default_factory=lambda: [False])
    left: list[int] = field(default_factory=lambda: [0])
    value: list[float] = field(default_factory=lambda: [0.0])  # of a leaf, float32, learning rate included
    sets: dict[int, np.ndarray] = field(default_factory=dict)  # node: cells that go left, bool
    gain: list[float] = field(default_factory=lambda: [0.0])
    cover: list[float] = field(default_factory=lambda: [0.0])  # the sum of Hessians
    rows: list[int] = field(default_factory=lambda: [0])
    weight: list[float] = field(default_factory=lambda: [0.0])  # what the node's value as a leaf would be

    def __len__(self) -> int:
        return len(self.feature)

    def divide(self, node: int, split: Split) -> tuple[int, int]:
        """Turn a leaf into a split; return its two new leaves."""
        left = len(self)
        self.feature[node], self.cut[node] = split.feature, split.cut
        self.default_left[node], self.left[node] = split.default_left, left
        self.gain[node], self.value[node] = split.gain, 0.0
        if split.left_set is not None:
            self.sets[node] = split.left_set
        for _ in range(2):
            self.feature.append(LEAF)
            self.cut.append(0)
            self.default_left.append(False)
            self.left.append(0)
            self.value.append(0.0)
            self.gain.append(0.0)
            self.cover.append(0.0)
            self.rows.append(0)
            self.weight.append(0.0)
        return left, left + 1

    def depth(self) -> int:
        deep = [0] * len(self)
        for node in range(len(self)):
            if self.feature[node] != LEAF:
                deep[self.left[node]] = deep[self.left[node] + 1] = deep[node] + 1
        return max(deep)

    def routes(self, bins: Bins) -> np.ndarray:
        """Return for each node and cell the child that a row goes to; of a leaf, the leaf itself (int32)."""
        n = len(self)
        feature, left = np.asarray(self.feature), np.asarray(self.left, dtype=np.int32)
        goes_left = np.arange(MOST_CELLS) <= np.asarray(self.cut)[:, None]
        for node, chosen in self.sets.items():
            goes_left[node] = False
            goes_left[node, : len(chosen)] = chosen
        places = np.flatnonzero(feature != LEAF)
        goes_left[places, bins.widths[feature[places]]] = np.asarray(self.default_left)[places]
        table = np.where(goes_left, left[:, None], left[:, None] + 1).astype(np.int32)
        leaves = np.flatnonzero(feature == LEAF)
        table[leaves] = np.arange(n, dtype=np.int32)[leaves, None]
        return table

    def check(self, bins: Bins) -> None:
        """Raise BadData unless this is a tree over these bins: what another party sent is not trusted."""
        n, features = len(self), len(bins.features)
        feature, left, cut = np.array(self.feature), np.array(self.left), np.array(self.cut)
        nodes = np.flatnonzero(feature != LEAF)
        f, first = feature[nodes], left[nodes]
        if ((f < 0) | (f >= features)).any():
            raise BadData(f"a node of a tree splits a feature that is not one of the {features}.")
        if ((first <= nodes) | (first >= n - 1)).any():
            raise BadData("a node of a tree has no valid children.")
        is_set = np.zeros(n, dtype=bool)
        is_set[list(self.sets)] = True
        if (bins.is_category[f] != is_set[nodes]).any() or int(is_set.sum()) != int(is_set[nodes].sum()):
            raise BadData("a node of a tree has a split of another kind than its feature.")
        if ((cut[nodes] < 0) | (cut[nodes] >= bins.widths[f])).any():
            raise BadData("a node of a tree has a cut outside its feature's cells.")
        parents = np.bincount(np.concatenate([first, first + 1]), minlength=n) if len(nodes) else np.zeros(n)
        if (parents[1:] != 1).any() or not np.isfinite(self.value).all():
            raise BadData("the nodes of a tree do not form one tree with finite leaves.")


_HEAD = np.dtype("<u2")  # nodes, sets
_PARTS = (("<i2", "feature"), ("<i2", "left"), ("u1", "cut"), ("u1", "flags"), ("<f4", "value"))
_NODE = sum(np.dtype(kind).itemsize for kind, _ in _PARTS)


def to_bytes(trees: Sequence[Tree]) -> bytes:
    """Return what predictions of these trees need: 10 bytes a node, and 32 for the set of a category."""
    out = []
    for tree in trees:
        flags = [int(d) for d in tree.default_left]
        sets = np.zeros((len(tree.sets), MOST_CELLS), dtype=bool)
        for k, node in enumerate(sorted(tree.sets)):
            flags[node] += 2
            sets[k, : len(tree.sets[node])] = tree.sets[node]
        columns = {
            "feature": tree.feature,
            "left": tree.left,
            "cut": tree.cut,
            "flags": flags,
            "value": tree.value,
        }
        out.append(np.array([len(tree), len(sets)], dtype=_HEAD).tobytes())
        out += [np.array(columns[name], dtype=kind).tobytes() for kind, name in _PARTS]
        out.append(np.packbits(sets).tobytes())
    return b"".join(out)


def from_bytes(data: bytes, bins: Bins) -> list[Tree]:
    """Return the trees that `to_bytes` described; raise BadData for anything else."""
    trees, at = [], 0
    while at < len(data):
        if len(data) < at + 4:
            raise BadData("trees: the last one is cut off.")
        n, marked = np.frombuffer(data, _HEAD, 2, at).tolist()
        end = at + 4 + n * _NODE + marked * SET_BYTES
        if not n or end > len(data):
            raise BadData("trees: one is empty or cut off.")
        at += 4
        columns: dict[str, np.ndarray] = {}
        for kind, name in _PARTS:
            columns[name] = np.frombuffer(data, kind, n, at)
            at += columns[name].nbytes
        sets = np.unpackbits(np.frombuffer(data, np.uint8, marked * SET_BYTES, at)).reshape(
            marked, MOST_CELLS
        )
        at = end
        trees.append(_from_columns(columns, sets.astype(bool), bins))
    return trees


def _from_columns(columns: Mapping[str, np.ndarray], sets: np.ndarray, bins: Bins) -> Tree:
    flags = columns["flags"]
    nodes = np.flatnonzero(flags & 2).tolist()
    if len(nodes) != len(sets) or (flags > 3).any():
        raise BadData("trees: the sets of a tree are not those of its nodes.")
    feature, n = columns["feature"].tolist(), len(flags)
    own = {}
    for node, cells in zip(nodes, sets):
        f = feature[node]
        if not 0 <= f < len(bins.features):
            raise BadData(f"node {node} of a tree has a set and no feature.")
        own[node] = cells[: int(bins.widths[f])]
    tree = Tree(
        feature,
        columns["cut"].tolist(),
        (flags & 1).astype(bool).tolist(),
        columns["left"].tolist(),
        columns["value"].astype(np.float64).tolist(),
        own,
        [0.0] * n,
        [0.0] * n,
        [0] * n,
        [0.0] * n,
    )
    tree.check(bins)
    return tree
