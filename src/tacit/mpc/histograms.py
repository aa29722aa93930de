"""Sums of one party's hidden numbers over the cells of other parties' hidden columns, and hidden sides of
splits: what boosted trees over columns of several parties need.

    L: label holder (G: k vectors over n rows)      F: holder of columns (M: rows × cells, 0 or 1)      helper
      |<------------------------------ TapeKey ------------------------------------------------------------|
      |                                                |<---------------- TapeKey -------------------------|
      |<-- CellLayout(cells of each column) -----------|--------------------------------------------------->|
      |<-- MaskedCells(D = M − A), once ----------------|    A: F's tape
    for each level of the trees
      |--- SumRequest(k) ---------------------------------------------------------------------------------->|
      |<-- SumCorrections(BᵀA − c) -------------------------------------------------------------------------|
      |--- MaskedVectors(E = G − B) ------------------->|    B: L's tape, c: F's tape
      |<-- SumShares(EᵀM + c) --------------------------|    GᵀM = (BᵀD + BᵀA − c) + (EᵀM + c)
    for the splits of F's columns
      |--- SideRequest(F, s) ------------------------------------------------------------------------------>|
      |<-- SideCorrections(a ∧ b ⊕ c) ----------------------------------------------------------------------|
      |--- SplitRequest(splits, u ⊕ a) ---------------->|    u: rows of the node; a: L's tape
      |<-- SplitSides(s ⊕ b, (u ⊕ a) ∧ b ⊕ c) ----------|    s: rows that go left; b, c: F's tape

D. Beaver, "Efficient multiparty multiplication with a dealer", 1991, with one factor fixed: M is masked once
for all products, and E is the same for all holders. Words are modulo 2^64, so sums of integers are exact.

Learns: F how many vectors, and which of its columns are split where; neither numbers nor rows of nodes. L,
with reveal="sums", the sums GᵀM over anonymous columns and cells, and u ∧ s: the side of the rows of its own
node only. The helper the number of vectors and splits.

With reveal="splits" L does not see sums. Both send their shares to the helper under a common pad:

      |--- PaddedSums(share + z) ------------------------------------------------------------------------->|
      |                                                 |--- PaddedSums(share − z) ----------------------->|
      |<-- SplitCandidates(gain, split under F's pad) -----------------------------------------------------|

The helper then learns the sums over anonymous cells, without rows, columns' names or labels; L the best gain
of each holder; a split is under a pad that only F can remove.

Semi-honest parties; the helper colludes with none. A label holder that deviates can choose G and u so that
sums and sides are those of single rows: F cannot see it, only bound how much it answers. With reveal="splits"
the helper sees the sums, and refuses gradients, trees and nodes that the agreed ones never have
(boost/vertical_checks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..crypto.prg import KEY
from ..errors import ProtocolError
from ..parties.party import Party
from .dealer import SESSION, TapeKey
from .histogram_terms import (
    CellLayout,
    HistogramTerms,
    Layout,
    MaskedCells,
    MaskedVectors,
    PaddedSums,
    PadKey,
    SideCorrections,
    SideRequest,
    SplitCandidates,
    SplitRequest,
    SplitSides,
    SumCorrections,
    SumRequest,
    SumsEnd,
    SumShares,
    TreeShapes,
)
from .tape import Tape, open_tape

MOST_CELLS = 256  # of a column
COLUMNS = 4096  # of a holder
RECORD = 36  # bytes of a split: column (2), cut, whether missing values go left, 256 bits: cells that go left
BLOCK = 1 << 22  # words of masked cells in a message: 32 MB
Noise = Callable[[tuple[int, int]], np.ndarray]  # (vectors, cells) → words to add
Multiply = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (k × n words, n × cells words) → k × cells


def _bits(rows: int) -> int:
    return (rows + 7) // 8


def check_array(
    sender: str, value: Tensor, shape: tuple[int, ...], dtype: torch.dtype, what: str
) -> np.ndarray:
    if tuple(value.shape) != shape or value.dtype is not dtype:
        raise ProtocolError(
            f"{sender!r} sent {what} of shape {tuple(value.shape)} and type {value.dtype}; expected {shape} "
            f"and {dtype}."
        )
    return value.numpy()


async def read_layout(me: Party, terms: HistogramTerms, name: str) -> Layout:
    message = await me.recv(name, CellLayout)
    if message.settings != terms.text:
        raise ProtocolError(
            f"{name!r} and {me.name!r} have different settings: {message.settings:.300} and "
            f"{terms.text:.300}. All parties must start the same job."
        )
    if (
        not 0 <= len(message.widths) <= COLUMNS
        or len(message.is_category) != len(message.widths)
        or not all(2 <= w <= MOST_CELLS for w in message.widths)
    ):
        raise ProtocolError(f"{name!r} announced columns with cells that no table has.")
    return Layout(message.widths, message.is_category)


async def read_tape(me: Party, helper: str) -> Tape:
    message = await me.recv(helper, TapeKey)
    if len(message.key) != KEY:
        raise ProtocolError(f"{helper!r} sent a key of {len(message.key)} bytes; expected {KEY}.")
    return open_tape(message.key, message.cipher, "cpu")


def _words(tape: Tape, *shape: int) -> np.ndarray:
    return tape.draw(shape).numpy()


def _bytes(tape: Tape, *shape: int) -> np.ndarray:
    return tape.draw(shape, torch.uint8).numpy()


async def hold_columns(
    me: Party,
    terms: HistogramTerms,
    codes: np.ndarray,
    layout: Layout,
    sides: Callable[[np.ndarray], np.ndarray],
    noise: Noise | None = None,
) -> TreeShapes:
    """The program of a holder of columns: answers sums and sides until the trees are finished.

    `codes`: rows × columns, the cell of each; `sides(records)`: which rows go left, and keeps the splits;
    `noise`: what is added to the sums before they are opened.
    """
    n, label = terms.rows, terms.label_at
    await me.send([label, terms.helper], CellLayout(terms.text, layout.widths, layout.is_category))
    tape = await read_tape(me, terms.helper)
    pads = _Pads(await read_tape(me, terms.helper))
    pad = None
    if terms.reveal == "splits":
        key = (await me.recv(label, PadKey)).key
        if len(key) != KEY:
            raise ProtocolError(f"{label!r} sent a key of {len(key)} bytes; expected {KEY}.")
        pad = Tape(key)
    each = max(1, BLOCK // max(layout.cells, 1))
    for start in range(0, n, each):
        block = codes[start : start + each].astype(np.int64)  # cells of all columns exceed a byte
        words = np.negative(_words(tape, len(block), layout.cells))
        rows = np.arange(len(block))
        for column, offset in enumerate(layout.offsets.tolist()):
            words[rows, offset + block[:, column]] += 1
        await me.send(label, MaskedCells(start, torch.from_numpy(words)))
    sums = CellSums(codes, layout)
    vectors = splits = 0
    while True:
        message: Any = await me.recv(label, MaskedVectors, SplitRequest, TreeShapes)
        if isinstance(message, TreeShapes):
            return message
        if isinstance(message, MaskedVectors):
            count = len(message.values)
            vectors += count
            if vectors > terms.vectors:
                raise ProtocolError(
                    f"{label!r} asked for {vectors} sums; the agreed trees need at most {terms.vectors}. "
                    "Nothing more was answered."
                )
            masked = check_array(label, message.values, (count, n), torch.int64, "masked numbers")
            share = sums.add(masked) + _words(tape, count, layout.cells)
            if noise is not None:
                share += noise((count, layout.cells))
            if pad is None:
                await me.send(label, SumShares(torch.from_numpy(share)))
            else:
                share -= _words(pad, count, layout.cells)
                await me.send(terms.helper, PaddedSums(torch.from_numpy(share)))
            continue
        count = len(message.records)
        splits += count
        if splits > terms.splits:
            raise ProtocolError(
                f"{label!r} asked for {splits} splits; the agreed trees have at most {terms.splits}. Nothing "
                "more was answered."
            )
        records = check_array(label, message.records, (count, RECORD), torch.uint8, "splits").copy()
        members = check_array(label, message.members, (count, _bits(n)), torch.uint8, "masked rows")
        if terms.reveal == "splits":
            if len(message.serials) != count:
                raise ProtocolError(f"{label!r} sent splits without their pads.")
            records ^= np.stack([pads.take(serial) for serial in message.serials])
        sides_left = np.packbits(sides(records), axis=1)
        b, c = _bytes(tape, count, _bits(n)), _bytes(tape, count, _bits(n))
        await me.send(
            label,
            SplitSides(torch.from_numpy(sides_left ^ b), torch.from_numpy((members & b) ^ c)),
        )


class _Pads:
    """Pads of the helper's records, in order; each is used once."""

    def __init__(self, tape: Tape, most: int = 1 << 20):
        self._tape, self._most, self._next = tape, most, 0
        self._waiting: dict[int, np.ndarray] = {}

    def take(self, serial: int) -> np.ndarray:
        if not 0 <= serial < self._most:
            raise ProtocolError(f"there is no split {serial}.")
        while self._next <= serial:
            self._waiting[self._next] = _bytes(self._tape, RECORD)
            self._next += 1
        if serial not in self._waiting:
            raise ProtocolError(f"split {serial} was asked for twice.")
        return self._waiting.pop(serial)


