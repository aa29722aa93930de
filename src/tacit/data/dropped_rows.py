"""Rows that a declaration leaves out by a value of one column: a line of totals, a test patient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..parameters import propose
from .cells import has_codes, with_columns, without_codes

if TYPE_CHECKING:
    from pandas import DataFrame, Series


def without_rows(frame: DataFrame, drop_rows: Mapping[str, Any], as_text: bool = False) -> DataFrame:
    """Return the table without the rows that have one of these values in a column.

    Columns whose remaining cells are all numbers become numbers: a word below them made them text. Not with
    `as_text`, where how one row is read must not depend on others.
    """
    left_out = np.zeros(len(frame), dtype=bool)
    for name, values in drop_rows.items():
        column = frame[name]
        left_out |= (column.notna() & without_codes(column, list(values)).isna()).to_numpy()
    if not left_out.any():
        return frame
    rest = frame[~left_out].reset_index(drop=True)
    return rest if as_text else with_columns(rest, {name: as_read(rest[name]) for name in drop_rows})


def as_read(column: Series) -> Series:
    """Return a column as a file without these rows has it: numbers, if all cells are."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column) or has_codes(column):
        return column
    numbers = pd.to_numeric(column, errors="coerce")
    return numbers if (numbers.notna() == column.notna()).all() else column


def check_drop_rows(drop_rows: Any) -> list[str]:
    """Return what is wrong with a declaration of rows to leave out: {column: [values]}."""
    fine = isinstance(drop_rows, Mapping) and all(
        isinstance(values, list | tuple) and values and all(_is_value(v) for v in values)
        for values in drop_rows.values()
    )
    if fine:
        return []
    example = propose("drop_rows", ["Total"], "patient")
    return [f"drop_rows is {drop_rows!r}; it must be a table by column, of lists of values, like {example}."]


def _is_value(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)
