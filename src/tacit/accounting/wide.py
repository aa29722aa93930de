"""A fast sampler of the discrete Gaussian with σ = 2²⁶, tens of millions per second: the noise of a training
step on every parameter.

The distribution is that of Canonne, Kamath, Steinke: *The Discrete Gaussian for Differential Privacy*,
NeurIPS 2020, P(x) ∝ exp(−x²/(2σ²)) over the integers; `discrete.gaussian` samples it, too, a hundred times
slower. Noise of standard deviation s is g·x with g = s/σ, added to numbers that were rounded to multiples of
g: all terms are integers, so no floating-point bit reveals the value under the noise (Mironov, CCS 2012).

Method: |x| = m·j + r with blocks of m = 2¹⁶. A proposal has block j with weight ρ(m·j), by Walker's alias
table, and r uniform below m; it is accepted with probability ρ(m·j + r)/ρ(m·j) = exp(−(2·m·j·r + r²)/(2σ²)),
at least 0.984. One 64-bit word decides all of this, except in rare cases (a tie with the leading bits of a
threshold; 8 bits that do not suffice to accept), which are decided by exact integers. The only error is that
of the table: weights to 2⁻²⁵⁶, and a tail beyond 16σ that is never sampled. A sample is within 2⁻¹⁸⁰ of the
ideal distribution in total variation, so that not even 2⁶⁰ of them are distinguishable from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from . import discrete

Source = Callable[[int], bytes]
SIGMA = 1 << 26
# bits of a word: r, the cell of the table, the sign, a first acceptance test; the rest is for the threshold
M_BITS, J_BITS, SIGN, EASY = 16, 14, 1, 8
T_BITS = 64 - M_BITS - J_BITS - SIGN - EASY
CELLS = 1 << J_BITS
# of 256: 8 bits below this accept for every r, since 251/256 < exp(−(2j + 1)/2²¹) for every j < 2¹⁴
SURE = 251
PRECISION = 256
CHUNK = 1 << 15  # samples at a time: words and tables fit in a core's cache


@lru_cache(maxsize=1)
def _table() -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Walker's alias table of the weights ρ(m·j) = exp(−j²/2²¹): (leading bits of each threshold, the alias,
    the thresholds in full).
    """
    one = 1 << PRECISION
    # exp(−1/2²¹) by its series in fixed point; then ρ_{j+1} = ρ_j · q^(2j+1)
    term, q, k = one, one, 1
    while term:
        term //= k << 21
        q, k = q + (-term if k % 2 else term), k + 1
    weights, step, squared = [one], q, (q * q) >> PRECISION
    for _ in range(CELLS - 1):
        weights.append((weights[-1] * step) >> PRECISION)
        step = (step * squared) >> PRECISION
    total = sum(weights)
    scaled = [w * CELLS for w in weights]
    alias, threshold = list(range(CELLS)), [total] * CELLS
    small, large = (
        [j for j, w in enumerate(scaled) if w < total],
        [j for j, w in enumerate(scaled) if w >= total],
    )
    while small and large:
        s, g = small.pop(), large[-1]
        threshold[s], alias[s] = scaled[s], g
        scaled[g] -= total - scaled[s]
        if scaled[g] < total:
            small.append(large.pop())
    full = [(t << PRECISION) // total for t in threshold]
    # 2^T_BITS where the cell is its own alias, which is never reached
    leading = np.array([f >> (PRECISION - T_BITS) for f in full], np.int64)
    return leading, np.array(alias, np.int64), full


def gaussian(n: int, source: Source = os.urandom) -> np.ndarray:
    """`n` integers with P(x) ∝ exp(−x²/(2·2⁵²)), as int64.

    `source` returns secret random bytes; one that can be replayed is for tests only.
    """
    out = np.empty(n, np.int64)
    at = 0
    while at < n:
        size = min(CHUNK, n - at)
        samples = _chunk(np.frombuffer(source(8 * size), "<u8"), source)  # without the rejected ones
        out[at : at + len(samples)] = samples
        at += len(samples)
    return out


def _chunk(words: np.ndarray, source: Source) -> np.ndarray:
    leading, alias, full = _table()
    bits = words.view(np.int64)
    r = bits & ((1 << M_BITS) - 1)
    bits = bits >> M_BITS  # an arithmetic shift: the sign bits are masked out below
    cell = bits & (CELLS - 1)
    bits = bits >> J_BITS
    easy = bits & ((1 << EASY) - 1)
    bits = bits >> EASY
    negative = (bits & 1).astype(bool)
    u = (bits >> 1) & ((1 << T_BITS) - 1)
    mine = leading[cell]
    tie = np.flatnonzero(u == mine)
    j = np.where(u < mine, cell, alias[cell])
    for i in tie:  # one in 2²⁵: the threshold's other bits decide
        rest = PRECISION - T_BITS
        more = int.from_bytes(source(rest // 8 + 1), "big") >> (8 * (rest // 8 + 1) - rest)
        j[i] = cell[i] if more < full[cell[i]] & ((1 << rest) - 1) else alias[cell[i]]
    x = (j << M_BITS) + r
    ok = ~(negative & (x == 0))  # zero must not be counted twice
    doubt = np.flatnonzero(easy >= SURE)
    ok[doubt] &= _accept(j[doubt], r[doubt], easy[doubt], source)
    return np.asarray(np.where(negative, -x, x)[ok])


def _accept(j: np.ndarray, r: np.ndarray, easy: np.ndarray, source: Source) -> np.ndarray:
    """Whether U < exp(−γ) for a uniform U with the first 8 bits `easy`; γ = (2·m·j·r + r²)/(2σ²).

    In floating point exp(−γ) is known to 2⁻⁵⁰, and U to 2⁻⁵³; if they are closer than 2⁻⁴⁵, one case in 10¹³,
    more digits decide.
    """
    gamma = (2.0 * j * r * (1 << M_BITS) + r.astype(np.float64) ** 2) / (2.0 * SIGMA**2)
    tail = discrete.uniform(1 << 45, len(j), source)
    u = (easy * 2.0**45 + tail) * 2.0**-53
    p = np.exp(-gamma)
    out = u < p
    for i in np.flatnonzero(abs(u - p) < 2.0**-45):
        out[i] = _decide(int(j[i]), int(r[i]), (int(easy[i]) << 45) + int(tail[i]), source)
    return np.asarray(out)


def _decide(j: int, r: int, leading: int, source: Source) -> bool:
    from decimal import Decimal, localcontext

    with localcontext() as context:
        context.prec = 80  # digits: 265 bits
        p = (-Decimal(2 * (j << M_BITS) * r + r * r) / Decimal(2 * SIGMA**2)).exp()
        u = Decimal((leading << 203) + (int.from_bytes(source(26), "big") >> 5)) / Decimal(1 << 256)
        return u < p
