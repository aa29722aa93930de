"""One table from those of all parties, checked at once."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import BadData
from ..parameters import nearest, propose

if TYPE_CHECKING:
    from pandas import DataFrame, Series

PARTY = "party"  # the column that says which table a row came from


def name_files(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return a name for each file: its own without endings, or with its folder where two are the same."""
    names = [Path(p).name.split(".")[0] for p in paths]
    if len(set(names)) < len(names):
        names = [f"{Path(p).resolve().parent.name}/{n}" for p, n in zip(paths, names)]
    if len(set(names)) < len(names):
        raise BadData(f"two of the files {', '.join(map(str, paths))} have the same name. Rename one.")
    return names


def join_tables(
    frames: Mapping[str, DataFrame], drop: Sequence[str] = (), declared: Sequence[str] = ()
) -> DataFrame:
    """Return the rows of all parties' tables, with a column `PARTY`; all problems in one error.

    Columns in `drop` may be missing from some tables; those in `declared` may have text in some of them and
    numbers in others, because it is declared what they mean.
    """
    import pandas as pd

    frames = {party: frame.rename(columns=str) for party, frame in frames.items()}
    problems = [f"{p}: the table has no rows." for p, frame in frames.items() if not len(frame)]
    problems += [f"{p}: the name of a party may not be empty." for p in frames if not p.strip()]
    problems += [
        f"{p}: the table has a column {PARTY!r}, the name that tells parties apart. Rename it."
        for p, frame in frames.items()
        if PARTY in frame.columns
    ]
    columns = list(dict.fromkeys(c for frame in frames.values() for c in frame.columns))
    kept = [c for c in columns if c not in drop or all(c in frame.columns for frame in frames.values())]
    for column in kept:
        have = [party for party, frame in frames.items() if column in frame.columns]
        absent = [party for party in frames if party not in have]
        problems += [
            f"{party}: the table has no column {column!r}, which {have[0]} has. "
            f"{nearest(column, list(frames[party].columns))} Or leave it out with "
            f"{propose('drop', [column])}."
            for party in absent
        ]
        kinds = {party: kind for party in have if (kind := _is_text(frames[party][column])) is not None}
        texts, numbers = ([p for p, k in kinds.items() if k is is_text] for is_text in (True, False))
        if texts and numbers and column not in declared:
            problems.append(
                f"the column {column!r} has text at {texts[0]} and numbers at {numbers[0]}. Write both "
                f"alike, declare what the text means with missing_codes, or declare "
                f"{propose('categories', [column])}."
            )
    if problems:
        raise BadData("\n".join(problems))
    parts = [frame[kept].assign(**{PARTY: party}) for party, frame in frames.items()]
    return pd.concat(parts, ignore_index=True)


def _is_text(column: Series) -> bool | None:
    """Whether a column has text; None if it has no values."""
    import pandas as pd

    return None if column.isna().all() else not pd.api.types.is_numeric_dtype(column)
