"""A computing party's seat: who it is, who the others are, its stock of masks, and the one thing they do
together, opening a masked value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import BadData, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .dealer import Stock, join
from .ring import Fixed

DEBUGGED = (
    "DEBUG: intermediate values were opened to every computing party to check their range. Nothing "
    "in this run was hidden."
)


class DebugShare(
    Message, reveals="everything: a share of an intermediate value, opened in debug mode to check its range"
):
    values: list[Tensor]


@dataclass
class Cost:
    """What one operation took: messages sent one after the other, and bytes sent, by this party."""

    rounds: int = 0
    bytes: int = 0


@dataclass
class Seat:
    me: Party | None  # None in a rehearsal
    rank: int
    names: tuple[str, ...]
    stock: Stock
    fixed: Fixed = field(default_factory=Fixed)
    device: str = "cpu"
    debug: bool = False
    costs: dict[str, Cost] = field(default_factory=dict)
    steps: Any = None  # other than the ring's, for `functions.py`
    offline: dict[str, Cost] = field(
        default_factory=dict
    )  # what it took to make the stock, where the parties made it themselves
    _label: str = "other"

    @property
    def first(self) -> bool:
        """Public constants are added by one party."""
        return self.rank == 0

    @property
    def peers(self) -> list[str]:
        return [name for i, name in enumerate(self.names) if i != self.rank]

    @contextlib.contextmanager
    def at(self, label: str) -> Iterator[None]:
        """What is opened inside counts for this operation."""
        before, self._label = self._label, label
        try:
            yield
        finally:
            self._label = before

    def public(self, value: Any, like: Tensor) -> Tensor:
        """A public ring value as this party's share of it."""
        made = torch.as_tensor(value, dtype=torch.int64, device=like.device)
        return made if self.first else torch.zeros_like(made)

    async def open(self, kind: Any, *shares: Tensor) -> list[Tensor]:
        """1. send my shares to all;  2. receive theirs;  3. add them up (bits: exclusive or)."""
        if self.me is None or not self.peers:
            return list(shares)
        await self.me.send(self.peers, kind([s.cpu() for s in shares]))
        self.charge(len(self.peers) * sum(s.numel() * s.element_size() for s in shares))
        came = await self.me.gather(self.peers, kind)
        for name, message in came.items():
            if [(v.shape, v.dtype) for v in message.values] != [(s.shape, s.dtype) for s in shares]:
                raise ProtocolError(
                    f"{name!r} opened {[tuple(v.shape) for v in message.values]} where "
                    f"{[tuple(s.shape) for s in shares]} was due in "
                    f"{kind.kind}. All parties must run the same program on the same shapes."
                )
        theirs = [[v.to(self.device) for v in message.values] for message in came.values()]
        return [
            join([*others, mine]) for mine, *others in zip(shares, *theirs)
        ]  # into what came, which is nobody else's: no memory is taken

    def charge(self, bytes: int) -> None:
        """One more round, for the operation at hand."""
        cost = self.costs.setdefault(self._label, Cost())
        cost.rounds += 1
        cost.bytes += bytes

    async def expect(self, x: Tensor, low: float, high: float, what: str) -> None:
        """In debug mode, and only there, open x and refuse what lies outside; otherwise the domain is the
        caller's promise.
        """
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
