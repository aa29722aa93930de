"""A table as integer codes: the distinct combinations of quasi-identifiers and how many rows have each.

Every algorithm of the room works on combinations, not rows: ten million rows of people are rarely more than a
few hundred thousand combinations. A combination is one int64 key in mixed radix; where the radices would
overflow 63 bits, the key made so far is first replaced by its rank. Columns are read one at a time and no
rows × columns array is ever made, so a table of more than 2³¹ cells is like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas

from ..errors import BadData
from ..parameters import bad
from .hierarchies import NULL, STAR, Hierarchy, as_hierarchy, spelling

LARGEST = 2**62  # keys stay below this, so that a key and a sign fit an int64
NULLS = ("value", "suppress", "error")


@dataclass(frozen=True)
class Column:
    """A quasi-identifier: its hierarchy as integers. `up[l][v]` is the code of value v at level l,
    `words[l][c]` what code c is called.
    """

    name: str
    hierarchy: Hierarchy
    up: tuple[np.ndarray, ...]
    words: tuple[tuple[str, ...], ...]
    ranges: bool = (
        False  # numbers nobody gave a hierarchy for: local recoding may cut between any two of them
    )

    @classmethod
    def of(cls, name: str, hierarchy: Hierarchy, ranges: bool = False) -> Column:
        up, words = [], []
        for level in hierarchy.levels:
            code: dict[str, int] = {}
            up.append(np.array([code.setdefault(word, len(code)) for word in level], dtype=np.int32))
            words.append(tuple(code))
        return cls(name, hierarchy, tuple(up), tuple(words), ranges)

    @property
    def height(self) -> int:
        return len(self.up) - 1

    @cached_property
    def share(self) -> np.ndarray:
        """[levels, values]: how much of the domain a cell stands for, 0 for a value itself and 1 for the top:
        (leaves − 1) / (all − 1).
        """
        leaves = np.stack([np.bincount(u)[u] for u in self.up])
        return (leaves - 1) / max(len(self.hierarchy) - 1, 1)

    @cached_property
    def numbers(self) -> np.ndarray:
        """The values as floats, where `ranges`; a null is NaN."""
        return np.array([np.nan if v == NULL else float(v) for v in self.hierarchy.values])

    @cached_property
    def spread(self) -> float:
        """From the smallest number to the largest."""
        finite = self.numbers[~np.isnan(self.numbers)]
        return float(np.ptp(finite)) or 1.0


@dataclass(frozen=True)
class Sensitive:
    """A sensitive column as (combination, value, rows) triples: enough for every histogram by class."""

    name: str
    combination: np.ndarray
    value: np.ndarray
    count: np.ndarray
    words: tuple[str, ...]
    overall: np.ndarray  # rows of each value in the whole table
    rows: np.ndarray = field(
        default_factory=lambda: np.zeros(0, np.int32), repr=False
    )  # the value of each row of the frame


@dataclass
class Encoded:
    columns: list[Column]
    codes: np.ndarray  # int32[combinations, columns], at level 0
    counts: np.ndarray  # int64[combinations]
    inverse: np.ndarray  # the combination of each row; −1 for rows left out from the start
    sensitive: dict[str, Sensitive] = field(default_factory=dict)
    population: np.ndarray | None = None  # rows of the population with each combination
    notes: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def quasi(self) -> list[str]:
        return [c.name for c in self.columns]

    @property
    def heights(self) -> tuple[int, ...]:
        return tuple(c.height for c in self.columns)

    @property
    def rows(self) -> int:
        """Rows the algorithms see."""
        return int(self.counts.sum())

    def keys(self, levels: Sequence[int]) -> np.ndarray:
        """The combinations at a level a column, as keys: equal keys, equal combinations."""
        key, _ = packed(
            [c.up[level][self.codes[:, j]] for j, (c, level) in enumerate(zip(self.columns, levels))],
            [len(c.words[level]) for c, level in zip(self.columns, levels)],
        )
        return key

    def classes(self, levels: Sequence[int]) -> tuple[np.ndarray, int]:
        """(class of each combination, number of classes)."""
        return ranked(self.keys(levels))

    def subset(self, keep: np.ndarray) -> Encoded:
        """The table without the combinations that are not kept."""
        new = np.cumsum(keep) - 1
        sensitive = {}
        for name, s in self.sensitive.items():
            mine = keep[s.combination]
            sensitive[name] = Sensitive(
                name, new[s.combination[mine]], s.value[mine], s.count[mine], s.words, s.overall, s.rows
            )
        inverse = np.where((self.inverse >= 0) & keep[self.inverse], new[self.inverse], -1)
        return Encoded(
            self.columns,
            self.codes[keep],
            self.counts[keep],
            inverse,
            sensitive,
            None if self.population is None else self.population[keep],
        )


def packed(parts: Sequence[np.ndarray], sizes: Sequence[int]) -> tuple[np.ndarray, int]:
    """Columns of codes as one int64 key, and how many keys there could be. Ranks the key made so far where
    one more column would overflow.
    """
    key = np.asarray(parts[0], dtype=np.int64) if parts else np.zeros(0, np.int64)
    space = int(sizes[0]) if parts else 1
    for part, size in zip(parts[1:], sizes[1:]):
        if space * int(size) > LARGEST:
            key, space = ranked(key)
        key = key * size  # not in place: the first part may be someone else's array
        key += part
        space *= int(size)
    return key, space


def ranked(key: np.ndarray) -> tuple[np.ndarray, int]:
    """Keys as 0, 1, 2, … in order, and how many there are."""
    distinct, inverse = np.unique(key, return_inverse=True)
    return inverse.reshape(-1), len(distinct)


def tallied(key: np.ndarray, space: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(a row of each distinct key, the distinct key of each row, rows of each). Small key spaces are counted,
    large ones sorted.
    """
    n = len(key)
    small = np.int32 if n < 2**31 else np.int64
    if space <= 4 * n + 1024:
        counts = np.bincount(key, minlength=space)
        seen = np.flatnonzero(counts)
        rank = np.zeros(space, dtype=small)
        rank[seen] = np.arange(len(seen))
        inverse = rank[key]
        first = np.empty(len(seen), dtype=np.int64)
        first[inverse[::-1]] = np.arange(n - 1, -1, -1)  # the last write wins: the first row
        return first, inverse, counts[seen]
    _, first, inverse, counts = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    return first, inverse.reshape(-1).astype(small), counts


