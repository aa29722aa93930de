"""Bits with tags, for comparisons that a malicious party cannot change. Larraia, Orsini, Smart: Dishonest
Majority Multi-Party Computation for Binary Circuits, CRYPTO 2014 (shared bits whose tags are shared, too,
under one key), with everything dealt by a dealer.

A bit b is shared by exclusive or, as words whose exclusive or is b·Δ, under a key Δ of 64 bits of which each
party holds a share. The lowest bit of Δ is 1, so that the lowest bit of a word is the party's share of b: a
bit takes eight bytes with its tag. Sums, and products with public bits, are local.

x ≥ 0 for |x| < 2^48, modulo p, from the digits of a mask r, as in `compare.py`:

    1. the dealer gives [r]; for each of 21 digits r_d of 3 bits ⟨r_d > j⟩, j = 0 … 6 (of the highest, the one
       bit 60, j = 0 only); ⟨low⟩, ⟨high⟩: is r within 2^48 of the ends of 0 … p − 1; a random bit ⟨β⟩, also
       as [β] and [β·r]; and products ⟨a·b⟩, ⟨a·g⟩ of random bits.  [·] has tags under α, ⟨·⟩ under Δ
    2. open c = x + r
    3. ⟨lt_d⟩ = ⟨r_d > c_d⟩ and ⟨eq_d⟩ = ⟨r_d > c_d − 1⟩ ⊕ ⟨lt_d⟩, locally
    4. five times, for pairs of digits: lt = lt_hi ⊕ eq_hi·lt_lo, eq = eq_hi·eq_lo, opening one bit of each
       factor
    5. x < 0 exactly where c < r, unless x + r left 0 … p − 1: upwards only if r is within 2^48 of p and c
       below 2^48, where c < r although x ≥ 0; downwards only if r < 2^48 and c is within 2^48 of p, where
       c > r although x < 0
    6. open t = [x ≥ 0] ⊕ β.  [x ≥ 0] = t + (1 − 2t)[β];  [β·x] = c[β] − [β·r], so max(x, 0) is local

Before the check, c and bits under one-time masks are opened. A party that opens another bit than its word's
passes the check only if it guesses Δ, or if `fold_words` gives 0 by chance: together below 2^-60.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import prime
from .compare import Sign
from .dealer import Request, Values
from .elements import TaggedShare
from .ring import pack, unpack
from .tape import Parts, Tape

if TYPE_CHECKING:
    from .tagged_context import TaggedContext

DIGIT, DIGITS = 3, 21  # bits and number of a comparison's digits: 63 bits, for elements of 61
STEPS = (1 << DIGIT) - 1
ENTRIES = (DIGITS - 1) * STEPS + 1  # the highest digit is the one bit 60, so 0 is all that it may exceed
LEVELS = (10, 5, 3, 1, 1)  # pairs of digits at each level; an odd one stays as it is
NEAR = 1 << (prime.VALUE + 1)
RANDOM = 1 + sum(3 * pairs - 1 for pairs in LEVELS)  # β, and a, b, g of each level
ROWS = ENTRIES + 3 + sum(5 * pairs - 2 for pairs in LEVELS)  # tagged bits of a comparison
WORD = 8  # bytes
FOLD = 16  # parts that are added in one step of a fold


@dataclass(frozen=True)
class TaggedComparison(Request):
    """r uniform, β as a field element, β·r, and the tagged bits of step 1: low, high, β, the digits', and a,
    b, g, a·b, a·g of each level.
    """

    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def uniform(self) -> Parts:
        return {"r": (self.shape, torch.int64), "random": ((RANDOM, (self.count + 7) // 8), torch.uint8)}

    def derived(self) -> Parts:
        words: Parts = {name: (self.shape, torch.int64) for name in ("β", "βr")}
        return {**words, "bits": ((ROWS, self.count), torch.uint8)}

    def derive(self, uniform: Values, masks: Values) -> Values:
        r = uniform["r"].flatten()
        random = unpack(uniform["random"], self.count)
        steps = torch.arange(STEPS, device=r.device)[:, None]
        exceeds = (split_digits(r).unsqueeze(1) > steps).to(torch.uint8).flatten(0, 1)[:ENTRIES]
        near = torch.stack([r < NEAR, r >= prime.P - NEAR]).to(torch.uint8)
        rows, start = [near, random[:1], exceeds], 1
        for pairs in LEVELS:
            level = random[start : start + 3 * pairs - 1]
            start += len(level)
            a, b, g = level[:pairs], level[pairs : 2 * pairs], level[2 * pairs :]
            rows += [level, a & b, a[1:] & g]
        beta = random[0].long()
        shaped = beta.reshape(uniform["r"].shape)
        return {"β": shaped, "βr": shaped * uniform["r"], "bits": torch.cat(rows)}


def split_digits(x: Tensor) -> Tensor:
    """The 3-bit digits of each element, lowest first, in a new first dimension."""
    if x.is_meta:
        return x.new_empty((DIGITS, *x.shape))
    return torch.stack([(x >> (DIGIT * d)) & STEPS for d in range(DIGITS)])


def tag_bits(bits: Tensor, delta: Tensor) -> Tensor:
    """b·Δ for each bit, as eight bytes in a new last dimension."""
    return (-bits.long() & delta).unsqueeze(-1).view(torch.uint8)


def to_words(tagged: Tensor) -> Tensor:
    """The words of tagged bits."""
    return tagged.contiguous().view(torch.int64)[..., 0]


def draw_key_share(tape: Tape, rank: int) -> Tensor:
    """A party's share of Δ; the lowest bit of all of them together is 1."""
    return (tape.draw((1,)) & ~1 | int(rank == 0))[0]


