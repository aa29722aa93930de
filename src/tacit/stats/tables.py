"""The tables of the parties: checked, and as plain values that another process can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..data.cells import without_codes
from ..data.federation import Federation, Holdings
from ..data.skews import ByColumn
from ..errors import BadData, BadParameter
from ..parameters import bad, nearest

Frames = Mapping[str, pd.DataFrame]


def check_frames(fed: Any, owner: str, least: int = 1) -> dict[str, pd.DataFrame]:
    """Return the parties' tables, or raise an error that names all problems.

    `fed` is {party: DataFrame}, or a federation that was made from tables; see `tables_of`.
    """
    if isinstance(fed, Federation):
        fed = tables_of(fed, owner)
    if not isinstance(fed, Mapping) or not all(isinstance(frame, pd.DataFrame) for frame in fed.values()):
        raise bad(
            owner,
            "fed",
            type(fed).__name__,
            "the parties' tables by name, like {'north': DataFrame, …}, or a federation made from tables",
        )
    frames = dict(fed)
    if len(frames) < least:
        raise bad(
            owner,
            "fed",
            list(frames),
            "at least one party"
            if least == 1
            else f"at least {least} parties: a sum of one party is its own",
        )
    problems = []
    for name, frame in frames.items():
        if not isinstance(name, str) or not name:
            problems.append(f"{name!r}: a party's name is a word")
        numbers = [c for c in frame.columns if not isinstance(c, str)]
        if numbers:
            problems.append(
                f"{name!r}: column {numbers[0]!r} has no text as its name (frame.columns.map(str) makes one)"
            )
        texts = frame.columns.map(str)  # a number and a text may be the same name
        twice = texts[texts.duplicated()].tolist()
        if twice:
            problems.append(f"{name!r}: column {twice[0]!r} occurs twice")
    if problems:
        raise BadData(f"{owner}: " + "; ".join(problems) + ".")
    return frames


def check_names(owner: str, **columns: Any) -> None:
    """Raise unless each of these is the name of a column; None is allowed for names that end with `_`."""
    wrong = [
        str(bad(owner, name.rstrip("_"), value, "the name of a column"))
        for name, value in columns.items()
        if not (isinstance(value, str) and value) and not (name.endswith("_") and value is None)
    ]
    if wrong:
        raise BadParameter("\n".join(wrong))


def check_levels(owner: str, levels: Mapping[str, Any], columns: list[str]) -> None:
    """Raise if levels are declared of a column that the query does not use: a wrong name, mostly."""
    unknown = [name for name in levels if name not in columns]
    if unknown:
        raise bad(
            owner, "levels", unknown, "levels of columns that the query uses", nearest(unknown[0], columns)
        )


def to_columns(owner: str, strata: Any) -> tuple[str, ...]:
    """Return one name or several names of columns as a tuple."""
    names = (strata,) if isinstance(strata, str) else strata or ()
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise bad(owner, "strata", strata, "the name of a column, or a list of them")
    return tuple(names)


def tables_of(fed: Federation, owner: str) -> dict[str, pd.DataFrame]:
    """Return the raw rows of a federation's parties, training and held-out, in the order of the table.

    The global test set is left out, because it is the server's and belongs to no party: make the federation
    with test_fraction=0 to have statistics of all rows. The column that the parties were made from is not in
    their tables, because its values are the parties' names. Codes declared as missing are missing values.
    """
    table = None if fed.source is None else fed.source.table
    if table is None:
        raise BadData(
            f"{owner}: the federation {fed.name!r} has no raw tables: it was made from arrays, is one "
            "party's part, or rows were left out. Statistics need the columns before they are encoded. Make "
            "it from tables with all their rows (data.from_frames(…), data.from_csv(…).by(…)), or pass the "
            "tables: {'north': DataFrame, …}."
        )
    frame = table.frame
    if isinstance(fed.skew, ByColumn):
        frame = frame.drop(columns=fed.skew.column, errors="ignore")
    coded = {c: v for c, v in table.recipe.missing_codes.items() if c in frame.columns}
    frame = frame.assign(**{c: without_codes(frame[c], codes) for c, codes in coded.items()})
    rows = Holdings.from_owners(np.arange(len(frame)), fed.owner.numpy(), len(fed))
    return {name: frame.iloc[rows.of(k).numpy()].reset_index(drop=True) for k, name in enumerate(fed.parties)}


def check_columns(frame: pd.DataFrame, columns: list[str], who: str) -> None:
    """Raise unless a party's table has these columns. All that are missing are named."""
    missing = [c for c in columns if c not in frame.columns]
    if missing:
        owner = who if who == "this party" else repr(who)  # a party's own program does not know its name
        numbers = [c for c in frame.columns if not isinstance(c, str) and str(c) in missing]
        if numbers:
            raise BadData(
                f"the table of {owner} has a column whose name is not a text: {numbers[0]!r}. Rename it: "
                "frame.rename(columns=str).",
                outside=f"its table has no column {str(numbers[0])!r} of the agreed job",
            )
        raise BadData(
            f"the table of {owner} has no column {', '.join(map(repr, missing))}. "
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
