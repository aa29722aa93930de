"""Record linkage on secret shares: which candidate pairs are one person. Nothing but match bits is opened.

    party (left or right)                               helper
      |--- LinkSettings(terms) -------------------------->|   and to the other party; all must be equal
      |<-- TapeKey, Corrections --------------------------|   `dealer.py`

    left                                                right
      |--- MaskedFilters(x − a) ------------------------->|   modulo 256
      |<-- MaskedFilters(y − b) --------------------------|
      |<-- MaskedFactors, MaskedValues, MaskedBits ------>|   uniform words and bits
      |<-- MaskedSigns, PermutedOrder ------------------->|
      |<-- MatchShare(my share of the match bits) ------->|

Each party has Bloom filters of its records' fields (`linkage/fields.py`) and slots of padded blocks: a slot
holds one of its rows, or none. A candidate pair is a left and a right slot of one block.

    1. z = x · y of each field by a correlation c = a · b: z_left = x · f + c_left, z_right = e · b + c_right,
       with e = x − a at the right party and f = y − b at the left one; filters take a byte a bit
    2. z is below 256, its shares add to z or z + 256: one comparison tells which
    3. [reached] = [128 z ≥ level · (|x| + |y|)], a comparison for each level (Dice's coefficient); a missing
       value counts as more bits than any level allows
    4. S = Σ base · [both present] + Σ step · [reached], far below 0 for an empty slot; P = 2^22 S + the
       number of the pair, so that no two pairs are equal
    5. the best P of each slot, then of each record: its owner permutes the slots' values so that those of a
       record are together, on shares (`shuffle.py`), and permutes the maxima back
    6. match = [P ≥ the best of the left record, the best of the right record and the threshold]

So the result is one to one: a pair matches if each is the best candidate of the other, above the threshold.

Each party learns the match bits: which of its records have a match, and for each one block in which the two
were compared. It learns no score, and nothing about a candidate that does not match. The helper learns the
terms: settings, numbers of rows, and how many blocks there are of each padded size. Semi-honest parties; the
helper colludes with none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import BadData, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .beaver import MATMUL
from .context import RingContext
from .dealer import Request, Stock, Values, dealer, plan
from .ring import FixedPoint
from .shuffle import permute
from .tape import Parts

PLACE = 22  # bits of a pair's number
PAIRS = 1 << PLACE
EMPTY = 1 << 22  # is taken from the score of an empty slot; scores of records are smaller
PIECE = 1 << 14  # pairs whose filters are compared at a time: some 50 MB for ten fields
SIGNS = 1 << 19  # values in one comparison
BYTE = 256
MOST_KEYS = 64  # blocking keys: a record's slots are put into as many places, or twice as many
ASSUMES = (
    "SEMI-HONEST: records without a match stay hidden, but for what their blocks reveal, if both parties "
    "follow their programs and the helper colludes with neither. A party that deviates can spoil the result "
    "unnoticed, and ask about people by made-up records, as in every linkage."
)


class LinkSettings(
    Message, reveals="fields, weights and threshold; how many rows the sender has, and blocks of each size"
):
    settings: str


class MaskedFilters(Message, reveals="Bloom filters under one-time masks: uniform bytes"):
    values: list[Tensor]


class MatchShare(Message, reveals="a share of the match bits: with the receiver's, which pairs match"):
    values: list[Tensor]


@dataclass(frozen=True)
class LinkField:
    """Bits of a field's filters, levels in 1/64, and what a pair's score gains (`linkage/weights.py`)."""

    bits: int
    levels: tuple[int, ...]
    base: int
    steps: tuple[int, ...]


@dataclass(frozen=True)
class LinkTerms:
    """The settings that all parties agree on; `shapes`: (left slots, right slots, blocks)."""

    names: tuple[str, str]
    helper: str
    rows: tuple[int, int]
    keys: int
    fields: tuple[LinkField, ...]
    threshold: int
    shapes: tuple[tuple[int, int, int], ...]

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> LinkTerms:
        fields = tuple(
            LinkField(int(f["bits"]), tuple(f["levels"]), int(f["base"]), tuple(f["steps"]))
            for f in table["fields"]
        )
        (a, b), (n, m) = table["names"], table["rows"]
        shapes = tuple((int(x), int(y), int(g)) for x, y, g in table["shapes"])
        return cls(
            (a, b),
            table["helper"],
            (int(n), int(m)),
            int(table["keys"]),
            fields,
            int(table["threshold"]),
            shapes,
        )

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    def text(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True)

    @property
    def pairs(self) -> int:
        return sum(n * m * g for n, m, g in self.shapes)

    def slots(self, side: int) -> int:
        return sum(shape[side] * shape[2] for shape in self.shapes)


def check_terms(terms: LinkTerms) -> None:
    """Refuse settings under which a comparison could overflow, and sizes that no party computes."""
    bits = [f.bits for f in terms.fields]
    sizes = [size for shape in terms.shapes for size in shape[:2]]
    odd = not bits or any(not 1 <= b <= BYTE for b in bits) or any(not 1 <= n <= BYTE for n in sizes)
    odd = odd or any(len(f.steps) != len(f.levels) for f in terms.fields)
    odd = odd or any(g < 1 for _, _, g in terms.shapes) or min(terms.rows) < 1
    if odd or not 1 <= terms.keys <= MOST_KEYS:
        raise ProtocolError(f"link: the settings have sizes out of range: {terms.text():.300}")
    if terms.pairs > PAIRS:
        raise BadData(
            f"link: there are {terms.pairs} candidate pairs with padding; at most {PAIRS} can be compared. "
            "Use blocks with more fields, or a smaller max_block."
        )
    most = sum(abs(f.base) + sum(map(abs, f.steps)) for f in terms.fields)
    if 2 * most >= EMPTY or abs(terms.threshold) >= EMPTY:
        raise BadData("link: the weights of the fields are too large. Use fewer fields, or other m and u.")


@dataclass(frozen=True)
class Products(Request):
    """a at the left party, b at the right one, and a · b of each field modulo 256; all for one part."""

    blocks: int
    left: int
    right: int
    widths: tuple[int, ...]

    def holds(self, name: str, rank: int) -> bool:
        return rank == "ab".index(name)

    def uniform(self) -> Parts:
        bits = sum(self.widths)
        sizes = {"a": self.left, "b": self.right}
        return {name: ((self.blocks, n, bits), torch.uint8) for name, n in sizes.items()}

    def derived(self) -> Parts:
        # 16 bits, because bytes are shared by exclusive or; only the lower 8 are used
        return {"ab": ((len(self.widths), self.blocks, self.left, self.right), torch.int16)}

    def derive(self, uniform: Values, masks: Values) -> Values:
        return {"ab": multiply(uniform["a"], uniform["b"], self.widths)}


def multiply(x: Tensor, y: Tensor, widths: Sequence[int]) -> Tensor:
    """Σ x y of each field modulo 256: [fields, blocks, left, right].

    float32 is exact: 256 products of bytes are below 2^24.
    """
    parts = zip(x.float().split(list(widths), -1), y.float().split(list(widths), -1))
    return torch.stack([(a @ b.mT).int() for a, b in parts]).bitwise_and_(BYTE - 1)


class Side(NamedTuple):
    """A party's own inputs: filters [rows, bits], counts and presence [rows, fields], slots by shape."""

    filters: Tensor
    counts: Tensor
    present: Tensor
    slots: list[Tensor]


