"""Oblivious transfers by the million, from 128 of them. Ishai, Kilian, Nissim, Petrank: Extending
Oblivious Transfers Efficiently, CRYPTO 2003, Section 3; pads hashed as Guo, Katz, Wang, Yu, IEEE S&P 2020
(TMMO, AES with a fixed key).

    chooser (bits x)                                         holder
      |--- TransferOffer(A) ----------------------------------->|   once: 128 base transfers, in which the holder chooses (`crypto/ot.py`)
      |<-- TransferChoices(B_1 … B_128) ------------------------|
      |--- Extended(T0 ⊕ T1 ⊕ x) ------------------------------>|   then, transfer i: the holder has pads m0 and m1, the chooser the one of its bit, m_x
      |<-- Correlations(…) -------------------------------------|   what is to be transferred, under the pads: `gilboa.py`, `masks.py`

The holder does not learn x, the chooser nothing of the other pad. It rests on both following the program
(semi-honest), computational Diffie-Hellman, SHA-256 as a random oracle, and AES under a public key as a
random permutation.
"""

from __future__ import annotations

import asyncio
import hashlib

import numpy as np
import torch

from ..crypto import group, ot
from ..crypto.agree import bind
from ..crypto.bits import pack, transpose
from ..errors import BadParameter, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .seat import Cost
from .tape import KEY, Tape

BASE = 128  # base transfers: the security parameter κ
_FIXED = hashlib.sha256(
    b"tacit transfer hash 1"
).digest()  # public: AES under it stands for a random permutation


class TransferOffer(Message, reveals="a random group element: nothing"):
    point: bytes


class TransferChoices(Message, reveals="random group elements, whatever was chosen: nothing"):
    points: bytes


class Extended(Message, reveals="the chooser's random bits under a mask: uniform bits"):
    first: int
    columns: bytes


class Correlations(Message, reveals="the holder's random words and tables under pads: uniform numbers"):
    first: int
    values: bytes


