"""Moments of columns over the people of a join whose membership stays shared: what means, correlations and a
linear regression follow from.

    first (columns z_1 in its bins)                   second (columns z_2 as shared words)      helper
      |<-- ColumnScales(settings, centers, exponents) ->|---------------------------------------->|
      |<-- TapeKey, Corrections ------------------------------------------------------------------|
      |<-- MaskedFactors, MaskedValues, MaskedBits, … ->|   X = [m·z_1, m·z_2, m],  G = XᵀX
      |--- MomentShare(e, e·G) ------------------------>|   e: are at least `least` people matched

z = (x − center)/2^exponent with 20 fractional bits, where the center is the mean of the holder's own column,
rounded to a multiple of 2^exponent, and 2^exponent is its standard deviation, rounded up. With at most 2^20
people and a variance of at most 5/4, sums of products stay below 2^62: G is exact for these numbers.

A column of 0 and 1 is taken as it is. With how="left" the rows are all people of the first party: X =
[z_1, m·z_2, m, w], with w = 1 for each. Then `minimum` people must be without a match, too, because G tells
sums about them.

G[i, j] must not be about few people either, so e is 0, too, unless
- of a column of 0 and 1, `minimum` people have a 1 and as many have a 0;
- of any other column, (Σz²)² ≥ 3·Σz⁴, as of three people with equal values: no sum is nearly one person's.
Columns whose combinations single out few people, or that are constant but for few, are not found.

Learns: both parties G if e = 1, else that there are too few people, or too few behind a column; all three
the centers and exponents. p columns give (p + 1)(p + 2)/2 numbers about people, so at least ten people are
required for each column. Semi-honest parties; the helper colludes with neither.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import BadData, ProtocolError
from ..parameters import bad
from ..parties.message import Message
from ..parties.party import Party
from .beaver import MATMUL, MUL
from .context import RingContext
from .dealer import Stock, dealer, plan
from .ring import FixedPoint
from .shared_join import SCORE, SharedRows, SharedTerms, check_shared, empty_rows

FRACTION = 20  # bits of z
COLUMNS = 64  # of both parties
SPREAD = 10  # bits of z²: with 2^20 people, Σz⁴ stays below 2^61
DOMINANCE = 3  # people with equal values, as in rules of official statistics
COARSE = 16  # bits that are taken off sums of z⁴: three times one is below 2^47, for a comparison
ROWS_PER_COLUMN = 10  # people for each column: as many equations as columns are opened about each


class ColumnScales(
    Message,
    reveals="of each of the sender's columns, over its whole table: the standard deviation rounded up to a "
    "power of two, and the mean rounded to a multiple of it",
):
    settings: str
    centers: list[float]
    exponents: list[int]


class MomentShare(
    Message,
    reveals="a share of sums, sums of squares and of products of the columns over the people of the join, if "
    "they are enough: with the other's, these numbers",
):
    values: list[Tensor]


@dataclass(frozen=True)
class ColumnScale:
    """How a column is coded: z = (x − center)/2^exponent."""

    center: float
    exponent: int

    @classmethod
    def of(cls, values: Tensor, name: str) -> ColumnScale:
        """The scale of a whole column of its holder."""
        x = values.double()
        if not len(x) or not bool(torch.isfinite(x).all()):
            raise BadData(f"join: column {name!r} has no values, or infinite ones.")
        if bool(((x == 0) | (x == 1)).all()) and bool((x != x[0]).any()):
            return BINARY  # as it is, so that it can be a label
        std, mean = (float(v) for v in torch.std_mean(x, correction=0))
        if std == 0:
            raise BadData(f"join: column {name!r} has the same value in every row. Leave it out.")
        exponent = math.frexp(std)[1]
        scale = cls(round(mean / 2.0**exponent) * 2.0**exponent, exponent)
        return scale if scale != BINARY else cls(0.0, 1)

    def encode(self, values: Tensor) -> Tensor:
        z = (values.double() - self.center) / 2.0**self.exponent
        return torch.round(z * 2.0**FRACTION).long()


BINARY = ColumnScale(0.0, 0)  # of columns of 0 and 1, and of no other


def check_columns(terms: SharedTerms, first: int, second: Sequence[str]) -> list[int]:
    """The places of the second party's words for these columns."""
    if not 1 <= first + len(second) <= COLUMNS or len(set(second)) < len(second):
        raise bad("join", "columns", first + len(second), f"1 to {COLUMNS} different columns")
    return [terms.word(column, SCORE) for column in second]


