"""The state of one computing party in an MPC program: who it is, who its peers are, its correlated randomness
and its costs.

`Context` declares the protocols that `functions.py`, `model.py` and `inference.py` use. `RingContext` runs
them modulo 2^64 between semi-honest parties; `tagged_context.py` has the one whose shares carry tags.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import BadData, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from . import beaver, compare
from . import truncate as truncation
from .beaver import Bilinear, MaskedFactor
from .dealer import Mask, Stock, join
from .ring import ROOM, FixedPoint

DEBUGGED = (
    "DEBUG: intermediate values were opened to every computing party to check their range. Nothing "
    "in this run was hidden."
)
Step = Callable[..., Awaitable[Any]]
Share = Any  # a Tensor, or a TaggedShare: `functions.py` and `model.py` are written for both


class DebugShare(
    Message, reveals="everything: a share of an intermediate value, opened in debug mode to check its range"
):
    values: list[Tensor]


class MaskedWeights(
    Message, reveals="the model's weights under a mask that only their owner holds: uniform words; sent once"
):
    values: list[Tensor]


class OutputShare(Message, reveals="a share of the result: together with the others', the result"):
    values: list[Tensor]


class ResultShare(
    Message, reveals="the owner's share of the result; with its own share the client has the result"
):
    values: list[Tensor]


@dataclass
class Cost:
    """Sequential messages and bytes that this party sent for one operation."""

    rounds: int = 0
    bytes: int = 0


@dataclass
class Context(ABC):
    """One computing party. In a dry run `me` is None and tensors are on torch's meta device."""

    me: Party | None
    rank: int
    names: tuple[str, ...]
    stock: Any
    fixed: FixedPoint = field(default_factory=FixedPoint)
    device: str = "cpu"
    costs: dict[str, Cost] = field(default_factory=dict, kw_only=True)
    # the cost of generating the stock, where the parties generated it themselves
    offline: dict[str, Cost] = field(default_factory=dict, kw_only=True)
    _label: str = field(default="other", kw_only=True)

    product: ClassVar[Step]
    product_public: ClassVar[Step]  # with a public factor
    product_masked: ClassVar[Step]  # with a factor that was masked once (`beaver.MaskedFactor`)
    square: ClassVar[Step]
    truncate: ClassVar[Step]
    sign: ClassVar[Step]
    argmax: ClassVar[Step]
    masked_input: ClassVar[Any]  # the message with a value under its owner's mask

    @property
    def first(self) -> bool:
        """Whether this is the party that adds public constants."""
        return self.rank == 0

    @property
    def peers(self) -> list[str]:
        return [name for i, name in enumerate(self.names) if i != self.rank]

    @contextlib.contextmanager
    def at(self, label: str) -> Iterator[None]:
        """Charge what is opened inside to the operation `label`."""
        before, self._label = self._label, label
        try:
            yield
        finally:
            self._label = before

    def charge(self, bytes: int) -> None:
        """Add one round to the current operation."""
        cost = self.costs.setdefault(self._label, Cost())
        cost.rounds += 1
        cost.bytes += bytes

    @abstractmethod
    def public(self, value: Any, like: Any) -> Any:
        """This party's share of a public value, on the device of `like`."""

    @abstractmethod
    def subtract_mask(self, value: Tensor, b: Any) -> Tensor:
        """value − b, at the party that knows both."""

    async def mask_private(
        self, name: str | None, shape: tuple[int, ...], value: Tensor | None, owner: int
    ) -> MaskedFactor[Any]:
        """Mask a value that its owner knows, once: the owner alone knows b and sends f = value − b.

        `value` is None at the other parties.
        """
        b = (await self.stock.take(Mask(name, shape, owner)))["b"]
        if self.me is None:
            f = torch.empty(shape, dtype=torch.int64, device="meta")
        elif self.rank == owner:
            assert value is not None
            f = self.subtract_mask(value.to(self.device), b)
            await self.me.send(self.peers, self.masked_input([f]))
            self.charge(len(self.peers) * f.numel() * f.element_size())
        else:
            values = (await self.me.recv(self.names[owner], self.masked_input)).values
            self.check_values(self.names[owner], values, [(shape, torch.int64)])
            f = values[0].to(self.device)
        return MaskedFactor(name, f, b, owner)

    def check_values(
        self, name: str, values: list[Tensor], expected: Sequence[tuple[tuple[int, ...], torch.dtype]]
    ) -> None:
        """Refuse values of another shape or type than the program expects from this party."""
        if [(tuple(v.shape), v.dtype) for v in values] != list(expected):
            raise ProtocolError(
                f"{name!r} sent shapes {[tuple(v.shape) for v in values]}; expected "
                f"{[shape for shape, _ in expected]}. All parties must run the same program on the same "
                "shapes."
            )

    @abstractmethod
    async def share_private(self, value: Tensor | None, shape: tuple[int, ...], owner: int) -> Any:
        """Share a value that its owner knows; `value` is None at the other parties."""

    @abstractmethod
    async def reveal(self, x: Any) -> Tensor:
        """Open x to all parties."""

    @abstractmethod
    async def open_to(self, x: Any, to: int) -> Tensor | None:
        """Open x to one party; None at the others."""

    async def check(self) -> None:  # noqa: B027  # optional
        """Abort if a party has deviated, as far as that can be told: not between semi-honest parties."""

    async def expect(self, x: Any, low: float, high: float, what: str) -> None:  # noqa: B027  # optional
        """In debug mode, refuse values outside low … high. Otherwise the caller guarantees the domain."""

    async def expect_product(self, op: Bilinear, x: Any, y: Any) -> None:  # noqa: B027  # optional
        """In debug mode, refuse a product that would overflow."""