def column_codes(series: pandas.Series) -> tuple[np.ndarray, list[str]]:
    """(value of each row, the values as text); two cells spelt alike are one value, and a null is a value."""
    if isinstance(series.dtype, pandas.CategoricalDtype):
        codes, uniques = series.cat.codes.to_numpy(), series.cat.categories
    else:
        codes, uniques = pandas.factorize(series, use_na_sentinel=True)
    words = [spelling(u) for u in uniques]
    if (codes < 0).any():
        words.append(NULL)
    place: dict[str, int] = {}
    merged = np.array([place.setdefault(w, len(place)) for w in words], dtype=np.int32)
    return merged[codes], list(place)  # −1 is the last: the null


def encode(
    frame: pandas.DataFrame,
    quasi: Sequence[str],
    hierarchies: Mapping[str, Any],
    sensitive: Sequence[str] = (),
    nulls: str = "value",
    population: pandas.DataFrame | None = None,
) -> Encoded:
    """The table's combinations. Rows with * in every quasi-identifier are already suppressed: they are no
    class, and are left out.

    Columns pass one at a time: what stays of each is its part of the rows' keys. A combination's codes are
    then read off one row that has it.
    """
    n = len(frame)
    if not n:
        raise BadData("The table has no rows; there is nobody to protect. Give a table with rows.")
    key, space = np.zeros(n + (0 if population is None else len(population)), np.int64), 1
    starred, void = np.ones(n, bool), np.zeros(n, bool)
    for name in quasi:
        codes, words = column_codes(_with(frame, population, name))
        starred &= codes[:n] == words.index(STAR) if STAR in words else False
        if NULL in words:
            void |= codes[:n] == words.index(NULL)
        if space * len(words) > LARGEST:
            key, space = ranked(key)
        key *= len(words)
        key += codes
        space *= len(words)
    live, notes = _live(starred, void, nulls)
    if population is not None:
        live = np.concatenate([live, np.ones(len(population), bool)])
    first, inverse, counts = tallied(key[live], space)
    del key
    if not live.all():
        spread = np.full(len(live), -1, dtype=inverse.dtype)
        spread[live] = inverse
        first, inverse = np.flatnonzero(live)[first], spread
    columns, parts = [], []
    for name in quasi:
        codes, words = column_codes(_with(frame, population, name).iloc[first])
        used, codes = np.unique(
            codes, return_inverse=True
        )  # a category nobody has needs no place in the hierarchy
        words = [words[u] for u in used]
        given = hierarchies.get(name)
        ranges = (
            given is None
            and pandas.api.types.is_numeric_dtype(frame[name].dtype)
            and not pandas.api.types.is_bool_dtype(frame[name].dtype)
        )
        columns.append(Column.of(name, as_hierarchy(given, name, words), ranges and _all_numbers(words)))
        place = {v: i for i, v in enumerate(columns[-1].hierarchy.values)}
        parts.append(np.array([place[w] for w in words], dtype=np.int32)[codes.reshape(-1)])
    table = Encoded(columns, np.stack(parts, axis=1), counts, inverse, notes=notes)
    if population is not None:
        table.inverse, others = inverse[:n], inverse[n:]
        table.population = np.bincount(others, minlength=len(first))
        table.counts = np.bincount(table.inverse[table.inverse >= 0], minlength=len(first))
    for name in sensitive:
        table.sensitive[name] = _sensitive(frame[name], name, table)
    return table


