"""Horizontal boosting as a program of sums (protocols/sum_steps.py).

    step                sent down                         sum over all parties
    levels              –                                 sketch of undeclared levels and classes, of which
                                                          a party has enough rows
    counts              levels, classes                   rows and labels; first 8 bits of numbers
    cells 1, 2          …, cells to divide                the next 8 bits of numbers in these cells
    a round's steps     bins, all trees so far, nodes     Σg, Σh, rows in every cell of these nodes
                        (the first of a round)            and the loss of held-out rows

Parties check the sum of levels and what is sent after it (protocols/checked_sums.py), and refuse levels that
are sent later and were not found: a level of the coordinator's choice would count the rows of one person.

Gradients are integers of 26 bits, so sums are exact: trees are those of the same program on the pooled rows,
bit for bit. Every step has all trees so far (of which the last one is sent, step_vectors.py), so that what a
party computes follows from its rows and from this step; a party that was restarted needs nothing else.
Histograms of fewer than 2^19 rows of all parties are added as two words for each cell (kernels.WORDS).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..crypto import exact
from ..errors import BadData
from ..protocols.sum_steps import Down, read_vector
from . import agreement, trees
from .agreement import Agreed, Terms, Token
from .bins import Bins
from .grower import Ask, GrowRules, grow, sample_features
from .kernels import CHANNELS, PACKED_ROWS, WORDS, has_numba, histogram_words, histograms, unpack_words
from .model import Booster
from .objectives import OBJECTIVES, Custom, Objective
from .rows import UNITS, RowState, draw
from .splits import SplitRules

HELD_OUT, SAMPLED = 1, 2  # what rows are drawn for
MOST_ROWS = 1 << 24  # of one party


@dataclass
class Boosted:
    """What training returns."""

    model: Booster
    rows: int
    losses: list[float]  # mean loss of held-out rows after each round, from round 0
    best: int | None  # the round with the smallest loss, if there are held-out rows
    steps: int


@dataclass(frozen=True)
class BoostProgram:
    """All options are plain values, which parties agree on."""

    terms: Mapping[str, Any]  # columns, label, declared levels and cuts: agreement.Terms
    trees: int = 100
    depth: int = 6
    leaves: int = 0
    learning_rate: float = 0.3
    l2: float = 1.0
    l1: float = 0.0
    gamma: float = 0.0
    min_child_weight: float = 1.0
    min_rows: int = 1
    max_step: float = 0.0
    rows: float = 1.0
    columns: float = 1.0
    columns_by_level: float = 1.0
    columns_by_node: float = 1.0
    monotone: Mapping[str, int] = field(default_factory=dict)
    class_weight: Mapping[str, float] | str | None = None
    held_out: float = 0.0
    early_stopping: int = 0
    min_party_rows: int = 1
    seed: int = 0
    custom: Custom | None = None  # simulation only: a function is no plain value

    # --- what both sides know -------------------------------------------------------------------------------

    @cached_property
    def token(self) -> Token:
        return Token()

    @cached_property
    def about(self) -> Terms:
        return Terms(**agreement.plain(self.terms))

    @cached_property
    def max_steps(self) -> int:
        return len(self.about.stages) + self.trees * self._rules(None).steps() + 1

    @property
    def bound(self) -> int:
        return UNITS * MOST_ROWS

    @property
    def checked_sums(self) -> int:
        return self.about.checked_sums

    def is_by_party(self, step: int) -> bool:
        """A level is found if one party has enough rows of it."""
        return step < self.about.checked_sums

    def objective(self, labels: Sequence[str]) -> Objective:
        return self.custom if self.custom is not None else OBJECTIVES[self.about.objective](len(labels))

    def _rules(self, bins: Bins | None) -> GrowRules:
        names = [] if bins is None else bins.names
        step = self.max_step or (0.7 if self.about.objective == "poisson" else 0.0)  # as XGBoost's default
        return GrowRules(
            SplitRules(self.l2, self.l1, self.gamma, self.min_child_weight, self.min_rows, step),
            self.learning_rate,
            self.depth,
            self.leaves,
            self.columns_by_level,
            self.columns_by_node,
            tuple(int(self.monotone.get(name, 0)) for name in names) if self.monotone else None,
            self.seed,
        )

    @cached_property
    def _stages(self) -> int:
        """The number of steps before the first tree."""
        return len(self.about.stages)

    def _features(self, round_: int) -> np.ndarray | None:
        """Return which features a round uses; None: all."""
        if self.columns >= 1:
            return None
        return sample_features(len(self.about.columns), self.columns, [self.seed, round_, 0])

    # --- a party --------------------------------------------------------------------------------------------

    def length(self, step: int, down: Down) -> int:
        if step < self._stages:
            return agreement.length(self.about, self.about.stages[step], down)
        size = self._measure(down)
        return size.cells * CHANNELS + size.others

    def words(self, step: int, down: Down) -> int | None:
        """As histograms are added: two words for each cell in place of three numbers (kernels.WORDS)."""
        if step < self._stages:
            return None
        size = self._measure(down)
        return size.cells * WORDS + size.others if size.is_packed else None

    def unpack(self, step: int, down: Down, total: np.ndarray) -> np.ndarray:
        cells = self._measure(down).cells
        found = unpack_words(total[: cells * WORDS], (1, cells))
        return np.concatenate([found.reshape(-1), total[cells * WORDS :]])

    @property
    def _judges(self) -> bool:
        return self.held_out > 0

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        return self._contribute(step, table, down, words=False)

    def local_words(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        return self._contribute(step, table, down, words=True)

    def _contribute(self, step: int, table: pd.DataFrame, down: Down, words: bool) -> np.ndarray:
        own = agreement.prepare(self, table)
        if words and own.rows >= PACKED_ROWS:
            raise BadData("boost: this party alone has more rows than the coordinator says all have.")
        if own.rows > MOST_ROWS:
            raise BadData(f"the table has {own.rows} rows; a party may have at most {MOST_ROWS}.")
        train = own.keep(self.seed, HELD_OUT, self.held_out)
        if step < self._stages:
            return agreement.local(self.about, self.about.stages[step], table, own, train, down)
        work = self._read(down)
        state = own.state(work.agreed.key, lambda: self._start(table, work.agreed))
        state.finish(work.finished)
        if state.rounds != work.round:
            raise BadData("boost: the round of this step is not that of the trees that were sent.")
        parts = []
        if len(work.growing):
            sampled = train
            if self.rows < 1:
                sampled = train & draw(own.hashes, self.seed, SAMPLED + work.round, self.rows)
            parts += self._histograms(state, work, sampled, words)
        if work.is_first and self._judges:
            losses = state.losses(~train)
            parts += [np.array([len(losses)]), exact.encode_sum(losses[:, None])]
        return parts[0] if len(parts) == 1 else np.concatenate(parts).astype(np.int64)

    def _start(self, table: pd.DataFrame, agreed: Agreed) -> RowState:
        own = agreement.prepare(self, table)
        y = own.label(agreed.labels)
        weight = agreed.weights[y.astype(np.int64)] if agreed.labels else np.ones(len(y))
        codes = agreed.bins.encode(table)
        return RowState(codes, y, agreed.bins, self.objective(agreed.labels), agreed.base, weight)

    def _histograms(self, state: RowState, work: _Work, sampled: np.ndarray, words: bool) -> list[np.ndarray]:
        """Return the histograms of the asked nodes over the used features, of each output."""
        used = self._features(work.round)
        bins = work.agreed.bins
        columns = bins.places if used is None else np.flatnonzero(used)
        if used is not None:
            bins = Bins(tuple(bins.features[f] for f in columns))
        if has_numba() and self.min_party_rows <= 1 and len(state.codes) < PACKED_ROWS:
            found = state.grow_and_count(
                work.growing, work.slots, work.counts, sampled, columns, bins, work.agreed.scale
            )
            if not words:
                found = [unpack_words(f, (n, bins.cells)).reshape(-1) for f, n in zip(found, work.counts)]
            return [f for f, n in zip(found, work.counts) if n]
        state.grow(work.growing)
        codes = state.codes if used is None else state.codes[:, columns]
        kernel, (g, h), out = histogram_words if words else histograms, state.gradients(work.agreed.scale), []
        for k, (count, slots) in enumerate(zip(work.counts, work.slots)):
            if not count:
                continue
            if self.min_party_rows > 1:
                slots = slots.copy()
                slots[few_rows(work.growing.nodes[k], state.node[k][sampled], self.min_party_rows)] = -1
            shape = count, bins.cells
            out.append(
                kernel(codes, state.node[k], slots, sampled, g[k], h[k], bins.offsets, shape).reshape(-1)
            )
        return out

    def _measure(self, down: Down) -> _Size:
        """Return how much a tree step asks for; its trees are checked when it is answered (`_parse`)."""
        kept = self.token.size
        if kept is None or kept[0] is not down:
            agreed, (_, data) = agreement.read_agreed(self, down), numbers_of(down, "growing")
            round_, asked, at = _read_ask(data)
            is_first = True
            for _ in range(self._count_outputs(agreed.labels) if asked else 0):
                if at + trees.HEAD.size > len(data):
                    raise BadData("boost: the growing trees are not those of one round.")
                nodes, sets = trees.HEAD.unpack_from(data.data, at)
                at += trees.bytes_of(nodes, sets)
                is_first &= nodes == 1
            others = (1 + exact.LIMBS) * is_first * self._judges
            size = _Size(asked * self._count_cells(agreed.bins, round_), others, agreed.packed)
            self.token.size = kept = down, size
        return kept[1]

    def _read(self, down: Down) -> _Work:
        """Read what a tree step sent, once for all parties of this process."""
        kept = self.token.work
        if kept is None or kept[0] is not down:
            self.token.work = kept = down, self._parse(down)
        return kept[1]

    def _parse(self, down: Down) -> _Work:
        """Raise BadData for what the agreed program never sends."""
        agreed = agreement.read_agreed(self, down)
        _, data = numbers_of(down, "growing")
        round_, asked, begin = _read_ask(data)
        flat = np.frombuffer(data, _ASKED, 2 * asked, _ASK.size).tolist()
        outputs = self._count_outputs(agreed.labels)
        growing = trees.SentTrees(data[begin:], agreed.bins, outputs)
        if len(growing) != (outputs if flat else 0):
            raise BadData("boost: the growing trees are not those of one round.")
        sizes = growing.sizes
        if max(sizes, default=1) > self._most_nodes:
            raise BadData("boost: the growing trees are larger than agreed.")
        slots, counts, last = [np.full(n, -1, dtype=np.int32) for n in sizes], [0] * len(sizes), (-1, -1)
        for k, n in zip(flat[::2], flat[1::2]):
            if not (k < outputs and n < sizes[k]) or (k, n) <= last:
                raise BadData("boost: the nodes of this step are not a list of nodes of growing trees.")
            slots[k][n], counts[k], last = counts[k], counts[k] + 1, (k, n)
        if round_ > self.trees - bool(flat):
            raise BadData("boost: more rounds were asked for than the agreed program has.")
        is_first = not flat or max(sizes) == 1
        for places in slots:  # parties of one process share them
            places.flags.writeable = False
        return _Work(agreed, round_, self._finished(down), growing, slots, counts, is_first)

    def _count_outputs(self, labels: tuple[str, ...]) -> int:
        kept = self.token.outputs
        if kept is None or kept[0] is not labels:
            self.token.outputs = kept = labels, self.objective(labels).outputs
        return kept[1]

    def _count_cells(self, bins: Bins, round_: int) -> int:
        """Return how many cells a node's histogram has in a round."""
        used = self._features(round_)
        return bins.cells if used is None else int((bins.widths[used] + 1).sum())

    def _finished(self, down: Down) -> bytes:
        key, data = numbers_of(down, "trees")
        kept = self.token.trees
        if kept is None or kept[0] is not key:
            self.token.trees = kept = key, data.tobytes()
        return kept[1]

    @cached_property
    def _most_nodes(self) -> int:
        by_depth = 2 ** (self.depth + 1) - 1 if self.depth else math.inf
        return int(min(by_depth, 2 * self.leaves - 1 if self.leaves else math.inf))

    # --- the coordinator ------------------------------------------------------------------------------------

    def coordinate(self) -> Generator[Down, np.ndarray, Boosted]:
        agreed, rows, steps = yield from agreement.coordinate(self)
        objective = self.objective(agreed.labels)
        model = Booster(agreed.bins, objective, agreed.base, agreed.labels)
        down, finished = agreed.to_down(), _tensor(b"")
        losses: list[float] = []
        for round_ in range(self.trees):
            used = self._features(round_)
            used = np.ones(len(agreed.bins.features), dtype=bool) if used is None else used
            cells = self._count_cells(agreed.bins, round_)
            growth = grow(
                agreed.bins, used, self._rules(agreed.bins), agreed.scale, round_, objective.outputs
            )
            growing, asks = next(growth)
            while True:
                total = yield to_down(down, round_, finished, growing, asks)
                steps += 1
                if self._judges and max(map(len, growing)) == 1:
                    losses.append(_mean_loss(total[-1 - exact.LIMBS :]))
                    if self._stops(losses):
                        return self._finish(model, rows, losses, steps)
                hists = total[: len(asks) * cells * CHANNELS].reshape(len(asks), cells, CHANNELS)
                try:
                    growing, asks = growth.send(hists)
                except StopIteration as end:
                    model.trees += end.value
                    added = np.frombuffer(trees.to_bytes(end.value), dtype=np.uint8)
                    # not torch.cat, which starts threads (protocols/step_vectors.py)
                    finished = torch.from_numpy(np.concatenate([finished.numpy(), added]))
                    break
        if self._judges:
            total = yield to_down(down, self.trees, finished, [], [])
            steps += 1
            losses.append(_mean_loss(total))
        return self._finish(model, rows, losses, steps)

    def _stops(self, losses: list[float]) -> bool:
        best = int(np.argmin(losses))
        return bool(self.early_stopping) and len(losses) - 1 - best >= self.early_stopping

    def _finish(self, model: Booster, rows: int, losses: list[float], steps: int) -> Boosted:
        best = int(np.argmin(losses)) if losses else None
        if best is not None and self.early_stopping:
            model.trees = model.trees[: best * model.objective.outputs]
        return Boosted(model, rows, losses, best, steps)


