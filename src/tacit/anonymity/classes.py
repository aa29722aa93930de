"""Equivalence classes: the rows that share all quasi-identifiers. One data model for searching and measuring.

`Classes` partitions items into classes. An item is a row of a published table (`classes_of`), or a
combination of quasi-identifiers that stands for several rows (`EncodedTable.classes`). A row with * in every
quasi-identifier is suppressed and is not a member of any class, however many such rows there are.

`Histogram` counts sensitive values per class. l-diversity, t-closeness and β-likeness are computed from it,
both when a search checks them (`models.py`) and when a published table is measured (`risk.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..errors import BadData
from ..parameters import bad, nearest
from .codes import encode_used, key_rows, number_keys

if TYPE_CHECKING:
    from pandas import DataFrame

BLOCK = 2**22  # cells of a dense block of classes × values: 32 MB


@dataclass(frozen=True)
class SensitiveColumn:
    """A sensitive column as (item, value, rows) triples, sorted by item."""

    name: str
    item: np.ndarray
    value: np.ndarray
    count: np.ndarray | None  # rows of each triple; None: one each
    words: Sequence[str]
    overall: np.ndarray  # rows of each value in the whole table
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32), repr=False)  # value of each row
    person: np.ndarray | None = field(default=None, repr=False)  # of each triple, if people have several rows

    @classmethod
    def from_rows(
        cls,
        name: str,
        value: np.ndarray,
        words: Sequence[str],
        overall: np.ndarray,
        person: np.ndarray | None = None,
    ) -> SensitiveColumn:
        """Every row is an item of its own."""
        return cls(name, np.arange(len(value)), value, None, words, overall, value, person)


@dataclass(frozen=True)
class Histogram:
    """Rows of each sensitive value in each class, as (class, value, rows) triples where rows > 0."""

    group: np.ndarray
    value: np.ndarray
    rows: np.ndarray
    sizes: np.ndarray  # rows of each class
    column: SensitiveColumn

    @cached_property
    def share(self) -> np.ndarray:
        """The part of its class that has the value, per triple."""
        return np.asarray(self.rows / self.sizes[self.group])

    @cached_property
    def overall(self) -> np.ndarray:
        """The part of the whole table that has each value."""
        return np.asarray(self.column.overall / max(self.column.overall.sum(), 1))

    def compared_with(self, overall: np.ndarray) -> Histogram:
        """The same classes in a table with other rows of each value."""
        return replace(self, column=replace(self.column, overall=overall))

    def count_distinct(self) -> np.ndarray:
        """Different values in each class."""
        return self.sum_by_class(None)

    def entropy(self) -> np.ndarray:
        """Entropy of the values in each class, in nats."""
        return self.sum_by_class(-self.share * np.log(self.share))

    def sum_by_class(self, weights: np.ndarray | None) -> np.ndarray:
        return np.bincount(self.group, weights, minlength=len(self.sizes))

    def equal_distance(self) -> np.ndarray:
        """Earth mover's distance of each class to the whole table if all values are equally far apart.

        ½ Σ |p − q| over all values. A value that the class does not have contributes its q.
        """
        q = self.overall[self.value]
        return np.asarray(0.5 * (self.sum_by_class(np.abs(self.share - q) - q) + 1))

    def ordered_distance(self, order: np.ndarray) -> np.ndarray:
        """Earth mover's distance of each class to the whole table for m ordered values.

        1/(m−1) Σ_i |Σ_{j≤i} (p_j − q_j)| (Li et al., section 5.1). `order` sorts the values.
        """
        q = np.cumsum(self.overall[order])
        distances = [
            np.abs(np.cumsum(np.take(p, order, axis=1), axis=1) - q).sum(axis=1) / max(len(q) - 1, 1)
            for p in self.dense_shares()
        ]
        return np.concatenate([np.zeros(0), *distances])

    def dense_shares(self) -> Iterator[np.ndarray]:
        """Shares as arrays [classes, values], block by block: all classes at once may not fit into memory."""
        values = len(self.column.words)
        step = max(1, BLOCK // max(values, 1))
        for start in range(0, len(self.sizes), step):
            end = min(start + step, len(self.sizes))
            low, high = np.searchsorted(self.group, [start, end])
            p = np.zeros((end - start, values))
            p[self.group[low:high] - start, self.value[low:high]] = self.share[low:high]
            yield p


@dataclass(frozen=True)
class Classes:
    """A partition of items into classes. `label[i]` is the class of item i, −1 if it is suppressed."""

    label: np.ndarray
    number: int  # classes; some may be empty
    counts: np.ndarray | None = None  # rows of each item; None: one each
    sensitive: Mapping[str, SensitiveColumn] = field(default_factory=dict)
    population_counts: np.ndarray | None = None  # rows of the population of each item
    # (item, person) of each pair that occurs, if people have several rows; None: every row is a person
    members: tuple[np.ndarray, np.ndarray] | None = None

    @cached_property
    def sizes(self) -> np.ndarray:
        """Rows of each class."""
        return self._sum(self.counts)

    @cached_property
    def people(self) -> np.ndarray:
        """People of each class: the rows, unless people have several."""
        if self.members is None:
            return self.sizes
        item, person = self.members
        label = self.label[item]
        inside = label >= 0
        pairs = _distinct(label[inside], person[inside])
        return np.bincount(pairs // (int(person.max(initial=0)) + 1), minlength=self.number)

    @property
    def rows(self) -> int:
        """Rows in a class, that is, published rows."""
        return int(self.sizes.sum())

    @property
    def population(self) -> np.ndarray:
        """People of the population in each class."""
        if self.population_counts is None:
            raise BadData(
                "This privacy model compares the table with a population. Pass anonymize(…, "
                "population=frame)."
            )
        return self._sum(self.population_counts)

    def histogram(self, column: str) -> Histogram:
        """Sensitive values by class."""
        sensitive = self.sensitive[column]
        values = len(sensitive.words)
        label, value, count = self.label[sensitive.item], sensitive.value, sensitive.count
        if label.min(initial=0) < 0:
            inside = label >= 0
            label, value = label[inside], value[inside]
            count = None if count is None else count[inside]
        if sensitive.person is not None:  # a person counts once for each value
            person = sensitive.person[self.label[sensitive.item] >= 0]
            key = label.astype(np.int64) * values + value
            key, count = _distinct(key, person) // (int(person.max(initial=0)) + 1), None
            label = key // max(values, 1)
            sizes = np.bincount(label, minlength=self.number)
        else:
            key, sizes = label.astype(np.int64) * values + value, self.sizes
        if self.number * values <= 4 * len(key) + 1024:
            rows = np.bincount(key, count, self.number * values)
            pairs = np.flatnonzero(rows)
            rows = rows[pairs]
        else:
            pairs, inverse = np.unique(key, return_inverse=True)
            rows = np.bincount(inverse.reshape(-1), count, len(pairs))
        group = pairs // max(values, 1)
        return Histogram(group, pairs - group * values, rows, sizes, sensitive)

    def _sum(self, weights: np.ndarray | None) -> np.ndarray:
        label = self.label
        if label.min(initial=0) < 0:
            inside = label >= 0
            label, weights = label[inside], None if weights is None else weights[inside]
        return np.bincount(label, weights, self.number).astype(np.int64)


def _distinct(key: np.ndarray, person: np.ndarray) -> np.ndarray:
    """The different pairs of a key and a person, as key · people + person."""
    return np.unique(key.astype(np.int64) * (int(person.max(initial=0)) + 1) + person)


def count_overall(value: np.ndarray, words: Sequence[str], person: np.ndarray | None) -> np.ndarray:
    """Rows of each value in a table; with `person`, people of each value."""
    if person is not None and len(value):
        value = _distinct(value, person) // (int(person.max(initial=0)) + 1)
    return np.bincount(value, minlength=len(words))


def classes_of(
    frame: DataFrame, quasi: Sequence[str], sensitive: Sequence[str] = (), person: np.ndarray | None = None
) -> Classes:
    """The classes of a table's rows. `person` numbers the people of the rows."""
    keys = key_rows((frame[c] for c in quasi), len(frame))
    inside = ~keys.is_starred
    label = np.full(len(frame), -1, dtype=np.int64)
    label[inside], number = number_keys(keys.key[inside])
    columns = {}
    for name in sensitive:
        value, words = encode_used(frame[name])
        overall = count_overall(value[inside], words, None if person is None else person[inside])
        columns[name] = SensitiveColumn.from_rows(name, value, words, overall, person)
    members = None if person is None else (np.arange(len(frame)), person)
    return Classes(label, number, sensitive=columns, members=members)


def check_columns(
    frame: DataFrame,
    columns: Iterable[str] | None,
    name: str,
    owner: str = "risk",
    may_be_empty: bool = False,
) -> list[str]:
    """Return the column names as a list. Raise unless each one is in the table exactly once."""
    names = [] if columns is None or isinstance(columns, str) else list(columns)
    if columns is None or isinstance(columns, str) or not (names or may_be_empty):
        raise bad(owner, name, columns, "a list of column names, like ['age', 'zip', 'sex']")
    known = [str(c) for c in frame.columns]
    for column in names:
        if known.count(str(column)) > 1:
            raise BadData(f"{owner}: two columns are named {column!r}. Rename one of them.")
        if column not in frame.columns:
            raise BadData(f"{owner}: there is no column {column!r} ({name}). {nearest(str(column), known)}")
    repeated = next((c for i, c in enumerate(names) if c in names[:i]), None)
    if repeated is not None:
        raise bad(owner, name, names, "a list without repetitions", f"{repeated!r} is in it twice.")
    return names
