"""Equivalence classes of a published table: which rows look the same to somebody who knows the
quasi-identifiers.

A null is a value: somebody who knows that a person's age was not recorded finds that person, so a null fits
nowhere but with other nulls. An empty string is a value too, another one. A row that shows * in every
quasi-identifier is suppressed: it is no member of a class, however many such rows there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import BadData
from ..parameters import bad, nearest
from .encoded import column_codes
from .hierarchies import STAR

if TYPE_CHECKING:
    from pandas import DataFrame, Series

ROOM = (
    2**62
)  # below this a key of classes × values stays a 64-bit number: some two thousand million rows, all different


@dataclass(frozen=True)
class Classes:
    """`of[i]` is the class of row i, −1 where the row is suppressed; `sizes[c]` how many rows class c has."""

    of: np.ndarray
    sizes: np.ndarray

    @property
    def rows(self) -> int:
        """Rows that are published: those in a class."""
        return int(self.sizes.sum())

    @property
    def suppressed(self) -> int:
        return len(self.of) - self.rows


def columns_of(
    frame: DataFrame, columns: Sequence[str] | str | None, name: str, owner: str = "risk", empty: bool = False
) -> list[str]:
    """Column names that are there, each once, or the error that says which is not."""
    if isinstance(columns, str) or not isinstance(columns, Sequence) or (not columns and not empty):
        raise bad(owner, name, columns, "a list of column names, like ['age', 'zip', 'sex']")
    known = [str(c) for c in frame.columns]
    for column in columns:
        if known.count(str(column)) != 1 or column not in frame.columns:
            what = (
                f"two columns are named {column!r}. Give each its own name."
                if known.count(str(column)) > 1
                else (f"there is no column {column!r} ({name}). {nearest(str(column), known)}")
            )
            raise BadData(f"{owner}: {what}")
    twice = next((c for i, c in enumerate(columns) if c in columns[:i]), None)
    if twice is not None:
        raise bad(owner, name, list(columns), "a list without repetitions", f"{twice!r} stands in it twice.")
    return list(columns)


def numbered(column: Series) -> tuple[np.ndarray, list[str]]:
    """A column as numbers, and the text each number stands for (39, 39.0 and "39" are one value; null is
    one); only values that occur have one.
    """
    codes, words = column_codes(column)
    there = np.flatnonzero(np.bincount(codes, minlength=len(words)))
    rank = np.zeros(
        len(words), dtype=np.int32
    )  # half the memory of int64, which is a gigabyte for ten million rows
    rank[there] = np.arange(len(there))
    return rank[codes], [words[i] for i in there]


def joined(key: np.ndarray, kinds: int, codes: np.ndarray, more: int) -> tuple[np.ndarray, int]:
    """The key of one column more, numbered from 0 without gaps."""
    if kinds * max(1, more) >= ROOM:
        raise BadData(
            f"risk: {kinds:,} classes × {more:,} values are more than a 64-bit number counts. Give fewer "
            "rows."
        )
    return compact(key.astype(np.int64) * max(1, more) + codes)


def compact(key: np.ndarray) -> tuple[np.ndarray, int]:
    import pandas as pd

    codes, kinds = pd.factorize(key)
    return codes.astype(np.int64), len(kinds)


def classes_of(frame: DataFrame, quasi: Sequence[str]) -> Classes:
    """The classes of a table by its quasi-identifiers."""
    key, kinds = np.zeros(len(frame), dtype=np.int64), 1
    starred = np.ones(len(frame), dtype=bool)
    for column in quasi:
        codes, words = numbered(frame[column])
        starred &= codes == (words.index(STAR) if STAR in words else -1)
        key, kinds = joined(key, kinds, codes, len(words))
    kept, many = compact(key[~starred])
    of = np.full(len(frame), -1, dtype=np.int64)
    of[~starred] = kept
    return Classes(of, np.bincount(kept, minlength=many).astype(np.int64))


def shares(of: np.ndarray, column: Series) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, list[str]]:
    """How often each sensitive value stands in each class: (class, value, rows) where there are any, how many
    values there are, their words.
    """
    codes, words = numbered(column)
    inside = of >= 0
    pairs, counts = np.unique(of[inside] * len(words) + codes[inside], return_counts=True)
    return pairs // len(words), pairs % len(words), counts, len(words), words
