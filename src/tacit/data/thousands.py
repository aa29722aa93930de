"""Points that separate thousands, as in German tables: 1.157 is 1157 there, and 1.157 to every parser."""

from __future__ import annotations

import os
from collections.abc import Container
from typing import TYPE_CHECKING

from ..errors import BadData

if TYPE_CHECKING:
    from pandas import DataFrame, Series

GROUPED = r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?"
NUMBER = rf"{GROUPED}|[+-]?(?:\d+(?:[.,]\d*)?|[.,]\d+)(?:[eE][+-]?\d+)?"
MOST = 0.5  # of the cells are numbers: the others may be words for missing values


def find_thousands(column: Series, least: float = MOST) -> tuple[int, str] | None:
    """Return position and text of the first number such as 1.157 in a column of text.

    None if less than the share `least` of the cells are numbers: the column is not one of numbers.
    """
    import numpy as np
    import pandas as pd

    from .table_files import NULLS

    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_datetime64_any_dtype(column):
        return None
    words, codes = np.unique(column[column.notna()].astype(str).to_numpy(dtype=object), return_inverse=True)
    texts = pd.Series(words, dtype=object).astype(str).str.strip()
    grouped = texts.str.fullmatch(GROUPED).to_numpy(dtype=bool)[codes]
    if not grouped.any():
        return None
    numbers = texts.str.fullmatch(NUMBER).to_numpy(dtype=bool)[codes]
    known = ~texts.isin(NULLS).to_numpy()[codes]
    if numbers.sum() < least * known.sum():
        return None
    first = int(grouped.argmax())
    return int(np.flatnonzero(column.notna())[first]), str(words[codes[first]])


def refuse_thousands(
    file: str | os.PathLike[str],
    frame: DataFrame,
    text_columns: Container[str] = (),
    least: float = MOST,
) -> None:
    """Raise BadData if a column of a file with decimal commas has numbers such as 1.157.

    The index of `frame` counts the rows of the file. `text_columns` are not numbers; `least` is 0 if all
    columns are declared to be numbers.
    """
    for name in frame.columns:
        if name not in text_columns and (found := find_thousands(frame[name], least)) is not None:
            place, word = int(frame.index[found[0]]), found[1]
            raise BadData(f"{os.fspath(file)}, column {name!r}: {describe_thousands(word, place)}")


def describe_thousands(word: str, place: int) -> str:
    """Say that a cell is ambiguous, and what to do."""
    from .cells import show_row

    whole = word.replace(".", "")
    advice = f"Write {whole}" + ("" if "," in word else f" (or {whole},0)")
    advice += " if the point separates thousands"
    if word.count(".") == 1 and "," not in word:
        advice += f", and {word.replace('.', ',')} if it is a decimal sign"
    return (
        f"{word!r} in {show_row(place)} has a point, and the decimal sign is ','. {advice}. If the column is "
        "not a number, declare it so: categories, dates, ids or drop."
    )
