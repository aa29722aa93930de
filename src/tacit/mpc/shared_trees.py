"""Boosted trees over the people of a join whose membership stays shared.

    first (its cells by bin)                          second (cells as shared words)            helper
      |--- TreeLayout(settings, columns) --------------->|----------------------------------------->|
      |<-- TreeLayout -----------------------------------|----------------------------------------->|
      |<-- TapeKey, Corrections ---------------------------------------------------------------------|
      |<-- MaskedFactors, MaskedValues, … -------------->|
      |<-- EnoughShare --------------------------------->|   are enough people matched, with each class
      |--- TreesFollow ------------------------------------------------------------------------------>|
      |<-- MaskedNumbers, MaskedFactors ---------------->|   M: rows × cells, one-hot, masked once
      |<-- TapeKey, Corrections ---------------------------------------------------------------------|
    for each tree
      |<-- MaskedFactors, MaskedValues, MaskedBits, … -->|   g = m·(σ(F) − y), h = m·σ(F)(1 − σ(F))
      for each level
      |<-- MaskedFactors ------------------------------->|   vectors u·(g, h, m) of left children u
      |   [u·(g, h, m)]ᵀ[M], gains and the best one on shares (`split_search.py`)
      |--- SplitShare(place of the best split) --------->|   of each node
    at the end
      |<-- TreeShare(values, gains) ---------------------|   to the holder of the label only

A row is a bin of the first party; m is 1 if it counts: how="inner": its person is matched; how="left": the
bin has a person. Everything that depends on m stays on shares: gradients, the rows of nodes, sums over cells,
gains, margins and values of leaves while trees grow. Trees are complete: a node without a split sends all
rows to the left, and costs the same.

Opened to both: of each node which column of which party is split, after which of its cells, and on which side
missing values are (the cells of a column are numbered; only its owner knows their bounds); or that no split
is possible. To the holder of the label: the values of leaves and the gains. Sums and sizes of nodes are not
opened, but they may follow: the first tree's gradients have two values, so that a leaf of a few hundred
people has a value that fits few numbers of people and of labels. Each leaf has at least `min_rows` people who
count, so no value is about fewer.

Learns: the helper the settings and the layout. Semi-honest parties; the helper colludes with neither.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import BadData, ProtocolError
from ..parameters import bad
from ..parties.message import Message
from ..parties.party import Party
from . import precise
from .beaver import MUL, MaskedFactor, MaskedFactors, mask_shared
from .context import RingContext
from .dealer import DryRun, Mask, Stock, dealer, plan
from .node_products import Factor, JointMask, join_children, mask_nodes, multiply
from .one_hot import one_hot
from .ring import FixedPoint
from .shared_join import SharedRows
from .split_search import (
    LARGEST,
    NOISE,
    RATE,
    SUM,
    Candidate,
    CandidateMap,
    ColumnCells,
    SplitLimits,
    list_candidates,
    search,
    weight,
)

OBJECTIVES = ("binary", "regression")
CELL, LABEL = "cell", "label"  # what a word of the second party stands for
NONE = 0  # the place of "no split"
COLUMNS = 64  # of a party
MOST_WORDS = 1 << 27  # of the masked cells, rows × cells: 1 GB
LARGEST_GAIN = (
    2.0**40
)  # units: three scores of rows · 2^8, with 24 + 6 − log₂(rows) fractional bits, are below
MOST_SCALED = 8.0  # of a regression's label, scaled: its sums then have room for 2^20 people
ASSUMES = (
    "SEMI-HONEST: who is matched, how many are, gradients and the rows of nodes stay hidden if both parties "
    "follow their programs and the helper colludes with neither. A party that deviates can corrupt the trees "
    "unnoticed, and by false inputs make a leaf that is about a single person."
)
OPENED = (
    "OPENED: both parties learned which column of which party splits each node after which of its numbered "
    "cells, and no thresholds. The holder of the label learned the values of leaves and the gains of splits, "
    "which may tell how many people a leaf has. Each leaf is about at least min_rows people of the join."
)


class TreeLayout(
    Message,
    reveals="how many cells each of the sender's agreed columns has, which are categories, and which have "
    "missing values",
):
    settings: str
    widths: list[int]
    is_category: list[bool]
    has_missing: list[bool]


class EnoughShare(
    Message,
    reveals="a share of whether enough people are matched, of two classes with each: with the other's, this",
):
    values: list[Tensor]


class TreesFollow(Message, reveals="whether trees follow, because enough people are matched"):
    follows: bool


class SplitShare(
    Message,
    reveals="a share of which column of which party is split in each node, and after which of its numbered "
    "cells: with the other's, these splits",
):
    values: list[Tensor]


class TreeShare(
    Message,
    reveals="a share of the values of leaves and of the gains of splits: with the receiver's, these numbers",
):
    values: list[Tensor]


@dataclass(frozen=True)
class TreeTerms:
    """The settings that both parties and the helper agree on; `rows` are bins.

    `columns`: the names of both parties' columns. `label_at`: which party has the label, 0 or 1.
    """

    names: tuple[str, str]
    helper: str
    rows: int
    minimum: int
    how: str
    columns: tuple[tuple[str, ...], tuple[str, ...]]
    label: str
    label_at: int
    objective: str = "binary"
    trees: int = 20
    depth: int = 3
    learning_rate: float = 0.3
    l2: float = 1.0
    gamma: float = 0.0
    min_child_weight: float = 1.0
    min_rows: int = 20
    bins: int = 15

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> TreeTerms:
        first, second = (tuple(map(str, own)) for own in table["columns"])
        return cls(**{**table, "names": tuple(table["names"]), "columns": (first, second)})

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    def text(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True)

    @property
    def words(self) -> tuple[tuple[str, str], ...]:
        """What the second party shares for each of its ids."""
        label = ((self.label, LABEL),) if self.label_at else ()
        return tuple((c, CELL) for c in self.columns[1]) + label

    @property
    def fewest(self) -> int:
        """The fewest matched people for trees: as many as one split needs."""
        return max(self.minimum, 2 * self.min_rows)

    @property
    def limits(self) -> SplitLimits:
        # of a regression every person's Hessian is 1, so that both rules are about numbers of people
        by_count = self.objective == "regression"
        rows = max(self.min_rows, math.ceil(self.min_child_weight)) if by_count else self.min_rows
        least = 0.0 if by_count else self.min_child_weight
        return SplitLimits(self.rows, self.l2, rows, least, is_bounded=by_count)


def check_terms(terms: TreeTerms) -> None:
    """Refuse settings that open a value about too few people, or that are not possible."""
    if len(terms.names) != 2 or terms.helper in terms.names:
        raise bad("join.boost", "parties", list(terms.names), f"two, and none called {terms.helper!r}")
    if terms.min_rows < terms.minimum:
        raise bad(
            "join.boost",
            "min_rows",
            terms.min_rows,
            f"at least {terms.minimum}, the minimum of the join",
            "A leaf's value is a figure about its people.",
        )
    if terms.how == "left" and terms.label_at:
        raise bad(
            "join.boost",
            "label",
            f"{terms.names[1]}.{terms.label}",
            f"a column of {terms.names[0]!r} with how='left'",
            "People whom the second party does not have would have no label.",
        )
    for own in terms.columns:
        if len(own) > COLUMNS or len(set(own)) < len(own):
            raise bad("join.boost", "columns", len(own), f"at most {COLUMNS} different columns of a party")
    if not any(terms.columns):
        raise bad("join.boost", "columns", [], "at least one column besides the label")


class Grown(NamedTuple):
    """What a party has after training. Values and gains: at the holder of the label only, trees × nodes."""

    candidates: list[Candidate]
    picks: list[list[list[int]]]  # of each tree and level: of each node the place of its split, 0: none
    leaves: Tensor | None  # trees × 2^depth, with SUM fractional bits
    gains: Tensor | None  # trees × (2^depth − 1), above the floor


def read_layout(name: str, message: TreeLayout, terms: TreeTerms) -> list[ColumnCells]:
    """A party's columns; refuse others than were agreed on."""
    if message.settings != terms.text():
        raise ProtocolError(
            f"{name!r} has other settings of the trees: {message.settings:.300} and {terms.text():.300}. All "
            "parties must start the same job."
        )
    count = len(terms.columns[terms.names.index(name)])
    fits = len(message.widths) == len(message.is_category) == len(message.has_missing) == count
    if not fits or not all(1 <= w <= terms.bins for w in message.widths):
        raise ProtocolError(
            f"{name!r} announced columns with {message.widths!s:.200} cells; agreed are {count} columns with "
            f"at most {terms.bins} cells (bins)."
        )
    of_join = terms.how == "left" and name == terms.names[1]  # people whom it does not have
    return [
        ColumnCells(w, c, bool(m) or of_join)
        for w, c, m in zip(message.widths, message.is_category, message.has_missing)
    ]


