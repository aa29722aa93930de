"""Find lines of totals below a table: a spreadsheet adds them, and they are no rows of anybody."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from .cells import to_numbers, to_text
from .inspection import Finding
from .joined_tables import PARTY

if TYPE_CHECKING:
    from pandas import DataFrame

WORDS = (
    r"((grand|sub|over-?all)[ -]?)?(totals?|sums?)( \w+)?:?|(gesamt)?summe:?|insgesamt:?|gesamt:?|"
    r"(overall )?(mean|average)s?:?|Ø"
)
MOST = 3  # lines below a table: a total, a mean, a number of rows
FEWEST = 5  # other rows, without which a sum may be chance


def is_total(word: str) -> bool:
    """Whether a text is a word for a line of totals: it says nothing about a single row."""
    return re.fullmatch(WORDS, word.strip(), re.IGNORECASE) is not None


def list_totals(
    frame: DataFrame, by: str | None, least: int
) -> tuple[list[tuple[Finding, str, str | float | None]], np.ndarray]:
    """Return findings about lines of totals, each with its column and value, and which rows are none.

    Where each file is a party, each may have its own lines. The value is None if it may not be declared: a
    draft that others read (`least` rows) has no sum, and a value of another row, too, tells nothing apart.
    """
    places = [np.arange(len(frame))]
    if by == PARTY:
        owner = frame[PARTY].to_numpy()
        places = [np.flatnonzero(owner == party) for party in dict.fromkeys(owner)]
    marks = [(at[k], *mark) for at in places for k, *mark in find_totals(frame.iloc[at])]
    kept = np.ones(len(frame), dtype=bool)
    kept[[place for place, _, _ in marks]] = False
    by_mark: dict[tuple[str, str | float], int] = {}
    for _, column, value in marks:
        by_mark[column, value] = by_mark.get((column, value), 0) + 1
    found = []
    for (column, value), rows in by_mark.items():
        is_word = isinstance(value, str)
        texts = to_text(frame[column].iloc[np.flatnonzero(kept)])
        clear = (is_word or not least) and str(value) not in texts
        what = f"{column!r} is {value!r}" if is_word else f"{column!r} and other columns have sums there"
        where = "The last row is" if rows == 1 and len(places) == 1 else f"Rows below the table, {rows}, are"
        treatment = "Left out." if clear else "Remove it from the file."
        finding = Finding("totals", column, f"{where} no row of the table but its totals: {what}.", treatment)
        found.append((finding, column, value if clear else None))
    return found, kept


def find_totals(frame: DataFrame) -> list[tuple[int, str, str | float]]:
    """Return (position, column, value) of the last rows that are totals; the value tells them apart.

    Such a row has a word like "Total" that is in no other row, or the sums of at least two other columns.
    """
    found: list[tuple[int, str, str | float]] = []
    for place in range(len(frame) - 1, max(len(frame) - 1 - MOST, FEWEST - 1), -1):
        mark = _find_word(frame, place) or _find_sum(frame, place)
        if mark is None:
            break
        found.append((place, *mark))
    return found


def _find_word(frame: DataFrame, place: int) -> tuple[str, str] | None:
    for name in frame.columns:
        value = frame[name].iloc[place]
        if isinstance(value, str) and is_total(value):
            above = to_text(frame[name].iloc[:place])
            return None if np.isin(above, [value]).any() else (name, value)
    return None


def _find_sum(frame: DataFrame, place: int) -> tuple[str, float] | None:
    """Return a column with the sum of the rows above, if the row has the sums of two."""
    import pandas as pd

    sums: list[tuple[str, float]] = []
    for name in frame.columns:
        if not pd.api.types.is_numeric_dtype(frame[name]) or pd.api.types.is_bool_dtype(frame[name]):
            continue
        values = to_numbers(frame[name].iloc[: place + 1])
        last, above = values[-1], values[:-1][~np.isnan(values[:-1])]
        is_sum = len(above) >= FEWEST and last > above.max() and np.isclose(above.sum(), last, rtol=1e-9)
        if is_sum and above.min() >= 0:
            sums.append((name, float(last)))
    if len(sums) < 2:
        return None
    name, value = sums[0]
    return name, int(value) if value.is_integer() else value
