"""Whole numbers modulo the prime p = 2^61 − 1, in torch's int64: what the checked mode computes in.

A tag α·x proves that x was not changed only where every difference has an inverse: modulo 2^64 a cheater
who adds 2^63 guesses one bit of α. In a field of 2^61 elements it has to guess α itself. 2^61 ≡ 1, so a
product of 122 bits is brought back by adding its upper half to its lower one.

    range of real numbers   |x| ≤ 2^(58−2f) and 2^(47−f)      with f = 16: ±2^26 = ±6.7e7, and every product and sum of products as well
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import ProtocolError
from .ring import Fixed, conv2d

BITS = 61
P = (1 << BITS) - 1
ROOM = 58  # |x ∘ y| < 2^58, for the truncation in `spdz.py`
VALUE = 47  # bits of an encoded value's magnitude; differences of two have 48, which comparisons take
LIMB, LIMBS = (
    21,
    3,
)  # of a matmul in float64: a limb product has 42 bits, and 2^10 of them add up exactly, with a bit to spare
LONGEST = 1 << 10
_HALF, _LOW, _TOP = 31, (1 << 31) - 1, (1 << 30) - 1


@dataclass(frozen=True)
class FixedPrime(Fixed):
    """Real numbers as elements: x ↦ round(x · 2^f) modulo p, held to the smaller range of the field."""

    where: ClassVar[str] = "the checked mode's field of 61"

    @property
    def most(self) -> float:
        return 2.0 ** min(VALUE - self.fraction, ROOM - 2 * self.fraction)

    def encode(self, values: Any, what: str = "a value", scale: int = 1) -> Tensor:
        made = super().encode(values, what, scale)
        return torch.where(made < 0, made + P, made)

    def decode(self, ring: Tensor) -> Tensor:
        return super().decode(centred(ring))


def centred(x: Tensor) -> Tensor:
    """The representative between −p/2 and p/2."""
    return torch.where(x > P // 2, x - P, x)


def fold(x: Tensor) -> Tensor:
    """0 ≤ x < 2^63 → 0 ≤ x < p."""
    x = (x & P) + (x >> BITS)
    return torch.where(x >= P, x - P, x)


def add(x: Tensor, y: Tensor) -> Tensor:
    return fold(x + y)


def sub(x: Tensor, y: Tensor) -> Tensor:
    return fold(x + (P - y))


def mul(x: Tensor, y: Tensor) -> Tensor:
    """x·y: halves of 31 and 30 bits; 2^62 ≡ 2, and the middle product's upper part wraps around."""
    (xh, xl), (yh, yl) = ((t >> _HALF, t & _LOW) for t in (x, y))
    middle = xh * yl + xl * yh  # < 2^62
    return fold(fold(xl * yl) + ((middle & _TOP) << _HALF) + (middle >> 30) + 2 * (xh * yh))


def total(x: Tensor, dim: int) -> Tensor:
    """The sum along a dimension: 32-bit halves add up without overflow, 2^31 of them."""
    low, high = (x & 0xFFFFFFFF).sum(dim), (x >> 32).sum(dim)
    return add(fold(low), turned(fold(high), 32))


def turned(x: Tensor, by: int) -> Tensor:
    """x · 2^by: the 61 bits turned round."""
    by %= BITS
    return fold(((x & ((1 << (BITS - by)) - 1)) << by) + (x >> (BITS - by)))


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """x @ y: Σ 2^(21(i+j)) · x_i y_j over limbs, each product exact in float64; long sums go in pieces."""
    if x.shape[-1] > LONGEST:
        if y.dim() == 1:
            return matmul(x, y[:, None])[..., 0]
        return total(
            torch.stack([matmul(a, b) for a, b in zip(x.split(LONGEST, -1), y.split(LONGEST, -2))]), 0
        )
    mask = (1 << LIMB) - 1
    xs, ys = ([((t >> (LIMB * i)) & mask).double() for i in range(LIMBS)] for t in (x, y))
    made: Tensor | None = None
    for place in range(2 * LIMBS - 1):
        pairs = [torch.matmul(xs[i], ys[place - i]).long() for i in range(LIMBS) if 0 <= place - i < LIMBS]
        level = turned(fold(torch.stack(pairs).sum(0)), LIMB * place)
        made = level if made is None else add(made, level)
    assert made is not None
    return made


def bilinear(op: Any, x: Tensor, y: Tensor) -> Tensor:
    """x ∘ y modulo p, for the ∘ of `beaver.py`."""
    if op.name == "mul":
        return mul(x, y)
    if op.name == "matmul":
        return matmul(x, y)
    stride, padding, dilation, groups = op.options
    return conv2d(x, y, stride, padding, dilation, groups, matmul)


def words(drawn: Tensor) -> Tensor:
    """Uniform 64-bit words → elements, uniform up to 2^-61: the upper 61 bits, of which one value in 2^61, p
    itself, is 0.
    """
    x = (drawn >> 3) & P
    return torch.where(x == P, 0, x)


def whole(x: Tensor, who: str) -> Tensor:
    """What came from another party, if these are elements."""
    if x.dtype is not torch.int64 or (x.numel() and bool(((x < 0) | (x >= P)).any())):
        raise ProtocolError(f"{who} sent numbers that are none modulo 2^61 − 1.")
    return x