def check_columns(terms: TreeTerms, columns: Sequence[Sequence[ColumnCells]]) -> None:
    """Refuse columns that take too much memory, and those that have nothing to split."""
    if not list_candidates(columns):
        raise BadData(
            "join.boost: no column has two bins with min_rows rows in its table, so there is nothing to "
            "split. Use a smaller min_rows, or other columns."
        )
    cells = sum(c.width for own in columns for c in own)
    if terms.rows * cells > MOST_WORDS:
        raise BadData(
            f"join.boost: {terms.rows} bins of people × {cells} cells of columns are {terms.rows * cells} "
            f"words; at most {MOST_WORDS} are possible. Use fewer bins, or fewer columns."
        )


async def check_enough(ctx: RingContext, terms: TreeTerms, rows: SharedRows, label: Tensor) -> Tensor:
    """[at least `fewest` people are matched, and of two classes the minimum of people who count have each].

    `label`: the first party's by bin, as in `grow`.
    """
    count = rows.match.sum().reshape(1)
    least = [count - ctx.public(terms.fewest, count)]
    if terms.objective == "binary":
        counts = rows.match if terms.how == "inner" else rows.present
        labeled = rows.words[:, -1] if terms.label_at else await ctx.product(label, counts, MUL)
        ones, fewest = labeled.sum().reshape(1), ctx.public(terms.minimum << SUM, count)
        least += [ones - fewest, (counts.sum().reshape(1) << SUM) - ones - fewest]
    bits = (await ctx.sign(torch.cat(least))).bit
    enough: Tensor = bits[:1]
    for k in range(1, len(least)):
        enough = await ctx.product(enough, bits[k : k + 1], MUL)
    return enough