def make_side(
    filters: Sequence[np.ndarray], counts: Sequence[np.ndarray], missing: int, slots: Sequence[np.ndarray]
) -> Side:
    """Add an empty record, to which slots without a row (−1) point."""
    bits = torch.from_numpy(np.concatenate(list(filters), 1))
    sizes = torch.from_numpy(np.stack(list(counts), 1))
    return Side(
        torch.cat([bits, torch.zeros_like(bits[:1])]),
        torch.cat([sizes, torch.full_like(sizes[:1], missing)]),
        torch.cat([(sizes < missing).long(), torch.zeros_like(sizes[:1])]),
        [torch.from_numpy(np.ascontiguousarray(s)) for s in slots],
    )


class Part(NamedTuple):
    shape: int
    start: int
    stop: int


def pieces(terms: LinkTerms) -> Iterator[list[Part]]:
    """All blocks in order, cut into pieces of at most PIECE pairs (or one block)."""
    piece: list[Part] = []
    room = PIECE
    for k, (n, m, count) in enumerate(terms.shapes):
        start = 0
        while start < count:
            take = min(count - start, max(room // (n * m), 0 if piece else 1))
            if not take:
                yield piece
                piece, room = [], PIECE
                continue
            piece.append(Part(k, start, start + take))
            start, room = start + take, room - take * n * m
    if piece:
        yield piece


async def match(ctx: RingContext, terms: LinkTerms, side: Side | None) -> Tensor:
    """[match] of every pair, by shape, block, left and right slot; `side` is None in a dry run."""
    scores = torch.cat([await _compare(ctx, terms, piece, side) for piece in pieces(terms)])
    scores = (scores << PLACE) + ctx.public(torch.arange(len(scores), device=scores.device), scores)  # 4
    tables = [
        part.reshape(g, n, m)
        for part, (n, m, g) in zip(scores.split([n * m * g for n, m, g in terms.shapes]), terms.shapes)
    ]
    best = await _best(ctx, [*tables, *(t.mT for t in tables)])  # 5: [blocks, left], then [blocks, right]
    limits = []
    for owner, bests in enumerate((best[: len(tables)], best[len(tables) :])):
        flat = torch.cat([b.reshape(-1) for b in bests])
        limits.append(await _best_of_records(ctx, terms, flat, side, owner))
    least = ctx.public(torch.tensor(terms.threshold << PLACE, device=scores.device), scores[:1])
    limits[0] = least + (await _signs(ctx, limits[0] - least))[1]
    wide = [
        [
            part.reshape(g, n, 1) if owner == 0 else part.reshape(g, 1, m)
            for part, (n, m, g) in zip(limits[owner].split(_slot_counts(terms, owner)), terms.shapes)
        ]
        for owner in (0, 1)
    ]
    left, right = (
        torch.cat([part.expand(g, n, m).reshape(-1) for part, (n, m, g) in zip(parts, terms.shapes)])
        for parts in wide
    )
    limit = right + (await _signs(ctx, left - right))[1]
    return (await _signs(ctx, scores - limit))[0]  # 6


def _slot_counts(terms: LinkTerms, owner: int) -> list[int]:
    return [shape[owner] * shape[2] for shape in terms.shapes]


async def _compare(ctx: RingContext, terms: LinkTerms, piece: list[Part], side: Side | None) -> Tensor:
    """[S] of the pairs of a piece."""
    widths = tuple(f.bits for f in terms.fields)
    rows = [None if side is None else side.slots[p.shape][p.start : p.stop] for p in piece]
    products = await _inner_products(ctx, terms, widths, piece, rows, side)  # 1
    wraps, _ = await _signs(
        ctx, products - ctx.public(torch.tensor(BYTE, device=products.device), products[:1])
    )
    z = products - (wraps << 8)  # 2
    sizes = _spread(ctx, terms, piece, [None if s is None or side is None else side.counts[s] for s in rows])
    reached, places = [], []
    for k, f in enumerate(terms.fields):
        for level in f.levels:
            reached.append((z[k] << 7) - level * sizes[k])
            places.append(k)
    bits, _ = await _signs(ctx, torch.stack(reached))  # 3
    steps = torch.tensor([step for f in terms.fields for step in f.steps], device=bits.device)
    base = await _presence(ctx, terms, piece, rows, side)
    empty = [None if s is None else (s < 0).long().unsqueeze(-1) for s in rows]
    return (bits * steps[:, None]).sum(0) + base - EMPTY * _spread(ctx, terms, piece, empty)[0]  # 4


async def _inner_products(
    ctx: RingContext,
    terms: LinkTerms,
    widths: tuple[int, ...],
    piece: list[Part],
    rows: Sequence[Tensor | None],
    side: Side | None,
) -> Tensor:
    """Shares of x · y modulo 256 of each field and pair, each from 0 to 255."""
    dealt = []
    for part in piece:
        n, m, _ = terms.shapes[part.shape]
        dealt.append(await ctx.stock.take(Products(part.stop - part.start, n, m, widths)))
    pairs = sum(t["ab"][0].numel() for t in dealt)
    if ctx.me is None or side is None:
        return torch.empty(len(widths), pairs, dtype=torch.int64, device="meta")
    (peer,), mask = ctx.peers, "a" if ctx.first else "b"
    own = [side.filters[r] for r in rows if r is not None]
    sent = [x - t[mask] for x, t in zip(own, dealt)]  # bytes: modulo 256
    await ctx.me.send(peer, MaskedFilters(sent))
    ctx.charge(sum(s.numel() for s in sent))
    received = (await ctx.me.recv(peer, MaskedFilters)).values
    other = "b" if ctx.first else "a"
    ctx.check_values(peer, received, [(tuple(t[other].shape), torch.uint8) for t in dealt])
    shares = []
    for x, theirs, t in zip(own, received, dealt):
        mine = multiply(x, theirs, widths) if ctx.first else multiply(theirs, t["b"], widths)
        shares.append((mine + t["ab"] & BYTE - 1).reshape(len(widths), -1).long())
    return torch.cat(shares, 1)


def _spread(ctx: RingContext, terms: LinkTerms, piece: list[Part], own: Sequence[Tensor | None]) -> Tensor:
    """My share of left value + right value of each pair: [columns, pairs], from [blocks, slots, columns]."""
    found = []
    for part, values in zip(piece, own):
        n, m, _ = terms.shapes[part.shape]
        count = part.stop - part.start
        if values is None:
            columns = len(terms.fields)
            found.append(torch.empty(columns, count * n * m, dtype=torch.int64, device="meta"))
            continue
        wide = values.unsqueeze(2) if ctx.first else values.unsqueeze(1)
        found.append(wide.expand(count, n, m, values.shape[-1]).reshape(count * n * m, -1).T)
    return torch.cat(found, 1)


async def _presence(
    ctx: RingContext, terms: LinkTerms, piece: list[Part], rows: Sequence[Tensor | None], side: Side | None
) -> Tensor:
    """[Σ base · (both values are there)] of each pair: a product of private matrices."""
    base = torch.tensor([f.base for f in terms.fields])
    found = []
    for part, own in zip(piece, rows):
        n, m, _ = terms.shapes[part.shape]
        count = part.stop - part.start
        device = "meta" if side is None else "cpu"
        x = torch.zeros(count, n, len(terms.fields), dtype=torch.int64, device=device)
        y = torch.zeros(count, len(terms.fields), m, dtype=torch.int64, device=device)
        if own is not None and side is not None:
            if ctx.first:
                x = side.present[own] * base
            else:
                y = side.present[own].mT.contiguous()
        found.append((await ctx.product(x, y, MATMUL)).reshape(-1))
    return torch.cat(found)


async def _best(ctx: RingContext, tables: list[Tensor]) -> list[Tensor]:
    """The maximum along the last dimension of each table, all tables at once; it has 2^k columns."""
    while any(t.shape[-1] > 1 for t in tables):
        halves = [t.tensor_split(2, -1) if t.shape[-1] > 1 else None for t in tables]
        sizes = [h[0].numel() for h in halves if h is not None]
        _, gains = await _signs(ctx, torch.cat([(h[0] - h[1]).reshape(-1) for h in halves if h is not None]))
        parts = iter(gains.split(sizes))
        tables = [t if h is None else h[1] + next(parts).reshape(h[1].shape) for t, h in zip(tables, halves)]
    return [t.squeeze(-1) for t in tables]


async def _best_of_records(
    ctx: RingContext, terms: LinkTerms, slots: Tensor, side: Side | None, owner: int
) -> Tensor:
    """For each slot, the best value of all slots of its record: a private permutation there and back.

    The slots and enough empty places are permuted into rows of 2^k places, one row a record; `owner` alone
    knows the order. A record has at most one slot for each key.
    """
    width = 1 << (terms.keys - 1).bit_length()
    records = min(terms.rows[owner], len(slots))
    low = -(EMPTY << (PLACE + 1))  # below every pair
    free = ctx.public(torch.full((records * width,), low, device=slots.device), slots[:1])
    values = torch.cat([slots, free.expand(records * width)])
    order = None
    if side is not None and ctx.rank == owner:
        order = arrange(torch.cat([s.reshape(-1) for s in side.slots]), records, width)
    there = await permute(ctx, f"slots {owner}", values, order, owner)
    (best,) = await _best(ctx, [there[: records * width].reshape(records, width)])
    there = torch.cat([best.unsqueeze(1).expand(records, width).reshape(-1), there[records * width :]])
    back = None if order is None else torch.argsort(order)
    return (await permute(ctx, f"slots back {owner}", there, back, owner))[: len(slots)]


def arrange(rows: Tensor, records: int, width: int) -> Tensor:
    """The order that puts the slots of each record into its own row of `width` places.

    Slots of no record, and what is left of the empty places, come behind the rows.
    """
    count = len(rows)
    grid = torch.full((records, width), -1, dtype=torch.int64)
    real = torch.nonzero(rows >= 0)[:, 0]
    by_record = real[torch.argsort(rows[real], stable=True)]
    _, record, sizes = torch.unique(rows[by_record], return_inverse=True, return_counts=True)
    starts = torch.cumsum(sizes, 0) - sizes
    place = torch.arange(len(by_record)) - starts[record]
    grid[record, place] = by_record
    free = torch.arange(count, count + records * width)
    used = grid.reshape(-1)
    gaps = used < 0
    used[gaps] = free[: int(gaps.sum())]
    rest = torch.cat([torch.nonzero(rows < 0)[:, 0], free[int(gaps.sum()) :]])
    return torch.cat([used, rest])


async def _signs(ctx: RingContext, x: Tensor) -> tuple[Tensor, Tensor]:
    """[x ≥ 0] and [max(x, 0)], in comparisons of bounded size."""
    parts = [await ctx.sign(part) for part in x.reshape(-1).split(SIGNS)]
    bit, positive = (torch.cat([p[k] for p in parts]).reshape(x.shape) for k in (0, 1))
    return bit, positive


async def holder(me: Party, terms: Mapping[str, Any], side: Side) -> np.ndarray:
    """A party's program; returns the numbers of the pairs that match, in order."""
    settings = LinkTerms.read(terms)
    check_terms(settings)
    me.ledger.stamp(ASSUMES)
    rank = settings.names.index(me.name)
    await me.send([settings.names[1 - rank], settings.helper], LinkSettings(settings.text()))
    check_same(
        settings, me.name, settings.names[1 - rank], await me.recv(settings.names[1 - rank], LinkSettings)
    )
    if not settings.pairs:
        return np.zeros(0, np.int64)
    stock = await Stock.connect(me, rank, 2, settings.helper)
    ctx = RingContext(me, rank, settings.names, stock, FixedPoint())
    (bits,) = await ctx.open(MatchShare, await match(ctx, settings, side))
    if not bool(((bits == 0) | (bits == 1)).all()):
        raise ProtocolError(
            "link: the opened match bits are not 0 or 1: a party did not follow the protocol."
        )
    return np.flatnonzero(bits.numpy())


async def helper(me: Party, names: Sequence[str]) -> LinkTerms:
    """The helper's program: compare the terms of both, and deal the randomness of their program."""
    texts = {name: (await me.recv(name, LinkSettings)).settings for name in names}
    try:
        settings = LinkTerms.read(json.loads(texts[names[0]]))
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"{names[0]!r} sent settings that cannot be read: {error}.") from None
    check_same(settings, names[0], names[1], LinkSettings(texts[names[1]]))
    if settings.names != tuple(names) or settings.helper != me.name:
        raise ProtocolError(f"{names[0]!r} sent settings for other parties than {list(names)}.")
    check_terms(settings)
    if settings.pairs:

        async def program(ctx: RingContext) -> None:
            await match(ctx, settings, None)

        await dealer(me, settings.names, plan(program, fixed=FixedPoint()))
    return settings


def check_same(terms: LinkTerms, name: str, other: str, message: LinkSettings) -> None:
    if message.settings != terms.text():
        raise ProtocolError(
            f"{other!r} and {name!r} have different settings: {message.settings:.300} and "
            f"{terms.text():.300}. All parties must run the same job with the same version."
        )


def find_rows(terms: LinkTerms, slots: Sequence[Tensor], side: int, found: np.ndarray) -> np.ndarray:
    """This party's rows of the pairs with these numbers; −1 would be an empty slot, which never matches."""
    start, rows = 0, np.full(len(found), -1, np.int64)
    for (n, m, g), own in zip(terms.shapes, slots):
        inside = (found >= start) & (found < start + n * m * g)
        place = found[inside] - start
        at = place // m % n if side == 0 else place % m
        rows[inside] = own.numpy()[place // (n * m), at]
        start += n * m * g
    return rows


def ideal(terms: LinkTerms, left: Side, right: Side) -> np.ndarray:
    """The same pairs in the clear."""
    scores, rows = [], []
    splits = [f.bits for f in terms.fields]
    for x_rows, y_rows in zip(left.slots, right.slots):
        x, y = left.filters[x_rows].long(), right.filters[y_rows].long()
        total = torch.zeros(len(x), x.shape[1], y.shape[1], dtype=torch.int64)
        parts = zip(x.split(splits, -1), y.split(splits, -1), terms.fields)
        for k, (a, b, f) in enumerate(parts):
            both = torch.einsum("gnl,gml->gnm", a.double(), b.double()).long()
            size = left.counts[x_rows][:, :, None, k] + right.counts[y_rows][:, None, :, k]
            there = left.present[x_rows][:, :, None, k] * right.present[y_rows][:, None, :, k]
            total += f.base * there
            for level, step in zip(f.levels, f.steps):
                total += step * (128 * both >= level * size)
        total -= EMPTY * ((x_rows < 0).long()[:, :, None] + (y_rows < 0).long()[:, None, :])
        scores.append(total.reshape(-1).numpy())
        i, j = torch.broadcast_tensors(x_rows[:, :, None], y_rows[:, None, :])
        rows.append(torch.stack([i.reshape(-1), j.reshape(-1)]).numpy())
    score, (i, j) = np.concatenate(scores), np.concatenate(rows, 1)
    best_i: dict[int, int] = {}
    best_j: dict[int, int] = {}
    for k in np.lexsort((np.arange(len(score)), score)).tolist():  # the last one of a record is its best
        best_i[int(i[k])], best_j[int(j[k])] = k, k
    found = [
        k for a, k in best_i.items() if a >= 0 and score[k] >= terms.threshold and best_j[int(j[k])] == k
    ]
    return np.array(sorted(found), np.int64)
