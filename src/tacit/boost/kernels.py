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
    from .trees import Nodes, SentTrees

CHANNELS = 3  # gradient, Hessian, rows
WORDS = 2  # gradient; Hessian and rows as one integer of 64 bits, where there are fewer than PACKED_ROWS
SHIFT = 45  # Hessian + rows · 2^SHIFT: Hessians of 26 bits over fewer than 2^19 rows are below 2^45
PACKED_ROWS = 1 << 19


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
    if has_numba() and len(codes) < PACKED_ROWS:
        return unpack_words(histogram_words(codes, node, slots, used, g, h, offsets, shape), shape)
    out = np.zeros((*shape, CHANNELS), dtype=np.int64)
    if len(codes) and shape[0]:
        kernel = _compiled().histogram_loop if has_numba() else histograms_numpy
        kernel(codes, node, slots, used, g, h, offsets, out)
    return out


def histogram_words(
    codes: np.ndarray,
    node: np.ndarray,
    slots: np.ndarray,
    used: np.ndarray,
    g: np.ndarray,
    h: np.ndarray,
    offsets: np.ndarray,
    shape: tuple[int, int],
) -> np.ndarray:
    """As `histograms`, with two words for each cell: Σg, and Σh + 2^SHIFT rows, as one vector of int64.

    Words are added modulo 2^64: of fewer than PACKED_ROWS rows in all, `unpack_words` finds the sums.
    """
    if not has_numba():
        return pack_words(histograms(codes, node, slots, used, g, h, offsets, shape))
    words = np.zeros(shape[0] * shape[1] * WORDS, dtype=np.int64)
    if len(codes) and shape[0]:
        _compiled().word_histogram_loop(codes, node, slots, used, g, h, offsets, SHIFT, shape[1], words)
    return words


def pack_words(hist: np.ndarray) -> np.ndarray:
    """Return the words of histograms."""
    flat = hist.reshape(-1, CHANNELS)
    both = flat[:, 1].astype(np.uint64) + (flat[:, 2].astype(np.uint64) << np.uint64(SHIFT))
    return np.column_stack([flat[:, 0], both.view(np.int64)]).reshape(-1)


def unpack_words(words: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Return the histograms of words: int64, slots × cells × 3."""
    out = np.empty((shape[0] * shape[1], CHANNELS), dtype=np.int64)
    if has_numba():
        _compiled().unpack_loop(words, SHIFT, out)
    else:
        pairs = words.reshape(-1, WORDS)
        both = np.ascontiguousarray(pairs[:, 1]).view(np.uint64)
        out[:, 0], out[:, 1] = pairs[:, 0], both & np.uint64((1 << SHIFT) - 1)
        out[:, 2] = both >> np.uint64(SHIFT)
    return out.reshape(*shape, CHANNELS)


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
        _compiled().descend_loop(
            codes, t.feature, t.left, t.cut, t.flags, t.set_of, t.sets, bins.widths, node
        )
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
        _compiled().multiply_loop(np.ascontiguousarray(vectors), np.ascontiguousarray(cells), out)
        return out
    product: np.ndarray = vectors @ cells  # numpy wraps around as well, and takes ten times as long
    return product


def find_wrong(tree: Nodes, bins: Bins) -> int:
    """Write the tree's `set_of`; return 0, or what is wrong with it (compiled.py)."""
    t = tree
    return int(
        _compiled().check_loop(
            t.feature, t.left, t.cut, t.flags, t.value, len(t.sets), bins.widths, bins.is_category, t.set_of
        )
    )


def extends(tree: Nodes, earlier: Nodes) -> bool:
    """Return whether every split of the earlier tree is one of this one."""
    t, e = tree, earlier
    return bool(
        _compiled().extends_loop(
            t.feature, t.left, t.cut, t.flags, t.set_of, t.sets,
            e.feature, e.left, e.cut, e.flags, e.set_of, e.sets,
        )
    )  # fmt: skip


def scan_trees(data: np.ndarray, bins: Bins, starts: np.ndarray, sizes: np.ndarray) -> int:
    """Check trees as they were sent; return how many there are, or minus what is wrong (trees._WRONG)."""
    return int(_compiled_trees().scan_loop(data, bins.widths, bins.is_category, starts, sizes))


def word_places(codes: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return of each row and column the place of its cell's first word in a histogram."""
    last = int(offsets[-1]) + 255
    kind = np.uint16 if WORDS * last < 1 << 16 else np.uint32
    rows = np.ascontiguousarray(codes)  # chosen columns lie one after the other, and a row is read at once
    return np.asarray((rows + offsets.astype(kind)) * kind(WORDS))


def to_integers(values: np.ndarray, weight: np.ndarray, scale: float, limit: int) -> np.ndarray:
    """Return values · weight · scale as integers of at most ±limit, outputs × rows (int64)."""
    if has_numba():
        out = np.empty((values.shape[1], values.shape[0]), dtype=np.int64)
        _compiled().integers_loop(values, weight, scale, float(limit), out)
        return out
    whole = np.rint(np.clip(values * weight[:, None] * scale, -limit, limit)).astype(np.int64)
    return np.ascontiguousarray(whole.T)


def logistic_integers(
    margin: np.ndarray, y: np.ndarray, weight: np.ndarray, scale: tuple[float, float], limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return what objectives.Binary.gradients and `to_integers` return, in one pass. Needs numba."""
    e = np.exp(-np.abs(margin[:, 0]))  # numpy's, as everywhere: another exp may round in another way
    out = np.empty((2, 1, len(e)), dtype=np.int64)
    _compiled().logistic_loop(margin, e, y, weight, scale[0], scale[1], float(limit), out[0, 0], out[1, 0])
    return out[0], out[1]


def route_and_count(
    sent: SentTrees,
    earlier: SentTrees | None,
    k: int,
    codes: np.ndarray,
    node: np.ndarray,
    slots: np.ndarray,
    used: np.ndarray,
    places: np.ndarray,
    g: np.ndarray,
    h: np.ndarray,
    shape: tuple[int, int],
) -> np.ndarray:
    """Move each row from its leaf of the earlier tree k to its leaf of the sent one, in place; return what
    `histogram_words` returns for these leaves. Needs numba. `places`: word_places of the counted columns.
    """
    words = np.zeros(shape[0] * shape[1] * WORDS, dtype=np.int64)
    _compiled_trees().count_loop(
        sent.data, sent.start(k), *_earlier(sent, earlier, k),
        codes, node, sent.bins.widths, slots, used, places, g, h, SHIFT, shape[1], words,
    )  # fmt: skip
    return words


def add_leaves(
    sent: SentTrees,
    t: int,
    earlier: SentTrees | None,
    k: int,
    codes: np.ndarray,
    node: np.ndarray,
    margin: np.ndarray,
) -> None:
    """Move each row to its leaf of the sent tree t, and add the leaf's value to column k of its margins."""
    _compiled_trees().finish_loop(
        sent.data, sent.start(t), *_earlier(sent, earlier, k), codes, node, sent.bins.widths, margin, k
    )


def _earlier(sent: SentTrees, earlier: SentTrees | None, k: int) -> tuple[np.ndarray, int]:
    return (sent.data, -1) if earlier is None else (earlier.data, earlier.start(k))


def compiled_search() -> Callable[..., Any]:
    """Return the compiled search for the best split (splits.py)."""
    return _compiled().search_loop  # type: ignore[no-any-return]


@cache
def _compiled() -> Any:
    from . import compiled

    return compiled


@cache
def _compiled_trees() -> Any:
    from . import compiled_trees

    return compiled_trees
