"""The labels of a table: a number to predict, or classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadData, BadParameter
from ..parameters import bad
from .cells import show_row, to_text

if TYPE_CHECKING:
    from pandas import DataFrame, Series

DROP_LABEL = "Fill or drop them first, or leave them out with missing_label='drop'."


def read_labels(
    name: str, label: str, frame: DataFrame, extra: DataFrame, options: Mapping[str, Any], notes: list[str]
) -> tuple[np.ndarray, list[str] | None]:
    """Return the labels of all rows, and the declared names of the classes (None: not declared)."""
    import pandas as pd

    regression, names = options["regression"], options["labels"]
    if names:
        if regression:
            raise BadParameter(f"{name}: both labels and regression=True are given. Leave one of them out.")
        text = np.concatenate([to_text(t[label]).astype(str) for t in (frame, extra) if len(t)])
        for table in (frame, extra):
            to_target(name, label, table[label].astype(object), False)  # refuses missing labels
        unknown = sorted(set(text.tolist()) - set(names))
        if unknown or len(names) < 2 or len(set(names)) < len(names):
            raise BadData(
                f"{name}: labels is {names!r}; it must be at least two different classes, and all that the "
                f"column {label!r} has" + (f", {unknown[0]!r} too." if unknown else ".")
            )
        place = {value: k for k, value in enumerate(names)}
        return np.array([place[value] for value in text], dtype=np.int64), list(names)
    is_number = is_regression(name, label, pd.concat([frame[label], extra[label]]), regression)
    if is_number and regression is None:
        notes.append(
            f"The label {label!r} is a number with more than two values, so this is a regression. If its "
            "values are classes, pass regression=False."
        )
    parts = [to_target(name, label, t[label], is_number) for t in (frame, extra) if len(t)]
    return np.concatenate(parts), None


def is_regression(name: str, label: str, column: Series, regression: bool | None = None) -> bool:
    """Whether the label is a number to predict: as declared, or if it is one with more than two values."""
    import pandas as pd

    if regression is not None and not isinstance(regression, bool):
        raise bad(name, "regression", regression, "True, False or None (numbers with more than two values)")
    if regression is not None:
        return regression
    number = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    return bool(number and column.nunique() > 2)


def to_target(
    name: str, label: str, column: Series, regression: bool, remedy: str = DROP_LABEL
) -> np.ndarray:
    """Return the labels: integers or text for classes, float64 for a regression.

    `remedy` says what to do about missing labels.
    """
    import pandas as pd

    if column.isna().any():
        first = int(column.isna().to_numpy().argmax())
        raise BadData(
            f"{name}: {int(column.isna().sum())} rows have no {label!r}, the first is {show_row(first)}. "
            f"{remedy}"
        )
    number = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    if regression:
        if not number:
            raise BadData(
                f"{name}: the label {label!r} contains text, e.g. {str(column.iloc[0])!r}; a regression "
                "needs numbers. Leave regression=False."
            )
        return np.asarray(column.to_numpy(dtype=np.float64))
    if number:
        values = column.to_numpy(dtype=np.float64)
        if (values != np.floor(values)).any():
            raise BadData(
                f"{name}: the label {label!r} has fractions, e.g. {values[values != np.floor(values)][0]:g}. "
                "If it is a quantity to predict, pass regression=True."
            )
        return np.asarray(values.astype(np.int64))
    return to_text(column).astype(str)
