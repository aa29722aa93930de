"""Columns of a private query, read as declared: every cell by itself.

How a cell is read depends on the cell and on the declaration, never on the other rows. Otherwise one row
could change how all are read: a single text makes pandas read a column of numbers as text, and an answer
about all rows would change, far more than the noise hides. For the same reason no cell is an error: a number
that cannot be read, or is infinite, is missing, and a value that is not a declared level is "other".

    numbers      12, 12.0, "12", " 12 ", "1.2e1", True (1); anything else is NaN
    levels       the value as text (1, 1.0 and "1" are the same level), as in `columns.text_of`
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

from ..data.table_files import CODE, NULLS
from .columns import text_of

_WORDS = {"true": "True", "false": "False"}
_TRUTH = {"True": "1", "False": "0", "1": "True", "0": "False"}
_CODE = re.compile(CODE)
_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
_POINT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")
_MISSING = frozenset(NULLS)


def to_numbers(column: pd.Series) -> np.ndarray:
    """Return a column as float64; what is not a finite number is NaN."""
    kind = column.dtype
    if isinstance(kind, np.dtype) and kind.kind in "iufb":
        values = column.to_numpy(dtype=np.float64)
    elif isinstance(kind, pd.CategoricalDtype):
        known = np.array([*map(to_number, column.cat.categories), np.nan], dtype=np.float64)
        values = known[column.cat.codes.to_numpy()]  # the last is that of a missing value, code −1
    elif pd.api.types.is_bool_dtype(kind) or (
        pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_complex_dtype(kind)
    ):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        values = np.array([to_number(value) for value in column], dtype=np.float64)
    return np.where(np.isfinite(values), values, np.nan)


def to_number(value: Any) -> float:
    """Return one cell as a number, or NaN."""
    if isinstance(value, str):
        word = value.strip()
        if "_" in word:  # 1_000 is a number to Python alone
            return np.nan
        word = {"true": "1", "false": "0"}.get(word.lower(), word)
        try:
            return float(word)
        except ValueError:
            return np.nan
    if isinstance(value, np.timedelta64 | np.datetime64) or not isinstance(
        value, int | float | np.number | np.bool_ | Decimal
    ):
        return np.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def with_points(column: pd.Series) -> pd.Series:
    """Return a column of a file with decimal commas: 1,5 is 1.5, and 1.5 is not a number."""
    if not isinstance(column.dtype, pd.CategoricalDtype):
        return column  # Parquet has types of its own

    def write(value: str) -> str:
        if _COMMA.fullmatch(value.strip()):
            return value.replace(",", ".")
        return f"{value} (decimal point)" if _POINT.fullmatch(value.strip()) else value

    words = np.array([write(str(v)) for v in column.cat.categories], dtype=object)
    return pd.Series(pd.Categorical(words[column.cat.codes.to_numpy()]), index=column.index)


def to_texts(column: pd.Series) -> list[str | None]:
    """Return the text of each cell, as it may be encoded; None where it is missing."""
    return [
        None if _is_missing(value) else _text(value).encode(errors="replace").decode() for value in column
    ]


def level_codes(column: pd.Series, levels: Sequence[Any], *, truth_is_number: bool = False) -> np.ndarray:
    """Return the index of each row's level; len(levels) for another value, len(levels) + 1 if missing.

    A cell that is text is the level of the same text, or of the number that it writes ("1.0" is 1), unless it
    is a code ("01"). `truth_is_number`: True is 1 and False is 0, where the level itself is not declared.
    """
    place = {text_of(level): k for k, level in reversed(list(enumerate(levels)))}
    kind, most = column.dtype, len(levels)
    if isinstance(kind, pd.CategoricalDtype):
        each = [_code(value, place, most, truth_is_number) for value in column.cat.categories]
        of_code = np.array([*each, most + 1], dtype=np.int64)  # the last is that of a missing value, code −1
        return np.asarray(of_code[column.cat.codes.to_numpy()])
    if isinstance(kind, np.dtype) and kind.kind in "iufb":
        values, where = np.unique(column.to_numpy(), return_inverse=True)
        each = [_code(value, place, most, truth_is_number) for value in values]
        return np.array(each, dtype=np.int64)[where.reshape(-1)]
    # not by pandas' unique, for which 1 and True are the same object: the first would decide for all
    return np.array([_code(value, place, most, truth_is_number) for value in column], dtype=np.int64)


def read_declared(column: pd.Series, levels: Sequence[str]) -> np.ndarray:
    """Return the level of each row as it is declared; other values as text, missing ones as None."""
    codes = level_codes(column, levels)
    out: np.ndarray = np.array([*levels, None, None], dtype=object)[codes]
    others = np.flatnonzero(codes == len(levels))
    out[others] = to_texts(column.iloc[others])
    return out


def _code(value: Any, place: dict[str, int], other: int, truth_is_number: bool) -> int:
    if _is_missing(value):
        return other + 1
    word = _text(value)
    if word in place:
        return place[word]
    if isinstance(value, str):
        word = word.strip()
        if word in _MISSING:
            return other + 1
        word = _canonical(word)
    if word in place:
        return place[word]
    return place.get(_TRUTH.get(word, ""), other) if truth_is_number else other


def _canonical(word: str) -> str:
    """Return a text as `text_of` writes the number or truth value that it states."""
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    number = np.nan if _CODE.fullmatch(word) else to_number(word)
    return text_of(number) if np.isfinite(number) else word


def _text(value: Any) -> str:
    try:
        return text_of(value)
    except ValueError:  # an integer of more digits than Python writes
        return type(value).__name__


def _is_missing(value: Any) -> bool:
    return value is None or value is pd.NA or value is pd.NaT or (value != value) is True or _is_nan(value)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and bool(np.isnan(value))
