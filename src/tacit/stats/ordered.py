"""Order statistics by a search over the bits of float64 numbers.

The bits of a float64, with the sign bit flipped (all bits, if it is negative), are an integer in the order of
the numbers. A search for the number of rank r counts, in each step, the rows whose integer begins with the
prefix found so far, by their next bits, and goes on in the cell that has rank r. No range has to be known.

    step 1: 9 bits   step 2: 8 more   step 3: 8 more = 25: sign, exponent and 13 bits of the mantissa

The search ends at a cell of relative width 2^-13 (0.012%): the rank is exact, the value is known up to the
cell. The last digits of one person's number are not opened.
"""

from __future__ import annotations

import math

import numpy as np

BITS = (9, 8, 8)
FIRST = 1 << BITS[0]
NEXT = 1 << BITS[1]
TOTAL = sum(BITS)
_KEY_BITS = 32  # of a sorted key


def value_of(key: int) -> float:
    """Return the number of a key."""
    bits = key ^ (1 << 63) if key >> 63 else key ^ ((1 << 64) - 1)
    return float(np.array([bits], dtype=np.uint64).view(np.float64)[0])


def sort_keys(values: np.ndarray) -> np.ndarray:
    """Return the first 32 bits of the keys, sorted: more than a search reads, and half as much to sort."""
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)
    first = (bits >> np.uint64(64 - _KEY_BITS)).astype(np.uint32).view(np.int32)
    sign = first >> 31  # −1 (all bits) or 0
    sign |= np.int32(-(1 << 31))
    first ^= sign
    found: np.ndarray = first.view(np.uint32)
    found.sort()
    return found


def count_first(sorted_keys: np.ndarray) -> np.ndarray:
    """Return the counts by the first 9 bits."""
    edges = np.arange(1, FIRST, dtype=np.uint32) << np.uint32(_KEY_BITS - BITS[0])
    return _count_between(sorted_keys, edges)


def count_next(sorted_keys: np.ndarray, prefix: int, level: int) -> np.ndarray:
    """Return the counts by the bits of `level` of the rows whose key begins with `prefix`."""
    rest = _KEY_BITS - sum(BITS[: level + 1])
    room = rest + BITS[level]
    a = sorted_keys.searchsorted(np.uint32(prefix << room))
    b = sorted_keys.searchsorted(np.uint32(((prefix + 1) << room) - 1), side="right")
    within = sorted_keys[a:b]
    if len(within) > 8 * NEXT:  # then looking for the edges is faster than reading all keys
        edges = (np.arange(1, NEXT, dtype=np.uint32) << np.uint32(rest)) + np.uint32(prefix << room)
        return _count_between(within, edges)
    return np.bincount((within >> np.uint32(rest)) & np.uint32(NEXT - 1), minlength=NEXT)


def _count_between(sorted_keys: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Counts below the first edge, between the edges, and from the last edge on."""
    places = np.empty(len(edges) + 2, np.int64)
    places[0], places[1:-1], places[-1] = 0, sorted_keys.searchsorted(edges), len(sorted_keys)
    return places[1:] - places[:-1]


def descend(counts: np.ndarray, rank: int) -> tuple[int, int]:
    """Return the cell that has rank `rank` (from 0), and the rank within it."""
    total = np.cumsum(counts)
    cell = int(np.searchsorted(total, rank, side="right"))
    if cell >= len(counts):
        raise ValueError(f"rank {rank} of {int(total[-1])} rows")
    return cell, rank - int(total[cell - 1] if cell else 0)


def cell_bounds(prefix: int, bits: int = TOTAL) -> tuple[float, float]:
    """Return the smallest and the largest number whose key begins with the prefix."""
    rest = 64 - bits
    ends = sorted((value_of(prefix << rest), value_of(((prefix + 1) << rest) - 1)))
    # cells beyond the largest finite number
    low, high = (min(max(v, -_LARGEST), _LARGEST) if not math.isnan(v) else _LARGEST for v in ends)
    return low, high


_LARGEST = float(np.finfo(np.float64).max)


def simplest(low: float, high: float) -> float:
    """Return the number with the fewest decimal digits in [low, high]."""
    if low <= 0 <= high:
        return 0.0
    if low == high:
        return low
    middle = low / 2 + high / 2
    for digits in range(1, 18):
        number = float(f"{middle:.{digits}g}")  # of these digits, the nearest to the middle
        if low <= number <= high:
            return number
    return middle
