"""Sums and counts over people whom several parties have matched: their values stay shared, and a figure about
too few people is never opened.

    party i of n (its own part of each measure, by person)                          helper
      |--- GroupNames(names), from the party with the group column ------------------>|   and to the others
      |<-- TapeKey, Corrections -------------------------------------------------------|   `dealer.py`
      |<-- MaskedFactors, MaskedProducts, MaskedValues, MaskedBits, MaskedSigns -->|   parties: uniform words
      |--- FigureShare(my share of the figures that are shown) ------------------->|   all parties

A measure v is a sum of columns, one whole number a person (decimals are scaled, so that sums are exact). For
thresholds t_1 < t_2 < … and each group:

    c_j = Σ [v > t_j]        s_j = Σ [v > t_j] · v
    shown_j = every band next to t_j (people between two neighboring thresholds, or beyond one) has `minimum`
    opened: shown_j, shown_j · c_j or shown_j · s_j

Differences of opened figures are therefore about at least `minimum` people, too. Without thresholds a sum is
opened for groups with `minimum` people; the party with the group column leaves smaller groups out, and a
second one where the first could be computed from the total. Semi-honest parties; the helper colludes with
none.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import BadData, ProtocolError
from ..parameters import bad, check, choice, whole
from ..parties.message import Message
from ..parties.party import Party
from .beaver import MATMUL, MUL
from .context import RingContext
from .dealer import Stock, dealer, plan
from .ring import FixedPoint

WHATS = ("total", "count", "enough")
MOST = 2**44  # of a person's measure, scaled: comparisons take 2^48, and 2^16 people 2^60
PEOPLE = 2**20
MIX = 8  # bits by which a sum is shifted and truncated again: exact, and its shares become random
GROUPS = 200
ASSUMES = (
    "SEMI-HONEST: values of single people stay hidden if every party follows its program and the helper "
    "colludes with no other party. A party that deviates can corrupt the figures unnoticed, and learn a "
    "person's value: by false inputs a figure about the minimum of people becomes one about a single person."
)


class GroupNames(Message, reveals="the names of the groups that are shown, and how many there are"):
    settings: str
    names: list[str]


class QuerySettings(Message, reveals="the questions of the job"):
    settings: str


class FigureShare(
    Message,
    reveals="a share of the figures that are shown, and of which are: with the others', these numbers",
):
    values: list[Tensor]


@dataclass(frozen=True)
class JoinQuery:
    """One question: `of` are columns ("party.column"), with −1 for those that are subtracted.

    Where membership stays shared (`shared_join.py`), a count may have no thresholds: the number of people.
    "enough" opens only whether there are `least` people.
    """

    what: str = choice("total", WHATS, doc="the sum of the measure, the number of people, or whether enough")
    of: tuple[tuple[str, str, int], ...] = ()  # (party, column, sign)
    above: tuple[int, ...] = ()  # thresholds, scaled
    by: tuple[str, str] | None = None  # (party, column)
    least: int = whole(0, least=0, most=PEOPLE, doc="with 'enough': the fewest people")

    @property
    def measure(self) -> tuple[Any, ...]:
        """What thresholds are about. Groups do not matter: a count of all, less those of shown groups, would
        be about the others. Nor does the sign: people above t of −v are those below −t of v.
        """
        return min(tuple(sorted((who, c, s * sign) for who, c, s in self.of)) for sign in (1, -1))


@dataclass(frozen=True)
class JoinTerms:
    """The settings that all parties agree on."""

    names: tuple[str, ...]
    helper: str
    rows: int = whole(least=1, most=PEOPLE, doc="people whom all parties have")
    minimum: int = whole(10, least=3, doc="fewest people in a figure")
    queries: tuple[JoinQuery, ...] = ()

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> JoinTerms:
        queries = tuple(
            JoinQuery(
                q["what"],
                tuple((str(a), str(b), int(c)) for a, b, c in q["of"]),
                tuple(int(t) for t in q["above"]),
                None if q["by"] is None else (str(q["by"][0]), str(q["by"][1])),
                int(q["least"]),
            )
            for q in table["queries"]
        )
        return cls(tuple(table["names"]), table["helper"], table["rows"], table["minimum"], queries)

    @property
    def counts_people(self) -> bool:
        """Whether the number of matched people is a figure of its own; here every party knows it."""
        return False

    def to_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    def text(self) -> str:
        return json.dumps(self.to_dict(), sort_keys=True)


def check_terms(terms: JoinTerms) -> None:
    """Refuse settings out of range, and questions whose difference would be about few people."""
    check(terms, "join")
    if len(terms.names) < 2 or terms.helper in terms.names:
        raise bad("join", "parties", list(terms.names), f"at least two, and none called {terms.helper!r}")
    if terms.rows < terms.minimum and not terms.counts_people:
        raise BadData(
            f"join: the parties share {terms.rows} people; a figure needs {terms.minimum} (minimum). "
            f"Nothing is "
            "opened."
        )
    asked: set[Any] = set()
    for query in terms.queries:
        check(query, "join")
        if not query.of and (query.above or not terms.counts_people or query.what == "total"):
            raise bad("join", "of", [], "at least one column")
        if query.what == "enough":
            check_enough(terms, query)
            if ("enough", query.by) in asked:
                raise bad(
                    "join",
                    "enough",
                    query.least,
                    "asked once, with one number of people",
                    "Several such answers would tell how many they are.",
                )
            asked.add(("enough", query.by))
            continue
        if list(query.above) != sorted(set(query.above)):
            raise bad("join", "above", list(query.above), "thresholds in increasing order")
        if query.what == "count" and not query.above and not terms.counts_people:
            raise bad("join", "above", [], "at least one threshold for a count")
        if any(abs(t) >= MOST for t in query.above):
            raise bad("join", "above", list(query.above), f"within ±{MOST:g}, scaled by the decimals")
        if query.above and query.measure in asked:
            raise bad(
                "join",
                "above",
                list(query.above),
                "asked once for each measure",
                "Two counts with nearby thresholds differ by few people. Give all thresholds in one "
                "question.",
            )
        if query.above:
            asked.add(query.measure)


def check_enough(terms: JoinTerms, query: JoinQuery) -> None:
    """Refuse a question about fewer people than the minimum, or where the number is known anyway."""
    if not terms.counts_people:
        raise bad("join", "what", query.what, "'total' or 'count' where every party learns who is matched")
    if query.of or query.above or query.least < terms.minimum:
        raise bad(
            "join",
            "enough",
            query.least,
            f"at least {terms.minimum} (minimum) people, without a measure or thresholds",
        )


async def answer(
    ctx: RingContext,
    terms: JoinTerms,
    query: JoinQuery,
    v: Tensor,
    groups: Tensor,
    everyone: Tensor | None = None,
    judged: Tensor | None = None,
) -> Tensor:
    """[shown, figures, people in the group]: 3 × groups × thresholds (one without thresholds).

    `v`: n whole numbers; `groups`: groups × n, 0 or 1. `everyone`: the number of people, shared; then a
    figure is also hidden where it would tell, with a total, about fewer people than the minimum (`protect`).
    `judged`: the people of each group that count for the minimum, if not all do.
    """
    sizes = (await mix(ctx, groups.sum(1)))[:, None]  # groups × 1
    people = sizes
    if judged is not None:
        sizes = (await mix(ctx, judged.sum(1)))[:, None]
    least = ctx.public(torch.tensor(terms.minimum), sizes)
    if not query.above:
        if query.what == "enough":
            least = ctx.public(torch.tensor(query.least), sizes)
        shown = (await ctx.sign(sizes - least)).bit
        if query.what == "enough":  # that they are enough, and no number
            return torch.stack([shown, torch.zeros_like(shown), torch.zeros_like(shown)])
        total = people
        if query.what == "total":
            total = await ctx.product(groups, v.reshape(-1, 1), MATMUL)
        return await _open_shown(ctx, await protect(ctx, terms, shown, sizes, everyone), total, people)
    limits = torch.tensor(query.above) + 1  # whole numbers: v > t is v − t − 1 ≥ 0
    signs = await ctx.sign(v.reshape(-1, 1) - ctx.public(limits, v))  # n × thresholds
    # groups × thresholds
    counts = await ctx.product(groups if judged is None else judged, signs.bit, MATMUL)
    bands = torch.cat([sizes - counts[:, :1], counts[:, :-1] - counts[:, 1:], counts[:, -1:]], 1)
    enough = (await ctx.sign(bands - least)).bit
    shown = await ctx.product(enough[:, :-1], enough[:, 1:], MUL)
    figures = counts
    if query.what == "total":  # [v > t]·v = max(v − t − 1, 0) + [v > t](t + 1)
        above = signs.positive + signs.bit * limits.to(v.device)
        figures = await ctx.product(groups, above, MATMUL)
    shown = await protect(ctx, terms, shown, sizes.expand_as(figures), everyone)
    return await _open_shown(ctx, shown, figures, people.expand_as(figures))


async def protect(
    ctx: RingContext, terms: JoinTerms, shown: Tensor, sizes: Tensor, everyone: Tensor | None
) -> Tensor:
    """[shown] without the first shown group, where the people in no shown group are some, but too few.

    A total less the figures of the shown groups is about them. Groups × figures; without `everyone` the
    party with the group column has left out groups for this reason.
    """
    if everyone is None:
        return shown
    rest = everyone - (await ctx.product(shown, sizes, MUL)).sum(0, keepdim=True)
    least = ctx.public(torch.tensor([[terms.minimum], [1]]), rest)
    enough, some = (await ctx.sign(rest - least)).bit.split(1)
    before = ctx.public(torch.tensor(1), shown) - shown.cumsum(0)  # ≥ 0 up to the first shown one
    first = await ctx.product(shown, (await ctx.sign(before)).bit, MUL)
    return shown - await ctx.product(first, (some - enough).expand_as(first), MUL)


async def _open_shown(ctx: RingContext, shown: Tensor, figures: Tensor, sizes: Tensor) -> Tensor:
    both = await ctx.product(torch.stack([shown, shown]), torch.stack([figures, sizes]), MUL)
    return torch.cat([shown.unsqueeze(0), both])


async def mix(ctx: RingContext, v: Tensor) -> Tensor:
    """[v] with fresh shares: a private number's only share is the number itself."""
    mixed: Tensor = await ctx.truncate(v << MIX, MIX)
    return mixed


