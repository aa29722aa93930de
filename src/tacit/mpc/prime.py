"""Integers modulo the prime p = 2^61 − 1, in torch's int64: the field of the checked mode.

A tag α·x authenticates x only where every nonzero difference has an inverse. Modulo 2^64 a malicious party
that adds 2^63 has to guess only one bit of α; in a field of 2^61 elements it has to guess α itself. Since
2^61 ≡ 1, a product of 122 bits is reduced by adding its upper half to its lower half.

A dry run (`tagged.plan`) has tensors on the meta device: shapes without numbers. There an operation returns
a tensor of the right shape and computes nothing, since torch executes every step on a meta tensor in Python.

    range of real numbers   |x| ≤ 2^(58−2f) and 2^(47−f)      with f = 16: ±2^26 = ±6.7e7
                            the same for every product and sum of products
"""

from __future__ import annotations

import functools
import importlib.util
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..errors import ProtocolError
from .ring import FixedPoint, conv2d

if TYPE_CHECKING:
    from .beaver import Bilinear

BITS = 61
P = (1 << BITS) - 1
ROOM = 58  # magnitude bits of a product, for the truncation in `spdz.py`
VALUE = 47  # magnitude bits of an encoded value; differences of two have 48, which comparisons take
# for matmul in float64: a product of limbs has 42 bits, and 2^10 of them add exactly, with a bit to spare
LIMB, LIMBS = 21, 3
LONGEST = 1 << 10
COMPILED = 1 << 14  # numbers from which on compiled loops are used
_HALF, _LOW, _TOP = 31, (1 << 31) - 1, (1 << 30) - 1


@functools.cache
def has_numba() -> bool:
    return importlib.util.find_spec("numba") is not None


@dataclass(frozen=True)
class FixedPointPrime(FixedPoint):
    """Fixed-point numbers modulo p: x ↦ round(x · 2^f), in the smaller range of the field."""

    where: ClassVar[str] = "the checked mode's field of 61"
    value_bits: ClassVar[int] = VALUE

    @property
    def most(self) -> float:
        return 2.0 ** min(VALUE - self.fraction, ROOM - 2 * self.fraction)

    def encode(self, values: Any, what: str = "a value", scale: int = 1) -> Tensor:
        return from_signed(super().encode(values, what, scale))

    def to_signed(self, ring: Tensor) -> Tensor:
        return to_signed(ring)


def from_signed(x: Tensor) -> Tensor:
    """Map −p < x < p to 0 ≤ x < p."""
    if x.is_meta:
        return x
    return torch.where(x < 0, x + P, x)


