"""A table of parties for tests: run one step on shares of the operands, and look at what comes out and who
saw what.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import torch
from torch import Tensor

from tacit.mpc.context import RingContext
from tacit.mpc.dealer import Request, Stock, dealer, plan
from tacit.mpc.ring import FixedPoint
from tacit.mpc.share import reconstruct, split
from tacit.parties import Ledger
from tacit.parties.conformance import Tap
from tacit.parties.secret import Secret
from tacit.runtimes import InProcess

# all that parties send each other on the way: values under masks
MASKED = {
    "TapeKey",
    "Corrections",
    "MaskedFactors",
    "MaskedProducts",
    "MaskedValues",
    "MaskedBits",
    "MaskedSigns",
}


@functools.lru_cache(256)  # a dry run costs more than the run
def requested(
    step: Callable[..., Awaitable[Any]], shapes: tuple[tuple[int, ...], ...], fixed: FixedPoint
) -> list[Request]:
    """What a step asks of its dealer."""
    return plan(
        lambda ctx: step(ctx, *[torch.empty(s, dtype=torch.int64, device="meta") for s in shapes]),
        fixed=fixed,
    )


def play(
    step: Callable[..., Awaitable[Any]],
    *operands: Tensor,
    parties: int = 2,
    fixed: FixedPoint | None = None,
    debug: bool = False,
    ledger: Ledger | None = None,
    tap: Tap | None = None,
    contexts: list[RingContext] | None = None,
) -> list[Any]:
    """What each party's step returned; operands are ring values, shared freshly."""
    shares = [split(x, parties, Secret()) for x in operands]
    return play_on(step, *shares, fixed=fixed, debug=debug, ledger=ledger, tap=tap, contexts=contexts)


def play_on(
    step: Callable[..., Awaitable[Any]],
    *shares: list[Tensor],
    fixed: FixedPoint | None = None,
    debug: bool = False,
    ledger: Ledger | None = None,
    tap: Tap | None = None,
    contexts: list[RingContext] | None = None,
) -> list[Any]:
    """What each party's step returned, on these shares of each operand."""
    fixed, parties = fixed or FixedPoint(), len(shares[0])
    names = tuple(f"party {i}" for i in range(parties))
    requests = requested(step, tuple(tuple(s[0].shape) for s in shares), fixed)

    def program(rank: int) -> Any:
        async def party(me):
            ctx = RingContext(
                me, rank, names, await Stock.connect(me, rank, parties, "dealer"), fixed, debug=debug
            )
            if contexts is not None:
                contexts.append(ctx)
            return await step(ctx, *[s[rank] for s in shares])

        return party

    async def deal(me):
        await dealer(me, names, requests)

    programs = {**{name: program(i) for i, name in enumerate(names)}, "dealer": deal}
    made = InProcess().run_sync(tap.on(programs) if tap is not None else programs, ledger=ledger)
    return [made[name] for name in names]


def value(step: Callable[..., Awaitable[Tensor]], *operands: Tensor, **options: Any) -> Tensor:
    """The ring value whose shares the step returned."""
    return reconstruct(play(step, *operands, **options))