async def mask_cells(
    ctx: RingContext, terms: TreeTerms, columns: Sequence[Sequence[ColumnCells]], own: Tensor, words: Tensor
) -> Factor:
    """M, rows × cells: one-hot cells of both parties' columns, masked once; a missing value has none.

    `own`: the first party's cells + 1 by bin, 0 where missing; `words`: the second's, shared.
    """
    parts: list[Factor] = []
    for k, column in enumerate(columns[0]):
        value = None
        if ctx.me is not None and ctx.first:
            value = (own[:, k : k + 1] == torch.arange(1, column.width + 1)).long()
        parts.append(await _mask_own(ctx, f"column {len(parts)}", (terms.rows, column.width), value))
    for k, column in enumerate(columns[1]):
        bits = max(1, math.ceil(math.log2(column.width + 1)))
        hot = await one_hot(ctx, words[:, k], bits)
        shared = hot[:, 1 : column.width + 1].contiguous()
        parts.append(await mask_shared(ctx, f"column {len(parts)}", shared))
    await ctx.stock.take(JointMask("cells", tuple(str(p.name) for p in parts)))
    return MaskedFactor("cells", torch.cat([p.f for p in parts], 1), torch.cat([p.b for p in parts], 1))


async def _mask_own(ctx: RingContext, name: str, shape: tuple[int, ...], value: Tensor | None) -> Factor:
    """Mask a value of the first party's: it alone knows b, and sends f = value − b."""
    b = (await ctx.stock.take(Mask(name, shape, 0)))["b"]
    if ctx.me is None:
        return MaskedFactor(name, b, b)
    if value is not None:
        f = value - b
        await ctx.send_share(MaskedFactors, f, 1)
        return MaskedFactor(name, f, b)
    values = (await ctx.me.recv(ctx.names[0], MaskedFactors)).values
    ctx.check_values(ctx.names[0], values, [(shape, torch.int64)])
    return MaskedFactor(name, values[0], b)


