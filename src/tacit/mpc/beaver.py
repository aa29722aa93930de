"""Multiplication with Beaver triples. Beaver: Efficient Multiparty Protocols Using Circuit Randomization,
CRYPTO 1991.

    z = x ∘ y for any bilinear ∘ (product, matrix product, convolution), from shares [x], [y] and a random
    triple c = a ∘ b:

    1. the dealer gives [a], [b], [c]
    2. open e = x − a and f = y − b, which are uniform
    3. [z] = [c] + e ∘ [b] + [a] ∘ f + e ∘ f        (e ∘ f is public: one party adds it)

    party 0 |--- MaskedFactors(e_0, f_0) --->| party 1        one round; a triple is used once
            |<-- MaskedFactors(e_1, f_1) ----|

With two factors of f fractional bits z has 2f; `truncate.py` takes f of them off again. A factor that stays
(a model's weights, the table of a regression) is opened under its own mask once, and each product then opens
e alone: `keep` where one party knows it, `keep_shared` where it is shared, and `times_kept`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import BadData, ProtocolError
from ..parties.message import Message
from . import ring
from .dealer import Mask, Parts, Request
from .seat import DEBUGGED, DebugShare, Seat

ROOM = 62  # |x ∘ y| < 2^62, for `truncate.py`


class MaskedFactors(Message, reveals="factors of a product under one-time masks: uniform words"):
    values: list[Tensor]


class MaskedWeights(
    Message, reveals="the model's weights under a mask that only their owner holds: uniform words; sent once"
):
    values: list[Tensor]


@dataclass(frozen=True)
class Bilinear:
    """∘: 'mul' (elementwise, shapes broadcast), 'matmul', or 'conv2d' with its stride, padding, dilation and
    groups.
    """

    name: str
    options: tuple[tuple[int, int], tuple[int, int], tuple[int, int], int] | None = None

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        if self.name == "mul":
            return x * y
        return ring.matmul(x, y) if self.name == "matmul" else ring.conv2d(x, y, *(self.options or ()))

    def shape(self, x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...]:
        empty = (torch.empty(s, dtype=torch.int64, device="meta") for s in (x, y))
        return tuple(self(*empty).shape)


MUL, MATMUL = Bilinear("mul"), Bilinear("matmul")


@dataclass(frozen=True)
class Triple(Request):
    """a, b uniform and c = a ∘ b; with `kept`, b is the mask of that name."""

    op: Bilinear
    x: tuple[int, ...]
    y: tuple[int, ...]
    kept: str | None = None

    def free(self) -> Parts:
        parts: Parts = {"a": (self.x, torch.int64)}
        return parts if self.kept is not None else {**parts, "b": (self.y, torch.int64)}

    def fixed(self) -> Parts:
        return {"c": (self.op.shape(self.x, self.y), torch.int64)}

    def make(self, free: dict[str, Tensor], masks: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"c": self.op(free["a"], free["b"] if self.kept is None else masks[self.kept])}


@dataclass(frozen=True)
class Square(Request):
    """a uniform and c = a²."""

    x: tuple[int, ...]

    def free(self) -> Parts:
        return {"a": (self.x, torch.int64)}

    def fixed(self) -> Parts:
        return {"c": (self.x, torch.int64)}

    def make(self, free: dict[str, Tensor], masks: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"c": free["a"] * free["a"]}


async def watch(seat: Seat, op: Bilinear, x: Tensor, y: Tensor) -> None:
    """In debug mode: would x ∘ y leave the range? Once it has wrapped around nobody could tell, so the
    factors are opened and multiplied as reals.
    """
    if not seat.debug or seat.me is None:
        return
    seat.me.ledger.stamp(DEBUGGED)
    a, b = await seat.open(DebugShare, x, y)
    most = float(op(a.double(), b.double()).abs().max()) if a.numel() and b.numel() else 0.0
    if most >= 2.0**ROOM:
        unit = 2.0 ** (2 * seat.fixed.fraction)
        raise BadData(
            f"a product reaches ±{most / unit:g}, and the range ends at ±{2.0**ROOM / unit:g}: it would "
            "wrap around. Scale the input or the weights, "
            "or take fewer fractional bits."
        )


async def product(seat: Seat, x: Tensor, y: Tensor, op: Bilinear = MUL) -> Tensor:
    """[x ∘ y], not truncated."""
    await watch(seat, op, x, y)
    t = await seat.stock.take(Triple(op, tuple(x.shape), tuple(y.shape)))  # 1
    e, f = await seat.open(MaskedFactors, x - t["a"], y - t["b"])  # 2
    b = t["b"].add_(f) if seat.first else t["b"]  # 3, in the masks' own memory: they are used once
    return t["c"].add_(op(e, b)).add_(op(t["a"], f))


async def square(seat: Seat, x: Tensor) -> Tensor:
    """[x²], not truncated: e = x − a,  [x²] = [c] + 2e[a] + e²."""
    t = await seat.stock.take(Square(tuple(x.shape)))
    (e,) = await seat.open(MaskedFactors, x - t["a"])
    a = t["a"].mul_(2)
    return t["c"].add_(e * (a.add_(e) if seat.first else a))


@dataclass
class Kept:
    """A factor that stays: f = y − b is public, b shared (or its owner's alone)."""

    name: str
    shape: tuple[int, ...]
    f: Tensor
    b: Tensor


async def keep(seat: Seat, name: str, shape: tuple[int, ...], y: Tensor | None, owner: int) -> Kept:
    """The owner, who knows y, masks it once: b is its alone, f = y − b goes to the others. `y` is None at the
    others.
    """
    b = (await seat.stock.take(Mask(name, shape, holder=owner)))["b"]
    if seat.me is None:
        return Kept(name, shape, torch.empty(shape, dtype=torch.int64, device="meta"), b)
    if seat.rank == owner:
        assert y is not None
        f = y.to(seat.device) - b
        await seat.me.send(seat.peers, MaskedWeights([f.cpu()]))
        seat.charge(len(seat.peers) * f.numel() * f.element_size())
        return Kept(name, shape, f, b)
    values = (await seat.me.recv(seat.names[owner], MaskedWeights)).values
    if [tuple(v.shape) for v in values] != [shape] or values[0].dtype is not torch.int64:
        raise ProtocolError(
            f"the weights {name!r} came as {[tuple(v.shape) for v in values]}, and the architecture says "
            f"{shape}. "
            "Do all parties run the same model?"
        )
    return Kept(name, shape, values[0].to(seat.device), b)


async def keep_shared(seat: Seat, name: str, y: Tensor) -> Kept:
    """Open f = y − b once, for a shared y that is multiplied often; the mask b stays shared."""
    b = (await seat.stock.take(Mask(name, tuple(y.shape))))["b"]
    (f,) = await seat.open(MaskedFactors, y - b)
    return Kept(name, tuple(y.shape), f, b)


async def times_kept(seat: Seat, x: Tensor, kept: Kept, op: Bilinear) -> Tensor:
    """[x ∘ y] with y kept: steps 1 to 3 with f known already."""
    await watch(seat, op, x, kept.b + kept.f if seat.first else kept.b)
    t = await seat.stock.take(Triple(op, tuple(x.shape), kept.shape, kept.name))
    (e,) = await seat.open(MaskedFactors, x - t["a"])
    return t["c"].add_(op(e, kept.b + kept.f if seat.first else kept.b)).add_(op(t["a"], kept.f))
