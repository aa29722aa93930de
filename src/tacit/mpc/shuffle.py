"""A permutation that one party knows, applied to shared rows: nobody else learns it, and it learns no row.

    1. the dealer gives the owner L random keys; ρ is the order that sorts them, which the dealer knows, too
    2. the dealer gives [a], uniform, and [b] = [a permuted by ρ]
    3. open e = x − a, which is uniform
    4. L sends δ = ρ⁻¹∘π to all: uniform, because ρ is
    5. [x permuted by ρ] = (e permuted by ρ, at L) + [b];  permuted by δ it is [x permuted by π]

    L |--- PermutedOrder(δ) --->| all others        one round for e and one for δ, however many columns

Case study of permutation correlations: Chase, Ghosh, Poburinnaya: Secret-Shared Shuffle, ASIACRYPT 2020, with
the correlation from a dealer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ProtocolError
from ..parties.message import Message
from .beaver import MaskedFactors
from .context import RingContext
from .dealer import Mask, Request, Values
from .tape import Parts


class PermutedOrder(
    Message, reveals="an order of the rows, under a random permutation that only its sender knows: nothing"
):
    order: Tensor


@dataclass(frozen=True)
class Permutation(Request):
    """a uniform; b = a permuted by the order that sorts the keys of this name."""

    shape: tuple[int, ...]
    keys: str

    def uniform(self) -> Parts:
        return {"a": (self.shape, torch.int64)}

    def derived(self) -> Parts:
        return {"b": (self.shape, torch.int64)}

    def derive(self, uniform: Values, masks: Values) -> Values:
        return {"b": uniform["a"][_sort(masks[self.keys])]}


def _sort(keys: Tensor) -> Tensor:
    return torch.sort(keys, stable=True).indices


async def permute(ctx: RingContext, name: str, x: Tensor, order: Tensor | None, owner: int) -> Tensor:
    """[x[order]] along the first dimension; `order` is None at all parties but its owner."""
    keys = (await ctx.stock.take(Mask(name, (len(x),), owner)))["b"]
    t = await ctx.stock.take(Permutation(tuple(x.shape), name))
    if ctx.me is None:
        return torch.empty_like(x)
    (e,) = await ctx.open(MaskedFactors, x - t["a"])
    share = t["b"]
    if ctx.rank == owner:
        assert order is not None
        rho = _sort(keys)
        delta = torch.empty_like(rho)
        delta[rho] = torch.arange(len(rho))
        delta = delta[order]
        share = share + e[rho]
        await ctx.me.send(ctx.peers, PermutedOrder(delta))
        ctx.charge(len(ctx.peers) * 8 * len(delta))
    else:
        sender = ctx.names[owner]
        delta = (await ctx.me.recv(sender, PermutedOrder)).order
        if (
            delta.shape != (len(x),)
            or delta.dtype is not torch.int64
            or not torch.equal(delta.sort().values, torch.arange(len(x)))
        ):
            raise ProtocolError(f"{sender!r} sent an order that is no permutation of {len(x)} rows.")
    return share[delta]
