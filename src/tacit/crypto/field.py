"""Vectors modulo the prime q = 2^32 − 5, and polynomials through them: what LightSecAgg codes its masks with.

A product of two elements fits a 64-bit word, so everything is plain numpy on uint64 with one remainder a
product.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import BadData
from .prg import stream

Q = (1 << 32) - 5
_Q = np.uint64(Q)
SPLIT = np.uint64(16)
_LOW = np.uint64(0xFFFF)


def uniform(key: bytes, count: int) -> np.ndarray:
    """`count` elements, exactly uniform: words of keystream that are no element (5 in 2^32) are passed
    over.
    """
    # words; that more than these are passed over has a probability below 2^-1000 for any vector that fits a
    # frame
    spare = 64
    words = stream(key, count + spare, 32)
    kept = words[words < Q]
    return kept[:count].astype(np.uint64)


def encode(values: np.ndarray, bound: int) -> np.ndarray:
    """Signed whole numbers of at most ±bound → the field."""
    outside = int(np.count_nonzero((values > bound) | (values < -bound)))
    if outside:
        raise BadData(
            f"{outside} of {len(values)} numbers lie outside ±{bound}, the range agreed for this sum. Clip "
            "before quantising, or agree on more bits."
        )
    return (values.astype(np.int64) % Q).astype(np.uint64)


def decode(elements: np.ndarray) -> np.ndarray:
    """The field → signed numbers around 0."""
    signed = elements.astype(np.int64)
    return np.where(signed > Q // 2, signed - Q, signed)


def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a + b) % _Q


def subtract(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a + (_Q - b)) % _Q


def combine(weights: Sequence[int], rows: np.ndarray) -> np.ndarray:
    """Σ weights[i] · rows[i]. The weights' halves are summed apart, so that up to 65,536 products wait for
    one remainder.
    """
    low, high = np.zeros(rows.shape[1:], np.uint64), np.zeros(rows.shape[1:], np.uint64)
    room = np.empty(rows.shape[1:], np.uint64)
    for w, row in zip(weights, rows):
        np.multiply(row, np.uint64(w) & _LOW, out=room)  # below 2^48
        low += room
        np.multiply(row, np.uint64(w) >> SPLIT, out=room)
        high += room
    return (low + ((high % _Q) << SPLIT)) % _Q  # low < 2^64 − 2^48 for up to 65,535 rows


def lagrange(known: Sequence[int], wanted: int) -> list[int]:
    """Weights that give a polynomial's value at `wanted` from its values at `known`."""
    weights = []
    for i, a in enumerate(known):
        above, below = 1, 1
        for j, b in enumerate(known):
            if j != i:
                above, below = above * (wanted - b) % Q, below * (a - b) % Q
        weights.append(above * pow(below, -1, Q) % Q)
    return weights
