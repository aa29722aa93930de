"""The sign of a shared number, bit by bit: the readable reference for `compare.sign`. And local truncation, to
measure how often it is wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.mpc.compare import SIGN, MaskedBits, MaskedSigns, MaskedValues, _bit
from tacit.mpc.context import RingContext
from tacit.mpc.dealer import Parts, Request, Values
from tacit.mpc.ring import pack, unpack


@dataclass(frozen=True)
class Bits(Request):
    """For `by_bits`: all bits of r, and an AND triple for each."""

    shape: tuple[int, ...]

    def uniform(self) -> Parts:
        size = (math.prod(self.shape) + 7) // 8
        return {
            "r": (self.shape, torch.int64),
            "β bits": ((size,), torch.uint8),
            "a": ((SIGN, size), torch.uint8),
            "b": ((SIGN, size), torch.uint8),
        }

    def derived(self) -> Parts:
        size = (math.prod(self.shape) + 7) // 8
        return {
            "bits": ((SIGN + 1, size), torch.uint8),
            "β": (self.shape, torch.int64),
            "ab": ((SIGN, size), torch.uint8),
        }

    def derive(self, uniform: Values, masks: Values) -> Values:
        r = uniform["r"].flatten()
        return {
            "bits": torch.stack([pack(_bit(r, i)) for i in range(SIGN + 1)]),
            "β": unpack(uniform["β bits"], len(r)).long(),
            "ab": uniform["a"] & uniform["b"],
        }


async def by_bits(ctx: RingContext, x: Tensor) -> Tensor:
    """[x ≥ 0] in 50 rounds: the reference for `sign`, with single bits from the top down."""
    one = 1 if ctx.first else 0
    t = await ctx.stock.take(Bits(tuple(x.shape)))
    (c,) = await ctx.open(MaskedValues, x + t["r"])
    flat, bits = c.flatten(), t["bits"]
    lt, eq = torch.zeros_like(bits[0]), torch.full_like(bits[0], 255 * one)
    for i in reversed(range(SIGN)):
        public = pack(_bit(flat, i))
        d, e = await ctx.open(MaskedBits, eq ^ t["a"][i], bits[i] ^ t["b"][i])
        # equal so far, and r has a 1 here
        both = t["ab"][i] ^ d & t["b"][i] ^ e & t["a"][i] ^ (d & e if one else 0)
        lt = lt ^ both & ~public  # where c has a 0: c < r
        eq = both & public ^ (eq ^ both) & ~public
    b = bits[SIGN] ^ lt ^ (pack(_bit(flat, SIGN)) ^ 255 if one else 0)
    (opened,) = await ctx.open(MaskedSigns, b ^ t["β bits"])
    flip = unpack(opened, x.numel()).reshape(x.shape).bool()
    return torch.where(flip, one - t["β"], t["β"])


def truncate_locally(v: Tensor, rank: int, bits: int) -> Tensor:
    """Party 0: x_0 >> f;  party 1: −((−x_1) >> f). Wrong with probability |v| / 2^64."""
    return v >> bits if rank == 0 else -((-v) >> bits)
