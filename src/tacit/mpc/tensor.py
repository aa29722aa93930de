"""`tacit.mpc.share(tensor)`: a shared tensor for experiments. Each operator runs one program per party, and
the dealer's, in one process.

    x, y = tacit.mpc.share(torch.tensor([1.5, -2.0])), tacit.mpc.share(torch.tensor([4.0, 0.5]))
    (x * y + 1).relu().open()
"""

from __future__ import annotations

from typing import Any, Literal, overload

from torch import Tensor

from ..parameters import bad, check
from ..parties.ledger import Ledger
from ..parties.party import Party
from ..parties.secret import Secret
from .context import RingContext, Step
from .dealer import DryRun, Stock, dealer, plan
from .operators import DEALER, MPCTensor
from .prime import FixedPointPrime
from .ring import FixedPoint
from .share import split
from .tensor_checked import CheckedTensor, share_checked


class SharedTensor(MPCTensor):
    """A tensor in shares modulo 2^64 between semi-honest parties."""

    def __init__(
        self,
        shares: list[Tensor],
        fixed: FixedPoint,
        ledger: Ledger,
        debug: bool = False,
        fraction: int | None = None,
    ):
        super().__init__(shares, fixed, ledger, fraction)
        self.debug = debug

    def _like(self, shares: list[Tensor], fraction: int | None = None) -> SharedTensor:
        return SharedTensor(
            shares, self.fixed, self.ledger, self.debug, self.fraction if fraction is None else fraction
        )

    def _offline_context(self, rank: int) -> RingContext:
        return RingContext(None, rank, (), DryRun(), self.fixed)

    def _plan(self, program: Step) -> list[Any]:
        return plan(program, fixed=self.fixed)

    async def _connect(self, me: Party, rank: int, names: tuple[str, ...], device: str) -> RingContext:
        stock = await Stock.connect(me, rank, len(names), DEALER, device)
        return RingContext(me, rank, names, stock, self.fixed, device, self.debug)

    async def _deal(self, me: Party, names: tuple[str, ...], requests: list[Any], device: str) -> None:
        await dealer(me, names, requests, device)


@overload
def share(
    tensor: Any,
    parties: int = 2,
    *,
    fraction: int = 16,
    debug: bool = False,
    secret: Secret | None = None,
    checked: Literal[False] = False,
) -> SharedTensor: ...
@overload
def share(
    tensor: Any,
    parties: int = 2,
    *,
    fraction: int = 16,
    debug: bool = False,
    secret: Secret | None = None,
    checked: Literal[True],
) -> CheckedTensor: ...
def share(
    tensor: Any,
    parties: int = 2,
    *,
    fraction: int = 16,
    debug: bool = False,
    secret: Secret | None = None,
    checked: bool = False,
) -> SharedTensor | CheckedTensor:
    """Split a tensor into additive shares.

    `debug` opens the arguments of functions to check their domains, and records this in the ledger. `checked`
    tags every share, so that a party that changes one is caught; without it, parties are assumed to be
    semi-honest.
    """
    if isinstance(parties, bool) or not isinstance(parties, int) or parties < 2:
        raise bad(
            "mpc.share",
            "parties",
            parties,
            "a whole number of at least 2",
            "A single party would hold the secret itself.",
        )
    if not isinstance(checked, bool):
        raise bad("mpc.share", "checked", checked, "True or False")
    if checked and debug:
        raise bad(
            "mpc.share", "debug", debug, "False with checked=True", "Debugging opens what the tags protect."
        )
    if checked:
        return share_checked(tensor, parties, check(FixedPointPrime(fraction)), secret or Secret())
    fixed = check(FixedPoint(fraction))
    return SharedTensor(
        split(fixed.encode(tensor, "the tensor"), parties, secret or Secret()), fixed, Ledger(), debug
    )
