"""Sums and counts over the people of a join whose membership stays shared: no party learns who is matched,
nor how many are.

    first (its ids in bins; own columns)              second (columns as masked words)          helper
      |  words by bin: `protocols/psi_circuit.py`       |                                         |
      |--- RowShape(bins, bits, words) -----------------|---------------------------------------->|
      |<-- TapeKey, Corrections ----------------------------------------------------------------- |
      |<-- MaskedBits, MaskedSigns -------------------->|   [m_j]: is the person of bin j matched
      |<-- MaskedFactors ------------------------------>|   [m_j · x_j]: the second party's columns, 0 if not
    for each question
      |--- GroupNames, from the party with the group column --------------------------------------->|
      |<-- MaskedFactors, MaskedValues, MaskedBits, … ->|   as `joined.py`, each person with weight m_j
      |--- FigureShare -------------------------------->|

how="inner" is about matched people. how="left" is about all people of the first party: their number is known,
the second party's columns are 0 for those that it does not hold, and its column "matched" is [m].

A figure is opened only if it is about `minimum` people; this is decided on shares, as in `joined.py`. For a
sum of columns of the second party they must be matched. In `joined.py` the party with the group column leaves
out groups so that a total does not give another one away; here nobody knows the groups' sizes, and one more
group is hidden on shares (`joined.protect`).

Learns: the parties the figures that are opened, which of them are shown, and the names of the groups with
`minimum` rows in their holder's own table; the helper also the number of bins, from which the first party's
set size follows. Semi-honest parties; the helper colludes with neither.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import ProtocolError
from ..parameters import bad, choice, whole
from ..parties.message import Message
from ..parties.party import Party
from .beaver import MUL
from .context import RingContext
from .dealer import Stock, dealer, plan
from .equality import equal
from .joined import (
    GROUPS,
    PEOPLE,
    FigureShare,
    JoinQuery,
    JoinTerms,
    answer,
    check_terms,
    exchange_groups,
)
from .ring import WORD, FixedPoint

HOWS = ("inner", "left")
VALUE, CODE, SCORE = "value", "code", "score"  # what a word of the second party stands for
MATCHED = "matched"  # in a left join, a column of the second party: 1 for people whom it has
WORDS = 64  # of the second party's payload
GROUP_BITS = GROUPS.bit_length()  # codes 0 (no group) to GROUPS
ASSUMES = (
    "SEMI-HONEST: who is matched, how many are, and values of single people stay hidden if both parties "
    "follow their programs and the helper colludes with neither. A party that deviates can corrupt the "
    "figures unnoticed; one that puts several ids into one bin can learn whether an id is the other's "
    "(`psi_circuit.py`), and by false inputs a figure about the minimum of people becomes one about a single "
    "person."
)


class RowShape(
    Message,
    reveals="how many bins the first party's ids are in, which follows from their number, and how many words "
    "the second party shares for each of its ids",
):
    bins: int
    bits: int
    words: int


class SharedRows(NamedTuple):
    """One party's shares, by bin. `present`: at the first party which bins hold a person; 0 at the second."""

    match: Tensor  # [m]
    words: Tensor  # [m · x], bins × words
    present: Tensor


@dataclass(frozen=True)
class SharedTerms(JoinTerms):
    """The settings that both parties and the helper agree on; `rows` are bins.

    `words`: (column, what the word stands for) of the second party.
    """

    how: str = choice("inner", HOWS, doc="inner: matched people; left: all people of the first party")
    words: tuple[tuple[str, str], ...] = ()
    decimals: int = whole(2, least=0, most=6, doc="decimals of the columns")
    rows: int = whole(least=1, doc="bins of the first party")

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> SharedTerms:
        plain = JoinTerms.read(table)
        words = tuple((str(c), str(kind)) for c, kind in table["words"])
        return cls(
            plain.names,
            plain.helper,
            plain.rows,
            plain.minimum,
            plain.queries,
            table["how"],
            words,
            table["decimals"],
        )

    @property
    def counts_people(self) -> bool:
        return True

    def word(self, column: str, kind: str) -> int:
        """The place of a word of the second party."""
        if (column, kind) not in self.words:
            is_group = kind == CODE
            raise bad(
                "join",
                "by" if is_group else "of",
                f"{self.names[1]}.{column}",
                "a column of text or categories" if is_group else "a column of numbers",
                "Convert the column to text to group by it." if is_group else "",
            )
        return self.words.index((column, kind))


