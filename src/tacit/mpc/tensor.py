"""`tacit.mpc.share(tensor)`: a shared tensor to try things out with. Underneath, each operator runs one program per party, and a dealer's, in one process.

    x, y = tacit.mpc.share(torch.tensor([1.5, -2.0])), tacit.mpc.share(torch.tensor([4.0, 0.5]))
    (x * y + 1).relu().open()
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, overload

import torch
from torch import Tensor

from ..errors import BadData
from ..parameters import bad, check
from ..parties.ledger import Ledger
from ..parties.message import Message
from ..parties.party import Party, Program
from ..parties.secret import Secret
from . import functions
from .beaver import MATMUL
from .compare import argmax, largest
from .dealer import Stock, dealer, plan
from .prime import FixedPrime
from .ring import Fixed
from .seat import Seat
from .share import split
from .tensor_checked import Checked, share_checked

DEALER = "dealer"
Step = Callable[..., Awaitable[Tensor]]


class OutputShare(Message, reveals="a share of the result: together with the others', the result"):
    values: list[Tensor]


class Shared:
    """Shares of a tensor, one a party. `.open()` gives the value; `.ledger` who saw what so far."""

    def __init__(self, shares: list[Tensor], fixed: Fixed, ledger: Ledger, debug: bool = False, fraction: int | None = None):
        self.shares, self.fixed, self.ledger, self.debug = shares, fixed, ledger, debug
        self.fraction = fixed.fraction if fraction is None else fraction  # 0: a whole number, an index

    @property
    def shape(self) -> torch.Size:
        return self.shares[0].shape

    @property
    def parties(self) -> int:
        return len(self.shares)

    def __repr__(self) -> str:
        return f"<Shared {list(self.shape)} between {self.parties} parties>"

    # without a message ---------------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Shared:
        if isinstance(other, Shared):
            self._with(other)
            return self._of([a + b for a, b in zip(self.shares, other.shares)])
        self._number()
        public = self.fixed.encode(other, "the public summand").to(self.shares[0].device)
        return self._of([self.shares[0] + public, *[s + torch.zeros_like(public) for s in self.shares[1:]]])

    __radd__ = __add__

    def __neg__(self) -> Shared:
        return self._of([-s for s in self.shares])

    def __sub__(self, other: Any) -> Shared:
        return self + (-other if isinstance(other, Shared) else -torch.as_tensor(other))

    def __rsub__(self, other: Any) -> Shared:
        return -self + other

    def __getitem__(self, index: Any) -> Shared:
        return self._of([s[index] for s in self.shares])

    def sum(self, dim: int = -1) -> Shared:
        return self._of([s.sum(dim) for s in self.shares])

    def reshape(self, *shape: int) -> Shared:
        return self._of([s.reshape(*shape) for s in self.shares])

    def transpose(self, a: int = -2, b: int = -1) -> Shared:
        return self._of([s.transpose(a, b) for s in self.shares])

    # with a protocol -----------------------------------------------------------------------------------------------------------

    def __mul__(self, other: Any) -> Shared:
        if isinstance(other, Shared):
            return self.run(functions.mul, other)
        public = self.fixed.encode(other, "the public factor").to(self.shares[0].device)
        return self.run(lambda seat, x: functions.scale(seat, x, public.to(seat.device)))

    __rmul__ = __mul__

    def __matmul__(self, other: Any) -> Shared:
        if not isinstance(other, Shared):
            public = self.fixed.encode(other, "the public factor").to(self.shares[0].device)
            other = self._of([public, *[torch.zeros_like(public)] * (self.parties - 1)])
        return self.run(lambda seat, x, y: functions.mul(seat, x, y, MATMUL), other)

    def __truediv__(self, other: Any) -> Shared:
        return self * (other.reciprocal() if isinstance(other, Shared) else 1 / torch.as_tensor(other, dtype=torch.float64))

    def __rtruediv__(self, other: Any) -> Shared:
        return self.reciprocal() * other

    def relu(self) -> Shared:
        return self.run(functions.relu)

    def max(self, dim: int = -1) -> Shared:
        return self.run(lambda seat, x: largest(seat, x.movedim(dim, -1)))

    def argmax(self, dim: int = -1) -> Shared:
        return self.run(lambda seat, x: argmax(seat, x.movedim(dim, -1)), fraction=0)

    def softmax(self, dim: int = -1) -> Shared:
        return self.run(lambda seat, x: functions.softmax(seat, x, dim))

    def exp(self) -> Shared:
        return self.run(functions.exp)

    def log(self) -> Shared:
        return self.run(functions.log)

    def sqrt(self) -> Shared:
        return self.run(functions.sqrt)

    def reciprocal(self) -> Shared:
        return self.run(functions.reciprocal)

    def sigmoid(self) -> Shared:
        return self.run(functions.sigmoid)

    def tanh(self) -> Shared:
        return self.run(functions.tanh)

    def gelu(self) -> Shared:
        return self.run(functions.gelu)

    def open(self) -> Tensor:
        """The value: every party sends its share to every other. From here on it is no secret."""
        async def reveal(seat: Seat, x: Tensor) -> Tensor:
            return (await seat.open(OutputShare, x))[0]

        value = self._parties(reveal, [self.shares])[0]
        return self.fixed.decode(value).float() if self.fraction else value

    def _with(self, other: Shared) -> None:
        if (other.parties, other.fixed, other.fraction) != (self.parties, self.fixed, self.fraction):
            raise BadData(f"{self!r} and {other!r} do not go together: parties, fractional bits and kind (number or index) must be the same. "
                          f"These have {self.fraction} and {other.fraction} fractional bits.")

    def _number(self) -> None:
        if not self.fraction:
            raise BadData(f"{self!r} is an index, a whole number; numbers with fractional bits cannot be computed from it. Open it.")

    def _of(self, shares: list[Tensor], fraction: int | None = None) -> Shared:
        return Shared(shares, self.fixed, self.ledger, self.debug, self.fraction if fraction is None else fraction)

    def run(self, step: Step, *others: Shared, fraction: int | None = None) -> Shared:
        """A step of your own: `async def step(seat, *shares)`, run by every party on its shares of this tensor and the others."""
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
        shapes = [s[0].shape for s in operands]
        try:
            requests = plan(lambda seat: step(seat, *[torch.empty(s, dtype=torch.int64, device="meta") for s in shapes]), fixed=self.fixed)
        except (RuntimeError, IndexError) as error:  # torch's, in a rehearsal that has shapes only
            raise BadData(f"shapes {' and '.join(str(list(s)) for s in shapes)} do not fit this operation: {error}") from None

        def program(rank: int) -> Program:
            async def party(me: Party) -> Tensor:
                stock = await Stock.live(me, rank, len(names), DEALER, device)
                return await step(Seat(me, rank, names, stock, self.fixed, device, self.debug), *[o[rank] for o in operands])
            return party

        async def deal(me: Party) -> None:
            await dealer(me, names, requests, device)

        made = InProcess().run_sync({**{name: program(i) for i, name in enumerate(names)}, DEALER: deal}, ledger=self.ledger)
        return [made[name] for name in names]


@overload
def share(tensor: Any, parties: int = 2, *, fraction: int = 16, debug: bool = False, secret: Secret | None = None,
          checked: Literal[False] = False) -> Shared: ...
@overload
def share(tensor: Any, parties: int = 2, *, fraction: int = 16, debug: bool = False, secret: Secret | None = None, checked: Literal[True]) -> Checked: ...
def share(tensor: Any, parties: int = 2, *, fraction: int = 16, debug: bool = False, secret: Secret | None = None, checked: bool = False) -> Shared | Checked:
    """Split a tensor into additive shares. `debug` opens what goes into a function to check its domain, and says so in the ledger. `checked` tags every
    share, so that a party that changes one is caught; without it parties are trusted to follow their programs."""
    if isinstance(parties, bool) or not isinstance(parties, int) or parties < 2:
        raise bad("mpc.share", "parties", parties, "a whole number of at least 2", "One party alone would hold the secret itself.")
    if not isinstance(checked, bool):
        raise bad("mpc.share", "checked", checked, "True or False")
    if checked and debug:
        raise bad("mpc.share", "debug", debug, "False with checked=True", "Debugging opens what the tags protect.")
    if checked:
        return share_checked(tensor, parties, check(FixedPrime(fraction)), secret or Secret())
    fixed = check(Fixed(fraction))
    return Shared(split(fixed.encode(tensor, "the tensor"), parties, secret or Secret()), fixed, Ledger(), debug)
