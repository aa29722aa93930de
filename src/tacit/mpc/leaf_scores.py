"""Scores of rows by trees whose splits belong to different parties: only the scores are opened, to one party.

    label holder L (values v of leaves)        holder i (d = v − a, since training)           helper (a)
      |--- ScoreShape(rows, output of each leaf) ------------------------------------------------>|
      |<-- TapeKey, Corrections (`dealer.py`) ----------------------------------------------------|
      |<-- MaskedFactors, for each product ------->|   c: shares of whether a row is in a leaf
      |                                            |<-- LeafTape --------------------------------|   b_i, z_i
      |<-- LeafCorrections(b_i·a − z_i) ----------------------------------------------------------|
      |<-- MaskedShares(e_i = c_i − b_i) ----------|
      |   c_L·v + Σ (e_i·a + b_i·a − z_i)          |   c_i·d + z_i         sums over leaves: shares of c·v
      |--- ResultShare --------------------------->| receiver

The factor of every party is 1 where its own conditions of a leaf hold, else 0; c is their product. The values
of leaves were fixed when the trees were trained: a is the helper's random tape, d is what L sent then, and
each holder has kept it. What L enters now are no values: with others than those of training, L would not get
other scores, but numbers that say nothing, since c_L is uniform and its own e_i·a is a number it knows.

Learns: the receiver the scores, by the values of training. Nobody which leaf a row reaches, or on which side
of a split it is, beyond what the scores imply. Semi-honest parties; the helper colludes with none. A label
holder that changes its stored values learns nothing; one whose program enters other words than 0 and 1 as its
conditions deviates, which is not prevented.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..crypto.prg import KEY
from ..errors import BadData, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .beaver import MUL
from .context import RingContext
from .dealer import Request, Stock, dealer, plan
from .ring import FixedPoint
from .tape import Tape

FRACTION = 32  # fractional bits of a score
MOST = 2.0**30  # of a score: with its fraction it fits in a signed word
CHUNK = 1 << 20  # words of a factor that are multiplied at once
ROWS, TERMS = 1 << 24, 1 << 22


class ScoreShape(
    Message, reveals="how many rows are scored, how many leaves the trees have, and which output each adds to"
):
    rows: int
    outputs: list[int]  # of each leaf


class LeafTape(Message, reveals="a random key of the helper's: nothing"):
    key: bytes


class LeafCorrections(Message, reveals="one share of sums of random products: uniform words"):
    values: Tensor


class MaskedShares(Message, reveals="the sender's shares under one-time masks: uniform words"):
    values: Tensor


def draw_mask(key: bytes, leaves: int) -> Tensor:
    """The words that hide the values of leaves since training."""
    return Tape(key).draw((leaves,))


def _sum(words: Tensor, places: Tensor, count: int) -> Tensor:
    """rows × leaves words → rows × outputs."""
    return torch.zeros(len(words), count, dtype=torch.int64).index_add_(1, places, words)


def encode(values: Tensor, who: str) -> Tensor:
    """Return the label holder's factors as words."""
    if values.numel() and not bool((values.abs() < MOST).all()):
        raise BadData(f"predict: a leaf of {who!r} is not a number below {MOST:g}.")
    return torch.round(values.double() * 2.0**FRACTION).long()


