"""Short fingerprints of secrets, compared in bulk, and orders that nobody can guess.

Two sets of n and m random tags of ℓ bits have a pair in common by chance with probability at most n·m / 2^ℓ;
`tag_bytes` takes ℓ so that this is 2^-40.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np

STATISTICAL = 40  # bits: something goes wrong by chance in one of 2^40 runs
LEAST = 8  # bytes: a tag begins with one 64-bit word, by which it is looked up


def tag_bytes(n: int, m: int) -> int:
    return max(LEAST, math.ceil((STATISTICAL + math.log2(max(1, n)) + math.log2(max(1, m))) / 8))


def compute_tags(rows: bytes, width: int, about: bytes, size: int) -> np.ndarray:
    """SHA-256 of every `width` bytes, with `about` before them, cut to `size` bytes: an array (rows,
    size).
    """
    sha = hashlib.sha256
    if about:
        made = b"".join(
            [sha(about + rows[at : at + width]).digest()[:size] for at in range(0, len(rows), width)]
        )
    else:
        made = b"".join([sha(rows[at : at + width]).digest()[:size] for at in range(0, len(rows), width)])
    return np.frombuffer(made, np.uint8).reshape(-1, size)


def words(tags: np.ndarray) -> np.ndarray:
    """The first eight bytes of each row as one number."""
    return np.ascontiguousarray(tags[:, :LEAST]).view(np.uint64).reshape(-1)


def match(mine: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows of mine, rows of theirs) that are equal, in the order of mine. A row of mine is found once, even
    if theirs has it twice.
    """
    keys = words(theirs)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    wanted = words(mine)
    at = np.searchsorted(keys, wanted)
    left = np.arange(len(mine))
    found: list[tuple[np.ndarray, np.ndarray]] = []
    while len(
        left
        # rows whose first eight bytes agree by chance come one after the other: a second pass is rare, a
        # third
        # never seen
    ):
        inside = at < len(keys)
        left, at = left[inside], at[inside]
        same = keys[at] == wanted[left]
        left, at = left[same], at[same]
        whole = (mine[left] == theirs[order[at]]).all(1)
        found.append((left[whole], order[at[whole]]))
        left, at = left[~whole], at[~whole] + 1
    a = np.concatenate([pair[0] for pair in found]) if found else np.zeros(0, np.int64)
    b = np.concatenate([pair[1] for pair in found]) if found else np.zeros(0, np.int64)
    by_mine = np.argsort(a, kind="stable")
    return a[by_mine].astype(np.int64), b[by_mine].astype(np.int64)


def permutation(n: int, draw: Callable[[int], bytes]) -> np.ndarray:
    """An order that only whoever holds `draw` knows."""
    return np.argsort(np.frombuffer(draw(8 * n), np.uint64), kind="stable")


def sort_by_digest(digests: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """These rows in the order of their digests: all who share them come to the same order by themselves."""
    chosen = digests[rows]
    return rows[np.lexsort(tuple(chosen[:, k] for k in range(chosen.shape[1] - 1, -1, -1)))]