def encode_measure(values: Tensor, who: str, decimals: int) -> Tensor:
    """Whole numbers, scaled by 10^decimals; refuse what has more decimals or is out of range."""
    scaled = values.double() * 10.0**decimals
    words = torch.round(scaled)
    if not bool(torch.isfinite(scaled).all()) or float(scaled.abs().max() if len(scaled) else 0) >= MOST:
        raise BadData(
            f"join: a value of {who!r} is not a number within ±{MOST / 10**decimals:g}, the range "
            f"with {decimals} "
            "decimals. Use fewer decimals, or other units."
        )
    if float((scaled - words).abs().max() if len(scaled) else 0) > 1e-3:
        raise BadData(
            f"join: a value of {who!r} has more than {decimals} decimals. Sums are exact: set "
            f"decimals, or round "
            "the column."
        )
    return words.long()


async def holder(
    me: Party,
    terms: Mapping[str, Any],
    measures: Sequence[Tensor],
    groups: Sequence[tuple[list[str], Tensor] | None],
) -> list[dict[str, Any]]:
    """A party's program; `measures`: its own part of each question's measure, scaled whole numbers by person.

    `groups`: (names, groups × n) for each question whose group column it has, else None. Returns for each
    question {"groups", "shown", "figures", "people"}; a figure that is not shown is 0.
    """
    settings = JoinTerms.read(terms)
    check_terms(settings)
    me.ledger.stamp(ASSUMES)
    rank, others = settings.names.index(me.name), [n for n in settings.names if n != me.name]
    for v in measures:
        if v.shape != (settings.rows,):
            raise ProtocolError(
                f"{me.name!r} has {len(v)} people; expected {settings.rows}. Align them first."
            )
    names = await exchange_groups(me, settings, [*others, settings.helper], groups)
    stock = await Stock.connect(me, rank, len(settings.names), settings.helper)
    ctx = RingContext(me, rank, settings.names, stock, FixedPoint())
    shares = []
    for query, v, group, shown in zip(settings.queries, measures, groups, names):
        indicator = torch.zeros(len(shown), settings.rows, dtype=torch.int64)
        if query.by is None and ctx.first:
            indicator += 1
        elif group is not None:
            indicator = group[1].long()
        shares.append(await answer(ctx, settings, query, v, indicator))
    opened = await ctx.open(FigureShare, *shares)
    results = []
    for shown, total in zip(names, opened):
        flags, figures, people = total.tolist()
        results.append({"groups": shown, "shown": flags, "figures": figures, "people": people})
    return results


