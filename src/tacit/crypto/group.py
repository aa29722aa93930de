"""ristretto255, a group of prime order, from libsodium through `rbcl`; elements and scalars are 32 bytes
each.

The library does what needs care: hashing to the group (two Elligator maps, so the discrete logarithm of the
element is unknown), the check that 32 bytes are the canonical encoding of an element, and constant-time
multiplication. The group has prime order: the only element of small order is the neutral one, which is
refused in every message.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import MissingExtra, ProtocolError

POINT = 32  # bytes of an element
SCALAR = 32  # bytes of a scalar

Draw = Callable[[int], bytes]


@cache
def _sodium() -> Any:
    try:
        import rbcl
    except ImportError:
        raise MissingExtra("private set intersection", "psi", "rbcl") from None
    # rbcl writes libsodium to a new file each time and leaves it; once loaded, POSIX does not need it
    with suppress(OSError, AttributeError):
        Path(sys.modules["rbcl._sodium"].lib_path).unlink()
    return rbcl


def ready() -> None:
    """Raise MissingExtra unless libsodium is installed."""
    _sodium()


def scalar(draw: Draw) -> bytes:
    """A uniform scalar, up to 2^-256: 512 random bits, reduced."""
    return bytes(_sodium().crypto_core_ristretto255_scalar_reduce(draw(64)))


def scalar_from_int(value: int) -> bytes:
    """A small number as a scalar."""
    return value.to_bytes(SCALAR, "little")


def scalar_sum(a: bytes, b: bytes) -> bytes:
    return bytes(_sodium().crypto_core_ristretto255_scalar_add(a, b))


def scalar_product(a: bytes, b: bytes) -> bytes:
    return bytes(_sodium().crypto_core_ristretto255_scalar_mul(a, b))


def inverse(s: bytes) -> bytes:
    return bytes(_sodium().crypto_core_ristretto255_scalar_invert(s))


def element(data: bytes, about: bytes) -> bytes:
    """Hash `data` to the group, for the purpose `about` only."""
    return bytes(_sodium().crypto_core_ristretto255_from_hash(hashlib.sha512(about + data).digest()))


def times_base(s: bytes) -> bytes:
    return bytes(_sodium().crypto_scalarmult_ristretto255_base(s))


def times(s: bytes, point: bytes) -> bytes:
    """s·point; raises ProtocolError if the bytes are not an element, or the neutral one."""
    try:
        return bytes(_sodium().crypto_scalarmult_ristretto255(s, point))
    except (RuntimeError, TypeError, ValueError):
        raise ProtocolError(refusal(point)) from None


def plus(a: bytes, b: bytes) -> bytes:
    _check_point(a)
    _check_point(b)
    return bytes(_sodium().crypto_core_ristretto255_add(a, b))


def minus(a: bytes, b: bytes) -> bytes:
    _check_point(a)
    _check_point(b)
    return bytes(_sodium().crypto_core_ristretto255_sub(a, b))


def _check_point(point: bytes) -> None:
    if len(point) != POINT or not _sodium().crypto_core_ristretto255_is_valid_point(point):
        raise ProtocolError(refusal(point))


def refusal(point: bytes) -> str:
    return (
        f"{bytes(point).hex()[:64]} is not an element of ristretto255, or is the neutral one. The message "
        "was modified, or its sender does not follow "
        "the protocol. Nothing was computed with it."
    )


def elements(digests: bytes, width: int, about: bytes) -> bytes:
    """`element` of every `width` bytes, concatenated."""
    lift, sha = _sodium().crypto_core_ristretto255_from_hash, hashlib.sha512
    return b"".join(
        [lift(sha(about + digests[at : at + width]).digest()) for at in range(0, len(digests), width)]
    )


def multiply(s: bytes, points: bytes) -> bytes:
    """s times every 32 bytes, concatenated; refuses all if one is invalid."""
    if len(points) % POINT:
        raise ProtocolError(
            f"{len(points)} bytes are not a multiple of the {POINT} of a ristretto255 element."
        )
    once = _sodium().crypto_scalarmult_ristretto255
    try:
        return b"".join([once(s, points[at : at + POINT]) for at in range(0, len(points), POINT)])
    except RuntimeError:
        for at in range(0, len(points), POINT):
            times(s, points[at : at + POINT])  # raises for the invalid one
        raise
