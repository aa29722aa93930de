"""Products of encrypted whole numbers with known ones, and nothing of the known ones given away. J. Fan, F. Vercauteren: Somewhat Practical Fully
Homomorphic Encryption, 2012 (BFV), through TenSEAL (Microsoft SEAL).

Whole numbers modulo a prime t of 57 bits, 16,384 to a ciphertext; ring dimension 16384 with SEAL's modulus of 438 bits: 128-bit security against
classical attacks (HomomorphicEncryption.org standard, 2018, Table 1). Exact, unlike CKKS: a mask that is uniform modulo t hides a product perfectly, and an
opened result carries none of the encryption's noise, from which Li and Micciancio (EUROCRYPT 2021) recover a CKKS key.

Whoever holds the key knows the ciphertext it sent, (c₀, c₁); a bare product (p·c₀, p·c₁) would give p away by a division, and its noise, p·e, by
another. So `times` adds an encryption of zero that was multiplied by two secret uniform plaintexts: its c₁ hides p·c₁ (ring learning with errors), and its
noise, of deviation 2^133 (2^9 fresh, 2^62 for each factor: 2^55 a coefficient, 2^7 = √16384 for their sum), drowns p·e, below 2^81, by 2^52.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import MissingExtra, ProtocolError
from . import prg

SLOTS = 16384  # the ring dimension: BFV has as many slots
PRIME = 144115188075593729  # the largest prime below 2^57 that is 1 modulo 2·16384, as batching needs


def _tenseal() -> Any:
    try:
        import tenseal
    except ImportError:
        raise MissingExtra("encrypted regression", "he", "tenseal") from None
    return tenseal


def keys() -> tuple[bytes, bytes]:
    """(the secret key, the public one), each with its parameters. SEAL draws them from the operating system."""
    ts = _tenseal()
    made = ts.context(ts.SCHEME_TYPE.BFV, SLOTS, PRIME)
    kept = {"save_galois_keys": False, "save_relin_keys": False}
    return made.serialize(save_public_key=True, save_secret_key=True, **kept), made.serialize(save_public_key=True, save_secret_key=False, **kept)


class Box:
    """A key that is read once and used often."""

    def __init__(self, key: bytes):
        try:
            self.context = _tenseal().context_from(key)
        except (ValueError, RuntimeError) as error:
            raise ProtocolError(f"the key cannot be read: {error}") from None

    def encrypt(self, values: np.ndarray) -> bytes:
        """Up to SLOTS whole numbers, modulo the prime."""
        return self._vector(values).serialize()

    def _vector(self, values: np.ndarray) -> Any:
        return _tenseal().bfv_vector(self.context, centred(values).tolist())

    def _read(self, box: bytes) -> Any:
        try:
            return _tenseal().bfv_vector_from(self.context, box)
        except (ValueError, RuntimeError) as error:
            raise ProtocolError(f"a ciphertext cannot be read: {error}") from None

    def times(self, box: bytes, factors: np.ndarray, masks: np.ndarray, key: bytes) -> bytes:
        """E(values · factors + masks), slot by slot, as a fresh ciphertext; `key` is 32 secret bytes, used for nothing else."""
        drowned = [uniform(key + bytes([i]), len(factors)) for i in (1, 2)]
        zero = self._vector(np.zeros(len(factors), np.int64))
        for factor in drowned:
            zero = zero * centred(np.maximum(factor, 1)).tolist()
        try:
            return ((self._read(box) * centred(factors).tolist() + zero) + centred(masks).tolist()).serialize()
        except (ValueError, RuntimeError) as error:
            raise ProtocolError(f"a ciphertext cannot be computed with: {error}") from None

    def decrypt(self, box: bytes, length: int) -> np.ndarray:
        """The numbers, from 0 to PRIME − 1."""
        try:
            found = np.array(self._read(box).decrypt(), dtype=np.int64) % PRIME
        except (ValueError, RuntimeError) as error:
            raise ProtocolError(f"a ciphertext cannot be opened: {error}") from None
        if len(found) != length:
            raise ProtocolError(f"a ciphertext holds {len(found)} numbers; {length} are due.")
        return found


def centred(values: np.ndarray) -> np.ndarray:
    """The same modulo the prime, between −PRIME/2 and PRIME/2."""
    held = np.asarray(values, np.int64) % PRIME
    return np.where(held > PRIME // 2, held - PRIME, held)


def uniform(key: bytes, count: int) -> np.ndarray:
    """Numbers uniform modulo the prime, from a secret key: 57 bits of keystream each; those at or above the prime are drawn again."""
    made, turn = np.zeros(0, np.int64), 0
    while len(made) < count:
        words = prg.stream(hashlib.sha256(b"tacit bfv 1|%d|" % turn + key).digest(), count + 64, 64) >> np.uint64(7)
        made, turn = np.concatenate([made, words[words < PRIME].astype(np.int64)]), turn + 1
    return made[:count]


def total(values: Sequence[int] | np.ndarray) -> int:
    """Their sum modulo the prime, without the overflow of machine words."""
    held = np.asarray(values, np.int64) % PRIME
    low, high = held & ((1 << 30) - 1), held >> 30
    return (int(low.sum()) + (int(high.sum()) << 30)) % PRIME
