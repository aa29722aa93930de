"""Sums and products modulo 2^61 − 1 in one pass, compiled by numba; importing this needs it."""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, disallow-incomplete-defs=False

from __future__ import annotations

import numpy as np

from ..compiling import compile_loop

U = np.uint64
P = U((1 << 61) - 1)
BITS, HALF, LOW = U(61), U(32), U((1 << 32) - 1)
NONE, ONE = U(0), U(1)
SPLIT, LOWER, UPPER = U(31), U((1 << 31) - 1), U((1 << 30) - 1)  # halves of 31 and 30 bits, for matmul
BLOCK = 256  # columns of a matrix product that are added up together, in a core's first cache


@compile_loop
def fold(x):
    """Reduce 0 ≤ x < 2^64 to 0 ≤ x < p."""
    x = (x & P) + (x >> BITS)
    return x - (P if x >= P else NONE)


@compile_loop
def multiply(x, y):
    """x·y = high·2^64 + low, and 2^64 ≡ 8."""
    xl, xh, yl, yh = x & LOW, x >> HALF, y & LOW, y >> HALF
    low = xl * yl
    middle = xh * yl + (low >> HALF)  # < 2^29·2^32 + 2^32
    other = xl * yh + (middle & LOW)
    high = xh * yh + (middle >> HALF) + (other >> HALF)  # < 2^58
    low = (low & LOW) | (other << HALF)
    return fold((low & P) + (low >> BITS) + (high << U(3)))


@compile_loop
def add(x, y, out):
    step = 1 if y.shape[0] > 1 else 0  # one number is the same for all
    for i in range(out.shape[0]):
        out[i] = fold(x[i] + y[i * step])


@compile_loop
def sub(x, y, out):
    step = 1 if y.shape[0] > 1 else 0
    for i in range(out.shape[0]):
        out[i] = fold(x[i] + (P - y[i * step]))


@compile_loop
def mul(x, y, out):
    step = 1 if y.shape[0] > 1 else 0
    for i in range(out.shape[0]):
        out[i] = multiply(x[i], y[i * step])


@compile_loop
def fold_all(x, out):
    for i in range(out.shape[0]):
        out[i] = fold(x[i])


@compile_loop
def rotate(x, by, out):
    """x · 2^by, for x < p and by < 61."""
    kept = (U(1) << (BITS - by)) - U(1)
    for i in range(out.shape[0]):
        out[i] = fold(((x[i] & kept) << by) + (x[i] >> (BITS - by)))


@compile_loop
def _add_products(factors, y0, y1, y2, y3, sums):
    """Add the products of four numbers with four rows: the sums of their halves' products have 64 bits.

    Σ low + 2^31 · Σ middle + 2^62 · Σ high, where 2^62 ≡ 2. What is added is below 2^61 + 8, to a sum that
    was folded to as much.
    """
    l0, h0, l1, h1 = factors[0], factors[1], factors[2], factors[3]
    l2, h2, l3, h3 = factors[4], factors[5], factors[6], factors[7]
    for j in range(sums.shape[0]):
        a, b, c, d = y0[j], y1[j], y2[j], y3[j]
        al, bl, cl, dl = a & LOWER, b & LOWER, c & LOWER, d & LOWER
        ah, bh, ch, dh = a >> SPLIT, b >> SPLIT, c >> SPLIT, d >> SPLIT
        low = l0 * al + l1 * bl + l2 * cl + l3 * dl  # < 4 · 2^62
        middle = l0 * ah + h0 * al + l1 * bh + h1 * bl + l2 * ch + h2 * cl + l3 * dh + h3 * dl  # < 8 · 2^61
        high = h0 * ah + h1 * bh + h2 * ch + h3 * dh  # < 4 · 2^60
        found = (low & P) + (low >> BITS) + ((middle & UPPER) << SPLIT) + (middle >> U(30))  # < 2^62 + 2^35
        found += high << ONE  # < 2^63
        total = sums[j] + (found & P) + (found >> BITS)
        sums[j] = (total & P) + (total >> BITS)


@compile_loop
def matmul(x, y, out):
    """x @ y for [batch, rows, inner] and [batch, inner, columns], to `out` [batch, rows, columns]."""
    inner, columns = y.shape[1], y.shape[2]
    sums = np.empty(BLOCK, np.uint64)
    factors = np.empty(8, np.uint64)  # halves of four numbers of x
    for batch in range(x.shape[0]):
        for begin in range(0, columns, BLOCK):
            width = min(BLOCK, columns - begin)
            for i in range(x.shape[1]):
                for j in range(width):
                    sums[j] = NONE
                for k in range(0, inner, 4):
                    for q in range(4):
                        factor = x[batch, i, k + q] if k + q < inner else NONE
                        factors[2 * q], factors[2 * q + 1] = factor & LOWER, factor >> SPLIT
                    last = inner - 1
                    _add_products(
                        factors,
                        y[batch, k, begin : begin + width],
                        y[batch, min(k + 1, last), begin : begin + width],
                        y[batch, min(k + 2, last), begin : begin + width],
                        y[batch, min(k + 3, last), begin : begin + width],
                        sums[:width],
                    )
                for j in range(width):
                    out[batch, i, begin + j] = fold(sums[j])


@compile_loop
def from_words(x, out):
    for i in range(out.shape[0]):
        word = x[i] >> U(3)
        out[i] = NONE if word == P else word


@compile_loop
def weigh_errors(values, tags, key, weights):
    """Σ weight · (tag − key · value)."""
    total = NONE
    for i in range(values.shape[0]):
        error = fold(tags[i] + (P - multiply(values[i], key)))
        total = fold(total + multiply(error, weights[i]))
    return total


@compile_loop
def finish_sign(x, beta, beta_r, c, row, one, bit, positive):
    """Step 6 of a comparison (`tagged_bits.py`), on shares and tags [2, numbers]; t is a row of bits."""
    for part in range(2):
        for i in range(c.shape[0]):
            b = beta[part, i]
            product = fold(multiply(b, c[i]) + (P - beta_r[part, i]))
            if row[i >> 3] >> (i & 7) & 1:
                bit[part, i] = fold(one[part] + (P - b))
                positive[part, i] = fold(x[part, i] + (P - product))
            else:
                bit[part, i] = b
                positive[part, i] = product
