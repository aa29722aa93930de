"""The loops over rows and over cells: histograms, the way of rows down a tree, the best split.

With numba (the extra `boost`) they are compiled when they are first used; without it numpy computes the same
numbers, several times slower (`python benchmarks/boost.py --kernels` measures both). Histograms are sums of
integers, so they do not depend on the order of rows.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .bins import Bins
    from .trees import Nodes

CHANNELS = 3  # gradient, Hessian, rows
PACKED_ROWS = 1 << 17  # up to this many rows, Hessians and rows are added as one integer of 64 bits


@cache
def has_numba() -> bool:
    return importlib.util.find_spec("numba") is not None


def histograms(
    codes: np.ndarray,
    node: np.ndarray,
    slots: np.ndarray,
    used: np.ndarray,
    g: np.ndarray,
    h: np.ndarray,
    offsets: np.ndarray,
    shape: tuple[int, int],
) -> np.ndarray:
    """Return the sums of g, h and 1 over the rows of each slot in each cell: int64, slots × cells × 3.

    codes     rows × features, uint8
    node      of each row, int32;  slots: of each node the histogram its rows are added to, int32; −1: none
    used      rows that are added (bool)
    g, h      integers (int64); h in 0 … 2^26
    """
    out = np.zeros((*shape, CHANNELS), dtype=np.int64)
    if len(codes) and shape[0]:
        kernel = histograms_numpy
        if has_numba():
            kernel = _compiled()[3 if len(codes) < PACKED_ROWS else 0]
        kernel(codes, node, slots, used, g, h, offsets, out)
    return out


def histograms_numpy(
    codes: np.ndarray,
    node: np.ndarray,
    slots: np.ndarray,
    used: np.ndarray,
    g: np.ndarray,
    h: np.ndarray,
    offsets: np.ndarray,
    out: np.ndarray,
) -> None:
    slot = slots[node]
    rows = np.flatnonzero(used & (slot >= 0))
    count, cells, _ = out.shape
    flat = out.reshape(count * cells, CHANNELS)
    where, gs, hs = (
        slot[rows].astype(np.int64) * cells,
        g[rows].astype(np.float64),
        h[rows].astype(np.float64),
    )
    for f in range(codes.shape[1]):  # float64 sums of integers below 2^53 are exact
        keys = where + offsets[f] + codes[rows, f]
        for channel, weights in enumerate((gs, hs, None)):
            flat[:, channel] += np.bincount(keys, weights, minlength=count * cells).astype(np.int64)


def descend(codes: np.ndarray, tree: Nodes, bins: Bins, node: np.ndarray) -> None:
    """Move each row from its node (int32) down to a leaf, in place."""
    if not len(codes):
        return
    if has_numba():
        t = tree
        _compiled()[1](codes, t.feature, t.left, t.cut, t.flags, t.set_of, t.sets, bins.widths, node)
    else:
        descend_numpy(codes, tree, bins, node)


def descend_numpy(codes: np.ndarray, tree: Nodes, bins: Bins, node: np.ndarray) -> None:
    feature, routes = tree.feature, tree.routes(bins)
    rows = np.flatnonzero(feature[node] >= 0)
    while len(rows):
        at = node[rows]
        node[rows] = routes[at, codes[rows, feature[at]]]
        rows = rows[feature[node[rows]] >= 0]


def multiply_words(vectors: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Return vectors @ cells modulo 2^64: k × rows by rows × cells, int64."""
    if has_numba():
        out = np.zeros((len(vectors), cells.shape[1]), dtype=np.int64)
        _compiled()[4](np.ascontiguousarray(vectors), np.ascontiguousarray(cells), out)
        return out
    product: np.ndarray = vectors @ cells  # numpy wraps around as well, and takes ten times as long
    return product


def compiled_search() -> Callable[..., Any]:
    """Return the compiled search for the best split (splits.py)."""
    return _compiled()[2]


@cache
def _compiled() -> tuple[Callable[..., Any], ...]:
    from . import compiled as c

    return c.histogram_loop, c.descend_loop, c.search_loop, c.packed_histogram_loop, c.multiply_loop
