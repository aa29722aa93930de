"""A pseudorandom generator: the keystream of AES-256 in counter mode.

A key has one stream, used once: counters start at 0, and every key is derived for one purpose in one round
(`agree.agree`). The generators of numpy and torch are no replacement: their seeds have 32 bits, or they are
invertible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ..errors import MissingExtra
from ..parameters import bad
from .ring import truncate, word

BLOCK = 1 << 18  # bytes: keystream and the part of the vector it is added to fit in a core's cache
KEY = 32  # bytes


def aes(key: bytes, feature: str = "secure aggregation", extra: str = "secagg", mode: str = "CTR") -> Any:
    """An AES-256 encryptor: a keystream from counter 0, or (mode "ECB") single blocks.

    `feature` and `extra` are named if the package is missing.
    """
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError:
        raise MissingExtra(feature, extra, "cryptography") from None
    if len(key) != KEY:
        raise bad("AES", "the length of a key", len(key), f"{KEY} bytes")
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16)) if mode == "CTR" else modes.ECB()).encryptor()


def _blocks(
    key: bytes, count: int, kind: np.dtype, zeros: bytes, room: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """(start, words of keystream) of each block; each overwrites the one before."""
    stream, view, each = aes(key), room.data, BLOCK // kind.itemsize
    for start in range(0, count, each):
        n = min(each, count - start)
        size = n * kind.itemsize
        stream.update_into(zeros if size == BLOCK else memoryview(zeros)[:size], view[:size])
        yield start, room.view(kind)[:n]


def stream(key: bytes, count: int, width: int) -> np.ndarray:
    """`count` uniform words in the ring of this width."""
    return mask(np.zeros(count, word(width)), [(key, 1)], width)


def mask(vector: np.ndarray, keys: Iterable[tuple[bytes, int]], width: int) -> np.ndarray:
    """Add (sign 1) or subtract (sign −1) each key's stream, in place.

    Truncating a uniform word to the width keeps it uniform.
    """
    kind = word(width)
    if vector.dtype != kind:
        raise bad(
            "prg.mask", "vector", vector.dtype, f"words of {kind}, in which a ring of {width} bits is added"
        )
    zeros, room = bytes(BLOCK), np.empty(BLOCK, np.uint8)
    for key, sign in keys:
        for start, block in _blocks(key, len(vector), kind, zeros, room):
            part = vector[start : start + len(block)]
            (np.add if sign > 0 else np.subtract)(part, block, out=part)
    return truncate(vector, width)
