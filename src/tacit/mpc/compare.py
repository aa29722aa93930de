"""The sign of a shared number, and what follows from it: ReLU, maximum, argmax.

    x ≥ 0 for |x| < 2^48, by opening x under a mask whose bits are shared (edaBits: Escudero et al., CRYPTO 2020) and comparing public c with shared r:

    1. the dealer gives [r]; for each of the 16 lowest 3-bit digits r_d the thermometer ⟨T_d⟩ = ⟨2^(r_d) − 1⟩ (bit j: r_d > j); ⟨bit 48 of r⟩; a random
       bit ⟨β⟩ also as [β] and [β·r]; and AND triples.       [·] is shared by addition, ⟨·⟩ by exclusive or
    2. open c = x + r, which is uniform
    3. digit by digit, without a word: ⟨lt_d⟩ = bit c_d of ⟨T_d⟩ (is c_d < r_d?), ⟨eq_d⟩ = that ⊕ bit c_d − 1 of ⟨T_d⟩
    4. pairs of digits, four times over: lt = lt_hi ⊕ eq_hi·lt_lo, eq = eq_hi·eq_lo          (one round each, bits packed in bytes)
    5. x = c − r, so its bit 48 is ⟨bit 48 of r⟩ ⊕ bit 48 of c ⊕ ⟨lt⟩ (the borrow), and b = [x ≥ 0] its opposite
    6. open t = b ⊕ β, one random bit.  [b] = t + (1 − 2t)[β]
    7. [b·x] is for free, since x = c − r: u = c[β] − [β·r] is [β·x], and b·x = x − u where t = 1, u where t = 0

    party 0 |<-- MaskedValues(c) --->| party 1      6 rounds, 13.8 bytes a value and party; the dealer sends the last party 35.9
            |<-- MaskedBits ×4 ----->|
            |<-- MaskedSigns(t) ---->|

Each digit's table costs 8 bits and no round where two levels of a tree of single bits would cost more of
both; function secret sharing would take one round, and about 1,000 bytes of key a value. `by_bits` is the
readable reference, bit by bit; tests hold both to the sign.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..parties.message import Message
from .beaver import product
from .dealer import Parts, Request
from .ring import pack, shift, unpack
from .seat import Seat

DIGITS, DIGIT = 16, 3
SIGN = DIGITS * DIGIT  # the bit that tells the sign
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

    def free(self) -> Parts:
        size = (self.count + 7) // 8
        ands: Parts = {
            f"{name}{pairs}": ((pairs, size), torch.uint8) for pairs in LEVELS for name in ("a", "b", "g")
        }
        return {"r": (self.shape, torch.int64), "β bits": ((size,), torch.uint8), **ands}

    def fixed(self) -> Parts:
        size = (self.count + 7) // 8
        ands: Parts = {
            f"{name}{pairs}": ((pairs, size), torch.uint8) for pairs in LEVELS for name in ("ab", "ag")
        }
        words: Parts = {name: (self.shape, torch.int64) for name in ("β", "βr")}
        return {"T": ((DIGITS, self.count), torch.uint8), "top": ((size,), torch.uint8), **words, **ands}

    def make(self, free: dict[str, Tensor], masks: dict[str, Tensor]) -> dict[str, Tensor]:
        r = free["r"].flatten()
        beta = unpack(free["β bits"], self.count).long()
        thermometer = (torch.ones((), dtype=torch.uint8, device=r.device) << digits(r)) - 1
        made = {"T": thermometer, "top": pack(_bit(r, SIGN)), "β": beta, "βr": beta * r}
        for pairs in LEVELS:
            made |= {f"a{x}{pairs}": free[f"a{pairs}"] & free[f"{x}{pairs}"] for x in ("b", "g")}
        return made


def digits(r: Tensor) -> Tensor:
    """The 3-bit digits of each word, lowest first: [16, count]."""
    made = torch.empty((DIGITS, len(r)), dtype=torch.uint8, device=r.device)
    for d in range(DIGITS):
        made[d] = (r >> (DIGIT * d)) & 7
    return made


def _bit(words: Tensor, place: int) -> Tensor:
    return (shift(words, place) & 1).to(torch.uint8)


class Signed(NamedTuple):
    bit: Any  # [x ≥ 0], a whole number: 0 or 1 without fractional bits; a tensor, or tagged elements
    positive: Any  # [max(x, 0)]


async def sign(seat: Seat, x: Tensor) -> Signed:
    """[x ≥ 0] and [max(x, 0)]."""
    one = 1 if seat.first else 0
    t = await seat.stock.take(Comparison(tuple(x.shape)))  # 1
    (c,) = await seat.open(MaskedValues, x + t["r"])  # 2
    flat, count = c.flatten(), x.numel()
    at = digits(flat)  # 3
    less = (t["T"] >> at) & 1
    lt, eq = pack(less), pack((((t["T"] << 1) | one) >> at) & 1 ^ less)
    for pairs in LEVELS:  # 4
        a, b, g = t[f"a{pairs}"], t[f"b{pairs}"], t[f"g{pairs}"]
        hi, lo, low = eq[1::2], lt[0::2], eq[0::2]
        d, e, h = await seat.open(MaskedBits, hi ^ a, lo ^ b, low ^ g)
        lt = lt[1::2] ^ t[f"ab{pairs}"] ^ d & b ^ e & a ^ (d & e if one else 0)
        eq = t[f"ag{pairs}"] ^ d & g ^ h & a ^ (d & h if one else 0)
    b = t["top"] ^ lt[0] ^ (pack(_bit(flat, SIGN)) ^ 255 if one else 0)  # 5
    (opened,) = await seat.open(MaskedSigns, b ^ t["β bits"])  # 6
    told = unpack(opened, count).reshape(x.shape).bool()
    u = c * t["β"] - t["βr"]  # 7
    return Signed(torch.where(told, one - t["β"], t["β"]), torch.where(told, x - u, u))


async def maximum(seat: Seat, x: Tensor, y: Tensor) -> Tensor:
    """[max(x, y)] = y + max(x − y, 0)."""
    return y + (await sign(seat, x - y)).positive


async def largest(seat: Seat, x: Tensor) -> Tensor:
    """The maximum along the last dimension, by a knock-out of ⌈log₂ n⌉ rounds of comparisons."""
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        won = await maximum(seat, x[..., :half], x[..., half : 2 * half])
        x = torch.cat([won, x[..., 2 * half :]], -1)
    return x[..., 0]


async def argmax(seat: Seat, x: Tensor) -> Tensor:
    """[index of the maximum] along the last dimension, a whole number; the first one where several are
    equal.
    """
    place = seat.public(torch.arange(x.shape[-1], device=x.device), x).expand(x.shape)
    while x.shape[-1] > 1:
        pairs, odd = x.shape[-1] // 2, x.shape[-1] % 2
        (a, b), (i, j) = (
            (t[..., 0 : 2 * pairs : 2], t[..., 1 : 2 * pairs : 2]) for t in (x, place)
        )  # neighbours, so that the first stays first
        won = await sign(seat, a - b)
        last, last_place = x[..., -odd:] if odd else x[..., :0], place[..., -odd:] if odd else place[..., :0]
        x = torch.cat([b + won.positive, last], -1)
        place = torch.cat([j + await product(seat, won.bit, i - j), last_place], -1)
    return place[..., 0]


@dataclass(frozen=True)
class Bits(Request):
    """For `by_bits`: every bit of r, and an AND triple for each."""

    shape: tuple[int, ...]

    def free(self) -> Parts:
        size = (math.prod(self.shape) + 7) // 8
        return {
            "r": (self.shape, torch.int64),
            "β bits": ((size,), torch.uint8),
            "a": ((SIGN, size), torch.uint8),
            "b": ((SIGN, size), torch.uint8),
        }

    def fixed(self) -> Parts:
        size = (math.prod(self.shape) + 7) // 8
        return {
            "bits": ((SIGN + 1, size), torch.uint8),
            "β": (self.shape, torch.int64),
            "ab": ((SIGN, size), torch.uint8),
        }

    def make(self, free: dict[str, Tensor], masks: dict[str, Tensor]) -> dict[str, Tensor]:
        r = free["r"].flatten()
        return {
            "bits": torch.stack([pack(_bit(r, i)) for i in range(SIGN + 1)]),
            "β": unpack(free["β bits"], len(r)).long(),
            "ab": free["a"] & free["b"],
        }


async def by_bits(seat: Seat, x: Tensor) -> Tensor:
    """The reference for `sign`: the same comparison with single bits, from the top down. [x ≥ 0] in 50
    rounds.
    """
    one = 1 if seat.first else 0
    t = await seat.stock.take(Bits(tuple(x.shape)))
    (c,) = await seat.open(MaskedValues, x + t["r"])
    flat, bits = c.flatten(), t["bits"]
    lt, eq = torch.zeros_like(bits[0]), torch.full_like(bits[0], 255 * one)
    for i in reversed(range(SIGN)):
        public = pack(_bit(flat, i))
        d, e = await seat.open(MaskedBits, eq ^ t["a"][i], bits[i] ^ t["b"][i])
        both = (
            t["ab"][i] ^ d & t["b"][i] ^ e & t["a"][i] ^ (d & e if one else 0)
        )  # equal so far, and r has a 1 here
        lt = lt ^ both & ~public  # where c has a 0: c < r
        eq = both & public ^ (eq ^ both) & ~public
    b = bits[SIGN] ^ lt ^ (pack(_bit(flat, SIGN)) ^ 255 if one else 0)
    (opened,) = await seat.open(MaskedSigns, b ^ t["β bits"])
    told = unpack(opened, x.numel()).reshape(x.shape).bool()
    return torch.where(told, one - t["β"], t["β"])
