"""One party's columns of a regression: numbers as they are, categories with one indicator for each value but
the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...data.cells import to_text
from ...data.identifiers import identify_rows, show_rows
from ...errors import BadData
from ...parameters import nearest

if TYPE_CHECKING:
    import pandas as pd

MOST = 50  # values of a category: more are names or codes of people


@dataclass(frozen=True)
class Design:
    """How a table becomes columns. `values`: the values of each category; a number has none."""

    columns: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]

    @property
    def terms(self) -> tuple[str, ...]:
        """The names of the columns, as formulas write them: town[T.b] is 1 where the town is b."""
        return tuple(
            term
            for name, values in zip(self.columns, self.values)
            for term in ([f"{name}[T.{v}]" for v in values[1:]] if values else [name])
        )

    @classmethod
    def infer(cls, frame: pd.DataFrame, who: str, categories: Sequence[str] = ()) -> Design:
        """Read numbers and categories off a table without missing values."""
        from pandas.api import types

        known = list(map(str, frame.columns))
        for name in categories:
            if name not in known:
                raise BadData(f"the table of {who!r} has no column {name!r}. {nearest(name, known)}")
        values: list[tuple[str, ...]] = []
        for name in known:
            column = frame[name]
            if name not in categories and (types.is_numeric_dtype(column) or types.is_bool_dtype(column)):
                values.append(())
                continue
            if types.is_datetime64_any_dtype(column):
                raise BadData(
                    f"the table of {who!r}: column {name!r} contains dates. Convert it to a number, like "
                    "days since a date, or leave it out."
                )
            found = tuple(sorted(set(to_text(column))))
            if len(found) < 2 or len(found) > MOST:
                raise BadData(
                    f"the table of {who!r}: column {name!r} has {len(found)} values in the shared rows; a "
                    f"category must have 2 to {MOST}. Merge values, or leave it out (drop)."
                )
            values.append(found)
        return cls(tuple(known), tuple(values))

    def encode(self, frame: pd.DataFrame, who: str) -> Tensor:
        """Return the columns of rows without missing values, float64."""
        missing = [name for name in self.columns if name not in frame.columns]
        if missing:
            raise BadData(f"the table of {who!r} has no column {', '.join(map(repr, missing))}.")
        parts: list[np.ndarray] = []
        for name, values in zip(self.columns, self.values):
            if not values:
                try:
                    parts.append(frame[name].to_numpy(dtype=np.float64)[:, None])
                except (TypeError, ValueError):
                    raise BadData(
                        f"the table of {who!r}: column {name!r} contains non-numeric values; it was a number "
                        "in training."
                    ) from None
                continue
            text = to_text(frame[name])
            new = sorted(set(text) - set(values))
            if new:
                raise BadData(
                    f"the table of {who!r}: column {name!r} has the value {new[0]!r:.60}, which no row of "
                    f"the fit had. Known: {', '.join(values)}. Leave these rows out."
                )
            parts.append((text[:, None] == np.array(values[1:], dtype=object)[None, :]).astype(np.float64))
        if not parts:
            return torch.zeros(len(frame), 0, dtype=torch.float64)
        return torch.from_numpy(np.ascontiguousarray(np.concatenate(parts, 1)))

    def to_dict(self) -> dict[str, Any]:
        return {"columns": list(self.columns), "values": [list(v) for v in self.values]}

    @classmethod
    def from_dict(cls, table: dict[str, Any]) -> Design:
        return cls(tuple(map(str, table["columns"])), tuple(tuple(map(str, v)) for v in table["values"]))


def take_complete_rows(
    frame: pd.DataFrame,
    who: str,
    id: str | None,
    duplicates: str = "refuse",
    needed: Sequence[str] | None = None,
) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows without missing values, one for each id, and notes about what was left out.

    `needed`: the columns that must have values; None: all.

    A row that a party leaves out is not in its set of ids, so nobody learns that it had a missing value.
    """
    notes = []
    complete = frame.dropna(subset=None if needed is None else list(needed))
    if len(complete) < len(frame):
        what = "have missing values" if needed is None else f"have no {' or no '.join(map(repr, needed))}"
        notes.append(
            f"{len(frame) - len(complete)} of {len(frame)} rows of {who!r} {what}; they were left out."
        )
    if id is not None:
        same = complete.duplicated()
        if bool(same.any()):
            notes.append(f"{int(same.sum())} rows of {who!r} repeat an earlier row; they were left out.")
            complete = complete[~same]
        digests, rows = identify_rows(complete[id].tolist(), f"the table of {who!r}")
        _, first = np.unique(digests, axis=0, return_index=True)
        again = sorted(set(range(len(rows))) - set(first.tolist()))
        if again and duplicates == "refuse":
            raise BadData(
                f"the table of {who!r}: {len(again)} rows have the id of an earlier row and other "
                f"values "
                f"({show_rows([int(rows[k]) for k in again])}), so it is ambiguous which row to use. "
                f"Keep one row "
                'for each id, or set duplicates = "first".'
            )
        if again:
            notes.append(f"{len(again)} rows of {who!r} have the id of an earlier row; the first was kept.")
        complete = complete.iloc[np.sort(rows[np.sort(first)])]
    return complete.reset_index(drop=True), notes
