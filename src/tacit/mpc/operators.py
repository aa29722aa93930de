"""Operators of shared tensors, with tags or without: each runs one program per party, and the dealer's, in
one process. `tensor.py` and `tensor_checked.py` define the shares and the parties' contexts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from ..errors import BadData
from ..parties.ledger import Ledger
from ..parties.party import Party, Program
from . import functions
from .beaver import MATMUL, MUL, Bilinear
from .context import Context, Step
from .ring import FixedPoint

DEALER = "dealer"


class MPCTensor(ABC):
    """A tensor in shares, one per party. `.open()` reveals the value; `.ledger` records who saw what."""

    def __init__(self, shares: list[Tensor], fixed: FixedPoint, ledger: Ledger, fraction: int | None = None):
        self.shares, self.fixed, self.ledger = shares, fixed, ledger
        self.fraction = fixed.fraction if fraction is None else fraction  # 0: an index

    # defined by the kind of share --------------------------------------------------------------------------

    @abstractmethod
    def _like(self, shares: list[Tensor], fraction: int | None = None) -> Self:
        """Another tensor of the same parties."""

    @abstractmethod
    def _offline_context(self, rank: int) -> Context:
        """A context for local operations: no stock and no messages."""

    @abstractmethod
    def _plan(self, program: Step) -> list[Any]:
        """The randomness that the program needs."""

    @abstractmethod
    async def _connect(self, me: Party, rank: int, names: tuple[str, ...], device: str) -> Any:
        """A context with a stock from the dealer."""

    @abstractmethod
    async def _deal(self, me: Party, names: tuple[str, ...], requests: list[Any], device: str) -> None:
        """The dealer's program."""

    def _wrap(self, share: Tensor) -> Any:
        """The share in the type that `functions.py` computes with."""
        return share

    def _unwrap(self, result: Any) -> Any:
        """The tensor of a share in that type."""
        return result

    # --------------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self._wrap(self.shares[0]).shape)

    @property
    def parties(self) -> int:
        return len(self.shares)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {list(self.shape)} between {self.parties} parties>"

    # local operations ---------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Self:
        if isinstance(other, type(self)):
            self._check_compatible(other)
            try:
                torch.broadcast_shapes(self.shape, other.shape)
            except RuntimeError:
                raise BadData(
                    f"shapes {list(self.shape)} and {list(other.shape)} cannot be added. They must be "
                    "broadcastable."
                ) from None
            return self._map(lambda a, b: a + b, other)
        self._check_number()
        public = self._encode(other, "the public summand")
        return self._like(
            [
                self._unwrap(x + self._offline_context(i).public(public, x))
                for i, x in enumerate(map(self._wrap, self.shares))
            ]
        )

    __radd__ = __add__

    def __neg__(self) -> Self:
        return self._map(lambda a: -a)

    def __sub__(self, other: Any) -> Self:
        return self + (-other if isinstance(other, MPCTensor) else -torch.as_tensor(other))

    def __rsub__(self, other: Any) -> Self:
        return (-self).__add__(other)

    def __getitem__(self, index: Any) -> Self:
        return self._map(lambda a: a[index])

    def sum(self, dim: int = -1) -> Self:
        return self._map(lambda a: a.sum(dim))

    def reshape(self, *shape: int) -> Self:
        return self._map(lambda a: a.reshape(*shape))

    def transpose(self, a: int = -2, b: int = -1) -> Self:
        return self._map(lambda x: x.transpose(a, b))

    # operations with communication --------------------------------------------------------------------------

    def __mul__(self, other: Any) -> Self:
        return self._times(other, MUL)

    __rmul__ = __mul__

    def __matmul__(self, other: Any) -> Self:
        return self._times(other, MATMUL)

    def _times(self, other: Any, op: Bilinear) -> Self:
        if isinstance(other, type(self)):
            return self.run(lambda ctx, x, y: functions.mul(ctx, x, y, op), other)
        public = self._encode(other, "the public factor")
        return self.run(lambda ctx, x: functions.mul_public(ctx, x, public.to(ctx.device), op))

    def __truediv__(self, other: Any) -> Self:
        if isinstance(other, int | float) and not isinstance(other, bool) and 1 < abs(other) < math.inf:
            return self._divide_by(float(other))
        return self * (
            other.reciprocal()
            if isinstance(other, type(self))
            else 1 / torch.as_tensor(other, dtype=torch.float64)
        )

    def _divide_by(self, number: float) -> Self:
        """Divide by a public number; by its power of two first, because its inverse may be too small for the
        fractional bits.
        """
        # 2^down ≤ |number|, so the remaining inverse is in (1/2, 1]
        down = min(math.frexp(number)[1] - 1, functions.FAR)
        inverse = self._encode(2.0**down / number, "the inverse of the public divisor")

        async def step(ctx: Any, x: Any) -> Any:
            return await functions.mul_public(
                ctx, await ctx.truncate(x, down) if down else x, inverse.to(ctx.device)
            )

        return self.run(step)

    def __rtruediv__(self, other: Any) -> Self:
        return self.reciprocal()._times(other, MUL)

    def relu(self) -> Self:
        return self.run(functions.relu)

    def max(self, dim: int = -1) -> Self:
        return self.run(lambda ctx, x: functions.largest(ctx, x.movedim(dim, -1)))

    def argmax(self, dim: int = -1) -> Self:
        return self.run(lambda ctx, x: ctx.argmax(x.movedim(dim, -1)), fraction=0)

    def softmax(self, dim: int = -1) -> Self:
        return self.run(lambda ctx, x: functions.softmax(ctx, x, dim))

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

    def silu(self) -> Self:
        return self.run(functions.silu)

    def leaky_relu(self, slope: float = 0.01) -> Self:
        return self.run(lambda ctx, x: functions.leaky_relu(ctx, x, slope))

    def rsqrt(self) -> Self:
        return self.run(functions.rsqrt)

    def layer_norm(self, dims: int = 1, eps: float = 1e-5) -> Self:
        """Over the last `dims` dimensions."""
        return self.run(lambda ctx, x: functions.layer_norm(ctx, x, dims, eps))

    def rms_norm(self, dims: int = 1, eps: float = 1e-6) -> Self:
        """Over the last `dims` dimensions."""
        return self.run(lambda ctx, x: functions.rms_norm(ctx, x, dims, eps))

    # comparisons: 1.0 where true, 0.0 elsewhere, shared; with a shared tensor or public numbers ------------

    def __ge__(self, other: Any) -> Self:
        return self._compare(other, functions.at_least)

    def __le__(self, other: Any) -> Self:
        return self._compare(other, lambda ctx, x, y: functions.at_least(ctx, y, x))

    def __gt__(self, other: Any) -> Self:
        opposite: Self = self.__le__(other)
        return opposite.__rsub__(1)

    def __lt__(self, other: Any) -> Self:
        opposite: Self = self.__ge__(other)
        return opposite.__rsub__(1)

    def __eq__(self, other: Any) -> Self:  # type: ignore[override]  # elementwise, as torch's
        return self._compare(other, functions.equal)

    def __ne__(self, other: Any) -> Self:  # type: ignore[override]
        return self.__eq__(other).__rsub__(1)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise BadData(
            f"{self!r} is secret, so a program cannot branch on it. Compute both branches and select by "
            "multiplication, or open it."
        )

    def _compare(self, other: Any, step: Step) -> Self:
        unit = 1 << self.fixed.fraction
        if isinstance(other, type(self)):
            self._check_compatible(other)

            async def both(ctx: Any, x: Any, y: Any) -> Any:
                x, y = _expand_both(x, y)
                return await step(ctx, x, y) * unit

            return self.run(both, other)
        public = self._encode(other, "the number compared with")

        async def one(ctx: Any, x: Any) -> Any:
            x, y = _expand_both(x, ctx.public(public.to(x.device), x))
            return await step(ctx, x, y) * unit

        return self.run(one)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Support torch.cat and torch.stack of shared tensors; torch refuses anything else."""
        join: Callable[..., Any] | None = {torch.cat: torch.cat, torch.stack: torch.stack}.get(function)
        if join is None:
            return NotImplemented
        dim = (kwargs or {}).get("dim", args[1] if len(args) > 1 else 0)
        first, *others = args[0]
        for other in (first, *others):
            if not isinstance(other, type(first)) or not isinstance(first, MPCTensor):
                raise BadData(
                    f"torch.{function.__name__} joins tensors that are all shared, or all not. Share the "
                    "others."
                )
            first._check_compatible(other)
        if dim < 0:  # of the value, not of its tags
            dim += len(first.shape) + (join is torch.stack)
        return first._map(lambda *shares: join(list(shares), dim), *others)

    def open(self) -> Tensor:
        """Reveal the value to all parties: each sends its share to every other."""
        value = self._run_parties(lambda ctx, x: ctx.reveal(x), [self.shares])[0]
        return self.fixed.decode(value).float() if self.fraction else self.fixed.to_signed(value)

    def run(self, step: Step, *others: Self, fraction: int | None = None) -> Self:
        """Run `async def step(ctx, *shares)` at every party, on its shares of this tensor and the others."""
        self._check_number()
        for other in others:
            self._check_compatible(other)
            if other.ledger is not self.ledger:
                self.ledger.merge(other.ledger)
        return self._like(self._run_parties(step, [self.shares, *[o.shares for o in others]]), fraction)

    def _run_parties(self, step: Step, operands: list[list[Tensor]]) -> list[Tensor]:
        from ..runtimes.inprocess import InProcess

        names = tuple(f"party {i}" for i in range(self.parties))
        device = str(self.shares[0].device)
        empty = [self._wrap(torch.empty(s[0].shape, dtype=torch.int64, device="meta")) for s in operands]
        try:
            requests = self._plan(lambda ctx: step(ctx, *empty))
        except (RuntimeError, IndexError) as error:  # torch's, in a dry run that has shapes only
            raise BadData(
                f"shapes {' and '.join(str(list(e.shape)) for e in empty)} do not match for this operation: "
                f"{error}"
            ) from None

        def program(rank: int) -> Program:
            async def party(me: Party) -> Tensor:
                ctx = await self._connect(me, rank, names, device)
                result = await step(ctx, *[self._wrap(o[rank]) for o in operands])
                await ctx.check()
                share: Tensor = self._unwrap(result)
                return share

            return party

        async def deal(me: Party) -> None:
            await self._deal(me, names, requests, device)

        results = InProcess().run_sync(
            {**{name: program(i) for i, name in enumerate(names)}, DEALER: deal}, ledger=self.ledger
        )
        return [results[name] for name in names]

    def _map(self, linear: Callable[..., Any], *others: Self) -> Self:
        """Apply a linear function to each party's shares."""
        return self._like(
            [
                self._unwrap(linear(*map(self._wrap, mine)))
                for mine in zip(self.shares, *[o.shares for o in others])
            ]
        )

    def _encode(self, value: Any, what: str) -> Tensor:
        if isinstance(value, MPCTensor):
            raise BadData(
                f"{self!r} and {value!r} cannot be combined: one carries tags and the other does not. Share "
                "both with checked=True."
            )
        return self.fixed.encode(value, what).to(self.shares[0].device)

    def _check_compatible(self, other: MPCTensor) -> None:
        if (other.parties, other.fixed, other.fraction) != (self.parties, self.fixed, self.fraction):
            raise BadData(
                f"{self!r} and {other!r} cannot be combined: parties, fractional bits and kind (number or "
                "index) must be the same. "
                f"These have {self.fraction} and {other.fraction} fractional bits."
            )

    def _check_number(self) -> None:
        if not self.fraction:
            raise BadData(
                f"{self!r} is an index, without fractional bits; it cannot be used in arithmetic. Open it."
            )


def _expand_both(x: Any, y: Any) -> tuple[Any, Any]:
    """Two shares, broadcast to one shape."""
    shape = torch.broadcast_shapes(x.shape, y.shape)
    return x.expand(*shape), y.expand(*shape)