def least(terms: SharedTerms, columns: int) -> int:
    """The fewest matched people for these moments."""
    return max(terms.minimum, ROWS_PER_COLUMN * (columns + 1))


async def design(
    ctx: RingContext, terms: SharedTerms, rows: SharedRows, own: Tensor, words: Sequence[int]
) -> Tensor:
    """[X], bins × D, 0 in bins that do not count."""
    match = rows.match.reshape(-1, 1)
    theirs, one = rows.words[:, list(words)], match << FRACTION
    if terms.how == "inner":
        own = await ctx.product(match, own, MUL) if own.shape[1] else own
        return torch.cat([own, theirs, one], 1)
    return torch.cat([own, theirs, one, rows.present.reshape(-1, 1) << FRACTION], 1)


async def moments(
    ctx: RingContext,
    terms: SharedTerms,
    rows: SharedRows,
    own: Tensor,
    words: Sequence[int],
    binary: Sequence[int],
) -> Tensor:
    """[e, e·G]: 1 + D² numbers. `own`: the first party's z by bin, bins × p; 0 at the second.

    `binary`: which of all columns are of 0 and 1.
    """
    x = await design(ctx, terms, rows, own, words)
    gram = await ctx.product(x.T.contiguous(), x, MATMUL)
    count = rows.match.sum().reshape(1)
    fewest = ctx.public(torch.tensor(least(terms, own.shape[1] + len(words))), count)
    enough = (await ctx.sign(count - fewest)).bit
    if terms.how == "left":  # G is about the people who are not matched, too
        others = rows.present.sum().reshape(1) - count
        enough = await ctx.product(
            enough, (await ctx.sign(others - ctx.public(terms.minimum, others))).bit, MUL
        )
    for each in await _check_spread(ctx, terms, x, own.shape[1], len(words), binary):
        enough = await ctx.product(enough, each.reshape(1), MUL)
    one = ctx.public(torch.tensor(1), count)
    both = torch.cat([one.reshape(1), gram.flatten()])
    return await ctx.product(enough.expand_as(both), both, MUL)


async def _check_spread(
    ctx: RingContext, terms: SharedTerms, x: Tensor, first: int, second: int, binary: Sequence[int]
) -> Tensor:
    """[whether a column's sums are about enough people], a bit for each check."""
    bits = []
    if binary:
        sums = x.sum(0)
        base = torch.stack([sums[first + second if k >= first else -1] for k in binary])
        ones = sums[list(binary)]
        counts = torch.cat([ones, base - ones])
        fewest = ctx.public(torch.full(counts.shape, terms.minimum << FRACTION), counts)
        bits.append((await ctx.sign(counts - fewest)).bit)
    others = [k for k in range(first + second) if k not in binary]
    if others:
        squares = await ctx.truncate(await ctx.square(x[:, others]), 2 * FRACTION - SPREAD)
        fourth = (await ctx.square(squares)).sum(0)
        second_power = await ctx.square(squares.sum(0))
        both = await ctx.truncate(torch.stack([second_power, fourth]), COARSE)
        bits.append((await ctx.sign(both[0] - DOMINANCE * both[1])).bit)
    return torch.cat(bits)


def binary_columns(first: ColumnScales, second: ColumnScales) -> list[int]:
    """Which of all columns are of 0 and 1."""
    scales = [ColumnScale(c, e) for m in (first, second) for c, e in zip(m.centers, m.exponents)]
    return [k for k, scale in enumerate(scales) if scale == BINARY]


