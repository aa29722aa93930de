"""Vectors that are added while encrypted. Cheon, Kim, Kim, Song: Homomorphic Encryption for Arithmetic of
Approximate Numbers (CKKS), ASIACRYPT 2017, through TenSEAL (Microsoft SEAL).

Chosen for additions only: ring dimension 4096 with a modulus of 54 + 55 = 109 bits, the most that the
HomomorphicEncryption.org standard (2018, Table 1) allows there at 128-bit security against classical attacks;
SEAL refuses to build anything weaker. No relinearisation or rotation keys exist, and encryption is with the
secret key, which parties have anyhow: half the time, and a tenth of the error of encryption with a public
one.

CKKS is approximate, our numbers are whole: at a scale of 2^21 a slot holds 32 bits of them with an error
below 0.01, and rounding takes it away. So sums are exact, and what is told to others carries nothing of the
noise, from which Li and Micciancio (EUROCRYPT 2021) recover the key. Two or more numbers share a slot where
their sums fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import MissingExtra, ProtocolError
from ..parameters import bad

DIMENSION, MODULI = 4096, (54, 55)  # bits; the last is spent on keys alone
SLOTS = DIMENSION // 2
BITS = 32  # of whole numbers in a slot: 54 = 1 sign + 32 + 21, with a bit to spare for the error
SCALE = 2.0**21
SECURITY = 128  # bits
BLOCK_BYTES, SECRET_BYTES = (
    61_740,
    61_855,
)  # of a ciphertext and of a key as SEAL writes them, compressed: give or take 25
SURE = 0.25  # of a unit: an error above it is no rounding any more


def _tenseal() -> Any:
    try:
        import tenseal
    except ImportError:
        raise MissingExtra("Encrypt", "he", "tenseal") from None
    return tenseal


def _parameters() -> Any:
    ts = _tenseal()
    made = ts.context(
        ts.SCHEME_TYPE.CKKS, DIMENSION, -1, list(MODULI), encryption_type=ts.ENCRYPTION_TYPE.SYMMETRIC
    )
    made.global_scale = SCALE
    return made


def secret() -> bytes:
    """A fresh secret key, with the parameters it belongs to. SEAL draws it from the operating system."""
    return _parameters().serialize(
        save_public_key=False, save_secret_key=True, save_galois_keys=False, save_relin_keys=False
    )


def per_slot(bits: int) -> int:
    """How many numbers whose sum has `bits` bits share a slot."""
    if not 1 <= bits <= BITS:
        raise bad("Encrypt", "bits", bits, f"between 1 and {BITS}", "Quantize to fewer bits.")
    return BITS // bits


def blocks(length: int, bits: int) -> int:
    """How many ciphertexts `length` numbers take."""
    return math.ceil(math.ceil(length / per_slot(bits)) / SLOTS)


def encrypt(key: bytes, values: np.ndarray, bits: int) -> list[bytes]:
    """Whole numbers, a few to a slot, as ciphertexts of 2048 slots each."""
    ts, each = _tenseal(), per_slot(bits)
    context = _context(key)
    slots = -(-len(values) // each)
    padded = np.zeros(slots * each, np.int64)
    padded[: len(values)] = values
    joined = (
        (padded.reshape(each, slots) * (1 << (bits * np.arange(each, dtype=np.int64)))[:, None])
        .sum(0)
        .astype(np.float64)
    )
    return [ts.ckks_vector(context, joined[i : i + SLOTS]).serialize() for i in range(0, slots, SLOTS)]


def add(rows: Iterable[Sequence[bytes]]) -> list[bytes]:
    """The sum of several parties' ciphertexts, block by block, without any key."""
    ts = _tenseal()
    context = _context(
        _parameters().serialize(
            save_public_key=False, save_secret_key=False, save_galois_keys=False, save_relin_keys=False
        )
    )
    total: list[Any] = []
    for boxes in rows:
        try:
            came = [ts.ckks_vector_from(context, box) for box in boxes]
            total = [a + b for a, b in zip(total, came, strict=True)] if total else came
        except (ValueError, RuntimeError) as error:
            raise ProtocolError(f"a ciphertext cannot be read or added: {error}") from None
    return [box.serialize() for box in total]


def decrypt(key: bytes, boxes: Sequence[bytes], length: int, bits: int) -> tuple[np.ndarray, float]:
    """(the whole numbers, how far the largest was from a whole number)."""
    ts, each = _tenseal(), per_slot(bits)
    context = _context(key)
    try:
        parts = [np.array(ts.ckks_vector_from(context, box).decrypt()) for box in boxes]
    except (ValueError, RuntimeError) as error:
        raise ProtocolError(f"a ciphertext cannot be read: {error}") from None
    slots = -(-length // each)
    joined = np.concatenate(parts) if parts else np.zeros(0)
    if len(joined) != slots:
        raise ProtocolError(
            f"the ciphertexts hold {len(joined)} slots; {length} numbers of {bits} bits take {slots}."
        )
    nearest = np.rint(joined)
    off = float(np.abs(joined - nearest).max(initial=0.0))
    if off >= SURE:
        raise ProtocolError(
            f"the decrypted sum is up to {off:.3g} away from whole numbers: the ciphertexts do not belong "
            "to this key, or were changed."
        )
    left, out = nearest.astype(np.int64), np.empty((each, slots), np.int64)
    for i in range(each):  # the lowest number first, taken around 0; what is left belongs to the next
        out[i] = ((left + (1 << (bits - 1))) & ((1 << bits) - 1)) - (1 << (bits - 1))
        left = (left - out[i]) >> bits
    return out.reshape(-1)[:length], off


def _context(key: bytes) -> Any:
    try:
        return _tenseal().context_from(key)
    except (ValueError, RuntimeError) as error:
        raise ProtocolError(f"the round's key cannot be read: {error}") from None
