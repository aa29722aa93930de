"""Truncation removes fractional bits: [v] with 2f of them → [v / 2^f] with f.

Two parties need not open v: each shifts its own share, and only whether the shares wrapped around is computed
together. After Rathee et al.: SiRnn, IEEE S&P 2021, and Huang, Lu, Hong, Ding: Cheetah, USENIX Security 2022,
Section 4.2 (truncation with known top bit), with the correlation from a dealer:
1. the dealer gives party 0 a random bit u, party 1 a random bit w, and both [u·w] modulo 2^f
2. v + 2^62 = x − y modulo 2^64, with x = v_0 + 2^62 at party 0 and y = −v_1 at party 1. It is below 2^63, so
   x − y wrapped around exactly where A = 1 − top bit of x and B = top bit of y are both 1
3. party 0 sends d = A ⊕ u, party 1 sends e = B ⊕ w: uniform bits.
   [A·B] = A·e + (−1)^(d⊕e) [u·w]_0 at party 0, and d·w·(2B − 1) + (−1)^(d⊕e) [u·w]_1 at party 1
4. z_0 = x div 2^f + 2^(64−f) [A·B]_0 − 2^(62−f);  z_1 = −(y div 2^f) + 2^(64−f) [A·B]_1

    party 0 |<-- MaskedProducts(1 bit) -->| party 1        one round, 1 bit per value and party;
                                                           the dealer sends 2 bytes to the last party (f ≤ 16)

More parties open v under a mask; after Escudero, Ghosh, Keller, Rachuri, Scholl: Improved Primitives for MPC
over Mixed Arithmetic-Binary Circuits, CRYPTO 2020, Section 5:
1. the dealer gives [r], [R] = [r div 2^f] and [s] = [top bit of r], r uniform in 64 bits
2. open c = v + 2^62 + r, which is uniform
3. c wrapped around exactly where s = 1 and the top bit of c is 0, because 0 ≤ v + 2^62 < 2^63; so
   [v / 2^f] = (c div 2^f) − [R] + 2^(64−f) · (1 − top bit of c) · [s] − 2^(62−f)

cost    one round, 8 bytes per value and party; the dealer sends 10 more to the last party (s matters modulo
        2^f only)

Both: less than one unit in the last place off, unbiased on uniform shares, for |v| < 2^62. Where v is rounded
to depends on the shares, or on the mask: who learns the result learns it with that rounding.

Not used here: each of two parties may shift its own share, and nothing more (Mohassel, Zhang: SecureML,
IEEE S&P 2017, Section 4.1). The result is wrong by 2^(64−f) with probability |v| / 2^64 per value: 2^-28 for
v = 2^36 (a product of 16), so one in 2,700 inferences of 100,000 values. With three parties about one value
in four is wrong, however small it is. Tests measure that probability.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..crypto import gpu_kernels
from ..parties.message import Message
from .dealer import Request, Values
from .ring import ROOM, WORD, pack, shift, unpack
from .tape import Parts

if TYPE_CHECKING:
    from .context import RingContext


class MaskedProducts(
    Message,
    reveals="values under one-time masks, or the top bits of their shares, to take fractional bits off: "
    "uniform words or bits",
):
    values: list[Tensor]


def residue(bits: int) -> torch.dtype:
    """A type in which numbers modulo 2^bits fit."""
    return torch.int16 if bits <= 16 else torch.int32 if bits <= 32 else torch.int64


@dataclass(frozen=True)
class Truncation(Request):
    shape: tuple[int, ...]
    bits: int

    def among(self, parties: int) -> Request:
        return CarryTruncation(self.shape, self.bits) if parties == 2 else self

    def uniform(self) -> Parts:
        return {"r": (self.shape, torch.int64)}

    def derived(self) -> Parts:
        return {"R": (self.shape, torch.int64), "s": (self.shape, residue(self.bits))}

    def derive(self, uniform: Values, masks: Values) -> Values:
        return {"R": shift(uniform["r"], self.bits), "s": shift(uniform["r"], WORD - 1)}


@dataclass(frozen=True)
class CarryTruncation(Request):
    """Of two parties: bits u of party 0 and w of party 1, and their product modulo 2^bits."""

    shape: tuple[int, ...]
    bits: int

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def holds(self, name: str, rank: int) -> bool:
        return rank == "uw".index(name)

    def uniform(self) -> Parts:
        size = (self.count + 7) // 8
        return {name: ((size,), torch.uint8) for name in "uw"}

    def derived(self) -> Parts:
        return {"uw": (self.shape, residue(self.bits))}

    def derive(self, uniform: Values, masks: Values) -> Values:
        return {"uw": unpack(uniform["u"] & uniform["w"], self.count)}


async def truncate(ctx: RingContext, v: Tensor, bits: int | None = None) -> Tensor:
    """[v / 2^bits]; by default, bits is the number of fractional bits."""
    bits = ctx.fixed.fraction if bits is None else bits
    await ctx.expect(
        v, -(2.0 ** (ROOM - ctx.fixed.fraction)), 2.0 ** (ROOM - ctx.fixed.fraction), "a truncation"
    )
    t = await ctx.stock.take(Truncation(tuple(v.shape), bits))
    if v.is_meta:  # a dry run: nothing more is requested
        return torch.empty_like(v)
    return await (_by_carry if "uw" in t else _by_opening)(ctx, v, bits, t)


async def _by_carry(ctx: RingContext, v: Tensor, bits: int, t: Values) -> Tensor:
    if gpu_kernels.supports(v):  # the same as below, in two kernels
        v, bit = v.contiguous(), t["u" if ctx.first else "w"]
        packed, masked = gpu_kernels.mask_tops(v, bit, ctx.first)
        (flips,) = await ctx.open(MaskedProducts, masked)
        return gpu_kernels.add_carry(v, t["uw"], packed, bit, masked, flips, bits, ctx.first)
    mine, bit = (v + (1 << ROOM), t["u"]) if ctx.first else (-v, t["w"])  # 2: x at party 0, y at party 1
    top = mine < 0
    packed = pack((~top if ctx.first else top).flatten().to(torch.uint8))
    masked = packed ^ bit
    (flips,) = await ctx.open(MaskedProducts, masked)  # 3: d ⊕ e, so theirs is flips ⊕ masked
    theirs, count = flips ^ masked, v.numel()
    flip = unpack(flips, count).reshape(v.shape).bool()
    carry = torch.where(flip, -t["uw"], t["uw"])
    product = unpack((packed if ctx.first else bit) & theirs, count).reshape(v.shape).to(carry.dtype)
    carry += product if ctx.first else torch.where(top, product, -product)
    share = carry.long().bitwise_left_shift_(WORD - bits)
    if ctx.first:  # 4
        return share.add_(shift(mine, bits)).sub_(1 << (ROOM - bits))
    return share.sub_(shift(mine, bits))


async def _by_opening(ctx: RingContext, v: Tensor, bits: int, t: Values) -> Tensor:
    (c,) = await ctx.open(MaskedProducts, t["r"].add_(v).add_(1 << ROOM if ctx.first else 0))  # 2
    # 3, in the memory of the masks
    share = t["s"].long().bitwise_left_shift_(WORD - bits).masked_fill_(c < 0, 0).sub_(t["R"])
    return share.add_(shift(c, bits)).sub_(1 << (ROOM - bits)) if ctx.first else share
