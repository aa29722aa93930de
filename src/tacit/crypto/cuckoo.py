"""Cuckoo hashing: each of n items is in one of its three places, and each place has at most one item. There
is one table for each of the three hash functions.

With 1.27·n places, three functions and no stash, an insertion of random items fails with probability below
2^-40 (Pinkas, Schneider, Zohner: Scalable Private Set Intersection Based on OT Extension, 2018, section
3.2.2, by simulation for 256 items and more). An item's three places differ because they are in three tables;
the most likely failure is then four items with the same three places, of probability below 820·n⁴/m⁹ for m
places: `places_for` makes m large enough for that to be below 2^-44 in small sets, too.
"""

from __future__ import annotations

import math

import numpy as np

from ..errors import ProtocolError

FUNCTIONS = 3
SPACE = 1.27  # places an item
ROUNDS = 3000  # ten million items take a few hundred


def places_for(n: int) -> int:
    """Places in each of the three tables, a multiple of 8 because bits of a column are packed in bytes."""
    small = math.pow(820.0 * max(n, 1) ** 4 * 2.0**44, 1 / 9)
    return 8 * math.ceil(max(SPACE * n, small) / FUNCTIONS / 8)


def place(positions: np.ndarray, size: int) -> np.ndarray:
    """(3, size): the item at each place of each table, −1 for none. positions[k, i] is item k's place in
    table i.

    All unplaced items are inserted at once: if several have the same place the last one gets it, and the item
    that was there is moved to another of its places.
    """
    n = len(positions)
    flat = positions.astype(np.int64) + np.arange(FUNCTIONS) * size
    table = np.full(FUNCTIONS * size, -1, np.int64)
    turn = np.zeros(n, np.int64)
    unplaced = np.arange(n)
    for r in range(ROUNDS):
        if not len(unplaced):
            return table.reshape(FUNCTIONS, size)
        target = flat[unplaced, turn[unplaced]]
        before = table[target]
        table[target] = unplaced
        is_placed = table[target] == unplaced
        evicted = before[is_placed]
        unplaced = np.concatenate([unplaced[~is_placed], evicted[evicted >= 0]])
        # to the next table or the one after, by a bit that varies with item and round: a fixed order can
        # cycle
        turn[unplaced] = (turn[unplaced] + 1 + ((unplaced * 2654435761 + r * 40503 >> 13) & 1)) % FUNCTIONS
    raise ProtocolError(
        f"{n} ids could not be placed in a cuckoo table of {FUNCTIONS * size} places. This has a probability "
        "below 2^-40. Run it again."
    )
