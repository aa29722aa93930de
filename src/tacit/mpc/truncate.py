"""Taking fractional bits off again: [v] with 2f of them → [v / 2^f] with f.

`truncate`, any number of parties; after Escudero, Ghosh, Keller, Rachuri, Scholl: Improved Primitives for
MPC over Mixed Arithmetic-Binary Circuits, CRYPTO 2020, Section 5, with the masks from a dealer:
1. the dealer gives [r], [R] = [r div 2^f] and [s] = [top bit of r], r uniform in 64 bits
2. open c = v + 2^62 + r, which is uniform
3. c wrapped around exactly where s = 1 and c's own top bit is 0, because 0 ≤ v + 2^62 < 2^63; so
   [v / 2^f] = (c div 2^f) − [R] + 2^(64−f) · (1 − top bit of c) · [s] − 2^(62−f)

error   less than one unit in the last place, up or down with the probabilities that make it right on average; never more, for |v| < 2^62
cost    one round, 8 bytes a value and party; the dealer sends the last party 10 more (s matters modulo 2^f only)

`truncate_locally`, two parties and nothing sent (Mohassel, Zhang: SecureML, IEEE S&P 2017, Section 4.1):
each shifts its own share. It goes wrong, by
2^(64−f), with probability |v| / 2^64 a value: 2^-28 for v = 2^36 (a product of 16), so one in 2,700 inferences of 100,000 values. Nothing here calls it;
it stands as the reference that tests measure that probability on. With three parties about one value in
four is wrong, however small it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..parties.message import Message
from .beaver import ROOM
from .dealer import Parts, Request
from .ring import WORD, shift
from .seat import Seat


class MaskedProducts(
    Message, reveals="values under one-time masks, to take fractional bits off: uniform words"
):
    values: list[Tensor]


@dataclass(frozen=True)
class Truncation(Request):
    shape: tuple[int, ...]
    bits: int

    def free(self) -> Parts:
        return {"r": (self.shape, torch.int64)}

    def fixed(self) -> Parts:
        return {
            "R": (self.shape, torch.int64),
            "s": (self.shape, torch.int16 if self.bits <= 16 else torch.int32),
        }

    def make(self, free: dict[str, Tensor], masks: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"R": shift(free["r"], self.bits), "s": shift(free["r"], WORD - 1)}


async def truncate(seat: Seat, v: Tensor, bits: int | None = None) -> Tensor:
    """[v / 2^bits]; bits is the fixed point's own unless given."""
    bits = seat.fixed.fraction if bits is None else bits
    await seat.expect(
        v, -(2.0 ** (ROOM - seat.fixed.fraction)), 2.0 ** (ROOM - seat.fixed.fraction), "a truncation"
    )
    t = await seat.stock.take(Truncation(tuple(v.shape), bits))  # 1
    (c,) = await seat.open(MaskedProducts, t["r"].add_(v).add_(1 << ROOM if seat.first else 0))  # 2
    wrapped = (
        t["s"].long().bitwise_left_shift_(WORD - bits).masked_fill_(c < 0, 0)
    )  # 3, in the masks' own memory
    made = wrapped.sub_(t["R"])
    return made.add_(shift(c, bits)).sub_(1 << (ROOM - bits)) if seat.first else made


def truncate_locally(v: Tensor, rank: int, bits: int) -> Tensor:
    """Party 0: x_0 >> f;  party 1: −((−x_1) >> f). Two parties only, and wrong with probability |v| / 2^64."""
    return v >> bits if rank == 0 else -((-v) >> bits)
