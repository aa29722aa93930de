"""ristretto255, a group of prime order, from libsodium through `rbcl`: an element is 32 bytes, a scalar is 32
bytes.

Everything that needs care is the library's: the map from a hash to the group (two Elligator maps, so the
element says nothing of its discrete logarithm), the check that 32 bytes are the one encoding of an element,
and the multiplication, whose time does not depend on the scalar. The group has prime order: there is no
element of small order but the neutral one, and that is refused wherever an element comes from outside.
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
    # rbcl loads libsodium from a file that it writes anew each time and leaves behind; once loaded, a POSIX
    # system does not need it
    with suppress(OSError, AttributeError):
        Path(sys.modules["rbcl._sodium"].lib_path).unlink()
    return rbcl


def ready() -> None:
    """MissingExtra unless libsodium is here."""
    _sodium()


def scalar(draw: Draw) -> bytes:
    """A uniform scalar: 512 bits reduced, so that no value is more likely than another by more than
    2^-256.
    """
    return _sodium().crypto_core_ristretto255_scalar_reduce(draw(64))


def scalar_from_int(value: int) -> bytes:
    """A small number as a scalar."""
    return value.to_bytes(SCALAR, "little")


def scalar_sum(a: bytes, b: bytes) -> bytes:
    return _sodium().crypto_core_ristretto255_scalar_add(a, b)


def scalar_product(a: bytes, b: bytes) -> bytes:
    return _sodium().crypto_core_ristretto255_scalar_mul(a, b)


def inverse(s: bytes) -> bytes:
    return _sodium().crypto_core_ristretto255_scalar_invert(s)


def element(data: bytes, about: bytes) -> bytes:
    """The element that stands for `data`, in this use alone."""
    return _sodium().crypto_core_ristretto255_from_hash(hashlib.sha512(about + data).digest())


def times_base(s: bytes) -> bytes:
    return _sodium().crypto_scalarmult_ristretto255_base(s)


def times(s: bytes, point: bytes) -> bytes:
    """s·point, or a refusal: the bytes are no element, or the neutral one."""
    try:
        return _sodium().crypto_scalarmult_ristretto255(s, point)
    except (RuntimeError, TypeError, ValueError):
        raise ProtocolError(refusal(point)) from None


def plus(a: bytes, b: bytes) -> bytes:
    _held(a)
    _held(b)
    return _sodium().crypto_core_ristretto255_add(a, b)


def minus(a: bytes, b: bytes) -> bytes:
    _held(a)
    _held(b)
    return _sodium().crypto_core_ristretto255_sub(a, b)


def _held(point: bytes) -> None:
    if len(point) != POINT or not _sodium().crypto_core_ristretto255_is_valid_point(point):
        raise ProtocolError(refusal(point))


def refusal(point: bytes) -> str:
    return (
        f"{bytes(point).hex()[:64]} is no element of ristretto255 other than the neutral one. What came was "
        "changed, or whoever sent it does not follow "
        "the protocol: nothing was computed with it."
    )


def elements(digests: bytes, width: int, about: bytes) -> bytes:
    """`element` of every `width` bytes, one after the other."""
    lift, sha = _sodium().crypto_core_ristretto255_from_hash, hashlib.sha512
    return b"".join(
        [lift(sha(about + digests[at : at + width]).digest()) for at in range(0, len(digests), width)]
    )


def multiply(s: bytes, points: bytes) -> bytes:
    """s times every 32 bytes, one after the other; refuses all if one is refused."""
    if len(points) % POINT:
        raise ProtocolError(f"{len(points)} bytes are no whole number of elements of ristretto255.")
    once = _sodium().crypto_scalarmult_ristretto255
    try:
        return b"".join([once(s, points[at : at + POINT]) for at in range(0, len(points), POINT)])
    except RuntimeError:
        for at in range(0, len(points), POINT):
            times(s, points[at : at + POINT])  # says which
        raise
