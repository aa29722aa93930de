"""Fixed-point numbers modulo 2^64: x ↦ round(x · 2^f), two's complement, in torch's int64.

    range   |x| ≤ 2^(46−f) and 2^(62−2f)        with f = 16: ±2^30 = ±1.07e9, checked at encoding
    error   ≤ 2^(−f−1)                          half a unit in the last place: 7.6e-6

The first bound: a comparison takes words below 2^48, and compares differences of two values. The second
bound: a product of two numbers has 2f fractional bits and must stay below 2^62 (`truncate.py`); this applies
to every product and every sum of products. An overflow gives a wrong result without an error. The range is
therefore checked at encoding, where the value is known, and in debug mode at every product.

Arithmetic on int64 is modulo 2^64 already. Only matmul on CUDA, which has none for int64, is done in limbs,
exactly: of bytes on the tensor cores (`crypto/gpu_kernels.py`), or of 16 bits in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..crypto import gpu_kernels
from ..errors import BadData
from ..parameters import check, whole

WORD = 64
# magnitude bits of an encoded value: two bits fewer than comparisons and truncations take, for differences
# and offsets
VALUE = 46
ROOM = 62  # magnitude bits of a product, for `truncate.py`
# a batch of more matrices is multiplied in float64: small ones, as of attention, do not fill a card alone
FEW_PRODUCTS = 4
LIMB, LIMBS = 16, 4  # for matmul in float64: a product of limbs has 32 bits, and 2^21 of them add exactly


@dataclass(frozen=True)
class FixedPoint:
    """A fixed-point format: more fractional bits mean less range."""

    where: ClassVar[str] = f"a ring of {WORD}"
    value_bits: ClassVar[int] = VALUE
    fraction: int = whole(
        16, least=12, most=18, doc="fractional bits; `functions.py` is accurate for this range"
    )

    @property
    def most(self) -> float:
        """The largest magnitude that can be encoded."""
        return 2.0 ** min(VALUE - self.fraction, ROOM - 2 * self.fraction)

    @property
    def ulp(self) -> float:
        """A unit in the last place."""
        return 2.0**-self.fraction

    def encode(self, values: Any, what: str = "a value", scale: int = 1) -> Tensor:
        """Encode real numbers with scale·f fractional bits; refuse what would overflow."""
        check(self)
        try:
            # np.array copies: pandas may return read-only arrays
            x = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
        except (TypeError, ValueError, RuntimeError):
            raise BadData(
                f"{what} is {type(values).__name__}, not numbers. Give a tensor, an array or a number."
            ) from None
        if x.dtype is torch.bool or x.is_complex():
            raise BadData(f"{what} holds {x.dtype}; only real numbers can be shared. Convert it first.")
        x = x.detach().double()
        outside = int((~(x.abs() <= self.most)).sum())  # NaN compares false, so it is outside
        if outside:
            raise BadData(
                f"{what}: {outside} of {x.numel()} numbers are not within ±{self.most:g}, the range of "
                f"{self.fraction} fractional bits in "
                f"{self.where}. Scale the values, or take fewer fractional bits."
            )
        return torch.round(x * 2.0 ** (scale * self.fraction)).long()

    def decode(self, ring: Tensor) -> Tensor:
        """Decode ring elements to float64; the division is exact up to 2^53."""
        return self.to_signed(ring).double() / 2.0**self.fraction

    def to_signed(self, ring: Tensor) -> Tensor:
        """Ring elements as signed integers: words in two's complement are."""
        return ring


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """x @ y modulo 2^64."""
    if not x.is_cuda:
        return torch.matmul(x, y)
    if gpu_kernels.supports(x) and x.dim() >= 2 and y.dim() == 2:
        return gpu_kernels.matmul(x.reshape(-1, x.shape[-1]), y).reshape(*x.shape[:-1], y.shape[-1])
    if gpu_kernels.supports(x) and x.dim() == y.dim() == 3 and len(x) == len(y) <= FEW_PRODUCTS:
        return torch.stack([gpu_kernels.matmul(a, b) for a, b in zip(x, y)])
    return _in_limbs(torch.matmul, x, y)


def conv2d(
    x: Tensor,
    w: Tensor,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    product: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """torch's conv2d modulo 2^64, as one product of patches and filters.

    `product` replaces the matrix product for another ring.
    """
    flat, rows, columns = patches(x, tuple(w.shape), stride, padding, dilation, groups)
    y = (product or matmul)(w.reshape(groups, len(w) // groups, -1), flat)
    return y.reshape(len(w), len(x), rows, columns).transpose(0, 1).contiguous()


def patches(
    x: Tensor,
    w: tuple[int, ...],
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> tuple[Tensor, int, int]:
    """Unfold x for filters of shape w (im2col).

    Returns (patches [groups, filter size, positions], rows of the result, columns of the result).
    """
    n, _, height, width = x.shape
    _, each, kh, kw = w
    (sh, sw), (ph, pw), (dh, dw) = stride, padding, dilation
    x = F.pad(x, (pw, pw, ph, ph))
    rows, columns = (
        (height + 2 * ph - dh * (kh - 1) - 1) // sh + 1,
        (width + 2 * pw - dw * (kw - 1) - 1) // sw + 1,
    )
    sn, sc, s0, s1 = x.stride()
    strided = x.as_strided(
        (n, groups, each, kh, kw, rows, columns), (sn, each * sc, sc, dh * s0, dw * s1, sh * s0, sw * s1)
    )
    # groups first, so that torch computes few large products
    return (
        strided.permute(1, 2, 3, 4, 0, 5, 6).reshape(groups, each * kh * kw, n * rows * columns),
        rows,
        columns,
    )


def _in_limbs(product: Any, x: Tensor, y: Tensor) -> Tensor:
    """Σ_{i+j<4} 2^(16(i+j)) · x_i y_j: float64 adds up to 2^21 products of 16-bit limbs exactly."""
    if x.shape[-1] >= 1 << (53 - 2 * LIMB):
        raise BadData(
            f"a product sums {x.shape[-1]} terms; 16-bit limbs add fewer than {1 << (53 - 2 * LIMB)} "
            "exactly. Split it."
        )
    mask = (1 << LIMB) - 1
    xs, ys = ([((t >> (LIMB * i)) & mask).double() for i in range(LIMBS)] for t in (x, y))
    total = torch.zeros((), dtype=torch.int64, device=x.device)
    for i in range(LIMBS):
        for j in range(LIMBS - i):
            total = total + (product(xs[i], ys[j]).long() << (LIMB * (i + j)))
    return total


def shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's >> is arithmetic, and here the sign is an ordinary bit."""
    return (x >> bits).bitwise_and_((1 << (WORD - bits)) - 1) if bits else x


def pack(bits: Tensor) -> Tensor:
    """Pack 0/1 bytes along the last dimension, eight to a byte, the first in the highest bit."""
    if bits.device.type == "cpu":
        return torch.from_numpy(np.packbits(bits.numpy(), axis=-1))
    padded = F.pad(bits, (0, -bits.shape[-1] % 8)).reshape(*bits.shape[:-1], -1, 8)
    return (padded * torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=bits.device)).sum(
        -1, dtype=torch.uint8
    )


def unpack(packed: Tensor, count: int) -> Tensor:
    """Unpack the first `count` bits along the last dimension, one byte each."""
    if packed.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(packed.numpy(), axis=-1, count=count))
    places = torch.arange(7, -1, -1, dtype=torch.uint8, device=packed.device)
    return ((packed.unsqueeze(-1) >> places) & 1).flatten(-2)[..., :count]
