"""`tacit.mpc.share(tensor)`: a shared tensor to try things out with. Underneath, each operator runs one
program per party, and a dealer's, in one process.

x, y = tacit.mpc.share(torch.tensor([1.5, -2.0])), tacit.mpc.share(torch.tensor([4.0, 0.5]))
(x * y + 1).relu().open()
"""

from __future__ import annotations

from typing import Any, Literal, overload

from torch import Tensor

from ..parameters import bad, check
from ..parties.ledger import Ledger
from ..parties.message import Message
from ..parties.party import Party
from ..parties.secret import Secret
from .dealer import Rehearsal, Stock, dealer, plan
from .operators import DEALER, Operators, Step
from .prime import FixedPrime
from .ring import Fixed
from .seat import Seat
from .share import split
from .tensor_checked import Checked, share_checked


class OutputShare(Message, reveals="a share of the result: together with the others', the result"):
    values: list[Tensor]


class Shared(Operators):
    """Shares modulo 2^64; parties are trusted to follow their programs."""

    def __init__(
        self,
        shares: list[Tensor],
        fixed: Fixed,
        ledger: Ledger,
        debug: bool = False,
        fraction: int | None = None,
    ):
        super().__init__(shares, fixed, ledger, fraction)
        self.debug = debug

    def _of(self, shares: list[Tensor], fraction: int | None = None) -> Shared:
        return Shared(
            shares, self.fixed, self.ledger, self.debug, self.fraction if fraction is None else fraction
        )

    def _place(self, rank: int) -> Seat:
        return Seat(None, rank, (), Rehearsal(), self.fixed)

    def _plan(self, program: Step) -> list[Any]:
        return plan(program, fixed=self.fixed)

    async def _sit(self, me: Party, rank: int, names: tuple[str, ...], device: str) -> Seat:
        return Seat(
            me,
            rank,
            names,
            await Stock.live(me, rank, len(names), DEALER, device),
            self.fixed,
            device,
            self.debug,
        )

    async def _deal(self, me: Party, names: tuple[str, ...], requests: list[Any], device: str) -> None:
        await dealer(me, names, requests, device)

    async def _reveal(self, seat: Seat, x: Tensor) -> Tensor:
        return (await seat.open(OutputShare, x))[0]


@overload
def share(
    tensor: Any,
    parties: int = 2,
    *,
    fraction: int = 16,
    debug: bool = False,
    secret: Secret | None = None,
    checked: Literal[False] = False,
) -> Shared: ...
@overload
def share(
    tensor: Any,
    parties: int = 2,
    *,
    fraction: int = 16,
    debug: bool = False,
    secret: Secret | None = None,
    checked: Literal[True],
) -> Checked: ...
def share(
    tensor: Any,
    parties: int = 2,
    *,
    fraction: int = 16,
    debug: bool = False,
    secret: Secret | None = None,
    checked: bool = False,
) -> Shared | Checked:
    """Split a tensor into additive shares. `debug` opens what goes into a function to check its domain, and
    says so in the ledger. `checked` tags every share, so that a party that changes one is caught; without it
    parties are trusted to follow their programs.
    """
    if isinstance(parties, bool) or not isinstance(parties, int) or parties < 2:
        raise bad(
            "mpc.share",
            "parties",
            parties,
            "a whole number of at least 2",
            "One party alone would hold the secret itself.",
        )
    if not isinstance(checked, bool):
        raise bad("mpc.share", "checked", checked, "True or False")
    if checked and debug:
        raise bad(
            "mpc.share", "debug", debug, "False with checked=True", "Debugging opens what the tags protect."
        )
    if checked:
        return share_checked(tensor, parties, check(FixedPrime(fraction)), secret or Secret())
    fixed = check(Fixed(fraction))
    return Shared(
        split(fixed.encode(tensor, "the tensor"), parties, secret or Secret()), fixed, Ledger(), debug
    )
