"""Comparisons in the checked mode: bits are shared without tags, and proved afterwards (`bit_proofs.py`).

x ≥ 0 for |x| < 2^48, modulo p, from the digits of a mask r, as in `compare.py`:

    1. the dealer gives [r]; for each of 21 digits r_d of 3 bits ⟨r_d > j⟩, j = 0 … 6 (of the highest, the one
       bit 60, j = 0 only); ⟨low⟩, ⟨high⟩: is r within 2^48 of the ends of 0 … p − 1; a random bit ⟨β⟩, also
       as [β] and [β·r]; and products ⟨a·b⟩, ⟨a·g⟩ of random bits.  [·] has tags under α, ⟨·⟩ has none
    2. open c = x + r
    3. ⟨lt_d⟩ = ⟨r_d > c_d⟩ and ⟨eq_d⟩ = ⟨r_d > c_d − 1⟩ ⊕ ⟨lt_d⟩, locally
    4. five times, for pairs of digits: lt = lt_hi ⊕ eq_hi·lt_lo, eq = eq_hi·eq_lo, opening one bit of each
       factor
    5. x < 0 exactly where c < r, unless x + r left 0 … p − 1: upwards only if r is within 2^48 of p and c
       below 2^48, where c < r although x ≥ 0; downwards only if r < 2^48 and c is within 2^48 of p, where
       c > r although x < 0
    6. open t = [x ≥ 0] ⊕ β.  [x ≥ 0] = t + (1 − 2t)[β];  [β·x] = c[β] − [β·r], so max(x, 0) is local

So a party sends 56 bits for a comparison, the *messages*. Each is a sum (exclusive or) of its dealt bits and
of products of a dealt bit with a public one, which follows from c or was opened before. `TERMS` lists them;
the first party adds public bits (`constants`). c, [β] and [β·r] have tags. That the messages are what TERMS
says is proved before anything is revealed.

Bits of many comparisons are packed in rows of bytes, the first comparison in the lowest bit.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..crypto import bits
from . import prime
from .compare import Sign
from .dealer import Request, Values
from .elements import TaggedShare
from .tape import Parts

if TYPE_CHECKING:
    from .tagged_context import TaggedContext

DIGIT, DIGITS = 3, 21  # bits and number of a comparison's digits: 63 bits, for elements of 61
STEPS = (1 << DIGIT) - 1
FULL = DIGITS - 1  # digits of three bits; the highest has one, bit 60
ENTRIES = FULL * STEPS + 1  # 0 is all that the highest digit may exceed
LEVELS = (10, 5, 3, 1, 1)  # pairs of digits at each level; an odd one stays as it is
NEAR = 1 << (prime.VALUE + 1)
FIRSTS = [sum(3 * n - 1 for n in LEVELS[:i]) for i in range(len(LEVELS))]  # of a level's opened bits
OPENED = sum(3 * n - 1 for n in LEVELS)  # bits that the levels open
MESSAGES = OPENED + 1  # with t
PIECE = 1 << 12  # bytes of a row that are computed at a time: in a core's cache

# rows of dealt bits: β, and a, b, g of each level (random); low, high, the digits', a·b and a·g of each level
BETA, MASKS, LOW, HIGH, TABLE = 0, 1, MESSAGES, MESSAGES + 1, MESSAGES + 2
PRODUCTS = TABLE + ENTRIES
DEALT = PRODUCTS + sum(2 * n - 1 for n in LEVELS)
# rows of public bits: is digit d of c equal to j; is it j or j + 1; is c near p, near 0; the opened bits
EQUAL, EITHER = 0, ENTRIES
NEAR_P = EITHER + FULL * STEPS
NEAR_0, BEFORE = NEAR_P + 1, NEAR_P + 2
PUBLIC = BEFORE + OPENED
ALWAYS = -1  # instead of a public row: the dealt bit is in the message whatever c is


@dataclass(frozen=True)
class TaggedComparison(Request):
    """r uniform, β as a field element, β·r, and the bits of step 1."""

    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes of a row of bits."""
        return (self.count + 7) // 8

    def uniform(self) -> Parts:
        return {"r": (self.shape, torch.int64), "random": ((MESSAGES, self.size), torch.uint8)}

    def derived(self) -> Parts:
        words: Parts = {name: (self.shape, torch.int64) for name in ("β", "βr")}
        return {**words, "bits": ((DEALT - MESSAGES, self.size), torch.uint8)}

    def derive(self, uniform: Values, masks: Values) -> Values:
        r = uniform["r"].flatten().cpu()
        random = uniform["random"].cpu().numpy()
        rows = np.empty((DEALT - MESSAGES, self.size), np.uint8)
        rows[0], rows[1] = pack(r < NEAR), pack(r >= prime.P - NEAR)
        compare_mask(transpose(r), rows[2 : 2 + ENTRIES])
        at = 2 + ENTRIES
        for first, pairs in zip(FIRSTS, LEVELS):
            a, b, g = np.split(random[MASKS + first : MASKS + first + 3 * pairs - 1], [pairs, 2 * pairs])
            np.bitwise_and(a, b, out=rows[at : at + pairs])
            np.bitwise_and(a[1:], g, out=rows[at + pairs : at + 2 * pairs - 1])
            at += 2 * pairs - 1
        beta = unpack(random[BETA], self.shape).to(uniform["r"].device)
        return {"β": beta, "βr": beta * uniform["r"], "bits": torch.from_numpy(rows).to(beta.device)}


