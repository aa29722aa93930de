"""Vector oblivious linear evaluation over B = GF(2^64), with messages that hardly grow with its length.

    receiver (random a, c)                                  sender (random δ ∈ B², b)        c = b ⊕ δ·a
      |--- Noise(T0 ⊕ T1 ⊕ choices; check) ------------------>|   1  correlated transfers with offset δ
      |<-- Trees(both sums of each level; corrections) -------|   2  t trees, of which it learns all leaves
      |                                                       |      but one; there, c = b ⊕ δ·(its noise)
      both: multiply by the code                              |   3  sparse noise becomes pseudorandom a

Boyle, Couteau, Gilboa, Ishai: Compressing Vector OLE, CCS 2018; Boyle et al.: Efficient Two-Round OT
Extension and Silent Non-Interactive Secure Computation, CCS 2019 (step 2, figure 3). The code is
expand-convolute: Raghuraman, Rindal, Tanguy: Expand-Convolute Codes for Pseudorandom Correlation Generators
from LPN, CRYPTO 2023, with the parameters that libOTe calls conservative (ExConv21x24): rows of weight 21, a
convolution of 24 random taps that runs twice, rate 1/2. Convolutions multiply by x ∈ B, so that the code is
one over B.

δ·a stands for (δ0·a, δ1·a). A sender's view depends on a through dual LPN with t = 400 noise positions, one
in each of t equal parts, whose values are uniform in B. With the code's relative distance estimated as .20, a
linear test has a bias of at most (1 − .20)^400 < 2^-128. (For values in a field the exponent is half of the
binary one.) Even if the code were one over GF(2), so that 64 binary syndromes had the same noise positions,
an information set would need fewer than 64 of 400 positions, which has probability 2^-148 (Porwal et al.:
Interleaved Prange, PQCrypto 2022). The distance is an estimate, as in the paper, not a theorem. A receiver's
view hides δ as that of 128 base transfers does (`ot`), also if it deviates:
- choices that differ between columns would show bits of δ. 128 public random sums of the rows of T0, whose
  terms follow from the columns sent, and of the choices, must agree at the sender (Keller, Orsini, Scholl:
  Actively Secure OT Extension with Optimal Overhead, CRYPTO 2015, with the bit matrix of Roy: SoftSpokenOT,
  CRYPTO 2022, as hash; 128 more transfers hide the choices). Who guesses g bits of δ knows them, and is
  detected otherwise: probability 2^-g.
- a place outside of a tree would leave no leaf unknown, and δ in plain sight. So each tree also has the nodes
  beside its right border: they are not grown, and are part of the correction.
A sender that deviates is not detected: wrong sums make c wrong where the noise is, and it may learn from a
visible failure where it is not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ProtocolError
from . import group, ot
from .agree import bind
from .bits import pack, transpose
from .prg import aes

BASE = 128  # κ: base transfers, and bits of δ
WORD = 64  # bits of an element of B
POSITIONS = 400  # t: the least multiple of 8 with (1 − .20)^t < 2^-128
WEIGHT, STATE = 21, 24  # ones in a row of the expander, random taps of the convolution
LEAST = 1 << 14  # the shortest vector that is generated: shorter codes have a smaller distance
ROWS = 1 << 20  # rows of the expander at a time
SUM = 16  # bytes of an element of B²
CHECK = BASE * SUM + BASE // 8  # bytes of the sums of the check: of rows, and of choices
_CODE = hashlib.sha256(b"tacit expand-convolute code 1").digest()  # public: seeds the code


@dataclass(frozen=True)
class VoleLayout:
    """Sizes of a vector of `length` elements; the same at both parties."""

    length: int

    @property
    def block(self) -> int:
        """Places of a noise position: t·block is twice the length or a little more, a multiple of 21."""
        return WEIGHT * -(-2 * max(self.length, LEAST) // (POSITIONS * WEIGHT))

    @property
    def noise(self) -> int:
        return POSITIONS * self.block

    @property
    def depth(self) -> int:
        return (self.block - 1).bit_length()

    @property
    def transfers(self) -> int:
        """Correlated transfers: 64 for the value at each noise position, one for each level of its tree."""
        return POSITIONS * (WORD + self.depth)

    @property
    def rows(self) -> int:
        """Transfers, with those that hide the choices in the check."""
        return self.transfers + BASE

    @property
    def columns(self) -> int:
        """Bytes of the receiver's columns."""
        return BASE * self.rows // 8

    @property
    def sums(self) -> int:
        """Bytes of the sender's message: two sums for each level of each tree, and a correction."""
        return POSITIONS * (2 * self.depth + 1) * SUM

    def widths(self) -> Iterator[tuple[int, int]]:
        """Yield (shift, nodes) of each level below the root; nodes that have no leaf are not grown."""
        for shift in range(self.depth - 1, -1, -1):
            yield shift, (self.block - 1 >> shift) + 1