async def holder(
    me: Party,
    terms: Mapping[str, Any],
    rows: Sequence[Tensor],
    own: Tensor,
    scales: Sequence[tuple[float, int]],
    columns: tuple[Sequence[str], Sequence[str]],
) -> dict[str, Any]:
    """A party's program; `columns`: the first party's and the second's.

    `scales`: of this party's columns; `own`: the first party's z by bin, without columns at the second.
    Returns {"enough", "gram", "scales"}: D × D real numbers, and (center, exponent) of all columns.
    """
    settings, shares, fixed = SharedTerms.read(terms), SharedRows(*rows), FixedPoint()
    check_shared(settings)
    words = check_columns(settings, len(columns[0]), columns[1])
    rank = settings.names.index(me.name)
    other, text = settings.names[1 - rank], _text(settings, columns)
    mine = ColumnScales(text, [float(c) for c, _ in scales], [int(e) for _, e in scales])
    await me.send([other, settings.helper], mine)
    theirs = await me.recv(other, ColumnScales)
    _check_scales(other, theirs, text, len(columns[1 - rank]))
    if rank:
        own = torch.zeros(settings.rows, len(columns[0]), dtype=torch.int64)
    if own.shape != (settings.rows, len(columns[0])):
        raise ProtocolError(f"{me.name!r} has rows of another shape than {settings.rows} bins.")
    stock = await Stock.connect(me, rank, 2, settings.helper)
    ctx = RingContext(me, rank, settings.names, stock, fixed)
    pair = [theirs, mine] if rank else [mine, theirs]
    share = await moments(ctx, settings, shares, own, words, binary_columns(*pair))
    (opened,) = await ctx.open(MomentShare, share)
    size = math.isqrt(len(opened) - 1)
    return {
        "enough": int(opened[0]),
        "gram": opened[1:].reshape(size, size).double() / 4.0**FRACTION,
        "scales": [[c, e] for m in pair for c, e in zip(m.centers, m.exponents)],
    }


async def helper(me: Party, terms: Mapping[str, Any], columns: tuple[Sequence[str], Sequence[str]]) -> None:
    """The helper's program."""
    settings = SharedTerms.read(terms)
    check_shared(settings)
    words = check_columns(settings, len(columns[0]), columns[1])
    messages = await me.gather(settings.names, ColumnScales)
    for name, message in messages.items():
        which = columns[settings.names.index(name)]
        _check_scales(name, message, _text(settings, columns), len(which))
    own = torch.empty(settings.rows, len(columns[0]), dtype=torch.int64, device="meta")
    binary = binary_columns(*(messages[name] for name in settings.names))

    async def program(ctx: RingContext) -> None:
        await moments(ctx, settings, empty_rows(settings), own, words, binary)

    await dealer(me, settings.names, plan(program, fixed=FixedPoint()))


def _text(terms: SharedTerms, columns: tuple[Sequence[str], Sequence[str]]) -> str:
    return f"{terms.text()} {list(columns[0])} {list(columns[1])}"


def _check_scales(name: str, message: ColumnScales, text: str, count: int) -> None:
    fits = len(message.centers) == len(message.exponents) == count
    fits = fits and all(map(math.isfinite, message.centers))
    if message.settings != text or not fits or any(abs(e) > 1000 for e in message.exponents):
        raise ProtocolError(f"{name!r} sent scales of other columns. All must start the same job.")


def ideal(
    terms: SharedTerms, x: Tensor, matched: Tensor, first: int, binary: Sequence[int] = ()
) -> Tensor | None:
    """G in the clear: `x` has a row for each person, the columns of ones last. None: too few people.

    `first`: how many columns are the first party's.
    """
    columns, others = x.shape[1] - (1 if terms.how == "inner" else 2), int((1 - matched).sum())
    is_enough = int(matched.sum()) >= least(terms, columns)
    is_enough = is_enough and (terms.how == "inner" or others >= terms.minimum)
    for k, z in enumerate((x[:, :columns].double() / 2.0**FRACTION).T):
        if k in binary:
            counts = float(z.sum()), float((len(matched) if k < first else matched.sum()) - z.sum())
            is_enough = is_enough and min(counts) >= terms.minimum
        else:
            is_enough = is_enough and float((z**2).sum() ** 2) >= DOMINANCE * float((z**4).sum())
    return x.T @ x if is_enough else None
