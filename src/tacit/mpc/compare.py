"""The sign of a shared number, and the index of the maximum.

x ≥ 0 for |x| < 2^48, by opening x under a mask whose bits are shared (edaBits: Escudero et al., CRYPTO 2020)
and comparing the public c with the shared r:

    1. the dealer gives [r]; for each of the 16 lowest 3-bit digits r_d the thermometer code ⟨T_d⟩ =
       ⟨2^(r_d) − 1⟩ (bit j: r_d > j); ⟨bit 48 of r⟩; a random bit ⟨β⟩ also as [β] and [β·r]; and AND triples.
       [·] is shared by addition, ⟨·⟩ by exclusive or. r_d > 7 is never true, so bit 7 of the 16 codes carries
       16 other bits: the products of the first level's triples, and bit 48 of r
    2. open c = x + r, which is uniform
    3. for each digit, locally: ⟨lt_d⟩ = bit c_d of ⟨T_d⟩ (is c_d < r_d?), ⟨eq_d⟩ = that ⊕ bit c_d − 1 of
       ⟨T_d⟩
    4. four times, for pairs of digits: lt = lt_hi ⊕ eq_hi·lt_lo, eq = eq_hi·eq_lo    (one round each, packed;
       nothing is below the lowest pair, so its eq is not computed)
    5. x = c − r, so its bit 48 is ⟨bit 48 of r⟩ ⊕ bit 48 of c ⊕ ⟨lt⟩ (the borrow), and b = [x ≥ 0] its
       opposite
    6. open t = b ⊕ β, one random bit.  [b] = t + (1 − 2t)[β]
    7. [b·x] is local, since x = c − r: u = c[β] − [β·r] is [β·x], and b·x = x − u where t = 1, u where t = 0

    party 0 |<-- MaskedValues(c) --->| party 1      6 rounds, 13.25 bytes per value and party;
            |<-- MaskedBits ×4 ----->|              the dealer sends 33.4 to the last party
            |<-- MaskedSigns(t) ---->|

A digit's table takes 8 bits and no round, less than two levels of a tree of single bits. Function secret
sharing would take one round, and about 1,000 bytes of key per value. `tests/mpc/by_bits.py` is the readable
reference, bit by bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..parties.message import Message
from .beaver import product
from .dealer import Parts, Request, Values
from .ring import pack, shift, unpack

if TYPE_CHECKING:
    from .context import RingContext

DIGITS, DIGIT = 16, 3
SIGN = DIGITS * DIGIT  # the number of the sign bit
LEVELS = (8, 4, 2, 1)  # pairs of digits left at each level of the tree


class MaskedValues(Message, reveals="values to compare under one-time masks: uniform words"):
    values: list[Tensor]


class MaskedBits(Message, reveals="bits of a comparison under one-time masks: uniform bits"):
    values: list[Tensor]


class MaskedSigns(Message, reveals="the outcomes of comparisons, each under a one-time random bit"):
    values: list[Tensor]


@dataclass(frozen=True)
class Comparison(Request):
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def uniform(self) -> Parts:
        size = (self.count + 7) // 8
        ands: Parts = {
            f"{name}{pairs}": ((pairs, size), torch.uint8) for pairs in LEVELS for name in ("a", "b")
        }
        ands |= {f"g{pairs}": ((pairs - 1, size), torch.uint8) for pairs in LEVELS[:-1]}
        return {"r": (self.shape, torch.int64), "β bits": ((size,), torch.uint8), **ands}

    def derived(self) -> Parts:
        size = (self.count + 7) // 8
        ands: Parts = {f"ab{pairs}": ((pairs, size), torch.uint8) for pairs in LEVELS[1:]}
        ands |= {f"ag{pairs}": ((pairs - 1, size), torch.uint8) for pairs in LEVELS[1:-1]}
        words: Parts = {name: (self.shape, torch.int64) for name in ("β", "βr")}
        return {"T": ((DIGITS, self.count), torch.uint8), **words, **ands}

    def derive(self, uniform: Values, masks: Values) -> Values:
        r = uniform["r"].flatten()
        beta = unpack(uniform["β bits"], self.count).long()
        thermometer = (torch.ones((), dtype=torch.uint8, device=r.device) << split_digits(r)) - 1
        parts = {"β": beta, "βr": beta * r}
        for pairs in LEVELS:
            a = uniform[f"a{pairs}"]
            parts[f"ab{pairs}"] = a & uniform[f"b{pairs}"]
            if pairs > 1:
                parts[f"ag{pairs}"] = a[1:] & uniform[f"g{pairs}"]
        top = pack(_bit(r, SIGN)).unsqueeze(0)
        spare = torch.cat([parts.pop(f"ab{LEVELS[0]}"), parts.pop(f"ag{LEVELS[0]}"), top])
        parts["T"] = thermometer | unpack(spare, self.count) << 7
        return parts


def split_digits(r: Tensor) -> Tensor:
    """The 3-bit digits of each word, lowest first: [16, count]."""
    digits = torch.empty((DIGITS, len(r)), dtype=torch.uint8, device=r.device)
    for d in range(DIGITS):
        digits[d] = (r >> (DIGIT * d)) & 7
    return digits


def _bit(words: Tensor, place: int) -> Tensor:
    return (shift(words, place) & 1).to(torch.uint8)


class Sign(NamedTuple):
    bit: Any  # [x ≥ 0] as 0 or 1, without fractional bits; a Tensor or a TaggedShare
    positive: Any  # [max(x, 0)]


async def sign(ctx: RingContext, x: Tensor) -> Sign:
    """[x ≥ 0] and [max(x, 0)]."""
    one = 1 if ctx.first else 0
    t = await ctx.stock.take(Comparison(tuple(x.shape)))  # 1
    if x.is_meta:  # a dry run: nothing more is requested
        return Sign(torch.empty_like(x), torch.empty_like(x))
    (c,) = await ctx.open(MaskedValues, x + t["r"])  # 2
    flat, count = c.flatten(), x.numel()
    at, T = split_digits(flat), t["T"] & 127  # 3
    spare = pack(t["T"] >> 7)
    t |= {f"ab{LEVELS[0]}": spare[: LEVELS[0]], f"ag{LEVELS[0]}": spare[LEVELS[0] : -1]}
    less = (T >> at) & 1
    lt, eq = pack(less), pack((((T << 1) | one) >> at) & 1 ^ less)[1:]  # eq: from the second digit on
    for pairs in LEVELS:  # 4
        a, b, hi, lo = t[f"a{pairs}"], t[f"b{pairs}"], eq[0::2], lt[0::2]
        if pairs > 1:
            g, low = t[f"g{pairs}"], eq[1::2]
            d, e, h = await ctx.open(MaskedBits, hi ^ a, lo ^ b, low ^ g)
            eq = t[f"ag{pairs}"] ^ d[1:] & g ^ h & a[1:] ^ (d[1:] & h if one else 0)
        else:
            d, e = await ctx.open(MaskedBits, hi ^ a, lo ^ b)
        lt = lt[1::2] ^ t[f"ab{pairs}"] ^ d & b ^ e & a ^ (d & e if one else 0)
    b = spare[-1] ^ lt[0] ^ (pack(_bit(flat, SIGN)) ^ 255 if one else 0)  # 5
    (opened,) = await ctx.open(MaskedSigns, b ^ t["β bits"])  # 6
    flip = unpack(opened, count).reshape(x.shape).bool()
    u = c * t["β"] - t["βr"]  # 7
    return Sign(torch.where(flip, one - t["β"], t["β"]), torch.where(flip, x - u, u))


async def argmax(ctx: RingContext, x: Tensor) -> Tensor:
    """[index of the maximum] along the last dimension; the first one where several are equal."""
    index = ctx.public(torch.arange(x.shape[-1], device=x.device), x).expand(x.shape)
    while x.shape[-1] > 1:
        pairs = x.shape[-1] // 2
        # neighbors, so that of equal values the first wins
        (a, b), (i, j) = ((t[..., 0 : 2 * pairs : 2], t[..., 1 : 2 * pairs : 2]) for t in (x, index))
        result = await sign(ctx, a - b)
        x = torch.cat([b + result.positive, x[..., 2 * pairs :]], -1)
        index = torch.cat([j + await product(ctx, result.bit, i - j), index[..., 2 * pairs :]], -1)
    return index[..., 0]
