"""What shared tensors can do, with tags or without: operators, each a program per party, and a dealer's, in
one process. `tensor.py` and `tensor_checked.py` say what a share is and who sits at the table.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Self

import torch
from torch import Tensor

from ..errors import BadData
from ..parties.ledger import Ledger
from ..parties.party import Party, Program
from . import functions
from .beaver import MATMUL, MUL, Bilinear
from .ring import Fixed

DEALER = "dealer"
Step = Callable[..., Awaitable[Any]]


class Operators(ABC):
    """Shares of a tensor, one a party. `.open()` gives the value; `.ledger` who saw what so far."""

    def __init__(self, shares: list[Tensor], fixed: Fixed, ledger: Ledger, fraction: int | None = None):
        self.shares, self.fixed, self.ledger = shares, fixed, ledger
        self.fraction = fixed.fraction if fraction is None else fraction  # 0: a whole number, an index

    # what a kind of share says ------------------------------------------------------------------------------

    @abstractmethod
    def _of(self, shares: list[Tensor], fraction: int | None = None) -> Self:
        """Another tensor of the same parties."""

    @abstractmethod
    def _place(self, rank: int) -> Any:
        """A seat for what needs no stock and no message."""

    @abstractmethod
    def _plan(self, program: Step) -> list[Any]:
        """What the program will ask the dealer for."""

    @abstractmethod
    async def _sit(self, me: Party, rank: int, names: tuple[str, ...], device: str) -> Any:
        """A seat with a stock."""

    @abstractmethod
    async def _deal(self, me: Party, names: tuple[str, ...], requests: list[Any], device: str) -> None:
        """The dealer's program."""

    @abstractmethod
    async def _reveal(self, seat: Any, x: Any) -> Tensor:
        """A share opened to all."""

    async def _done(self, seat: Any, made: Any) -> Tensor:
        """After a step, before anybody has its result."""
        return self._down(made)

    def _up(self, share: Tensor) -> Any:
        """A share as `functions.py` computes with it."""
        return share

    def _down(self, made: Any) -> Tensor:
        return made

    def _whole(self, opened: Tensor) -> Tensor:
        """An opened index."""
        return opened

    # --------------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._up(self.shares[0]).shape)

    @property
    def parties(self) -> int:
        return len(self.shares)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {list(self.shape)} between {self.parties} parties>"

    # without a message --------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Self:
        if isinstance(other, type(self)):
            self._with(other)
            try:
                torch.broadcast_shapes(self.shape, other.shape)
            except RuntimeError:
                raise BadData(
                    f"shapes {list(self.shape)} and {list(other.shape)} cannot be added. They must be "
                    "equal, or 1 where they differ."
                ) from None
            return self._each(lambda a, b: a + b, other)
        self._number()
        public = self._encoded(other, "the public summand")
        return self._of(
            [
                self._down(x + self._place(i).public(public, x))
                for i, x in enumerate(map(self._up, self.shares))
            ]
        )

    __radd__ = __add__

    def __neg__(self) -> Self:
        return self._each(lambda a: -a)

    def __sub__(self, other: Any) -> Self:
        return self + (-other if isinstance(other, Operators) else -torch.as_tensor(other))

    def __rsub__(self, other: Any) -> Self:
        return -self + other

    def __getitem__(self, index: Any) -> Self:
        return self._each(lambda a: a[index])

    def sum(self, dim: int = -1) -> Self:
        return self._each(lambda a: a.sum(dim))

    def reshape(self, *shape: int) -> Self:
        return self._each(lambda a: a.reshape(*shape))

    def transpose(self, a: int = -2, b: int = -1) -> Self:
        return self._each(lambda x: x.transpose(a, b))

    # with a protocol ----------------------------------------------------------------------------------------

    def __mul__(self, other: Any) -> Self:
        return self._times(other, MUL)

    __rmul__ = __mul__

    def __matmul__(self, other: Any) -> Self:
        return self._times(other, MATMUL)

    def _times(self, other: Any, op: Bilinear) -> Self:
        if isinstance(other, type(self)):
            return self.run(lambda seat, x, y: functions.mul(seat, x, y, op), other)
        public = self._encoded(other, "the public factor")
        return self.run(lambda seat, x: functions.scale(seat, x, public.to(seat.device), op))

    def __truediv__(self, other: Any) -> Self:
        if isinstance(other, int | float) and not isinstance(other, bool) and 1 < abs(other) < math.inf:
            return self._over(float(other))
        return self * (
            other.reciprocal()
            if isinstance(other, type(self))
            else 1 / torch.as_tensor(other, dtype=torch.float64)
        )

    def _over(self, number: float) -> Self:
        """A public number's inverse may be small, and 16 fractional bits of it too few: its power of two is
        taken off first.
        """
        down = min(
            math.frexp(number)[1] - 1, functions.FAR
        )  # 2^down ≤ |number|, so the inverse that is left lies in (1/2, 1]
        inverse = self._encoded(2.0**down / number, "the inverse of the public divisor")

        async def step(seat: Any, x: Any) -> Any:
            return await functions.scale(
                seat, await functions.truncate(seat, x, down) if down else x, inverse.to(seat.device)
            )

        return self.run(step)

    def __rtruediv__(self, other: Any) -> Self:
        return self.reciprocal() * other

    def relu(self) -> Self:
        return self.run(functions.relu)

    def max(self, dim: int = -1) -> Self:
        return self.run(lambda seat, x: functions.largest(seat, x.movedim(dim, -1)))

    def argmax(self, dim: int = -1) -> Self:
        return self.run(lambda seat, x: functions.argmax(seat, x.movedim(dim, -1)), fraction=0)

    def softmax(self, dim: int = -1) -> Self:
        return self.run(lambda seat, x: functions.softmax(seat, x, dim))

    def exp(self) -> Self:
        return self.run(functions.exp)

    def log(self) -> Self:
        return self.run(functions.log)

    def sqrt(self) -> Self:
        return self.run(functions.sqrt)

    def reciprocal(self) -> Self:
        return self.run(functions.reciprocal)

    def sigmoid(self) -> Self:
        return self.run(functions.sigmoid)

    def tanh(self) -> Self:
        return self.run(functions.tanh)

    def gelu(self) -> Self:
        return self.run(functions.gelu)

    def open(self) -> Tensor:
        """The value: every party sends its share to every other. From here on it is no secret."""
        value = self._parties(self._reveal, [self.shares])[0]
        return self.fixed.decode(value).float() if self.fraction else self._whole(value)

    def run(self, step: Step, *others: Self, fraction: int | None = None) -> Self:
        """A step of your own: `async def step(seat, *shares)`, run by every party on its shares of this
        tensor and the others.
        """
        self._number()
        for other in others:
            self._with(other)
            if other.ledger is not self.ledger:
                self.ledger.merge(other.ledger)
        return self._of(self._parties(step, [self.shares, *[o.shares for o in others]]), fraction)

    def _parties(self, step: Step, operands: list[list[Tensor]]) -> list[Tensor]:
        from ..runtimes.inprocess import InProcess

        names = tuple(f"party {i}" for i in range(self.parties))
        device = str(self.shares[0].device)
        empty = [self._up(torch.empty(s[0].shape, dtype=torch.int64, device="meta")) for s in operands]
        try:
            requests = self._plan(lambda seat: step(seat, *empty))
        except (RuntimeError, IndexError) as error:  # torch's, in a rehearsal that has shapes only
            raise BadData(
                f"shapes {' and '.join(str(list(e.shape)) for e in empty)} do not fit this operation: {error}"
            ) from None

        def program(rank: int) -> Program:
            async def party(me: Party) -> Tensor:
                seat = await self._sit(me, rank, names, device)
                return await self._done(seat, await step(seat, *[self._up(o[rank]) for o in operands]))

            return party

        async def deal(me: Party) -> None:
            await self._deal(me, names, requests, device)

        made = InProcess().run_sync(
            {**{name: program(i) for i, name in enumerate(names)}, DEALER: deal}, ledger=self.ledger
        )
        return [made[name] for name in names]

    def _each(self, linear: Callable[..., Any], *others: Self) -> Self:
        """What each party does to its own shares."""
        return self._of(
            [
                self._down(linear(*map(self._up, mine)))
                for mine in zip(self.shares, *[o.shares for o in others])
            ]
        )

    def _encoded(self, value: Any, what: str) -> Tensor:
        if isinstance(value, Operators):
            raise BadData(
                f"{self!r} and {value!r} do not go together: one carries tags and the other does not. Share "
                "both with checked=True."
            )
        return self.fixed.encode(value, what).to(self.shares[0].device)

    def _with(self, other: Operators) -> None:
        if (other.parties, other.fixed, other.fraction) != (self.parties, self.fixed, self.fraction):
            raise BadData(
                f"{self!r} and {other!r} do not go together: parties, fractional bits and kind (number or "
                "index) must be the same. "
                f"These have {self.fraction} and {other.fraction} fractional bits."
            )

    def _number(self) -> None:
        if not self.fraction:
            raise BadData(
                f"{self!r} is an index, a whole number; numbers with fractional bits cannot be computed "
                "from it. Open it."
            )