class CellSums:
    """Sums of words over the cells of each column: rows are sorted by cell once."""

    def __init__(self, codes: np.ndarray, layout: Layout):
        self._layout = layout
        self._sorted = []
        for column in range(codes.shape[1]):
            order = np.argsort(codes[:, column], kind="stable")
            cells, starts = np.unique(codes[order, column], return_index=True)
            self._sorted.append((order, cells.astype(np.int64), starts))

    def add(self, words: np.ndarray) -> np.ndarray:
        """k × rows → k × cells, modulo 2^64."""
        out = np.zeros((len(words), self._layout.cells), dtype=np.int64)
        for (order, cells, starts), offset in zip(self._sorted, self._layout.offsets.tolist()):
            if len(order):
                out[:, offset + cells] = np.add.reduceat(words[:, order], starts, axis=1)
        return out


@dataclass
class Found:
    """What the helper found with reveal="splits": nodes × holders."""

    gains: np.ndarray
    records: np.ndarray
    serial: int  # of the first record


class LabelSide:
    """The label holder's side of the protocol."""

    def __init__(self, me: Party, terms: HistogramTerms, multiply: Multiply):
        self.me, self.terms, self.multiply = me, terms, multiply
        self.layouts: dict[str, Layout] = {}
        self._cells: dict[str, np.ndarray] = {}
        self._pads: dict[str, Tape] = {}
        self._serial = 0

    async def start(self) -> None:
        """Receive the masked cells of all holders."""
        me, terms = self.me, self.terms
        self._tape = await read_tape(me, terms.helper)
        for name in terms.holders:
            self.layouts[name] = await read_layout(me, terms, name)
            if terms.reveal == "splits":
                key = me.secret.bytes(KEY)
                await me.send(name, PadKey(key))
                self._pads[name] = Tape(key)
        for name, layout in self.layouts.items():
            masked, each = (
                np.empty((terms.rows, layout.cells), np.int64),
                max(1, BLOCK // max(layout.cells, 1)),
            )
            for start in range(0, terms.rows, each):
                message = await me.recv(name, MaskedCells)
                count = min(each, terms.rows - start)
                if message.start != start:
                    raise ProtocolError(f"{name!r} sent its masked cells in another order.")
                masked[start : start + count] = check_array(
                    name, message.values, (count, layout.cells), torch.int64, "masked cells"
                )
            self._cells[name] = masked

    async def sums(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        """With reveal="sums": k × rows integers → for each holder k × cells."""
        shares = await self._shares(vectors, SumRequest(len(vectors), [], [], []))
        out = {}
        for name, message in (await self.me.gather(self.terms.holders, SumShares)).items():
            shape = (len(vectors), self.layouts[name].cells)
            out[name] = shares[name] + check_array(name, message.values, shape, torch.int64, "sums")
        return out

    async def search(
        self, vectors: np.ndarray, parents: list[int], news: list[int], columns: list[int]
    ) -> Found:
        """With reveal="splits": the best split of each node at each holder, found by the helper."""
        shares = await self._shares(vectors, SumRequest(len(vectors), parents, news, columns))
        holders = self.terms.holders
        for name in holders:
            share = shares[name] + _words(self._pads[name], *shares[name].shape)
            await self.me.send(self.terms.helper, PaddedSums(torch.from_numpy(share)))
        message, helper = await self.me.recv(self.terms.helper, SplitCandidates), self.terms.helper
        shape = (len(parents), len(holders))
        gains = check_array(helper, message.gains, shape, torch.float64, "gains")
        records = check_array(helper, message.records, (*shape, RECORD), torch.uint8, "splits")
        first, self._serial = self._serial, self._serial + len(parents)
        return Found(gains, records, first)

    async def _shares(self, vectors: np.ndarray, request: SumRequest) -> dict[str, np.ndarray]:
        me, terms = self.me, self.terms
        await me.send(terms.helper, request)
        b = _words(self._tape, *vectors.shape)
        await me.send(terms.holders, MaskedVectors(torch.from_numpy(vectors - b)))
        message = await me.recv(terms.helper, SumCorrections)
        if len(message.values) != len(terms.holders):
            raise ProtocolError(f"{terms.helper!r} sent corrections for {len(message.values)} holders.")
        shares = {}
        for name, value in zip(terms.holders, message.values):
            shape = (len(vectors), self.layouts[name].cells)
            correction = check_array(terms.helper, value, shape, torch.int64, "corrections")
            shares[name] = self.multiply(b, self._cells[name]) + correction
        return shares

    async def sides(
        self, name: str, records: np.ndarray, members: np.ndarray, serials: Sequence[int] = ()
    ) -> np.ndarray:
        """Which rows of each node (splits × rows, bool) go left; False outside of the node."""
        me, terms, count = self.me, self.terms, len(records)
        shape = (count, _bits(terms.rows))
        u = np.packbits(members, axis=1)
        a = _bytes(self._tape, *shape)
        await me.send(terms.helper, SideRequest(name, count))
        await me.send(name, SplitRequest(torch.from_numpy(records), list(serials), torch.from_numpy(u ^ a)))
        correction = check_array(
            terms.helper,
            (await me.recv(terms.helper, SideCorrections)).values,
            shape,
            torch.uint8,
            "corrections",
        )
        message = await me.recv(name, SplitSides)
        masked, share = (
            check_array(name, value, shape, torch.uint8, "sides") for value in (message.masked, message.share)
        )
        left = (u & masked) ^ correction ^ share  # u∧(s⊕b) ⊕ (a∧b ⊕ c) ⊕ (u⊕a)∧b ⊕ c
        return np.asarray(np.unpackbits(left, axis=1, count=terms.rows).astype(bool) & members)

    async def finish(self, shapes: TreeShapes, mark: str) -> None:
        await self.me.send(self.terms.helper, SumsEnd(mark))
        await self.me.send(self.terms.holders, shapes)


Search = Callable[[Layout, np.ndarray, np.ndarray | None, np.ndarray], list[tuple[float, bytes]]]


async def help_sums(
    me: Party, terms: HistogramTerms, multiply: Multiply, search: Search | None = None
) -> str:
    """The helper's program: deal randomness; with reveal="splits" also search. Returns the trees' digest.

    `search(layout, nodes × cells × k words, usable columns, which nodes are roots)` gives (gain, record) of
    each node.
    """
    label, tapes, pads = terms.label_at, {}, {}
    for name in terms.names:
        tapes[name] = await _send_tape(me, name)
        if name != label:
            pads[name] = await _send_tape(me, name)
    layouts = {name: await read_layout(me, terms, name) for name in terms.holders}
    cells = {name: _words(tapes[name], terms.rows, layout.cells) for name, layout in layouts.items()}
    before: dict[str, list[np.ndarray]] = {}
    vectors = splits = 0
    while True:
        message: Any = await me.recv(label, SumRequest, SideRequest, SumsEnd)
        if isinstance(message, SumsEnd):
            return str(message.mark)
        if isinstance(message, SideRequest):
            splits += message.splits
            if message.party not in layouts or message.splits < 1 or splits > terms.splits * len(layouts):
                raise ProtocolError(f"{label!r} asked for splits that the agreed trees do not have.")
            shape = (message.splits, _bits(terms.rows))
            a, b, c = (_bytes(tapes[n], *shape) for n in (label, message.party, message.party))
            await me.send(label, SideCorrections(torch.from_numpy((a & b) ^ c)))
            continue
        vectors += message.vectors
        if message.vectors < 1 or vectors > terms.vectors:
            raise ProtocolError(f"{label!r} asked for more sums than the agreed trees need.")
        b = _words(tapes[label], message.vectors, terms.rows)
        corrections = []
        for name, layout in layouts.items():
            c = _words(tapes[name], message.vectors, layout.cells)
            corrections.append(torch.from_numpy(multiply(b, cells[name]) - c))
        await me.send(label, SumCorrections(corrections))
        if terms.reveal == "splits":
            if search is None:
                raise ProtocolError("the helper has no search for splits.")
            await _find(me, terms, layouts, message, before, pads, search)


async def _send_tape(me: Party, name: str) -> Tape:
    key = me.secret.bytes(KEY)
    await me.send(name, TapeKey(key, me.secret.bytes(SESSION)))
    return Tape(key)


def find_roots(parents: Sequence[int], news: Sequence[int]) -> np.ndarray | None:
    """Which nodes are roots; None if the others are not pairs of siblings, one pair for each parent.

    Of two siblings one is summed (parent −1), the other is their parent's sums without these.
    """
    of_sums: dict[int, list[int]] = {}
    for parent, new in zip(parents, news):
        of_sums.setdefault(new, []).append(parent)
    split = [parent for parent in parents if parent >= 0]
    are_pairs = all(
        each[0] < 0 if len(each) == 1 else len(each) == 2 and min(each) < 0 <= max(each)
        for each in of_sums.values()
    )
    if not are_pairs or len(set(split)) < len(split):
        return None
    return np.array([len(of_sums[new]) == 1 for new in news])


async def _find(
    me: Party,
    terms: HistogramTerms,
    layouts: Mapping[str, Layout],
    request: SumRequest,
    before: dict[str, list[np.ndarray]],
    pads: Mapping[str, Tape],
    search: Search,
) -> None:
    """Open the sums of all holders, follow siblings, send the best splits under pads."""
    label, k = terms.label_at, request.vectors
    nodes = len(request.parents)
    channels = k // (max(request.news, default=0) + 1)
    if len(request.news) != nodes or not nodes or channels < 1 or k % channels or min(request.news) < 0:
        raise ProtocolError(f"{label!r} sent nodes that do not belong to its sums.")
    is_root = find_roots(request.parents, request.news)
    if is_root is None:
        raise ProtocolError(
            f"{label!r} sent nodes that are neither roots nor the two children of a node: the rows of such a "
            "node need not be its parent's."
        )
    of_columns: list[np.ndarray] = []  # what each column adds up to: all the same
    gains = torch.empty(nodes, len(layouts), dtype=torch.float64)
    records = torch.empty(nodes, len(layouts), RECORD, dtype=torch.uint8)
    at = 0
    for place, (name, layout) in enumerate(layouts.items()):
        total = np.zeros((k, layout.cells), np.int64)
        for sender in (label, name):
            message = await me.recv(sender, PaddedSums)
            total += check_array(sender, message.values, total.shape, torch.int64, "sums")
        if layout.widths:
            of_columns.append(np.add.reduceat(total, layout.offsets, axis=1))
            if (np.concatenate(of_columns, axis=1) != of_columns[0][:, :1]).any():
                raise ProtocolError(
                    f"the sums of {name!r} do not add up to those of other columns: it, or {label!r}, did "
                    "not follow the protocol."
                )
        fresh = total.reshape(-1, channels, layout.cells)
        last = before.get(name, [])
        hists = []
        for parent, new in zip(request.parents, request.news):
            if parent >= len(last) or new >= len(fresh):
                raise ProtocolError(f"{label!r} sent nodes that do not belong to its sums.")
            hists.append(fresh[new] if parent < 0 else last[parent] - fresh[new])
        before[name] = hists
        usable = np.zeros(len(layout.widths), dtype=bool)
        own = [c - at for c in request.columns if 0 <= c - at < len(usable)]
        usable[own] = True
        at += len(usable)
        found = search(layout, np.stack(hists).transpose(0, 2, 1), usable, is_root)
        for node, (gain, record) in enumerate(found):
            gains[node, place] = gain
            pad = _bytes(pads[name], RECORD)
            records[node, place] = torch.from_numpy(np.frombuffer(record, np.uint8) ^ pad)
    await me.send(label, SplitCandidates(gains, records))
