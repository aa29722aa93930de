"""Oblivious transfer extension: millions of transfers from 128 base transfers. Ishai, Kilian, Nissim,
Petrank: Extending Oblivious Transfers Efficiently, CRYPTO 2003, Section 3; pads are hashed as in Guo, Katz,
Wang, Yu, IEEE S&P 2020 (TMMO, AES with a fixed key).

    receiver (choice bits x)                                 sender
      |--- TransferOffer(A) ----------------------------------->|   once: 128 base transfers, with roles
      |<-- TransferChoices(B_1 … B_128) ------------------------|   exchanged (`crypto/ot.py`)
      |--- Extended(T0 ⊕ T1 ⊕ x) ------------------------------>|   sender: pads m0 and m1; receiver: m_x
      |<-- Correlations(…) -------------------------------------|   values under the pads

`gilboa.py` and `masks.py` define the transferred values. The sender does not learn x, the receiver nothing of
the other pad. Assumptions: both are semi-honest, computational Diffie-Hellman, SHA-256 as a random oracle,
AES under a public key as a random permutation.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass

import numpy as np
import torch

from ..crypto import group, ot, rlwe, sealapi
from ..crypto.agree import bind
from ..crypto.bits import pack, transpose
from ..crypto.prg import KEY
from ..errors import BadParameter, ProtocolError
from ..parameters import bad
from ..parties.message import Message
from ..parties.party import Party
from .context import Cost
from .tape import Tape

BASE = 128  # base transfers: the security parameter κ
PRODUCTS = ("he", "ot")  # of matrices: homomorphic encryption where it sends less, or transfers only
_FIXED = hashlib.sha256(b"tacit transfer hash 1").digest()  # a public AES key


class TransferOffer(Message, reveals="a random group element: nothing"):
    point: bytes


class TransferChoices(Message, reveals="random group elements, whatever was chosen: nothing"):
    points: bytes


class MatrixProducts(Message, reveals="how matrix products are computed: 'he' or 'ot'"):
    products: str


class Extended(Message, reveals="the chooser's random bits under a mask: uniform bits"):
    first: int
    columns: bytes


class Correlations(Message, reveals="the holder's random words and tables under pads: uniform numbers"):
    first: int
    values: bytes


def pads(rows: np.ndarray, first: int, length: int) -> np.ndarray:
    """H(i, row) of each row of 16 bytes, as `length` 64-bit words: π(π(x) ⊕ (i, block)) ⊕ π(x)."""
    blocks = -(-length // 2)
    inner = ot.encrypt_blocks(rows, _FIXED)
    inner = np.repeat(inner, blocks, 0) if blocks > 1 else inner
    tweak = np.empty((len(rows), blocks, 2), np.uint64)
    tweak[..., 0] = np.arange(first, first + len(rows), dtype=np.uint64)[:, None]
    tweak[..., 1] = np.arange(blocks, dtype=np.uint64)
    words = tweak.view(np.uint8).reshape(-1, 16)
    words ^= inner
    words = ot.encrypt_blocks(words, _FIXED) ^ inner
    return np.asarray(words.view(np.uint64).reshape(len(rows), 2 * blocks)[:, :length])


@dataclass
class LatticeKeys:
    """This party's key of `lattice.py`, and what it multiplies with under the other's."""

    holder: rlwe.KeyHolder | None = None
    evaluator: rlwe.Evaluator | None = None


class OTReceiver:
    """Has the choice bits, and both seeds of each base transfer."""

    def __init__(self, zeros: ot.Columns, ones: ot.Columns, offer: bytes):
        self.zeros, self.ones, self.offer, self.count = zeros, ones, offer, 0

    @classmethod
    async def connect(cls, me: Party, other: str) -> OTReceiver:
        a, offer = ot.offer(me.secret.bytes)
        await me.send(other, TransferOffer(offer))
        points = (await me.recv(other, TransferChoices)).points
        zeros, ones = await asyncio.to_thread(
            ot.pairs, a, offer, points, BASE, bind("tacit gilboa 1", me.name, other)
        )
        return cls(ot.Columns(zeros), ot.Columns(ones), offer)

    def choose(self, bits: np.ndarray, length: int) -> tuple[bytes, np.ndarray]:
        """(message to the sender, the pad of each bit) for packed bits, eight to a byte, lowest first."""
        t0 = self.zeros.take(len(bits))
        columns = self.ones.take(len(bits))
        columns ^= t0
        columns ^= bits
        mine = pads(transpose(t0), self.count, length)
        self.count += 8 * len(bits)
        return columns.tobytes(), mine


class OTSender:
    """Has both pads of every transfer, and one seed of each base transfer, chosen by secret bits s."""

    def __init__(self, columns: ot.Columns, s: np.ndarray, offer: bytes):
        self.columns, self.mask, self.s = columns, (s * np.uint8(255))[:, None], pack(s)
        self.offer, self.count = offer, 0

    @classmethod
    async def connect(cls, me: Party, other: str) -> OTSender:
        s = np.unpackbits(np.frombuffer(me.secret.bytes(BASE // 8), np.uint8), bitorder="little")
        offer = (await me.recv(other, TransferOffer)).point
        points, keys = await asyncio.to_thread(
            ot.choose, offer, s, bind("tacit gilboa 1", other, me.name), me.secret.bytes
        )
        await me.send(other, TransferChoices(points))
        return cls(ot.Columns(keys), s, offer)

    def extend(self, columns: bytes, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Both pads of each transfer in the receiver's message."""
        q = np.frombuffer(columns, np.uint8).reshape(BASE, -1) & self.mask
        q ^= self.columns.take(q.shape[1])
        rows = transpose(q)
        zero, one = pads(rows, self.count, length), pads(rows ^ self.s, self.count, length)
        self.count += len(rows)
        return zero, one


