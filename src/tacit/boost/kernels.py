"""The two loops over rows: histograms of nodes, and the way of rows down a tree.

With numba (the extra `boost`) they are compiled when they are first used; without it numpy computes the same
integers, several times slower. Sums are of integers, so they do not depend on the order of rows.

    `python benchmarks/boost.py --kernels` measures both
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

CHANNELS = 3  # gradient, Hessian, rows


def has_numba() -> bool:
    return importlib.util.find_spec("numba") is not None


def histograms(
    codes: np.ndarray,
    slot: np.ndarray,
    g: np.ndarray,
    h: np.ndarray,
    offsets: np.ndarray,
    shape: tuple[int, int],
) -> np.ndarray:
    """Return the sums of g, h and 1 over the rows of each slot in each cell: int64, slots × cells × 3.

    codes     rows × features, uint8
    slot      for each row the histogram it is added to, int32; −1: to none
    g, h      integers (int64)
    """
    out = np.zeros((*shape, CHANNELS), dtype=np.int64)
    if not len(codes) or not shape[0]:
        return out
    kernel = _compiled()[0] if has_numba() else histograms_numpy
    kernel(codes, slot, g, h, offsets, out)
    return out


def histograms_numpy(
    codes: np.ndarray, slot: np.ndarray, g: np.ndarray, h: np.ndarray, offsets: np.ndarray, out: np.ndarray
) -> None:
    rows = np.flatnonzero(slot >= 0)
    slots, cells, _ = out.shape
    flat = out.reshape(slots * cells, CHANNELS)
    where, gs, hs = (
        slot[rows].astype(np.int64) * cells,
        g[rows].astype(np.float64),
        h[rows].astype(np.float64),
    )
    for f in range(codes.shape[1]):  # float64 sums of integers below 2^53 are exact
        keys = where + offsets[f] + codes[rows, f]
        for channel, weights in enumerate((gs, hs, None)):
            flat[:, channel] += np.bincount(keys, weights, minlength=slots * cells).astype(np.int64)


def descend(codes: np.ndarray, feature: np.ndarray, routes: np.ndarray, node: np.ndarray) -> None:
    """Move each row from its node down to a leaf, in place.

    feature   of each node, −1: a leaf;  routes: nodes × 256, the child for each cell
    """
    if not len(codes):
        return
    kernel = _compiled()[1] if has_numba() else descend_numpy
    kernel(codes, feature, routes, node)


def descend_numpy(codes: np.ndarray, feature: np.ndarray, routes: np.ndarray, node: np.ndarray) -> None:
    rows = np.flatnonzero(feature[node] >= 0)
    while len(rows):
        at = node[rows]
        node[rows] = routes[at, codes[rows, feature[at]]]
        rows = rows[feature[node[rows]] >= 0]


@cache
def _compiled() -> tuple[Callable[..., Any], Callable[..., Any]]:
    from numba import njit

    @njit(cache=True, nogil=True)
    def histogram_loop(codes, slot, g, h, offsets, out):  # type: ignore[no-untyped-def]
        for i in range(codes.shape[0]):
            s = slot[i]
            if s < 0:
                continue
            gi, hi = g[i], h[i]
            for f in range(codes.shape[1]):
                cell = offsets[f] + codes[i, f]
                out[s, cell, 0] += gi
                out[s, cell, 1] += hi
                out[s, cell, 2] += 1

    @njit(cache=True, nogil=True)
    def descend_loop(codes, feature, routes, node):  # type: ignore[no-untyped-def]
        for i in range(codes.shape[0]):
            at = node[i]
            while feature[at] >= 0:
                at = routes[at, codes[i, feature[at]]]
            node[i] = at

    return histogram_loop, descend_loop