def to_signed(x: Tensor) -> Tensor:
    """The representative between −p/2 and p/2."""
    return torch.where(x > P // 2, x - P, x)


def fold(x: Tensor) -> Tensor:
    """Reduce 0 ≤ x < 2^63 to 0 ≤ x < p."""
    if x.is_meta:
        return x
    if (loops := _loops(x)) is not None:
        return _compute_one(loops.fold_all, x)
    x = (x & P) + (x >> BITS)
    return torch.where(x >= P, x - P, x)


def _broadcast(x: Tensor, y: Tensor) -> Tensor:
    """A tensor with the shape of x + y."""
    return x if x.shape == y.shape else x.expand(torch.broadcast_shapes(x.shape, y.shape))


def _loops(*tensors: Tensor) -> Any:
    """The same in one pass over large tensors, where numba is installed: several times as fast."""
    if max(x.numel() for x in tensors) < COMPILED or not has_numba():
        return None
    if any(x.device.type != "cpu" for x in tensors):
        return None
    from . import prime_loops

    return prime_loops


def _compute_one(loop: Any, x: Tensor, *options: int) -> Tensor:
    out = np.empty(x.numel(), np.uint64)
    loop(x.contiguous().reshape(-1).numpy().view(np.uint64), *map(np.uint64, options), out)
    return torch.from_numpy(out.view(np.int64)).reshape(x.shape)


def _compute_both(name: str, x: Tensor, y: Tensor) -> Tensor | None:
    if (loops := _loops(x, y)) is None:
        return None
    # torch.broadcast_shapes takes longer than the loop for some thousand numbers
    shape = x.shape if x.shape == y.shape else torch.Size(np.broadcast_shapes(x.shape, y.shape))
    is_number = not any(y.stride()) and y.numel() > 0  # one for all
    factors = y.flatten()[:1] if is_number else y.expand(shape).contiguous()
    out = np.empty(math.prod(shape), np.uint64)
    words = (t.reshape(-1).numpy().view(np.uint64) for t in (x.expand(shape).contiguous(), factors))
    getattr(loops, name)(*words, out)
    return torch.from_numpy(out.view(np.int64)).reshape(shape)


def add(x: Tensor, y: Tensor) -> Tensor:
    if x.is_meta:
        return _broadcast(x, y)
    return fold(x + y) if (out := _compute_both("add", x, y)) is None else out


def sub(x: Tensor, y: Tensor) -> Tensor:
    if x.is_meta:
        return _broadcast(x, y)
    return fold(x + (P - y)) if (out := _compute_both("sub", x, y)) is None else out


def mul(x: Tensor, y: Tensor) -> Tensor:
    """x·y in halves of 31 and 30 bits; 2^62 ≡ 2, and the upper part of the middle product is folded."""
    if x.is_meta:
        return _broadcast(x, y)
    if (out := _compute_both("mul", x, y)) is not None:
        return out
    (xh, xl), (yh, yl) = ((t >> _HALF, t & _LOW) for t in (x, y))
    middle = xh * yl + xl * yh  # < 2^62
    return fold(fold(xl * yl) + ((middle & _TOP) << _HALF) + (middle >> 30) + 2 * (xh * yh))


def total(x: Tensor, dim: int) -> Tensor:
    """The sum along a dimension; up to 2^31 of the 32-bit halves add without overflow."""
    if x.is_meta:
        return x.sum(dim)
    low, high = (x & 0xFFFFFFFF).sum(dim), (x >> 32).sum(dim)
    return add(fold(low), rotate(fold(high), 32))


def rotate(x: Tensor, by: int) -> Tensor:
    """x · 2^by: a rotation of the 61 bits."""
    if x.is_meta:
        return x
    by %= BITS
    if (loops := _loops(x)) is not None:
        return _compute_one(loops.rotate, x, by)
    return fold(((x & ((1 << (BITS - by)) - 1)) << by) + (x >> (BITS - by)))


def _multiply_matrices(loops: Any, x: Tensor, y: Tensor) -> Tensor:
    """x @ y in one pass; the loops run over columns, so there should be more of them than rows."""
    if y.shape[-1] < x.shape[-2]:
        return _multiply_matrices(loops, y.mT, x.mT).mT
    batch = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    words = (
        t.expand(*batch, *t.shape[-2:]).contiguous().reshape(-1, *t.shape[-2:]).numpy().view(np.uint64)
        for t in (x, y)
    )
    out = np.empty((math.prod(batch), x.shape[-2], y.shape[-1]), np.uint64)
    loops.matmul(*words, out)
    return torch.from_numpy(out.view(np.int64)).reshape(*batch, *out.shape[1:])


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """x @ y; without compiled loops Σ 2^(21(i+j)) · x_i y_j over limbs, exact in float64, long sums split."""
    if x.is_meta:
        return torch.matmul(x, y)
    if (loops := _loops(x, y)) is not None and x.dim() > 1 < y.dim():
        return _multiply_matrices(loops, x, y)
    if x.shape[-1] > LONGEST:
        if y.dim() == 1:
            return matmul(x, y[:, None])[..., 0]
        return total(
            torch.stack([matmul(a, b) for a, b in zip(x.split(LONGEST, -1), y.split(LONGEST, -2))]), 0
        )
    mask = (1 << LIMB) - 1
    xs, ys = ([((t >> (LIMB * i)) & mask).double() for i in range(LIMBS)] for t in (x, y))
    levels = []
    for place in range(2 * LIMBS - 1):
        pairs = [torch.matmul(xs[i], ys[place - i]).long() for i in range(LIMBS) if 0 <= place - i < LIMBS]
        levels.append(rotate(fold(torch.stack(pairs).sum(0)), LIMB * place))
    return functools.reduce(add, levels)


def bilinear(op: Bilinear, x: Tensor, y: Tensor) -> Tensor:
    """x ∘ y modulo p."""
    if op.name == "mul":
        return mul(x, y)
    if op.name == "matmul":
        return matmul(x, y)
    assert op.options is not None
    return conv2d(x, y, *op.options, matmul)


def from_words(words: Tensor) -> Tensor:
    """Map uniform 64-bit words to elements that are uniform up to 2^-61: the upper 61 bits, with p as 0."""
    if (loops := _loops(words)) is not None:
        return _compute_one(loops.from_words, words)
    x = (words >> 3) & P
    return torch.where(x == P, 0, x)


def _words(x: Tensor) -> np.ndarray:
    return x.contiguous().numpy().view(np.uint64)


def weigh_errors(values: Tensor, tags: Tensor, key: Tensor, weights: Tensor) -> Tensor:
    """Σ weight · (tag − key · value), a number."""
    values, tags = values.flatten(), tags.flatten()
    if (loops := _loops(values, tags, weights)) is not None:
        found = loops.weigh_errors(_words(values), _words(tags), np.uint64(int(key)), _words(weights))
        return torch.tensor(int(found))
    errors = sub(tags, mul(values, key.expand_as(values)))
    return total(mul(errors.cpu(), weights), 0)


def finish_sign(
    x: Tensor, beta: Tensor, beta_r: Tensor, c: Tensor, row: np.ndarray, one: Tensor
) -> tuple[Tensor, Tensor]:
    """A comparison's [t + (1 − 2t)·β] and [t·x + (1 − 2t)·(c·β − βr)], from t in a row of bits.

    Tagged tensors, [2, …]; `one` has this party's shares of 1.
    """
    if (loops := _loops(x)) is not None:
        bit, positive = np.empty((2, c.numel()), np.uint64), np.empty((2, c.numel()), np.uint64)
        parts = (_words(t).reshape(2, -1) for t in (x, beta, beta_r))
        loops.finish_sign(*parts, _words(c).reshape(-1), row, _words(one), bit, positive)
        first, second = (torch.from_numpy(t.view(np.int64)).reshape(x.shape) for t in (bit, positive))
        return first, second
    bits = np.unpackbits(row, count=c.numel(), bitorder="little").reshape(tuple(c.shape))
    t = torch.from_numpy(bits).bool().to(c.device).expand(2, *c.shape)
    product = sub(mul(beta, c.expand_as(beta)), beta_r)
    ones = one.reshape(2, *[1] * c.dim()).expand_as(beta)
    return torch.where(t, sub(ones, beta), beta), torch.where(t, sub(x, product), product)


def _are_outside(x: Tensor) -> bool:
    if x.device.type != "cpu":
        return bool(((x < 0) | (x >= P)).any())
    return int(x.numpy().view(np.uint64).max()) >= P  # as unsigned words, negative numbers are larger


def check_elements(x: Tensor, who: str) -> Tensor:
    """Return numbers that another party sent, after checking that they are field elements."""
    if x.dtype is not torch.int64 or (x.numel() and _are_outside(x)):
        raise ProtocolError(f"{who} sent numbers outside 0 … 2^61 − 2, which are not elements of the field.")
    return x