def check_shared(terms: SharedTerms) -> None:
    """Refuse settings out of range, and questions about words that are not shared."""
    if len(terms.names) != 2:
        raise bad("join", "parties", list(terms.names), "two parties where membership stays shared")
    check_terms(terms)
    for query in terms.queries:
        for who, column, _ in query.of:
            if is_match(terms, who, column):
                if query.what == "total":
                    raise bad(
                        "join",
                        "of",
                        f"{who}.{column}",
                        "asked by count_above(…, 0)",
                        "It shows how many are matched only if both they and the others are enough people.",
                    )
            elif who == terms.names[1]:
                terms.word(column, VALUE)
        if query.by is not None and query.by[0] == terms.names[1]:
            terms.word(query.by[1], CODE)


def is_match(terms: SharedTerms, who: str, column: str) -> bool:
    """Whether this is the column that says who is matched."""
    return (
        terms.how == "left"
        and who == terms.names[1]
        and column == MATCHED
        and (MATCHED, VALUE) not in terms.words
    )


async def share_rows(ctx: RingContext, words: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """([m], [m · x]) from both parties' words by bin: bins × (1 + words)."""
    match = await equal(ctx, words[:, 0], bits)
    if words.shape[1] == 1:  # no columns
        return match, words[:, 1:]
    return match, await ctx.product(match.reshape(-1, 1), words[:, 1:].contiguous(), MUL)


async def match_rows(
    me: Party, names: Sequence[str], helper: str, words: Tensor, bits: int, present: Tensor | None
) -> SharedRows:
    """A party's program after `psi_circuit`: turn words by bin into shares of membership and columns."""
    me.ledger.stamp(ASSUMES)
    bins, width = words.shape
    shape = RowShape(bins, bits, width - 1)
    other = names[1] if me.name == names[0] else names[0]
    await me.send([other, helper], shape)
    await _same_shape(me, [other], shape)
    ctx = await _context(me, names, helper)
    match, values = await share_rows(ctx, words, bits)
    return SharedRows(match, values, torch.zeros_like(match) if present is None else present.long())


async def help_match(me: Party, names: Sequence[str]) -> int:
    """The helper's program for `match_rows`; returns the number of bins."""
    shape = await _same_shape(me, names, None)

    async def program(ctx: RingContext) -> None:
        words = torch.empty(shape.bins, 1 + shape.words, dtype=torch.int64, device="meta")
        await share_rows(ctx, words, shape.bits)

    await dealer(me, names, plan(program, fixed=FixedPoint()))
    return shape.bins


async def _same_shape(me: Party, names: Sequence[str], own: RowShape | None) -> RowShape:
    for name, message in (await me.gather(names, RowShape)).items():
        own = message if own is None else own
        fits = 1 <= own.bins <= 2 * PEOPLE and 1 <= own.bits <= WORD and 0 <= own.words <= WORDS
        if message != own or not fits:
            raise ProtocolError(f"{name!r} has rows of another shape: {message}. All must run the same job.")
    assert own is not None
    return own


async def _context(me: Party, names: Sequence[str], helper: str) -> RingContext:
    rank = names.index(me.name)
    stock = await Stock.connect(me, rank, len(names), helper)
    return RingContext(me, rank, tuple(names), stock, FixedPoint())


async def select_groups(
    ctx: RingContext, terms: SharedTerms, query: JoinQuery, rows: SharedRows, own: Tensor, count: int
) -> Tensor:
    """[person j counts, and is in group g]: groups × bins. `own`: the first party's indicators, or 0."""
    weight = rows.match if terms.how == "inner" else rows.present
    if query.by is None:
        return weight.reshape(1, -1)
    if query.by[0] == terms.names[0]:
        if terms.how == "left":
            return own
        return await ctx.product(own, weight.reshape(1, -1), MUL)
    # the second party's codes are 0 where there is no match; x_0 + x_1 = g exactly where x_0 − g = −x_1
    code = rows.words[:, terms.word(query.by[1], CODE)].reshape(1, -1)
    numbers = torch.arange(1, count + 1, device=code.device).reshape(-1, 1)
    words = code - numbers if ctx.first else (-code).expand(count, -1)
    return (await equal(ctx, words.reshape(-1), GROUP_BITS)).reshape(count, -1)


async def figures(
    ctx: RingContext,
    terms: SharedTerms,
    query: JoinQuery,
    rows: SharedRows,
    measure: Tensor,
    own: Tensor,
    count: int,
) -> Tensor:
    """[shown, figures, people] of one question, as `joined.answer`; `measure`: the first party's part."""
    v = measure
    for who, column, sign in query.of:
        if is_match(terms, who, column):
            v = v + sign * 10**terms.decimals * rows.match
        elif who == terms.names[1]:
            v = v + sign * rows.words[:, terms.word(column, VALUE)]
    groups = await select_groups(ctx, terms, query, rows, own, count)
    weight = rows.match if terms.how == "inner" else rows.present
    judged = None
    if terms.how == "left" and query.what == "total" and any(w == terms.names[1] for w, _, _ in query.of):
        weight = rows.match
        judged = await ctx.product(groups, rows.match.reshape(1, -1), MUL)
    everyone = None if query.by is None else weight.sum().reshape(1, 1)
    return await answer(ctx, terms, query, v, groups, everyone, judged)


async def holder(
    me: Party,
    terms: Mapping[str, Any],
    rows: Sequence[Tensor],
    measures: Sequence[Tensor],
    groups: Sequence[tuple[list[str], Tensor | None] | None],
) -> list[dict[str, Any]]:
    """A party's program for the questions; returns {"groups", "shown", "figures", "people"} of each.

    `rows`: the fields of `SharedRows`. `measures`: the first party's part of each question's measure, by bin;
    0 at the second. `groups`: (names, indicators by bin) of each question whose group column it has; the
    second party has no indicators, because it does not know the bins of its people.
    """
    settings, shares = SharedTerms.read(terms), SharedRows(*rows)
    check_shared(settings)
    me.ledger.stamp(ASSUMES)
    others = [n for n in settings.names if n != me.name]
    none = torch.zeros(0, 0, dtype=torch.int64)
    sent = [None if g is None else (g[0], none) for g in groups]
    names = await exchange_groups(me, settings, [*others, settings.helper], sent)
    ctx = await _context(me, settings.names, settings.helper)
    opened = []
    for query, v, group, shown in zip(settings.queries, measures, groups, names):
        own = torch.zeros(len(shown), settings.rows, dtype=torch.int64)
        if group is not None and group[1] is not None:
            own = group[1].long()
        opened.append(await figures(ctx, settings, query, shares, v, own, len(shown)))
    results = []
    for shown, total in zip(names, await ctx.open(FigureShare, *opened)):
        flags, values, people = total.tolist()
        results.append({"groups": shown, "shown": flags, "figures": values, "people": people})
    return results


async def helper(me: Party, terms: Mapping[str, Any]) -> None:
    """The helper's program for the questions."""
    settings = SharedTerms.read(terms)
    check_shared(settings)
    names = await exchange_groups(me, settings, [])

    async def program(ctx: RingContext) -> None:
        rows = empty_rows(settings)
        for query, shown in zip(settings.queries, names):
            own = torch.empty(len(shown), settings.rows, dtype=torch.int64, device="meta")
            await figures(ctx, settings, query, rows, torch.empty_like(rows.match), own, len(shown))

    await dealer(me, settings.names, plan(program, fixed=FixedPoint()))


def empty_rows(terms: SharedTerms) -> SharedRows:
    """Rows without numbers, for a dry run."""
    match = torch.empty(terms.rows, dtype=torch.int64, device="meta")
    words = torch.empty(terms.rows, len(terms.words), dtype=torch.int64, device="meta")
    return SharedRows(match, words, torch.empty_like(match))


def ideal(
    terms: JoinTerms, query: JoinQuery, v: Tensor, groups: Tensor, judged: Tensor | None = None
) -> list[list[int | None]]:
    """The figures in the clear, over the people who count: `v` and `groups` (groups × people) as merged.

    `judged`: which people count for the minimum; None: all.
    """
    counted = torch.ones_like(v) if judged is None else judged.long()
    sizes = groups.long() @ counted
    if query.what == "enough":
        return [[int(size >= query.least)] for size in sizes.tolist()]
    table: list[list[int | None]] = []
    for members, size in zip(groups.bool(), sizes.tolist()):
        inside, counts = v[members], counted[members]
        above = [inside > t for t in query.above] or [torch.ones_like(inside, dtype=torch.bool)]
        edges = [size, *(int(counts[a].sum()) for a in above), 0] if query.above else [size, 0]
        bands = [a - b for a, b in itertools.pairwise(edges)]
        near = [(bands[j], bands[min(j + 1, len(bands) - 1)]) for j in range(len(above))]
        values = [int(a.sum()) if query.what == "count" else int(inside[a].sum()) for a in above]
        table.append([x if min(pair) >= terms.minimum else None for x, pair in zip(values, near)])
    for j in range(len(table[0]) if query.by is not None else 0):
        shown = [k for k, row in enumerate(table) if row[j] is not None]
        rest = int(counted.sum()) - sum(int(sizes[k]) for k in shown)
        if shown and 0 < rest < terms.minimum:
            table[shown[0]][j] = None
    return table
