"""The tables of the parties: checked, and as plain values that another process can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..errors import BadData
from ..parameters import bad, nearest

Frames = Mapping[str, pd.DataFrame]


def check_frames(fed: Any, owner: str, least: int = 1) -> dict[str, pd.DataFrame]:
    """Return the parties' tables, or raise an error that names all problems."""
    if not isinstance(fed, Mapping) or not all(isinstance(frame, pd.DataFrame) for frame in fed.values()):
        raise bad(
            owner, "fed", type(fed).__name__, "the parties' tables by name, like {'north': DataFrame, …}"
        )
    frames = dict(fed)
    if len(frames) < least:
        raise bad(
            owner,
            "fed",
            list(frames),
            f"at least {least} parties" + (": a sum of one party is its own" if least == 2 else ""),
        )
    problems = []
    for name, frame in frames.items():
        if not isinstance(name, str) or not name:
            problems.append(f"{name!r}: a party's name is a word")
        twice = frame.columns[frame.columns.duplicated()].tolist()
        if twice:
            problems.append(f"{name!r}: column {twice[0]!r} occurs twice")
    if problems:
        raise BadData(f"{owner}: " + "; ".join(problems) + ".")
    return frames


def check_columns(frame: pd.DataFrame, columns: list[str], who: str) -> None:
    """Raise unless a party's table has these columns. All that are missing are named."""
    missing = [c for c in columns if c not in frame.columns]
    if missing:
        raise BadData(
            f"the table of {who!r} has no column {', '.join(map(repr, missing))}. "
            f"{nearest(str(missing[0]), [str(c) for c in frame.columns])}",
            outside=f"its table has no column {', '.join(map(repr, missing))} of the agreed job",
        )


def to_plain(frame: pd.DataFrame) -> dict[str, Any]:
    """Return a table as plain values: a tensor for numbers and truth values, a list of texts otherwise."""
    return {str(name): _column_to_plain(frame[name]) for name in frame.columns}


def _column_to_plain(column: pd.Series) -> Any:
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iufb":
        return torch.from_numpy(column.to_numpy(copy=True))
    if pd.api.types.is_bool_dtype(column.dtype):  # with missing values
        return {"bool": [None if missing else bool(v) for v, missing in zip(column, column.isna())]}
    if pd.api.types.is_numeric_dtype(column.dtype):  # a nullable or Arrow type
        return torch.from_numpy(column.to_numpy(dtype=np.float64, na_value=np.nan, copy=True))
    return [
        None if missing else v if isinstance(v, str) else str(v) for v, missing in zip(column, column.isna())
    ]


def from_plain(table: Mapping[str, Any]) -> pd.DataFrame:
    """Return the table that `to_plain` described."""
    columns = {}
    for name, value in table.items():
        if isinstance(value, torch.Tensor):
            columns[name] = pd.Series(value.numpy())
        elif isinstance(value, dict):
            columns[name] = pd.Series(value["bool"], dtype="boolean")
        else:
            columns[name] = pd.Series(value, dtype=object)
    return pd.DataFrame(columns)
