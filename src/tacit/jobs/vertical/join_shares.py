"""`tacit.join(…, reveal="shares")`: a join of two parties whose membership stays shared.

    psi_circuit: words by bin  →  shared_join.match_rows: shares of membership and columns
                               →  shared_join.holder: sums and counts;  shared_moments.holder: moments

The first party's columns are in its bins. The second party's columns are words that enter as shares: a
number as a whole number with the declared decimals, a category as the number of its group and, for moments,
a number once more in units of its scale.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...config.join_boost import JOIN_BOOST_OPTIONS, JoinBoostConfig
from ...config.signature import with_options
from ...data.identifiers import identify
from ...errors import BadData, QueryRefused
from ...mpc import joined, shared_join, shared_logistic, shared_moments
from ...mpc.joined import JoinQuery
from ...mpc.shared_join import CODE, HOWS, MATCHED, SCORE, VALUE, SharedTerms
from ...mpc.shared_moments import ColumnScale
from ...parameters import bad, check, nearest
from ...parties.ledger import Ledger
from ...parties.party import Party
from ...protocols import psi
from ...protocols.psi_circuit import CircuitLayout
from ...protocols.psi_policy import PsiPolicy
from ...runtimes.choose import choose_runtime
from .join import HELPER, SharedTable, describe, measure, read_query, to_answer
from .join_moments import JoinRegression, Moments

if TYPE_CHECKING:
    import pandas as pd

    from .join_boost import JoinBoostResult

SHARED = (
    "MEMBERSHIP STAYS SHARED: no party learned which people both have, nor how many. Figures about fewer "
    "people than the minimum are not opened."
)
FAMILIES = ("gaussian", "binomial")
Groups = dict[str, list[str]]


@dataclass
class Side:
    """One party's shares of the joined rows, and what it needs to ask about them."""

    rows: list[Tensor]  # the fields of `shared_join.SharedRows`
    own: Tensor | None  # the first party: its own row in each bin, or −1
    groups: Groups  # the second party: the names of the groups of each category


