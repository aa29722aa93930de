"""Vectors modulo the prime q = 2^32 − 5, and polynomial interpolation: the coding of LightSecAgg's masks.

A product of two elements fits in a 64-bit word, so everything is plain numpy on uint64, with one remainder
per product.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .prg import stream
from .ring import check_bound

Q = (1 << 32) - 5
_Q = np.uint64(Q)
SPLIT = np.uint64(16)
_LOW = np.uint64(0xFFFF)


def uniform(key: bytes, count: int) -> np.ndarray:
    """`count` exactly uniform elements: keystream words that are not elements (5 in 2^32) are skipped."""
    spare = 64  # words; more are skipped with probability below 2^-1000 for any vector that fits in a frame
    words = stream(key, count + spare, 32)
    return words[words < Q][:count].astype(np.uint64)


def encode(values: np.ndarray, bound: int) -> np.ndarray:
    """Encode signed integers of at most ±bound as field elements."""
    check_bound(values, bound)
    return (values.astype(np.int64) % Q).astype(np.uint64)


def decode(elements: np.ndarray) -> np.ndarray:
    """Decode field elements as signed numbers."""
    signed = elements.astype(np.int64)
    return np.where(signed > Q // 2, signed - Q, signed)


def add(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray((a + b) % _Q)


def subtract(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a + (_Q - b)) % _Q


def combine(weights: Sequence[int], rows: np.ndarray) -> np.ndarray:
    """Σ weights[i] · rows[i], for up to 65,535 rows with one remainder at the end."""
    low, high = np.zeros(rows.shape[1:], np.uint64), np.zeros(rows.shape[1:], np.uint64)
    buffer = np.empty(rows.shape[1:], np.uint64)
    for w, row in zip(weights, rows):
        np.multiply(row, np.uint64(w) & _LOW, out=buffer)  # below 2^48
        low += buffer
        np.multiply(row, np.uint64(w) >> SPLIT, out=buffer)
        high += buffer
    return (low + ((high % _Q) << SPLIT)) % _Q  # low < 2^64 − 2^48 for up to 65,535 rows


def lagrange(points: Sequence[int], at: int, prime: int = Q) -> list[int]:
    """Weights that give a polynomial's value at `at` from its values at `points`, modulo a prime."""
    weights = []
    for a in points:
        above, below = 1, 1
        for b in points:
            if b != a:
                above, below = above * (at - b) % prime, below * (a - b) % prime
        weights.append(above * pow(below, -1, prime) % prime)
    return weights
