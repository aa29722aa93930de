"""Trees in their form on the wire (trees.to_bytes), read by loops that numba compiles.

A party is sent the growing trees in every step. It checks them, moves its rows down and counts them without
making arrays of the trees first. Importing this module needs the extra `boost`.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, disallow-incomplete-defs=False

from __future__ import annotations

import numpy as np

from ..compiling import compile_loop
from .compiled import CHILDREN, CUT, FEATURE, FORM, KIND

HEAD, NODE, SET = 4, 10, 32  # bytes of a tree's head, of a node, and of a category's set
CUT_OFF, EMPTY = -1, -2  # what scan_loop finds wrong besides what compiled.check_loop does


@compile_loop
def _word(data, at):
    return np.int64(data[at]) | (np.int64(data[at + 1]) << 8)


@compile_loop
def _signed(data, at):
    value = _word(data, at)
    return value - 65536 if value >= 32768 else value


@compile_loop
def _end(data, at):
    return at + HEAD + _word(data, at) * NODE + _word(data, at + 2) * SET


@compile_loop
def scan_loop(data, widths, is_category, starts, sizes):
    """Check all trees and write where they begin and how many nodes they have.

    Return how many there are, which may be more than are written, or minus what is wrong with one.
    """
    at, count, size = 0, 0, data.shape[0]
    while at < size:
        if size < at + HEAD:
            return CUT_OFF - FORM
        n = _word(data, at)
        if n == 0 or _end(data, at) > size:
            return EMPTY - FORM
        wrong = _find_wrong(data, at, n, widths, is_category)
        if wrong:
            return -wrong
        if count < starts.shape[0]:
            starts[count], sizes[count] = at, n
        at = _end(data, at)
        count += 1
    return count


@compile_loop
def _find_wrong(data, start, n, widths, is_category):
    """As compiled.check_loop."""
    feature = start + HEAD
    left, cut, flags, value = feature + 2 * n, feature + 4 * n, feature + 5 * n, feature + 6 * n
    sets = 0
    parents = np.zeros(n, dtype=np.int64)
    for i in range(n):
        f, flag = _signed(data, feature + 2 * i), data[flags + i]
        has_set = flag >> 1 != 0
        if flag > 3 or (f == -1 and has_set):
            return KIND
        sets += has_set
        if f == -1:
            continue
        if f < 0 or f >= widths.shape[0]:
            return FEATURE
        first = _signed(data, left + 2 * i)
        if first <= i or first >= n - 1:
            return CHILDREN
        if is_category[f] != has_set:
            return KIND
        if data[cut + i] >= widths[f]:
            return CUT
        parents[first] += 1
        parents[first + 1] += 1
    for i in range(n):
        # a float32 is not finite where all bits of its exponent are 1
        endless = data[value + 4 * i + 3] & 0x7F == 0x7F and data[value + 4 * i + 2] >= 0x80
        if (i > 0 and parents[i] != 1) or endless:
            return FORM
    return 0 if sets == _word(data, start + 2) else KIND


@compile_loop
def _extends(data, start, old, old_start):
    """As compiled.extends_loop."""
    n, m = _word(data, start), _word(old, old_start)
    if n < m:
        return False
    new, then = start + HEAD, old_start + HEAD
    new_set, then_set = new + NODE * n, then + NODE * m
    for i in range(n):
        is_old_split = i < m and _signed(old, then + 2 * i) != -1
        has_set = data[new + 5 * n + i] >> 1 != 0
        if is_old_split:
            for part in range(2):  # feature, children
                a, b = new + 2 * n * part + 2 * i, then + 2 * m * part + 2 * i
                if data[a] != old[b] or data[a + 1] != old[b + 1]:
                    return False
            for part in range(4, 6):  # cut, flags
                if data[new + part * n + i] != old[then + part * m + i]:
                    return False
            if has_set:
                for c in range(SET):
                    if data[new_set + c] != old[then_set + c]:
                        return False
                then_set += SET
        if has_set:
            new_set += SET
    return True


@compile_loop
def _route(data, start, old, old_start, widths, node):
    """Return (feature of each node, place of its table or −1, tables: the child for each cell).

    Rows are in the leaves of the old tree: where it is part of this one, only new splits move them. Where it
    is not, rows begin at the root. `old_start` < 0: there is none, and rows are in the root.
    """
    n = _word(data, start)
    at = start + HEAD
    m = 0
    if old_start >= 0:
        if _extends(data, start, old, old_start):
            m = _word(old, old_start)
        else:
            node[:] = 0
    feature, place = np.empty(n, dtype=np.int64), np.full(n, -1, dtype=np.int64)
    count = 0
    for i in range(n):
        feature[i] = _signed(data, at + 2 * i)
        if feature[i] >= 0 and (i >= m or _signed(old, old_start + HEAD + 2 * i) < 0):
            place[i] = count
            count += 1
    table = np.empty((count, 256), dtype=np.int16)
    members = at + NODE * n
    for i in range(n):
        flag = data[at + 5 * n + i]
        if place[i] >= 0:
            p, width = place[i], widths[feature[i]]
            left, cut = _signed(data, at + 2 * n + 2 * i), data[at + 4 * n + i]
            for cell in range(width):
                is_member = (data[members + cell // 8] >> (7 - cell % 8)) & 1 if flag >> 1 else cell <= cut
                table[p, cell] = left if is_member else left + 1
            table[p, width] = left if flag & 1 else left + 1
        if flag >> 1:
            members += SET
    return feature, place, table


@compile_loop
def count_loop(
    data, start, old, old_start, codes, node, widths, slots, used, places, g, h, shift, cells, words
):  # fmt: skip
    """Move rows to their leaves, and add them to the words of their leaf's histogram (kernels.WORDS).

    `places`: of each row and counted column, the place of its cell's first word in a histogram.
    """
    feature, place, table = _route(data, start, old, old_start, widths, node)
    one = np.int64(1) << shift
    for i in range(codes.shape[0]):
        leaf = node[i]
        p = place[leaf]
        while p >= 0:
            leaf = table[p, codes[i, feature[leaf]]]
            p = place[leaf]
        node[i] = leaf
        s = slots[leaf]
        if s < 0 or not used[i]:
            continue
        gi, hi = g[i], h[i] + one
        first = np.uint64(2 * s * cells)
        for j in range(places.shape[1]):
            at = first + np.uint64(places[i, j])
            words[at] += gi
            words[at + np.uint64(1)] += hi


@compile_loop
def finish_loop(data, start, old, old_start, codes, node, widths, margin, k):
    """Move rows to their leaves, and add the leaves' values to column k of the margins."""
    feature, place, table = _route(data, start, old, old_start, widths, node)
    n = _word(data, start)
    at = start + HEAD + 6 * n
    value = data[at : at + 4 * n].copy().view(np.float32)
    for i in range(codes.shape[0]):
        leaf = node[i]
        p = place[leaf]
        while p >= 0:
            leaf = table[p, codes[i, feature[leaf]]]
            p = place[leaf]
        node[i] = leaf
        margin[i, k] += np.float64(value[leaf])
