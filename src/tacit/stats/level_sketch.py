"""Find the union of the parties' levels of categorical columns by one sum.

M. Goodrich and M. Mitzenmacher, "Invertible Bloom Lookup Tables", 2011, with sums in place of exclusive ors.

Every party adds each of its levels once to four cells of a table. The sum of the tables has, in each cell,
the number of parties that added something, and the sum of what they added. A cell with one distinct level is
recognized by its checksum and is subtracted everywhere, which leaves further cells with one level, until the
table is empty. The sum reveals the levels and how many parties have each, and nothing else. A party adds a
level only if it has enough rows of it (LEVEL_ROWS): a value of one row may be an id or a date of birth.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ..errors import BadData
from ..parameters import propose

if TYPE_CHECKING:
    import pandas as pd

MOST = 128  # levels of all columns together; half of what the cells could hold, so that decoding succeeds
LONGEST = 60  # bytes of a level's text
LEVEL_ROWS = 2  # a value of one row is an id, or nearly one; more would cost accuracy where parties are small
_PARTS, _CELLS = 4, 96  # a level is in one cell of each part
_WORD = 3  # bytes of an integer: 128 of them in one cell stay below 2^31
_WORDS = LONGEST // _WORD + 1  # the first word is (column, length)
_WIDTH = 1 + 2 + _WORDS  # count, checksum, words
LENGTH = _PARTS * _CELLS * _WIDTH

Level = tuple[int, str]  # the column's position and the level's text
V = TypeVar("V")


class TooManyLevels(BadData):
    """More levels than a sum finds."""


def _too_many() -> TooManyLevels:
    return TooManyLevels(
        f"the categorical columns have more than about {MOST} levels together, too many to discover. "
        f"Declare them: {propose('levels', {'column': ['a', 'b']})}."
    )


def count_levels(column: pd.Series, to_level: Callable[[object], V]) -> dict[V, int]:
    """Return the levels of a column of one party, and how many rows have each.

    A level leaves the party only if it has enough rows. A count over all parties would have to be opened to
    be compared with a floor, and with it those of all rare values.
    """
    codes, values = column.factorize()
    rows = np.bincount(codes[codes >= 0], minlength=len(values)).tolist()
    counts: dict[V, int] = {}
    for value, count in zip(values, rows):
        level = to_level(value)
        counts[level] = counts.get(level, 0) + count
    return counts


def encode(levels: Iterable[Level]) -> np.ndarray:
    """Return one party's table as a vector of int64."""
    items = sorted(set(levels))
    if len(items) > MOST:
        raise _too_many()
    cells = np.zeros((_PARTS * _CELLS, _WIDTH), dtype=np.int64)
    for item in items:
        row, places = _describe(item)
        cells[places] += row
    return cells.reshape(-1)


def decode(total: np.ndarray) -> list[Level]:
    """Return the levels of a sum of tables, sorted. Raise BadData if they are too many."""
    cells = np.array(total, dtype=np.int64).reshape(-1, _WIDTH)
    found: list[Level] = []
    waiting = list(range(len(cells)))
    while waiting:
        cell = cells[waiting.pop()]
        times = int(cell[0])
        if times <= 0 or (cell % times).any():
            continue
        item = _read(cell[3:] // times)
        if item is None:
            continue
        row, places = _describe(item)
        if not np.array_equal(cell, row * times):
            continue
        cells[places] -= row * times
        found.append(item)
        waiting += places
    if cells.any():
        raise _too_many()
    return sorted(found)


def _describe(item: Level) -> tuple[np.ndarray, list[int]]:
    """Return the row that is added for a level, and the cells it is added to."""
    column, text = item
    data = text.encode()
    if len(data) > LONGEST:
        raise BadData(
            f"a level of a categorical column has {len(data)} bytes; at most {LONGEST} can be discovered. "
            f"Declare the levels: {propose('levels', {'column': ['a', 'b']})}."
        )
    padded = data.ljust(LONGEST, b"\0")
    words = [column << 8 | len(data)]
    words += [int.from_bytes(padded[k : k + _WORD], "big") for k in range(0, LONGEST, _WORD)]
    digest = hashlib.blake2b(column.to_bytes(4, "big") + data, digest_size=32).digest()
    checks = [int.from_bytes(digest[k : k + _WORD], "big") for k in (0, _WORD)]
    places = [
        part * _CELLS + int.from_bytes(digest[8 + 4 * part : 12 + 4 * part], "big") % _CELLS
        for part in range(_PARTS)
    ]
    return np.array([1, *checks, *words], dtype=np.int64), places


def _read(words: np.ndarray) -> Level | None:
    """Return the level that these words spell, or None."""
    column, length = int(words[0]) >> 8, int(words[0]) & 0xFF
    if column < 0 or length > LONGEST or (words[1:] < 0).any() or (words[1:] >> 8 * _WORD).any():
        return None
    data = b"".join(int(w).to_bytes(_WORD, "big") for w in words[1:])
    try:
        return column, data[:length].decode()
    except UnicodeDecodeError:
        return None
