"""Constraints that every synthetic row satisfies.

    Range("age", 18, 120)                  by construction: values are clipped to the domain
    Ordered("admitted", "discharged")      by rejection: rows that violate it are drawn again
    Unique("email", "phone")               by rejection, over the whole sample
    Combinations("city", "country")        by construction: the columns are learned and drawn as one

A constraint that the real table violates is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadData, BadParameter
from .columns import check_known

if TYPE_CHECKING:
    from .table import Table


@dataclass(frozen=True)
class Range:
    """`low` ≤ column ≤ `high`; either bound may be None."""

    column: str
    low: Any = None
    high: Any = None

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)


@dataclass(frozen=True)
class Ordered:
    """`small` ≤ `large` where both are present; < if `strictly`."""

    small: str
    large: str
    strictly: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.small, self.large)

    def holds(self, x: np.ndarray, table: Table) -> np.ndarray:
        """Return, for each row, whether the constraint holds."""
        a, b = (x[:, table.column_index(name)] for name in self.columns)
        return np.asarray(np.isnan(a) | np.isnan(b) | (a < b if self.strictly else a <= b))


@dataclass(frozen=True, init=False)
class Unique:
    """No two rows have equal values in all of these columns.

    Rows with a missing value in one of them are exempt, as in SQL.
    """

    columns: tuple[str, ...]

    def __init__(self, *columns: str):
        object.__setattr__(self, "columns", tuple(columns))

    def keys(self, x: np.ndarray, table: Table) -> tuple[np.ndarray, np.ndarray]:
        """Return (one bytes key per row, whether the row counts)."""
        part = x[:, [table.column_index(name) for name in self.columns]]
        return row_keys(part), np.asarray(~np.isnan(part).any(axis=1))


def row_keys(x: np.ndarray) -> np.ndarray:
    """Return each row as bytes, so that equal rows have equal keys."""
    x = np.ascontiguousarray(x + 0.0)  # −0 becomes 0
    return np.asarray(x.view(f"V{x.shape[1] * 8}").ravel())


@dataclass(frozen=True, init=False)
class Combinations:
    """Only these combinations of values occur.

    `allowed` lists them in the order of the columns; by default, those of the data.
    """

    columns: tuple[str, ...]
    allowed: tuple[tuple[float, ...], ...] | None = None  # as column numbers, once the table is known

    def __init__(self, *columns: str, allowed: Any = None):
        object.__setattr__(self, "columns", tuple(columns))
        object.__setattr__(self, "allowed", None if allowed is None else tuple(map(tuple, allowed)))


Constraint = Range | Ordered | Unique | Combinations


def check_columns(constraint: Constraint, names: list[str]) -> None:
    """Raise BadParameter if a constraint names an unknown column or too few columns."""
    check_known(
        constraint.columns, names, f"{constraint!r} names", ", which is not a modeled column", BadParameter
    )
    if isinstance(constraint, Combinations) and len(constraint.columns) < 2:
        raise BadParameter(f"{constraint!r}: a combination needs at least two columns.")
    if isinstance(constraint, Unique) and not constraint.columns:
        raise BadParameter("Unique(): give at least one column.")


def check_holds(constraint: Constraint, x: np.ndarray, table: Table) -> None:
    """Raise BadData, with the number of rows, if the real table violates the constraint."""
    broken = 0  # a range is checked with its column, combinations when rows are encoded
    if isinstance(constraint, Ordered):
        broken = int((~constraint.holds(x, table)).sum())
    elif isinstance(constraint, Unique):
        keys, counts = constraint.keys(x, table)
        broken = int(counts.sum() - len(np.unique(keys[counts])))
    if broken:
        raise BadData(
            f"the table violates {constraint!r} in {broken} of {len(x)} rows. Correct those rows, or remove "
            "the constraint."
        )


def to_dict(constraint: Constraint) -> dict[str, Any]:
    if isinstance(constraint, Range):
        return {"name": "Range", "column": constraint.column, "low": constraint.low, "high": constraint.high}
    if isinstance(constraint, Ordered):
        return {"name": "Ordered", "columns": list(constraint.columns), "strictly": constraint.strictly}
    if isinstance(constraint, Unique):
        return {"name": "Unique", "columns": list(constraint.columns)}
    # JSON has no NaN: a missing value in a combination is null
    allowed = constraint.allowed and [[None if v != v else v for v in row] for row in constraint.allowed]
    return {"name": "Combinations", "columns": list(constraint.columns), "allowed": allowed}


def from_dict(data: dict[str, Any]) -> Constraint:
    match data["name"]:
        case "Range":
            return Range(data["column"], data["low"], data["high"])
        case "Ordered":
            return Ordered(data["columns"][0], data["columns"][1], strictly=data["strictly"])
        case "Unique":
            return Unique(*data["columns"])
    allowed = data["allowed"]
    return Combinations(
        *data["columns"],
        allowed=allowed and [[float("nan") if v is None else v for v in row] for row in allowed],
    )
