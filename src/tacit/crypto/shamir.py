"""Shamir: How to Share a Secret, 1979. A 256-bit secret in n shares: any t of them recover it, and any t − 1
reveal nothing.

The field is that of the smallest prime above 2^256, so that a key is one element. Python's integers are not
constant-time; adversaries that measure a party's timing are not considered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from ..errors import ProtocolError
from ..parameters import bad
from .field import lagrange

SECRET = 32  # bytes
P = (1 << 256) + 297
SHARE = 33  # bytes: P has 257 bits
_REDUCE = 16  # products by a small number between reductions modulo P, which cost more than they do
_DRAW = 49  # bytes per coefficient: 2^-135 from uniform modulo P


def split(secret: bytes, threshold: int, parties: int, draw: Callable[[int], bytes]) -> list[bytes]:
    """Share i (from 0) is the value at i + 1 of a random polynomial of degree t − 1 with the secret at 0."""
    if len(secret) != SECRET:
        raise bad("shamir.split", "the length of the secret", len(secret), f"{SECRET} bytes")
    if not 1 <= threshold <= parties:
        raise bad("shamir.split", "threshold", threshold, f"between 1 and the {parties} shares")
    random = draw(_DRAW * (threshold - 1))
    high = [int.from_bytes(random[i * _DRAW : (i + 1) * _DRAW], "little") % P for i in range(threshold - 1)]
    shares = []
    for x in range(1, parties + 1):
        y = 0
        for i, c in enumerate(high, 1):
            y = (y + c) * x
            if not i % _REDUCE:
                y %= P
        shares.append(((y + int.from_bytes(secret, "little")) % P).to_bytes(SHARE, "little"))
    return shares


def join(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Recover the secret from shares by their index (from 0); fewer than the threshold are refused."""
    if len(shares) < threshold:
        raise ProtocolError(f"{len(shares)} shares are too few: {threshold} are needed to recover a secret.")
    places = tuple(sorted(shares))[:threshold]
    values = [int.from_bytes(shares[i], "little") for i in places]
    if any(len(shares[i]) != SHARE or v >= P for i, v in zip(places, values)):
        raise ProtocolError(f"a share is not a number of {SHARE} bytes below the field's prime.")
    secret = sum(v * w for v, w in zip(values, _at_zero(places))) % P
    if secret >> (8 * SECRET):
        raise ProtocolError("the shares do not belong to one secret: a party sent a wrong one.")
    return secret.to_bytes(SECRET, "little")


@lru_cache(1024)  # in one round the same parties answer for almost every secret
def _at_zero(places: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange weights for the value at 0 from the values at place + 1."""
    return tuple(lagrange([i + 1 for i in places], 0, P))
