"""Truncation removes fractional bits: [v] with 2f of them → [v / 2^f] with f.

`truncate`, for any number of parties; after Escudero, Ghosh, Keller, Rachuri, Scholl: Improved Primitives for
MPC over Mixed Arithmetic-Binary Circuits, CRYPTO 2020, Section 5, with masks from a dealer:
1. the dealer gives [r], [R] = [r div 2^f] and [s] = [top bit of r], r uniform in 64 bits
2. open c = v + 2^62 + r, which is uniform
3. c wrapped around exactly where s = 1 and the top bit of c is 0, because 0 ≤ v + 2^62 < 2^63; so
   [v / 2^f] = (c div 2^f) − [R] + 2^(64−f) · (1 − top bit of c) · [s] − 2^(62−f)

error   less than one unit in the last place, unbiased, for |v| < 2^62
cost    one round, 8 bytes per value and party; the dealer sends 10 more to the last party (s matters modulo
        2^f only)

Not used here: each of two parties may shift its own share, without communication (Mohassel, Zhang: SecureML,
IEEE S&P 2017, Section 4.1). The result is wrong by 2^(64−f) with probability |v| / 2^64 per value: 2^-28 for
v = 2^36 (a product of 16), so one in 2,700 inferences of 100,000 values. With three parties about one value
in four is wrong, however small it is. Tests measure that probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..parties.message import Message
from .dealer import Parts, Request, Values
from .ring import ROOM, WORD, shift

if TYPE_CHECKING:
    from .context import RingContext


class MaskedProducts(
    Message, reveals="values under one-time masks, to take fractional bits off: uniform words"
):
    values: list[Tensor]


@dataclass(frozen=True)
class Truncation(Request):
    shape: tuple[int, ...]
    bits: int

    def uniform(self) -> Parts:
        return {"r": (self.shape, torch.int64)}

    def derived(self) -> Parts:
        return {
            "R": (self.shape, torch.int64),
            "s": (self.shape, torch.int16 if self.bits <= 16 else torch.int32),
        }

    def derive(self, uniform: Values, masks: Values) -> Values:
        return {"R": shift(uniform["r"], self.bits), "s": shift(uniform["r"], WORD - 1)}


async def truncate(ctx: RingContext, v: Tensor, bits: int | None = None) -> Tensor:
    """[v / 2^bits]; by default, bits is the number of fractional bits."""
    bits = ctx.fixed.fraction if bits is None else bits
    await ctx.expect(
        v, -(2.0 ** (ROOM - ctx.fixed.fraction)), 2.0 ** (ROOM - ctx.fixed.fraction), "a truncation"
    )
    t = await ctx.stock.take(Truncation(tuple(v.shape), bits))  # 1
    if v.is_meta:  # a dry run: nothing more is requested
        return torch.empty_like(v)
    (c,) = await ctx.open(MaskedProducts, t["r"].add_(v).add_(1 << ROOM if ctx.first else 0))  # 2
    # 3, in the memory of the masks
    share = t["s"].long().bitwise_left_shift_(WORD - bits).masked_fill_(c < 0, 0).sub_(t["R"])
    return share.add_(shift(c, bits)).sub_(1 << (ROOM - bits)) if ctx.first else share
