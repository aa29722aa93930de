"""Oblivious transfer: the sender has two keys, and the receiver learns the one it chooses. The sender does
not learn which, and the receiver learns nothing of the other key.

Base transfers: Chou, Orlandi: The Simplest Protocol for Oblivious Transfer, 2015, in ristretto255. With A =
a·G, the receiver sends B = b·G + c·A for its bit c; the two keys are hashes of a·B and a·B − a·A, of which it
can compute one, b·A. Secure against semi-honest parties, under computational Diffie-Hellman with SHA-256 as a
random oracle. A few hundred of them are extended to millions by AES (`Columns`), as in Ishai, Kilian, Nissim,
Petrank 2003: key i is the seed of column i of a matrix, and each row is one transfer.
"""

from __future__ import annotations

import hashlib
from functools import cache
from types import ModuleType

import numpy as np

from ..errors import MissingExtra, ProtocolError
from . import group
from .agree import bind
from .prg import aes

EXTRA = ("private set intersection of large sets", "psi")  # what needs AES here, and its extra


@cache
def compiled() -> ModuleType:
    """Return the compiled loops of `okvs` and `vole`, which need numba."""
    try:
        from . import loops
    except ModuleNotFoundError:
        raise MissingExtra(*EXTRA, "numba") from None
    return loops


def offer(draw: group.Draw) -> tuple[bytes, bytes]:
    """(a, A): the sender's secret and its message."""
    a = group.scalar(draw)
    return a, group.times_base(a)


def choose(offer: bytes, bits: np.ndarray, about: bytes, draw: group.Draw) -> tuple[bytes, list[bytes]]:
    """(the receiver's points, its keys) for its bits."""
    points, keys = [], []
    for i, bit in enumerate(bits):
        b = group.scalar(draw)
        plain = group.times_base(b)
        both = plain, group.plus(plain, offer)  # computes both, so that timing does not reveal the bit
        points.append(both[int(bit)])
        keys.append(_key(about, i, offer, points[-1], group.times(b, offer)))
    return b"".join(points), keys


def pairs(a: bytes, offer: bytes, points: bytes, count: int, about: bytes) -> tuple[list[bytes], list[bytes]]:
    """Both keys of each transfer, from the receiver's points."""
    if len(points) != count * group.POINT:
        raise ProtocolError(
            f"received {len(points)} bytes for {count} oblivious transfers; expected {count * group.POINT}."
        )
    shift = group.times(a, offer)
    zeros, ones = [], []
    for i in range(count):
        point = points[group.POINT * i : group.POINT * (i + 1)]
        shared = group.times(a, point)
        zeros.append(_key(about, i, offer, point, shared))
        ones.append(_key(about, i, offer, point, group.minus(shared, shift)))
    return zeros, ones


def _key(about: bytes, i: int, offer: bytes, point: bytes, shared: bytes) -> bytes:
    return hashlib.sha256(bind("tacit base transfer 1", about, i, offer, point, shared)).digest()


class Columns:
    """Expands keys: `take(n)` returns the next n bytes of each key's AES-256 stream, one row per key."""

    def __init__(self, keys: list[bytes]):
        self._streams = [aes(key, *EXTRA) for key in keys]

    def take(self, n: int) -> np.ndarray:
        out, zeros = np.empty((len(self._streams), n), np.uint8), bytes(n)
        for stream, row in zip(self._streams, out):
            stream.update_into(zeros, row.data)
        return out


def encrypt_blocks(blocks: np.ndarray, key: bytes) -> np.ndarray:
    """AES of every row of 16 bytes under one key."""
    encrypted = aes(key, *EXTRA, mode="ECB").update(np.ascontiguousarray(blocks).data)
    return np.frombuffer(encrypted, np.uint8).reshape(blocks.shape)


def pads(rows: np.ndarray, tweaks: np.ndarray, key: bytes) -> np.ndarray:
    """H(tweak, row) of each row of 16 bytes: π(π(x) ⊕ tweak) ⊕ π(x), with AES under a public key as π.

    Guo, Katz, Wang, Yu: Efficient and Secure Multiparty Computation from Fixed-Key Block Ciphers, IEEE S&P
    2020, section 7.4 (TMMO): correlation robust with different tweaks, if π is a random permutation.
    """
    inner = encrypt_blocks(rows, key)
    return np.asarray(encrypt_blocks(inner ^ tweaks, key) ^ inner)
