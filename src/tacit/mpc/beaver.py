"""Multiplication with Beaver triples. Beaver: Efficient Multiparty Protocols Using Circuit Randomization,
CRYPTO 1991.

    z = x ∘ y for any bilinear ∘ (product, matrix product, convolution), from shares [x], [y] and a random
    triple c = a ∘ b:

    1. the dealer gives [a], [b], [c]
    2. open e = x − a and f = y − b, which are uniform
    3. [z] = [c] + e ∘ [b] + [a] ∘ f + e ∘ f        (e ∘ f is public: one party adds it)

    party 0 |--- MaskedFactors(e_0, f_0) --->| party 1        one round; a triple is used once
            |<-- MaskedFactors(e_1, f_1) ----|

If both factors have f fractional bits, z has 2f; `truncate.py` removes f of them. A factor that is used in
several products (a model's weights, the columns of a regression) is opened under its own mask once, and each
product then opens e alone: `Context.mask_private` if one party knows the factor, `mask_shared` if it is
shared, and then `product_masked`.

If one party O knows the factor y (a model's weights at their owner), only O needs e, and x_O takes no mask:

    1. the dealer gives a_i to every party but O (a_O = 0), and [c] = [Σ a_i ∘ b], where O alone has b
    2. each party i but O sends x_i − a_i to O, where e = x_O + Σ (x_i − a_i)
    3. z_O = c_O + e ∘ y;  z_i = c_i + a_i ∘ f

    party i |--- MaskedFactors(x_i − a_i) --->| O          8 bytes a word of x, one way

O sees words under masks that it does not have (a_i is on party i's tape), and the others see f alone.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor

from ..parties.message import Message
from . import ring
from .dealer import Mask, Request, Values
from .tape import Parts

if TYPE_CHECKING:
    from .context import RingContext

ShareT = TypeVar("ShareT")


class MaskedFactors(Message, reveals="factors of a product under one-time masks: uniform words"):
    values: list[Tensor]


@dataclass(frozen=True)
class Bilinear:
    """∘: 'mul' (elementwise, with broadcasting), 'matmul', or 'conv2d'.

    The options of 'conv2d' are stride, padding, dilation and groups.
    """

    name: str
    options: tuple[tuple[int, int], tuple[int, int], tuple[int, int], int] | None = None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        if self.name == "mul":
            return x * y
        return ring.matmul(x, y) if self.name == "matmul" else ring.conv2d(x, y, *(self.options or ()))

    @functools.lru_cache(maxsize=1024)  # noqa: B019  # the few operators of a program; asked many times
    def shape(self, x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of x ∘ y."""
        empty = (torch.empty(s, dtype=torch.int64, device="meta") for s in (x, y))
        return tuple(self(*empty).shape)


MUL, MATMUL = Bilinear("mul"), Bilinear("matmul")


@dataclass(frozen=True)
class Triple(Request):
    """a, b uniform and c = a ∘ b; if `mask` is given, b is the mask of that name.

    With an owner, that party knows the second factor, and has no share of a.
    """

    op: Bilinear
    x: tuple[int, ...]
    y: tuple[int, ...]
    mask: str | None = None
    owner: int | None = None

    def holds(self, name: str, rank: int) -> bool:
        return name != "a" or rank != self.owner

    def uniform(self) -> Parts:
        parts: Parts = {"a": (self.x, torch.int64)}
        return parts if self.mask is not None else {**parts, "b": (self.y, torch.int64)}

    def derived(self) -> Parts:
        return {"c": (self.op.shape(self.x, self.y), torch.int64)}

    def derive(self, uniform: Values, masks: Values) -> Values:
        return {"c": self.op(uniform["a"], uniform["b"] if self.mask is None else masks[self.mask])}


@dataclass(frozen=True)
class Square(Request):
    """a uniform and c = a²."""

    x: tuple[int, ...]

    def uniform(self) -> Parts:
        return {"a": (self.x, torch.int64)}

    def derived(self) -> Parts:
        return {"c": (self.x, torch.int64)}

    def derive(self, uniform: Values, masks: Values) -> Values:
        return {"c": uniform["a"] * uniform["a"]}


async def product(ctx: RingContext, x: Tensor, y: Tensor, op: Bilinear = MUL) -> Tensor:
    """[x ∘ y], not truncated."""
    await ctx.expect_product(op, x, y)
    t = await ctx.stock.take(Triple(op, tuple(x.shape), tuple(y.shape)))  # 1
    e, f = await ctx.open(MaskedFactors, x - t["a"], y - t["b"])  # 2
    b = t["b"].add_(f) if ctx.first else t["b"]  # 3, in the memory of the masks, which are used once
    return t["c"].add_(op(e, b)).add_(op(t["a"], f))


async def product_public(ctx: RingContext, x: Tensor, public: Tensor, op: Bilinear) -> Tensor:
    """[x ∘ public], not truncated and without communication."""
    await ctx.expect_product(op, x, ctx.public(public, x))
    return op(x, public)


async def square(ctx: RingContext, x: Tensor) -> Tensor:
    """[x²], not truncated: e = x − a,  [x²] = [c] + 2e[a] + e²."""
    t = await ctx.stock.take(Square(tuple(x.shape)))
    (e,) = await ctx.open(MaskedFactors, x - t["a"])
    a = t["a"].mul_(2)
    return t["c"].add_(e * (a.add_(e) if ctx.first else a))


@dataclass
class MaskedFactor(Generic[ShareT]):
    """A factor y of several products: f = y − b is public; the mask b is shared, or its owner's alone."""

    name: str | None
    f: Tensor
    b: ShareT
    owner: int | None = None


async def mask_shared(ctx: RingContext, name: str, y: Tensor) -> MaskedFactor[Tensor]:
    """Open f = y − b once, for a shared y that is used in several products; the mask b stays shared."""
    b = (await ctx.stock.take(Mask(name, tuple(y.shape))))["b"]
    (f,) = await ctx.open(MaskedFactors, y - b)
    return MaskedFactor(name, f, b)


async def product_masked(ctx: RingContext, x: Tensor, y: MaskedFactor[Tensor], op: Bilinear) -> Tensor:
    """[x ∘ y]: steps 1 to 3 with f known already."""
    b = y.b + y.f if ctx.first else y.b
    await ctx.expect_product(op, x, b)
    if y.owner is not None:
        return await _product_known(ctx, x, y, op, y.owner)
    t = await ctx.stock.take(Triple(op, tuple(x.shape), tuple(y.f.shape), y.name))
    (e,) = await ctx.open(MaskedFactors, x - t["a"])
    return t["c"].add_(op(e, b)).add_(op(t["a"], y.f))


async def _product_known(
    ctx: RingContext, x: Tensor, y: MaskedFactor[Tensor], op: Bilinear, owner: int
) -> Tensor:
    """[x ∘ y] with a factor that its owner knows: steps 1 to 3 of the second diagram."""
    t = await ctx.stock.take(Triple(op, tuple(x.shape), tuple(y.f.shape), y.name, owner))
    if ctx.rank == owner:
        e = await ctx.collect(MaskedFactors, x)
        return t["c"].add_(op(e, y.b + y.f))
    await ctx.send_share(MaskedFactors, x - t["a"], owner)
    return t["c"].add_(op(t["a"], y.f))