@dataclass
class RingContext(Context):
    """Shares modulo 2^64 between semi-honest parties."""

    stock: Stock
    debug: bool = False

    product = beaver.product
    product_public = beaver.product_public
    product_masked = beaver.product_masked
    square = beaver.square
    truncate = truncation.truncate
    sign = compare.sign
    argmax = compare.argmax
    masked_input = MaskedWeights

    def public(self, value: Any, like: Tensor) -> Tensor:
        share = torch.as_tensor(value, dtype=torch.int64, device=like.device)
        return share if self.first else torch.zeros_like(share)

    def subtract_mask(self, value: Tensor, b: Tensor) -> Tensor:
        return value - b

    async def share_private(self, value: Tensor | None, shape: tuple[int, ...], owner: int) -> Tensor:
        """The value itself is its owner's share, since only masked values are sent; the others' are 0."""
        return torch.zeros(shape, dtype=torch.int64, device=self.device) if value is None else value

    async def reveal(self, x: Tensor) -> Tensor:
        return (await self.open(OutputShare, x))[0]

    async def open_to(self, x: Tensor, to: int) -> Tensor | None:
        if self.me is None:
            return x
        if self.rank != to:
            await self.me.send(self.names[to], ResultShare([x]))
            return None
        for name, message in (await self.me.gather(self.peers, ResultShare)).items():
            self.check_values(name, message.values, [(tuple(x.shape), x.dtype)])
            x = x + message.values[0].to(self.device)
        return x

    async def open(self, kind: Any, *shares: Tensor) -> list[Tensor]:
        """1. send my shares to all;  2. receive theirs;  3. add them (bits: exclusive or)."""
        if self.me is None or not self.peers:
            return list(shares)
        await self.me.send(self.peers, kind(list(shares)))
        self.charge(len(self.peers) * sum(s.numel() * s.element_size() for s in shares))
        messages = await self.me.gather(self.peers, kind)
        for name, message in messages.items():
            self.check_values(name, message.values, [(tuple(s.shape), s.dtype) for s in shares])
        theirs = [[v.to(self.device) for v in message.values] for message in messages.values()]
        # summed into the received tensors, which nobody else uses: no allocation
        return [join([*others, mine]) for mine, *others in zip(shares, *theirs)]

    async def send_share(self, kind: Any, share: Tensor, to: int) -> None:
        """Send my share to one party, which collects them."""
        if self.me is None:
            return
        await self.me.send(self.names[to], kind([share]))
        self.charge(share.numel() * share.element_size())

    async def collect(self, kind: Any, share: Tensor) -> Tensor:
        """My share plus those that all others send me."""
        if self.me is None or not self.peers:
            return share
        messages = await self.me.gather(self.peers, kind)
        self.charge(0)
        for name, message in messages.items():
            self.check_values(name, message.values, [(tuple(share.shape), share.dtype)])
        return join([*(m.values[0].to(self.device) for m in messages.values()), share])

    async def expect(self, x: Tensor, low: float, high: float, what: str) -> None:
        if not self.debug or self.me is None:
            return
        self.me.ledger.stamp(DEBUGGED)
        value = self.fixed.decode((await self.open(DebugShare, x))[0])
        if not bool(((value >= low) & (value <= high)).all()):
            raise BadData(
                f"{what} got values from {float(value.min()):g} to {float(value.max()):g}; its domain is "
                f"{low:g} to {high:g}. "
                "Scale the argument; outside the domain the result would be silently wrong."
            )

    async def expect_product(self, op: Bilinear, x: Tensor, y: Tensor) -> None:
        """An overflow is invisible afterwards, so the factors are opened and multiplied as real numbers."""
        if not self.debug or self.me is None:
            return
        self.me.ledger.stamp(DEBUGGED)
        a, b = await self.open(DebugShare, x, y)
        most = float(op(a.double(), b.double()).abs().max()) if a.numel() and b.numel() else 0.0
        if most >= 2.0**ROOM:
            unit = 2.0 ** (2 * self.fixed.fraction)
            raise BadData(
                f"a product reaches ±{most / unit:g}, and the range ends at ±{2.0**ROOM / unit:g}: it would "
                "overflow. Scale the input or the weights, "
                "or use fewer fractional bits."
            )
