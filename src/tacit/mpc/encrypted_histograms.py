"""Sums of one party's hidden numbers over the cells of other parties' hidden columns, by homomorphic
encryption: what `histograms.py` does with a helper, for the two of them alone.

    L: label holder (G: k vectors over n rows)                  F: holder of columns (M: rows × cells, 0 or 1)
      |<-- CellLayout(cells of each column) ----------------------------|
      |--- EncryptionKey(public key) ---------------------------------->|
    before the trees, for K vectors at a time
      |--- EncryptedMasks(Enc(B)) ------------------------------------->|   B: uniform words
      |<-- EncryptedSums(Enc(BᵀM + c)), one for each cell --------------|   c: uniform words of F's
    for each level of the trees
      |--- MaskedVectors(E = G − B) ----------------------------------->|
      |<-- SumShares(EᵀM − c) ------------------------------------------|   GᵀM = (EᵀM − c) + (BᵀM + c)
    for the splits of F's columns
      |--- ChosenSplits(splits) --------------------------------------->|
      |--- Extended(transfers that choose u) -------------------------->|   u: rows of the node
      |<-- Correlations(s under the pads of 1) -------------------------|   s: rows that go left; L: u ∧ s

Encrypting random masks ahead, and not the gradients of each level, is Delphi's division of work (P. Mishra,
R. Lehmkuhl, A. Srinivasan, W. Zheng, R. Popa, "Delphi: A Cryptographic Inference Service for Neural
Networks", 2020): as all masks are known at once, every ciphertext is full, and F returns one ciphertext for
each cell and K vectors instead of one for each cell and level. A row's words are next to each other; F moves
them to the front by a power of X and adds (`crypto/bfv.py`). Words are modulo 2^59, and sums are exact.

Learns: F how many vectors, and which of its columns are split where. L the sums GᵀM over anonymous columns
and cells, and u ∧ s; the ciphertexts of sums do not show which rows were added. There is no third party.

Assumptions: both are semi-honest; ring learning with errors (128 bits), and those of `extension.py`. A label
holder that deviates can choose G and u so that sums and sides are those of single rows, or send a key that
hides nothing: F cannot see it, only bound how much it answers. A holder that deviates can return ciphertexts
whose decryption depends on L's key, as +d in one cell and −d in another of the same column, so that sums
still add up, and learn about the key, and in long jobs about gradients, from which splits L chooses. A key
is therefore used for one job only.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..crypto import bfv
from ..crypto.prg import KEY
from ..errors import BadData, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .extension import OTChannel
from .histogram_terms import CellLayout, HistogramTerms, Layout, MaskedVectors, SumShares, TreeShapes
from .histograms import RECORD, CellSums, Found, Noise, check_array, read_layout
from .tape import Tape

MOST_VECTORS = 1024  # whose masks are encrypted at once
MOST_WORDS = 1 << 26  # of masks at the label holder: 512 MB
MOST_CELLS = 20_000  # of a holder: 8 GB of sums
IN_MESSAGE = 32  # ciphertexts
TRANSFERS = 1 << 22  # at once: some 300 MB

AddRows = Callable[[np.ndarray, np.ndarray, np.ndarray, int, np.ndarray], None]  # bfv.add_rows_numpy


class EncryptionKey(Message, reveals="a public key: nothing"):
    public: bytes


class EncryptedMasks(Message, reveals="random words under the sender's key: nothing"):
    first: int  # the row of the first word
    ciphertexts: list[bytes]


class EncryptedSums(
    Message,
    reveals="sums of the receiver's random words over the sender's cells under one-time masks: uniform words",
):
    first: int  # the cell
    ciphertexts: list[bytes]


class ChosenSplits(
    Message, reveals="which of the receiver's own columns are split where; neither numbers nor rows"
):
    records: torch.Tensor


def batch_sizes(vectors: int, rows: int) -> list[int]:
    """How many vectors' masks are encrypted at once: equally many, within memory."""
    most = max(1, min(MOST_VECTORS, MOST_WORDS // max(rows, 1)))
    count = math.ceil(vectors / most)
    each = math.ceil(vectors / count)
    return [min(each, vectors - start) for start in range(0, vectors, each)]


def rows_in(words: int) -> int:
    """How many rows a ciphertext has, with so many words of each."""
    return bfv.DEGREE // words


def _words(tape: Tape, *shape: int) -> np.ndarray:
    return tape.draw(shape).numpy() & bfv.MASK


async def hold_columns(
    me: Party,
    terms: HistogramTerms,
    codes: np.ndarray,
    layout: Layout,
    sides: Callable[[np.ndarray], np.ndarray],
    add_rows: AddRows = bfv.add_rows_numpy,
    noise: Noise | None = None,
) -> TreeShapes:
    """The program of a holder of columns: answers sums and sides until the trees are finished.

    `codes`: rows × columns, the cell of each; `sides(records)`: which rows go left, and keeps the splits;
    `noise`: what is added to the sums before they are opened.
    """
    if layout.cells > MOST_CELLS:
        raise BadData(
            f"the columns of {me.name!r} have {layout.cells} bins; backend='he' takes up to {MOST_CELLS}. "
            "Use fewer bins, or backend='shares'."
        )
    n, label = terms.rows, terms.label_at
    await me.send(label, CellLayout(terms.text, layout.widths, layout.is_category))
    maker = bfv.SumMaker((await me.recv(label, EncryptionKey)).public)
    channel = OTChannel(me, 1, (label, me.name))
    sums, cells = CellSums(codes, layout), codes.astype(np.int64) + layout.offsets
    batches = batch_sizes(terms.vectors, n)
    masks = np.zeros((0, layout.cells), np.int64)
    splits = 0
    while True:
        message: Any = await me.recv(label, EncryptedMasks, MaskedVectors, ChosenSplits, TreeShapes)
        if isinstance(message, TreeShapes):
            return message
        if isinstance(message, EncryptedMasks):
            if not batches:
                raise ProtocolError(
                    f"{label!r} sent masks for more than the {terms.vectors} sums that the agreed trees need "
                    "at most. Nothing more was answered."
                )
            new = await _add_masks(me, terms, maker, message, cells, layout.cells, batches.pop(0), add_rows)
            masks = np.concatenate([masks, new])
            continue
        if isinstance(message, MaskedVectors):
            count = message.values.shape[0] if message.values.ndim else 0
            if count > len(masks):
                raise ProtocolError(
                    f"{label!r} asked for {count} sums, and sent masks for {len(masks)}. Nothing more was "
                    "answered."
                )
            masked = check_array(label, message.values, (count, n), torch.int64, "masked numbers")
            share = (sums.add(masked) - masks[:count]) & bfv.MASK
            if noise is not None:
                share = (share + noise((count, layout.cells))) & bfv.MASK
            masks = masks[count:]
            await me.send(label, SumShares(torch.from_numpy(share)))
            continue
        count = message.records.shape[0] if message.records.ndim else 0
        splits += count
        if splits > terms.splits or not count:
            raise ProtocolError(
                f"{label!r} asked for {splits} splits; the agreed trees have at most {terms.splits}. Nothing "
                "more was answered."
            )
        records = check_array(label, message.records, (count, RECORD), torch.uint8, "splits")
        await _send_sides(channel, sides(records))


async def _add_masks(
    me: Party,
    terms: HistogramTerms,
    maker: bfv.SumMaker,
    message: EncryptedMasks,
    cells: np.ndarray,
    count: int,
    vectors: int,
    add_rows: AddRows,
) -> np.ndarray:
    """Add a batch's encrypted words over cells, return the sums under masks. Returns the masks."""
    label, each = terms.label_at, rows_in(vectors)
    limits = np.tile(bfv.moduli(), bfv.PARTS)[:, None]
    total = np.zeros((count, bfv.PARTS * bfv.LEVELS, bfv.DEGREE), np.uint64)
    lazy = 0
    for start, size in _pieces(terms.rows, vectors):
        if start:
            message = await me.recv(label, EncryptedMasks)
        if (message.first, len(message.ciphertexts)) != (start, size):
            raise ProtocolError(
                f"{label!r} sent {len(message.ciphertexts)} encrypted masks from row {message.first} on; "
                f"expected {size} from row {start} on."
            )
        block = await asyncio.to_thread(maker.open, message.ciphertexts, f"an encrypted mask of {label!r}")
        some = cells[start : start + size * each]
        lazy += len(some)
        if lazy > bfv.LAZY:
            np.remainder(total, limits, out=total)
            lazy = len(some) + 1
        await asyncio.to_thread(add_rows, total, block, some, vectors, bfv.moduli())
    tape, own = Tape(me.secret.bytes(KEY)), np.empty((vectors, count), np.int64)
    for start in range(0, count, IN_MESSAGE):
        closed = []
        for cell in range(start, min(start + IN_MESSAGE, count)):
            mask = _words(tape, bfv.DEGREE)
            own[:, cell] = mask[:vectors]
            np.remainder(total[cell], limits, out=total[cell])
            closed.append(await asyncio.to_thread(maker.close, total[cell], mask, _drawer(tape)))
        await me.send(label, EncryptedSums(start, closed))
    return own


def _drawer(tape: Tape) -> Callable[[int], bytes]:
    return lambda count: tape.draw((count,), torch.uint8).numpy().tobytes()


def _pieces(rows: int, vectors: int) -> list[tuple[int, int]]:
    """(first row, ciphertexts) of each message of masks."""
    each = rows_in(vectors)
    some = max(1, min(IN_MESSAGE, bfv.LAZY // each))
    return [
        (start, math.ceil(min(some * each, rows - start) / each)) for start in range(0, rows, some * each)
    ]


def _groups(splits: int, rows: int) -> list[tuple[int, int]]:
    """The splits whose sides are transferred at once."""
    each = max(1, TRANSFERS // rows)
    return [(start, min(start + each, splits)) for start in range(0, splits, each)]


async def _send_sides(channel: OTChannel, left: np.ndarray) -> None:
    """Transfer each row's side, to be read where the other chose 1."""
    size = math.ceil(left.shape[1] / 8)
    for start, stop in _groups(*left.shape):
        _, one = await channel.extend((stop - start) * size, 1)
        pads = np.packbits((one[:, 0] & np.uint64(1)).astype(np.uint8))
        await channel.send_correlations((pads ^ np.packbits(left[start:stop], axis=1).reshape(-1)).tobytes())


class EncryptedLabelSide:
    """The label holder's side of the protocol."""

    def __init__(self, me: Party, terms: HistogramTerms):
        self.me, self.terms = me, terms
        self.layouts: dict[str, Layout] = {}
        self._batches = batch_sizes(terms.vectors, terms.rows)
        self._masks = np.zeros((terms.rows, 0), np.int64)  # of vectors to come, rows × vectors
        self._sums: dict[str, np.ndarray] = {}  # of masks over cells, under the holder's masks
        self._channels: dict[str, OTChannel] = {}

    async def start(self) -> None:
        """Receive the layouts, send the public key."""
        me, terms = self.me, self.terms
        self._keys = bfv.KeyHolder(me.keep(bfv.new_secret))
        for name in terms.holders:
            self.layouts[name] = await read_layout(me, terms, name)
            if self.layouts[name].cells > MOST_CELLS:
                raise ProtocolError(f"{name!r} announced columns with cells that no table has.")
            self._sums[name] = np.zeros((0, self.layouts[name].cells), np.int64)
            self._channels[name] = OTChannel(me, 0, (me.name, name))
        await me.send(terms.holders, EncryptionKey(self._keys.public()))

    async def _encrypt(self) -> None:
        """Encrypt the masks of the next vectors, and receive their sums."""
        me, terms = self.me, self.terms
        if not self._batches:
            raise ProtocolError(f"the trees need more than the agreed {terms.vectors} sums.")
        vectors = self._batches.pop(0)
        each, words = rows_in(vectors), _words(Tape(me.secret.bytes(KEY)), terms.rows, vectors)
        for start, size in _pieces(terms.rows, vectors):
            some = [words[start + k * each : start + (k + 1) * each].reshape(-1) for k in range(size)]
            sealed = await asyncio.to_thread(lambda part: [self._keys.encrypt(one) for one in part], some)
            await me.send(terms.holders, EncryptedMasks(start, sealed))
        for name in terms.holders:
            cells = self.layouts[name].cells
            found = np.empty((vectors, cells), np.int64)
            for start in range(0, cells, IN_MESSAGE):
                message = await me.recv(name, EncryptedSums)
                size = min(IN_MESSAGE, cells - start)
                if (message.first, len(message.ciphertexts)) != (start, size):
                    raise ProtocolError(f"{name!r} sent {len(message.ciphertexts)} sums; expected {size}.")
                for k, data in enumerate(message.ciphertexts):
                    what = f"an encrypted sum of {name!r}"
                    found[:, start + k] = await asyncio.to_thread(self._keys.decrypt, data, vectors, what)
            self._sums[name] = np.concatenate([self._sums[name], found])
        self._masks = np.concatenate([self._masks, words], axis=1) if self._masks.shape[1] else words

    async def sums(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        """k × rows integers → for each holder k × cells."""
        me, terms, count = self.me, self.terms, len(vectors)
        while self._masks.shape[1] < count:
            await self._encrypt()
        masked = (vectors - self._masks[:, :count].T) & bfv.MASK
        self._masks = self._masks[:, count:]
        await me.send(terms.holders, MaskedVectors(torch.from_numpy(masked)))
        out = {}
        for name, message in (await me.gather(terms.holders, SumShares)).items():
            shape = (count, self.layouts[name].cells)
            share = check_array(name, message.values, shape, torch.int64, "sums")
            total = (share + self._sums[name][:count]) & bfv.MASK
            self._sums[name] = self._sums[name][count:]
            out[name] = ((total + (1 << (bfv.WORD - 1))) & bfv.MASK) - (1 << (bfv.WORD - 1))  # signed
        return out

    async def search(
        self, vectors: np.ndarray, parents: list[int], news: list[int], columns: list[int]
    ) -> Found:
        raise ProtocolError("backend='he' has no helper that could search for splits.")

    async def sides(
        self, name: str, records: np.ndarray, members: np.ndarray, serials: Sequence[int] = ()
    ) -> np.ndarray:
        """Which rows of each node (splits × rows, bool) go left; False outside of the node."""
        rows, channel = self.terms.rows, self._channels[name]
        await self.me.send(name, ChosenSplits(torch.from_numpy(records)))
        out = np.zeros((len(records), rows), bool)
        size = math.ceil(rows / 8)
        for start, stop in _groups(*out.shape):
            chosen = np.packbits(members[start:stop], axis=1, bitorder="little").reshape(-1)
            pads = await channel.choose(chosen, 1)
            message = np.frombuffer(await channel.receive_correlations(len(chosen)), np.uint8)
            found = np.unpackbits(message).astype(bool) ^ (pads[:, 0] & np.uint64(1)).astype(bool)
            out[start:stop] = found.reshape(stop - start, 8 * size)[:, :rows]
        return np.asarray(out & members)

    async def finish(self, shapes: TreeShapes, mark: str) -> None:
        await self.me.send(self.terms.holders, shapes)