def pack(values: Tensor) -> np.ndarray:
    """Bits in a row."""
    return np.packbits(values.flatten().cpu().numpy(), bitorder="little")


def unpack(row: np.ndarray, shape: tuple[int, ...]) -> Tensor:
    """A row's bits as words."""
    found = np.unpackbits(row, count=math.prod(shape), bitorder="little")
    return torch.from_numpy(found).long().reshape(shape)


def transpose(words: Tensor) -> np.ndarray:
    """Row k has bit k of each of the elements: [61, bytes]."""
    flat = words.flatten().cpu().numpy()
    padded = np.zeros((len(flat) + 7) // 8 * 8, np.int64)
    padded[: len(flat)] = flat
    return bits.transpose(padded.view(np.uint8).reshape(-1, 8))[: prime.BITS]


def compare_mask(planes: np.ndarray, out: np.ndarray) -> None:
    """Does each digit exceed 0, 1, … 6; from the bits."""
    b0, b1, b2 = (planes[k : 3 * FULL : 3] for k in range(3))
    digits = out[: FULL * STEPS].reshape(FULL, STEPS, -1)
    either, both = b0 | b1, b0 & b1
    digits[:, 0] = b2 | either
    digits[:, 1] = b2 | b1
    digits[:, 2] = b2 | both
    digits[:, 3] = b2
    digits[:, 4] = b2 & either
    digits[:, 5] = b2 & b1
    digits[:, 6] = b2 & both
    out[-1] = planes[-1]


def compare_public(planes: np.ndarray) -> np.ndarray:
    """Is each digit but the highest equal to 0, 1, … 7: [8, 20, bytes]."""
    b0, b1, b2 = (planes[k : 3 * FULL : 3] for k in range(3))
    values = np.empty((STEPS + 1, *b0.shape), np.uint8)
    high, low = (~b2, b2), (~b0, b0)
    for middle, bit in enumerate((~b1, b1)):
        for top in range(2):
            pair = high[top] & bit
            for bottom in range(2):
                np.bitwise_and(pair, low[bottom], out=values[4 * top + 2 * middle + bottom])
    return values


class PublicBits(NamedTuple):
    """What both know of a comparison's bits: c, which of them are near p and near 0, and what was opened."""

    planes: np.ndarray
    near: np.ndarray  # two rows
    opened: np.ndarray  # [MESSAGES, bytes], t in the last row

    def rows(self) -> np.ndarray:
        """The public rows of TERMS."""
        size = self.planes.shape[1]
        out = np.empty((PUBLIC, size), np.uint8)
        for begin in range(0, size, PIECE):
            piece = slice(begin, begin + PIECE)
            planes = self.planes[:, piece]
            equal = compare_public(planes)
            part = equal.shape[-1]
            digits = np.empty((FULL, STEPS, part), np.uint8)
            digits[:] = equal[:STEPS].swapaxes(0, 1)
            out[EQUAL : EQUAL + FULL * STEPS, piece] = digits.reshape(-1, part)
            digits ^= equal[1:].swapaxes(0, 1)
            out[EITHER : EITHER + FULL * STEPS, piece] = digits.reshape(-1, part)
        out[EITHER - 1] = ~self.planes[-1]
        out[NEAR_P:BEFORE] = self.near
        out[BEFORE:] = self.opened[:OPENED]
        return out


def look_up(planes: np.ndarray, dealt: np.ndarray, first: bool) -> tuple[np.ndarray, np.ndarray]:
    """Step 3: ⟨lt_d⟩ of 21 digits, ⟨eq_d⟩ from the second one on."""
    size = planes.shape[1]
    lt, eq = np.empty((DIGITS, size), np.uint8), np.empty((DIGITS - 1, size), np.uint8)
    for begin in range(0, size, PIECE):
        piece = slice(begin, begin + PIECE)
        equal = compare_public(planes[:, piece])
        table = dealt[TABLE : TABLE + FULL * STEPS, piece].reshape(FULL, STEPS, -1)
        less, above = equal[0] & table[:, 0], equal[1] & table[:, 0]
        for j in range(1, STEPS):
            less ^= equal[j] & table[:, j]
            above ^= equal[j + 1] & table[:, j]
        lt[:FULL, piece] = less
        above ^= less
        eq[: FULL - 1, piece] = above[1:]
        if first:
            eq[: FULL - 1, piece] ^= equal[0][1:]
    top, exceeds = planes[-1], dealt[TABLE + FULL * STEPS]
    lt[FULL] = exceeds & ~top
    eq[FULL - 1] = exceeds ^ (~top if first else 0)
    return lt, eq


class _Level(NamedTuple):
    """The dealt rows of one level: masks of the factors, and their products."""

    a: np.ndarray
    b: np.ndarray
    g: np.ndarray
    ab: np.ndarray
    ag: np.ndarray


def _level(number: int) -> list[slice]:
    """Where the rows of `_Level` are."""
    n, at = LEVELS[number], MASKS + FIRSTS[number]
    product = PRODUCTS + sum(2 * m - 1 for m in LEVELS[:number])
    ends = [at, at + n, at + 2 * n, at + 3 * n - 1]
    rows = [slice(*pair) for pair in itertools.pairwise(ends)]
    return [*rows, slice(product, product + n), slice(product + n, product + 2 * n - 1)]


def mask_pairs(lt: np.ndarray, eq: np.ndarray, dealt: np.ndarray, number: int) -> np.ndarray:
    """What a level opens: eq_hi ⊕ a, lt_lo ⊕ b, eq_lo ⊕ g."""
    pairs, first = LEVELS[number], MASKS + FIRSTS[number]
    out = dealt[first : first + 3 * pairs - 1].copy()
    out[:pairs] ^= eq[0::2][:pairs]
    out[pairs : 2 * pairs] ^= lt[0::2][:pairs]
    out[2 * pairs :] ^= eq[1::2][: pairs - 1]
    return out


def combine_pairs(
    lt: np.ndarray, eq: np.ndarray, opened: np.ndarray, dealt: np.ndarray, number: int, first: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(lt, eq) of the pairs and of an odd digit, from what was opened."""
    pairs, m = LEVELS[number], _Level(*(dealt[rows] for rows in _level(number)))
    d, e, h = opened[:pairs], opened[pairs : 2 * pairs], opened[2 * pairs :]
    less = lt[1::2][:pairs] ^ m.ab
    less ^= d & (m.b ^ e if first else m.b)
    less ^= e & m.a
    both = m.ag ^ (d[1:] & (m.g ^ h if first else m.g))
    both ^= h & m.a[1:]
    return np.concatenate([less, lt[2 * pairs :]]), np.concatenate([both, eq[2 * pairs - 1 :]])


def mask_outcome(lt: np.ndarray, near: np.ndarray, dealt: np.ndarray, first: bool) -> np.ndarray:
    """Steps 5 and 6: [x ≥ 0] ⊕ β, one row."""
    t = lt[0] ^ (near[0] & dealt[LOW]) ^ (near[1] & dealt[HIGH]) ^ dealt[BETA]
    return np.asarray(~t[None] if first else t[None])


def constants(public: PublicBits) -> np.ndarray:
    """The public part of the first party's messages: what it would send if all its dealt bits were 0."""
    none = np.zeros((DEALT, public.planes.shape[1]), np.uint8)
    lt, eq = look_up(public.planes, none, True)
    rows = []
    for number, (first, pairs) in enumerate(zip(FIRSTS, LEVELS)):
        rows.append(mask_pairs(lt, eq, none, number))
        lt, eq = combine_pairs(lt, eq, public.opened[first : first + 3 * pairs - 1], none, number, True)
    return np.concatenate([*rows, mask_outcome(lt, public.near, none, True)])


Term = tuple[int, int]  # (public row or ALWAYS, dealt row)


def list_terms() -> list[list[Term]]:
    """The terms of each message, by the steps above: what `look_up`, `mask_pairs` and `combine_pairs` add."""
    digits = [[(STEPS * d + j, TABLE + STEPS * d + j) for j in range(STEPS)] for d in range(FULL)]
    top = TABLE + FULL * STEPS
    lt: list[list[Term]] = [[(EQUAL + p, r) for p, r in digit] for digit in digits] + [
        [(EQUAL + FULL * STEPS, top)]
    ]
    eq: list[list[Term]] = [[(EITHER + p, r) for p, r in digit] for digit in digits[1:]] + [[(ALWAYS, top)]]
    messages: list[list[Term]] = []
    for number, pairs in enumerate(LEVELS):
        a, b, g, ab, ag = (range(rows.start, rows.stop) for rows in _level(number))
        d = BEFORE + FIRSTS[number]
        e, h = d + pairs, d + 2 * pairs
        messages += [eq[2 * k] + [(ALWAYS, a[k])] for k in range(pairs)]
        messages += [lt[2 * k] + [(ALWAYS, b[k])] for k in range(pairs)]
        messages += [eq[2 * k + 1] + [(ALWAYS, g[k])] for k in range(pairs - 1)]
        lt = [lt[2 * k + 1] + [(ALWAYS, ab[k]), (d + k, b[k]), (e + k, a[k])] for k in range(pairs)] + lt[
            2 * pairs :
        ]
        eq = [[(ALWAYS, ag[k]), (d + k + 1, g[k]), (h + k, a[k + 1])] for k in range(pairs - 1)] + eq[
            2 * pairs - 1 :
        ]
    return [*messages, lt[0] + [(NEAR_P, LOW), (NEAR_0, HIGH), (ALWAYS, BETA)]]


TERMS = list_terms()


@dataclass
class ComparedBits:
    """A comparison that waits for its proof."""

    public: PublicBits
    dealt: np.ndarray  # my rows
    received: dict[str, np.ndarray]  # the messages of each of the others


async def sign(ctx: TaggedContext, x: TaggedShare) -> Sign:
    """[x ≥ 0] as 0 or 1, and [max(x, 0)], for |x| < 2^48."""
    request = TaggedComparison(tuple(x.shape))
    await ctx.reserve_bits(request.size)
    t = await ctx.stock.take_comparison(request)  # 1
    if x.data.is_meta:  # a dry run: nothing more is requested
        return Sign(TaggedShare(torch.empty_like(x.data)), TaggedShare(torch.empty_like(x.data)))
    (c,) = await ctx.open(x + t.r)  # 2
    planes, near = transpose(c), np.stack([pack(c >= prime.P - NEAR), pack(c < NEAR)])
    dealt, first = t.bits, ctx.first
    opened = np.empty((MESSAGES, request.size), np.uint8)
    record = ComparedBits(PublicBits(planes, near, opened), dealt, {})
    lt, eq = look_up(planes, dealt, first)  # 3
    for number, (start, pairs) in enumerate(zip(FIRSTS, LEVELS)):  # 4
        rows = slice(start, start + 3 * pairs - 1)
        opened[rows] = await ctx.open_bits(mask_pairs(lt, eq, dealt, number), record, rows)
        lt, eq = combine_pairs(lt, eq, opened[rows], dealt, number, first)
    last = slice(OPENED, MESSAGES)
    opened[last] = await ctx.open_bits(mask_outcome(lt, near, dealt, first), record, last)  # 5, 6
    ctx.compared.append(record)
    one = ctx.public(1, x).data  # my shares of 1 and of its tag
    bit, positive = prime.finish_sign(x.data, t.beta.data, t.beta_r.data, c, opened[-1], one)
    return Sign(TaggedShare(bit), TaggedShare(positive))
