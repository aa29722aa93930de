"""Cuckoo hashing: each of n items in one of its three places, no place taken twice. Three tables, one for
each hash function.

With 1.27·n places, three functions and no stash an honest insertion fails with probability below 2^-40
(Pinkas, Schneider, Zohner: Scalable Private Set Intersection Based on OT Extension, 2018, section 3.2.2, by
simulation for 256 items and more). Since an item's three places lie in three tables, they differ; the
likeliest obstacle is then four items with the same three places, of probability below 820·n⁴/m⁹ for m places:
`places_for` takes m large enough for that to be below 2^-44 in small sets, too.
"""

from __future__ import annotations

import math

import numpy as np

from ..errors import ProtocolError

FUNCTIONS = 3
SPACE = 1.27  # places an item
ROUNDS = 3000  # a walk of ten million items ends within a few hundred


def places_for(n: int) -> int:
    """Places in each of the three tables, a multiple of 8: bits of a column are handed out by the byte."""
    small = (820.0 * max(n, 1) ** 4 * 2.0**44) ** (1 / 9)
    return 8 * math.ceil(max(SPACE * n, small) / FUNCTIONS / 8)


def place(positions: np.ndarray, size: int) -> np.ndarray:
    """(3, size): which item lies at each place of each table, −1 for none. positions[k, i] is item k's place
    in table i.

    All homeless items move at once: where several want a place the last gets it, and whoever lay there moves
    on to another of its places.
    """
    n = len(positions)
    flat = positions.astype(np.int64) + np.arange(FUNCTIONS) * size
    table = np.full(FUNCTIONS * size, -1, np.int64)
    turn = np.zeros(n, np.int64)
    homeless = np.arange(n)
    for r in range(ROUNDS):
        if not len(homeless):
            return table.reshape(FUNCTIONS, size)
        wants = flat[homeless, turn[homeless]]
        before = table[wants]
        table[wants] = homeless
        won = table[wants] == homeless
        evicted = before[won]
        homeless = np.concatenate([homeless[~won], evicted[evicted >= 0]])
        # to the next table or the one after, by a bit that differs from item to item and round to round: a
        # fixed order can go in circles
        turn[homeless] = (turn[homeless] + 1 + ((homeless * 2654435761 + r * 40503 >> 13) & 1)) % FUNCTIONS
    raise ProtocolError(
        f"{n} ids could not be laid out in {FUNCTIONS * size} places, which happens by chance less often "
        "than once in 2^40 runs. Run it again."
    )