class _Level(NamedTuple):
    """The dealt words of one level: masks of the factors, and their products."""

    a: Tensor
    b: Tensor
    g: Tensor
    ab: Tensor
    ag: Tensor


def _levels(words: Tensor) -> list[_Level]:
    sizes = [size for n in LEVELS for size in (n, n, n - 1, n, n - 1)]
    parts = words.split(sizes)
    return [_Level(*parts[5 * k : 5 * k + 5]) for k in range(len(LEVELS))]


async def sign(ctx: TaggedContext, x: TaggedShare) -> Sign:
    """[x ≥ 0] as 0 or 1, and [max(x, 0)], for |x| < 2^48."""
    t = await ctx.stock.take_comparison(TaggedComparison(tuple(x.shape)))  # 1
    if x.data.is_meta:  # a dry run: nothing more is requested
        return Sign(TaggedShare(torch.empty_like(x.data)), TaggedShare(torch.empty_like(x.data)))
    (c,) = await ctx.open(x + t.r)  # 2
    flat, words, one = c.flatten(), t.words, ctx.stock.delta.to(x.device)
    at = split_digits(flat)  # 3
    table = words.new_zeros((DIGITS * STEPS, len(flat)))
    table[:ENTRIES] = words[3 : 3 + ENTRIES]
    table = table.reshape(DIGITS, STEPS, -1)
    lt = table.gather(1, at.clamp(max=STEPS - 1).unsqueeze(1))[:, 0].masked_fill_(at == STEPS, 0)
    above = table.gather(1, (at - 1).clamp_(min=0).unsqueeze(1))[:, 0]
    eq = torch.where(at == 0, one, above).bitwise_xor_(lt)[1:]  # from the second digit on
    for m in _levels(words[3 + ENTRIES :]):  # 4
        pairs = len(m.a)
        hi, lo, low = eq[0::2][:pairs], lt[0::2][:pairs], eq[1::2][: pairs - 1]
        d, e, h = (await ctx.open_bits(torch.cat([hi ^ m.a, lo ^ m.b, low ^ m.g]))).split(
            [pairs, pairs, pairs - 1]
        )
        odd_lt, odd_eq = lt[2 * pairs :], eq[2 * pairs - 1 :]
        lt = torch.cat([lt[1::2][:pairs] ^ m.ab ^ (d & m.b) ^ (e & m.a) ^ (d & e & one), odd_lt])
        both = m.ag ^ (d[1:] & m.g) ^ (h & m.a[1:]) ^ (d[1:] & h & one)
        eq = torch.cat([both, odd_eq])
    low, high, beta = words[:3]
    negative = lt[0] ^ (high & -(flat < NEAR).long()) ^ (low & -(flat >= prime.P - NEAR).long())  # 5
    flip = (await ctx.open_bits((negative ^ one ^ beta)[None]))[0].reshape(c.shape)  # 6
    product = t.beta * c - t.beta_r
    positive = torch.where((flip != 0).expand(2, *c.shape), (x - product).data, product.data)
    opposite = ctx.public(1, x) - t.beta
    bit = torch.where((flip != 0).expand(2, *c.shape), opposite.data, t.beta.data)
    return Sign(TaggedShare(bit), TaggedShare(positive))


def pack_bits(words: Tensor) -> Tensor:
    """The shares of the bits, eight to a byte."""
    return pack((words & 1).to(torch.uint8))


def unpack_bits(bits: Tensor, count: int) -> Tensor:
    """Public bits as words of 64 equal bits."""
    return -unpack(bits, count).long()


def fold_words(words: np.ndarray, tape: Tape) -> int:
    """A random linear function of words over GF(2^64), to one: sixteen parts are added, each but the first
    times a random number, until one word is left.

    Words that are not all 0 become 0 with probability 2^-64 at each step: of 2^28 words, below 2^-61.
    """
    words = np.concatenate([words, np.zeros(max(0, 1 - len(words)), np.uint64)])
    while len(words) > 1:
        size = -(-len(words) // FOLD)
        padded = np.zeros(FOLD * size, np.uint64)
        padded[: len(words)] = words
        parts = padded.reshape(FOLD, size)
        words = parts[0].copy()
        for part, factor in zip(parts[1:], tape.draw((FOLD - 1,)).numpy().view(np.uint64)):
            _add_product(words, part, int(factor))
    return int(words[0])


def _add_product(total: np.ndarray, words: np.ndarray, factor: int) -> None:
    """Add factor·w to each word, in GF(2^64) = GF(2)[x] / (x^64 + x^4 + x^3 + x + 1), byte by byte of w."""
    powers = []
    for _ in range(64):
        powers.append(factor)
        factor = (factor << 1 ^ (factor >> 63) * 0x1B) & (1 << 64) - 1
    places = np.ascontiguousarray(words).view(np.uint8).reshape(-1, WORD)
    for byte in range(WORD):
        table = np.zeros(256, np.uint64)
        for k in range(8):
            table[1 << k : 2 << k] = table[: 1 << k] ^ np.uint64(powers[8 * byte + k])
        total ^= table[places[:, byte]]
