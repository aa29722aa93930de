"""`tacit.mpc.share(tensor, checked=True)`: a shared tensor whose shares carry tags (`spdz.py`). Every
operator is checked before it returns, and `open` before it tells.

    x, y = (tacit.mpc.share(torch.tensor(v), checked=True) for v in ([1.5, -2.0], [4.0, 0.5]))
    (x * y + 1).relu().open()
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import BadData, BadRun, PartyFailed
from ..parties.ledger import Ledger
from ..parties.party import Party
from ..parties.secret import Secret
from . import prime
from .elements import Desk, Elements
from .operators import DEALER, Operators, Step
from .prime import FixedPrime
from .spdz import Table
from .tagged import TaggedRehearsal, TaggedStock, deal, keys, plan, tagged

ASSUMES = (
    "CHECKED: a computing party that departs from its program is caught before anything is opened, but with "
    "probability below 2^-59, if the dealer and "
    "whoever shared the tensor are honest."
)


@dataclass
class Keys:
    """α's shares, for all checked tensors of so many parties in this process; after a failed check they may
    be known and are used no more.
    """

    alphas: list[int]
    spoiled: bool = False


_KEYS: dict[int, Keys] = {}


def _keys(parties: int, secret: Secret) -> Keys:
    if parties not in _KEYS or _KEYS[parties].spoiled:
        _KEYS[parties] = Keys(keys(parties, secret))
    return _KEYS[parties]


class Checked(Operators):
    """Tagged shares of a tensor, one a party: shape [2, …], the share and the share of its tag."""

    fixed: FixedPrime

    def __init__(
        self, shares: list[Tensor], keys: Keys, fixed: FixedPrime, ledger: Ledger, fraction: int | None = None
    ):
        super().__init__(shares, fixed, ledger, fraction)
        self.keys = keys

    def _of(self, shares: list[Tensor], fraction: int | None = None) -> Checked:
        return Checked(
            shares, self.keys, self.fixed, self.ledger, self.fraction if fraction is None else fraction
        )

    def _up(self, share: Tensor) -> Elements:
        return Elements(share)

    def _down(self, made: Any) -> Tensor:
        return made.both if isinstance(made, Elements) else made  # what was opened has no tag

    def _place(self, rank: int) -> Desk:
        return Desk(
            Table(
                None,
                rank,
                (),
                TaggedRehearsal(),
                self.fixed,
                str(self.shares[0].device),
                self.keys.alphas[rank],
            )
        )

    def _plan(self, program: Step) -> list[Any]:
        return plan(lambda table: program(Desk(table)), fixed=self.fixed)

    async def _sit(self, me: Party, rank: int, names: tuple[str, ...], device: str) -> Desk:
        stock = await TaggedStock.live(me, rank, len(names), DEALER, device)
        return Desk(Table(me, rank, names, stock, self.fixed, device, self.keys.alphas[rank]))

    async def _deal(self, me: Party, names: tuple[str, ...], requests: list[Any], device: str) -> None:
        await deal(me, names, requests, device, self.keys.alphas)

    async def _done(self, seat: Desk, made: Any) -> Tensor:
        await seat.table.check()
        return self._down(made)

    async def _reveal(self, seat: Desk, x: Elements) -> Tensor:
        return (await seat.table.open(x.both))[0]

    def _whole(self, opened: Tensor) -> Tensor:
        return prime.centred(opened)

    def _with(self, other: Operators) -> None:
        super()._with(other)
        if isinstance(other, Checked) and other.keys is not self.keys:
            raise BadData(
                f"{self!r} and {other!r} are tagged under different keys: a check failed between them. "
                "Share both anew."
            )

    def _parties(self, step: Step, operands: list[list[Tensor]]) -> list[Tensor]:
        if self.keys.spoiled:
            raise BadRun(
                f"a check of the parties of {self!r} failed, and after that their key may be known. Share "
                "the tensors anew."
            )
        try:
            return super()._parties(step, operands)
        except PartyFailed:
            self.keys.spoiled = True
            raise


def share_checked(tensor: Any, parties: int, fixed: FixedPrime, secret: Secret) -> Checked:
    """Tagged shares of a tensor, under the key of this process's parties."""
    held = _keys(parties, secret)
    ledger = Ledger()
    ledger.stamp(ASSUMES)
    return Checked(tagged(fixed.encode(tensor, "the tensor"), held.alphas, secret), held, fixed, ledger)
