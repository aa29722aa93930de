"""Arithmetic on tagged shares: products and truncation; `tagged_bits.py` compares. Damgård, Keller, Larraia,
Pastro, Scholl, Smart: Practical Covertly Secure MPC for Dishonest Majority, ESORICS 2013 (SPDZ).

Every value is opened under a one-time mask, and its tag is kept for the check in `tagged_context.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import prime
from .beaver import MUL, Bilinear, MaskedFactor
from .elements import TaggedShare
from .tagged import TaggedTriple, TaggedTruncation

if TYPE_CHECKING:
    from .tagged_context import TaggedContext


async def product(ctx: TaggedContext, x: TaggedShare, y: TaggedShare, op: Bilinear = MUL) -> TaggedShare:
    """[x ∘ y], not truncated, by a tagged triple: [c] + e ∘ ([b] + f) + [a] ∘ f (`beaver.py`).

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
    """[c] + e ∘ ([b] + f) + [a] ∘ f: e ∘ f has no product of its own, neither for shares nor for tags."""
    b = b + ctx.public(f, b)
    return c + (_multiply_second(op, e, b) + _multiply_first(op, a, f))


def _multiply_first(op: Bilinear, x: TaggedShare, y: Tensor) -> TaggedShare:
    """[x] ∘ y: share and tag as rows of one matrix product, or images of one convolution."""
    if (op.name == "matmul" and x.dim() == y.dim() == 2) or op.name == "conv2d":
        return TaggedShare(prime.bilinear(op, x.data.flatten(0, 1), y).unflatten(0, (2, -1)))
    return TaggedShare.join(*[prime.bilinear(op, part, y) for part in x.data])


def _multiply_second(op: Bilinear, x: Tensor, y: TaggedShare) -> TaggedShare:
    """x ∘ [y]: share and tag as columns of one matrix product, or filters of one convolution."""
    if op.name == "matmul" and x.dim() == y.dim() == 2:
        columns = prime.matmul(x, y.data.transpose(0, 1).flatten(1))
        return TaggedShare(columns.unflatten(-1, (2, -1)).transpose(0, 1))
    if op.name == "conv2d" and op.options is not None and op.options[-1] == 1:  # one group
        return TaggedShare(prime.bilinear(op, x, y.data.flatten(0, 1)).unflatten(1, (2, -1)).transpose(0, 1))
    return TaggedShare.join(*[prime.bilinear(op, x, part) for part in y.data])


async def product_public(ctx: TaggedContext, x: TaggedShare, public: Tensor, op: Bilinear) -> TaggedShare:
    """[x ∘ public], not truncated and without communication."""
    if op.name == "mul":
        return x * public
    return _multiply_first(op, x, public)


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


async def argmax(ctx: TaggedContext, x: TaggedShare) -> TaggedShare:
    """[index of the maximum] along the last dimension; the first one where several are equal."""
    index = ctx.public(torch.arange(x.shape[-1], device=x.device).expand(x.shape), x)
    while x.shape[-1] > 1:
        pairs = x.shape[-1] // 2
        (a, b), (i, j) = ((t[..., 0 : 2 * pairs : 2], t[..., 1 : 2 * pairs : 2]) for t in (x, index))
        result = await ctx.sign(a - b)
        x = TaggedShare.cat([b + result.positive, x[..., 2 * pairs :]], -1)
        chosen = j + await product(ctx, result.bit, i - j)
        index = TaggedShare.cat([chosen, index[..., 2 * pairs :]], -1)
    return index[..., 0]