class VoleReceiver:
    """Has both seeds of each base transfer; generates (a, c), any number of times."""

    def __init__(self, zeros: list[bytes], ones: list[bytes], session: bytes):
        self.zeros, self.ones, self.session, self.count = ot.Columns(zeros), ot.Columns(ones), session, 0

    def request(self, length: int, draw: group.Draw) -> tuple[bytes, PendingVole]:
        """(message to the sender, state) for a vector of this length."""
        layout = VoleLayout(length)
        places = np.frombuffer(draw(8 * POSITIONS), np.uint64) % np.uint64(layout.block)
        values = np.frombuffer(draw(8 * POSITIONS), np.uint64)
        return self.ask(layout, places, values, draw)

    def ask(
        self, layout: VoleLayout, places: np.ndarray, values: np.ndarray, draw: group.Draw
    ) -> tuple[bytes, PendingVole]:
        """The same, for these noise positions and their values."""
        path = places[:, None] >> np.arange(layout.depth - 1, -1, -1, dtype=np.uint64) & np.uint64(1)
        # at each level the receiver may learn the sum that does not contain its place
        sides = (1 - path).astype(np.uint8)
        hiding = np.frombuffer(draw(BASE // 8), np.uint8)
        choices = np.concatenate([values.view(np.uint8), pack(sides.reshape(-1)), hiding])
        t0 = self.zeros.take(len(choices))
        columns = self.ones.take(len(choices))
        columns ^= t0
        columns ^= choices
        about, self.count = bind(self.session, self.count), self.count + 1
        rows, message = transpose(t0), columns.tobytes()
        draws = _check_draws(layout, about, message)
        chosen = np.unpackbits(choices, bitorder="little").astype(bool)
        sums = _add_rows(rows, draws).tobytes() + _add_choices(chosen, draws).tobytes()
        return message + sums, PendingVole(layout, places.astype(np.int64), values, sides, rows, about)


@dataclass(frozen=True)
class PendingVole:
    """A receiver's vector whose trees it has not received."""

    layout: VoleLayout
    places: np.ndarray
    values: np.ndarray
    sides: np.ndarray
    rows: np.ndarray
    about: bytes

    def finish(self, message: bytes) -> tuple[np.ndarray, np.ndarray]:
        """(a, c): words (length,) and (length, 2)."""
        layout, trees = self.layout, np.arange(POSITIONS)
        if len(message) != layout.sums:
            raise ProtocolError(
                f"received {len(message)} bytes of sums for {POSITIONS} trees of {layout.depth} levels; "
                f"expected {layout.sums}."
            )
        sums = np.frombuffer(message, np.uint64).reshape(POSITIONS, -1, 2)
        path = self.rows[WORD * POSITIONS : layout.transfers]
        pad = ot.pads(path, _tweaks(len(path)), _transfer_key(self.about))
        known = pad.view(np.uint64).reshape(POSITIONS, layout.depth, 2)
        keys, nodes = _node_keys(self.about), np.zeros((POSITIONS, 1, 2), np.uint64)
        ends, width = np.zeros((POSITIONS, 2), np.uint64), 1
        for level, (shift, wider) in enumerate(layout.widths()):
            ends ^= _add_ends(nodes, width)
            nodes, totals = _grow(nodes, keys, width)
            width, on = wider, self.places >> shift  # the node without a value
            beside, side = on ^ 1, self.sides[:, level]
            was = nodes[trees, beside]  # meaningless
            value = sums[trees, 2 * level + side] ^ known[:, level] ^ totals[trees, side] ^ was
            totals[trees, 1 - side] ^= nodes[trees, on]
            totals[trees, side] = sums[trees, 2 * level + side] ^ known[:, level]
            nodes[trees, on] = 0
            nodes[trees, beside] = value
        nodes[trees, self.places] = sums[:, -1] ^ totals[:, 0] ^ totals[:, 1] ^ ends ^ _combine(self.rows)
        noise = np.zeros((layout.noise, 1), np.uint64)
        noise[trees * layout.block + self.places, 0] = self.values
        a = multiply_by_code(noise, layout.length)
        return a[:, 0], multiply_by_code(_leaves(nodes, layout), layout.length)


class VoleSender:
    """Has δ, and of each base transfer the seed that its bit of δ chose; generates b, any number of times."""

    def __init__(self, seeds: list[bytes], bits: np.ndarray, session: bytes):
        self.columns, self.mask, self.session, self.count = (
            ot.Columns(seeds),
            (bits.astype(np.uint8) * np.uint8(255))[:, None],
            session,
            0,
        )
        self.delta = pack(bits)

    def answer(self, length: int, message: bytes, draw: group.Draw) -> tuple[bytes, np.ndarray]:
        """(message to the receiver, b: words (length, 2))."""
        layout = VoleLayout(length)
        if len(message) != layout.columns + CHECK:
            raise ProtocolError(
                f"received {len(message)} bytes for {layout.transfers} transfers; expected "
                f"{layout.columns + CHECK}."
            )
        columns, sums = message[: layout.columns], message[layout.columns :]
        q = np.frombuffer(columns, np.uint8).reshape(BASE, -1) & self.mask
        q ^= self.columns.take(q.shape[1])
        rows, about = transpose(q), bind(self.session, self.count)
        self.count += 1
        self._check(rows, _check_draws(layout, about, columns), sums)
        return self._grow_trees(layout, rows, about, draw)

    def _check(self, rows: np.ndarray, draws: np.ndarray, sums: bytes) -> None:
        theirs = np.frombuffer(sums, np.uint8)
        chosen = np.unpackbits(theirs[BASE * SUM :], bitorder="little").astype(bool)
        expected = theirs[: BASE * SUM].reshape(BASE, SUM) ^ np.where(chosen[:, None], self.delta, 0)
        if not np.array_equal(_add_rows(rows, draws), expected):
            raise ProtocolError(
                "a vector's transfers carry different choices in different columns: the other party does "
                "not follow the protocol. Nothing was answered."
            )

    def _grow_trees(
        self, layout: VoleLayout, rows: np.ndarray, about: bytes, draw: group.Draw
    ) -> tuple[bytes, np.ndarray]:
        keys = _node_keys(about)
        nodes = np.frombuffer(draw(SUM * POSITIONS), np.uint64).reshape(POSITIONS, 1, 2)
        sums = np.empty((POSITIONS, 2 * layout.depth + 1, 2), np.uint64)
        ends, width = np.zeros((POSITIONS, 2), np.uint64), 1
        for level, (_, wider) in enumerate(layout.widths()):
            ends ^= _add_ends(nodes, width)
            nodes, sides = _grow(nodes, keys, width)
            sums[:, 2 * level : 2 * level + 2] = sides
            width = wider
        sums[:, -1] = sides[:, 0] ^ sides[:, 1] ^ ends ^ _combine(rows)
        path, key = rows[WORD * POSITIONS : layout.transfers], _transfer_key(about)
        tweaks = _tweaks(len(path))
        for side, chosen in enumerate((path, path ^ self.delta)):
            pad = ot.pads(chosen, tweaks, key).view(np.uint64)
            sums[:, side : 2 * layout.depth : 2] ^= pad.reshape(POSITIONS, layout.depth, 2)
        return sums.tobytes(), multiply_by_code(_leaves(nodes, layout), layout.length)

    def add_products(self, out: np.ndarray, factors: np.ndarray) -> None:
        """Add δ·f to each row of `out`, for its factor f."""
        ot.compiled().add_products(out, factors, _products(self.delta.view(np.uint64)))


def double(words: np.ndarray) -> np.ndarray:
    """x·w in GF(2^64) for each word: the polynomial x^64 + x^4 + x^3 + x + 1."""
    return np.asarray(words << np.uint64(1) ^ (words >> np.uint64(63)) * np.uint64(0x1B))


def multiply_by_code(noise: np.ndarray, length: int) -> np.ndarray:
    """The first `length` rows of the code's matrix times `noise` (rows of words), which is overwritten."""
    loops = ot.compiled()
    stream = aes(_CODE, *ot.EXTRA)
    for _ in range(2):
        loops.convolve(noise, _draws(stream, len(noise)), STATE)
    out = np.zeros((length, noise.shape[1]), np.uint64)
    parts = noise.reshape(WEIGHT, -1, noise.shape[1])
    for first in range(0, length, ROWS):
        rows = out[first : first + ROWS]
        for part in parts:  # one after the other: each fits in a core's cache
            loops.expand(part, _draws(stream, len(rows)), rows)
    return out


def _draws(stream: Any, count: int) -> np.ndarray:
    """The next words of 32 bits of a stream."""
    return np.frombuffer(stream.update(bytes(4 * count)), np.uint32)


def _products(delta: np.ndarray) -> np.ndarray:
    """(8, 256, 2): δ times each byte of a factor, at each of its places."""
    powers = np.empty((WORD, 2), np.uint64)
    power = delta.copy()
    for k in range(WORD):
        powers[k] = power
        power = double(power)
    tables = np.zeros((8, 256, 2), np.uint64)
    for k in range(8):
        tables[:, 1 << k : 2 << k] = tables[:, : 1 << k] ^ powers[k::8, None]
    return tables


def _combine(rows: np.ndarray) -> np.ndarray:
    """Σ_k x^k · (the k-th of 64 rows) for each noise position: words (t, 2)."""
    parts = np.ascontiguousarray(rows[: WORD * POSITIONS]).view(np.uint64).reshape(POSITIONS, WORD, 2)
    total = np.zeros((POSITIONS, 2), np.uint64)
    for k in range(WORD - 1, -1, -1):
        total = double(total) ^ parts[:, k]
    return total


def _node_keys(about: bytes) -> tuple[bytes, bytes]:
    left, right = (hashlib.sha256(bind("tacit tree 1", about, side)).digest() for side in "lr")
    return left, right


def _grow(nodes: np.ndarray, keys: tuple[bytes, bytes], width: int) -> tuple[np.ndarray, np.ndarray]:
    """(both children of each tree's first `width` nodes, π_left(x) ⊕ x and π_right(x) ⊕ x; the sums of those
    on the left and on the right, words (t, 2, 2)).
    """
    flat = nodes.view(np.uint8).reshape(-1, SUM)
    left, right = (ot.encrypt_blocks(flat, key).view(np.uint64).reshape(nodes.shape) for key in keys)
    children, sums = np.empty((POSITIONS, 2 * width, 2), np.uint64), np.zeros((POSITIONS, 2, 2), np.uint64)
    ot.compiled().grow(nodes, left, right, children, sums)
    return children, sums


def _add_ends(nodes: np.ndarray, width: int) -> np.ndarray:
    """The sum of each tree's nodes that are not grown: at most one on a level."""
    return np.asarray(np.bitwise_xor.reduce(nodes[:, width:], 1))


def _leaves(nodes: np.ndarray, layout: VoleLayout) -> np.ndarray:
    return np.array(nodes[:, : layout.block]).reshape(-1, 2)


def _check_draws(layout: VoleLayout, about: bytes, columns: bytes) -> np.ndarray:
    """(transfers, 2) words: in which of the check's 128 sums each is. The last 128 are in one each."""
    key = hashlib.sha256(bind("tacit transfer check 1", about, hashlib.sha256(columns).digest())).digest()
    draws = np.zeros((layout.rows, 2), np.uint64)
    draws[:-BASE] = np.frombuffer(
        aes(key, *ot.EXTRA).update(bytes(SUM * layout.transfers)), np.uint64
    ).reshape(-1, 2)
    draws[-BASE:] = np.packbits(np.eye(BASE, dtype=np.uint8), 1, bitorder="little").view(np.uint64)
    return draws


def _add_rows(rows: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """(128, 16) bytes: the check's sums of rows."""
    sums = np.zeros((BASE, 2), np.uint64)
    ot.compiled().add_chosen(sums, rows.view(np.uint64), draws)
    return sums.view(np.uint8)


def _add_choices(chosen: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """16 bytes: the check's sums of choices."""
    return np.asarray(np.bitwise_xor.reduce(draws[chosen], 0).view(np.uint8))


def _tweaks(count: int) -> np.ndarray:
    tweaks = np.zeros((count, 2), np.uint64)
    tweaks[:, 0] = np.arange(count, dtype=np.uint64)
    return tweaks.view(np.uint8)


def _transfer_key(about: bytes) -> bytes:
    return hashlib.sha256(bind("tacit tree transfer 1", about)).digest()
