"""A pseudorandom generator: the keystream of AES-256 in counter mode.

A key has one stream, used once: counters start at 0, and every key is derived for one purpose in one round
(`agree.agree`). Only a `Keystream` is used several times, each time from the counter that GCM derives from a
nonce. The generators of numpy and torch are no replacement: their seeds have 32 bits, or they are invertible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np

from ..errors import MissingExtra
from ..parameters import bad
from .ring import truncate, word

BLOCK = 1 << 18  # bytes: keystream and the part of the vector it is added to fit in a core's cache
_ZEROS = memoryview(bytes(BLOCK))
KEY = 32  # bytes


def aes(key: bytes, feature: str = "secure aggregation", extra: str = "secagg", mode: str = "CTR") -> Any:
    """An AES-256 encryptor: a keystream from counter 0, or (mode "ECB") single blocks.

    `feature` and `extra` are named if the package is missing.
    """
    try:
        cipher, algorithm, counter, single = _ciphers()
    except ImportError:
        raise MissingExtra(feature, extra, "cryptography") from None
    if len(key) != KEY:
        raise bad("AES", "the length of a key", len(key), f"{KEY} bytes")
    return cipher(algorithm(key), counter if mode == "CTR" else single).encryptor()


@cache
def _ciphers() -> tuple[Any, Any, Any, Any]:
    """Return what an encryptor is made of: a sum of ten parties makes ninety."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher, algorithms.AES, modes.CTR(bytes(16)), modes.ECB()


class Keystream:
    """A key with a stream for each nonce: what AES-256-GCM adds to a message (NIST SP 800-38D, GCTR).

    It is AES-256 in counter mode, from the counter that follows GHASH(nonce): a polynomial hash under a key
    that follows from this one, so nonces need not be secret or random, only different. The last 32 bits
    count, so a stream has less than 2^36 bytes. GCM is used because OpenSSL computes it with wider
    instructions than plain counter mode: twice as fast on processors that have them. Tags are dropped.
    """

    __slots__ = ("_key", "encrypt")

    def __init__(self, key: bytes):
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise MissingExtra("secure aggregation", "secagg", "cryptography") from None
        if len(key) != KEY:
            raise bad("AES", "the length of a key", len(key), f"{KEY} bytes")
        self._key, self.encrypt = key, AESGCM(key).encrypt

    def start(self, nonce: bytes) -> Any:
        """Return an encryptor of the stream of a nonce, for vectors of several blocks."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        return Cipher(algorithms.AES(self._key), modes.GCM(nonce)).encryptor()


def _blocks(stream: Any, count: int, kind: np.dtype, room: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(start, words of keystream) of each block; each overwrites the one before."""
    view, each = room.data, BLOCK // kind.itemsize
    for start in range(0, count, each):
        n = min(each, count - start)
        size = n * kind.itemsize
        stream.update_into(_ZEROS[:size], view[:size])
        yield start, room.view(kind)[:n]


def stream(key: bytes, count: int, width: int) -> np.ndarray:
    """`count` uniform words in the ring of this width."""
    return mask(np.zeros(count, word(width)), [(key, 1)], width)


def mask(vector: np.ndarray, keys: Iterable[tuple[bytes, int]], width: int) -> np.ndarray:
    """Add (sign 1) or subtract (sign −1) each key's stream, in place.

    Truncating a uniform word to the width keeps it uniform.
    """
    return _add(vector, ((aes(key), sign) for key, sign in keys), width)


def mask_from(
    vector: np.ndarray, streams: Iterable[tuple[Keystream, int]], nonce: bytes, width: int
) -> np.ndarray:
    """As `mask`, with the streams of one nonce: of a key, and a sign. A key and a nonce are used once."""
    if vector.nbytes > BLOCK or vector.dtype != word(width):
        return _add(vector, ((stream.start(nonce), sign) for stream, sign in streams), width)
    zeros, kind, count = _ZEROS[: vector.nbytes], vector.dtype, len(vector)
    add, subtract, block_of = np.add, np.subtract, np.frombuffer
    for stream, sign in streams:  # one block: a program of sums has thousands of short vectors
        block = block_of(stream.encrypt(nonce, zeros, None), kind, count)
        (add if sign > 0 else subtract)(vector, block, vector)
    return truncate(vector, width)


def _add(vector: np.ndarray, streams: Iterable[tuple[Any, int]], width: int) -> np.ndarray:
    kind = word(width)
    if vector.dtype != kind:
        raise bad(
            "prg.mask", "vector", vector.dtype, f"words of {kind}, in which a ring of {width} bits is added"
        )
    room = np.empty(min(BLOCK, vector.nbytes), np.uint8)
    for stream, sign in streams:
        add = np.add if sign > 0 else np.subtract
        for start, block in _blocks(stream, len(vector), kind, room):
            part = vector[start : start + len(block)]
            add(part, block, out=part)
    return truncate(vector, width)