async def gradients(
    ctx: RingContext, terms: TreeTerms, counts: Factor, label: Tensor, margin: Tensor
) -> Tensor:
    """[m·g, m·h, m], or [m·g, m] of a regression: channels × 1 × rows. `label`: m·y."""
    m = counts.b + counts.f if ctx.first else counts.b
    if terms.objective == "regression":
        weighted = await ctx.product_masked(margin, counts, MUL)
        return torch.stack([weighted - label, m]).unsqueeze(1)
    p, h = await precise.sigmoid(ctx, margin)
    both = torch.stack([p, h])
    weighted = torch.stack([await ctx.product_masked(each, counts, MUL) for each in both])
    return torch.stack([weighted[0] - label, weighted[1], m]).unsqueeze(1)


def _with_hessians(terms: TreeTerms, sums: Tensor) -> Tensor:
    """G, H and rows: of a regression H is the number of rows."""
    return sums if len(sums) == 3 else torch.stack([sums[0], sums[1] << SUM, sums[1]])


class _Tree(NamedTuple):
    picks: list[list[int]]
    leaves: Tensor  # [2^depth]
    gains: Tensor  # [2^depth − 1]
    margin: Tensor


async def grow_tree(
    ctx: RingContext,
    terms: TreeTerms,
    candidates: CandidateMap,
    cells: Factor,
    counts: Factor,
    label: Tensor,
    margin: Tensor,
    floor: Tensor,
) -> _Tree:
    """One tree, and the margins after it."""
    limits = terms.limits
    start = await gradients(ctx, terms, counts, label, margin)
    nodes = await mask_nodes(ctx, "nodes 0", start)
    total, sums, picks, gains = start.sum(-1), torch.zeros(0), list[list[int]](), []
    dead = [False]
    for level in range(terms.depth):
        fresh = await multiply(ctx, "sums", nodes, cells)
        sums = join_children(sums, fresh) if level else fresh
        place, gain = await search(
            ctx, limits, candidates, _with_hessians(terms, sums), _with_hessians(terms, total), floor
        )
        found = [NONE] * len(dead)
        live = [k for k, is_dead in enumerate(dead) if not is_dead]
        if ctx.me is not None and live:
            (opened,) = await ctx.open(SplitShare, place[live])
            for k, number in zip(live, opened.tolist()):
                if not 0 <= number <= len(candidates.flips):
                    raise ProtocolError(f"{ctx.peers[0]!r} opened split {number}, which does not exist.")
                found[k] = number
        alive = torch.tensor([int(number != NONE) for number in found], device=gain.device)
        picks.append(found)
        gains.append(gain * alive)
        left, sides = _choose(ctx, candidates, cells, sums, total, found)
        is_last = level == terms.depth - 1
        masked = await mask_nodes(ctx, f"sides {level}", sides)
        moved = await multiply(ctx, "left rows" if is_last else "left", nodes, masked)
        total = join_children(total.unsqueeze(-1), left.unsqueeze(-1)).squeeze(-1)
        nodes = await mask_nodes(ctx, "leaves" if is_last else f"nodes {level + 1}", moved, nodes)
        dead = [number == NONE for number in found for _ in range(2)]
    full = _with_hessians(terms, total)
    w = await weight(ctx, limits, full[0], full[1])
    leaves = await ctx.truncate(-w * round(terms.learning_rate * 2**RATE), RATE)
    step = await multiply(ctx, "values", nodes, await mask_nodes(ctx, "values", leaves))
    return _Tree(picks, leaves, torch.cat(gains), margin + step)


