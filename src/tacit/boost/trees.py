"""Trees over binned rows, and their form on the wire.

A tree is arrays over its nodes; node 0 is the root, and the children of a node are neighbors: the left one at
`left`, the right one at `left + 1`. At a split, cells up to `cut` go left; of a category, the cells in its
set. Rows without a value go where `default_left` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData
from .bins import MOST_CELLS, Bins

LEAF = -1
SET_BYTES = MOST_CELLS // 8
NAMES = ("sizes", "feature", "cut", "default", "left", "value", "sets")


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
        n, seen = len(self), np.zeros(len(self), dtype=np.int64)
        for node in range(n):
            f = self.feature[node]
            if f == LEAF:
                continue
            if not 0 <= f < len(bins.features):
                raise BadData(f"node {node} of a tree splits feature {f}; there are {len(bins.features)}.")
            if not node < self.left[node] < n - 1:
                raise BadData(f"node {node} of a tree has no valid children.")
            if bins.is_category[f] != (node in self.sets):
                raise BadData(f"node {node} of a tree has a split of another kind than its feature.")
            if not 0 <= self.cut[node] < int(bins.widths[f]):
                raise BadData(f"node {node} of a tree has a cut outside its feature's cells.")
            seen[self.left[node] : self.left[node] + 2] += 1
        if (seen[1:] != 1).any() or not np.isfinite(self.value).all():
            raise BadData("the nodes of a tree do not form one tree with finite leaves.")


def to_vectors(trees: Sequence[Tree]) -> dict[str, Tensor]:
    """Return what predictions of these trees need, as small vectors."""
    sets = [
        np.packbits(np.pad(t.sets[node], (0, MOST_CELLS - len(t.sets[node]))))
        for t in trees
        for node in sorted(t.sets)
    ]
    default = [2 * (n in t.sets) + int(d) for t in trees for n, d in enumerate(t.default_left)]
    return {
        "sizes": torch.tensor([len(t) for t in trees], dtype=torch.int32),
        "feature": torch.tensor([v for t in trees for v in t.feature], dtype=torch.int16),
        "cut": torch.tensor([v for t in trees for v in t.cut], dtype=torch.uint8),
        "default": torch.tensor(default, dtype=torch.uint8),
        "left": torch.tensor([v for t in trees for v in t.left], dtype=torch.int16),
        "value": torch.tensor([v for t in trees for v in t.value], dtype=torch.float32),
        "sets": torch.from_numpy(np.concatenate(sets) if sets else np.zeros(0, dtype=np.uint8)),
    }


def join(first: Mapping[str, Tensor], then: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the vectors of the trees of both, in order."""
    return {name: torch.cat([first[name], then[name]]) for name in NAMES}


def begins_with(vectors: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> bool:
    """Whether the trees of `vectors` begin with those of `start`, to the last bit."""
    return all(
        len(start[name]) <= len(vectors[name]) and torch.equal(vectors[name][: len(start[name])], start[name])
        for name in NAMES
    )


def after(vectors: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the vectors of the trees that follow `start`."""
    return {name: vectors[name][len(start[name]) :] for name in NAMES}


def check_vectors(vectors: Mapping[str, Tensor]) -> None:
    """Raise BadData unless these are the vectors of trees, by their names, types and lengths."""
    kinds = (torch.int32, torch.int16, torch.uint8, torch.uint8, torch.int16, torch.float32, torch.uint8)
    for name, kind in zip(NAMES, kinds):
        if name not in vectors or vectors[name].dtype != kind or vectors[name].ndim != 1:
            raise BadData(f"trees: {name!r} is missing, or of another type.")
    sizes, default = vectors["sizes"], vectors["default"]
    nodes = int(sizes.sum())
    if (
        bool((sizes < 1).any())
        or any(len(vectors[name]) != nodes for name in NAMES[1:-1])
        or bool((default > 3).any())
        or len(vectors["sets"]) != int((default >> 1).sum()) * SET_BYTES
    ):
        raise BadData("trees: vectors of different lengths.")


def from_vectors(vectors: Mapping[str, Tensor], bins: Bins) -> list[Tree]:
    """Return the trees that `to_vectors` described; raise BadData for anything else."""
    check_vectors(vectors)
    sizes, feature, cut, default, left, value, packed = (vectors[name].numpy() for name in NAMES)
    marked = int((default >> 1).sum())
    sets = np.unpackbits(packed).reshape(marked, MOST_CELLS).astype(bool)
    trees, start, used = [], 0, 0
    for size in sizes.tolist():
        part = slice(start, start + size)
        flags, places = default[part], np.flatnonzero(default[part] >> 1).tolist()
        features = feature[part].tolist()
        own = {}
        for node in places:
            f = features[node]
            width = int(bins.widths[f]) if 0 <= f < len(bins.features) else 0
            own[node], used = sets[used, :width].copy(), used + 1
        zeros = [0.0] * size
        tree = Tree(
            features,
            cut[part].tolist(),
            (flags & 1).astype(bool).tolist(),
            left[part].tolist(),
            value[part].astype(np.float64).tolist(),
            own,
            list(zeros),
            list(zeros),
            [0] * size,
            list(zeros),
        )
        tree.check(bins)
        trees.append(tree)
        start += size
    return trees
