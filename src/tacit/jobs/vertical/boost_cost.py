"""What growing trees over columns of several parties costs, with secret shares and with homomorphic
encryption: CPU seconds of all parties together, and bytes. `benchmarks/boost.py --vertical` measured the
constants; docs/how-to-boost.md states the formula.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...boost.vertical_grower import PACKINGS, VerticalRules
from ...crypto import bfv
from ...mpc.encrypted_histograms import MOST_CELLS, batch_sizes, rows_in

BYTES_PER_SECOND = 12.5e6  # 100 Mbit/s: what a byte costs beside a second of CPU
WORD = 8  # bytes
WORD_SECONDS = 1.5e-7  # of a masked word: drawing, sending, adding it over the columns
PRODUCT_SECONDS = 2.7e-10  # of a word and a cell, at the label holder and again at the helper
CELL_SECONDS = 1e-8  # of a masked cell of a row
ENCRYPT_SECONDS, OPEN_SECONDS = 3.3e-3, 3.8e-3  # of a ciphertext, at the label holder and at a holder
ADD_SECONDS, CLOSE_SECONDS = 12.5e-6, 11e-3  # of a row in a column; of a cell, with its decryption
SIDE_SECONDS = {"shares": 1e-8, "he": 4e-7}  # of a row at a split
SIDE_BYTES = {"shares": 0.5, "he": 16.125}


@dataclass(frozen=True)
class Sizes:
    """Rows, the columns and cells of each holder, and trees in each round."""

    rows: int
    columns: tuple[int, ...]
    cells: tuple[int, ...]
    outputs: int = 1


@dataclass(frozen=True)
class BackendCost:
    """CPU seconds and bytes of all parties together, if all trees are full."""

    seconds: float
    bytes: float

    @property
    def weight(self) -> float:
        """Seconds, with bytes at 100 Mbit/s."""
        return self.seconds + self.bytes / BYTES_PER_SECOND


def estimate(sizes: Sizes, rules: VerticalRules) -> dict[str, BackendCost]:
    """The cost of each back-end."""
    n, holders, cells = sizes.rows, len(sizes.columns), sum(sizes.cells)
    nodes = rules.trees * sizes.outputs * (1 << (rules.depth - 1))  # whose sums are asked for
    sides = n * rules.most_splits(sizes.outputs) / 2  # about half of the splits are the others'
    found = {}
    for name, packing in PACKINGS.items():
        vectors = nodes * packing.channels(n)
        words = vectors * n * holders
        seconds = words * WORD_SECONDS + sides * SIDE_SECONDS[name]
        size = (words + vectors * cells) * WORD + sides * SIDE_BYTES[name]
        if name == "shares":
            seconds += 2 * vectors * n * cells * PRODUCT_SECONDS + n * cells * CELL_SECONDS
            size += (n * cells + vectors * cells) * WORD
        else:
            for some in batch_sizes(vectors, n):
                ciphertexts = math.ceil(n / rows_in(some))
                seconds += ciphertexts * (ENCRYPT_SECONDS + holders * OPEN_SECONDS)
                seconds += n * sum(sizes.columns) * ADD_SECONDS + cells * CLOSE_SECONDS
                size += holders * ciphertexts * bfv.CIPHERTEXT_BYTES + cells * bfv.SUM_BYTES
        found[name] = BackendCost(seconds, size)
    return found


def choose_backend(sizes: Sizes, rules: VerticalRules) -> str:
    """The cheaper back-end; never one that these columns are too many for."""
    costs = estimate(sizes, rules)
    if max(sizes.cells, default=0) > MOST_CELLS or not bfv.is_installed():
        return "shares"
    return min(costs, key=lambda name: costs[name].weight)
