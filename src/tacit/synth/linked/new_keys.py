"""New keys for synthetic rows, none of which is a key of the real table.

The columns of a foreign key get the parent's new key. Of the other columns of a primary key

    numbers      count on from the next power of ten (real keys up to 4,711: 10,001, 10,002, …), which reveals
                 the length of the largest key and nothing else. In a key that contains a parent's key they
                 count the children, if they do so in the real table (visit 1, 2, 3 of a patient)
    text         is the name of the table and a number
    other values (dates, repeated categories, such as the subject in (student, subject)) are attributes: they
                 are learned, and drawn so that the key stays unique
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from .keys import MAX_INTEGER, Schema


def plan_key(schema: Schema, table: str, frame: pd.DataFrame, link: np.ndarray | None) -> dict[str, Any]:
    """Decide how the own columns of a primary key are generated: {column: rule}.

    Columns without a rule are learned. `link` is the parent row of each row.
    """
    columns = schema.primary.get(table, ())
    inherited = {c for k in schema.foreign[table] for c in k.columns}
    own = [c for c in columns if c not in inherited]
    if not own:
        return {}
    column = own[-1]
    has_parent_key = bool(set(columns) & inherited) and link is not None
    values = frame[column]
    if has_parent_key:
        start = _counts_from(values, link, len(own)) if _is_whole(values) else None
        if start is not None:
            return {column: {"how": "count", "start": start}}
        if values.duplicated().any() or not (_is_whole(values) or _is_text(values)):
            return {}
    elif len(columns) > 1 and not _is_whole(values):
        return {}
    if _is_whole(values):
        least, most = int(values.min()), int(values.max())
        start = 10 ** len(str(max(most, 1)))
        if start < MAX_INTEGER:
            return {column: {"how": "number", "start": start, "sign": 1}}
        if least >= 0:
            return {column: {"how": "number", "start": 0, "sign": -1}}
    prefix, texts = f"{table}-", values.astype(str)
    while texts.str.startswith(prefix).any():
        prefix = f"new-{prefix}"
    return {column: {"how": "text", "prefix": prefix}}


def _is_whole(values: pd.Series) -> bool:
    return bool(pd.api.types.is_integer_dtype(values.dtype))


def _is_text(values: pd.Series) -> bool:
    return bool(pd.api.types.is_object_dtype(values.dtype) or pd.api.types.is_string_dtype(values.dtype))


def _counts_from(values: pd.Series, link: np.ndarray | None, own: int) -> int | None:
    """Return the first number if the column counts the children of every parent, else None."""
    if own > 1 or link is None:
        return None
    x = values.to_numpy(np.int64)
    frame = pd.DataFrame({"parent": link, "x": x}).groupby("parent")["x"].agg(["min", "max", "size"])
    start = int(frame["min"].iloc[0])
    dense = (frame["min"] == start) & (frame["max"] - frame["min"] + 1 == frame["size"])
    return start if bool(dense.all()) else None


def make_key(rule: Mapping[str, Any], n: int, rank: np.ndarray | None) -> np.ndarray:
    """Return the new values of one column; `rank` numbers the children of each parent from 0."""
    if rule["how"] == "count":
        assert rank is not None
        return np.asarray(rule["start"] + rank, dtype=np.int64)
    if rule["how"] == "number":
        return np.asarray(rule["start"] + np.arange(1, n + 1) * rule["sign"], dtype=np.int64)
    return np.array([f"{rule['prefix']}{i}" for i in range(1, n + 1)], dtype=object)
