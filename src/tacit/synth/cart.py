"""Sequential synthesis by decision trees.

B. Nowok, G. M. Raab, C. Dibben, *synthpop: Bespoke creation of synthetic data in R*, JSS 2016; J. P. Reiter,
*Using CART to generate partially synthetic public use microdata*, 2005.

The first column is drawn from its marginal distribution, every later one from the leaf reached by the columns
before it. A leaf stores how often each cell occurs in it, not which rows. Trees with small leaves memorize
rows. Leaves therefore have at least 25 rows, 50 in small tables, where a part of the rows is drawn from the
node above their leaf. Moreover, after fitting, the generator draws a sample, counts exact copies of training
rows, and compares their rate with the rate at which training rows repeat each other (the rate expected of a
new row of the same population, minus its standard error). While copies exceed `copies` times that rate,
leaves are enlarged and the trees refitted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData, MissingExtra
from ..parameters import flag, real, whole
from .constraints import row_keys
from .encode import EVEN, Conditions, Discretizer, Layout, uniforms, uniforms_within
from .generator import Generator, GeneratorState, Watch
from .independent import inverse

# copies per training table below which they are ignored, however rarely rows coincide
LEAST = 0.25
# How near a sample is to its training rows depends on the leaves, not on the number of rows: with leaves of
# 10 rows, the nearest synthetic row told training rows from others with an AUC of .59 (200 to 1,000 rows of
# the tests' patients), of 25 rows .55, of 50 rows .53, which 200 rows cannot tell from chance. Small tables
# are also smoothed. In 500 rows of Adult, credit cards and health insurance, TSTR is .79, .70 and .61 with
# leaves of 25 and smoothing, .79, .68 and .62 without.
LEAST_LEAF, SMALL_LEAF, SMOOTHING = 25, 50, 5.0
SMALL = 2_500  # rows of a table below which it is small
PROBE = 20_000  # rows drawn to count copies: two standard errors of a rate of 1% are below 0.2 points


@dataclass(frozen=True)
class Cart(Generator):
    """A decision tree for each column, given the columns before it."""

    leaf: int | None = whole(
        None,
        least=1,
        none=True,
        doc="minimum rows of a leaf; None: a third of the square root of the rows, at least 25, and 50 in "
        "tables of fewer than 2,500 rows",
    )
    copies: float | None = real(
        1.5,
        above=0,
        none=True,
        doc="largest rate of exact copies of training rows, relative to the natural rate; None: no limit",
    )
    smoothing: float | None = real(
        None,
        least=0,
        none=True,
        doc="weight of the node above a leaf, in rows; None: 5 in tables of fewer than 2,500 rows, else 0",
    )
    bins: int = whole(256, least=2, doc="cells of a numeric column")
    even: bool = flag(True, doc=EVEN)
    seed: int = whole(0, least=0, doc="random seed of the fit")

    conditional: ClassVar[bool] = True

    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> GeneratorState:
        return self.learn_given(v, layout, 0, rng, watch)

    def learn_given(
        self,
        v: np.ndarray,
        layout: Layout,
        given: int,
        rng: np.random.Generator,
        watch: Watch,
        people: np.ndarray | None = None,
    ) -> GeneratorState:
        cells = Discretizer.from_data(layout.variables, v, self.bins)
        codes = cells.encode(v)
        new = [j for variable in layout.variables[given:] for j in variable.columns]

        def decode(variables: np.ndarray) -> np.ndarray:
            return layout.table.fit_to_domain(layout.decode(variables))[:, new]

        real_rows = decode(v)
        shuffled = np.column_stack(
            [codes[rng.integers(len(v), size=PROBE), i] for i in range(codes.shape[1])]
        )
        independent_rate = copy_rate(real_rows, decode(cells.decode(shuffled, rng)))
        rate = natural_rate(real_rows, people)
        natural = max(lower_rate(rate, len(v)), independent_rate, LEAST / len(v))
        history: list[dict[str, Any]] = []
        # smaller leaves gain little (Adult: TSTR .917 at 10 rows, .914 at 50) and copy more (24%, 17%; the
        # natural rate is 15%)
        is_small = len(v) < SMALL
        leaf = self.leaf or max(SMALL_LEAF if is_small else LEAST_LEAF, math.isqrt(len(v)) // 3)
        smoothing = self.smoothing
        if smoothing is None:
            smoothing = SMOOTHING if is_small else 0.0
        while True:
            trees = _trees(codes, cells, layout, leaf, self.seed, given, smoothing)
            state = GeneratorState({**cells.tensors(), **trees}, history=history)
            if given:  # beside the rows they were learned with, where copies are most likely
                beside = v[rng.integers(len(v), size=PROBE), :given]
                drawn = decode(self.draw_given(state, layout, beside, rng))
            else:
                drawn = decode(self.draw(state, layout, PROBE, rng, Conditions({}, {}, {})))
            history.append({"leaf": leaf, "copies": copy_rate(real_rows, drawn), "natural": natural})
            watch({"kind": "guard", **history[-1]})
            if self.copies is None or history[-1]["copies"] <= self.copies * natural:
                state.metadata = {"leaf": leaf}
                return state
            if leaf >= len(v):
                raise BadData(
                    f"Cart: even with one leaf per column, {history[-1]['copies']:.1%} of the rows are "
                    f"copies of training rows, where {natural:.1%} would be natural: the table has too few "
                    "rows for its values. Give more rows, use coarser columns, or allow more with copies=…."
                )
            leaf *= 2

    def draw(
        self, state: GeneratorState, layout: Layout, n: int, rng: np.random.Generator, conditions: Conditions
    ) -> np.ndarray:
        cells = Discretizer.from_tensors(layout.variables, state.tensors)
        allowed = layout.allowed_levels(conditions)
        share = state.tensors["share"].numpy()
        share = share * allowed[0] if 0 in allowed and (share * allowed[0]).sum() else share
        first = inverse(share, uniforms(n, rng, self.even))
        return cells.decode(self._draw_codes(state, cells, first[:, None], rng), rng)

    def draw_given(
        self, state: GeneratorState, layout: Layout, given: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        cells = Discretizer.from_tensors(layout.variables, state.tensors)
        k = given.shape[1]
        padded = np.column_stack([given, np.zeros((len(given), len(cells.sizes) - k))])
        drawn = cells.decode(self._draw_codes(state, cells, cells.encode(padded)[:, :k], rng), rng)
        drawn[:, :k] = given
        return drawn

    def _draw_codes(
        self, state: GeneratorState, cells: Discretizer, first: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Complete rows of which the first codes are known."""
        t = {name: tensor.numpy() for name, tensor in state.tensors.items()}
        codes = np.zeros((len(first), len(cells.sizes)), dtype=np.int64)
        codes[:, : first.shape[1]] = first
        for i in range(first.shape[1], len(cells.sizes)):
            leaf = _descend(t, i, codes)
            u = uniforms_within(leaf, rng, self.even)
            # the cells of all leaves are one list; its cumulative counts are searched once for all rows
            begin, end, total = t[f"begin.{i}"][leaf], t[f"begin.{i}"][leaf + 1], t[f"total.{i}"]
            if f"above.{i}" in t:
                # the leaves of a node follow one another, so that its cells do as well
                rows = total[end] - total[begin]
                blurred = rng.random(len(leaf)) * (rows + t["smoothing"]) >= rows
                first, last = t[f"above.{i}"][leaf].T
                begin = np.where(blurred, t[f"begin.{i}"][first], begin)
                end = np.where(blurred, t[f"begin.{i}"][last], end)
                u = np.where(blurred, rng.random(len(leaf)), u)
            at = np.searchsorted(total, total[begin] + u * (total[end] - total[begin]), side="right") - 1
            codes[:, i] = t[f"cell.{i}"][np.clip(at, begin, end - 1)]
        return codes


