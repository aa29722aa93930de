"""Trees over binned rows, and their form on the wire.

A tree is arrays over its nodes; node 0 is the root, and the children of a node are neighbors: the left one at
`left`, the right one at `left + 1`. At a split, cells up to `cut` go left; of a category, the cells in its
set. Rows without a value go where `default_left` says.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..errors import BadData
from . import kernels
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

    def nodes(self) -> Nodes:
        """Return what predictions need, as arrays."""
        sets = np.zeros((len(self.sets), MOST_CELLS), dtype=bool)
        flags = np.array(self.default_left, dtype=np.uint8)
        set_of = np.full(len(flags), -1, dtype=np.int16)
        for k, node in enumerate(sorted(self.sets)):
            flags[node] += 2
            set_of[node] = k
            sets[k, : len(self.sets[node])] = self.sets[node]
        return Nodes(
            np.array(self.feature, dtype=np.int16),
            np.array(self.left, dtype=np.int16),
            np.array(self.cut, dtype=np.uint8),
            flags,
            np.array(self.value, dtype=np.float32),
            sets,
            set_of,
        )

    def check(self, bins: Bins) -> None:
        """Raise BadData unless this is a tree over these bins."""
        try:
            nodes = self.nodes()
        except (OverflowError, IndexError, ValueError):
            raise BadData("a tree has numbers that no tree over bins has.") from None
        check_nodes(nodes, bins)


class Nodes(NamedTuple):
    """A tree as arrays over its nodes; the flags are 1: missing values go left, 2: a set decides."""

    feature: np.ndarray
    left: np.ndarray
    cut: np.ndarray
    flags: np.ndarray
    value: np.ndarray
    sets: np.ndarray  # sets × 256 cells, bool: those that go left
    set_of: np.ndarray  # of each node, the place of its set; −1: none

    def extends(self, earlier: Nodes) -> bool:
        """Whether every split of the earlier tree is one of this one: rows then only move further down."""
        if kernels.has_numba():
            return kernels.extends(self, earlier)
        n = len(earlier.feature)
        if len(self.feature) < n:
            return False
        at = np.flatnonzero(earlier.feature != LEAF)
        if not all(np.array_equal(mine[at], theirs[at]) for mine, theirs in zip(self[:4], earlier[:4])):
            return False
        sets = earlier.set_of[at] >= 0
        return np.array_equal(self.sets[self.set_of[at][sets]], earlier.sets[earlier.set_of[at][sets]])

    def routes(self, bins: Bins) -> np.ndarray:
        """Return for each node and cell the child that a row goes to; of a leaf, the leaf itself (int32)."""
        left = self.left.astype(np.int32)
        goes_left = np.arange(MOST_CELLS) <= self.cut[:, None]
        with_set = self.set_of >= 0
        goes_left[with_set] = self.sets[self.set_of[with_set]]
        places = np.flatnonzero(self.feature != LEAF)
        goes_left[places, bins.widths[self.feature[places]]] = (self.flags[places] & 1).astype(bool)
        table = np.where(goes_left, left[:, None], left[:, None] + 1).astype(np.int32)
        leaves = np.flatnonzero(self.feature == LEAF)
        table[leaves] = leaves[:, None]
        return table


_WRONG = (
    "a node of a tree splits a feature that is not one of the {features}.",
    "a node of a tree has no valid children.",
    "a node of a tree has a split of another kind than its feature.",
    "a node of a tree has a cut outside its feature's cells.",
    "the nodes of a tree do not form one tree with finite leaves.",
    "trees: the last one is cut off.",
    "trees: one is empty or cut off.",
)


def check_nodes(nodes: Nodes, bins: Bins) -> None:
    """Write `set_of`; raise BadData unless this is a tree over these bins: what was sent is not trusted."""
    wrong = kernels.find_wrong(nodes, bins) if kernels.has_numba() else _find_wrong(nodes, bins)
    if wrong:
        raise _refuse(wrong, bins)


def _refuse(wrong: int, bins: Bins) -> BadData:
    return BadData(_WRONG[wrong - 1].format(features=len(bins.features)))


def _find_wrong(nodes: Nodes, bins: Bins) -> int:
    """Return 0, or the number of the sentence above; compiled.check_loop is the same with numba."""
    n, features = len(nodes.feature), len(bins.features)
    at = np.flatnonzero(nodes.feature != LEAF)
    f, first = nodes.feature[at], nodes.left[at].astype(np.int64)
    if len(at) and (f.min() < 0 or f.max() >= features):
        return 1
    if len(at) and ((first <= at).any() or first.max() >= n - 1):
        return 2
    has_set, is_split = (nodes.flags >> 1).astype(bool), nodes.feature != LEAF
    nodes.set_of[:] = np.where(has_set, np.cumsum(has_set) - 1, -1)
    if (
        nodes.flags.max() > 3
        or (has_set & ~is_split).any()
        or len(nodes.sets) != int(has_set.sum())
        or (bins.is_category[f] != has_set[at]).any()
    ):
        return 3
    if (nodes.cut[at] >= bins.widths[f]).any():
        return 4
    once = np.bincount(np.concatenate([first, first + 1]), minlength=n)[1:] == 1
    return 0 if once.all() and np.isfinite(nodes.value).all() else 5


class SentTrees:
    """Trees as they were sent, checked; `nodes` are made of them where arrays are needed."""

    def __init__(self, data: np.ndarray, bins: Bins, most: int):
        """`data`: bytes; BadData unless these are at most `most` trees over these bins."""
        self.data, self.bins = data, bins
        starts, found = np.zeros((2, most), dtype=np.int64)
        if kernels.has_numba():
            count = kernels.scan_trees(data, bins, starts, found)
            if count < 0:
                raise _refuse(-count, bins)
        else:
            count = len(self.nodes)
            found[:count] = [len(tree.feature) for tree in self.nodes[:most]]
        if count > most:
            raise BadData(f"trees: {count} were sent, and at most {most} are expected.")
        self.sizes: list[int] = found[:count].tolist()
        self._begin: list[int] = starts[:count].tolist()

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def nodes(self) -> list[Nodes]:
        return from_bytes(self.data, self.bins)

    def start(self, k: int) -> int:
        """Return where tree k begins; −1 if there is none."""
        return self._begin[k] if k < len(self.sizes) else -1


HEAD = struct.Struct("<HH")  # nodes, sets
_PARTS = (("<i2", "feature"), ("<i2", "left"), ("u1", "cut"), ("u1", "flags"), ("<f4", "value"))
_COLUMNS = [(np.dtype(kind), np.dtype(kind).itemsize) for kind, _ in _PARTS]
_NODE = sum(width for _, width in _COLUMNS)


SMALLEST = 4 + _NODE  # bytes of a tree


def bytes_of(nodes: int, sets: int) -> int:
    """Return the bytes of a tree with so many nodes and sets."""
    return HEAD.size + nodes * _NODE + sets * SET_BYTES


def to_bytes(trees: Sequence[Tree]) -> bytes:
    """Return what predictions of these trees need: 10 bytes a node, and 32 for the set of a category."""
    out = []
    for tree in trees:
        nodes = tree.nodes()
        out.append(HEAD.pack(len(tree), len(nodes.sets)))
        out += [column.astype(kind, copy=False).tobytes() for (kind, _), column in zip(_PARTS, nodes)]
        out.append(np.packbits(nodes.sets).tobytes())
    return b"".join(out)


def from_bytes(data: bytes | np.ndarray, bins: Bins) -> list[Nodes]:
    """Return the trees that `to_bytes` described; raise BadData for anything else."""
    trees, at, size = [], 0, len(data)
    view = memoryview(data).toreadonly()  # type: ignore[arg-type]  # an array is a buffer
    while at < size:
        if size < at + 4:
            raise _refuse(6, bins)
        n, marked = HEAD.unpack_from(view, at)
        start, at = at + 4, at + bytes_of(n, marked)
        if not n or at > size:
            raise _refuse(7, bins)
        columns = []
        for kind, width in _COLUMNS:
            columns.append(np.frombuffer(view, kind, n, start))
            start += n * width
        packed = np.frombuffer(view, np.uint8, marked * SET_BYTES, start)
        sets = np.unpackbits(packed).view(np.bool_).reshape(marked, MOST_CELLS)
        feature, left, cut, flags, value = columns
        set_of = np.empty(n, dtype=np.int16)  # check_nodes writes it
        nodes = Nodes(feature, left, cut, flags, value.copy(), sets, set_of)  # value: aligned
        check_nodes(nodes, bins)
        trees.append(nodes)
    return trees