@dataclass
class SecretTable(SharedTable):
    """People whom two parties have, without anybody knowing who they are; columns of both as shares.

    `people` is None with how="inner", where even their number is a secret; with how="left" it is the number
    of people of the first party. Each question runs the protocol on the shares, and adds to the ledger.
    """

    title = "Figures over people whose membership is shared"

    people: int | None  # type: ignore[assignment]
    _terms: SharedTerms | None = field(repr=False, default=None)
    _sides: dict[str, Side] = field(repr=False, default_factory=dict)
    _whole: dict[str, pd.DataFrame] = field(repr=False, default_factory=dict)  # with ids and missing values
    _on: str = ""

    def count(self, by: str | None = None) -> Any:
        """Return how many people the join has, as `total`; None or NaN: fewer than `minimum`."""
        found = self._ask("count", (), None, by)
        return found if by is None else found[["people"]]

    def enough(self, people: int, by: str | None = None) -> Any:
        """Return whether the join has at least so many people, and open nothing else."""
        query = read_query("enough", (), None, by, self._columns(), self._decimals, people)
        self._terms_of(query)
        if self._asked.setdefault(("enough", query.by), (people,)) != (people,):
            raise QueryRefused(
                "join: another number of people was asked before. Several such answers would tell how many "
                "they are."
            )
        result = self._run(query)
        return bool(result["shown"][0][0]) if by is None else to_answer(query, result, self._decimals)

    def mean(self, of: Any, *, by: str | None = None) -> Any:
        found = self._ask("total", of, None, by)
        if by is None:
            return None if found is None else found / self.answers[-1]["people"][0]
        return found.assign(mean=found["total"] / found["people"])

    def moments(self, columns: Sequence[str] | None = None) -> Moments:
        """Return count, means, standard deviations and correlations of numeric columns ("party.column").

        None: all of them. They are opened to both parties if ten people are matched for each column.
        """
        first, second = self._numbers(columns)
        names = tuple(self._tables)
        assert self._terms is not None
        picked = dict(zip(names, (first, second)))

        def scales(who: str) -> dict[str, Any]:
            found = [scale_of(self._tables[who], who, c) for c in picked[who]]
            return {"scales": [(s.center, s.exponent) for s in found]}

        result = self._run_moments(shared_moments.helper, shared_moments.holder, (first, second), scales)
        if not result["enough"]:
            fewest = shared_moments.least(self._terms, len(first + second))
            others = "" if self._terms.how == "inner" else " Or fewer than the minimum are not matched."
            raise QueryRefused(
                f"join: fewer people are matched than the {fewest} that these columns need (ten for each "
                f"column, and the minimum).{others} Or a column is about few people: fewer than the minimum "
                "have a 0 or a 1, or two have nearly all of it. Nothing was opened."
            )
        labels = [f"{names[0]}.{c}" for c in first], [f"{names[1]}.{c}" for c in second]
        found = Moments.of(result["gram"].numpy(), result["scales"], labels, names[1], self._terms.how)
        self.answers.append(found.to_dict())
        return found

    def describe(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return the count, mean and standard deviation of each numeric column, as `moments`."""
        return self.moments(columns).describe()

    def regress(self, label: str, columns: Sequence[str], family: str = "gaussian") -> JoinRegression:
        """Fit a regression of one column on others ("party.column"), with standard errors.

        `family`: "gaussian" (ordinary least squares, from `moments`) or "binomial" (logistic, for a label of
        0 and 1: after the moments, Newton's method on shares). With how="left" the second party's columns are
        0 for people whom it does not have, and a column "PARTY.matched" says who is matched.
        """
        if family not in FAMILIES:
            raise bad("join", "family", family, f"one of {', '.join(map(repr, FAMILIES))}")
        name = self._full_name(label)
        if isinstance(columns, str) or not columns:  # before the moments are opened
            raise bad("join", "columns", columns, "a list of columns, at least one besides the label")
        found = self.moments([label, *columns])
        if family == "gaussian":
            return found.regress(name)
        people, labeled, at, transform = found.start_logistic(name)
        start = people, labeled, at, torch.from_numpy(transform)
        result = self._run_moments(
            shared_logistic.helper,
            shared_logistic.holder,
            self._numbers([label, *columns]),
            lambda w: {"start": start},
        )
        fit = found.finish_logistic(name, result)
        self.answers.append({"what": "regress", "people": fit.people, "terms": fit.table.to_dict("index")})
        return fit

    @with_options(JOIN_BOOST_OPTIONS)
    def boost(
        self,
        label: str,
        columns: Sequence[str] | None = None,
        *,
        categories: Sequence[str] = (),
        **options: Any,
    ) -> JoinBoostResult:
        """Grow boosted trees that predict one column from others ("party.column"; None: all others).

        Both parties learn which column is split where, by the number of its bin; the label's holder the
        values of leaves and the gains. Nobody learns who is matched, sums or sizes of nodes. `categories`:
        columns of codes that are not numbers. Rows with missing values take part.
        """
        from .join_boost import boost_here, make_terms

        config = check(JoinBoostConfig(**options), "join.boost")
        assert self._terms is not None
        names, name = self._terms.names, self._full_name(label)
        known = [f"{who}.{c}" for who, t in self._tables.items() for c in t.columns]
        if isinstance(columns, str) or isinstance(categories, str):
            raise bad("join.boost", "columns", columns, "a list of columns")
        full = [c for c in known if c != name] if columns is None else list(map(self._full_name, columns))
        if name in full or len(set(full)) < len(full):
            raise bad("join.boost", "columns", full, "each column once, without the label")
        coded = [self._full_name(c) for c in categories]
        for one in coded:
            if one not in full:
                raise bad("join.boost", "categories", one, "one of the columns")
        picked = [[c for c in self._tables[who].columns if f"{who}.{c}" in full] for who in names]
        holder = next(who for who in names if any(name == f"{who}.{c}" for c in self._tables[who].columns))
        terms = make_terms(
            (names[0], names[1]),
            HELPER,
            self._terms.how,
            self._terms.minimum,
            (picked[0], picked[1]),
            (holder, name.removeprefix(f"{holder}.")),
            config,
        )
        found = boost_here(
            self._whole,
            self._on,
            terms,
            config,
            {who: [c for c in self._whole[who].columns if f"{who}.{c}" in coded] for who in names},
            self._runtime,
        )
        self.ledger.merge(found.ledger)
        self.answers.append({"what": "boost", "label": name, "trees": found.trees, "leaves": found.leaves})
        return found

    def _run_moments(
        self,
        helper: Any,
        holder: Any,
        picked: tuple[list[str], list[str]],
        more: Callable[[str], dict[str, Any]],
    ) -> dict[str, Any]:
        """Run a program over columns of both parties; `more`: what else a party's program takes."""
        assert self._terms is not None
        names, terms = tuple(self._tables), self._terms.to_dict()
        side = self._sides[names[0]]
        assert side.own is not None
        own = encode_own(self._tables[names[0]], names[0], picked[0], side.own)
        programs: dict[str, Any] = {HELPER: functools.partial(helper, terms=terms, columns=picked)}
        for who, z in zip(names, (own, own[:0])):
            rows = self._sides[who].rows
            programs[who] = functools.partial(
                holder, terms=terms, rows=rows, own=z, columns=picked, **more(who)
            )
        result: dict[str, Any] = self._runtime_of().run_sync(programs, ledger=self.ledger)[names[0]]
        return result

    def _columns(self) -> dict[str, list[str]]:
        assert self._terms is not None
        return columns_of(
            {who: list(map(str, t.columns)) for who, t in self._tables.items()}, self._terms.how
        )

    def _runtime_of(self) -> Any:
        return choose_runtime("join", self._runtime, all_stay=True)

    def _full_name(self, name: str) -> str:
        found = [
            f"{who}.{c}" for who, t in self._tables.items() for c in t.columns if name in (c, f"{who}.{c}")
        ]
        if len(found) != 1:
            known = [f"{who}.{c}" for who, t in self._tables.items() for c in t.columns]
            raise bad("join", "column", name, "one column of one party", nearest(name, known))
        return found[0]

    def _numbers(self, columns: Sequence[str] | None) -> tuple[list[str], list[str]]:
        """The numeric columns of the first and of the second party."""
        if columns is None:
            columns = [f"{w}.{c}" for w, t in self._tables.items() for c in t.columns if is_number(t[c])]
        elif isinstance(columns, str):
            raise bad("join", "columns", columns, "a list of columns")
        full = [self._full_name(c) for c in columns]
        if not full:
            raise bad("join", "columns", [], "one or more columns of numbers")
        if len(set(full)) < len(full):
            raise bad("join", "columns", list(columns), "each column once")
        picked: dict[str, list[str]] = {}
        for who, table in self._tables.items():
            picked[who] = [c for c in table.columns if f"{who}.{c}" in full]
            for c in picked[who]:
                if not is_number(table[c]):
                    raise BadData(f"join: column {c!r} of {who!r} contains non-numeric values.")
        first, second = picked.values()
        return first, second

    def _ask(self, what: str, of: Any, above: Any, by: str | None) -> Any:
        query = read_query(what, of, above, by, self._columns(), self._decimals)
        self._terms_of(query)
        if query.above:
            asked = (query.above, query.what, query.by)
            if self._asked.setdefault(query.measure, asked) != asked:
                raise QueryRefused(
                    "join: another question with thresholds of this measure was asked before. Two such "
                    "counts differ by few people. Give all thresholds in one question."
                )
        return to_answer(query, self._run(query), self._decimals)

    def _terms_of(self, query: JoinQuery) -> SharedTerms:
        assert self._terms is not None
        terms = dataclasses.replace(self._terms, queries=(query,))
        shared_join.check_shared(terms)
        return terms

    def _run(self, query: JoinQuery) -> dict[str, Any]:
        terms = self._terms_of(query)
        programs: dict[str, Any] = {HELPER: functools.partial(shared_join.helper, terms=terms.to_dict())}
        for who, side in self._sides.items():
            measures, groups = prepare([query], terms, who, self._tables[who], side, self._decimals)
            programs[who] = functools.partial(
                shared_join.holder, terms=terms.to_dict(), rows=side.rows, measures=measures, groups=groups
            )
        result: dict[str, Any] = self._runtime_of().run_sync(programs, ledger=self.ledger)[terms.names[0]][0]
        self.answers.append(describe(query, result, self._decimals))
        return result


def join_shares(
    tables: Mapping[str, pd.DataFrame],
    on: str,
    how: str,
    decimals: int,
    minimum: int,
    notes: Sequence[str],
    runtime: Any,
    whole: Mapping[str, pd.DataFrame],
) -> SecretTable:
    """Match two parties' complete tables; every row has an id of its own. `whole`: with incomplete rows."""
    names = tuple(tables)
    first, second = (tables[n] for n in names)
    sets = {n: identify(t[on].tolist(), f"the ids of {n!r}") for n, t in tables.items()}
    plain = {n: t.drop(columns=on).reset_index(drop=True) for n, t in tables.items()}
    words = all_words(plain[names[1]])
    payload, groups = encode_words(plain[names[1]], names[1], words, decimals, minimum)
    layout = CircuitLayout(len(first), len(second), b"", len(words))
    terms = SharedTerms(names, HELPER, layout.bins, minimum, (), how, words, decimals)
    shared_join.check_shared(terms)
    ledger = Ledger()
    programs: dict[str, Any] = {
        names[0]: functools.partial(
            match_first, names=names, helper=HELPER, digests=sets[names[0]].digests, width=len(words)
        ),
        names[1]: functools.partial(
            match_second, names=names, helper=HELPER, digests=sets[names[1]].digests, payload=payload
        ),
        HELPER: functools.partial(help_match, names=names),
    }
    results = choose_runtime("join", runtime, all_stay=True).run_sync(programs, ledger=ledger)
    ledger.stamp(SHARED)
    sides = {
        names[0]: Side(results[names[0]]["rows"], results[names[0]]["own"], {}),
        names[1]: Side(results[names[1]]["rows"], None, groups),
    }
    people = len(first) if how == "left" else None
    sizes = {n: len(t) for n, t in tables.items()}
    return SecretTable(
        people,
        sizes,
        ledger,
        tuple(notes),
        [],
        plain,
        decimals,
        minimum,
        runtime,
        {},
        terms,
        sides,
        dict(whole),
        on,
    )


async def match_first(
    me: Party, names: Sequence[str], helper: str, digests: Any, width: int
) -> dict[str, Any]:
    """The first party's program: its shares by bin, and its own row in each bin."""
    bins, theirs = await psi.receive_words(me.scope("match"), digests, other=names[1], width=width)
    assert bins.rows is not None
    own = torch.from_numpy(bins.rows)
    layout = CircuitLayout(len(digests), theirs, b"", width)
    words = torch.from_numpy(bins.words.view(np.int64))
    rows = await shared_join.match_rows(me.scope("rows"), names, helper, words, layout.bits, own >= 0)
    _conclude(me, names[1], theirs)
    return {"rows": list(rows), "own": own}


async def match_second(
    me: Party,
    names: Sequence[str],
    helper: str,
    digests: Any,
    payload: Tensor,
    policy: PsiPolicy | None = None,
) -> dict[str, Any]:
    """The second party's program; `payload`: rows × words."""
    bins, theirs = await psi.send_words(
        me.scope("match"), digests, payload.numpy(), other=names[0], policy=policy
    )
    layout = CircuitLayout(theirs, len(digests), b"", payload.shape[1])
    words = torch.from_numpy(bins.words.view(np.int64))
    rows = await shared_join.match_rows(me.scope("rows"), names, helper, words, layout.bits, None)
    _conclude(me, names[0], theirs)
    return {"rows": list(rows), "own": None}


def _conclude(me: Party, other: str, theirs: int) -> None:
    """Record in the ledger what this party learned by the match."""
    what = f"that {other!r} holds {theirs} ids, and nothing about which are shared, nor how many"
    me.ledger.record(me.name, other, "Conclusion", what)


async def help_match(me: Party, names: Sequence[str]) -> int:
    """The helper's program; returns the number of bins."""
    return await shared_join.help_match(me.scope("rows"), names)


def columns_of(columns: Mapping[str, Sequence[str]], how: str) -> dict[str, list[str]]:
    """What can be asked about; in a left join also who is matched, at the second party."""
    found = {who: list(names) for who, names in columns.items()}
    second = list(found)[1]
    if how == "left" and MATCHED not in found[second]:
        found[second].append(MATCHED)
    return found


def is_number(column: Any) -> bool:
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    return bool(is_numeric_dtype(column)) and not bool(is_bool_dtype(column))


def all_words(frame: pd.DataFrame) -> tuple[tuple[str, str], ...]:
    """What can be asked about each of the second party's columns."""
    words: list[tuple[str, str]] = []
    for c in map(str, frame.columns):
        words += [(c, VALUE), (c, SCORE)] if is_number(frame[c]) else [(c, CODE)]
    return tuple(words)


def encode_words(
    frame: pd.DataFrame, who: str, words: Sequence[tuple[str, str]], decimals: int, minimum: int
) -> tuple[Tensor, Groups]:
    """(rows × words, the names of the groups of each category)."""
    columns, groups = [], Groups()
    for column, kind in words:
        if kind == CODE:
            names, codes = code_groups(frame, who, column, minimum)
            groups[column] = names
            columns.append(codes)
        elif kind == SCORE:
            values = _numbers_of(frame, who, column)
            columns.append(scale_of(frame, who, column).encode(values))
        else:
            values = _numbers_of(frame, who, column)
            columns.append(joined.encode_measure(values, f"{who}.{column}", decimals))
    none = torch.zeros(len(frame), 0, dtype=torch.int64)
    return (torch.stack(columns, 1) if columns else none), groups


def code_groups(frame: pd.DataFrame, who: str, column: str, minimum: int) -> tuple[list[str], Tensor]:
    """(names of the groups with `minimum` rows here, the number of each row's group from 1 on, or 0)."""
    from ...data.cells import to_text

    text = to_text(frame[column]).astype(str)
    names, codes, counts = np.unique(text, return_inverse=True, return_counts=True)
    kept = np.flatnonzero(counts >= minimum)
    if len(kept) > joined.GROUPS:
        raise BadData(
            f"join: column {column!r} of {who!r} has {len(kept)} groups, more than {joined.GROUPS}. Leave it "
            "out (columns)."
        )
    number = np.zeros(len(names), np.int64)
    number[kept] = np.arange(1, len(kept) + 1)
    return [str(names[k]) for k in kept], torch.from_numpy(number[codes.reshape(-1)])


def encode_own(frame: pd.DataFrame, who: str, columns: Sequence[str], own: Tensor) -> Tensor:
    """The first party's z by bin: bins × columns, 0 where it has nobody."""
    z = [scale_of(frame, who, c).encode(_numbers_of(frame, who, c)) for c in columns]
    if not z:
        return torch.zeros(len(own), 0, dtype=torch.int64)
    return to_bins(torch.stack(z, 1), own)


def to_bins(values: Tensor, own: Tensor) -> Tensor:
    """Values of the first party's rows (in the first dimension) by bin, 0 where it has nobody."""
    out = torch.zeros(len(own), *values.shape[1:], dtype=torch.int64)
    out[own >= 0] = values[own[own >= 0]].long()
    return out


def prepare(
    queries: Sequence[JoinQuery], terms: SharedTerms, who: str, frame: pd.DataFrame, side: Side, decimals: int
) -> tuple[list[Tensor], list[tuple[list[str], Tensor | None] | None]]:
    """(the party's part of each measure by bin, its groups) for `shared_join.holder`."""
    measures: list[Tensor] = []
    groups: list[tuple[list[str], Tensor | None] | None] = []
    for query in queries:
        by_bin = torch.zeros(terms.rows, dtype=torch.int64)
        if side.own is not None:
            by_bin = to_bins(measure(query, who, frame, decimals), side.own)
        measures.append(by_bin)
        found: tuple[list[str], Tensor | None] | None = None
        if query.by is not None and query.by[0] == who:
            if side.own is None:
                found = side.groups[query.by[1]], None
            else:
                names, codes = code_groups(frame, who, query.by[1], terms.minimum)
                placed = to_bins(codes, side.own)
                found = names, (placed == torch.arange(1, len(names) + 1).reshape(-1, 1)).long()
            if not found[0]:
                column = ".".join(query.by)
                raise QueryRefused(f"join: every group of {column} has fewer than {terms.minimum} rows.")
        groups.append(found)
    return measures, groups


def _numbers_of(frame: pd.DataFrame, who: str, column: str) -> Tensor:
    try:
        return torch.from_numpy(frame[column].to_numpy(dtype=np.float64).copy())
    except (TypeError, ValueError):
        raise BadData(f"join: column {column!r} of {who!r} contains non-numeric values.") from None


def scale_of(frame: pd.DataFrame, who: str, column: str) -> ColumnScale:
    return ColumnScale.of(_numbers_of(frame, who, column), f"{who}.{column}")


def check_how(how: str, reveal: str, parties: int) -> None:
    if reveal not in ("all", "shares"):
        raise bad("join", "reveal", reveal, "'all' (every party learns who is matched) or 'shares' (nobody)")
    if how not in HOWS:
        raise bad("join", "how", how, "'inner' or 'left'")
    if how == "left" and reveal == "all":
        raise bad("join", "how", how, "'inner' with reveal='all'", "Use reveal='shares', or tacit.align.")
    if parties != 2 and reveal == "shares":
        raise bad("join", "the number of parties", parties, "2 with reveal='shares'")
