"""Short hashes (tags) of secrets, compared in bulk, and secret permutations.

Two sets of n and m random tags of ℓ bits have a common element by chance with probability at most n·m / 2^ℓ;
`tag_bytes` chooses ℓ so that this is 2^-40.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np

STATISTICAL = 40  # bits of statistical security: failures have probability 2^-40
LEAST = 8  # bytes: a tag begins with the 64-bit word that is looked up


def tag_bytes(n: int, m: int) -> int:
    return max(LEAST, math.ceil((STATISTICAL + math.log2(max(1, n)) + math.log2(max(1, m))) / 8))


def compute_tags(rows: bytes, width: int, about: bytes, size: int) -> np.ndarray:
    """SHA-256 of `about` and every `width` bytes, truncated to `size` bytes: an array (rows, size)."""
    sha = hashlib.sha256
    tags = [sha(about + rows[at : at + width]).digest()[:size] for at in range(0, len(rows), width)]
    return np.frombuffer(b"".join(tags), np.uint8).reshape(-1, size)


def words(tags: np.ndarray) -> np.ndarray:
    """The first eight bytes of each row as one number."""
    return np.ascontiguousarray(tags[:, :LEAST]).view(np.uint64).reshape(-1)


def match(mine: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows of mine, rows of theirs) that are equal, in the order of mine.

    A row of mine is matched once, even if it occurs twice in theirs.
    """
    keys = words(theirs)
    order = np.argsort(keys)
    keys = keys[order]
    my_keys = words(mine)
    left = np.argsort(my_keys)  # looked up in order, which is several times faster
    at = np.searchsorted(keys, my_keys[left])
    matches: list[tuple[np.ndarray, np.ndarray]] = []
    while len(left):  # a second pass only if the first eight bytes of different tags are equal
        inside = at < len(keys)
        left, at = left[inside], at[inside]
        same = keys[at] == my_keys[left]
        left, at = left[same], at[same]
        whole = (mine[left] == theirs[order[at]]).all(1)
        matches.append((left[whole], order[at[whole]]))
        left, at = left[~whole], at[~whole] + 1
    a = np.concatenate([pair[0] for pair in matches]) if matches else np.zeros(0, np.int64)
    b = np.concatenate([pair[1] for pair in matches]) if matches else np.zeros(0, np.int64)
    by_mine = np.argsort(a)
    return a[by_mine].astype(np.int64), b[by_mine].astype(np.int64)


def permutation(n: int, draw: Callable[[int], bytes]) -> np.ndarray:
    """A secret permutation, from the caller's randomness."""
    return np.argsort(np.frombuffer(draw(8 * n), np.uint64), kind="stable")


def sort_by_digest(digests: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """These rows in the order of their digests, which is the same for all parties that have them."""
    chosen = digests[rows]
    return rows[np.lexsort(tuple(chosen[:, k] for k in range(chosen.shape[1] - 1, -1, -1)))]
