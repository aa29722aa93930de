"""Additively homomorphic encryption of integers: ElGamal in the exponent, in ristretto255 (Cramer, Gennaro,
Schoenmakers 1997).

Enc(v) = (r·G, r·P + v·G). Sums of ciphertexts are ciphertexts of sums; adding Enc(0) makes one unlinkable to
its parts. Decryption gives v·G, and v follows by baby steps and giant steps; so a number is split into limbs
of 16 bits, encrypted separately. Assumption: decisional Diffie-Hellman.
"""

from __future__ import annotations

import math

from ..errors import BadData, ProtocolError
from . import group

LIMB = 16  # bits
NEUTRAL = bytes(group.POINT)
PAIR = 2 * group.POINT  # bytes of a ciphertext of one limb
TABLE = 1 << 20  # baby steps that are kept: 150 MB
MOST_STEPS = 1 << 24  # giant steps: some minutes, for the sum of 260 million numbers of 16 bits


def count_limbs(limit: int) -> int:
    """The number of limbs of a number up to `limit`."""
    return max(1, -(-limit.bit_length() // LIMB))


def split_limbs(value: int, count: int) -> list[int]:
    return [value >> LIMB * k & (1 << LIMB) - 1 for k in range(count)]


def encrypt(private: bytes, value: int, draw: group.Draw) -> bytes:
    """Encrypt with the private key, by two base multiplications: r·P + v·G = (r·p + v)·G."""
    return encrypt_scalar(private, group.scalar_from_int(value), draw)


def encrypt_scalar(private: bytes, value: bytes, draw: group.Draw) -> bytes:
    """Encrypt any scalar; it cannot be recovered from its point, only compared."""
    r = group.scalar(draw)
    return group.times_base(r) + group.times_base(group.scalar_sum(group.scalar_product(r, private), value))


def add(a: bytes, b: bytes) -> bytes:
    return group.plus(a[: group.POINT], b[: group.POINT]) + group.plus(a[group.POINT :], b[group.POINT :])


def mask(total: bytes, public: bytes, mask: bytes, draw: group.Draw) -> bytes:
    """Rerandomize the ciphertext and add `mask` to its number, so that decryption reveals neither."""
    r = group.scalar(draw)
    return add(total, group.times_base(r) + group.plus(group.times(r, public), group.times_base(mask)))


def decrypt_to_point(private: bytes, ciphertext: bytes) -> bytes:
    """v·G."""
    return group.minus(ciphertext[group.POINT :], group.times(private, ciphertext[: group.POINT]))


def discrete_log(point: bytes, most: int) -> int:
    """v from v·G, if 0 ≤ v ≤ most (Shanks 1971): √most baby steps, at most TABLE, and giant steps."""
    if point == NEUTRAL:
        return 0
    width = min(math.isqrt(most) + 1, TABLE)
    if most // width > MOST_STEPS:
        raise BadData(f"a sum of up to {most} takes {most // width} steps to decrypt. Sum fewer ids at once.")
    base, steps, at = group.times_base(group.scalar_from_int(1)), {NEUTRAL: 0}, NEUTRAL
    for k in range(1, width):
        at = group.plus(at, base)
        steps[at] = k
    stride = group.plus(at, base)
    for j in range(most // width + 1):
        if point in steps:
            return j * width + steps[point]
        point = group.minus(point, stride)
    raise ProtocolError(f"a sum exceeds its maximum {most}: a party did not follow the protocol.")
