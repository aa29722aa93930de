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
import sys

import numpy as np

BITS = (9, 8, 8)
FIRST = 1 << BITS[0]
NEXT = 1 << BITS[1]
TOTAL = sum(BITS)
_KEY_BITS = 32  # of a sorted key
_HIGH = 1 if sys.byteorder == "little" else 0  # of the two halves of a float64
_LAST = np.uint32((1 << _KEY_BITS) - 1)


def value_of(key: int) -> float:
    """Return the number of a key."""
    bits = key ^ (1 << 63) if key >> 63 else key ^ ((1 << 64) - 1)
    return float(np.array([bits], dtype=np.uint64).view(np.float64)[0])


def sort_keys(values: np.ndarray) -> np.ndarray:
    """Return the first 32 bits of the keys, sorted: more than a search reads, and half as much to sort."""
    halves = (np.asarray(values, dtype=np.float64) + 0.0).view(np.int32)  # −0 becomes 0
    first = halves[_HIGH::2].copy()
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


def next_edges(prefixes: np.ndarray, level: int) -> np.ndarray:
    """Return, for each prefix (uint32), where the cells by the bits of `level` begin, and where they end."""
    rest = _KEY_BITS - sum(BITS[: level + 1])
    room = rest + BITS[level]
    edges = np.empty((len(prefixes), NEXT + 1), np.uint32)
    edges[:, :-1] = (prefixes << np.uint32(room))[:, None] + (
        np.arange(NEXT, dtype=np.uint32) << np.uint32(rest)
    )
    # after the last prefix: the largest key, which no finite number has
    is_last = prefixes == (1 << (_KEY_BITS - room)) - 1
    edges[:, -1] = np.where(is_last, _LAST, (prefixes + np.uint32(1)) << np.uint32(room))
    return edges


def count_next(sorted_keys: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the counts between the edges of each prefix."""
    places = sorted_keys.searchsorted(edges.reshape(-1)).reshape(edges.shape)
    return places[:, 1:] - places[:, :-1]


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
