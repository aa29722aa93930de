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
reference, bit by bit. On a GPU with Triton the local steps are kernels (`crypto/gpu_kernels.py`), and the
functions `compare_digits` to `finish` here are what they compute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..crypto import gpu_kernels
from ..parties.message import Message
from .beaver import product
from .dealer import Request, Values
from .ring import pack, shift, unpack
from .tape import Parts

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
        parts: Values = {}
        for pairs in LEVELS:
            a = uniform[f"a{pairs}"]
            parts[f"ab{pairs}"] = a & uniform[f"b{pairs}"]
            if pairs > 1:
                parts[f"ag{pairs}"] = a[1:] & uniform[f"g{pairs}"]
        top = pack(_bit(r, SIGN)).unsqueeze(0)
        spare = torch.cat([parts.pop(f"ab{LEVELS[0]}"), parts.pop(f"ag{LEVELS[0]}"), top])
        codes = make_codes(r, spare, uniform["β bits"])
        return {**dict(zip(("T", "β", "βr"), codes)), **parts}


def make_codes(r: Tensor, spare: Tensor, bits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The codes of r with the spare bits on top, β, and β·r."""
    if gpu_kernels.supports(r):
        return gpu_kernels.make_codes(r, spare, bits)
    thermometer = (torch.ones((), dtype=torch.uint8, device=r.device) << split_digits(r)) - 1
    beta = unpack(bits, len(r)).long()
    return thermometer | unpack(spare, len(r)) << 7, beta, beta * r


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
    t = await ctx.stock.take(Comparison(tuple(x.shape)))  # 1
    if x.is_meta:  # a dry run: nothing more is requested
        return Sign(torch.empty_like(x), torch.empty_like(x))
    (c,) = await ctx.open(MaskedValues, x + t["r"])  # 2
    c = c.contiguous()
    flat, first = c.flatten(), ctx.first
    lt, eq, spare, top = compare_digits(flat, t["T"], first)  # 3
    t |= {f"ab{LEVELS[0]}": spare[: LEVELS[0]], f"ag{LEVELS[0]}": spare[LEVELS[0] : -1]}
    for pairs in LEVELS:  # 4
        (opened,) = await ctx.open(MaskedBits, mask_pairs(lt, eq, t, pairs))
        lt, eq = combine_pairs(lt, opened, t, pairs, first)
    b = spare[-1] ^ lt[0] ^ (top ^ 255 if first else 0)  # 5
    (opened,) = await ctx.open(MaskedSigns, b ^ t["β bits"])  # 6
    return finish(x, c, t["β"], t["βr"], opened, first)  # 7


def compare_digits(c: Tensor, codes: Tensor, first: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Step 3, packed: ⟨lt⟩ of 16 digits, ⟨eq⟩ from the second one on, bits 7 of the codes, bit 48 of c."""
    if gpu_kernels.supports(c):
        return gpu_kernels.compare_digits(c, codes, first)
    at, T = split_digits(c), codes & 127
    less = (T >> at) & 1
    equal = (((T << 1) | int(first)) >> at) & 1 ^ less
    return pack(less), pack(equal)[1:], pack(codes >> 7), pack(_bit(c, SIGN))


def mask_pairs(lt: Tensor, eq: Tensor, t: Values, pairs: int) -> Tensor:
    """eq_hi, lt_lo and eq_lo under masks: the rows that a level opens."""
    a, b, g = t[f"a{pairs}"], t[f"b{pairs}"], t.get(f"g{pairs}")
    if gpu_kernels.supports(lt):
        return gpu_kernels.mask_pairs(lt, eq, a, b, g)
    out = torch.empty((3 * pairs - 1, a.shape[1]), dtype=torch.uint8, device=a.device)
    torch.bitwise_xor(eq[0::2], a, out=out[:pairs])
    torch.bitwise_xor(lt[0::2], b, out=out[pairs : 2 * pairs])
    if g is not None:
        torch.bitwise_xor(eq[1::2], g, out=out[2 * pairs :])
    return out


def combine_pairs(lt: Tensor, opened: Tensor, t: Values, pairs: int, first: bool) -> tuple[Tensor, Tensor]:
    """(lt, eq) of the pairs, from what was opened."""
    if gpu_kernels.supports(lt):
        return gpu_kernels.combine_pairs(lt, opened, t, pairs, first)
    a, b = t[f"a{pairs}"], t[f"b{pairs}"]
    d, e, h = opened[:pairs], opened[pairs : 2 * pairs], opened[2 * pairs :]
    equal = h
    if pairs > 1:
        g, upper = t[f"g{pairs}"], d[1:]
        equal = t[f"ag{pairs}"] ^ upper & g ^ h & a[1:] ^ (upper & h if first else 0)
    return lt[1::2] ^ t[f"ab{pairs}"] ^ d & b ^ e & a ^ (d & e if first else 0), equal


def finish(x: Tensor, c: Tensor, beta: Tensor, beta_r: Tensor, opened: Tensor, first: bool) -> Sign:
    """Steps 6 and 7, from the opened bits t."""
    if gpu_kernels.supports(c):
        return Sign(*gpu_kernels.finish_sign(x, c, beta, beta_r, opened, first))
    flip = unpack(opened, x.numel()).reshape(x.shape).bool()
    u = c * beta - beta_r
    return Sign(torch.where(flip, int(first) - beta, beta), torch.where(flip, x - u, u))


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