async def exchange_groups(
    me: Party,
    terms: JoinTerms,
    to: Sequence[str],
    groups: Sequence[tuple[list[str], Tensor] | None] = (),
) -> list[list[str]]:
    """Compare the questions with all parties, and learn the names of the groups of each one."""
    await me.send(to, QuerySettings(terms.text()))
    for name, message in (await me.gather([n for n in terms.names if n != me.name], QuerySettings)).items():
        if message.settings != terms.text():
            raise ProtocolError(
                f"{name!r} and {me.name!r} ask different questions: {message.settings:.300} and "
                f"{terms.text():.300}. All parties must start the same job."
            )
    names = []
    for k, query in enumerate(terms.queries):
        if query.by is None:
            names.append(["all"])
        elif query.by[0] == me.name:
            group = groups[k]
            assert group is not None
            await me.send(to, GroupNames(f"question {k}", group[0]))
            names.append(group[0])
        else:
            found = await me.recv(query.by[0], GroupNames)
            fits = found.settings == f"question {k}" and 1 <= len(found.names) <= GROUPS
            if not fits or len(set(found.names)) < len(found.names):
                raise ProtocolError(f"{query.by[0]!r} sent group names that do not match question {k}.")
            names.append(found.names)
    return names


async def helper(me: Party, terms: Mapping[str, Any]) -> None:
    """The helper's program: deal the randomness of the parties' program, planned from the shapes."""
    settings = JoinTerms.read(terms)
    check_terms(settings)
    names = await exchange_groups(me, settings, [])

    async def program(ctx: RingContext) -> None:
        for query, shown in zip(settings.queries, names):
            v = torch.empty(settings.rows, dtype=torch.int64, device="meta")
            groups = torch.empty(len(shown), settings.rows, dtype=torch.int64, device="meta")
            await answer(ctx, settings, query, v, groups)

    await dealer(me, settings.names, plan(program, fixed=FixedPoint()))


def ideal(terms: JoinTerms, query: JoinQuery, v: Tensor, groups: Tensor) -> list[list[int | None]]:
    """The same figures in the clear: groups × thresholds, None where a figure is not shown."""
    table: list[list[int | None]] = []
    for members in groups.bool():
        inside, size = v[members], int(members.sum())
        if not query.above:
            table.append([int(inside.sum()) if size >= terms.minimum else None])
            continue
        counts = [int((inside > t).sum()) for t in query.above]
        edges = [size, *counts, 0]
        enough = [a - b >= terms.minimum for a, b in itertools.pairwise(edges)]
        values = counts if query.what == "count" else [int(inside[inside > t].sum()) for t in query.above]
        table.append([x if enough[j] and enough[j + 1] else None for j, x in enumerate(values)])
    return table
