"""Boosting with (ε, δ)-differential privacy of each row: random splits, noisy leaves.

H. Nori, R. Caruana, Z. Bu, J. Shen, J. Kulkarni, "Accuracy, Interpretability, and Differential Privacy via
Explainable Boosting" (DP-EBM), 2021: every tree divides one column, in turn, at random cuts, so that only the
sums of its leaves are released.

    step 0           rows of each class; counts of each number in equal cells of its declared bounds → bins
    step t = 1 … T   Σ g and Σ h of each leaf of tree t, whose splits follow from the seed, t and the bins

|g| ≤ 1 and h ≤ h_max for every row, and a row is in one leaf: that is what one row changes. A regression
is fitted to the label clipped to its declared bounds and scaled to [−1, 1]; gradients are clipped to it, too.
Parties add discrete Gaussian noise (stats/noise_share.py), and ρ of zCDP is shared by the releases. What is
sent down follows from noisy sums. A coordinator that sends other bins or trees learns no more: noise of the
same size is in every answer.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ..accounting.compose import Release
from ..errors import BadData
from ..parties.ledger import Spend
from ..protocols.sum_steps import Down
from ..stats import noise_share
from ..stats.noise_share import BOUND, SCALE, Block
from . import agreement
from .agreement import Agreed, OwnRows, Terms, Token
from .bins import Bins
from .bounded_cells import CELLS, choose_cuts, count_cells
from .model import Booster
from .objectives import OBJECTIVES, Objective
from .program import Boosted, from_down, to_down
from .rows import RowState
from .trees import Split, Tree, to_bytes

BIN_SHARE, LABEL_SHARE = 0.05, 0.02  # of the budget
HESSIAN_SHARE = 0.2  # of a tree's budget
DEPTH = 2  # of a tree: four leaves of one column; deeper ones have more noise than signal
PRIVATE_OBJECTIVES = ("binary", "regression")


@dataclass(frozen=True)
class PrivateBoostProgram:
    """All options are plain values. `bounds` are those of each number, and of the label in a regression."""

    terms: Mapping[str, Any]
    parties: int
    epsilon: float
    delta: float
    bounds: Mapping[str, Sequence[float]]
    trees: int = 100
    depth: int = DEPTH
    learning_rate: float = 0.3
    l2: float = 1.0
    seed: int = 0

    @cached_property
    def about(self) -> Terms:
        return Terms(**agreement.plain(self.terms))

    @cached_property
    def token(self) -> Token:
        return Token()

    @property
    def objective(self) -> Objective:
        return OBJECTIVES[self.about.objective](len(self.about.labels))

    @property
    def max_steps(self) -> int:
        return 1 + self.trees

    @property
    def bound(self) -> int:
        return BOUND

    @property
    def searched(self) -> tuple[str, ...]:
        return self.about.searched

    # --- privacy --------------------------------------------------------------------------------------------

    @property
    def release(self) -> Release:
        return noise_share.release_of(self.epsilon, self.delta)

    @property
    def spend(self) -> Spend:
        return noise_share.spend_of(
            self.epsilon, self.delta, self.parties, f"bins and the leaves of {self.trees} trees"
        )

    @cached_property
    def _first_share(self) -> float:
        return (BIN_SHARE if self.searched else 0.0) + LABEL_SHARE

    def blocks(self, step: int) -> list[Block]:
        """The numbers of a step, what one row changes in them, and their share of the budget."""
        if step == 0:
            each = BIN_SHARE / max(len(self.searched), 1)
            numbers = [Block(CELLS, 1.0, each) for _ in self.searched]
            return [*numbers, Block(max(len(self.about.labels), 1), 1.0, LABEL_SHARE)]
        share, leaves = (1 - self._first_share) / self.trees, 2**self.depth
        h = self.objective.bounds(1.0)[1]
        return [Block(leaves, 1.0, share * (1 - HESSIAN_SHARE)), Block(leaves, h, share * HESSIAN_SHARE)]

    # --- a party --------------------------------------------------------------------------------------------

    def length(self, step: int, down: Down) -> int:
        return sum(block.length for block in self.blocks(step))

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        parts = self.exact(step, table, down)
        return noise_share.add_noise(parts, self.blocks(step), self.epsilon, self.delta, self.parties)

    def exact(self, step: int, table: pd.DataFrame, down: Down) -> list[np.ndarray]:
        """Return a party's sums before the noise."""
        own = agreement.prepare_declared(self, table)
        if step == 0:
            return self._count(own)
        agreed = agreement.read_agreed(self, down)
        state = own.state(agreed.key, lambda: self._start(own, agreed))
        state.finish(from_down(down, "trees"))
        if state.rounds != step - 1:
            raise BadData("boost: the trees of this step are not those of all earlier ones.")
        g, h = state.objective.gradients(state.margin, state.y)
        leaf = self._leaves(agreed.bins, step - 1, state.codes)
        most = state.objective.bounds(1.0)[1]
        count = 2**self.depth
        return [
            np.bincount(leaf, np.clip(g[:, 0], -1.0, 1.0), count),
            np.bincount(leaf, np.clip(h[:, 0], 0.0, most), count),
        ]

    def _count(self, own: OwnRows) -> list[np.ndarray]:
        columns = zip(self.searched, own.values(self.searched))
        parts = [count_cells(values, self.bounds[name]) for name, values in columns]
        y = own.label(self.about.labels)
        labels = self.about.labels
        parts.append(np.bincount(y.astype(np.int64), minlength=len(labels)) if labels else np.array([len(y)]))
        return parts

    def _start(self, own: OwnRows, agreed: Agreed) -> RowState:
        y = own.label(agreed.labels)
        if not agreed.labels:
            middle, half = self._scale
            y = np.clip((y - middle) / half, -1.0, 1.0)
        codes = agreed.bins.encode(own.table)
        return RowState(codes, y, agreed.bins, self.objective, agreed.base, np.ones(len(y)))

    @property
    def _scale(self) -> tuple[float, float]:
        """The middle and half the width of the label's bounds."""
        if self.about.labels:
            return 0.0, 1.0
        low, high = self.bounds[self.about.label]
        return (low + high) / 2, (high - low) / 2

    # --- the structure of trees: the same at all parties, and independent of rows ---------------------------

    def _divisions(self, bins: Bins, round_: int) -> tuple[int, list[np.ndarray]]:
        """Return the column of a tree, and for each depth which of its cells go left."""
        f = round_ % len(bins.features)
        rng = np.random.default_rng([self.seed, round_])
        width = bins.features[f].width
        sides = []
        for _ in range(self.depth):
            if bins.is_category[f]:
                goes_left = rng.random(width + 1) < 0.5
            else:
                goes_left = np.arange(width + 1) <= rng.integers(0, max(width - 1, 1))
                goes_left[width] = rng.random() < 0.5  # missing values
            sides.append(goes_left)
        return f, sides

    def _leaves(self, bins: Bins, round_: int, codes: np.ndarray) -> np.ndarray:
        f, sides = self._divisions(bins, round_)
        leaf_of_cell = np.zeros(bins.features[f].width + 1, dtype=np.int64)
        for goes_left in sides:
            leaf_of_cell = 2 * leaf_of_cell + ~goes_left
        return np.asarray(leaf_of_cell[codes[:, f]])

    def _tree(self, bins: Bins, round_: int, values: np.ndarray) -> Tree:
        """Return the tree with these leaves."""
        f, sides = self._divisions(bins, round_)
        tree, level = Tree(), [0]
        width = bins.features[f].width
        for goes_left in sides:
            is_set = bool(bins.is_category[f])
            cut = 0 if is_set else int(goes_left[:width].sum()) - 1
            below: list[int] = []
            for node in level:
                chosen = goes_left[:width].copy() if is_set else None
                below += tree.divide(node, Split(f, cut, bool(goes_left[width]), 0.0, chosen))
            level = below
        for node, value in zip(level, values):
            tree.value[node] = tree.weight[node] = float(np.float32(value))
        return tree

    # --- the coordinator ------------------------------------------------------------------------------------

    def coordinate(self) -> Generator[Down, np.ndarray, Boosted]:
        terms, labels = self.about, self.about.labels
        total = (yield {}).astype(np.float64) / SCALE
        counts = np.maximum(total[len(self.searched) * CELLS :], 0.0)
        rows = max(round(float(counts.sum())), 0)
        cuts = {c: tuple(float(np.float32(v)) for v in values) for c, values in terms.cuts.items()}
        for k, name in enumerate(self.searched):
            counts_of_cells = np.maximum(total[k * CELLS : (k + 1) * CELLS], 0.0)
            cuts[name] = choose_cuts(counts_of_cells, self.bounds[name], min(self.about.bins, 32))
        features = tuple(
            terms.feature(c, terms.levels[c], None)
            if c in terms.categorical
            else terms.feature(c, None, cuts[c])
            for c in terms.columns
        )
        objective = self.objective
        share = float(counts[-1] / max(counts.sum(), 1.0)) if labels else 0.0
        base = objective.base(min(max(share, 0.01), 0.99)) if labels else 0.0
        agreed = Agreed(Bins(features), labels, base, (1.0, 1.0), (1.0,) * len(labels))
        model = Booster(agreed.bins, objective, base, labels)
        down, finished = agreed.to_down(), b""
        blocks = self.blocks(1)
        deviation = math.sqrt(noise_share.total_variance(self.epsilon, self.delta, self.parties, blocks[0]))
        for round_ in range(self.trees):
            total = (yield to_down(down, round_, finished, [], [])).astype(np.float64) / SCALE
            g, h = np.split(total, 2)
            # the noise of g shrinks leaves with few rows
            w = -self.learning_rate * g / (np.maximum(h, 0.0) + self.l2 + deviation)
            tree = self._tree(agreed.bins, round_, np.clip(w, -1.0, 1.0))
            model.trees.append(tree)
            finished += to_bytes([tree])
        return Boosted(self._rescaled(model), rows, [], None, self.max_steps)

    def _rescaled(self, model: Booster) -> Booster:
        """Return the model in the units of the label."""
        middle, half = self._scale
        if not self.about.labels:
            model.base = float(np.float32(middle + half * model.base))
            for tree in model.trees:
                tree.value = [float(np.float32(half * v)) for v in tree.value]
                tree.weight = [half * w for w in tree.weight]
        return model