class OTChannel:
    """A party's end of the transfers with one other party: both roles, its own randomness and its costs."""

    def __init__(self, me: Party, rank: int, names: tuple[str, ...], products: str = "he"):
        if products not in PRODUCTS:
            raise bad("OTChannel", "products", products, "'he' or 'ot'")
        if len(names) != 2:
            raise BadParameter(
                f"masks without a dealer are generated by two parties, not by {len(names)}. Use a dealer."
            )
        self.me, self.rank, self.other = me, rank, names[1 - rank]
        self.tape = Tape(me.secret.bytes(KEY))
        self.costs: dict[str, Cost] = {}
        self.label = "products"
        self.session = b""  # a hash of offers and keys, in order: identifies this phase at both ends
        self.lattice = LatticeKeys()
        self.products, self._is_agreed = products, False
        self._receiver: OTReceiver | None = None
        self._sender: OTSender | None = None

    async def agree_products(self) -> None:
        """Compare how both compute matrix products, once; neither follows the other."""
        if self._is_agreed:
            return
        if self.products == "he":
            sealapi.load_seal(rlwe.OPTION)
        await self.me.send(self.other, MatrixProducts(self.products))
        other = (await self.me.recv(self.other, MatrixProducts)).products
        if other != self.products:
            raise ProtocolError(
                f"{self.me.name!r} computes matrix products with products={self.products!r}, and "
                f"{self.other!r} with products={other[:20]!r}. Both must give the same: 'he' needs the extra "
                "he at both, 'ot' sends more. Nothing was computed."
            )
        self._is_agreed = True
        self._charge("agreement", len(self.products), 1)

    async def receiver(self) -> OTReceiver:
        if self._receiver is None:
            self._receiver = await OTReceiver.connect(self.me, self.other)
            self.identify(self._receiver.offer, "base transfers", group.POINT, 2)
        return self._receiver

    async def sender(self) -> OTSender:
        if self._sender is None:
            self._sender = await OTSender.connect(self.me, self.other)
            self.identify(self._sender.offer, "base transfers", BASE * group.POINT, 2)
        return self._sender

    def bits(self, *shape: int) -> np.ndarray:
        """Random bits of my own, one byte each."""
        size = int(np.prod(shape))
        return np.unpackbits(self.draw((size + 7) // 8), count=size).reshape(shape)

    def draw(self, *shape: int) -> np.ndarray:
        """Random bytes of my own."""
        return self.tape.draw(shape, torch.uint8).numpy()

    async def choose(self, bits: np.ndarray, length: int) -> np.ndarray:
        """As the receiver: the pads of my packed bits."""
        receiver = await self.receiver()
        first = receiver.count
        columns, mine = await asyncio.to_thread(receiver.choose, bits, length)
        await self.me.send(self.other, Extended(first, columns))
        self._charge(self.label, len(columns), 1)
        return mine

    async def extend(self, size: int, length: int, rounds: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """As the sender: both pads of the other's 8·size bits."""
        sender = await self.sender()
        message = await self.me.recv(self.other, Extended)
        if (message.first, len(message.columns)) != (sender.count, BASE * size):
            raise ProtocolError(
                f"received {len(message.columns)} bytes for transfers from number {message.first} on; "
                f"expected {BASE * size} bytes from number "
                f"{sender.count} on. Both parties must run the same program."
            )
        self._charge(self.label, 0, rounds)
        return await asyncio.to_thread(sender.extend, message.columns, length)

    async def exchange(
        self, bits: np.ndarray, size: int, length: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Both choose at once, in one round: (my pads; both pads of the other's 8·size bits)."""
        for role in (self.receiver, self.sender) if self.rank == 0 else (self.sender, self.receiver):
            await role()  # base transfers in the same order at both ends
        mine = await self.choose(bits, length)
        return mine, *await self.extend(size, length, rounds=0)

    async def send_correlations(self, values: bytes) -> None:
        """As the sender: the transferred values, under the pads."""
        sender = await self.sender()
        await self.me.send(self.other, Correlations(sender.count, values))
        self._charge(self.label, len(values), 1)

    async def receive_correlations(self, size: int) -> bytes:
        """As the receiver: the transferred values, under the pads."""
        receiver = await self.receiver()
        message = await self.me.recv(self.other, Correlations)
        if (message.first, len(message.values)) != (receiver.count, size):
            raise ProtocolError(
                f"received {len(message.values)} bytes; expected {size}. Both parties must run the same "
                "program."
            )
        self._charge(self.label, 0, 1)
        return message.values

    def identify(self, offer: bytes, label: str, sent: int, rounds: int) -> None:
        """Add a random message of the setup, which both have, to what identifies this offline phase."""
        self.session = hashlib.sha256(b"tacit transfers 1" + self.session + offer).digest()
        self._charge(label, sent, rounds)

    def charge(self, bytes: int, rounds: int) -> None:
        """Charge the current operation."""
        self._charge(self.label, bytes, rounds)

    def _charge(self, label: str, bytes: int, rounds: int) -> None:
        cost = self.costs.setdefault(label, Cost())
        cost.rounds += rounds
        cost.bytes += bytes
