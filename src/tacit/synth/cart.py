"""Sequential synthesis by trees: B. Nowok, G. M. Raab, C. Dibben, *synthpop: Bespoke creation of synthetic
data in R*, JSS 2016; J. P. Reiter, *Using CART to generate partially synthetic public use microdata*, 2005.

The first column is drawn from its own distribution, every later one from the leaf that the columns drawn
before it lead to. A leaf keeps how often each cell of the column occurs in it, not whose rows they were.
Trees with small leaves learn rows by heart: after fitting, the generator draws a sample, counts rows that are
exact copies of training rows, and holds them against the rate at which training rows repeat each other anyway
(what a fresh row of the same population would show, less the error of counting it). While copies are more
than `copies` times that, leaves grow and it fits again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData, MissingExtra
from ..parameters import flag, real, whole
from .conditions import Conditions
from .encode import EVEN, Cells, Layout, uniforms, uniforms_within
from .generator import Generator, Learned, Watch
from .independent import inverse

# of a row, in as many rows as were learnt from: fewer copies than that are none, however rarely rows coincide
LEAST = 0.25
PROBE = 20_000  # rows drawn to count copies: a rate of 1% is then known to ±0.2 points (two standard errors)


@dataclass(frozen=True)
class Cart(Generator):
    """A tree for each column, given those before it."""

    leaf: int | None = whole(
        None,
        least=1,
        none=True,
        doc="rows a leaf holds at least; None: a third of the root of the rows, and 10 at least",
    )
    copies: float | None = real(
        1.5,
        above=0,
        none=True,
        doc="exact copies of training rows, at most so many times the natural rate, which is itself an "
        "estimate; None: no guard",
    )
    bins: int = whole(256, least=2, doc="cells a number is cut into")
    even: bool = flag(True, doc=EVEN)
    seed: int = whole(0, least=0, doc="of all that is random in fitting")

    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> Learned:
        cells = Cells.of_data(layout.variables, v, self.bins)
        codes = cells.encode(v)
        real_rows = layout.table.tidied(layout.back(v))
        shuffled = np.column_stack(
            [codes[rng.integers(len(v), size=PROBE), i] for i in range(codes.shape[1])]
        )
        apart = copy_rate(real_rows, layout.table.tidied(layout.back(cells.decode(shuffled, rng))))
        natural = max(surely(natural_rate(real_rows), len(v)), apart, LEAST / len(v))
        history: list[dict[str, Any]] = []
        # smaller leaves gain little (Adult: TSTR .917 at 10 rows, .914 at 50) and copy more (24%, 17%; 15% is
        # natural)
        leaf = self.leaf or max(10, math.isqrt(len(v)) // 3)
        while True:
            learned = Learned(
                {**cells.tensors(), **_trees(codes, cells, layout, leaf, self.seed)}, history=history
            )
            free = Conditions({}, {}, {})
            drawn = layout.table.tidied(layout.back(self.draw(learned, layout, PROBE, rng, free)))
            history.append({"leaf": leaf, "copies": copy_rate(real_rows, drawn), "natural": natural})
            watch({"kind": "guard", **history[-1]})
            if self.copies is None or history[-1]["copies"] <= self.copies * natural:
                learned.facts = {"leaf": leaf}
                return learned
            if leaf >= len(v):
                raise BadData(
                    f"Cart: even drawn from whole columns, {history[-1]['copies']:.1%} of the rows are "
                    "copies of training rows, where "
                    f"{natural:.1%} would be natural: the table has too few rows for its values. "
                    "Give more rows, make its columns coarser, or allow more with copies=…."
                )
            leaf *= 2

    def draw(
        self, learned: Learned, layout: Layout, n: int, rng: np.random.Generator, given: Conditions
    ) -> np.ndarray:
        t = {name: tensor.numpy() for name, tensor in learned.tensors.items()}
        cells = Cells.from_tensors(layout.variables, learned.tensors)
        fitting = layout.fitting(given)
        codes = np.zeros((n, len(cells.sizes)), dtype=np.int64)
        share = t["share"] * fitting[0] if 0 in fitting and (t["share"] * fitting[0]).sum() else t["share"]
        codes[:, 0] = inverse(share, uniforms(n, rng, self.even))
        for i in range(1, len(cells.sizes)):
            leaf = _descend(t, i, codes)
            u = uniforms_within(leaf, rng, self.even)
            # the leaf's cells lie side by side in one list; its counts, added up along the whole list, are
            # searched once for all rows
            begin, end, total = t[f"begin.{i}"][leaf], t[f"begin.{i}"][leaf + 1], t[f"total.{i}"]
            mass = total[end] - total[begin]
            at = np.searchsorted(total, total[begin] + u * mass, side="right") - 1
            codes[:, i] = t[f"cell.{i}"][np.clip(at, begin, end - 1)]
        return cells.decode(codes, rng)


def _trees(codes: np.ndarray, cells: Cells, layout: Layout, leaf: int, seed: int) -> dict[str, Tensor]:
    try:
        from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
    except ImportError:
        raise MissingExtra("synth.Cart", "data", "scikit-learn") from None

    parts: dict[str, np.ndarray] = {
        "share": np.bincount(codes[:, 0], minlength=cells.sizes[0]).astype(np.float64)
    }
    for i in range(1, len(cells.sizes)):
        ordered = layout.variables[i].ordered
        target = _response(codes[:, i], cells.sizes[i], ordered)
        ranks = [
            np.arange(size) if layout.variables[j].ordered else _rank(codes[:, j], target, size)
            for j, size in enumerate(cells.sizes[:i])
        ]
        predictors = np.column_stack([rank[codes[:, j]] for j, rank in enumerate(ranks)]).astype(np.float32)
        # an ordered column is regressed on by its rank, so that a few distant values (capital gains) do not
        # decide every split
        kind = DecisionTreeRegressor if ordered else DecisionTreeClassifier
        made = (
            kind(min_samples_leaf=min(leaf, len(codes)), random_state=seed)
            .fit(predictors, target[:, 0] if ordered else codes[:, i])
            .tree_
        )
        inner = made.children_left >= 0
        name = np.cumsum(~inner) - 1  # leaves by their place among the leaves
        parts |= {
            f"feature.{i}": np.where(inner, made.feature, -1),
            f"threshold.{i}": np.where(inner, made.threshold, 0.0),
            f"left.{i}": np.where(inner, made.children_left, name),
            f"right.{i}": np.where(inner, made.children_right, -1),
            f"rank.{i}": np.concatenate(ranks),
        }
        size = cells.sizes[i]
        key, count = np.unique(name[made.apply(predictors)] * size + codes[:, i], return_counts=True)
        parts |= {
            f"cell.{i}": key % size,
            f"total.{i}": np.concatenate([[0.0], np.cumsum(count)]),
            f"begin.{i}": np.searchsorted(key // size, np.arange(int((~inner).sum()) + 1)),
        }
    parts["offset"] = np.concatenate([[0], np.cumsum(cells.sizes)])
    return {name: torch.from_numpy(np.ascontiguousarray(part)) for name, part in parts.items()}


def _descend(t: dict[str, np.ndarray], i: int, codes: np.ndarray) -> np.ndarray:
    """The leaf each row ends in: all rows go down together, a level at a time."""
    feature, threshold, left, right, rank, offset = (
        t[f"{name}.{i}"] if name != "offset" else t[name]
        for name in ("feature", "threshold", "left", "right", "rank", "offset")
    )
    node = np.zeros(len(codes), dtype=np.int64)
    rows = np.flatnonzero(feature[node] >= 0)
    while len(rows):
        at = node[rows]
        by = feature[at]
        value = rank[offset[by] + codes[rows, by]]
        node[rows] = np.where(value <= threshold[at], left[at], right[at])
        rows = rows[feature[node[rows]] >= 0]
    return left[node]


def _response(codes: np.ndarray, size: int, ordered: bool) -> np.ndarray:
    """What the trees split by: the rank in [0, 1] of an ordered column, the indicators of the others'
    levels.
    """
    if ordered:
        counts = np.bincount(codes, minlength=size)
        return ((np.cumsum(counts) - counts / 2) / len(codes))[codes][:, None]
    return np.eye(size, dtype=np.float32)[codes]


def _rank(codes: np.ndarray, target: np.ndarray, size: int) -> np.ndarray:
    """Levels in no order, in the order of the mean response: among all ways to split them in two, the best is
    then a cut (Breiman et al. 1984; for more than two classes along the first principal axis, Coppersmith et
    al. 1999).
    """
    counts = np.bincount(codes, minlength=size)
    sums = np.column_stack(
        [np.bincount(codes, weights=target[:, k], minlength=size) for k in range(target.shape[1])]
    )
    means = np.divide(
        sums,
        counts[:, None],
        out=np.tile(target.mean(axis=0), (size, 1)).astype(np.float64),
        where=counts[:, None] > 0,
    )
    score = means[:, 0]
    if means.shape[1] > 1:
        centred = (means - target.mean(axis=0)) * np.sqrt(counts)[:, None]
        axis = np.linalg.svd(centred, full_matrices=False)[2][0]
        score = means @ axis
    return np.argsort(np.argsort(score, kind="stable"), kind="stable")


def _keys(x: np.ndarray) -> np.ndarray:
    x = np.ascontiguousarray(x + 0.0)
    return x.view(f"V{8 * x.shape[1]}").ravel()


def copy_rate(rows: np.ndarray, drawn: np.ndarray) -> float:
    """Which part of the drawn rows are equal, in every column, to one of `rows`."""
    return float(np.isin(_keys(drawn), np.unique(_keys(rows))).mean())


def surely(rate: float, n: int) -> float:
    """What is left of a rate of repeated rows when it is too high by one deviation: such rows come in pairs,
    so their number k strays by √(2k). In a small table that is most of it; then the rate at which rows
    coincide whose columns have nothing to do with each other says more, since real ones coincide more often.
    """
    k = rate * n
    return max(0.0, k - math.sqrt(2 * k)) / n


def natural_rate(rows: np.ndarray) -> float:
    """Which part of the rows equal another row: what a fresh row of the same population would show, each row
    left out in turn.
    """
    _, back, counts = np.unique(_keys(rows), return_inverse=True, return_counts=True)
    return float((counts[back] > 1).mean())
