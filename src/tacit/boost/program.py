"""Horizontal boosting as a program of sums (protocols/sum_steps.py).

    step                sent down                         sum over all parties
    levels              –                                 sketch of undeclared levels and classes
    counts              levels, classes                   rows and labels; first 8 bits of numbers
    cells 1, 2          …, cells to divide                the next 8 bits of numbers in these cells
    a round's steps     bins, all trees so far, nodes     Σg, Σh, rows in every cell of these nodes
                        (the first of a round)            and the loss of held-out rows

Gradients are integers of 26 bits, so sums are exact: trees are those of the same program on the pooled rows,
bit for bit. Every step sends all trees so far, so that what a party computes follows from its rows and from
this one message; a party that was restarted needs nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..crypto import exact
from ..errors import BadData
from ..protocols.sum_steps import Down
from . import agreement, trees
from .agreement import Agreed, Terms, Token
from .bins import Bins
from .grower import Ask, GrowRules, grow, sample_features
from .kernels import CHANNELS, histograms
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

    @property
    def max_steps(self) -> int:
        return len(self.about.stages) + self.trees * self._rules(None).steps() + 1

    @property
    def bound(self) -> int:
        return UNITS * MOST_ROWS

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

    def _features(self, round_: int) -> np.ndarray:
        return sample_features(len(self.about.columns), self.columns, [self.seed, round_, 0])

    # --- a party --------------------------------------------------------------------------------------------

    def length(self, step: int, down: Down) -> int:
        if step < len(self.about.stages):
            return agreement.length(self.about, self.about.stages[step], down)
        work = self._read(down)
        cells = work.agreed.bins.widths[self._features(work.round)] + 1
        return len(work.asks) * int(cells.sum()) * CHANNELS + (1 + exact.LIMBS) * work.is_first * self._judges

    @property
    def _judges(self) -> bool:
        return self.held_out > 0

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        if len(table) > MOST_ROWS:
            raise BadData(f"the table has {len(table)} rows; a party may have at most {MOST_ROWS}.")
        own = agreement.prepare(self, table)
        train = ~own.draw(self.seed, HELD_OUT, self.held_out)
        if step < len(self.about.stages):
            return agreement.local(self.about, self.about.stages[step], table, own, train, down)
        work = self._read(down)
        state = own.state(work.agreed.key, lambda: self._start(table, work.agreed))
        state.finish(work.finished)
        if state.rounds != work.round:
            raise BadData("boost: the round of this step is not that of the trees that were sent.")
        parts = []
        if work.asks:
            state.grow(work.growing)
            sampled = train
            if self.rows < 1:
                sampled = train & draw(own.hashes, self.seed, SAMPLED + work.round, self.rows)
            parts.append(self._histograms(state, work, sampled))
        if work.is_first and self._judges:
            losses = state.losses(~train)
            parts += [np.array([len(losses)]), exact.encode_sum(losses[:, None])]
        return np.concatenate([p.reshape(-1) for p in parts]).astype(np.int64)

    def _start(self, table: pd.DataFrame, agreed: Agreed) -> RowState:
        own = agreement.prepare(self, table)
        y = own.label(agreed.labels)
        weight = agreed.weights[y.astype(np.int64)] if agreed.labels else np.ones(len(y))
        codes = agreed.bins.encode(table)
        return RowState(codes, y, agreed.bins, self.objective(agreed.labels), agreed.base, weight)

    def _histograms(self, state: RowState, work: _Work, sampled: np.ndarray) -> np.ndarray:
        """Return the histograms of the asked nodes over the used features."""
        used = self._features(work.round)
        bins, codes = work.agreed.bins, state.codes
        if not used.all():
            bins, codes = Bins(tuple(f for f, u in zip(bins.features, used) if u)), codes[:, used]
        g, h = state.gradients(work.agreed.scale)
        out = []
        for k in range(state.objective.outputs):
            nodes = [node for tree, node in work.asks if tree == k]
            if not nodes:
                continue
            slots = np.full(len(work.growing[k].feature), -1, dtype=np.int32)
            slots[nodes] = np.arange(len(nodes))
            if self.min_party_rows > 1:
                slots[few_rows(work.growing[k], state.node[k][sampled], self.min_party_rows)] = -1
            found = histograms(
                codes, state.node[k], slots, sampled, g[k], h[k], bins.offsets, (len(nodes), bins.cells)
            )
            out.append(found)
        return np.concatenate(out)

    def _read(self, down: Down) -> _Work:
        """Read what a tree step sent; `length` and `local` are asked about the same message."""
        kept = self.token.work
        if kept is None or kept[0] is not down:
            self.token.work = kept = down, self._parse(down)
        return kept[1]

    def _parse(self, down: Down) -> _Work:
        """Raise BadData for what the agreed program never sends."""
        agreed = agreement.read_agreed(self, down)
        outputs = self.objective(agreed.labels).outputs
        asks_vector = down.get("ask")
        if asks_vector is None or asks_vector.dtype != torch.int32 or asks_vector.ndim != 1:
            raise BadData("boost: the nodes of this step are missing.")
        flat = asks_vector.tolist()
        asks = [(flat[i], flat[i + 1]) for i in range(0, len(flat) - 1, 2)]
        growing = trees.from_bytes(from_down(down, "growing"), agreed.bins)
        if len(flat) % 2 or asks != sorted(set(asks)) or len(growing) != (outputs if asks else 0):
            raise BadData("boost: the nodes of this step are not a list of nodes of growing trees.")
        sizes = [len(tree.feature) for tree in growing]
        if any(not 0 <= k < outputs or not 0 <= n < sizes[k] for k, n in asks):
            raise BadData("boost: the nodes of this step are not in the growing trees.")
        if max(sizes, default=1) > self._most_nodes:
            raise BadData("boost: the growing trees are larger than agreed.")
        numbers = down.get("round")
        if numbers is None or numbers.dtype != torch.int32 or numbers.shape != (1,):
            raise BadData("boost: the round of this step is missing.")
        round_ = int(numbers)
        if not 0 <= round_ <= self.trees - bool(asks):
            raise BadData("boost: more rounds were asked for than the agreed program has.")
        is_first = not asks or max(sizes) == 1
        return _Work(agreed, round_, from_down(down, "trees"), growing, asks, is_first)

    @property
    def _most_nodes(self) -> int:
        by_depth = 2 ** (self.depth + 1) - 1 if self.depth else math.inf
        return int(min(by_depth, 2 * self.leaves - 1 if self.leaves else math.inf))

    # --- the coordinator ------------------------------------------------------------------------------------

    def coordinate(self) -> Generator[Down, np.ndarray, Boosted]:
        agreed, rows, steps = yield from agreement.coordinate(self)
        objective = self.objective(agreed.labels)
        model = Booster(agreed.bins, objective, agreed.base, agreed.labels)
        down, finished = agreed.to_down(), b""
        losses: list[float] = []
        for round_ in range(self.trees):
            used = self._features(round_)
            cells = int((agreed.bins.widths[used] + 1).sum())
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
                    finished += trees.to_bytes(end.value)
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


@dataclass(frozen=True)
class _Work:
    """A tree step, read and checked."""

    agreed: Agreed
    round: int
    finished: bytes
    growing: list[trees.Nodes]
    asks: list[Ask]
    is_first: bool


def to_down(
    down: Mapping[str, Tensor],
    round_: int,
    finished: bytes,
    growing: Sequence[trees.Tree],
    asks: list[Ask],
) -> dict[str, Tensor]:
    """Return what a tree step sends."""
    return {
        **down,
        "round": torch.from_numpy(np.array([round_], dtype=np.int32)),
        "trees": _tensor(finished),
        "growing": _tensor(trees.to_bytes(growing)),
        "ask": torch.from_numpy(np.array([v for ask in asks for v in ask], dtype=np.int32)),
    }


def _tensor(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8))


def from_down(down: Down, name: str) -> bytes:
    """Return the bytes that were sent under this name."""
    tensor = down.get(name)
    if tensor is None or tensor.dtype != torch.uint8 or tensor.ndim != 1:
        raise BadData(f"boost: {name!r} of this step is missing.")
    return tensor.numpy().tobytes()


def _mean_loss(total: np.ndarray) -> float:
    if not total[0]:
        raise BadData("no rows are held out; use a larger held_out, or no early stopping.")
    return float(exact.decode(total[1:])[0]) / int(total[0])
