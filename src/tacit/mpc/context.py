"""The state of one computing party in an MPC program: who it is, who its peers are, its correlated randomness
and its costs.

`Context` is what `functions.py` and `model.py` use. `RingContext` computes modulo 2^64 with semi-honest
parties; `tagged_context.py` has the one whose shares carry tags.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..errors import BadData, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .dealer import Stock, join
from .ring import ROOM, FixedPoint

if TYPE_CHECKING:
    from .beaver import Bilinear

DEBUGGED = (
    "DEBUG: intermediate values were opened to every computing party to check their range. Nothing "
    "in this run was hidden."
)
Step = Callable[..., Awaitable[Any]]


class DebugShare(
    Message, reveals="everything: a share of an intermediate value, opened in debug mode to check its range"
):
    values: list[Tensor]


class Primitives(NamedTuple):
    """The protocols that `functions.py` is built on, for one kind of share."""

    product: Step
    product_public: Step  # with a public factor
    product_masked: Step  # with a factor that was masked once (`beaver.MaskedFactor`)
    square: Step
    truncate: Step
    sign: Step
    argmax: Step


@dataclass
class Cost:
    """Sequential messages and bytes that this party sent for one operation."""

    rounds: int = 0
    bytes: int = 0


@dataclass
class Context:
    """One computing party. In a dry run `me` is None and tensors are on torch's meta device."""

    me: Party | None
    rank: int
    names: tuple[str, ...]
    stock: Any
    fixed: FixedPoint = field(default_factory=FixedPoint)
    device: str = "cpu"
    costs: dict[str, Cost] = field(default_factory=dict, kw_only=True)
    _label: str = field(default="other", kw_only=True)

    primitives: ClassVar[Primitives | None] = None  # None: those of the ring, in `functions.py`

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

    def public(self, value: Any, like: Any) -> Any:
        """This party's share of a public value, on the device of `like`."""
        raise NotImplementedError

    async def expect(self, x: Any, low: float, high: float, what: str) -> None:
        """In debug mode, refuse values outside low … high. Otherwise the caller guarantees the domain."""

    async def expect_product(self, op: Bilinear, x: Any, y: Any) -> None:
        """In debug mode, refuse a product that would overflow."""


@dataclass
class RingContext(Context):
    """Shares modulo 2^64 between semi-honest parties."""

    stock: Stock
    debug: bool = False
    # the cost of generating the stock, where the parties generated it themselves
    offline: dict[str, Cost] = field(default_factory=dict)

    def public(self, value: Any, like: Tensor) -> Tensor:
        share = torch.as_tensor(value, dtype=torch.int64, device=like.device)
        return share if self.first else torch.zeros_like(share)

    async def open(self, kind: Any, *shares: Tensor) -> list[Tensor]:
        """1. send my shares to all;  2. receive theirs;  3. add them (bits: exclusive or)."""
        if self.me is None or not self.peers:
            return list(shares)
        await self.me.send(self.peers, kind([s.cpu() for s in shares]))
        self.charge(len(self.peers) * sum(s.numel() * s.element_size() for s in shares))
        messages = await self.me.gather(self.peers, kind)
        for name, message in messages.items():
            if [(v.shape, v.dtype) for v in message.values] != [(s.shape, s.dtype) for s in shares]:
                raise ProtocolError(
                    f"{name!r} opened shapes {[tuple(v.shape) for v in message.values]}; expected "
                    f"{[tuple(s.shape) for s in shares]} in "
                    f"{kind.kind}. All parties must run the same program on the same shapes."
                )
        theirs = [[v.to(self.device) for v in message.values] for message in messages.values()]
        # summed into the received tensors, which nobody else uses: no allocation
        return [join([*others, mine]) for mine, *others in zip(shares, *theirs)]

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
