"""`tacit.mpc.share(tensor, checked=True)`: a shared tensor whose shares carry tags (`spdz.py`). Every operator is checked before it
returns, and `open` before it tells.

    x, y = (tacit.mpc.share(torch.tensor(v), checked=True) for v in ([1.5, -2.0], [4.0, 0.5]))
    (x * y + 1).relu().open()
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..errors import BadData, BadParameter, BadRun, PartyFailed
from ..parties.ledger import Ledger
from ..parties.party import Party, Program
from ..parties.secret import Secret
from . import prime, spdz
from .beaver import MATMUL, MUL, Bilinear
from .prime import FixedPrime
from .spdz import Table
from .tagged import TaggedStock, deal, keys, plan, tagged

DEALER = "dealer"
ASSUMES = ("CHECKED: a computing party that departs from its program is caught before anything is opened, but with probability below 2^-59, if the dealer and "
           "whoever shared the tensor are honest.")
COVERED = "+ - * @, .relu() .max(-1) .argmax(-1) .open()"
Step = Callable[..., Awaitable[Tensor]]


@dataclass
class Keys:
    """α's shares, for all checked tensors of so many parties in this process; after a failed check they may be known and are used no more."""

    alphas: list[int]
    spoiled: bool = False


_KEYS: dict[int, Keys] = {}


def _keys(parties: int, secret: Secret) -> Keys:
    if parties not in _KEYS or _KEYS[parties].spoiled:
        _KEYS[parties] = Keys(keys(parties, secret))
    return _KEYS[parties]


