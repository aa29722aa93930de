"""A table as distinct combinations of quasi-identifiers and their row counts.

Every algorithm works on combinations, not on rows: ten million rows rarely have more than a few hundred
thousand combinations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas

from ..errors import BadData
from .classes import Classes, SensitiveColumn, count_overall
from .codes import encode_column, key_rows, pack_keys, rank_keys, tally_keys
from .hierarchies import NULL, STAR, Hierarchy, as_hierarchy
from .losses import domain_share
from .result import Step

NULLS = ("value", "suppress", "error")


@dataclass(frozen=True)
class Column:
    """A quasi-identifier and its hierarchy as integers.

    `up[l][v]` is the code of value v at level l, `words[l][c]` is the text of code c.
    """

    name: str
    hierarchy: Hierarchy
    up: tuple[np.ndarray, ...]
    words: tuple[tuple[str, ...], ...]
    # numbers without a hierarchy from the user: local recoding may cut between any two of them
    has_ranges: bool = False

    @classmethod
    def from_hierarchy(cls, name: str, hierarchy: Hierarchy, has_ranges: bool = False) -> Column:
        up, words = [], []
        for level in hierarchy.levels:
            code: dict[str, int] = {}
            up.append(np.array([code.setdefault(word, len(code)) for word in level], dtype=np.int32))
            words.append(tuple(code))
        return cls(name, hierarchy, tuple(up), tuple(words), has_ranges)

    @property
    def height(self) -> int:
        return len(self.up) - 1

    @cached_property
    def paths(self) -> np.ndarray:
        """`up` as one array [levels, values]."""
        return np.stack(self.up)

    @cached_property
    def share(self) -> np.ndarray:
        """[levels, values]: the share of the domain a cell covers, 0 for a value itself and 1 for the top."""
        return np.asarray(domain_share(np.stack([np.bincount(u)[u] for u in self.up]), len(self.hierarchy)))

    @cached_property
    def numbers(self) -> np.ndarray:
        """The values as floats, if `has_ranges`; a null is NaN."""
        return np.array([np.nan if v == NULL else float(v) for v in self.hierarchy.values])

    @cached_property
    def spread(self) -> float:
        """The largest number minus the smallest."""
        return float(np.ptp(self.numbers[~np.isnan(self.numbers)])) or 1.0


@dataclass
class EncodedTable:
    """The combinations of a table. Classes of the table are partitions of its combinations."""

    columns: list[Column]
    codes: np.ndarray  # int32[combinations, columns], at level 0
    counts: np.ndarray  # int64[combinations]
    inverse: np.ndarray  # the combination of each row; −1 for rows suppressed from the start
    sensitive: dict[str, SensitiveColumn] = field(default_factory=dict)
    population: np.ndarray | None = None  # rows of the population with each combination
    notes: list[Step] = field(default_factory=list)
    person: np.ndarray | None = None  # of each row, if people have several rows

    @cached_property
    def members(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The (combination, person) pairs that occur."""
        if self.person is None:
            return None
        live = self.inverse >= 0
        people = int(self.person.max(initial=0)) + 1
        pairs = np.unique(self.inverse[live].astype(np.int64) * people + self.person[live])
        return pairs // people, pairs % people

    @property
    def quasi(self) -> list[str]:
        return [c.name for c in self.columns]

    @property
    def rows(self) -> int:
        """Rows that are not suppressed from the start."""
        return int(self.counts.sum())

    def partition(self, label: np.ndarray, number: int) -> Classes:
        """Classes with this label for each combination."""
        return Classes(label, number, self.counts, self.sensitive, self.population, self.members)

    def classes(self, levels: Sequence[int]) -> Classes:
        """The classes if each column is generalized to one level."""
        key, _ = pack_keys(
            [c.up[level][self.codes[:, j]] for j, (c, level) in enumerate(zip(self.columns, levels))],
            [len(c.words[level]) for c, level in zip(self.columns, levels)],
        )
        return self.partition(*rank_keys(key))


