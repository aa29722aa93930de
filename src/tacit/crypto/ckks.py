"""Homomorphic encryption of integer vectors, for sums. Cheon, Kim, Kim, Song: Homomorphic Encryption for
Arithmetic of Approximate Numbers (CKKS), ASIACRYPT 2017, through TenSEAL (Microsoft SEAL).

Parameters for additions only: ring dimension 4096 with a modulus of 54 + 55 = 109 bits, the largest that the
HomomorphicEncryption.org standard (2018, Table 1) allows there at 128-bit security against classical attacks;
SEAL refuses weaker ones. There are no relinearization or rotation keys, and encryption uses the secret key,
which parties have anyway: half the time, and a tenth of the error of public-key encryption.

CKKS is approximate, and the numbers here are integers: at a scale of 2^21 a slot holds 32 bits of them with
an error below 0.01, which rounding removes. So sums are exact, and published sums carry no noise, from which
Li and Micciancio (EUROCRYPT 2021) recover the key. Several numbers share a slot if their sums fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import MissingExtra, ProtocolError
from ..parameters import bad

DIMENSION, MODULI = 4096, (54, 55)  # bits; the last is for keys only
SLOTS = DIMENSION // 2
BITS = 32  # of integers in a slot: 54 = 1 sign + 32 + 21, which leaves room for the error
SCALE = 2.0**21
SECURITY = 128  # bits
BLOCK_BYTES, SECRET_BYTES = 61_740, 61_855  # of a ciphertext and of a key as SEAL compresses them, ± 25
MAX_ERROR = 0.25  # of a unit; a larger one is not a rounding error


def _tenseal() -> Any:
    try:
        import tenseal
    except ImportError:
        raise MissingExtra("Encrypt", "he", "tenseal") from None
    return tenseal


def _serialize(save_secret_key: bool) -> bytes:
    """The parameters, with or without a fresh secret key."""
    ts = _tenseal()
    context = ts.context(
        ts.SCHEME_TYPE.CKKS, DIMENSION, -1, list(MODULI), encryption_type=ts.ENCRYPTION_TYPE.SYMMETRIC
    )
    context.global_scale = SCALE
    return bytes(
        context.serialize(
            save_public_key=False,
            save_secret_key=save_secret_key,
            save_galois_keys=False,
            save_relin_keys=False,
        )
    )


def secret() -> bytes:
    """A fresh secret key with its parameters. SEAL draws it from the operating system."""
    return _serialize(save_secret_key=True)


def per_slot(bits: int) -> int:
    """How many numbers whose sum has `bits` bits share a slot."""
    if not 1 <= bits <= BITS:
        raise bad("Encrypt", "bits", bits, f"between 1 and {BITS}", "Quantize to fewer bits.")
    return BITS // bits


def blocks(length: int, bits: int) -> int:
    """The number of ciphertexts for `length` numbers."""
    return math.ceil(math.ceil(length / per_slot(bits)) / SLOTS)


def encrypt(key: bytes, values: np.ndarray, bits: int) -> list[bytes]:
    """Encrypt integers, several per slot, in ciphertexts of 2048 slots each."""
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
    """Add several parties' ciphertexts, block by block, without a key."""
    ts = _tenseal()
    context = _context(_serialize(save_secret_key=False))
    total: list[Any] = []
    for ciphertexts in rows:
        try:
            vectors = [ts.ckks_vector_from(context, data) for data in ciphertexts]
            total = [a + b for a, b in zip(total, vectors, strict=True)] if total else vectors
        except (ValueError, RuntimeError) as error:
            raise ProtocolError(f"a ciphertext cannot be read or added: {error}") from None
    return [vector.serialize() for vector in total]


def decrypt(key: bytes, ciphertexts: Sequence[bytes], length: int, bits: int) -> tuple[np.ndarray, float]:
    """(the integers, the largest rounding error)."""
    ts, each = _tenseal(), per_slot(bits)
    context = _context(key)
    try:
        parts = [np.array(ts.ckks_vector_from(context, data).decrypt()) for data in ciphertexts]
    except (ValueError, RuntimeError) as error:
        raise ProtocolError(f"a ciphertext cannot be read: {error}") from None
    slots = -(-length // each)
    joined = np.concatenate(parts) if parts else np.zeros(0)
    if len(joined) != slots:
        raise ProtocolError(
            f"the ciphertexts have {len(joined)} slots; {length} numbers of {bits} bits take {slots}."
        )
    nearest = np.rint(joined)
    off = float(np.abs(joined - nearest).max(initial=0.0))
    if off >= MAX_ERROR:
        raise ProtocolError(
            f"the decrypted sum is up to {off:.3g} away from integers: the ciphertexts do not belong "
            "to this key, or were modified."
        )
    left, out = nearest.astype(np.int64), np.empty((each, slots), np.int64)
    for i in range(each):  # the lowest number first, as a signed one; the rest belongs to the others
        out[i] = ((left + (1 << (bits - 1))) & ((1 << bits) - 1)) - (1 << (bits - 1))
        left = (left - out[i]) >> bits
    return out.reshape(-1)[:length], off


def _context(key: bytes) -> Any:
    try:
        return _tenseal().context_from(key)
    except (ValueError, RuntimeError) as error:
        raise ProtocolError(f"the round's key cannot be read: {error}") from None
