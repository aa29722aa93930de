"""The best split of nodes, from their histograms.

T. Chen, C. Guestrin, "XGBoost: A Scalable Tree Boosting System", 2016, equations 5 and 7, and algorithm 3
(rows without a value go where the gain is larger); levels of a category in the order of G/(H + λ):
W. Fisher, "On grouping for maximum homogeneity", 1958.

    w(G, H) = −T(G) / (H + λ),   T(G) = sign(G) max(|G| − α, 0)
    gain    = T(G_L)²/(H_L + λ) + T(G_R)²/(H_R + λ) − T(G)²/(H + λ)

With monotone constraints w is clipped to the bounds of its node, and the gain is that of the clipped w.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import kernels
from .bins import MOST_CELLS, Bins
from .trees import Split

EPS = 1e-6  # XGBoost's kRtEps: a smaller gain is none
# of two sets of levels one is at most this large, as by XGBoost's max_cat_threshold: with hundreds of levels
# of a few rows each, any larger set would fit the training rows
MOST_IN_SET = 63


@dataclass(frozen=True)
class SplitRules:
    """What a split must satisfy, and the penalties of leaves."""

    l2: float = 1.0
    l1: float = 0.0
    gamma: float = 0.0
    min_child_weight: float = 1.0
    min_rows: int = 1
    max_step: float = 0.0  # largest |w|; 0: any

    def weight(self, g: np.ndarray, h: np.ndarray) -> np.ndarray:
        """Return w of nodes with these sums."""
        w = -self._shrink(g) / np.maximum(h + self.l2, 1e-300)
        return np.clip(w, -self.max_step, self.max_step) if self.max_step else w

    def leaf(self, g: float, h: float) -> float:
        """Return w of one node: as `weight`, in plain numbers."""
        shrunk = math.copysign(max(abs(g) - self.l1, 0.0), g) if self.l1 else g
        w = -shrunk / max(h + self.l2, 1e-300)
        return min(max(w, -self.max_step), self.max_step) if self.max_step else w

    def gain(self, g: np.ndarray, h: np.ndarray, w: np.ndarray | None = None) -> np.ndarray:
        """Return twice the decrease of the loss by a node with value w (None: the best)."""
        if w is None and not self.max_step:
            t = self._shrink(g)
            return np.asarray(t * t / np.maximum(h + self.l2, 1e-300))
        w = self.weight(g, h) if w is None else w
        return np.asarray(-(2.0 * g * w + (h + self.l2) * w * w + 2.0 * self.l1 * np.abs(w)))

    def _shrink(self, g: np.ndarray) -> np.ndarray:
        return np.sign(g) * np.maximum(np.abs(g) - self.l1, 0.0) if self.l1 else g


@dataclass
class Found:
    """The best split of a node, and the sums (G, H, rows) of its two sides; `gain` ≤ 0: none."""

    split: Split | None
    gain: float
    left: np.ndarray
    right: np.ndarray


def find_splits(
    hist: np.ndarray,
    total: np.ndarray,
    bins: Bins,
    rules: SplitRules,
    scale: tuple[float, float],
    usable: np.ndarray | None = None,
    monotone: np.ndarray | None = None,
    limits: np.ndarray | None = None,
    outer: np.ndarray | None = None,
) -> list[Found]:
    """Return the best split of each node.

    hist      nodes × cells × 3, integers: Σg and Σh in units of 1/scale, rows
    total     nodes × 3, integers
    usable    features that may be split (bool; nodes × features, or features)
    monotone  of each feature −1, 0 or 1;  limits: nodes × 2, the range of w of each node
    outer     the range of w of each node's parent: XGBoost takes the node's own gain within it
    """
    search = _search_compiled if kernels.has_numba() else search_numpy
    gains, cells, lefts, sums, chosen = search(
        hist, total, bins, rules, scale, usable, monotone, limits, outer
    )
    found = []
    for k in range(len(hist)):
        gain, cell = float(gains[k]), int(cells[k])
        if not gain > EPS or gain < rules.gamma:
            found.append(Found(None, 0.0, sums[k], total[k] - sums[k]))
            continue
        f = int(np.searchsorted(bins.offsets, cell, side="right")) - 1
        is_set = bool(bins.is_category[f])
        members = chosen[k, : int(bins.widths[f])].copy() if is_set else None
        split = Split(f, 0 if is_set else cell - int(bins.offsets[f]), bool(lefts[k]), gain, members)
        found.append(Found(split, gain, sums[k], total[k] - sums[k]))
    return found


Searched = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # gain, cell, default, sums, set


def _search_compiled(
    hist: np.ndarray,
    total: np.ndarray,
    bins: Bins,
    rules: SplitRules,
    scale: tuple[float, float],
    usable: np.ndarray | None,
    monotone: np.ndarray | None,
    limits: np.ndarray | None,
    outer: np.ndarray | None,
) -> Searched:
    nodes, features = len(hist), len(bins.features)
    clipped = monotone is not None and limits is not None and outer is not None
    free = np.zeros((nodes, 2))
    out = (
        np.empty(nodes),
        np.empty(nodes, dtype=np.int64),
        np.empty(nodes, dtype=bool),
        np.empty((nodes, 3), dtype=np.int64),
        np.zeros((nodes, MOST_CELLS), dtype=bool),
    )
    kernels.compiled_search()(
        hist,
        total,
        bins.offsets,
        bins.widths,
        bins.is_category,
        np.ones((nodes, features), dtype=bool)
        if usable is None
        else np.ascontiguousarray(np.broadcast_to(np.atleast_2d(usable), (nodes, features))),
        1 / scale[0],
        1 / scale[1],
        float(rules.l2),
        float(rules.l1),
        float(rules.min_child_weight),
        max(rules.min_rows, 1),
        float(rules.max_step),
        MOST_IN_SET,
        np.zeros(features, dtype=np.int64) if monotone is None else monotone.astype(np.int64),
        limits if clipped else free,
        outer if clipped else free,
        clipped,
        *out,
    )
    return out


def search_numpy(
    hist: np.ndarray,
    total: np.ndarray,
    bins: Bins,
    rules: SplitRules,
    scale: tuple[float, float],
    usable: np.ndarray | None,
    monotone: np.ndarray | None,
    limits: np.ndarray | None,
    outer: np.ndarray | None,
) -> Searched:
    """The same search without numba, over all nodes and cells at once."""
    nodes, unit = len(hist), np.array([1 / scale[0], 1 / scale[1], 1.0])
    layout = _Layout.of(bins)
    values = hist.copy()
    missing = hist[:, layout.missing]
    values[:, layout.missing] = 0
    order = _sort_levels(values, bins, layout, rules, unit)
    if order is not None:
        values = np.take_along_axis(values, order[:, :, None], axis=1)
    running = np.cumsum(values, axis=1)
    before = np.concatenate([np.zeros((nodes, 1, 3), np.int64), running], axis=1)[:, bins.offsets]
    prefix = running - before[:, layout.feature]
    blank = missing[:, layout.feature]
    whole = total[:, None, :] * unit
    own = rules.gain(whole[..., 0], whole[..., 1], _clipped(rules, whole, outer, monotone))
    allowed = np.broadcast_to(layout.is_value, prefix.shape[:2])
    if order is not None:
        allowed = allowed & layout.is_small(bins, order)
    if usable is not None:
        usable = np.atleast_2d(usable)
        allowed = allowed & usable[:, layout.feature]
    sides, gains = [], []
    for left in (prefix, prefix + blank):  # missing values go right, or left
        gain = _gain(left * unit, whole, rules, own, layout, monotone, limits)
        gains.append(np.where(allowed, gain, -np.inf))
        sides.append(left)
    if blank.any():  # without missing values both are equal, and rows without a value go right
        gains[1][blank[..., 2] == 0] = -np.inf
        stacked = np.concatenate(gains, axis=1)
    else:
        stacked = gains[0]
    best, count = np.argmax(stacked, axis=1), prefix.shape[1]
    every, cell, default_left = np.arange(nodes), best % count, best >= count
    chosen = np.zeros((nodes, MOST_CELLS), dtype=bool)
    for k in every.tolist():
        start = int(bins.offsets[layout.feature[cell[k]]])
        if order is not None and bins.is_category[layout.feature[cell[k]]]:
            chosen[k, order[k, start : cell[k] + 1] - start] = True
    sums = np.where(default_left[:, None], sides[1][every, cell], sides[0][every, cell])
    return stacked[every, best], cell, default_left, sums, chosen


@dataclass(frozen=True)
class _Layout:
    """The cells of a histogram: whose they are, and which are those of missing values."""

    feature: np.ndarray
    missing: np.ndarray
    is_value: np.ndarray

    @classmethod
    def of(cls, bins: Bins) -> _Layout:
        kept = _LAYOUTS.get(id(bins))
        if kept is not None and kept[0] is bins:
            return kept[1]
        feature = np.repeat(np.arange(len(bins.features)), bins.widths + 1)
        missing = bins.offsets + bins.widths
        is_value = np.ones(bins.cells, dtype=bool)
        is_value[missing] = False
        layout = cls(feature, missing, is_value)
        _LAYOUTS.clear()
        _LAYOUTS[id(bins)] = bins, layout
        return layout

    def is_small(self, bins: Bins, order: np.ndarray) -> np.ndarray:
        """Of each cell, whether the set of levels that ends with it, or the rest, has few levels."""
        others = (bins.offsets + bins.widths - 1)[self.feature]  # no level
        running = np.cumsum(order != others, axis=1)
        before = np.concatenate([np.zeros((len(order), 1), np.int64), running], axis=1)[:, bins.offsets]
        levels = running - before[:, self.feature]
        few = (levels <= MOST_IN_SET) | (bins.widths[self.feature] - 1 - levels <= MOST_IN_SET)
        return np.asarray(few | ~bins.is_category[self.feature])


_LAYOUTS: dict[int, tuple[Bins, _Layout]] = {}  # of the last bins


def _sort_levels(
    values: np.ndarray, bins: Bins, layout: _Layout, rules: SplitRules, unit: np.ndarray
) -> np.ndarray | None:
    """Return the order of cells in which levels ascend by G/(H + λ); None without categories.

    As in XGBoost, a level with a smaller Hessian than a leaf must have counts as 0: what is known of it says
    little, and new rows may have it. Of equal levels the last comes first.
    """
    if not bins.is_category.any():
        return None
    nodes, cells, _ = values.shape
    order = np.tile(np.arange(cells), (nodes, 1))
    category = bins.is_category[layout.feature] & layout.is_value
    places = np.flatnonzero(category)
    part = values[:, places]
    ratio = part[..., 0] * unit[0] / (part[..., 1] * unit[1] + rules.l2 + 1e-16)
    ratio[(part[..., 2] == 0) | (part[..., 1] * unit[1] < rules.min_child_weight)] = 0.0
    backwards = np.broadcast_to(-places, ratio.shape)
    rank = np.lexsort((backwards, ratio, np.broadcast_to(layout.feature[places], ratio.shape)), axis=1)
    order[:, places] = places[rank]
    return order


def _clipped(
    rules: SplitRules, sums: np.ndarray, limits: np.ndarray | None, monotone: np.ndarray | None
) -> np.ndarray | None:
    if limits is None or monotone is None:
        return None
    w = rules.weight(sums[..., 0], sums[..., 1])
    return np.asarray(np.clip(w, limits[:, :1], limits[:, 1:]))


def _gain(
    left: np.ndarray,
    whole: np.ndarray,
    rules: SplitRules,
    own: np.ndarray,
    layout: _Layout,
    monotone: np.ndarray | None,
    limits: np.ndarray | None,
) -> np.ndarray:
    right = whole - left
    w = [_clipped(rules, side, limits, monotone) for side in (left, right)]
    gain = sum(rules.gain(s[..., 0], s[..., 1], v) for s, v in zip((left, right), w)) - own
    least = np.minimum(left[..., 1], right[..., 1])
    few = np.minimum(left[..., 2], right[..., 2])
    gain = np.where((least >= rules.min_child_weight) & (few >= max(rules.min_rows, 1)), gain, -np.inf)
    if monotone is not None and w[0] is not None and w[1] is not None:
        gain = np.where(monotone[layout.feature] * (w[1] - w[0]) < 0, -np.inf, gain)
    return np.asarray(gain)


def child_limits(
    split: Split,
    found: Found,
    limits: np.ndarray,
    rules: SplitRules,
    scale: tuple[float, float],
    monotone: Sequence[int],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ranges of w of the two children: a monotone split divides the range in the middle."""
    left, right = limits.copy(), limits.copy()
    direction = int(monotone[split.feature])
    if direction:
        w = [
            float(np.clip(rules.weight(s[0] / scale[0], s[1] / scale[1]), *limits))
            for s in (found.left.astype(np.float64), found.right.astype(np.float64))
        ]
        middle = (w[0] + w[1]) / 2
        if direction > 0:
            left[1] = right[0] = middle
        else:
            left[0] = right[1] = middle
    return left, right
