"""Links to a second parent: which of its rows a child refers to.

A child's row does not copy the link of a real row. The rows of the second parent are grouped by their
attributes into cells of at least `floor` rows, by a regression tree that predicts the mean child from them
(L. Breiman et al., *Classification and Regression Trees*, 1984). The cell is learned and drawn like a column
of the child. Within the cell, rows are dealt out as often as the learned number of their children says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...errors import MissingExtra
from ..columns import Column

MAX_CELLS = 64  # cells of a second parent; each is one category of the child
MAX_LEVELS = 20  # levels of a category that are predictors of their own
NO_LINK = -1


@dataclass
class Cells:
    """A regression tree over the attributes of a table; its leaves are the cells."""

    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    columns: tuple[Column, ...]

    @property
    def size(self) -> int:
        return int((self.feature < 0).sum())

    def assign(self, x: np.ndarray) -> np.ndarray:
        """Return the cell of each row."""
        z = _predictors(x, self.columns)
        node = np.zeros(len(x), np.int64)
        rows = np.flatnonzero(self.feature[node] >= 0)
        while len(rows):
            at = node[rows]
            value = z[rows, self.feature[at]]
            node[rows] = np.where(value <= self.threshold[at], self.left[at], self.right[at])
            rows = rows[self.feature[node[rows]] >= 0]
        return self.left[node]

    def tensors(self) -> dict[str, Tensor]:
        return {
            name: torch.from_numpy(np.ascontiguousarray(getattr(self, name)))
            for name in ("feature", "threshold", "left", "right")
        }

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor], columns: tuple[Column, ...]) -> Cells:
        feature, threshold, left, right = (
            tensors[n].numpy() for n in ("feature", "threshold", "left", "right")
        )
        return cls(feature, threshold, left, right, columns)


def fit_cells(
    x: np.ndarray, columns: tuple[Column, ...], link: np.ndarray, child: np.ndarray, floor: int, seed: int
) -> Cells:
    """Group the rows `x` by what predicts their children; `link` is the row of each child, or −1."""
    try:
        from sklearn.tree import DecisionTreeRegressor
    except ImportError:
        raise MissingExtra("synth.LinkedTables", "data", "scikit-learn") from None

    linked = link >= 0
    counts = np.bincount(link[linked], minlength=len(x))
    used = np.flatnonzero(counts)
    leaf = max(floor, 2)
    if not columns or not child.shape[1] or len(used) < 2 * leaf:
        one = np.zeros(1, np.int64)
        return Cells(one - 1, np.zeros(1), one, one, columns)
    spread = np.nanstd(child, axis=0)
    scaled = np.nan_to_num((child - np.nanmean(child, axis=0)) / np.where(spread > 0, spread, 1.0))
    means = (
        np.column_stack(
            [
                np.bincount(link[linked], weights=scaled[linked, j], minlength=len(x))
                for j in range(child.shape[1])
            ]
        )[used]
        / counts[used, None]
    )
    tree = (
        DecisionTreeRegressor(min_samples_leaf=leaf, max_leaf_nodes=MAX_CELLS, random_state=seed)
        .fit(_predictors(x, columns)[used], means, sample_weight=counts[used])
        .tree_
    )
    inner = tree.children_left >= 0
    name = np.cumsum(~inner) - 1
    return Cells(
        np.where(inner, tree.feature, -1),
        np.where(inner, tree.threshold, 0.0),
        np.where(inner, tree.children_left, name),
        np.where(inner, tree.children_right, -1),
        columns,
    )


def child_axes(x: np.ndarray, columns: tuple[Column, ...]) -> np.ndarray:
    """Return numbers that describe children: numbers themselves, categories as indicators."""
    return _predictors(x, columns)


def _predictors(x: np.ndarray, columns: tuple[Column, ...]) -> np.ndarray:
    parts: list[np.ndarray] = []
    for j, c in enumerate(columns):
        if c.is_number or c.kind == "ordinal":
            low = c.low if c.low is not None else 0.0
            parts.append(np.where(np.isnan(x[:, j]), low - 1.0, x[:, j])[:, None])
        else:
            codes = np.where(np.isnan(x[:, j]), -1, x[:, j])
            levels = np.arange(min(len(c.values), MAX_LEVELS))
            parts.append((codes[:, None] == levels).astype(np.float64))
    return np.concatenate(parts, axis=1).astype(np.float32) if parts else np.zeros((len(x), 0), np.float32)


class Dealer:
    """Deals rows of a second parent to children, cell by cell, as often as `counts` says.

    A cell that is used up starts again, so that the numbers of children keep their proportions.
    """

    def __init__(self, cells: np.ndarray, counts: np.ndarray, size: int, rng: np.random.Generator):
        self.rng = rng
        weights = np.where(counts.sum() > 0, counts, 1).astype(np.int64) * np.ones(len(cells), np.int64)
        self.slots: dict[int, np.ndarray] = {}
        self.at: dict[int, int] = {}
        every = np.repeat(np.arange(len(cells)), weights)
        for cell in range(size):
            inside = every[cells[every] == cell]
            if not len(inside):
                inside = np.flatnonzero(cells == cell)
            self.slots[cell] = rng.permutation(inside if len(inside) else every)
            self.at[cell] = 0

    def deal(self, cells: np.ndarray) -> np.ndarray:
        """Return a row for each wanted cell; −1 where there is no link."""
        out = np.full(len(cells), NO_LINK, np.int64)
        for cell in np.unique(cells[cells >= 0]).tolist():
            rows = np.flatnonzero(cells == cell)
            taken: list[np.ndarray] = []
            need = len(rows)
            while need:
                slots, at = self.slots[cell], self.at[cell]
                part = slots[at : at + need]
                taken.append(part)
                need -= len(part)
                self.at[cell] = at + len(part)
                if self.at[cell] >= len(slots):
                    self.slots[cell], self.at[cell] = self.rng.permutation(slots), 0
            out[rows] = self.rng.permutation(np.concatenate(taken))
        return out


def link_column(cells: Cells, name: str, missing: bool) -> Column:
    """The cell that a child refers to, as a category of the child."""
    return Column("categorical", f"({name})", tuple(range(cells.size)), missing=missing)
