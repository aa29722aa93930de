"""`tacit.join`: sums and counts over people whom several parties have, on secret shares."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...errors import BadData, QueryRefused
from ...mpc import joined
from ...mpc.joined import JoinQuery, JoinTerms
from ...parameters import bad, nearest
from ...parties.ledger import Ledger
from ...results import JobResult
from ...runtimes.choose import choose_runtime
from ...stats.disclosure import suppress
from .psi import align
from .regress_design import take_complete_rows

if TYPE_CHECKING:
    import pandas as pd

HELPER = "helper"
MATCHED = (
    "MATCHED: every party learned which of its own people all parties have (private set intersection), and "
    "how many ids the others have. Their values stay shared; figures about fewer people than the minimum are "
    "not opened."
)


@dataclass
class SharedTable(JobResult):
    """People whom all parties have, with columns that stay with their parties; `answers` are the figures.

    Each question runs the protocol between the parties, and adds to the ledger.
    """

    title = "Figures over matched people"
    facts = ("answers", "people", "sizes", "notes")

    people: int
    sizes: dict[str, int]
    ledger: Ledger
    notes: tuple[str, ...] = ()
    answers: list[dict[str, Any]] = field(default_factory=list)
    _tables: dict[str, pd.DataFrame] = field(repr=False, default_factory=dict)
    _decimals: int = 2
    _minimum: int = 10
    _runtime: Any = field(repr=False, default=None)
    _asked: dict[Any, tuple[Any, ...]] = field(repr=False, default_factory=dict)

    @property
    def value(self) -> list[dict[str, Any]]:
        return self.answers

    def total(self, of: Any, *, above: Any = None, by: str | None = None) -> Any:
        """Return the sum of a measure over all matched people, or over those above a threshold.

        `of`: a column ("cash": of all parties that have it; "bank_a.cash": of one), or several, which are
        added for each person; "-loans" subtracts. `above`: a threshold, or several. `by`: a category,
        "party.column". Returns a number; with several thresholds or groups a table. None or NaN: the figure
        is about too few people, or its difference from another one is.
        """
        return self._ask("total", of, above, by)

    def mean(self, of: Any, *, by: str | None = None) -> Any:
        """Return the mean of a measure over all matched people, as `total`."""
        found = self._ask("total", of, None, by)
        if by is None:
            return None if found is None else found / self.people
        return found.assign(mean=found["total"] / found["people"])

    def count_above(self, of: Any, above: Any, *, by: str | None = None) -> Any:
        """Return how many matched people have more than `above`, as `total`."""
        return self._ask("count", of, above, by)

    def sum_by(self, of: Any, by: str) -> Any:
        """Return the sum of a measure for each group: a table with `people` and `total`."""
        return self._ask("total", of, None, by)

    def _ask(self, what: str, of: Any, above: Any, by: str | None) -> Any:
        columns = {who: list(map(str, t.columns)) for who, t in self._tables.items()}
        query = read_query(what, of, above, by, columns, self._decimals)
        if query.above and self._asked.setdefault(query.measure, query.above) != query.above:
            raise QueryRefused(
                "join: other thresholds of this measure were asked before. Two counts with nearby thresholds "
                "differ by few people. Give all thresholds in one question."
            )
        names = tuple(self._tables)
        terms = JoinTerms(names, HELPER, self.people, self._minimum, (query,))
        joined.check_terms(terms)
        programs: dict[str, Any] = {HELPER: functools.partial(joined.helper, terms=terms.to_dict())}
        for who, table in self._tables.items():
            programs[who] = functools.partial(
                joined.holder,
                terms=terms.to_dict(),
                measures=[measure(query, who, table, self._decimals)],
                groups=[groups_of(query, who, table, self._minimum)],
            )
        runtime = choose_runtime("join", self._runtime, all_stay=True)
        result = runtime.run_sync(programs, ledger=self.ledger)[names[0]][0]
        self.answers.append(describe(query, result, self._decimals))
        return to_answer(query, result, self._decimals)


def join(
    parties: Mapping[str, Any],
    *,
    on: str,
    columns: Mapping[str, Sequence[str]] | None = None,
    how: str = "inner",
    reveal: str = "all",
    decimals: int = 2,
    minimum: int = 10,
    runtime: Any = None,
) -> SharedTable:
    """Match the people of two or more parties, and ask for sums and counts over their columns.

    `parties`: {party: DataFrame} with the id column `on`. `columns`: the columns of each party that may be
    asked about (None: all). Numbers may have `decimals` decimals and be negative; sums are exact. No figure
    is about fewer than `minimum` people. Randomness comes from a helper, and the values of a person stay
    shared.

    `reveal`: "all" lets every party learn which of its own people the others have. "shares", of two parties,
    lets nobody learn who is matched, nor how many are. Its table also has `.count()`, `.enough(n)`,
    `.describe()`, `.moments()`, `.regress(label, columns)` and `.boost(label, columns)`. `how`, with
    "shares": "inner" is about people whom both have; "left" about all people of the first party, the second
    one's columns count as 0 for those whom it does not have, and its column "matched" is 1 for the others.
    """
    import pandas as pd

    from .join_shares import check_how, join_shares

    if not isinstance(parties, Mapping) or len(parties) < 2 or HELPER in parties:
        given = list(parties) if isinstance(parties, Mapping) else type(parties).__name__
        raise bad("join", "parties", given, f"tables of at least two parties, none called {HELPER!r}")
    check_decimals(decimals)
    check_how(how, reveal, len(parties))
    if columns is not None and (not isinstance(columns, Mapping) or set(columns) - set(parties)):
        raise bad("join", "columns", columns, 'the columns of each party, like {"bank_a": ["cash"]}')
    tables, whole, notes = {}, {}, list[str]()
    for who, frame in parties.items():
        if not isinstance(frame, pd.DataFrame) or on not in frame.columns:
            raise bad(
                "join", f"the table of {who!r}", type(frame).__name__, f"a DataFrame with a column {on!r}"
            )
        kept = list(columns.get(who, ())) if columns is not None else [c for c in frame.columns if c != on]
        missing = [c for c in kept if c not in frame.columns]
        if missing:
            known = nearest(missing[0], list(map(str, frame.columns)))
            raise BadData(f"the table of {who!r} has no column {missing[0]!r}. {known}")
        whole[who] = frame[[on, *kept]]
        tables[who], more = take_complete_rows(whole[who], who, on)
        notes += more
    if reveal == "shares":
        return join_shares(tables, on, how, decimals, minimum, notes, runtime, whole)
    shared = align({who: t[on].tolist() for who, t in tables.items()}, runtime=runtime)
    ledger = Ledger()
    ledger.merge(shared.ledger)
    ledger.stamp(MATCHED)
    aligned = {
        who: t.iloc[shared.rows[who]].drop(columns=on).reset_index(drop=True) for who, t in tables.items()
    }
    joined.check_terms(JoinTerms(tuple(parties), HELPER, max(shared.size, 1), minimum))
    return SharedTable(
        shared.size,
        {who: len(t) for who, t in tables.items()},
        ledger,
        (*notes, *shared.notes),
        [],
        aligned,
        decimals,
        minimum,
        runtime,
    )


def check_decimals(decimals: int) -> None:
    if isinstance(decimals, bool) or not isinstance(decimals, int) or not 0 <= decimals <= 6:
        raise bad("join", "decimals", decimals, "a whole number from 0 to 6")


def read_query(
    what: str,
    of: Any,
    above: Any,
    by: str | None,
    columns: Mapping[str, Sequence[str]],
    decimals: int,
    least: int = 0,
) -> JoinQuery:
    """Resolve the names of a question; `columns`: those of each party. `least`: with "enough"."""
    words = [of] if isinstance(of, str) else list(of)
    is_about_people = what != "total" and above is None
    if not (words or is_about_people) or not all(isinstance(w, str) for w in words):
        raise bad("join", "of", of, 'a column like "cash" or "bank_a.cash", or a list of them')
    terms: list[tuple[str, str, int]] = []
    for word in words:
        sign, name = (-1, word[1:]) if word.startswith("-") else (1, word)
        found = [(who, c) for who in columns for c in columns[who] if name in (c, f"{who}.{c}")]
        if not found:
            known = sorted({c for names in columns.values() for c in names})
            raise bad("join", "of", word, "a column of the parties", nearest(name, known))
        terms += [(who, c, sign) for who, c in found]
    if len({(who, c) for who, c, _ in terms}) < len(terms):
        raise bad("join", "of", words, "each column once")
    limits = [] if above is None else list(above) if isinstance(above, Sequence | np.ndarray) else [above]
    for limit in limits:
        if (
            isinstance(limit, bool)
            or not isinstance(limit, int | float | np.number)
            or not np.isfinite(limit)
        ):
            raise bad("join", "above", above, "a number, or several in increasing order")
    scaled = tuple(int(np.floor(round(float(t) * 10**decimals, 6))) for t in limits)
    place = None
    if by is not None:
        found = [(who, c) for who in columns for c in columns[who] if by in (c, f"{who}.{c}")]
        if len(found) != 1:
            raise bad("join", "by", by, 'a category of one party, like "bank_a.region"')
        place = found[0]
    if isinstance(least, bool) or not isinstance(least, int | np.integer):
        raise bad("join", "enough", least, "a whole number of people")
    return JoinQuery(what, tuple(terms), scaled, place, int(least))


def measure(query: JoinQuery, who: str, table: pd.DataFrame, decimals: int) -> Tensor:
    """This party's own part of the measure, by person."""
    total = torch.zeros(len(table), dtype=torch.int64)
    for party, column, sign in query.of:
        if party == who:
            try:
                values = torch.from_numpy(table[column].to_numpy(dtype=np.float64).copy())
            except (TypeError, ValueError):
                raise BadData(f"join: column {column!r} of {who!r} contains non-numeric values.") from None
            total += sign * joined.encode_measure(values, f"{who}.{column}", decimals)
    return total


