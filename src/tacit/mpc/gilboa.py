"""Beaver triples between two, without a dealer, from oblivious transfer. Gilboa: Two Party RSA Key Generation, CRYPTO 1999, Section 4.1, modulo 2^64; transfers
extended as Ishai, Kilian, Nissim, Petrank, CRYPTO 2003; hashed as Guo, Katz, Wang, Yu, IEEE S&P 2020 (TMMO, AES with a fixed key).

    c = a ∘ b with a = a_0 + a_1, b = b_0 + b_1: a_0 b_0 and a_1 b_1 are made at home, a_0 b_1 and a_1 b_0 each by 64 transfers a product:

    chooser (words x)                                        holder (words y)
      |--- TransferOffer(A) ----------------------------------->|   once: 128 base transfers, in which the holder chooses (`crypto/ot.py`)
      |<-- TransferChoices(B_1 … B_128) ------------------------|
      |--- Extended(T0 ⊕ T1 ⊕ bits of x) ---------------------->|   for bit j of x the holder has pads m0, m1, the chooser the one of its bit
      |<-- Correlations(m0 − m1 + y mod 2^(64−j)) --------------|   chooser: Σ_j 2^j (m0 + x_j y);  holder: −Σ_j 2^j m0.   They add up to x·y

Each learns nothing but lengths: what it gets is masked by pads it cannot compute. It rests on both following the program (semi-honest), computational
Diffie-Hellman, SHA-256 as a random oracle, and AES under a public key as a random permutation. A row of y is sent for a word of x, so a matrix product takes as
many transfers as its smaller factor has bits.
"""

from __future__ import annotations

import asyncio
import hashlib

import numpy as np
import torch
from torch import Tensor

from ..crypto import ot
from ..crypto.agree import bind
from ..crypto.bits import pack, transpose
from ..errors import BadParameter, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .beaver import Bilinear, Square, Triple
from .dealer import Mask, Request, Stock
from .ring import WORD
from .tape import KEY, Tape