def _choose(
    ctx: RingContext,
    candidates: CandidateMap,
    cells: Factor,
    sums: Tensor,
    total: Tensor,
    found: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """(sums of the left children, [which rows go left], nodes × rows) of the splits; none: all left."""
    at = sums.device
    picked = torch.tensor([max(number - 1, 0) for number in found])
    is_split = torch.tensor([int(number != NONE) for number in found])
    weights = (candidates.weights[:, picked] * is_split).to(at)  # cells × nodes
    whole = torch.where(is_split.bool(), candidates.flips[picked], 1).to(at)
    left = torch.einsum("knc,cn->kn", sums, weights) + total * whole
    shares = cells.b + cells.f if ctx.first else cells.b
    sides = (shares @ weights).T.contiguous() + ctx.public(whole, sums).unsqueeze(-1)
    return left, sides


async def grow(
    ctx: RingContext,
    terms: TreeTerms,
    columns: Sequence[Sequence[ColumnCells]],
    rows: SharedRows,
    own: Tensor,
    label: Tensor,
    base: Tensor,
    floor: Tensor,
) -> tuple[list[list[list[int]]], Tensor, Tensor]:
    """(splits, [values of leaves], [gains]) of all trees.

    `own`: the first party's cells + 1 by bin; `label`: its label by bin, or nothing where the second party
    has it, in the last word. `base`, `floor`: numbers of the holder of the label, 0 at the other.
    """
    listed = list_candidates(columns)
    candidates = CandidateMap.of(listed, sum(c.width for side in columns for c in side))
    cells = await mask_cells(ctx, terms, columns, own, rows.words)
    counts = await mask_shared(ctx, "counts", rows.match if terms.how == "inner" else rows.present)
    if terms.label_at:
        weighted = rows.words[:, len(terms.columns[1])]
    else:
        weighted = await ctx.product_masked(label, counts, MUL)
    margin = torch.zeros_like(weighted) + base
    picks, leaves, gains = [], [], []
    is_dry = isinstance(ctx.stock, DryRun)
    begin = len(ctx.stock.requests) if isinstance(ctx.stock, DryRun) else 0
    for _ in range(1 if is_dry else terms.trees):
        tree = await grow_tree(ctx, terms, candidates, cells, counts, weighted, margin, floor)
        margin = tree.margin
        picks.append(tree.picks)
        leaves.append(tree.leaves)
        gains.append(tree.gains)
    if isinstance(ctx.stock, DryRun):  # every tree needs the same
        ctx.stock.repeat(begin, terms.trees - 1)
    return picks, torch.stack(leaves), torch.stack(gains)


def gain_floor(terms: TreeTerms, exponent: int) -> int:
    """The smallest gain of a split, in units; `exponent`: of the label's scale. No gain has LARGEST_GAIN."""
    units = terms.gamma / 4.0**exponent * (1 << terms.limits.gain_bits)
    return max(NOISE, round(min(units, LARGEST_GAIN)))


async def holder(
    me: Party,
    terms: Mapping[str, Any],
    rows: Sequence[Tensor],
    layout: Sequence[tuple[int, bool, bool]],
    own: Tensor,
    label: Tensor,
    base: int,
    exponent: int,
) -> Grown | None:
    """A party's program, after the match with the words of `TreeTerms.words`. None: too few people.

    `layout`: (cells, whether it is a category, whether it has missing values) of this party's columns;
    `own`, `label`: the first party's by bin. `base`: the constant of the margins with SUM fractional bits, at
    the holder of the label, and `exponent` that of its scale (`LabelScale`).
    """
    settings, shares = TreeTerms.read(terms), SharedRows(*rows)
    check_terms(settings)
    me.ledger.stamp(ASSUMES)
    rank = settings.names.index(me.name)
    other, shape = settings.names[1 - rank], (settings.rows, len(settings.words))
    if (
        shares.match.shape != shares.present.shape
        or shares.words.shape != shape
        or len(shares.match) != shape[0]
    ):
        raise ProtocolError(
            f"{me.name!r} has rows of another shape than {shape[0]} bins and {shape[1]} words. All parties "
            "must run the same job."
        )
    widths, is_category, has_missing = ([each[k] for each in layout] for k in range(3))
    mine = TreeLayout(settings.text(), widths, list(map(bool, is_category)), list(map(bool, has_missing)))
    await me.send([other, settings.helper], mine)
    theirs = read_layout(other, await me.recv(other, TreeLayout), settings)
    columns = [read_layout(me.name, mine, settings), theirs]
    columns = columns[::-1] if rank else columns
    check_columns(settings, columns)
    if rank:
        own = torch.zeros(settings.rows, len(columns[0]), dtype=torch.int64)
    if settings.label_at or rank:
        label = torch.zeros(settings.rows, dtype=torch.int64)
    ctx = await _connect(me.scope("enough"), settings, rank)
    (bit,) = await ctx.open(EnoughShare, await check_enough(ctx, settings, shares, label))
    if not rank:
        await me.send(settings.helper, TreesFollow(bool(bit)))
    if not bool(bit):
        return None
    me.ledger.stamp(OPENED)
    ctx = await _connect(me.scope("grow"), settings, rank)
    has_label = rank == settings.label_at
    constant = torch.tensor(base if has_label else 0)
    floor = torch.tensor(gain_floor(settings, exponent) if has_label else 0)
    picks, leaves, gains = await grow(ctx, settings, columns, shares, own, label, constant, floor)
    listed = list_candidates(columns)
    if not has_label:
        assert ctx.me is not None
        await ctx.me.send(other, TreeShare([leaves, gains]))
        return Grown(listed, picks, None, None)
    assert ctx.me is not None
    message = await ctx.me.recv(other, TreeShare)
    ctx.check_values(other, message.values, [(tuple(t.shape), t.dtype) for t in (leaves, gains)])
    return Grown(listed, picks, leaves + message.values[0], gains + message.values[1])


async def _connect(me: Party, terms: TreeTerms, rank: int) -> RingContext:
    stock = await Stock.connect(me, rank, 2, terms.helper)
    return RingContext(me, rank, terms.names, stock, FixedPoint())


async def helper(me: Party, terms: Mapping[str, Any]) -> bool:
    """The helper's program; returns whether trees were grown."""
    settings = TreeTerms.read(terms)
    check_terms(settings)
    messages = await me.gather(settings.names, TreeLayout)
    columns = [read_layout(name, messages[name], settings) for name in settings.names]
    check_columns(settings, columns)

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int64, device="meta")

    def empty_rows() -> SharedRows:
        return SharedRows(
            empty(settings.rows), empty(settings.rows, len(settings.words)), empty(settings.rows)
        )

    async def enough(ctx: RingContext) -> None:
        await check_enough(ctx, settings, empty_rows(), empty(settings.rows))

    async def program(ctx: RingContext) -> None:
        rows = empty_rows()
        own, label = empty(settings.rows, len(columns[0])), empty(settings.rows)
        await grow(ctx, settings, columns, rows, own, label, empty(), empty())

    await dealer(me.scope("enough"), settings.names, plan(enough, fixed=FixedPoint()))
    if not (await me.recv(settings.names[0], TreesFollow)).follows:
        return False
    await dealer(me.scope("grow"), settings.names, plan(program, fixed=FixedPoint()))
    return True