def encode(
    frame: pandas.DataFrame,
    quasi: Sequence[str],
    hierarchies: Mapping[str, Any],
    sensitive: Sequence[str] = (),
    nulls: str = "value",
    population: pandas.DataFrame | None = None,
    person: np.ndarray | None = None,
) -> EncodedTable:
    """Encode a table. Rows with * in every quasi-identifier are already suppressed and are left out.

    Columns are read one at a time. The codes of a combination are then read from one row that has it.
    """
    n = len(frame)
    if not n:
        raise BadData("The table has no rows. Pass a table with at least one row.")
    total = n + (0 if population is None else len(population))
    keys = key_rows((_stack(frame, population, name) for name in quasi), total)
    live, notes = _select_live(keys.is_starred[:n], keys.has_null[:n], nulls)
    live = np.concatenate([live, np.ones(total - n, bool)])
    first, inverse, counts = tally_keys(keys.key[live], keys.space)
    del keys
    if not live.all():
        ranks = np.full(total, -1, dtype=inverse.dtype)
        ranks[live] = inverse
        first, inverse = np.flatnonzero(live)[first], ranks
    columns, parts = [], []
    for name in quasi:
        codes, words = encode_column(_stack(frame, population, name).iloc[first])
        # a category that no row has needs no place in the hierarchy
        used, codes = np.unique(codes, return_inverse=True)
        words = [words[u] for u in used]
        hierarchy = hierarchies.get(name)
        has_ranges = (
            hierarchy is None
            and pandas.api.types.is_numeric_dtype(frame[name].dtype)
            and not pandas.api.types.is_bool_dtype(frame[name].dtype)
            and all(w == NULL or _is_number(w) for w in words)
        )
        columns.append(Column.from_hierarchy(name, as_hierarchy(hierarchy, name, words), has_ranges))
        position = {v: i for i, v in enumerate(columns[-1].hierarchy.values)}
        parts.append(np.array([position[w] for w in words], dtype=np.int32)[codes.reshape(-1)])
    table = EncodedTable(columns, np.stack(parts, axis=1), counts, inverse, notes=notes, person=person)
    if population is not None:
        table.inverse, others = inverse[:n], inverse[n:]
        table.population = np.bincount(others, minlength=len(first))
        table.counts = np.bincount(table.inverse[table.inverse >= 0], minlength=len(first))
    for name in sensitive:
        table.sensitive[name] = _encode_sensitive(frame[name], name, table)
    return table


def _stack(frame: pandas.DataFrame, population: pandas.DataFrame | None, name: str) -> pandas.Series:
    """A column of the table, followed by the population's."""
    if population is None:
        return frame[name]
    return pandas.concat([frame[name].astype(object), population[name].astype(object)], ignore_index=True)


def _select_live(is_starred: np.ndarray, has_null: np.ndarray, nulls: str) -> tuple[np.ndarray, list[Step]]:
    """(the rows to work on, notes about the other rows)."""
    notes = []
    live = ~is_starred
    starred, void = int(is_starred.sum()), int(has_null.sum())
    if starred:
        notes.append(
            Step(
                f"{starred:,} input rows have {STAR} in every quasi-identifier: they are already suppressed.",
                {"already": starred},
            )
        )
    if void and nulls == "error":
        raise BadData(
            f"{void:,} rows have a null in a quasi-identifier. Fill the nulls in, or pass nulls='value' (a "
            "null is a value of its own) or nulls='suppress' (suppress these rows)."
        )
    if void and nulls == "suppress":
        live &= ~has_null
        notes.append(
            Step(
                f"{void:,} rows with a null in a quasi-identifier are suppressed (nulls='suppress').",
                {"nulls": void},
            )
        )
    if not live.any():
        raise BadData(
            "Every row of the table is already suppressed (* in every quasi-identifier, or nulls with "
            "nulls='suppress'). Pass a table with other rows."
        )
    return live, notes


def _is_number(word: str) -> bool:
    try:
        return bool(np.isfinite(float(word)))
    except ValueError:
        return False


def _encode_sensitive(series: pandas.Series, name: str, table: EncodedTable) -> SensitiveColumn:
    codes, words = encode_column(series)
    live = table.inverse >= 0
    overall = count_overall(codes[live], words, None if table.person is None else table.person[live])
    if table.person is not None:
        return SensitiveColumn(
            name, table.inverse[live], codes[live], None, words, overall, codes, table.person[live]
        )
    key = table.inverse[live].astype(np.int64) * len(words) + codes[live]
    first, _, counts = tally_keys(key, len(table.codes) * len(words))
    return SensitiveColumn(
        name, key[first] // len(words), key[first] % len(words), counts, words, overall, codes
    )
