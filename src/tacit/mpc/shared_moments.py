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

With how="left" the rows are all people of the first party: X = [z_1, m·z_2, m, w], with w = 1 for each. Then
`minimum` people must be without a match, too, because G tells sums about them.

Learns: both parties G if these are enough people, else that there are fewer; all three the centers and
exponents. p columns give (p + 1)(p + 2)/2 numbers about people, so at least ten people are required for each
column. Semi-honest parties; the helper colludes with neither.
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
        std, mean = (float(v) for v in torch.std_mean(x, correction=0))
        if std == 0:
            raise BadData(f"join: column {name!r} has the same value in every row. Leave it out.")
        exponent = math.frexp(std)[1]
        return cls(round(mean / 2.0**exponent) * 2.0**exponent, exponent)

    def encode(self, values: Tensor) -> Tensor:
        z = (values.double() - self.center) / 2.0**self.exponent
        return torch.round(z * 2.0**FRACTION).long()


def check_columns(terms: SharedTerms, first: int, second: Sequence[str]) -> list[int]:
    """The places of the second party's words for these columns."""
    if not 1 <= first + len(second) <= COLUMNS or len(set(second)) < len(second):
        raise bad("join", "columns", first + len(second), f"1 to {COLUMNS} different columns")
    return [terms.word(column, SCORE) for column in second]


def least(terms: SharedTerms, columns: int) -> int:
    """The fewest matched people for these moments."""
    return max(terms.minimum, ROWS_PER_COLUMN * (columns + 1))


async def moments(
    ctx: RingContext, terms: SharedTerms, rows: SharedRows, own: Tensor, words: Sequence[int]
) -> Tensor:
    """[e, e·G]: 1 + D² numbers. `own`: the first party's z by bin, bins × p; 0 at the second."""
    match = rows.match.reshape(-1, 1)
    theirs, one = rows.words[:, list(words)], match << FRACTION
    if terms.how == "inner":
        own = await ctx.product(match, own, MUL) if own.shape[1] else own
        x = torch.cat([own, theirs, one], 1)
    else:
        x = torch.cat([own, theirs, one, rows.present.reshape(-1, 1) << FRACTION], 1)
    gram = await ctx.product(x.T.contiguous(), x, MATMUL)
    count = rows.match.sum().reshape(1)
    fewest = ctx.public(torch.tensor(least(terms, own.shape[1] + len(words))), count)
    enough = (await ctx.sign(count - fewest)).bit
    if terms.how == "left":  # G is about the people who are not matched, too
        others = rows.present.sum().reshape(1) - count
        enough = await ctx.product(
            enough, (await ctx.sign(others - ctx.public(terms.minimum, others))).bit, MUL
        )
    one = ctx.public(torch.tensor(1), count)
    both = torch.cat([one.reshape(1), gram.flatten()])
    return await ctx.product(enough.expand_as(both), both, MUL)


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
    (opened,) = await ctx.open(MomentShare, await moments(ctx, settings, shares, own, words))
    size = math.isqrt(len(opened) - 1)
    pair = [theirs, mine] if rank else [mine, theirs]
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
    for name, message in (await me.gather(settings.names, ColumnScales)).items():
        which = columns[settings.names.index(name)]
        _check_scales(name, message, _text(settings, columns), len(which))
    own = torch.empty(settings.rows, len(columns[0]), dtype=torch.int64, device="meta")

    async def program(ctx: RingContext) -> None:
        await moments(ctx, settings, empty_rows(settings), own, words)

    await dealer(me, settings.names, plan(program, fixed=FixedPoint()))


def _text(terms: SharedTerms, columns: tuple[Sequence[str], Sequence[str]]) -> str:
    return f"{terms.text()} {list(columns[0])} {list(columns[1])}"


def _check_scales(name: str, message: ColumnScales, text: str, count: int) -> None:
    fits = len(message.centers) == len(message.exponents) == count
    fits = fits and all(map(math.isfinite, message.centers))
    if message.settings != text or not fits or any(abs(e) > 1000 for e in message.exponents):
        raise ProtocolError(f"{name!r} sent scales of other columns. All must start the same job.")


def ideal(terms: SharedTerms, x: Tensor, matched: Tensor) -> Tensor | None:
    """G in the clear: `x` has a row for each person, the columns of ones last. None: too few people."""
    columns, others = x.shape[1] - (1 if terms.how == "inner" else 2), int((1 - matched).sum())
    is_enough = int(matched.sum()) >= least(terms, columns)
    is_enough = is_enough and (terms.how == "inner" or others >= terms.minimum)
    return x.T @ x if is_enough else None
