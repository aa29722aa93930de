"""Oblivious transfer: one holds two keys, the other gets the one it chooses; the first does not learn which,
the second nothing of the other key.

Base transfers: Chou, Orlandi: The Simplest Protocol for Oblivious Transfer, 2015, in ristretto255. With A =
a·G, the chooser sends B = b·G + c·A for its bit c; the two keys are hashes of a·B and a·B − a·A, of which it
can compute one, b·A. Secure against those who follow the protocol, under computational Diffie-Hellman with
SHA-256 as a random oracle; a few hundred of them are stretched to millions by AES (`Columns`), as Ishai,
Kilian, Nissim, Petrank 2003 do: key i is the seed of column i of a matrix of which each row is one more
transfer.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from ..errors import MissingExtra, ProtocolError
from . import group
from .agree import bind

KEY = 32


def offer(draw: group.Draw) -> tuple[bytes, bytes]:
    """(a, A): what whoever holds both keys keeps, and says."""
    a = group.scalar(draw)
    return a, group.times_base(a)


def choose(said: bytes, bits: np.ndarray, about: bytes, draw: group.Draw) -> tuple[bytes, list[bytes]]:
    """(the chooser's points, its keys) for its bits."""
    points, keys = [], []
    for i, bit in enumerate(bits):
        b = group.scalar(draw)
        plain = group.times_base(b)
        both = plain, group.plus(plain, said)  # both are made, so that time does not tell the bit
        points.append(both[int(bit)])
        keys.append(_key(about, i, said, points[-1], group.times(b, said)))
    return b"".join(points), keys


def pairs(a: bytes, said: bytes, points: bytes, count: int, about: bytes) -> tuple[list[bytes], list[bytes]]:
    """Both keys of each transfer, from the chooser's points."""
    if len(points) != count * group.POINT:
        raise ProtocolError(
            f"{len(points)} bytes came for {count} oblivious transfers; they must be {count * group.POINT}."
        )
    shift = group.times(a, said)
    zeros, ones = [], []
    for i in range(count):
        point = points[group.POINT * i : group.POINT * (i + 1)]
        shared = group.times(a, point)
        zeros.append(_key(about, i, said, point, shared))
        ones.append(_key(about, i, said, point, group.minus(shared, shift)))
    return zeros, ones


def _key(about: bytes, i: int, said: bytes, point: bytes, shared: bytes) -> bytes:
    return hashlib.sha256(bind("tacit base transfer 1", about, i, said, point, shared)).digest()


def aes() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    except ImportError:
        raise MissingExtra("private set intersection of large sets", "psi", "cryptography") from None
    return Cipher, algorithms.AES, modes


class Columns:
    """Keys stretched: `take(n)` gives the next n bytes of AES-256 in counter mode of each, as a matrix of one
    row a key.
    """

    def __init__(self, keys: list[bytes]):
        cipher, kind, modes = aes()
        self._streams = [cipher(kind(key), modes.CTR(bytes(16))).encryptor() for key in keys]

    def take(self, n: int) -> np.ndarray:
        out, zeros = np.empty((len(self._streams), n), np.uint8), bytes(n)
        for stream, row in zip(self._streams, out):
            stream.update_into(zeros, row.data)
        return out


def encrypt_blocks(blocks: np.ndarray, key: bytes) -> np.ndarray:
    """AES of every row of 16 bytes under one key."""
    cipher, kind, modes = aes()
    return np.frombuffer(
        cipher(kind(key), modes.ECB()).encryptor().update(np.ascontiguousarray(blocks).data), np.uint8
    ).reshape(blocks.shape)
