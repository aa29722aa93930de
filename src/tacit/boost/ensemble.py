"""Trees of any origin in one form, for evaluation on secret shares: complete trees over whole numbers.

Every comparison of a tree is the sign of a whole number that is linear in the row:

    number      x < t        key(x) − key(t), where `key` maps floats to whole numbers in their order
    missing     its default  ± MISSING, far beyond every key
    category    x in a set   −1 for each level of the set, on the row's one-hot code; otherwise 0

A row goes right where the number is at least 0. So one matrix has the features, thresholds, default
directions and sets of all nodes. Trees are filled up to the depth of the deepest one, with nodes that compare
nothing and leaves that repeat a value: only the number of trees and the depth are left of their shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..errors import BadData, BadParameter
from ..stats.columns import numbers, text_of

LEAF = -1
# float64 loses its lowest 21 bits of 52, so that keys and MISSING fit the smaller ring of `mpc/prime.py`
DROPPED_BITS = 21
MISSING = {False: 1 << 32, True: 1 << 42}  # beyond every key of float32, of float64
MOST_LEAVES = 1 << 18  # of all trees together: each node takes a column of the masked matrix


def key32(values: Any) -> np.ndarray:
    """Return whole numbers in the order of float32 values; −0 and 0 are equal."""
    bits = np.asarray(values, dtype=np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def key64(values: Any) -> np.ndarray:
    """Return whole numbers in the order of float64 values that differ by more than 2^-31 of their size."""
    bits = np.asarray(values, dtype=np.float64).view(np.int64)
    magnitude = (bits & 0x7FFFFFFFFFFFFFFF) >> DROPPED_BITS
    return np.where(bits < 0, -magnitude, magnitude)


@dataclass(frozen=True)
class Column:
    """A column as the client encodes it: a number, or a category with `codes` cells.

    `levels` name the first cells. Other levels fall into the last cell, or are refused.
    """

    name: str
    codes: int = 0
    levels: tuple[str, ...] = ()
    takes_other: bool = False


@dataclass(frozen=True)
class Inputs:
    """The public part of a model: what the client needs to encode its rows. It has no thresholds."""

    columns: tuple[Column, ...]
    wide: bool = False  # keys of float64
    takes_missing: bool = True

    @property
    def widths(self) -> list[int]:
        """The number of whole numbers that each column becomes; the last tells missing values."""
        return [(c.codes or 1) + self.takes_missing for c in self.columns]

    @property
    def starts(self) -> list[int]:
        return [0, *np.cumsum(self.widths).tolist()]

    @property
    def width(self) -> int:
        return self.starts[-1]

    def encode(self, x: Any) -> np.ndarray:
        """Return rows of a table or a matrix as whole numbers (int64, rows × width)."""
        matrix = self._from_frame(x) if isinstance(x, pd.DataFrame) else self._from_array(x)
        out = np.zeros((len(matrix), self.width), dtype=np.int64)
        key = key64 if self.wide else key32
        for k, (column, start) in enumerate(zip(self.columns, self.starts)):
            values = matrix[:, k]
            missing = np.isnan(values)
            if missing.any() and not self.takes_missing:
                raise BadData(
                    f"infer: column {column.name!r} has {int(missing.sum())} missing values, and the model "
                    "takes none. Fill them as before training."
                )
            if column.codes:
                codes = np.where(missing, 0, values).astype(np.int64)
                out[np.flatnonzero(~missing), start + codes[~missing]] = 1
            else:
                with np.errstate(over="ignore"):
                    out[:, start] = np.where(missing, 0, key(np.where(missing, 0.0, values)))
            if self.takes_missing:
                out[:, start + (column.codes or 1)] = np.where(missing, MISSING[self.wide], 0)
        return out

    def _from_frame(self, frame: pd.DataFrame) -> np.ndarray:
        absent = [c.name for c in self.columns if c.name not in frame.columns]
        if absent:
            raise BadData(
                f"infer: the table has no column {', '.join(map(repr, absent))}; it has "
                f"{', '.join(map(repr, frame.columns))}. The model needs all columns of its training."
            )
        return np.column_stack(
            [
                self._place_levels(c, frame[c.name])
                if c.levels
                else self._check_codes(c, numbers(frame, c.name))
                for c in self.columns
            ]
        )

    def _from_array(self, x: Any) -> np.ndarray:
        try:
            matrix = np.array(x, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise BadData(f"infer: x is not a matrix of numbers: {error}. Give a table by column.") from None
        if matrix.ndim != 2 or matrix.shape[1] != len(self.columns):
            raise BadData(
                f"infer: x has the shape {matrix.shape}; the model takes rows of {len(self.columns)} columns."
            )
        for k, column in enumerate(self.columns):
            matrix[:, k] = self._check_codes(column, matrix[:, k])
        return matrix

    @staticmethod
    def _place_levels(column: Column, values: pd.Series) -> np.ndarray:
        place = {level: k for k, level in enumerate(column.levels)}
        codes, found = pd.factorize(values)
        unknown = [text_of(v) for v in found if text_of(v) not in place]
        if unknown and not column.takes_other:
            raise BadData(
                f"infer: column {column.name!r} has levels that the model does not know: "
                f"{', '.join(map(repr, unknown[:5]))}. It knows {', '.join(map(repr, column.levels[:20]))}."
            )
        places = [place.get(text_of(v), column.codes - 1) for v in found]
        return np.asarray(np.array([*places, np.nan])[codes])  # the code of a missing value is −1

    @staticmethod
    def _check_codes(column: Column, values: np.ndarray) -> np.ndarray:
        """Return codes of a category; those that the model does not know fall into the last cell."""
        if not column.codes:
            return values
        present = values[~np.isnan(values)]
        if ((present < 0) | (present != np.floor(present))).any():
            raise BadData(f"infer: column {column.name!r} is a category; its codes are whole numbers from 0.")
        return np.where(np.isnan(values), np.nan, np.minimum(values, column.codes - 1))

    def to_dict(self) -> dict[str, Any]:
        return {
            "columns": [[c.name, c.codes, list(c.levels), c.takes_other] for c in self.columns],
            "wide": self.wide,
            "takes_missing": self.takes_missing,
        }

    @classmethod
    def from_dict(cls, entry: Any) -> Inputs:
        """Return what `to_dict` described; raise BadData for anything else."""
        try:
            columns = tuple(
                Column(str(name), int(codes), tuple(map(str, levels)), bool(other))
                for name, codes, levels, other in entry["columns"]
            )
            if any(c.codes < 0 or len(c.levels) > c.codes for c in columns):
                raise ValueError("a category has more levels than cells")
            return cls(columns, bool(entry["wide"]), bool(entry["takes_missing"]))
        except (KeyError, TypeError, ValueError) as error:
            raise BadData(f"infer: this is not the description of a model's columns: {error}.") from None


class PlainTree(NamedTuple):
    """A tree as arrays over its nodes. Rows whose key is below `below`, or code in the set, go left."""

    feature: Sequence[int]  # LEAF at a leaf
    left: Sequence[int]
    right: Sequence[int]
    below: Sequence[int]
    missing_left: Sequence[bool]
    sets: dict[int, np.ndarray]  # of a category: bool, one for each code
    value: np.ndarray  # nodes × values


@dataclass(frozen=True)
class Ensemble:
    """Complete trees: a row's nodes are signs of `row @ nodes + offsets`, at least 0 to the right.

    Nodes are in the order of levels, tree after tree; tree t adds to output t mod outputs, or with several
    values in a leaf to all outputs. `labels` are the classes; none for a regression.
    """

    inputs: Inputs
    depth: int
    nodes: np.ndarray  # width × (trees · (2^depth − 1)), −1, 0 or 1
    offsets: np.ndarray  # int64
    leaves: np.ndarray  # trees × 2^depth × values
    outputs: int
    labels: tuple[Any, ...] = ()

    @property
    def trees(self) -> int:
        return len(self.leaves)

    @property
    def bound(self) -> float:
        """The largest magnitude that an output can have."""
        most = np.abs(self.leaves).max(axis=1)  # trees × values
        if most.shape[1] == 1:
            most = most.reshape(-1, self.outputs)
        return float(most.sum(axis=0).max())

    def margins(self, rows: np.ndarray) -> np.ndarray:
        """Return the outputs of encoded rows, without shares: rows × outputs, float64."""
        inner = (1 << self.depth) - 1
        right = (rows @ self.nodes.astype(np.int64) + self.offsets >= 0).reshape(len(rows), self.trees, inner)
        at = np.zeros((len(rows), self.trees), dtype=np.int64)
        for _ in range(self.depth):
            at = 2 * at + 1 + np.take_along_axis(right, at[:, :, None], axis=2)[:, :, 0]
        values = self.leaves[np.arange(self.trees), at - inner]  # rows × trees × values
        return np.asarray(values.reshape(len(rows), -1, self.outputs).sum(axis=1))


def make_ensemble(
    inputs: Inputs,
    trees: Sequence[PlainTree],
    output_of: Sequence[int],
    base: Sequence[float],
    labels: Sequence[Any] = (),
) -> Ensemble:
    """Return the complete trees. `base` has a constant for each output; it is added to leaves."""
    if not trees:
        raise BadParameter("infer: the model has no trees. Train it first.")
    outputs = len(base)
    values = trees[0].value.shape[1]
    depth = max(1, max(_depth(tree) for tree in trees))
    order = _interleave(output_of, outputs) if values == 1 else list(range(len(trees)))
    if len(order) << depth > MOST_LEAVES:
        raise BadParameter(
            f"infer: {len(order)} trees of depth {depth} have {len(order) << depth} leaves when they are "
            f"complete, which hides their shape; at most {MOST_LEAVES} are possible. Train with a smaller "
            "max_depth or fewer trees."
        )
    inner = (1 << depth) - 1
    nodes = np.zeros((inputs.width, len(order) * inner), dtype=np.int8)
    offsets = np.zeros(len(order) * inner, dtype=np.int64)
    leaves = np.zeros((len(order), 1 << depth, values))
    for k, t in enumerate(order):
        if t is not None:
            _fill(inputs, trees[t], depth, k * inner, nodes, offsets, leaves[k])
    if values == 1:
        for g, constant in enumerate(base):  # the constant of an output: in all leaves of its first tree
            leaves[g] += constant
    else:
        leaves[0] += np.asarray(base)
    return Ensemble(inputs, depth, nodes, offsets, leaves, outputs, tuple(labels))


def _depth(tree: PlainTree) -> int:
    deepest, stack = 0, [(0, 0)]
    while stack:
        node, level = stack.pop()
        deepest = max(deepest, level)
        if tree.feature[node] != LEAF:
            stack += [(tree.left[node], level + 1), (tree.right[node], level + 1)]
    return deepest


def _interleave(output_of: Sequence[int], outputs: int) -> list[int | None]:
    """Return the trees in an order where tree t adds to output t mod outputs; None is a tree of zeros."""
    groups: list[list[int]] = [[] for _ in range(outputs)]
    for t, g in enumerate(output_of):
        groups[g].append(t)
    rounds = max(map(len, groups))
    return [group[r] if r < len(group) else None for r in range(rounds) for group in groups]


def _fill(
    inputs: Inputs,
    tree: PlainTree,
    depth: int,
    first: int,
    nodes: np.ndarray,
    offsets: np.ndarray,
    leaves: np.ndarray,
) -> None:
    """Write one tree: its nodes from column `first` on, and its leaves."""
    starts, inner = inputs.starts, (1 << depth) - 1
    stack = [(0, 0)]
    while stack:
        node, place = stack.pop()
        if place >= inner:
            leaves[place - inner] = tree.value[node]
            continue
        f = tree.feature[node]
        if f == LEAF:  # compares nothing: the number is 0, and both sides have the same leaf
            stack += [(node, 2 * place + 1), (node, 2 * place + 2)]
            continue
        column, at = inputs.columns[f], first + place
        if column.codes:
            nodes[starts[f] : starts[f] + column.codes, at] = -tree.sets[node].astype(np.int8)
        else:
            nodes[starts[f], at] = 1
            offsets[at] = -tree.below[node]
        if inputs.takes_missing:
            nodes[starts[f] + (column.codes or 1), at] = -1 if tree.missing_left[node] else 1
        stack += [(tree.left[node], 2 * place + 1), (tree.right[node], 2 * place + 2)]
