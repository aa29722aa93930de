"""Columns as integer codes, and rows as integer keys: equal keys, equal rows.

A key is one int64 in mixed radix. If one more column would overflow 63 bits, the key so far is replaced by
its rank. Columns are read one at a time and no rows × columns array is built, so a table of more than 2³¹
cells needs no special treatment.

A null is a value: an attacker who knows that a person's age was not recorded finds that person, so a null
equals other nulls only. An empty string is another value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pandas

from .hierarchies import NULL, STAR, spell

LARGEST = 2**62  # keys stay below this, so that a key and a sign fit an int64


class RowKeys(NamedTuple):
    """One key per row, and the rows that need special treatment."""

    key: np.ndarray
    space: int  # every key is below this
    is_starred: np.ndarray  # * in every column: the row is suppressed
    has_null: np.ndarray  # a null in at least one column


def encode_column(series: pandas.Series) -> tuple[np.ndarray, list[str]]:
    """(code of each row, the values as text). Cells with the same text are one value; null is a value."""
    if isinstance(series.dtype, pandas.CategoricalDtype):
        codes, uniques = series.cat.codes.to_numpy(), series.cat.categories
    else:
        codes, uniques = pandas.factorize(series, use_na_sentinel=True)
    words = [spell(u) for u in uniques]
    if (codes < 0).any():
        words.append(NULL)
    position: dict[str, int] = {}
    merged = np.array([position.setdefault(w, len(position)) for w in words], dtype=np.int32)
    return merged[codes], list(position)  # code −1 reads the last entry: the null


def encode_used(series: pandas.Series) -> tuple[np.ndarray, list[str]]:
    """`encode_column` without the categories that no row has."""
    codes, words = encode_column(series)
    used = np.flatnonzero(np.bincount(codes, minlength=len(words)))
    # int32 takes half the memory of int64, which is a gigabyte for ten million rows
    rank = np.zeros(len(words), dtype=np.int32)
    rank[used] = np.arange(len(used))
    return rank[codes], [words[i] for i in used]


def key_rows(columns: Iterable[pandas.Series], rows: int) -> RowKeys:
    """The key of each row over these columns."""
    key, space = np.zeros(rows, np.int64), 1
    is_starred, has_null = np.ones(rows, bool), np.zeros(rows, bool)
    for series in columns:
        codes, words = encode_column(series)
        is_starred &= codes == (words.index(STAR) if STAR in words else -1)
        if NULL in words:
            has_null |= codes == words.index(NULL)
        if space * len(words) > LARGEST:
            key, space = rank_keys(key)
        key *= len(words)
        key += codes
        space *= len(words)
    return RowKeys(key, space, is_starred, has_null)


def pack_keys(parts: Sequence[np.ndarray], sizes: Sequence[int]) -> tuple[np.ndarray, int]:
    """(one int64 key for columns of codes, the size of the key space)."""
    key = np.asarray(parts[0], dtype=np.int64) if parts else np.zeros(0, np.int64)
    space = int(sizes[0]) if parts else 1
    for part, size in zip(parts[1:], sizes[1:]):
        if space * int(size) > LARGEST:
            key, space = rank_keys(key)
        key = key * size  # not in place: the first part may belong to the caller
        key += part
        space *= int(size)
    return key, space


def rank_keys(key: np.ndarray) -> tuple[np.ndarray, int]:
    """(the rank of each key among the distinct keys, the number of distinct keys)."""
    distinct, inverse = np.unique(key, return_inverse=True)
    return inverse.reshape(-1), len(distinct)


def number_keys(key: np.ndarray) -> tuple[np.ndarray, int]:
    """(keys numbered in order of first appearance, the number of distinct keys). Faster than ranking."""
    codes, distinct = pandas.factorize(key)
    return codes.astype(np.int64), len(distinct)


def tally_keys(key: np.ndarray, space: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(first row of each distinct key, rank of each row's key, rows of each distinct key).

    Small key spaces are counted, large ones are sorted.
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
