"""The loops of `crypto.vole` and `crypto.okvs`, compiled by numba: importing it needs the extra `psi`.

All values are words of 64 bits; rows of a matrix are elements of a vector space over GF(2^64).
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, disallow-incomplete-defs=False

from __future__ import annotations

import numpy as np

from ..compiling import compile_loop

FIELD = np.uint64(0x1B)  # GF(2^64) = GF(2)[x] / (x^64 + x^4 + x^3 + x + 1)
TOP, HALF, ONE, NONE = np.uint64(63), np.uint64(32), np.uint64(1), np.uint64(0)


@compile_loop
def convolve(x, taps, state):
    """Add row i (one or two words) to those of the next `state` rows that the bits of taps[i] name, and to
    the one after them, which is then multiplied by x. Rows follow each other in a circle.
    """
    n, two = x.shape[0], x.shape[1] == 2
    for i in range(n):
        bits, a, b = np.uint64(taps[i]), x[i, 0], x[i, x.shape[1] - 1]
        if i + state + 1 >= n:
            for k in range(state):
                chosen = NONE - (bits >> np.uint64(k) & ONE)  # 0, or all bits
                x[(i + 1 + k) % n, 0] ^= a & chosen
                if two:
                    x[(i + 1 + k) % n, 1] ^= b & chosen
        elif two:
            for k in range(state):
                chosen = NONE - (bits >> np.uint64(k) & ONE)
                x[i + 1 + k, 0] ^= a & chosen
                x[i + 1 + k, 1] ^= b & chosen
        else:
            for k in range(state):
                x[i + 1 + k, 0] ^= a & (NONE - (bits >> np.uint64(k) & ONE))
        last = (i + 1 + state) % n
        a ^= x[last, 0]
        x[last, 0] = (a << ONE) ^ (FIELD & (NONE - (a >> TOP)))
        if two:
            b ^= x[last, 1]
            x[last, 1] = (b << ONE) ^ (FIELD & (NONE - (b >> TOP)))


@compile_loop
def expand(part, draws, out):
    """Add a row of `part` to each row of `out`: the one that its draw of 32 bits names."""
    size = np.uint64(part.shape[0])
    for k in range(out.shape[0]):
        at = np.uint64(draws[k]) * size >> HALF
        for c in range(out.shape[1]):
            out[k, c] ^= part[at, c]


@compile_loop
def add_products(out, factors, tables):
    """Add (d0·f, d1·f) to each row, for its factor f; `tables` has the products of each byte of f."""
    for k in range(factors.shape[0]):
        f = factors[k]
        for b in range(8):
            byte = f >> np.uint64(8 * b) & np.uint64(255)
            out[k, 0] ^= tables[b, byte, 0]
            out[k, 1] ^= tables[b, byte, 1]


@compile_loop
def grow(parents, left, right, children, sums):
    """The children of each tree's first nodes, left ⊕ parent and right ⊕ parent, as many as `children` has
    room for; and the sums of those on either side.
    """
    for t in range(children.shape[0]):
        for j in range(children.shape[1]):
            for c in range(2):
                v = parents[t, j >> 1, c]
                v ^= right[t, j >> 1, c] if j & 1 else left[t, j >> 1, c]
                children[t, j, c] = v
                sums[t, j & 1, c] ^= v


@compile_loop
def add_chosen(sums, rows, draws):
    """Add each row (two words) to those of 64 or 128 sums that the bits of its draws name."""
    for j in range(rows.shape[0]):
        a, b = rows[j, 0], rows[j, 1]
        for w in range(draws.shape[1]):
            bits = draws[j, w]
            for k in range(64):
                chosen = NONE - (bits >> np.uint64(k) & ONE)
                sums[64 * w + k, 0] ^= a & chosen
                sums[64 * w + k, 1] ^= b & chosen


@compile_loop
def peel(sparse, size):
    """(keys, the entry that only this key has among those that follow; whether each key was peeled)."""
    n = sparse.shape[0]
    # of the keys at an entry: how many, in the upper half, and the exclusive or of their numbers
    entries, mask = np.zeros(size, np.uint64), (ONE << HALF) - ONE
    for k in range(n):
        for c in range(3):
            at = sparse[k, c]
            entries[at] = (entries[at] + (ONE << HALF)) ^ np.uint64(k)
    keys, own = np.empty(n, np.int32), np.empty(n, np.int32)
    peeled = np.zeros(n, np.bool_)
    count = 0
    waiting = np.empty(size, np.int32)
    for start in range(size):
        top = 0
        if entries[start] >> HALF == ONE:
            waiting[0], top = start, 1
        while top:
            top -= 1
            entry = waiting[top]
            if entries[entry] >> HALF != ONE:
                continue
            key = entries[entry] & mask
            keys[count], own[count] = key, entry
            count += 1
            peeled[key] = True
            for c in range(3):
                other = sparse[key, c]
                rest = (entries[other] - (ONE << HALF)) ^ key
                entries[other] = rest
                if rest >> HALF == ONE:
                    waiting[top] = other
                    top += 1
    return keys[:count], own[:count], peeled


@compile_loop
def fill(table, sparse, values, keys, own):
    """Give each peeled key its value through its own entry, the last one peeled first."""
    for at in range(keys.shape[0] - 1, -1, -1):
        k, entry = keys[at], own[at]
        a, b, c = sparse[k, 0], sparse[k, 1], sparse[k, 2]
        for w in range(table.shape[1]):
            table[entry, w] ^= values[k, w] ^ table[a, w] ^ table[b, w] ^ table[c, w]


@compile_loop
def add_entries(out, table, sparse):
    """Add each key's three entries to its row."""
    for k in range(out.shape[0]):
        a, b, c = sparse[k, 0], sparse[k, 1], sparse[k, 2]
        for w in range(out.shape[1]):
            out[k, w] ^= table[a, w] ^ table[b, w] ^ table[c, w]


@compile_loop
def add_subsets(out, tables, subsets):
    """Add to each row the sum of its subset of the dense entries; `tables` has the sums of each eight."""
    for k in range(out.shape[0]):
        for b in range(tables.shape[0]):
            byte = subsets[k] >> np.uint64(8 * b) & np.uint64(255)
            for w in range(out.shape[1]):
                out[k, w] ^= tables[b, byte, w]