def few_rows(tree: trees.Nodes, node: np.ndarray, least: int) -> np.ndarray:
    """Return the nodes to which a party adds nothing (bool): those with 1 to `least` − 1 of its rows, their
    siblings, which the parent's sums would turn into them, and all that is below.
    """
    rows = np.bincount(node, minlength=len(tree.feature))
    splits = np.flatnonzero(tree.feature != trees.LEAF).tolist()
    for n in reversed(splits):  # children come after their parents
        left = int(tree.left[n])
        rows[n] = rows[left] + rows[left + 1]
    few = (rows > 0) & (rows < least)
    for n in splits:
        pair = slice(int(tree.left[n]), int(tree.left[n]) + 2)
        few[pair] = few[n] or few[pair].any()
    return few


class _Work(NamedTuple):
    """A tree step, read and checked."""

    agreed: Agreed
    round: int
    finished: bytes
    growing: trees.SentTrees
    slots: list[np.ndarray]  # of each growing tree and node, the histogram of its rows; −1: none is asked for
    counts: list[int]  # how many nodes of each growing tree are asked for
    is_first: bool


class _Size(NamedTuple):
    """How much a tree step asks for."""

    cells: int  # of histograms
    others: int  # numbers besides
    is_packed: bool


# what is asked: the round and how many nodes; each node: its tree and its place; then the growing trees
_ASK, _ASKED = struct.Struct("<II"), np.dtype("<u2")


