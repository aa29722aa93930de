"""Columns of a party's table: numbers with NaN for missing values, categories as codes of declared levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import numpy as np
import pandas as pd

from ..errors import BadData
from ..parameters import bad

MOST_LEVELS = 50  # of a column taken from the tables; a table with more is not readable
MISSING, OTHER = "missing", "other"


def numbers(frame: pd.DataFrame, column: str, otherwise: str = "declare it as a category") -> np.ndarray:
    """Return a column as float64. Missing values are NaN; infinities are refused.

    `otherwise`: what an error advises if the column is no number at all.
    """
    series = frame[column]
    if not (pd.api.types.is_numeric_dtype(series.dtype) or pd.api.types.is_bool_dtype(series.dtype)):
        if holds_numbers(series):
            return numbers(_as_floats(series).to_frame(column), column)
        texts = np.flatnonzero(pd.to_numeric(series, errors="coerce").isna() & series.notna())
        example = (
            f"row {texts[0] + 1} has {series.iloc[texts[0]]!r}"
            if len(texts)
            else f"its type is {series.dtype}"
        )
        raise BadData(
            f"column {column!r} is not numeric ({example}). Replace such cells by missing values, or "
            f"{otherwise}.",
            outside=f"its column {column!r} of the agreed job is not numeric",
        )
    values: np.ndarray = series.to_numpy(dtype=np.float64, na_value=np.nan)
    if np.isinf(values).any():
        raise BadData(f"column {column!r} has infinite values. Replace or remove them.")
    return values


def holds_numbers(series: pd.Series) -> bool:
    """Whether a column of objects has numbers and missing values only, as joining tables leaves them."""
    return series.dtype == object and all(
        v is None
        or v is pd.NA
        or (isinstance(v, int | float | np.integer | np.floating) and not isinstance(v, bool))
        for v in series.to_numpy()
    )


def _as_floats(series: pd.Series) -> pd.Series:
    """A column that `holds_numbers`; an integer too large for a float is infinite, which is refused."""
    return pd.Series(
        [np.nan if v is None or v is pd.NA else _as_float(v) for v in series], series.index, float
    )


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return np.inf


def known_values(column: pd.Series) -> list[Any]:
    """Return the different values of a column without missing ones, in order of appearance."""
    return [v for v in column.unique() if not pd.isna(v)]


def matrix(frame: pd.DataFrame, columns: Sequence[str]) -> np.ndarray:
    """Return numeric columns as the rows of a matrix to read: the table's own memory, where possible."""
    names = list(columns)
    if names and all(isinstance(t, np.dtype) and t.kind in "iufb" for t in frame.dtypes.reindex(names)):
        values = np.ascontiguousarray(frame[names].to_numpy(dtype=np.float64).T)
        if not np.isinf(values).any():
            return values
    return np.array([numbers(frame, c) for c in names]).reshape(len(names), len(frame))


def text_of(value: object) -> str:
    """Return the name of a level: 1, 1.0 and "1" are the same level."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)


def codes(frame: pd.DataFrame, column: str, levels: Sequence[str]) -> np.ndarray:
    """Return the index of each row's level; len(levels) for another level, len(levels) + 1 if missing."""
    series = frame[column]
    unique, place = series.unique(), {name: i for i, name in enumerate(levels)}
    table = {v: place.get(text_of(v), len(levels)) for v in unique if not pd.isna(v)}
    coded = series.map(table).to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isnan(coded), len(levels) + 1, coded).astype(np.int64)


def level_sets(
    frame: pd.DataFrame, column: str, levels: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Return the rows of each level, and those of all of them: for the guard against differencing.

    Without `levels`, those that this table has.
    """
    if levels is None:
        levels = sorted({text_of(v) for v in frame[column].dropna().unique()})
    place = codes(frame, column, levels)
    groups = {f"{column}={level}": place == k for k, level in enumerate(levels)}
    return {f"rows with {column!r}": place < len(levels), **groups}


def is_number(series: pd.Series) -> bool:
    return is_number_type(series.dtype)


def is_number_type(kind: Any) -> bool:
    return pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind)


def levels_of(frames: Mapping[str, pd.DataFrame], column: str, owner: str) -> list[str]:
    """Return the levels of a column in all tables: for callers that hold them; parties declare levels."""
    found: set[str] = set()
    for frame in frames.values():
        found |= {text_of(v) for v in frame[column].dropna().unique()}
    if len(found) > MOST_LEVELS:
        raise bad(
            owner,
            f"the number of levels of {column!r}",
            len(found),
            f"at most {MOST_LEVELS}",
            _explain(found, column)
            + "Declare the levels of interest (categories={...}; the rest is counted as 'other'), or use "
            "tacit.stats.heavy_hitters.",
        )
    return sorted(found, key=_natural)


def _explain(found: set[str], column: str) -> str:
    """Say why a column that is no category is read as one, if it is plain to see."""
    texts = sorted(v for v in found if _natural(v)[0])
    if 0 < len(texts) < 0.2 * len(found):
        shown = ", ".join(map(repr, texts[:3]))
        verb = "is" if len(texts) == 1 else "are"
        return (
            f"Nearly all values of {column!r} are numbers, but {shown} {verb} not: replace such cells by "
            "missing values. "
        )
    if all(_is_date(v) for v in found):
        return f"{column!r} contains dates: turn it into a number, such as days since a date. "
    return ""


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text[:10])
    except ValueError:
        return False
    return True


def _natural(text: str) -> tuple[int, float, str]:
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text