def _trees(
    codes: np.ndarray,
    cells: Discretizer,
    layout: Layout,
    leaf: int,
    seed: int,
    given: int = 0,
    smoothing: float = 0.0,
) -> dict[str, Tensor]:
    """A tree for every variable after the first `given` ones, and the shares of variable 0."""
    try:
        from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
    except ImportError:
        raise MissingExtra("synth.Cart", "data", "scikit-learn") from None

    # sums of floats depend on the order of rows, and splits that are equally good on these sums
    codes = codes[np.lexsort(codes.T)]
    parts: dict[str, np.ndarray] = {
        "share": np.bincount(codes[:, 0], minlength=cells.sizes[0]).astype(np.float64)
    }
    for i in range(max(1, given), len(cells.sizes)):
        ordered = layout.variables[i].ordered
        target = _response(codes[:, i], cells.sizes[i], ordered)
        ranks = [
            np.arange(size) if layout.variables[j].ordered else _rank(codes[:, j], target, size)
            for j, size in enumerate(cells.sizes[:i])
        ]
        predictors = np.column_stack([rank[codes[:, j]] for j, rank in enumerate(ranks)]).astype(np.float32)
        # regression on ranks, so that a few outliers (capital gains) do not determine every split
        kind = DecisionTreeRegressor if ordered else DecisionTreeClassifier
        tree = (
            kind(min_samples_leaf=min(leaf, len(codes)), random_state=seed)
            .fit(predictors, target[:, 0] if ordered else codes[:, i])
            .tree_
        )
        inner = tree.children_left >= 0
        name = np.cumsum(~inner) - 1  # leaves by their index among the leaves
        parts |= {
            f"feature.{i}": np.where(inner, tree.feature, -1),
            f"threshold.{i}": np.where(inner, tree.threshold, 0.0),
            f"left.{i}": np.where(inner, tree.children_left, name),
            f"right.{i}": np.where(inner, tree.children_right, -1),
            f"rank.{i}": np.concatenate(ranks),
        }
        if smoothing:
            parts[f"above.{i}"] = _leaves_above(tree.children_left, tree.children_right)
        size = cells.sizes[i]
        key, count = np.unique(name[tree.apply(predictors)] * size + codes[:, i], return_counts=True)
        parts |= {
            f"cell.{i}": key % size,
            f"total.{i}": np.concatenate([[0.0], np.cumsum(count)]),
            f"begin.{i}": np.searchsorted(key // size, np.arange(int((~inner).sum()) + 1)),
        }
    if smoothing:
        parts["smoothing"] = np.array(float(smoothing))
    parts["offset"] = np.concatenate([[0], np.cumsum(cells.sizes)])
    return {name: torch.from_numpy(np.ascontiguousarray(part)) for name, part in parts.items()}


def _leaves_above(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return, for each leaf, the first leaf below its parent and the one after the last; [leaves, 2]."""
    number = np.cumsum(left < 0)  # nodes are in depth-first order, and so are leaves
    first = np.where(left < 0, number - 1, number)
    last = first + 1
    for node in np.flatnonzero(left >= 0)[::-1]:  # children come after their parent
        last[node] = last[right[node]]
    ends = np.column_stack([first, last])
    for node in np.flatnonzero(left >= 0):
        for child in (left[node], right[node]):
            if left[child] < 0:
                ends[child] = first[node], last[node]
    return np.asarray(ends[left < 0])


def _descend(t: dict[str, np.ndarray], i: int, codes: np.ndarray) -> np.ndarray:
    """Return the leaf of each row; all rows descend together, one level at a time."""
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
    """Return what the trees split by: the rank in [0, 1] if ordered, else one-hot levels."""
    if ordered:
        counts = np.bincount(codes, minlength=size)
        return np.asarray(((np.cumsum(counts) - counts / 2) / len(codes))[codes][:, None])
    return np.asarray(np.eye(size, dtype=np.float32)[codes])


def _rank(codes: np.ndarray, target: np.ndarray, size: int) -> np.ndarray:
    """Order unordered levels by their mean response: the best binary split is then a cut.

    Breiman et al. 1984; for more than two classes along the first principal axis, Coppersmith et al. 1999.
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
        centered = (means - target.mean(axis=0)) * np.sqrt(counts)[:, None]
        score = means @ np.linalg.svd(centered, full_matrices=False)[2][0]
    return np.argsort(np.argsort(score, kind="stable"), kind="stable")


def copy_rate(rows: np.ndarray, drawn: np.ndarray) -> float:
    """Return the share of drawn rows that equal one of `rows` in every column."""
    return float(np.isin(row_keys(drawn), np.unique(row_keys(rows))).mean())


def lower_rate(rate: float, n: int) -> float:
    """Return a rate of repeated rows minus one standard error.

    Repeated rows come in pairs, so their number k has standard deviation √(2k). In a small table this bound
    is near 0; then the rate at which rows of independent columns coincide is more informative, since real
    rows coincide more often.
    """
    k = rate * n
    return max(0.0, k - math.sqrt(2 * k)) / n


def natural_rate(rows: np.ndarray, people: np.ndarray | None = None) -> float:
    """Return the share of rows that equal another row (of another person).

    This is the leave-one-out estimate for a new row of the same population.
    """
    _, back, counts = np.unique(row_keys(rows), return_inverse=True, return_counts=True)
    if people is not None:
        pairs = np.unique(np.column_stack([back.reshape(-1), people]), axis=0)
        counts = np.bincount(pairs[:, 0])
    return float((counts[back] > 1).mean())
