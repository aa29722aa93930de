"""Arithmetic on tagged shares: products, truncation, comparison. Damgård, Keller, Larraia, Pastro, Scholl,
Smart: Practical Covertly Secure MPC for Dishonest Majority, ESORICS 2013 (SPDZ).

Every value is opened under a one-time mask, and its tag is kept for the check in `tagged_context.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import prime
from .beaver import MUL, Bilinear, MaskedFactor
from .compare import Sign
from .elements import TaggedShare
from .tagged import (
    DIGITS,
    ENTRIES,
    STEPS,
    TaggedComparison,
    TaggedTriple,
    TaggedTruncation,
    split_digits,
)

if TYPE_CHECKING:
    from .tagged_context import TaggedContext


async def product(ctx: TaggedContext, x: TaggedShare, y: TaggedShare, op: Bilinear = MUL) -> TaggedShare:
    """[x ∘ y], not truncated, by a tagged triple: [c] + e ∘ [b] + [a] ∘ f + e ∘ f (`beaver.py`).

    A factor that is broadcast has one mask, and is opened once.
    """
    t = await ctx.stock.take(TaggedTriple(op, tuple(x.shape), tuple(y.shape)))
    e, f = await ctx.open(x - t["a"], y - t["b"])
    return _combine(ctx, op, t["c"], t["a"], t["b"], e, f)


async def product_masked(
    ctx: TaggedContext, x: TaggedShare, y: MaskedFactor[TaggedShare], op: Bilinear
) -> TaggedShare:
    """[x ∘ y] with an input y that was masked once: f is known already."""
    t = await ctx.stock.take(TaggedTriple(op, tuple(x.shape), tuple(y.f.shape), y.name))
    (e,) = await ctx.open(x - t["a"])
    return _combine(ctx, op, t["c"], t["a"], y.b, e, y.f)


def _combine(
    ctx: TaggedContext,
    op: Bilinear,
    c: TaggedShare,
    a: TaggedShare,
    b: TaggedShare,
    e: Tensor,
    f: Tensor,
) -> TaggedShare:
    eb, af = (
        TaggedShare.join(*[prime.bilinear(op, *pair) for pair in pairs])
        for pairs in ([(e, part) for part in b.data], [(part, f) for part in a.data])
    )
    return c + (eb + af) + ctx.public(prime.bilinear(op, e, f), c)


async def product_public(ctx: TaggedContext, x: TaggedShare, public: Tensor, op: Bilinear) -> TaggedShare:
    """[x ∘ public], not truncated and without communication."""
    if op.name == "mul":
        return x * public
    return TaggedShare.join(*[prime.bilinear(op, part, public) for part in x.data])


async def square(ctx: TaggedContext, x: TaggedShare) -> TaggedShare:
    """[x²], not truncated."""
    return await product(ctx, x, x)


async def truncate(ctx: TaggedContext, v: TaggedShare, bits: int | None = None) -> TaggedShare:
    """[v / 2^bits] to a unit in the last place, for |v| < 2^58.

    c = v + 2^58 + r is opened. It wrapped around exactly where s = 1 (r is in the topmost 2^59) and c < 2^59,
    because 0 ≤ v + 2^58 < 2^59; so [v / 2^f] = (c div 2^f) + s · ((c + p) div 2^f − c div 2^f) − [r div 2^f]
    − 2^(58−f), with the middle term only where c < 2^59.
    """
    bits = ctx.fixed.fraction if bits is None else bits
    t = await ctx.stock.take(TaggedTruncation(tuple(v.shape), bits))
    if v.data.is_meta:  # a dry run: nothing more is requested
        return TaggedShare(torch.empty_like(v.data))
    (c,) = await ctx.open(v + t["r"] + ctx.public(1 << prime.ROOM, v))
    jump = torch.where(c < 1 << (prime.ROOM + 1), ((c + prime.P) >> bits) - (c >> bits), 0)
    return t["s"] * jump - t["R"] + ctx.public((c >> bits) - (1 << (prime.ROOM - bits)), v)


async def positive(ctx: TaggedContext, x: TaggedShare) -> TaggedShare:
    """[x ≥ 0] as 0 or 1, for |x| < 2^48, by opening c = x + r and comparing it with r, digit by digit.

    x < 0 exactly where c < r, unless x + r left 0 … p − 1: upwards only if r is within 2^48 of p and c below
    2^48, where c < r although x ≥ 0; downwards only if r < 2^48 and c is within 2^48 of p, where c > r
    although x < 0. The dealer shares, tagged, which digits of r exceed which number, so the lookup of c's
    digits is linear.
    """
    t = await ctx.stock.take(TaggedComparison(tuple(x.shape)))
    (c,) = await ctx.open(x + t["r"])
    one = ctx.public(torch.ones((DIGITS, 1, *x.shape), dtype=torch.int64, device=x.device), x).data
    none = one.new_zeros((2, DIGITS * STEPS - ENTRIES, *x.shape))
    table = torch.cat([t["T"].data, none], 1).reshape(2, DIGITS, STEPS, *x.shape)
    steps = torch.cat([one, table, torch.zeros_like(one)], 2)  # r_d > −1, 0, …, 6, 7
    at = split_digits(c).unsqueeze(1).unsqueeze(0).expand(2, *one.shape[1:])
    lt = TaggedShare(torch.gather(steps, 2, at + 1)[:, :, 0])
    eq = TaggedShare(torch.gather(steps, 2, at)[:, :, 0]) - lt
    while len(lt) > 1:
        pairs = len(lt) // 2
        lower, upper = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
        if len(lt) == 2:  # nothing is below the last pair
            lt = lt[upper] + await product(ctx, eq[upper], lt[lower])
            break
        both = TaggedShare.cat([lt[lower].unsqueeze(0), eq[lower].unsqueeze(0)])
        both = await product(ctx, eq[upper].unsqueeze(0), both)
        lt = TaggedShare.cat([lt[upper] + both[0], lt[2 * pairs :]])
        eq = TaggedShare.cat([both[1], eq[2 * pairs :]])
    near = 1 << (prime.VALUE + 1)
    negative = lt[0] - t["high"] * (c < near).long() + t["low"] * (c >= prime.P - near).long()
    return ctx.public(1, x) - negative


async def sign(ctx: TaggedContext, x: TaggedShare) -> Sign:
    """[x ≥ 0] and [max(x, 0)]."""
    bit = await positive(ctx, x)
    return Sign(bit, await product(ctx, bit, x))


async def argmax(ctx: TaggedContext, x: TaggedShare) -> TaggedShare:
    """[index of the maximum] along the last dimension; the first one where several are equal.

    Values and indices are selected by one product.
    """
    index = ctx.public(torch.arange(x.shape[-1], device=x.device).expand(x.shape), x)
    while x.shape[-1] > 1:
        pairs = x.shape[-1] // 2
        (a, b), (i, j) = ((t[..., 0 : 2 * pairs : 2], t[..., 1 : 2 * pairs : 2]) for t in (x, index))
        bit = await positive(ctx, a - b)
        both = await product(ctx, TaggedShare.cat([bit, bit], -1), TaggedShare.cat([a - b, i - j], -1))
        x = TaggedShare.cat([b + both[..., :pairs], x[..., 2 * pairs :]], -1)
        index = TaggedShare.cat([j + both[..., pairs:], index[..., 2 * pairs :]], -1)
    return index[..., 0]