def _read_ask(data: np.ndarray) -> tuple[int, int, int]:
    """Return the round, how many nodes are asked for, and where the growing trees begin."""
    if len(data) < _ASK.size:
        raise BadData("boost: the round and the nodes of this step are missing.")
    round_, asked = _ASK.unpack_from(data.data)
    begin = _ASK.size + _ASKED.itemsize * 2 * asked
    if len(data) < begin:
        raise BadData("boost: the nodes of this step are cut off.")
    return round_, asked, begin


def to_down(
    down: Mapping[str, Tensor],
    round_: int,
    finished: bytes | Tensor,
    growing: Sequence[trees.Tree],
    asks: list[Ask],
) -> dict[str, Tensor]:
    """Return what a tree step sends."""
    nodes = np.array([v for ask in asks for v in ask], dtype=_ASKED)
    return {
        **down,
        "trees": _tensor(finished) if isinstance(finished, bytes) else finished,
        "growing": _tensor(
            b"".join((_ASK.pack(round_, len(asks)), nodes.tobytes(), trees.to_bytes(growing)))
        ),
    }


def _tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8))


def numbers_of(down: Down, name: str) -> tuple[object, np.ndarray]:
    """Return the vector of bytes that was sent under this name, as read_vector does."""
    found = read_vector(down, name) if name in down else None
    if found is None or found[1].dtype != np.uint8 or found[1].ndim != 1:
        raise BadData(f"boost: {name!r} of this step is missing.")
    return found


def from_down(down: Down, name: str) -> bytes:
    """Return the bytes that were sent under this name."""
    return numbers_of(down, name)[1].tobytes()


def _mean_loss(total: np.ndarray) -> float:
    if not total[0]:
        raise BadData("no rows are held out; use a larger held_out, or no early stopping.")
    return float(exact.decode(total[1:])[0]) / int(total[0])
