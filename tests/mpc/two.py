"""Two parties and no dealer, for tests: run one step on shares of the operands, with masks the two made
before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tacit.mpc import pair
from tacit.mpc.context import RingContext
from tacit.mpc.dealer import Request, plan
from tacit.mpc.extension import OTChannel
from tacit.mpc.ring import FixedPoint
from tacit.mpc.share import split
from tacit.parties import Ledger
from tacit.parties.conformance import Tap
from tacit.parties.secret import Secret
from tacit.runtimes import InProcess

NAMES = ("a", "b")


def play(
    step: Callable[..., Awaitable[Any]],
    *operands: Tensor,
    fixed: FixedPoint | None = None,
    tap: Tap | None = None,
    ledger: Ledger | None = None,
    lines: list[OTChannel] | None = None,
    requests: Sequence[Request] | None = None,
) -> tuple[Any, Any]:
    """What the two ended with; operands are shared freshly."""
    fixed = fixed or FixedPoint()
    shares = [split(x, 2, Secret()) for x in operands]
    if requests is None:
        requests = plan(
            lambda ctx: step(
                ctx, *[torch.empty(x.shape, dtype=torch.int64, device="meta") for x in operands]
            ),
            fixed=fixed,
        )

    def program(rank: int) -> Any:
        async def party(me):
            line = OTChannel(me, rank, NAMES)
            if lines is not None:
                lines.append(line)
            return await step(
                RingContext(me, rank, NAMES, await pair.generate(line, requests), fixed),
                *[s[rank] for s in shares],
            )

        return party

    programs = {"a": program(0), "b": program(1)}
    made = InProcess().run_sync(tap.on(programs) if tap is not None else programs, ledger=ledger)
    return made["a"], made["b"]


def made(*requests: Request, **options: Any) -> list[dict[str, Tensor]]:
    """Each request's parts, put together from what the two made: bits by exclusive or, words by addition."""

    async def step(ctx):
        return [await ctx.stock.take(request) for request in requests]

    one, two = play(step, requests=requests, **options)
    return [
        {name: p[name] ^ q[name] if p[name].dtype is torch.uint8 else p[name] + q[name] for name in p}
        for p, q in zip(one, two)
    ]