def pads(rows: np.ndarray, first: int, length: int) -> np.ndarray:
    """H(i, row) of each row of 16 bytes, as `length` 64-bit words: π(π(x) ⊕ (i, block)) ⊕ π(x)."""
    blocks = -(-length // 2)
    inner = np.repeat(ot.scrambled(rows, _FIXED), blocks, 0) if blocks > 1 else ot.scrambled(rows, _FIXED)
    tweak = np.empty((len(rows), blocks, 2), np.uint64)
    tweak[..., 0], tweak[..., 1] = (
        np.arange(first, first + len(rows), dtype=np.uint64)[:, None],
        np.arange(blocks, dtype=np.uint64),
    )
    made = tweak.view(np.uint8).reshape(-1, 16)
    made ^= inner
    made = ot.scrambled(made, _FIXED) ^ inner
    return made.view(np.uint64).reshape(len(rows), 2 * blocks)[:, :length]


class Chooser:
    """Holds both seeds of each base transfer; its bits choose."""

    def __init__(self, zeros: ot.Columns, ones: ot.Columns, said: bytes):
        self.zeros, self.ones, self.said, self.count = zeros, ones, said, 0

    @classmethod
    async def meet(cls, me: Party, other: str) -> Chooser:
        a, said = ot.offer(me.secret.bytes)
        await me.send(other, TransferOffer(said))
        points = (await me.recv(other, TransferChoices)).points
        zeros, ones = await asyncio.to_thread(
            ot.pairs, a, said, points, BASE, bind("tacit gilboa 1", me.name, other)
        )
        return cls(ot.Columns(zeros), ot.Columns(ones), said)

    def ask(self, bits: np.ndarray, length: int) -> tuple[bytes, np.ndarray]:
        """(what goes to the holder, the pad of each bit); bits are packed, eight to a byte, the lowest
        first.
        """
        t0 = self.zeros.take(len(bits))
        said = self.ones.take(len(bits))
        said ^= t0
        said ^= bits
        mine = pads(transpose(t0), self.count, length)
        self.count += 8 * len(bits)
        return said.tobytes(), mine


class Holder:
    """Chose one seed of each base transfer, by secret bits s; has both pads of every transfer."""

    def __init__(self, columns: ot.Columns, s: np.ndarray, said: bytes):
        self.columns, self.mask, self.s, self.said, self.count = (
            columns,
            (s * np.uint8(255))[:, None],
            pack(s),
            said,
            0,
        )

    @classmethod
    async def meet(cls, me: Party, other: str) -> Holder:
        s = np.unpackbits(np.frombuffer(me.secret.bytes(BASE // 8), np.uint8), bitorder="little")
        said = (await me.recv(other, TransferOffer)).point
        points, keys = await asyncio.to_thread(
            ot.choose, said, s, bind("tacit gilboa 1", other, me.name), me.secret.bytes
        )
        await me.send(other, TransferChoices(points))
        return cls(ot.Columns(keys), s, said)

    def hear(self, came: bytes, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Both pads of each transfer the chooser asked for."""
        q = np.frombuffer(came, np.uint8).reshape(BASE, -1) & self.mask
        q ^= self.columns.take(q.shape[1])
        rows = transpose(q)
        made = pads(rows, self.count, length), pads(rows ^ self.s, self.count, length)
        self.count += len(rows)
        return made


class Line:
    """A party's end of the transfers with one other: both roles, its own randomness, and what it sent so far,
    by what it was for.
    """

    def __init__(self, me: Party, rank: int, names: tuple[str, ...]):
        if len(names) != 2:
            raise BadParameter(
                f"masks without a dealer are made by two parties, and there are {len(names)}. Take a dealer."
            )
        self.me, self.rank, self.other = me, rank, names[1 - rank]
        self.tape = Tape(me.secret.bytes(KEY))
        self.costs: dict[str, Cost] = {}
        self.label = "products"
        self.session = (
            b""  # what both know of these transfers and nobody else's have: a hash of the offers, in order
        )
        self._chooser: Chooser | None = None
        self._holder: Holder | None = None

    async def chooser(self) -> Chooser:
        if self._chooser is None:
            self._chooser = await Chooser.meet(self.me, self.other)
            self._met(self._chooser.said, group.POINT)
        return self._chooser

    async def holder(self) -> Holder:
        if self._holder is None:
            self._holder = await Holder.meet(self.me, self.other)
            self._met(self._holder.said, BASE * group.POINT)
        return self._holder

    def bits(self, *shape: int) -> np.ndarray:
        """Random bits of my own, a byte each."""
        size = int(np.prod(shape))
        return np.unpackbits(self.draw((size + 7) // 8), count=size).reshape(shape)

    def draw(self, *shape: int) -> np.ndarray:
        """Random bytes of my own."""
        return self.tape.draw(shape, torch.uint8).numpy()

    async def ask(self, bits: np.ndarray, length: int) -> np.ndarray:
        """My pads for my packed bits; the holder hears what it needs."""
        chooser = await self.chooser()
        first = chooser.count
        said, mine = await asyncio.to_thread(chooser.ask, bits, length)
        await self.me.send(self.other, Extended(first, said))
        self._charge(self.label, len(said), 1)
        return mine

    async def hear(self, size: int, length: int, rounds: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Both pads of the other's 8·size bits."""
        holder = await self.holder()
        came = await self.me.recv(self.other, Extended)
        if (came.first, len(came.columns)) != (holder.count, BASE * size):
            raise ProtocolError(
                f"{len(came.columns)} bytes came for transfers from number {came.first} on, where "
                f"{BASE * size} were due for those from "
                f"{holder.count}. Do both run the same program?"
            )
        self._charge(self.label, 0, rounds)
        return await asyncio.to_thread(holder.hear, came.columns, length)

    async def swap(
        self, bits: np.ndarray, size: int, length: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Both ask at once, in one round: (my pads; both pads of the other's 8·size bits)."""
        for role in (self.chooser, self.holder) if self.rank == 0 else (self.holder, self.chooser):
            await role()  # in the same order, if they have not met
        mine = await self.ask(bits, length)
        return mine, *await self.hear(size, length, rounds=0)

    async def tell(self, values: bytes) -> None:
        """As the holder: what is transferred, under the pads."""
        holder = await self.holder()
        await self.me.send(self.other, Correlations(holder.count, values))
        self._charge(self.label, len(values), 1)

    async def told(self, due: int) -> bytes:
        """As the chooser."""
        chooser = await self.chooser()
        came = await self.me.recv(self.other, Correlations)
        if (came.first, len(came.values)) != (chooser.count, due):
            raise ProtocolError(
                f"{len(came.values)} bytes came where {due} were due. Do both run the same program?"
            )
        self._charge(self.label, 0, 1)
        return came.values

    def _met(self, said: bytes, sent: int) -> None:
        self.session = hashlib.sha256(b"tacit transfers 1" + self.session + said).digest()
        self._charge("base transfers", sent, 2)

    def _charge(self, label: str, bytes: int, rounds: int) -> None:
        cost = self.costs.setdefault(label, Cost())
        cost.rounds += rounds
        cost.bytes += bytes
