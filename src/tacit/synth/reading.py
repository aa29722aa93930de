"""How columns are read: dates, codes of diagnoses, probable ids, and a table that says so before a fit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..data.sentinels import find_sentinels
from ..errors import BadData

if TYPE_CHECKING:
    from .table import Table

# day and month in either order, then the year, then the time
DATE = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})(?:([ T])\d{2}:\d{2}(:\d{2})?)?")
# three characters of ICD-10 or ICD-9, and what follows the point
ICD = re.compile(r"[A-Z]\d[0-9A-Z](\.?[0-9A-Z]{1,4})?|(\d{3}|[EV]\d{2,3})(\.\d{1,2})?")
CODE_NAME = re.compile(r"(?i).*(icd|diag|dx).*")
ID_NAME = re.compile(
    r"(?i)(.*[ _-])?(id|nr|nbr|no|num|number|key|uuid|mrn|ssn|patient|person|customer|account|member"
    r"|individual|subject|respondent|participant|household|client|user|employee|pupil|student)"
)
FEWEST_IDS = 50  # different values; with fewer, categories of a small table look the same


def find_date_format(values: Sequence[Any], name: str) -> str | None:
    """The format of dates that are not written as in ISO 8601, None if these are not dates.

    A number above 12 tells which of day and month is first; with points, it is the day. Raises BadData if
    nothing tells.
    """
    if not len(values) or not isinstance(values[0], str) or not DATE.fullmatch(values[0]):
        return None
    found = [DATE.fullmatch(v) if isinstance(v, str) else None for v in values]
    if not all(found):
        return None
    parts = [m for m in found if m is not None]
    signs = {(m[2], m[5], bool(m[6])) for m in parts}
    if len(signs) != 1:
        return None
    sign, between, has_seconds = signs.pop()
    first, second = max(int(m[1]) for m in parts), max(int(m[3]) for m in parts)
    if first > 12 and second > 12:
        return None
    if sign != "." and first <= 12 and second <= 12:
        raise BadData(
            f"the column {name!r} has dates like {values[0]!r}, and no value tells whether the day or the "
            f"month is first. Declare it: timestamp(format='%d{sign}%m{sign}%Y') or "
            f"timestamp(format='%m{sign}%d{sign}%Y')."
        )
    order = f"%m{sign}%d" if second > 12 else f"%d{sign}%m"
    time = "" if between is None else between + ("%H:%M:%S" if has_seconds else "%H:%M")
    return f"{order}{sign}%Y{time}"


def is_medical_code(present: pd.Series, name: str) -> bool:
    """Whether nearly unique text is a code of diagnoses, and no id.

    Nearly all values have the form of ICD-9 or ICD-10, and some occur twice or the name says so.
    """
    values = present.unique()
    if len(values) == len(present) and not CODE_NAME.fullmatch(name):
        return False
    return float(np.mean([bool(ICD.fullmatch(str(v))) for v in values])) > 0.95


def is_repeated_id(present: pd.Series, name: str) -> bool:
    """Whether an integer or text column may be an id of people with several rows."""
    if not ID_NAME.fullmatch(name):
        return False
    if pd.api.types.is_float_dtype(present.dtype) and not (present % 1 == 0).all():
        return False  # whole numbers are often stored as floats; others are no ids
    counts = present.value_counts().to_numpy()
    few = int(counts[counts < 10].sum())
    return len(counts) >= FEWEST_IDS and 2 * few >= len(present) and len(counts) < len(present)


def describe(frame: pd.DataFrame, table: Table, floor: int = 10) -> pd.DataFrame:
    """How each column was read: its kind, its values, and what deserves a look before a generator is fitted.

    `rare` counts values that fewer than `floor` rows share; for numbers, the rows beyond the cut-off.
    """
    names = [str(n) for n in frame.columns]
    rows = []
    for c in table.columns:
        series = frame.iloc[:, names.index(c.name)]
        present = series.dropna()
        counts = present.value_counts()
        notes = []
        if c.kind == "id":
            rare, values = 0, f"{len(counts):,} different"
            notes.append("an id: not learned, replaced by new ones")
        elif c.is_number:
            x = np.sort(c.to_numbers_unchecked(present))
            low, high = (x[min(floor - 1, len(x) - 1)], x[max(-floor, -len(x))]) if len(x) else (0.0, 0.0)
            rare = int(((x < low) | (x > high)).sum())
            values = f"{c.format_value(x[0])} to {c.format_value(x[-1])}" if len(x) else "none"
            if c.time_format:
                notes.append(f"dates written as {c.time_format}")
            elif codes := find_sentinels(present):
                notes.append(
                    f"{', '.join(map(str, codes))}: far from the other values; leave the cells empty if it "
                    "means missing"
                )
        else:
            rare, values = int((counts < floor).sum()), f"{len(counts):,} categories"
            if not len(counts):
                notes.append("no row has a value: drop the column")
            if rare > len(counts) / 2 and len(counts) >= FEWEST_IDS:
                notes.append("most categories are rare: merge some, or drop the column")
        if is_repeated_id(present, c.name):
            notes.append(
                f"may be an id with repeats ({len(counts):,} different in {len(present):,} rows): give "
                "person="
            )
        rows.append(
            {
                "column": c.name,
                "kind": c.kind,
                "values": values,
                "missing": int(series.isna().sum()),
                "rare": rare,
                "note": "; ".join(notes),
            }
        )
    return pd.DataFrame(rows).set_index("column")