def _with(frame: pandas.DataFrame, population: pandas.DataFrame | None, name: str) -> pandas.Series:
    """A column of the table, and the population's below it."""
    if population is None:
        return frame[name]
    return pandas.concat([frame[name].astype(object), population[name].astype(object)], ignore_index=True)


def _live(
    starred: np.ndarray, void: np.ndarray, nulls: str
) -> tuple[np.ndarray, list[tuple[str, dict[str, Any]]]]:
    """(the rows to work on, what to tell about the others)."""
    notes: list[tuple[str, dict[str, Any]]] = []
    live = ~starred
    if starred.any():
        notes.append(
            (
                f"{starred.sum():,} rows came with {STAR} in every quasi-identifier: they are suppressed "
                "already and no class.",
                {"already": int(starred.sum())},
            )
        )
    if void.any() and nulls == "error":
        raise BadData(
            f"{void.sum():,} rows have a null in a quasi-identifier. Fill them in, or choose nulls='value' "
            "(a null is a value of its own, as rare "
            "as it is) or nulls='suppress' (such rows are left out)."
        )
    if void.any() and nulls == "suppress":
        live &= ~void
        notes.append(
            (
                f"{void.sum():,} rows with a null in a quasi-identifier are suppressed, as nulls='suppress' "
                "asks.",
                {"nulls": int(void.sum())},
            )
        )
    if not live.any():
        raise BadData(
            "Every row of the table is suppressed already (* in every quasi-identifier, or nulls with "
            "nulls='suppress'). Give one with rows left."
        )
    return live, notes


def _all_numbers(words: Sequence[str]) -> bool:
    return all(w == NULL or _is_number(w) for w in words)


def _is_number(word: str) -> bool:
    try:
        return np.isfinite(float(word))
    except ValueError:
        return False


def _sensitive(series: pandas.Series, name: str, table: Encoded) -> Sensitive:
    codes, words = column_codes(series)
    live = table.inverse >= 0
    key = table.inverse[live].astype(np.int64) * len(words) + codes[live]
    first, _, counts = tallied(key, len(table.codes) * len(words))
    overall = np.bincount(codes[live], minlength=len(words))
    return Sensitive(
        name, key[first] // len(words), key[first] % len(words), counts, tuple(words), overall, codes
    )


def check_columns(frame: Any, quasi: Any, sensitive: Any) -> tuple[list[str], list[str]]:
    """The columns asked for are there, once each, and no column is both."""
    if not isinstance(frame, pandas.DataFrame):
        raise bad(
            "anonymize",
            "frame",
            type(frame).__name__,
            "a pandas DataFrame",
            "Read a file with pandas.read_csv(…, dtype=str) first.",
        )
    names = []
    for word, columns in (("quasi", quasi), ("sensitive", sensitive)):
        if isinstance(columns, str) or not all(isinstance(c, str) for c in columns):
            raise bad("anonymize", word, columns, "a list of column names")
        names.append(list(columns))
    if not names[0]:
        raise bad(
            "anonymize",
            "quasi",
            quasi,
            "a list of at least one column name",
            "Name what others could know about a person: age, postal code, sex.",
        )
    every = names[0] + names[1]
    absent = [c for c in every if c not in frame.columns]
    if absent:
        raise BadData(
            f"The table has no column {', '.join(map(repr, absent))}; it has "
            f"{', '.join(map(repr, frame.columns))}."
        )
    twice = sorted({c for c in every if every.count(c) > 1 or list(frame.columns).count(c) > 1})
    if twice:
        raise BadData(
            f"{', '.join(map(repr, twice))} stands twice among the columns, or among quasi and sensitive. A "
            "column is one of them, once."
        )
    return names[0], names[1]
