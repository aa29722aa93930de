"""Tagged shares with the operators of plain ones, so that `functions.py` is written once for both.

`Elements` is a tagged tensor (`tagged.py`) whose `+ - *`, sums and views act on the share and its tag alike,
modulo p; shapes are those of the value. `Desk` is a table in the place of a seat: what it multiplies,
truncates and compares is tagged (`spdz.py`) and checked with the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from . import prime, spdz
from .beaver import MUL, Bilinear
from .compare import Signed
from .functions import Steps
from .spdz import Table


class Elements:
    def __init__(self, both: Tensor):
        self.both = both  # [2, …]: the share and the share of its tag

    @property
    def shape(self) -> torch.Size:
        return self.both.shape[1:]

    @property
    def device(self) -> torch.device:
        return self.both.device

    def dim(self) -> int:
        return self.both.dim() - 1

    def __len__(self) -> int:
        return self.both.shape[1]

    def __iter__(self) -> Iterator[Elements]:
        return (self[i] for i in range(len(self)))

    # linear: share and tag alike ----------------------------------------------------------------------------

    def __add__(self, other: Elements) -> Elements:
        shape = torch.broadcast_shapes(self.shape, other.shape)
        return Elements(prime.add(wide(self.both, shape), wide(other.both, shape)))

    def __neg__(self) -> Elements:
        return Elements(prime.sub(torch.zeros_like(self.both), self.both))

    def __sub__(self, other: Elements) -> Elements:
        return self + -other

    def __mul__(self, public: int | Tensor) -> Elements:
        code = torch.as_tensor(public, device=self.device)
        code = torch.where(code < 0, code + prime.P, code)
        shape = torch.broadcast_shapes(self.shape, code.shape)
        return Elements(prime.mul(wide(self.both, shape), code.expand(2, *shape)))

    __rmul__ = __mul__

    def sum(self, dim: int, keepdim: bool = False) -> Elements:
        made = prime.total(self.both, behind(dim))
        return Elements(made.unsqueeze(behind(dim)) if keepdim else made)

    # views --------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Elements:
        return Elements(self.both[(slice(None), *(index if isinstance(index, tuple) else (index,)))])

    def unsqueeze(self, dim: int) -> Elements:
        return Elements(self.both.unsqueeze(behind(dim)))

    def movedim(self, source: int, to: int) -> Elements:
        return Elements(self.both.movedim(behind(source), behind(to)))

    def transpose(self, a: int, b: int) -> Elements:
        return Elements(self.both.transpose(behind(a), behind(b)))

    def flatten(self, start: int) -> Elements:
        return Elements(self.both.flatten(behind(start)))

    def reshape(self, *shape: Any) -> Elements:
        return Elements(
            self.both.reshape(2, *(shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape))
        )

    def expand(self, *shape: int) -> Elements:
        return Elements(wide(self.both, torch.Size(shape)))

    def expand_as(self, other: Elements) -> Elements:
        return Elements(wide(self.both, other.shape))

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """torch.cat, stack and zeros_like, which `functions.py` calls; of anything else torch says that it
        cannot.
        """
        if function is torch.zeros_like:
            return cls(torch.zeros_like(args[0].both))
        if function in (torch.cat, torch.stack):
            return cls(function([x.both for x in args[0]], behind(args[1] if len(args) > 1 else 0)))
        return NotImplemented


def behind(dim: int) -> int:
    """A dimension of the value, counted in the tagged tensor."""
    return dim if dim < 0 else dim + 1


def wide(x: Tensor, shape: torch.Size) -> Tensor:
    """A tagged tensor broadcast to the value's shape."""
    return x.reshape(2, *[1] * (len(shape) - x.dim() + 1), *x.shape[1:]).expand(2, *shape)


# the steps of `functions.py`, tagged ------------------------------------------------------------------------


async def product(desk: Desk, x: Elements, y: Elements, op: Bilinear = MUL) -> Elements:
    if op.name == "mul":
        shape = torch.broadcast_shapes(x.shape, y.shape)
        x, y = x.expand(*shape), y.expand(*shape)
    return Elements(await spdz.product(desk.table, x.both, y.both, op))


async def known(desk: Desk, x: Elements, public: Tensor, op: Bilinear) -> Elements:
    return Elements(spdz.times_public(x.both, public, op)) if op.name != "mul" else x * public


async def square(desk: Desk, x: Elements) -> Elements:
    return await product(desk, x, x)


async def truncate(desk: Desk, v: Elements, bits: int | None = None) -> Elements:
    return Elements(await spdz.truncate(desk.table, v.both, bits))


async def sign(desk: Desk, x: Elements) -> Signed:
    bit = await spdz.positive(desk.table, x.both)
    return Signed(Elements(bit), Elements(await spdz.product(desk.table, bit, x.both)))


async def largest(desk: Desk, x: Elements) -> Elements:
    return Elements(await spdz.largest(desk.table, x.both))


async def argmax(desk: Desk, x: Elements) -> Elements:
    return Elements(await spdz.argmax(desk.table, x.both))


async def watch(desk: Desk, op: Bilinear, x: Elements, y: Elements) -> None:
    """Nothing is opened to look at it here."""


class Desk:
    """A table where `functions.py` expects a seat."""

    steps = Steps(product, known, square, truncate, sign, largest, argmax, watch)

    def __init__(self, table: Table):
        self.table, self.fixed, self.device = table, table.fixed, table.device

    def public(self, value: Any, like: Elements) -> Elements:
        code = torch.as_tensor(value, dtype=torch.int64, device=like.device)
        return Elements(self.table.public(torch.where(code < 0, code + prime.P, code), like.both))

    async def expect(self, x: Elements, low: float, high: float, what: str) -> None:
        """Nothing is opened to look at it here: the domain is the caller's promise."""
