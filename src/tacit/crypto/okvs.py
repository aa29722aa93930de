"""An oblivious key-value store: a table that maps each of n keys to its value and any other key to a random
one, and does not reveal the keys.

Garimella, Pinkas, Rosulek, Trieu, Yanai: Oblivious Key-Value Stores and Amplification for Private Set
Intersection, CRYPTO 2021, section 4: the garbled cuckoo table with three hash functions. A key's value is the
exclusive or of three entries and of a random subset of 64 dense entries. Keys that have an entry of their own
are solved last ("peeling"); the few that cannot be peeled are solved by Gaussian elimination with the dense
entries, which fails with probability below 2^-40. Entries that the keys do not determine are random. The keys
are hidden only if the values look random, as those of an OPRF do, or if the table itself is masked, as in
`psi_oprf`. Values have a multiple of 8 bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import ProtocolError
from .ot import compiled, encrypt_blocks

FUNCTIONS = 3  # sparse entries of a key, one in each third of the table

SPACE = 1.3  # entries per key; peeling works above 1.222
DENSE = 64  # dense entries: 24 for the keys that cannot be peeled, 40 for the failure probability
VALUE = 16  # bytes of a value in `psi_many`, and of a key


def entries(n: int) -> int:
    """Entries of the table for n keys."""
    return FUNCTIONS * _third(n) + DENSE


def _third(n: int) -> int:
    return max(8, -(-int(SPACE * n + 40) // FUNCTIONS))


def _where(keys: np.ndarray, size: int, salt: bytes) -> tuple[np.ndarray, np.ndarray]:
    """((n, 3) entries, (n,) subsets of the dense entries as bits) of each key."""
    one = encrypt_blocks(keys, salt)
    words = one.view(np.uint32)
    sparse = np.empty((len(keys), FUNCTIONS), np.int32)
    for i in range(FUNCTIONS):
        sparse[:, i] = (words[:, i] * np.uint64(size) >> np.uint64(32)) + np.uint64(i * size)
    return sparse, encrypt_blocks(one, salt).view(np.uint64)[:, 0].copy()


def _words(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows).view(np.uint64)


def _subset_sums(dense: np.ndarray) -> np.ndarray:
    """(8, 256, words): the exclusive or of each subset of the dense entries 0 to 7, 8 to 15, …"""
    sums = np.zeros((DENSE // 8, 256, dense.shape[1]), np.uint64)
    for k in range(8):
        sums[:, 1 << k : 2 << k] = sums[:, : 1 << k] ^ dense[k::8, None]
    return sums


def decode(table: np.ndarray, keys: np.ndarray, salt: bytes) -> np.ndarray:
    """The value of each key; random for other keys."""
    sparse, subsets = _where(keys, (len(table) - DENSE) // FUNCTIONS, salt)
    words = _words(table)
    out = np.zeros((len(keys), words.shape[1]), np.uint64)
    loops = compiled()
    loops.add_entries(out, words, sparse)
    loops.add_subsets(out, _subset_sums(words[len(words) - DENSE :]), subsets)
    return out.view(np.uint8)


def encode(
    keys: np.ndarray, values: np.ndarray, salt: bytes, draw: Callable[[int], bytes], room: int | None = None
) -> np.ndarray:
    """The table, as many bytes wide as `values`. Keys are distinct rows of 16 bytes.

    `room`: the number of keys from which its size follows, at least theirs (default: theirs).
    """
    room, width = len(keys) if room is None else room, values.shape[1]
    size = _third(room)
    table = np.frombuffer(draw(entries(room) * width), np.uint64).reshape(-1, width // 8).copy()
    sparse, subsets = _where(keys, size, salt)
    loops = compiled()
    order, own, peeled = loops.peel(sparse, FUNCTIONS * size)
    core = np.flatnonzero(~peeled)
    if len(core):
        _eliminate(table.view(np.uint8), sparse[core], subsets[core], values[core])
    rest = _words(values).copy()
    loops.add_subsets(rest, _subset_sums(table[len(table) - DENSE :]), subsets)
    loops.fill(table, sparse, rest, order, own)
    return table.view(np.uint8)


def _eliminate(table: np.ndarray, sparse: np.ndarray, subsets: np.ndarray, values: np.ndarray) -> None:
    """Solve for the keys that could not be peeled, in place.

    Rows are integers with one bit per entry, the dense ones first, so that they become pivots.
    """
    base = len(table) - DENSE
    columns = [*range(base, base + DENSE), *sorted({int(c) for row in sparse for c in row})]
    bit = {column: k for k, column in enumerate(columns)}
    rows: list[list[int]] = []
    for places, subset, value in zip(sparse, subsets, values):
        # free entries keep their random values, so the unknowns are the changes of the entries
        known = int.from_bytes(value.tobytes(), "little")
        mask = int(subset)
        for c in places:
            mask ^= 1 << bit[int(c)]
        for k, column in enumerate(columns):
            if mask >> k & 1:
                known ^= int.from_bytes(table[column].tobytes(), "little")
        rows.append([mask, known])
    pivots: dict[int, list[int]] = {}  # entry: its row, which contains no other pivot
    for row in rows:
        for pivot, other in pivots.items():
            if row[0] >> pivot & 1:
                row[0], row[1] = row[0] ^ other[0], row[1] ^ other[1]
        if not row[0]:
            if row[1]:
                raise ProtocolError(
                    "an oblivious key-value store could not be solved. This has a probability below 2^-40. "
                    "Run it again."
                )
            continue
        new = (row[0] & -row[0]).bit_length() - 1
        for other in pivots.values():
            if other[0] >> new & 1:
                other[0], other[1] = other[0] ^ row[0], other[1] ^ row[1]
        pivots[new] = row
    for pivot, (_, change) in pivots.items():
        table[columns[pivot]] ^= np.frombuffer(change.to_bytes(table.shape[1], "little"), np.uint8)