def groups_of(
    query: JoinQuery, who: str, table: pd.DataFrame, minimum: int
) -> tuple[list[str], Tensor] | None:
    """The groups that are shown, at the party with the group column; None at the others."""
    if query.by is None or query.by[0] != who:
        return None
    from ...data.cells import to_text

    text = to_text(table[query.by[1]])
    names, codes, counts = np.unique(text.astype(str), return_inverse=True, return_counts=True)
    if len(names) > joined.GROUPS:
        raise BadData(
            f"join: column {query.by[1]!r} of {who!r} has {len(names)} values, more than {joined.GROUPS}."
        )
    hidden = suppress(counts, minimum)
    kept = np.flatnonzero(~hidden)
    if not len(kept):
        raise QueryRefused(f"join: every group of {who}.{query.by[1]} has fewer than {minimum} people.")
    return [str(names[k]) for k in kept], torch.from_numpy((codes[None, :] == kept[:, None]).astype(np.int64))


def figure(value: int, shown: int, query: JoinQuery, decimals: int) -> float | int | None:
    if query.what == "enough":
        return bool(shown)
    if not shown:
        return None
    return value if query.what == "count" else value / 10**decimals


def to_answer(query: JoinQuery, result: Mapping[str, Any], decimals: int) -> Any:
    """A number, or a table by group, by threshold, or by both."""
    import pandas as pd

    figures = [
        [figure(v, s, query, decimals) for v, s in zip(values, shown)]
        for values, shown in zip(result["figures"], result["shown"])
    ]
    limits = [t / 10**decimals for t in query.above]
    if query.by is None and len(limits) < 2:
        return figures[0][0]
    if query.by is None:
        return pd.DataFrame({query.what: figures[0]}, index=pd.Index(limits, name="above"), dtype=float)
    index = pd.Index(result["groups"], name=".".join(query.by))
    if query.what == "enough":
        return pd.DataFrame(figures, index=index, columns=["enough"])
    people = [max(row) or None for row in result["people"]]
    names = [query.what] if len(limits) < 2 else [f"above {t:g}" for t in limits]
    table = pd.DataFrame(figures, index=index, columns=names, dtype=float)
    table.insert(0, "people", pd.array(people, dtype="Int64"))
    return table


def describe(query: JoinQuery, result: Mapping[str, Any], decimals: int) -> dict[str, Any]:
    """A question and its figures as plain values."""
    signs = {1: "", -1: "-"}
    return {
        "what": query.what,
        "of": [f"{signs[sign]}{who}.{c}" for who, c, sign in query.of],
        "above": [t / 10**decimals for t in query.above],
        "by": None if query.by is None else ".".join(query.by),
        "groups": list(result["groups"]),
        "people": [max(row) or None for row in result["people"]],
        "figures": [
            [figure(v, s, query, decimals) for v, s in zip(values, shown)]
            for values, shown in zip(result["figures"], result["shown"])
        ],
    }
