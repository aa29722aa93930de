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
    r"((grand|sub|over-?all)[ -]?)?(totals?|sums?)"
    r"( (all|cases|count|n|number|patients|people|rows|subjects))?:?|"  # and no name: "Sum Wong" is a person
    r"(gesamt)?summe:?|insgesamt:?|gesamt:?|"
    r"(overall )?(mean|average)s?:?|Ø"
)
MOST = 3  # lines below a table: a total, a mean, a number of rows
FEWEST = 5  # other rows, without which a sum may be chance


def is_total(word: str) -> bool:
    """Whether a text is a word for a line of totals: it says nothing about a single row."""
    return re.fullmatch(WORDS, word.strip(), re.IGNORECASE) is not None


def list_totals(
    frame: DataFrame, by: str | None, least: int
) -> tuple[list[tuple[Finding, list[str | float]]], np.ndarray]:
    """Return findings about lines of totals, each with its values to declare, and which rows are none.

    Where each file is a party, each may have its own lines. Values are not declared where other rows have
    them, too, and sums not in a draft that others read (`least` rows).
    """
    places = [np.arange(len(frame))]
    if by == PARTY:
        owner = frame[PARTY].to_numpy()
        places = [np.flatnonzero(owner == party) for party in dict.fromkeys(owner)]
    marks = [(int(at[k]), column, value) for at in places for k, column, value in find_totals(frame.iloc[at])]
    kept = np.ones(len(frame), dtype=bool)
    kept[[place for place, _, _ in marks]] = False
    found = []
    for column in dict.fromkeys(column for _, column, _ in marks):
        values = [value for _, other, value in marks if other == column]
        words = [v for v in dict.fromkeys(values) if isinstance(v, str)]
        above = set(to_text(frame[column][kept]))
        clear = (not least or len(words) == len(set(values))) and not above & {str(v) for v in values}
        has = f"is {', '.join(map(repr, words))}" if words else "and other columns have sums there"
        rows = "The last row is a line" if len(values) == 1 else f"{len(values)} last rows are lines"
        treatment = "Left out." if clear else "Remove them from the file."
        finding = Finding("totals", column, f"{rows} of totals: {column!r} {has}.", treatment)
        found.append((finding, list(dict.fromkeys(values)) if clear else []))
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
