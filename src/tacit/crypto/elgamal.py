"""Whole numbers encrypted so that anybody can add them up: ElGamal in the exponent, in ristretto255 (Cramer,
Gennaro, Schoenmakers 1997).

Enc(v) = (r·G, r·P + v·G). Sums of ciphertexts are ciphertexts of sums; adding Enc(0) makes one that cannot be
traced to its parts. Decryption gives v·G, of which v is found by baby steps and giant steps, so a number is
cut into limbs of 16 bits that are encrypted each for itself. Rests on decisional Diffie-Hellman.
"""

from __future__ import annotations

import math

from ..errors import BadData, ProtocolError
from . import group

LIMB = 16  # bits
NEUTRAL = bytes(group.POINT)
PAIR = 2 * group.POINT  # bytes of a ciphertext of one limb


def count_limbs(limit: int) -> int:
    """How many a number up to `limit` takes."""
    return max(1, -(-limit.bit_length() // LIMB))


def split_limbs(value: int, count: int) -> list[int]:
    return [value >> LIMB * k & (1 << LIMB) - 1 for k in range(count)]


def encrypt(private: bytes, value: int, draw: group.Draw) -> bytes:
    """By whoever holds the private key, who needs two multiplications of the base only: r·P + v·G = (r·p +
    v)·G.
    """
    return encrypt_scalar(private, group.scalar_from_int(value), draw)


def encrypt_scalar(private: bytes, value: bytes, draw: group.Draw) -> bytes:
    """The same of any scalar, which nobody can then read out: it can only be compared."""
    r = group.scalar(draw)
    return group.times_base(r) + group.times_base(group.scalar_sum(group.scalar_product(r, private), value))


def add(a: bytes, b: bytes) -> bytes:
    return group.plus(a[: group.POINT], b[: group.POINT]) + group.plus(a[group.POINT :], b[group.POINT :])


def mask(total: bytes, public: bytes, mask: bytes, draw: group.Draw) -> bytes:
    """The ciphertext made anew, its number moved by `mask`: whoever decrypts it learns nothing of the number,
    nor of what was added up.
    """
    r = group.scalar(draw)
    return add(total, group.times_base(r) + group.plus(group.times(r, public), group.times_base(mask)))


def decrypt_to_point(private: bytes, ciphertext: bytes) -> bytes:
    """v·G."""
    return group.minus(ciphertext[group.POINT :], group.times(private, ciphertext[: group.POINT]))


def discrete_log(point: bytes, most: int) -> int:
    """v from v·G, if 0 ≤ v ≤ most (Shanks 1971): √most steps of either kind."""
    if point == NEUTRAL:
        return 0
    width = math.isqrt(most) + 1
    if width > 1 << 21:
        raise BadData(f"a sum of up to {most} cannot be read out: {width} steps. Sum fewer ids at once.")
    base, steps, at = group.times_base(group.scalar_from_int(1)), {NEUTRAL: 0}, NEUTRAL
    for k in range(1, width):
        at = group.plus(at, base)
        steps[at] = k
    stride = group.plus(at, base)
    for j in range(width + 1):
        if point in steps:
            return j * width + steps[point]
        point = group.minus(point, stride)
    raise ProtocolError(f"a sum that should be at most {most} is not: someone did not follow the protocol.")
