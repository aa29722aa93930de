"""Sums and products modulo 2^61 − 1 in one pass, compiled by numba; importing this needs it."""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, disallow-incomplete-defs=False

from __future__ import annotations

import numpy as np

from ..compiling import compile_loop

U = np.uint64
P = U((1 << 61) - 1)
BITS, HALF, LOW = U(61), U(32), U((1 << 32) - 1)
NONE = U(0)


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
