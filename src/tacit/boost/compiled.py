"""The loops of kernels.py and splits.py, compiled by numba. Importing this module needs the extra `boost`."""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, disallow-incomplete-defs=False

from __future__ import annotations

import numpy as np

from ..compiling import compile_loop
from .objectives import TINY


@compile_loop
def histogram_loop(codes, node, slots, used, g, h, offsets, out):
    for i in range(codes.shape[0]):
        s = slots[node[i]]
        if s < 0 or not used[i]:
            continue
        gi, hi = g[i], h[i]
        for f in range(codes.shape[1]):
            cell = offsets[f] + codes[i, f]
            out[s, cell, 0] += gi
            out[s, cell, 1] += hi
            out[s, cell, 2] += 1


@compile_loop
def word_histogram_loop(codes, node, slots, used, g, h, offsets, shift, cells, words):
    """As histogram_loop; the second word of a cell is Hessians + rows · 2^shift (kernels.SHIFT)."""
    one = np.int64(1) << shift
    for i in range(codes.shape[0]):
        s = slots[node[i]]
        if s < 0 or not used[i]:
            continue
        gi, hi = g[i], h[i] + one
        start = np.uint64(s * cells)
        for f in range(codes.shape[1]):
            at = np.uint64(2) * (start + np.uint64(offsets[f] + codes[i, f]))
            words[at] += gi
            words[at + np.uint64(1)] += hi


@compile_loop
def unpack_loop(words, shift, out):
    """Write gradients, Hessians and rows of the words of `word_histogram_loop`."""
    low = (np.uint64(1) << np.uint64(shift)) - np.uint64(1)
    for c in range(out.shape[0]):
        both = np.uint64(words[2 * c + 1])
        out[c, 0] = words[2 * c]
        out[c, 1] = both & low
        out[c, 2] = both >> np.uint64(shift)


@compile_loop
def _to_integer(x, limit):
    if x > limit:
        x = limit
    elif x < -limit:
        x = -limit
    return np.int64(np.rint(x))


@compile_loop
def integers_loop(values, weight, scale, limit, out):
    for k in range(values.shape[1]):
        for i in range(values.shape[0]):
            out[k, i] = _to_integer(values[i, k] * weight[i] * scale, limit)


@compile_loop
def logistic_loop(margin, e, y, weight, scale_g, scale_h, limit, g, h):
    """Write gradients and Hessians of the logistic loss as integers; e = exp(−|margin|)."""
    for i in range(e.shape[0]):
        p = (1.0 if margin[i, 0] >= 0 else e[i]) / (1.0 + e[i])
        g[i] = _to_integer((p - y[i]) * weight[i] * scale_g, limit)
        h[i] = _to_integer(max(p * (1.0 - p), TINY) * weight[i] * scale_h, limit)


@compile_loop
def multiply_loop(vectors, cells, out):
    """out += vectors @ cells modulo 2^64; a row of cells is read once for all vectors."""
    for i in range(cells.shape[0]):
        for j in range(vectors.shape[0]):
            v = vectors[j, i]
            for c in range(cells.shape[1]):
                out[j, c] += v * cells[i, c]


@compile_loop
def descend_loop(codes, feature, left, cut, flags, set_of, sets, widths, node):
    table = np.empty((feature.shape[0], 256), dtype=np.int16)  # the child for each cell: no branch for rows
    for n in range(feature.shape[0]):
        f = feature[n]
        if f < 0:
            continue
        for cell in range(widths[f]):
            goes_left = sets[set_of[n], cell] if set_of[n] >= 0 else cell <= cut[n]
            table[n, cell] = left[n] if goes_left else left[n] + 1
        table[n, widths[f]] = left[n] if flags[n] & 1 else left[n] + 1
    for i in range(codes.shape[0]):
        at = node[i]
        f = feature[at]
        while f >= 0:
            at = table[at, codes[i, f]]
            f = feature[at]
        node[i] = at


FEATURE, CHILDREN, KIND, CUT, FORM = 1, 2, 3, 4, 5  # what check_loop finds wrong


@compile_loop
def check_loop(feature, left, cut, flags, value, marked, widths, is_category, set_of):
    """Write the place of each node's set to `set_of`; return 0, or what is wrong with the tree."""
    n, sets = feature.shape[0], 0
    parents = np.zeros(n, dtype=np.int64)
    for i in range(n):
        f, has_set = feature[i], flags[i] >> 1 != 0
        if flags[i] > 3 or (f == -1 and has_set):
            return KIND
        set_of[i] = sets if has_set else -1
        sets += has_set
        if f == -1:
            continue
        if f < 0 or f >= widths.shape[0]:
            return FEATURE
        first = left[i]
        if first <= i or first >= n - 1:
            return CHILDREN
        if is_category[f] != has_set:
            return KIND
        if cut[i] >= widths[f]:
            return CUT
        parents[first] += 1
        parents[first + 1] += 1
    for i in range(n):
        if (i > 0 and parents[i] != 1) or not np.isfinite(value[i]):
            return FORM
    return 0 if sets == marked else KIND


