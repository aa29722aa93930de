"""Scores of rows by trees whose splits belong to different parties: only the scores are opened, to one party.

    party i (its factor f_i of each row and term)                                      helper
      |--- ScoreShape(rows, terms), from the first party -------------------------------->|
      |<-- TapeKey, Corrections -----------------------------------------------------------|   `dealer.py`
      |<-- MaskedFactors(f_i − a), for each product --->|   parties: uniform words
      |--- ResultShare(Σ of my shares) ------------------->| receiver

A term is a set of leaves that need the same conditions of the parties without the label. The factor of such a
party is 1 where its conditions hold, else 0; that of the label holder is the value of the leaf whose own
conditions hold. The score of a row is the sum over terms of the products of all factors.

Learns: the receiver the scores. Nobody which leaf a row reaches, or on which side of a split it is, beyond
what the scores imply. Semi-honest parties; the helper colludes with none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import BadData, ProtocolError
from ..parties.message import Message
from ..parties.party import Party
from .beaver import MUL
from .context import RingContext
from .dealer import Request, Stock, dealer, plan
from .ring import FixedPoint

FRACTION = 32  # fractional bits of a score
MOST = 2.0**24  # of a leaf's value, so that the sum of 64 such leaves fits
CHUNK = 1 << 20  # words of a factor that are multiplied at once
ROWS, TERMS = 1 << 24, 1 << 22


class ScoreShape(Message, reveals="how many rows are scored, and how many conditions the trees have"):
    rows: int
    terms: int


def encode(values: Tensor, who: str) -> Tensor:
    """Return the label holder's factors as words."""
    if values.numel() and not bool((values.abs() < MOST).all()):
        raise BadData(f"predict: a leaf of {who!r} is not a number below {MOST:g}.")
    return torch.round(values.double() * 2.0**FRACTION).long()


def _chunks(rows: int, terms: int) -> list[tuple[int, int]]:
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
    base: float = 0.0,
) -> Tensor | None:
    """The scores (rows × outputs, float64) at the receiver; None elsewhere.

    `own`: my factor, rows × terms words; `outputs`: of each term, the output it adds to; `base`: at one
    party, what is added to all scores.
    """
    rank, (rows, terms) = names.index(me.name), own.shape
    if rank == 0:
        await me.send(helper, ScoreShape(rows, terms))
    ctx = RingContext(me, rank, tuple(names), await Stock.connect(me, rank, len(names), helper), FixedPoint())
    count, places = max(outputs, default=0) + 1, torch.tensor(list(outputs), dtype=torch.int64)
    found = []
    for start, stop in _chunks(rows, terms):
        part = own[start:stop]
        shares = [part if k == rank else torch.zeros_like(part) for k in range(len(names))]
        product = await _multiply(ctx, shares)
        sums = torch.zeros(stop - start, count, dtype=torch.int64).index_add_(1, places, product)
        found.append(sums)
    total = torch.cat(found) if found else torch.zeros(rows, count, dtype=torch.int64)
    if base:
        total = total + round(base * 2.0**FRACTION)
    opened = await ctx.open_to(total, names.index(receiver))
    return None if opened is None else opened.double() / 2.0**FRACTION


async def help_leaves(me: Party, names: Sequence[str], helper: str) -> int:
    """The helper's program; returns the number of rows."""
    shape = await me.recv(names[0], ScoreShape)
    if not 0 < shape.rows <= ROWS or not 0 <= shape.terms <= TERMS:
        raise ProtocolError(f"{names[0]!r} asked for {shape.rows} rows of {shape.terms} terms.")
    requests: list[Request] = []
    by_size: dict[int, list[Request]] = {}
    for start, stop in _chunks(shape.rows, shape.terms):
        if stop - start not in by_size:
            empty = [torch.empty(stop - start, shape.terms, dtype=torch.int64, device="meta") for _ in names]
            by_size[stop - start] = plan(lambda ctx, e=empty: _multiply(ctx, e), fixed=FixedPoint())  # type: ignore[misc]
        requests += by_size[stop - start]
    await dealer(me, tuple(names), requests)
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
