"""`tacit.mpc.share(tensor, checked=True)`: a shared tensor whose shares carry tags (`tagged_context.py`).
Every operator, and `open`, is checked before it returns.

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
from .context import Step
from .dealer import DryRun
from .elements import TaggedShare
from .operators import DEALER, MPCTensor
from .prime import FixedPointPrime
from .tagged import TaggedStock, deal, draw_keys, plan, share_tagged
from .tagged_context import TaggedContext

ASSUMES = (
    "CHECKED: a computing party that deviates from its program is caught before anything is opened, except "
    "with probability below 2^-59, if the dealer and the party that shared the tensor are honest."
)


@dataclass
class TagKeys:
    """Shares of α for all checked tensors of this many parties in this process.

    After a failed check the key may be known, and is not used again.
    """

    alphas: list[int]
    exposed: bool = False


_KEYS: dict[int, TagKeys] = {}


def _keys(parties: int, secret: Secret) -> TagKeys:
    if parties not in _KEYS or _KEYS[parties].exposed:
        _KEYS[parties] = TagKeys(draw_keys(parties, secret))
    return _KEYS[parties]


class CheckedTensor(MPCTensor):
    """A tensor in tagged shares, one per party, of shape [2, …]: the share and the share of its tag."""

    fixed: FixedPointPrime

    def __init__(
        self,
        shares: list[Tensor],
        keys: TagKeys,
        fixed: FixedPointPrime,
        ledger: Ledger,
        fraction: int | None = None,
    ):
        super().__init__(shares, fixed, ledger, fraction)
        self.keys = keys

    def _like(self, shares: list[Tensor], fraction: int | None = None) -> CheckedTensor:
        return CheckedTensor(
            shares, self.keys, self.fixed, self.ledger, self.fraction if fraction is None else fraction
        )

    def _wrap(self, share: Tensor) -> TaggedShare:
        return TaggedShare(share)

    def _unwrap(self, result: TaggedShare | Tensor) -> Tensor:
        return result.data if isinstance(result, TaggedShare) else result  # an opened value has no tag

    def _offline_context(self, rank: int) -> TaggedContext:
        device, alpha = str(self.shares[0].device), self.keys.alphas[rank]
        return TaggedContext(None, rank, (), TaggedStock(DryRun(), 0), self.fixed, device, alpha)

    def _plan(self, program: Step) -> list[Any]:
        return plan(program, fixed=self.fixed)

    async def _connect(self, me: Party, rank: int, names: tuple[str, ...], device: str) -> TaggedContext:
        stock = await TaggedStock.connect(me, rank, len(names), DEALER, device)
        return TaggedContext(me, rank, names, stock, self.fixed, device, self.keys.alphas[rank])

    async def _deal(self, me: Party, names: tuple[str, ...], requests: list[Any], device: str) -> None:
        await deal(me, names, requests, device, self.keys.alphas)

    def _check_compatible(self, other: MPCTensor) -> None:
        super()._check_compatible(other)
        if isinstance(other, CheckedTensor) and other.keys is not self.keys:
            raise BadData(
                f"{self!r} and {other!r} are tagged under different keys: a check failed between them. "
                "Share both again."
            )

    def _run_parties(self, step: Step, operands: list[list[Tensor]]) -> list[Tensor]:
        if self.keys.exposed:
            raise BadRun(
                f"a check of the parties of {self!r} failed, and their key may be known. Share "
                "the tensors again."
            )
        try:
            return super()._run_parties(step, operands)
        except PartyFailed:
            self.keys.exposed = True
            raise


def share_checked(tensor: Any, parties: int, fixed: FixedPointPrime, secret: Secret) -> CheckedTensor:
    """Tagged shares of a tensor, under the key of this process's parties."""
    keys = _keys(parties, secret)
    ledger = Ledger()
    ledger.stamp(ASSUMES)
    shares = share_tagged(fixed.encode(tensor, "the tensor"), keys.alphas, secret)
    return CheckedTensor(shares, keys, fixed, ledger)