class Checked:
    """Tagged shares of a tensor, one a party: shape [2, …], the share and the share of its tag."""

    def __init__(self, shares: list[Tensor], keys: Keys, fixed: FixedPrime, ledger: Ledger, fraction: int | None = None):
        self.shares, self.keys, self.fixed, self.ledger = shares, keys, fixed, ledger
        self.fraction = fixed.fraction if fraction is None else fraction  # 0: a whole number, an index

    @property
    def shape(self) -> torch.Size:
        return self.shares[0].shape[1:]

    @property
    def parties(self) -> int:
        return len(self.shares)

    def __repr__(self) -> str:
        return f"<Checked {list(self.shape)} between {self.parties} parties>"

    # without a message ---------------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Checked:
        self._number()
        if isinstance(other, Checked):
            self._with(other)
            shape = torch.broadcast_shapes(self.shape, other.shape)
            return self._of([prime.add(_wide(a, shape), _wide(b, shape)) for a, b in zip(self.shares, other.shares)])
        public = self._encoded(other, "the public summand")
        shape = torch.broadcast_shapes(self.shape, public.shape)
        return self._of([self._table(i).plus(_wide(s, shape), public) for i, s in enumerate(self.shares)])

    __radd__ = __add__

    def __neg__(self) -> Checked:
        return self._of([prime.sub(torch.zeros_like(s), s) for s in self.shares])

    def __sub__(self, other: Any) -> Checked:
        return self + (-other if isinstance(other, Checked) else -torch.as_tensor(other))

    def __rsub__(self, other: Any) -> Checked:
        return -self + other

    # with messages -------------------------------------------------------------------------------------------------------------

    def __mul__(self, other: Any) -> Checked:
        return self._times(other, MUL)

    __rmul__ = __mul__

    def __matmul__(self, other: Any) -> Checked:
        return self._times(other, MATMUL)

    def _times(self, other: Any, op: Bilinear) -> Checked:
        if isinstance(other, Checked):
            async def secret(table: Table, x: Tensor, y: Tensor) -> Tensor:
                return await spdz.truncate(table, await spdz.product(table, x, y, op))

            return self._run(secret, other)
        public = self._encoded(other, "the public factor")

        async def known(table: Table, x: Tensor) -> Tensor:
            return await spdz.truncate(table, spdz.times_public(x, public.to(x.device), op))

        return self._run(known)

    def relu(self) -> Checked:
        return self._run(spdz.relu)

    def max(self, dim: int = -1) -> Checked:
        return self._run(lambda table, x: spdz.largest(table, x.movedim(_behind(dim), -1)))

    def argmax(self, dim: int = -1) -> Checked:
        return self._run(lambda table, x: spdz.argmax(table, x.movedim(_behind(dim), -1)), fraction=0)

    def open(self) -> Tensor:
        """The value, if its tag says so: opened to all, checked, and only then given."""
        async def reveal(table: Table, x: Tensor) -> Tensor:
            return (await table.open(x))[0]

        value = self._parties(reveal, [self.shares])[0]
        return self.fixed.decode(value).float() if self.fraction else prime.centred(value)

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("sigmoid", "tanh", "gelu", "softmax", "exp", "log", "sqrt", "reciprocal"):
            raise BadParameter(f"{name} is not covered by checked=True: its steps carry no tags, so a change in them would go unnoticed. "
                               f"Covered are {COVERED}. Without checked=True it is there, for parties that follow their programs.")
        raise AttributeError(name)

    def __truediv__(self, other: Any) -> Checked:
        if isinstance(other, Checked):
            self.reciprocal  # refuses  # noqa: B018
        return self * (1 / torch.as_tensor(other, dtype=torch.float64))

    def _encoded(self, value: Any, what: str) -> Tensor:
        if hasattr(value, "shares"):
            raise BadData(f"{self!r} and {value!r} do not go together: one carries tags and the other does not. Share both with checked=True.")
        return self.fixed.encode(value, what).to(self.shares[0].device)

    def _with(self, other: Checked) -> None:
        if (other.parties, other.fixed, other.fraction) != (self.parties, self.fixed, self.fraction):
            raise BadData(f"{self!r} and {other!r} do not go together: parties, fractional bits and kind (number or index) must be the same.")
        if other.keys is not self.keys:
            raise BadData(f"{self!r} and {other!r} are tagged under different keys: a check failed between them. Share both anew.")

    def _number(self) -> None:
        if not self.fraction:
            raise BadData(f"{self!r} is an index, a whole number; numbers with fractional bits cannot be computed from it. Open it.")

    def _of(self, shares: list[Tensor], fraction: int | None = None) -> Checked:
        return Checked(shares, self.keys, self.fixed, self.ledger, self.fraction if fraction is None else fraction)

    def _table(self, rank: int) -> Table:
        """A place for what needs no stock and no message."""
        from .tagged import TaggedRehearsal

        return Table(None, rank, (), TaggedRehearsal(), self.fixed, str(self.shares[0].device), self.keys.alphas[rank])

    def _run(self, step: Step, *others: Checked, fraction: int | None = None) -> Checked:
        self._number()
        for other in others:
            self._with(other)
            if other.ledger is not self.ledger:
                self.ledger.merge(other.ledger)
        return self._of(self._parties(step, [self.shares, *[o.shares for o in others]]), fraction)

    def _parties(self, step: Step, operands: list[list[Tensor]]) -> list[Tensor]:
        from ..runtimes.inprocess import InProcess

        if self.keys.spoiled:
            raise BadRun(f"a check of the parties of {self!r} failed, and after that their key may be known. Share the tensors anew.")
        names = tuple(f"party {i}" for i in range(self.parties))
        device, shapes = str(self.shares[0].device), [s[0].shape for s in operands]
        try:
            requests = plan(lambda table: step(table, *[torch.empty(s, dtype=torch.int64, device="meta") for s in shapes]), fixed=self.fixed)
        except (RuntimeError, IndexError) as error:  # torch's, in a rehearsal that has shapes only
            raise BadData(f"shapes {' and '.join(str(list(s[1:])) for s in shapes)} do not fit this operation: {error}") from None

        def program(rank: int) -> Program:
            async def party(me: Party) -> Tensor:
                stock = await TaggedStock.live(me, rank, len(names), DEALER, device)
                table = Table(me, rank, names, stock, self.fixed, device, self.keys.alphas[rank])
                made = await step(table, *[o[rank] for o in operands])
                await table.check()
                return made
            return party

        async def dealer(me: Party) -> None:
            await deal(me, names, requests, device, self.keys.alphas)

        try:
            made = InProcess().run_sync({**{name: program(i) for i, name in enumerate(names)}, DEALER: dealer}, ledger=self.ledger)
        except PartyFailed:
            self.keys.spoiled = True
            raise
        return [made[name] for name in names]


def _behind(dim: int) -> int:
    """A dimension of the value, counted in the tagged tensor."""
    return dim if dim < 0 else dim + 1


def _wide(x: Tensor, shape: torch.Size) -> Tensor:
    return x.reshape(2, *[1] * (len(shape) - x.dim() + 1), *x.shape[1:]).expand(2, *shape)


def share_checked(tensor: Any, parties: int, fixed: FixedPrime, secret: Secret) -> Checked:
    """Tagged shares of a tensor, under the key of this process's parties."""
    held = _keys(parties, secret)
    ledger = Ledger()
    ledger.stamp(ASSUMES)
    return Checked(tagged(fixed.encode(tensor, "the tensor"), held.alphas, secret), held, fixed, ledger)
