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


def keys(values: np.ndarray) -> np.ndarray:
    """Return uint64 integers in the order of the numbers."""
    bits = np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)
    negative = bits >> np.uint64(63) == 1
    return np.where(negative, ~bits, bits | np.uint64(1 << 63))


def value_of(key: int) -> float:
    """Return the number of a key."""
    bits = key ^ (1 << 63) if key >> 63 else key ^ ((1 << 64) - 1)
    return float(np.array([bits], dtype=np.uint64).view(np.float64)[0])


def count_first(sorted_keys: np.ndarray) -> np.ndarray:
    """Return the counts by the first 9 bits."""
    return np.bincount((sorted_keys >> np.uint64(64 - BITS[0])).astype(np.int64), minlength=FIRST)


def count_next(sorted_keys: np.ndarray, prefix: int, level: int) -> np.ndarray:
    """Return the counts by the bits of `level` of the rows whose key begins with `prefix`."""
    known = sum(BITS[: level + 1])
    shifted = sorted_keys >> np.uint64(64 - known)
    width = 1 << BITS[level]
    edges = np.arange(prefix * width, (prefix + 1) * width + 1, dtype=np.uint64)
    counts: np.ndarray = np.diff(np.searchsorted(shifted, edges))
    return counts


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
