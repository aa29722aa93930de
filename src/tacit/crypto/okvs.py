"""An oblivious key-value store: a table that maps each of n keys to its value and any other key to a random
one, and does not reveal the keys.

Garimella, Pinkas, Rosulek, Trieu, Yanai: Oblivious Key-Value Stores and Amplification for Private Set
Intersection, CRYPTO 2021, section 4: the garbled cuckoo table with three hash functions. A key's value is the
exclusive or of three entries and of a random subset of 64 dense entries. Keys that have an entry of their own
are solved last ("peeling"); the few that cannot be peeled are solved by Gaussian elimination with the dense
entries, which fails with probability below 2^-40. Entries that the keys do not determine are random. The keys
are hidden only if the values look random, as those of an OPRF do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import ProtocolError
from .cuckoo import FUNCTIONS
from .ot import encrypt_blocks

SPACE = 1.3  # entries per key; peeling works above 1.222
DENSE = 64  # dense entries: 24 for the keys that cannot be peeled, 40 for the failure probability
VALUE = 16  # bytes of a value, and of a key


def entries(n: int) -> int:
    """Entries of the table for n keys."""
    return FUNCTIONS * _third(n) + DENSE


def _third(n: int) -> int:
    return max(8, -(-int(SPACE * n + 40) // FUNCTIONS))


def _where(keys: np.ndarray, size: int, salt: bytes) -> tuple[np.ndarray, np.ndarray]:
    """((n, 3) entries, (n,) subsets of the dense entries as bits) of each key."""
    one = encrypt_blocks(keys, salt)
    words = one.view(np.uint32).astype(np.uint64)
    sparse = np.stack(
        [
            (words[:, i] * np.uint64(size) >> np.uint64(32)).astype(np.int64) + i * size
            for i in range(FUNCTIONS)
        ],
        1,
    )
    return sparse, encrypt_blocks(one, salt).view(np.uint64)[:, 0].copy()


def _dense(subsets: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The exclusive or of each key's subset of the dense entries."""
    out = np.zeros((len(subsets), VALUE), np.uint8)
    for k in range(DENSE):
        chosen = (subsets >> np.uint64(k) & np.uint64(1)).astype(bool)
        out[chosen] ^= table[len(table) - DENSE + k]
    return out


def _three(table: np.ndarray, sparse: np.ndarray) -> np.ndarray:
    """The exclusive or of each key's three entries."""
    return np.asarray(table[sparse[:, 0]] ^ table[sparse[:, 1]] ^ table[sparse[:, 2]])


def decode(table: np.ndarray, keys: np.ndarray, salt: bytes) -> np.ndarray:
    """The value of each key; random for other keys."""
    sparse, subsets = _where(keys, (len(table) - DENSE) // FUNCTIONS, salt)
    return np.asarray(_three(table, sparse) ^ _dense(subsets, table))


def encode(keys: np.ndarray, values: np.ndarray, salt: bytes, draw: Callable[[int], bytes]) -> np.ndarray:
    """The table, (entries, 16) bytes. Keys are distinct rows of 16 bytes."""
    n, size = len(keys), _third(len(keys))
    table = np.frombuffer(draw(entries(n) * VALUE), np.uint8).reshape(-1, VALUE).copy()
    sparse, subsets = _where(keys, size, salt)
    rounds, core = _peel(sparse, FUNCTIONS * size)
    if len(core):
        _eliminate(table, sparse[core], subsets[core], values[core])
    rest = values ^ _dense(subsets, table)
    for peeled, own in reversed(rounds):
        table[own] ^= rest[peeled] ^ _three(table, sparse[peeled])  # its own entry cancels
    return table


def _peel(sparse: np.ndarray, size: int) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """([(keys, the entry that only this key has among the remaining ones)], remaining keys)."""
    n = len(sparse)
    left = np.ones(n, bool)
    degree = np.bincount(sparse.reshape(-1), minlength=size)
    marks = np.zeros(size, np.int64)  # the exclusive or of the keys at an entry; of a single one, that key
    np.bitwise_xor.at(marks, sparse.reshape(-1), np.repeat(np.arange(n), FUNCTIONS))
    rounds = []
    alone = np.flatnonzero(degree == 1)
    while len(alone):
        # a key may be alone at several entries: one suffices
        keys, first = np.unique(marks[alone], return_index=True)
        rounds.append((keys, alone[first]))
        left[keys] = False
        touched = sparse[keys].reshape(-1)
        np.subtract.at(degree, touched, 1)
        np.bitwise_xor.at(marks, touched, np.repeat(keys, FUNCTIONS))
        touched = np.unique(touched)
        alone = touched[degree[touched] == 1]
    return rounds, np.flatnonzero(left)


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
        table[columns[pivot]] ^= np.frombuffer(change.to_bytes(VALUE, "little"), np.uint8)
