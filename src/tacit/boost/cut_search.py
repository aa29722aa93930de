"""Cuts of numbers by federated quantiles: three sums of counts.

A number's key has 24 bits: its float32, rounded to 16 significant bits (data/preparation.py). The first sum
has the counts of the first 8 bits of all keys, the second divides the cells that have rows by the next 8
bits, the third those with more than half the rows of a bin. Cuts are then chosen between cells, so that bins
have equally many rows; if there are at most as many values as bins, each value has its own.

Counts are integers, so cuts do not depend on how rows are partitioned. A cut is the smallest number that a
cell has: keys are rounded, so that is below the number that its smallest key stands for. Where all values of
a column are keys themselves (integers below 65,536), which the first sum also counts, it is that number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..data.preparation import keys_of

CELLS = 256
LEVELS = 3
_ZERO = 1 << 23  # the key of 0.0

Place = tuple[int, int]  # (the number's position, the digits so far)


def value_of(key: int) -> float:
    """Return the float32 of a key."""
    magnitude = np.array([abs(key - _ZERO) << 8], dtype=np.uint32).view(np.float32)[0]
    return float(-magnitude if key < _ZERO else magnitude)


def lowest_of(key: int) -> float:
    """Return the smallest float32 whose key this is."""
    bits = ((key - _ZERO) << 8) - 128 if key > _ZERO else ((_ZERO - key) << 8) + 127
    magnitude = np.array([bits], dtype=np.uint32).view(np.float32)[0]
    return float(magnitude if key > _ZERO else -magnitude)


def count_rounded(values: Sequence[np.ndarray]) -> np.ndarray:
    """Return how many values of each number have more significant bits than their key."""
    with np.errstate(over="ignore"):
        bits = [v[~np.isnan(v)].astype(np.float32).view(np.uint32) for v in values]
    return np.array([np.count_nonzero(b & np.uint32(255)) for b in bits], dtype=np.int64)


def count_keys(values: Sequence[np.ndarray], level: int, places: Sequence[Place]) -> np.ndarray:
    """Return the counts of the next 8 bits of the keys that begin with each place's digits."""
    out = np.zeros((len(places), CELLS), dtype=np.int64)
    shift = 16 - 8 * level
    by_number: dict[int, list[int]] = {}
    for k, (number, _) in enumerate(places):
        by_number.setdefault(number, []).append(k)
    for number, rows in by_number.items():
        known = values[number]
        keys = keys_of(known[~np.isnan(known)])
        begin = keys >> (shift + 8)
        digits = np.array([places[k][1] for k in rows])
        order = np.argsort(digits)
        at = np.minimum(np.searchsorted(digits[order], begin), len(digits) - 1)
        inside = digits[order][at] == begin
        cell = np.asarray(rows)[order][at[inside]] * CELLS + ((keys[inside] >> shift) & (CELLS - 1))
        out += np.bincount(cell, minlength=out.size).reshape(out.shape)
    return out.reshape(-1)


@dataclass
class CutSearch:
    """The coordinator's part: which cells are divided next, and the cuts at the end."""

    numbers: int
    bins: int
    min_rows: int = 1
    rounded: Sequence[int] | None = None  # `count_rounded` of all rows; None: any value may be

    def __post_init__(self) -> None:
        self.places: list[Place] = [(k, 0) for k in range(self.numbers)]
        self.cells: list[dict[int, int]] = [{} for _ in range(self.numbers)]  # low key: rows
        self.level = 0

    def narrow(self, counts: np.ndarray) -> None:
        """Take the counts of the current places, and choose the places of the next level."""
        shift = 16 - 8 * self.level
        following: list[Place] = []
        for (number, digits), row in zip(self.places, counts.reshape(-1, CELLS)):
            self.cells[number].pop(digits << (shift + 8), None)
            for digit in np.flatnonzero(row).tolist():
                self.cells[number][((digits << 8) + digit) << shift] = int(row[digit])
        self.level += 1
        if self.level < LEVELS:
            for number, cells in enumerate(self.cells):
                rows = sum(cells.values())
                # the second level separates all values, the third only crowded cells, so that a bin is off
                # by at most half of its rows; the most crowded ones first
                least = max(self.min_rows, rows // (2 * self.bins))
                chosen = [low for low, n in cells.items() if n > least or self.level == 1]
                chosen = sorted(chosen, key=lambda low: (-cells[low], low))[:CELLS]
                following += [(number, low >> shift) for low in sorted(chosen)]
        self.places = following

    def cuts(self) -> list[tuple[float, ...]]:
        rounded = self.rounded if self.rounded is not None else [1] * self.numbers
        return [self._cuts(cells, lowest_of if n else value_of) for cells, n in zip(self.cells, rounded)]

    def _cuts(self, cells: dict[int, int], cut_of: Callable[[int], float]) -> tuple[float, ...]:
        """Return the cuts of one number: bins of equally many rows, none with fewer than `min_rows`."""
        lows = np.array(sorted(cells), dtype=np.int64)
        rows = np.array([cells[low] for low in lows.tolist()], dtype=np.int64)
        if len(lows) < 2:
            return ()
        below = np.concatenate([[0], np.cumsum(rows)])  # rows before each cell
        total = int(below[-1])
        if len(lows) <= self.bins:
            starts = np.arange(1, len(lows))
        else:
            ranks = np.arange(1, self.bins) * total / self.bins
            starts = np.unique(np.searchsorted(below[:-1], ranks))
            starts = starts[(starts > 0) & (starts < len(lows))]
        kept, last = [], 0
        for start in starts.tolist():
            if below[start] - last >= self.min_rows and total - below[start] >= self.min_rows:
                kept.append(start)
                last = int(below[start])
        return tuple(dict.fromkeys(cut_of(int(lows[start])) for start in kept))