BASE = 128  # base transfers: the security parameter κ
ROOM = 1 << 22  # words of pads at a time: 32 MB
_FIXED = hashlib.sha256(b"tacit transfer hash 1").digest()  # public: AES under it stands for a random permutation
_WIDTHS = [(WORD - j + 7) // 8 for j in range(WORD)]  # bytes that matter for bit j: what is multiplied by 2^j counts modulo 2^(64−j)


class TransferOffer(Message, reveals="a random group element: nothing"):
    point: bytes


class TransferChoices(Message, reveals="random group elements, whatever was chosen: nothing"):
    points: bytes


class Extended(Message, reveals="the chooser's random words under a mask: uniform bits"):
    first: int
    columns: bytes


class Correlations(Message, reveals="the holder's random words under pads: uniform numbers"):
    first: int
    values: bytes


def pads(rows: np.ndarray, first: int, length: int) -> np.ndarray:
    """H(i, row) of each row of 16 bytes, as `length` 64-bit words: π(π(x) ⊕ (i, block)) ⊕ π(x)."""
    blocks = -(-length // 2)
    inner = np.repeat(ot.scrambled(rows, _FIXED), blocks, 0)
    tweak = np.empty((len(rows), blocks, 2), np.uint64)
    tweak[..., 0], tweak[..., 1] = np.arange(first, first + len(rows), dtype=np.uint64)[:, None], np.arange(blocks, dtype=np.uint64)
    made = ot.scrambled(inner ^ tweak.view(np.uint8).reshape(-1, 16), _FIXED) ^ inner
    return made.view(np.uint64).reshape(len(rows), 2 * blocks)[:, :length]


class Chooser:
    """Holds both seeds of each base transfer; its bits choose."""

    def __init__(self, zeros: ot.Columns, ones: ot.Columns):
        self.zeros, self.ones, self.count = zeros, ones, 0

    @classmethod
    async def meet(cls, me: Party, other: str) -> Chooser:
        a, said = ot.offer(me.secret.bytes)
        await me.send(other, TransferOffer(said))
        points = (await me.recv(other, TransferChoices)).points
        zeros, ones = await asyncio.to_thread(ot.pairs, a, said, points, BASE, bind("tacit gilboa 1", me.name, other))
        return cls(ot.Columns(zeros), ot.Columns(ones))

    def ask(self, x: np.ndarray) -> tuple[bytes, np.ndarray, np.ndarray]:
        """(what goes to the holder, my rows, my bits): transfers bit by bit, all words' lowest bits first."""
        bits = ((x[None] >> np.arange(WORD, dtype=np.uint64)[:, None]) & np.uint64(1)).astype(np.uint8)
        size = bits.size // 8
        t0 = self.zeros.take(size)
        return (t0 ^ self.ones.take(size) ^ pack(bits.ravel())).tobytes(), transpose(t0), bits

    def add_up(self, rows: np.ndarray, bits: np.ndarray, came: bytes, length: int) -> np.ndarray:
        count = bits.shape[1]
        mine = pads(rows, self.count, length).reshape(WORD, count, length)
        total, at = np.zeros((count, length), np.uint64), 0
        for j, width in enumerate(_WIDTHS):
            size = count * length * width
            sent = np.zeros((count, length, 8), np.uint8)
            sent[..., :width] = np.frombuffer(came, np.uint8, size, at).reshape(count, length, width)
            at += size
            total += (mine[j] + sent.view(np.uint64)[..., 0] * bits[j][:, None].astype(np.uint64)) << np.uint64(j)
        self.count += bits.size
        return total


class Holder:
    """Chose one seed of each base transfer, by secret bits s; its words are the correlation."""

    def __init__(self, columns: ot.Columns, s: np.ndarray):
        self.columns, self.mask, self.s, self.count = columns, (s * np.uint8(255))[:, None], pack(s), 0

    @classmethod
    async def meet(cls, me: Party, other: str) -> Holder:
        s = np.unpackbits(np.frombuffer(me.secret.bytes(BASE // 8), np.uint8), bitorder="little")
        said = (await me.recv(other, TransferOffer)).point
        points, keys = await asyncio.to_thread(ot.choose, said, s, bind("tacit gilboa 1", other, me.name), me.secret.bytes)
        await me.send(other, TransferChoices(points))
        return cls(ot.Columns(keys), s)

    def answer(self, y: np.ndarray, came: bytes) -> tuple[bytes, np.ndarray]:
        """(what goes to the chooser, my share) for rows of words y."""
        count, length = y.shape
        size = WORD * count // 8
        if len(came) != BASE * size:
            raise ProtocolError(f"{len(came)} bytes came for {WORD * count} transfers; they must be {BASE * size}. Do both run the same program?")
        q = transpose(self.columns.take(size) ^ (np.frombuffer(came, np.uint8).reshape(BASE, size) & self.mask))
        zero, one = (pads(rows, self.count, length).reshape(WORD, count, length) for rows in (q, q ^ self.s))
        total, parts = np.zeros((count, length), np.uint64), []
        for j, width in enumerate(_WIDTHS):
            parts.append(np.ascontiguousarray(zero[j] - one[j] + y).view(np.uint8).reshape(count, length, 8)[..., :width].tobytes())
            total -= zero[j] << np.uint64(j)
        self.count += WORD * count
        return b"".join(parts), total


class Pair(Stock):
    """A stock that two parties make between them, as it is asked for: products and squares, and masks that stay. What else a program may ask for is refused."""

    def __init__(self, me: Party, rank: int, names: tuple[str, ...], device: str = "cpu"):
        if len(names) != 2:
            raise BadParameter(f"triples without a dealer are made by two parties, and there are {len(names)}. Take a dealer.")
        self.me, self.rank, self.other, self.device = me, rank, names[1 - rank], device
        self.tape = Tape(me.secret.bytes(KEY))
        self.masks: dict[str, tuple[int | None, Tensor]] = {}
        self.used = 0
        self._chooser: Chooser | None = None
        self._holder: Holder | None = None

    async def take(self, request: Request) -> dict[str, Tensor]:
        self.used += 1
        if isinstance(request, Mask):
            if request.name in self.masks:
                raise ProtocolError(f"mask {request.name!r} is made twice; one mask hides one value only.")
            mine = request.holder in (None, self.rank)
            b = self.tape.draw(request.shape) if mine else torch.zeros(request.shape, dtype=torch.int64)
            self.masks[request.name] = request.holder, b
            return {"b": b.clone().to(self.device)}
        if isinstance(request, Square):
            a = self.tape.draw(request.x)
            c = a * a + 2 * await self.cross(Bilinear("mul"), a if self.rank == 0 else None, None if self.rank == 0 else a, request.x, request.x, 0)
            return {"a": a.to(self.device), "c": c.to(self.device)}
        if not isinstance(request, Triple) or request.op.name == "conv2d":
            what = "a convolution's triple" if isinstance(request, Triple) else f"{type(request).__name__.lower()} masks"
            raise BadParameter(f"{what} cannot be made by two parties alone: only products, matrix products and squares are. Name a helper.")
        a = self.tape.draw(request.x)
        holder, b = (None, self.tape.draw(request.y)) if request.kept is None else self.masks[request.kept]
        c = request.op(a, b)
        for left in (0, 1):  # a of one, b of the other
            if holder in (None, 1 - left):
                c = c + await self.cross(request.op, a if self.rank == left else None, None if self.rank == left else b, request.x, request.y, left)
        made = {"a": a, "c": c} if request.kept is not None else {"a": a, "b": b, "c": c}
        return {name: value.to(self.device) for name, value in made.items()}

    async def cross(self, op: Bilinear, x: Tensor | None, y: Tensor | None, xs: tuple[int, ...], ys: tuple[int, ...], left: int) -> Tensor:
        """This party's share of x ∘ y, x at party `left` and y at the other; the one with fewer words chooses."""
        shape = op.shape(xs, ys)
        if op.name == "mul":
            mine = x if x is not None else y
            assert mine is not None
            flat = _words(mine.expand(shape)).reshape(-1, 1)
            made = await self._choose(flat[:, 0], 1) if x is not None else await self._hold(flat)
            return _tensor(made).reshape(shape)
        if len(xs) != 2 or len(ys) != 2:
            raise BadParameter(f"a matrix product of shapes {list(xs)} and {list(ys)} cannot be made by two parties alone; both must have two dimensions.")
        (n, k), m = xs, ys[1]
        if n > m:  # x ∘ y = (yᵀ xᵀ)ᵀ, and y has fewer words
            made = await self._matrix(None if y is None else y.T, None if x is None else x.T, m, k, n)
            return _tensor(made).T.contiguous()
        return _tensor(await self._matrix(x, y, n, k, m))

    async def _matrix(self, x: Tensor | None, y: Tensor | None, n: int, k: int, m: int) -> np.ndarray:
        """[n, k] × [k, m]: each word of x is transferred with its row of y."""
        if x is not None:
            made = await self._choose(_words(x).ravel(), m, k)
        else:
            assert y is not None
            made = await self._hold(np.ascontiguousarray(_words(y)), n, k)
        return made.reshape(n, m)

    async def _choose(self, x: np.ndarray, length: int, fold: int = 1) -> np.ndarray:
        if self._chooser is None:
            self._chooser = await Chooser.meet(self.me, self.other)
        made = np.zeros((len(x) // fold, length), np.uint64)
        for start, stop in _pieces(len(x), length):
            said, rows, bits = await asyncio.to_thread(self._chooser.ask, x[start:stop])
            await self.me.send(self.other, Extended(start, said))
            came = await self.me.recv(self.other, Correlations)
            due = sum(_WIDTHS) * (stop - start) * length
            if came.first != start or len(came.values) != due:
                raise ProtocolError(f"{len(came.values)} bytes came where {due} were due. Do both run the same program?")
            np.add.at(made, np.arange(start, stop) // fold, await asyncio.to_thread(self._chooser.add_up, rows, bits, came.values, length))
        return made

    async def _hold(self, y: np.ndarray, turns: int | None = None, fold: int = 1) -> np.ndarray:
        """Rows of y, in turn `turns` times over (once for each row of x)."""
        if self._holder is None:
            self._holder = await Holder.meet(self.me, self.other)
        count, length = len(y) * (turns or 1), y.shape[1]
        made = np.zeros((count // fold, length), np.uint64)
        for start, stop in _pieces(count, length):
            came = await self.me.recv(self.other, Extended)
            if came.first != start:
                raise ProtocolError(f"transfers from {came.first} came where those from {start} were due. Do both run the same program?")
            which = np.arange(start, stop)
            said, share = await asyncio.to_thread(self._holder.answer, y[which % len(y)], came.columns)
            await self.me.send(self.other, Correlations(start, said))
            np.add.at(made, which // fold, share)
        return made


def _pieces(count: int, length: int) -> list[tuple[int, int]]:
    each = max(1, ROOM // (WORD * length))
    return [(start, min(start + each, count)) for start in range(0, count, each)]


def _words(x: Tensor) -> np.ndarray:
    return x.contiguous().cpu().numpy().view(np.uint64)


def _tensor(x: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x).view(np.int64))