@compile_loop
def extends_loop(
    feature, left, cut, flags, set_of, sets, old_feature, old_left, old_cut, old_flags, old_set_of, old_sets
):
    """Return whether every split of the old tree is one of this tree."""
    n = old_feature.shape[0]
    if feature.shape[0] < n:
        return False
    for i in range(n):
        if old_feature[i] == -1:
            continue
        if feature[i] != old_feature[i] or left[i] != old_left[i]:
            return False
        if cut[i] != old_cut[i] or flags[i] != old_flags[i]:
            return False
        if old_set_of[i] >= 0:
            for c in range(sets.shape[1]):
                if sets[set_of[i], c] != old_sets[old_set_of[i], c]:
                    return False
    return True


@compile_loop
def _shrink(g, l1):
    if l1 == 0.0:
        return g
    return np.sign(g) * max(abs(g) - l1, 0.0)


@compile_loop
def _gain(g, h, l2, l1, step, clipped, low, high):
    if not clipped and step == 0.0:
        t = _shrink(g, l1)
        return t * t / max(h + l2, 1e-300)
    w = _weight(g, h, l2, l1, step, clipped, low, high)
    return -(2.0 * g * w + (h + l2) * w * w + 2.0 * l1 * abs(w))


@compile_loop
def _weight(g, h, l2, l1, step, clipped, low, high):
    w = -_shrink(g, l1) / max(h + l2, 1e-300)
    if step != 0.0:
        w = min(max(w, -step), step)
    if clipped:
        w = min(max(w, low), high)
    return w


@compile_loop
def search_loop(
    hist, total, offsets, widths, is_category, usable, unit_g, unit_h, l2, l1, least_h, least_n, step,
    most_in_set, monotone, limits, outer, clipped, gains, cells, lefts, sums, chosen,
):  # fmt: skip
    """Write the best split of each node to the last five arrays; the order of candidates is that of numpy."""
    nodes, count = hist.shape[0], offsets.shape[0]
    order = np.empty(hist.shape[1], dtype=np.int64)
    ratio = np.empty(256)
    for k in range(nodes):
        tg, th = total[k, 0] * unit_g, total[k, 1] * unit_h
        own = _gain(tg, th, l2, l1, step, clipped, outer[k, 0], outer[k, 1])
        low, high = limits[k, 0], limits[k, 1]
        for f in range(count):
            start = offsets[f]
            width = widths[f]
            for j in range(width):
                order[start + j] = start + j
            if is_category[f] and usable[k, f]:
                for j in range(width):
                    c = hist[k, start + j]
                    h = c[1] * unit_h
                    is_known = c[2] != 0 and h >= least_h
                    # backwards, so that of equal levels the last comes first (splits._sort_levels)
                    ratio[width - 1 - j] = c[0] * unit_g / (h + l2 + 1e-16) if is_known else 0.0
                by_ratio = np.argsort(ratio[:width], kind="mergesort")
                for j in range(width):
                    order[start + j] = start + width - 1 - by_ratio[j]
        best, best_cell, best_left = -np.inf, -1, False
        best_g, best_h, best_n = np.int64(0), np.int64(0), np.int64(0)
        for direction in range(2):  # missing values go right, or left
            for f in range(count):
                start, width = offsets[f], widths[f]
                blank = hist[k, start + width]
                if not usable[k, f] or (direction == 1 and blank[2] == 0):
                    continue
                lg, lh, ln = np.int64(0), np.int64(0), np.int64(0)
                if direction == 1:
                    lg, lh, ln = blank[0], blank[1], blank[2]
                levels = 0
                for j in range(width):
                    levels += order[start + j] != start + width - 1  # other levels are none
                    c = hist[k, order[start + j]]
                    lg += c[0]
                    lh += c[1]
                    ln += c[2]
                    if is_category[f] and most_in_set < levels < width - 1 - most_in_set:
                        continue
                    rn = total[k, 2] - ln
                    if ln < least_n or rn < least_n:
                        continue
                    gl, hl = lg * unit_g, lh * unit_h
                    gr, hr = tg - gl, th - hl
                    if hl < least_h or hr < least_h:
                        continue
                    if clipped and monotone[f] != 0:
                        wl = _weight(gl, hl, l2, l1, step, True, low, high)
                        wr = _weight(gr, hr, l2, l1, step, True, low, high)
                        if monotone[f] * (wr - wl) < 0:
                            continue
                    gain = (
                        _gain(gl, hl, l2, l1, step, clipped, low, high)
                        + _gain(gr, hr, l2, l1, step, clipped, low, high)
                        - own
                    )
                    if gain > best:
                        best, best_cell, best_left = gain, start + j, direction == 1
                        best_g, best_h, best_n = lg, lh, ln
        gains[k], cells[k], lefts[k] = best, best_cell, best_left
        sums[k, 0], sums[k, 1], sums[k, 2] = best_g, best_h, best_n
        if best_cell >= 0:
            f = 0
            while f + 1 < count and offsets[f + 1] <= best_cell:
                f += 1
            if is_category[f]:
                for j in range(best_cell - offsets[f] + 1):
                    chosen[k, order[offsets[f] + j] - offsets[f]] = True