@dataclass(frozen=True)
class LabelScale:
    """How the label is coded: z = (y − center)/2^exponent, with SUM fractional bits, within ±8."""

    center: float
    exponent: int

    @classmethod
    def of(cls, y: Tensor) -> LabelScale:
        """Of a regression's label, over its holder's whole table."""
        std, center = (float(v) for v in torch.std_mean(y.double(), correction=0))
        farthest = float((y.double() - center).abs().max())
        return cls(center, max(math.frexp(std)[1], math.frexp(farthest / MOST_SCALED)[1]))

    def encode(self, y: Tensor) -> Tensor:
        return torch.round((y.double() - self.center) / 2.0**self.exponent * 2.0**SUM).long()


class IdealTrees(NamedTuple):
    picks: list[list[list[int]]]
    leaves: Tensor  # trees × 2^depth
    gains: Tensor
    margin: Tensor


def ideal(
    terms: TreeTerms,
    columns: Sequence[Sequence[ColumnCells]],
    codes: Tensor,
    y: Tensor,
    base: float,
    exponent: int = 0,
) -> IdealTrees:
    """The same trees in the clear, over the rows that count; `codes`: cells + 1 of all columns, or 0."""
    limits, unit = terms.limits, 2.0**terms.limits.gain_bits
    widths = [c.width for side in columns for c in side]
    m = torch.cat([codes[:, k : k + 1] == torch.arange(1, w + 1) for k, w in enumerate(widths)], 1).double()
    candidates = CandidateMap.of(list_candidates(columns), sum(widths))
    sides = m @ candidates.weights.double() + candidates.flips
    floor, margin = gain_floor(terms, exponent) / unit, torch.full((len(y),), base, dtype=torch.float64)
    picks, values, gains = [], [], []
    for _ in range(terms.trees):
        p = torch.sigmoid(margin)
        is_binary = terms.objective == "binary"
        g, h = (p - y, p * (1 - p)) if is_binary else (margin - y, torch.ones_like(margin))
        node, dead, levels, of_tree = torch.zeros(len(y), dtype=torch.int64), [False], [], list[float]()
        for _level in range(terms.depth):
            found = []
            for k, is_dead in enumerate(dead):
                place, gain = NONE, 0.0
                if not is_dead:
                    place, gain = _search_plain(
                        limits, candidates, sides[node == k], g[node == k], h[node == k]
                    )
                    place, gain = (place, gain - floor) if gain > floor else (NONE, 0.0)
                found.append(place)
                of_tree.append(gain)
            to_left = torch.ones(len(y), dtype=torch.bool)
            for k, place in enumerate(found):
                if place != NONE:
                    to_left[node == k] = sides[node == k, place - 1] > 0
            node = 2 * node + (~to_left).long()
            dead = [place == NONE for place in found for _ in range(2)]
            levels.append(found)
        total = torch.zeros(2, 1 << terms.depth, dtype=torch.float64)
        total.index_add_(1, node, torch.stack([g, h]))
        value = -terms.learning_rate * _weigh(terms.l2, total[0], total[1])
        margin = margin + value[node]
        picks.append(levels)
        values.append(value)
        gains.append(of_tree)
    return IdealTrees(picks, torch.stack(values), torch.tensor(gains, dtype=torch.float64), margin)


def _weigh(l2: float, g: Tensor, h: Tensor) -> Tensor:
    return (g / (h + l2)).clamp(-(2.0**LARGEST), 2.0**LARGEST)


def _search_plain(
    limits: SplitLimits, candidates: CandidateMap, sides: Tensor, g: Tensor, h: Tensor
) -> tuple[int, float]:
    """(place, gain) of the best split of one node."""
    sums = torch.stack([g, h, torch.ones_like(g)])
    left, whole = sums @ sides, sums.sum(1, keepdim=True)
    both = torch.stack([left, whole - left])
    allowed = (both[:, 2] >= limits.min_rows - 0.5) & (both[:, 1] >= limits.min_child_weight)
    of_sides = (both[:, 0] * _weigh(limits.l2, both[:, 0], both[:, 1])).sum(0)
    gain = of_sides - whole[0] * _weigh(limits.l2, whole[0], whole[1])
    gain = gain - candidates.flips * NOISE / 2.0**limits.gain_bits
    gain = torch.where(allowed.all(0), gain, -torch.inf)
    place = int(gain.argmax()) if len(gain) else 0
    return (place + 1, float(gain[place])) if len(gain) else (NONE, 0.0)
