"""The one-hot vector of a shared small number: [x = 0], …, [x = 2^k − 1], in one round.

    1. the dealer gives [r] and the one-hot vector of r modulo 2^k, [hot(r)]
    2. open c = x − r modulo 2^k, which is uniform
    3. hot(x)[j] = hot(r)[j − c]: each party rotates its shares by c

    party 0 |<-- MaskedNumbers(c) -->| party 1      2 bytes a number; the dealer sends 8·2^k to the last party

x is shared modulo 2^64, so the lowest k bits of the shares are shares modulo 2^k. After "one-time truth
tables": Ishai, Kushilevitz, Meldgaard, Orlandi, Paskin-Cherniavsky: On the Power of Correlated Randomness in
Secure Computation, TCC 2013, with the table of a one-hot vector.

Learns: neither party anything; c is uniform. Semi-honest parties; the dealer colludes with neither.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parties.message import Message
from .context import RingContext
from .dealer import Request, Values
from .tape import Parts


class MaskedNumbers(Message, reveals="small numbers under one-time masks: uniform numbers"):
    values: list[Tensor]


@dataclass(frozen=True)
class OneHot(Request):
    """`count` random numbers below 2^bits and their one-hot vectors."""

    count: int
    bits: int

    def uniform(self) -> Parts:
        return {"r": ((self.count,), torch.int64)}

    def derived(self) -> Parts:
        return {"hot": ((self.count, 1 << self.bits), torch.int64)}

    def derive(self, uniform: Values, masks: Values) -> Values:
        number = uniform["r"] & ((1 << self.bits) - 1)
        places = torch.arange(1 << self.bits, device=number.device)
        return {"hot": (number[:, None] == places).long()}


async def one_hot(ctx: RingContext, x: Tensor, bits: int) -> Tensor:
    """[x = j] for j < 2^bits, as 0 or 1: n × 2^bits. The n numbers must be in this range."""
    t = await ctx.stock.take(OneHot(len(x), bits))  # 1
    if x.is_meta:  # a dry run: nothing more is requested
        return t["hot"]
    last = (1 << bits) - 1
    (sums,) = await ctx.open(MaskedNumbers, ((x - t["r"]) & last).to(torch.int16))  # 2
    c = sums.long() & last
    places = (torch.arange(last + 1, device=x.device) - c[:, None]) & last
    return t["hot"].gather(1, places)  # 3
