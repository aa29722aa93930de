"""Grow trees over columns of several parties: the label holder's part.

K. Cheng, T. Fan, Y. Jin, Y. Liu, T. Chen, D. Papadopoulos, Q. Yang, "SecureBoost: A Lossless Federated
Learning Framework", 2021, algorithms 1 and 2, with secret shares or other encryption. The label holder knows
the labels, its own columns and the rows of each node. What others hold comes from a `Foreign`: sums over
their cells and sides of their splits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ..errors import BadData, ProtocolError
from .agreement import _unit, class_weights
from .bins import Bins
from .grower import sample_features
from .kernels import CHANNELS, histograms
from .objectives import OBJECTIVES, Objective
from .rows import UNITS
from .splits import SplitRules, find_splits
from .vertical_bins import RECORD, OwnSplit, anonymous, to_record

LEAF = -1
HELD_OUT = 0.2  # of the rows, with early stopping
_HOLD, _SAMPLE = 11, 12  # random streams of the seed


class Columns(Protocol):
    """Another party's anonymous columns."""

    @property
    def widths(self) -> list[int]:
        """Cells of each, with that of missing values."""

    @property
    def is_category(self) -> list[bool]: ...


class Foreign(Protocol):
    """What the label holder asks the others for."""

    @property
    def layouts(self) -> Mapping[str, Columns]: ...

    async def sums(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        """k × rows integers → for each party k × cells."""

    async def search(
        self, vectors: np.ndarray, parents: list[int], news: list[int], columns: list[int]
    ) -> Any:
        """The best split of each node at each party, without the sums."""

    async def sides(
        self, name: str, records: np.ndarray, members: np.ndarray, serials: Sequence[int] = ()
    ) -> np.ndarray:
        """Which rows of each node go left."""


@dataclass(frozen=True)
class Packing:
    """A row's words: its gradient, and its Hessian (up to 2^26) with its count, which is shifted.

    With many rows the count is a word of its own.
    """

    shift: int
    below: int  # rows: their Hessians are below the shift, and their number fits above it

    def channels(self, rows: int) -> int:
        return 2 if rows < self.below else CHANNELS

    def pack(self, g: np.ndarray, h: np.ndarray, used: np.ndarray) -> np.ndarray:
        """Return the words of each row: channels × rows; 0 where a row is not used."""
        if self.channels(len(g)) == 2:
            return np.stack([g * used, (h + (1 << self.shift)) * used])
        return np.stack([g * used, h * used, used.astype(np.int64)])

    def unpack(self, sums: np.ndarray) -> np.ndarray:
        """Return Σg, Σh, rows of … × channels."""
        if sums.shape[-1] == CHANNELS:
            return sums
        both = sums[..., 1]
        return np.stack([sums[..., 0], both & ((1 << self.shift) - 1), both >> self.shift], axis=-1)


PACKINGS = {"shares": Packing(44, 1 << 17), "he": Packing(42, 1 << 16)}  # words of 64 and of 59 bits


@dataclass(frozen=True)
class VerticalRules:
    """How trees grow."""

    objective: str = "binary"
    trees: int = 100
    depth: int = 6
    learning_rate: float = 0.3
    split: SplitRules = field(default_factory=SplitRules)
    rows: float = 1.0
    columns: float = 1.0
    class_weight: Mapping[str, float] | str | None = None
    held_out: float = 0.0
    early_stopping: int = 0
    seed: int = 0
    backend: str = "shares"

    @property
    def packing(self) -> Packing:
        return PACKINGS[self.backend]

    def most_vectors(self, outputs: int, rows: int) -> int:
        """The most vectors whose sums are asked for: of two siblings one."""
        return self.trees * outputs * (1 << (self.depth - 1)) * self.packing.channels(rows)

    def most_splits(self, outputs: int) -> int:
        return self.trees * outputs * ((1 << self.depth) - 1)


@dataclass
class VerticalTree:
    """A tree: what every party knows, and (at the label holder) values, gains, Hessians and rows of nodes.

    `owner` is the place of the party that splits the node, `split` which of its splits it is; of a leaf
    both are −1.
    """

    left: list[int] = field(default_factory=lambda: [0])
    owner: list[int] = field(default_factory=lambda: [LEAF])
    split: list[int] = field(default_factory=lambda: [LEAF])
    value: list[float] = field(default_factory=lambda: [0.0])
    gain: list[float] = field(default_factory=lambda: [0.0])
    cover: list[float] = field(default_factory=lambda: [0.0])
    rows: list[int] = field(default_factory=lambda: [0])

    def __len__(self) -> int:
        return len(self.left)

    def divide(self, node: int, owner: int, split: int, gain: float) -> int:
        """Split a leaf; return its left child, which the right one follows."""
        first = len(self)
        self.left[node], self.owner[node], self.split[node], self.gain[node] = first, owner, split, gain
        for _ in range(2):
            self.left.append(0)
            self.owner.append(LEAF)
            self.split.append(LEAF)
            for numbers in (self.value, self.gain, self.cover):
                numbers.append(0.0)
            self.rows.append(0)
        return first


@dataclass
class Grown:
    """The label holder's result."""

    trees: list[VerticalTree]
    base: float
    labels: tuple[str, ...]
    splits: list[OwnSplit]  # of its own columns
    losses: list[float]
    best: int | None
    columns: list[tuple[int, float]]  # of all splits: owner, gain


@dataclass(eq=False)
class _Node:
    tree: int
    node: int
    total: np.ndarray
    hist: np.ndarray | None = None
    parent: int = -1  # place in the last level


def make_objective(rules: VerticalRules, labels: Sequence[str]) -> Objective:
    return OBJECTIVES[rules.objective](len(labels))


class Grower:
    """Trees of all rounds, at the label holder. `names` are all parties with columns, this one first."""

    def __init__(
        self,
        rules: VerticalRules,
        foreign: Foreign,
        names: Sequence[str],
        codes: np.ndarray,
        bins: Bins,
        y: np.ndarray,
        labels: Sequence[str],
        hides_sums: bool,
    ):
        self.rules, self.foreign, self.names, self.hides_sums = rules, foreign, list(names), hides_sums
        self.codes, self.own, self.y, self.labels = codes, bins, y, tuple(labels)
        self.n = len(y)
        self.objective = make_objective(rules, labels)
        held = rules.held_out
        rng = np.random.default_rng([rules.seed, _HOLD])
        self.held_out = rng.random(self.n) < held if held else np.zeros(self.n, bool)
        if held and (self.held_out.all() or not self.held_out.any()):
            raise BadData(f"boost: held_out={held} leaves no rows to hold out, or none to train on.")
        self._set_constants()
        self.splits: list[OwnSplit] = []
        self.counts = [0] * len(self.names)  # splits of each party

    def _read_layouts(self) -> None:
        """Put the columns of all parties side by side."""
        features = list(self.own.features)
        self.owner = [0] * len(features)  # of each column of all parties
        self.first = [0]  # place of each party's first column
        for place, name in enumerate(self.names[1:], 1):
            self.first.append(len(features))
            layout = self.foreign.layouts[name]
            features += anonymous(layout.widths, layout.is_category)
            self.owner += [place] * len(layout.widths)
        self.bins = Bins(tuple(features))

    def _set_constants(self) -> None:
        """Set the constant model, the weights of rows, and the units in which gradients are integers."""
        y, train = self.y, ~self.held_out
        if self.labels:
            counts = np.bincount(y[train].astype(np.int64), minlength=len(self.labels))
            weights = np.asarray(class_weights(self.rules.class_weight, self.labels, counts))
            by_class = counts * weights
            self.weight, heaviest, largest = weights[y.astype(np.int64)], float(weights.max()), 1.0
            self.base = self.objective.base(float(by_class[-1] / by_class.sum()))
        else:
            self.base = self.objective.base(math.fsum(y[train]) / int(train.sum()))
            self.weight, heaviest = np.ones(self.n), 1.0
            center = 0.0 if self.rules.objective == "poisson" else self.base
            largest = float(np.abs(y[train] - center).max())
        g, h = self.objective.bounds(max(largest, 1e-30))
        self.scale = _unit(g * heaviest), _unit(h * heaviest)

    async def grow(self) -> Grown:
        self._read_layouts()
        r, outputs = self.rules, self.objective.outputs
        margin = np.full((self.n, outputs), self.base)
        trees: list[VerticalTree] = []
        losses: list[float] = []
        columns: list[tuple[int, float]] = []

        def judge() -> None:
            held = self.held_out
            losses.append(float(self.objective.loss(margin[held], self.y[held]).mean()))

        for round_ in range(r.trees):
            if r.held_out:
                judge()
                if r.early_stopping and len(losses) - 1 - int(np.argmin(losses)) >= r.early_stopping:
                    break
            g, h = (
                np.rint(np.clip(v * self.weight[:, None] * s, -UNITS, UNITS)).astype(np.int64).T
                for v, s in zip(self.objective.gradients(margin, self.y), self.scale)
            )
            used = ~self.held_out
            if r.rows < 1:
                used = used & (np.random.default_rng([r.seed, round_, _SAMPLE]).random(self.n) < r.rows)
            grown, node = await self._round(np.ascontiguousarray(g), np.ascontiguousarray(h), used, round_)
            for k, tree in enumerate(grown):
                margin[:, k] += np.asarray(tree.value)[node[k]]
                columns += [(o, gain) for o, gain in zip(tree.owner, tree.gain) if o != LEAF]
            trees += grown
        else:
            if r.held_out:
                judge()
        best = int(np.argmin(losses)) if losses else None
        if best is not None and r.early_stopping:
            trees = trees[: best * outputs]
        return Grown(trees, self.base, self.labels, self.splits, losses, best, columns)

    async def _round(
        self, g: np.ndarray, h: np.ndarray, used: np.ndarray, round_: int
    ) -> tuple[list[VerticalTree], np.ndarray]:
        outputs = self.objective.outputs
        trees = [VerticalTree() for _ in range(outputs)]
        node = np.zeros((outputs, self.n), dtype=np.int32)
        usable = sample_features(len(self.owner), self.rules.columns, [self.rules.seed, round_, 0])
        level = [_Node(k, 0, self._total(g[k], h[k], used)) for k in range(outputs)]
        for one in level:
            self._set_leaf(trees[one.tree], one)
        pairs: list[tuple[_Node, ...]] = [(one,) for one in level]  # roots, then siblings
        parents: list[_Node] = []
        for _ in range(self.rules.depth):
            found = await self._search(pairs, parents, g, h, used, node, usable)
            chosen = [(one, best) for one, best in zip(level, found) if best is not None]
            if not chosen:
                break
            lefts = await self._sides(chosen, node)
            parents, pairs, following = level, [], []
            places = {id(one): place for place, one in enumerate(level)}
            for (one, best), left in zip(chosen, lefts):
                tree, members = trees[one.tree], node[one.tree] == one.node
                owner = best.owner
                first = tree.divide(one.node, owner, self.counts[owner], best.gain)
                self.counts[owner] += 1
                node[one.tree][members] = np.where(left[members], first, first + 1)
                children = []
                for child in (first, first + 1):
                    inside = used & (node[one.tree] == child)
                    new = _Node(one.tree, child, self._total(g[one.tree], h[one.tree], inside))
                    new.parent = places[id(one)]
                    self._set_leaf(tree, new)
                    children.append(new)
                pairs.append(tuple(children))
                following += children
            level = following
        return trees, node

    def _total(self, g: np.ndarray, h: np.ndarray, inside: np.ndarray) -> np.ndarray:
        return np.array([g[inside].sum(), h[inside].sum(), inside.sum()], dtype=np.int64)

    def _set_leaf(self, tree: VerticalTree, one: _Node) -> None:
        g, h = int(one.total[0]) / self.scale[0], int(one.total[1]) / self.scale[1]
        tree.value[one.node] = float(np.float32(self.rules.learning_rate * self.rules.split.leaf(g, h)))
        tree.cover[one.node], tree.rows[one.node] = h, int(one.total[2])

    async def _search(
        self,
        pairs: list[tuple[_Node, ...]],
        parents: list[_Node],
        g: np.ndarray,
        h: np.ndarray,
        used: np.ndarray,
        node: np.ndarray,
        usable: np.ndarray,
    ) -> list[_Best | None]:
        """The best split of each node of a level; of two siblings only the one with fewer rows is summed."""
        small = [min(pair, key=lambda one: int(one.total[2])) for pair in pairs]
        pack = self.rules.packing.pack
        vectors = np.concatenate([pack(g[s.tree], h[s.tree], used & (node[s.tree] == s.node)) for s in small])
        own = [self._own_hist(s, g, h, used, node) for s in small]
        searched = None
        if self.hides_sums:
            level = [one for pair in pairs for one in pair]
            new_of = {id(one): k for k, pair in enumerate(pairs) for one in pair}
            searched = await self.foreign.search(
                vectors,
                [-1 if any(one is s for s in small) else one.parent for one in level],
                [new_of[id(one)] for one in level],
                [int(k) for k in np.flatnonzero(usable[self.first[1] :])],
            )
        else:
            theirs = await self.foreign.sums(vectors) if len(self.names) > 1 else {}
            for k, s in enumerate(small):
                own[k] = np.concatenate([own[k], *(self._read(theirs[n], k, n, s) for n in self.names[1:])])
        for hist, s, pair in zip(own, small, pairs):
            for one in pair:
                before = None if one is s else parents[one.parent].hist
                one.hist = hist if before is None else before - hist
        for one in parents:
            one.hist = None
        level = [one for pair in pairs for one in pair]
        bins = self.own if self.hides_sums else self.bins
        found: list[_Best | None] = [None] * len(level)
        if bins.features:
            splits = find_splits(
                np.array([one.hist for one in level]),
                np.array([one.total for one in level]),
                bins,
                self.rules.split,
                self.scale,
                usable[: len(bins.features)],
            )
            for place, best in enumerate(splits):
                if best.split is not None:
                    owner = self.owner[best.split.feature]
                    record = to_record(best.split, best.split.feature - self.first[owner])
                    found[place] = _Best(owner, best.gain, record)
        if searched is not None:
            for place in range(len(level)):
                for holder, gain in enumerate(searched.gains[place].tolist(), 1):
                    mine = found[place]
                    if math.isfinite(gain) and gain > (mine.gain if mine is not None else 0.0):
                        record = searched.records[place, holder - 1].tobytes()
                        found[place] = _Best(holder, gain, record, searched.serial + place)
        return found

    def _own_hist(
        self, one: _Node, g: np.ndarray, h: np.ndarray, used: np.ndarray, node: np.ndarray
    ) -> np.ndarray:
        if not self.own.features:
            return np.zeros((0, CHANNELS), dtype=np.int64)
        slots = np.full(int(node[one.tree].max()) + 1, -1, dtype=np.int32)
        slots[one.node] = 0
        found = histograms(
            self.codes,
            node[one.tree],
            slots,
            used,
            g[one.tree],
            h[one.tree],
            self.own.offsets,
            (1, self.own.cells),
        )
        return np.asarray(found[0])

    def _read(self, sums: np.ndarray, place: int, name: str, one: _Node) -> np.ndarray:
        """Return a party's sums of a node; raise ProtocolError unless each column adds up to the node's."""
        channels = self.rules.packing.channels(self.n)
        hist = self.rules.packing.unpack(sums[place * channels : (place + 1) * channels].T)
        widths = self.foreign.layouts[name].widths
        starts = np.concatenate([[0], np.cumsum(widths)[:-1]]).astype(np.int64)
        if len(widths) and (np.add.reduceat(hist, starts, axis=0) != one.total).any():
            raise ProtocolError(
                f"the sums of {name!r} do not add up to those of the node: it, or the helper, did not follow "
                "the protocol."
            )
        return hist

    async def _sides(self, chosen: list[tuple[_Node, _Best]], node: np.ndarray) -> list[np.ndarray]:
        """Which rows go left at each chosen split."""
        lefts: list[np.ndarray] = [np.zeros(0, bool)] * len(chosen)
        by_owner: dict[int, list[int]] = {}
        for place, (_, best) in enumerate(chosen):
            by_owner.setdefault(best.owner, []).append(place)
        for owner, places in by_owner.items():
            if owner == 0:
                for place in places:
                    split = OwnSplit.read(chosen[place][1].record, self.own)
                    self.splits.append(split)
                    lefts[place] = split.sides(self.codes)
                continue
            members = np.stack([node[one.tree] == one.node for one, _ in (chosen[p] for p in places)])
            records = np.stack([np.frombuffer(chosen[p][1].record, np.uint8) for p in places])
            serials = [chosen[p][1].serial for p in places] if self.hides_sums else []
            sides = await self.foreign.sides(self.names[owner], records, members, serials)
            for place, left in zip(places, sides):
                lefts[place] = left
        return lefts


@dataclass(frozen=True)
class _Best:
    """The best split of a node: whose column it is, its gain, and what its holder reads."""

    owner: int
    gain: float
    record: bytes
    serial: int = -1


def find_records(
    widths: Sequence[int],
    is_category: Sequence[bool],
    sums: np.ndarray,
    usable: np.ndarray | None,
    rules: SplitRules,
    scale: tuple[float, float],
) -> list[tuple[float, bytes]]:
    """The helper's search: (gain, record) of the best split of each node; nodes × cells × channels words."""
    hist = PACKINGS["shares"].unpack(sums)
    if not widths:
        return [(0.0, bytes(RECORD))] * len(hist)
    bins = Bins(anonymous(widths, is_category))
    total = hist[:, : widths[0]].sum(axis=1)
    return [
        (0.0, bytes(RECORD)) if f.split is None else (f.gain, to_record(f.split, f.split.feature))
        for f in find_splits(np.ascontiguousarray(hist), total, bins, rules, scale, usable)
    ]