def split_rows(rows: int, terms: int) -> list[tuple[int, int]]:
    """The rows whose factors are multiplied at once."""
    each = max(1, CHUNK // max(terms, 1))
    return [(start, min(start + each, rows)) for start in range(0, rows, each)]


async def _multiply(ctx: RingContext, factors: Sequence[Tensor]) -> Tensor:
    total = factors[0]
    for factor in factors[1:]:
        total = await ctx.product(total, factor, MUL)
    return total


async def add_leaves(
    me: Party,
    names: Sequence[str],
    helper: str,
    receiver: str,
    own: Tensor,
    outputs: Sequence[int],
    values: Tensor,
    mask: Tensor | None = None,
    base: float = 0.0,
) -> Tensor | None:
    """The scores (rows × outputs, float64) at the receiver; None elsewhere.

    `names`: the label holder first; `own`: whether my conditions hold, rows × leaves words; `outputs`: of
    each leaf, the output it adds to; `values`: v with its `mask` a at the label holder, d elsewhere; `base`:
    at the label holder, what is added to all scores.
    """
    rank, (rows, leaves) = names.index(me.name), own.shape
    if values.shape != (leaves,) or (rank == 0) != (mask is not None):
        raise ProtocolError(f"{me.name!r} has {len(values)} values of {leaves} leaves.")
    label, holders = names[0], list(names[1:])
    if rank == 0:
        await me.send(helper, ScoreShape(rows, list(outputs)))
    ctx = RingContext(me, rank, tuple(names), await Stock.connect(me, rank, len(names), helper), FixedPoint())
    count, places = max(outputs, default=0) + 1, torch.tensor(list(outputs), dtype=torch.int64)
    found, tape = [], None
    for start, stop in split_rows(rows, leaves):
        part, size = own[start:stop], stop - start
        shares = [part if k == rank else torch.zeros_like(part) for k in range(len(names))]
        c = await _multiply(ctx, shares)
        total = _sum(c * values, places, count)
        if mask is None:
            if tape is None:
                tape = Tape((await me.recv(helper, LeafTape)).key)
            b, z = tape.draw((size, leaves)), tape.draw((size, count))
            await me.send(label, MaskedShares(c - b))
            found.append(total + z)
            continue
        for name in holders:
            e = _read(name, (await me.recv(name, MaskedShares)).values, (size, leaves))
            correction = _read(helper, (await me.recv(helper, LeafCorrections)).values, (size, count))
            total += _sum(e * mask, places, count) + correction
        found.append(total)
    total = torch.cat(found) if found else torch.zeros(rows, count, dtype=torch.int64)
    if base:
        total = total + round(base * 2.0**FRACTION)
    opened = await ctx.open_to(total, names.index(receiver))
    return None if opened is None else opened.double() / 2.0**FRACTION


def _read(sender: str, value: Tensor, shape: tuple[int, int]) -> Tensor:
    if tuple(value.shape) != shape or value.dtype is not torch.int64:
        raise ProtocolError(
            f"{sender!r} sent words of shape {tuple(value.shape)} and type {value.dtype}; expected {shape}."
        )
    return value


async def help_leaves(me: Party, names: Sequence[str], key: bytes) -> int:
    """The helper's program, with the key of the mask since training; returns the number of rows."""
    shape = await me.recv(names[0], ScoreShape)
    leaves = len(shape.outputs)
    if not 0 < shape.rows <= ROWS or leaves > TERMS or not all(0 <= k < leaves for k in shape.outputs):
        raise ProtocolError(f"{names[0]!r} asked for {shape.rows} rows of {leaves} leaves.")
    requests: list[Request] = []
    by_size: dict[int, list[Request]] = {}
    chunks = split_rows(shape.rows, leaves)
    for start, stop in chunks:
        if stop - start not in by_size:
            empty = [torch.empty(stop - start, leaves, dtype=torch.int64, device="meta") for _ in names]
            by_size[stop - start] = plan(lambda ctx, e=empty: _multiply(ctx, e), fixed=FixedPoint())  # type: ignore[misc]
        requests += by_size[stop - start]
    await dealer(me, tuple(names), requests)
    mask, count = draw_mask(key, leaves), max(shape.outputs, default=0) + 1
    places, tapes = torch.tensor(shape.outputs, dtype=torch.int64), {}
    for name in names[1:]:
        fresh = me.secret.bytes(KEY)
        await me.send(name, LeafTape(fresh))
        tapes[name] = Tape(fresh)
    for start, stop in chunks:
        for name in names[1:]:
            b, z = tapes[name].draw((stop - start, leaves)), tapes[name].draw((stop - start, count))
            await me.send(names[0], LeafCorrections(_sum(b * mask, places, count) - z))
    return shape.rows


def ideal(factors: Sequence[Tensor], outputs: Sequence[int], base: float = 0.0) -> Tensor:
    """The scores, from all parties' factors in the clear."""
    product = factors[0]
    for factor in factors[1:]:
        product = product * factor
    count = max(outputs, default=0) + 1
    sums = torch.zeros(len(product), count, dtype=torch.int64)
    sums.index_add_(1, torch.tensor(list(outputs), dtype=torch.int64), product)
    return (sums + round(base * 2.0**FRACTION)).double() / 2.0**FRACTION
