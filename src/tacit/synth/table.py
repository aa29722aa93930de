"""A table's columns and the constraints between them, without its rows or their number."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from ..errors import BadData, BadParameter
from ..parameters import nearest, proposes_lines, to_key, to_toml
from ..parties.ledger import Spend
from . import constraints as rules
from .columns import DISCRETE, KINDS, Column, as_float, check_known, identifiers, scalar, seconds
from .constraints import Combinations, Constraint, Range
from .reading import find_date_format, is_medical_code

MIN_ROWS = 2  # one row has no variation; a generator could only copy it
ISO = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2})?)?")
ISO_FORMATS = {10: "%Y-%m-%d", 16: "%Y-%m-%d{}%H:%M", 19: "%Y-%m-%d{}%H:%M:%S"}
WORDS_OF_TEXT = 3  # nearly unique values with more words than this on average are free text
NEARLY_UNIQUE = 0.9  # share of distinct values above which a text column is no category


@dataclass(frozen=True)
class Table:
    """The columns in order, and the constraints.

    `Table.infer(frame)` infers it from a data frame; overrides replace what is inferred.
    """

    columns: tuple[Column, ...]
    constraints: tuple[Constraint, ...] = ()
    spent: tuple[Spend, ...] = ()  # what it cost to estimate domains privately

    def __post_init__(self) -> None:
        names = [c.name for c in self.columns]
        doubles = sorted({n for n in names if names.count(n) > 1})
        if doubles:
            raise BadData(f"the table has more than one column {doubles[0]!r}. Rename one of them.")
        for constraint in self.constraints:
            rules.check_columns(constraint, [c.name for c in self.modeled])
        grouped = [n for c in self.constraints if isinstance(c, Combinations) for n in c.columns]
        if len(set(grouped)) != len(grouped):
            raise BadParameter("a column is part of two Combinations constraints; combine them into one.")

    @classmethod
    def infer(
        cls,
        frame: pd.DataFrame,
        /,
        constraints: Sequence[Constraint] = (),
        columns: Mapping[str, str | Column] | None = None,
        **overrides: str | Column,
    ) -> Table:
        """Infer kinds and domains from the data.

        Override a column by name: `Table.infer(frame, zip="categorical", age=integer(0, 120))`, or, if a name
        is not a Python identifier, `columns={"zip code": "categorical"}`.
        """
        table = cls.infer_columns(frame, constraints, {**(columns or {}), **overrides})
        if not table.modeled:
            raise BadData(
                "every column is an identifier, so there is nothing to learn. Declare another kind for one "
                "of them, or add columns."
            )
        return table

    @classmethod
    def infer_columns(
        cls, frame: pd.DataFrame, constraints: Sequence[Constraint], known: Mapping[str, str | Column]
    ) -> Table:
        """Infer a table of which all columns may be identifiers; `known` columns override it."""
        check_frame(frame)
        names = [str(n) for n in frame.columns]
        check_known(known, names, "Table.infer: there is no column", error=BadParameter)
        inferred = [_column(frame.iloc[:, i], name, known.get(name)) for i, name in enumerate(names)]
        return cls(tuple(_apply_ranges(c, constraints, False) for c in inferred), tuple(constraints))

    @classmethod
    def declare(cls, columns: Mapping[str, Column], constraints: Sequence[Constraint] = ()) -> Table:
        """Build a table from declared columns, without any data; integers are sampled as int64."""
        named = [
            replace(c, name=name, dtype=c.dtype or ("int64" if c.kind == "integer" and not c.missing else ""))
            for name, c in columns.items()
        ]
        return cls(tuple(_apply_ranges(c, constraints, True) for c in named), tuple(constraints))

    @property
    def modeled(self) -> tuple[Column, ...]:
        """All columns except identifiers, in the order of the numbers that generators learn."""
        return tuple(c for c in self.columns if c.kind != "id")

    def column_index(self, name: str) -> int:
        """Return the index of a column among the modeled ones."""
        names = [c.name for c in self.modeled]
        check_known([name], names, "there is no modeled column", error=BadParameter)
        return names.index(name)

    def to_numbers(self, frame: pd.DataFrame) -> np.ndarray:
        """Convert the modeled columns to float64 [rows, columns], NaN where missing.

        Raises BadData for values outside a domain.
        """
        check_frame(frame)
        names = [str(n) for n in frame.columns]
        check_known((c.name for c in self.columns), names, "the table has no column")
        return np.column_stack([c.to_numbers(frame.iloc[:, names.index(c.name)]) for c in self.modeled])

    def fit_to_domain(self, x: np.ndarray) -> np.ndarray:
        """Clip and round numbers to the domains of their columns."""
        return np.column_stack([c.fit_to_domain(x[:, j]) for j, c in enumerate(self.modeled)])

    def to_frame(self, x: np.ndarray, seed: int = 0, first: int = 0) -> pd.DataFrame:
        """Convert numbers to a data frame with new identifiers.

        `first` is the number of rows generated before.
        """
        place = {c.name: j for j, c in enumerate(self.modeled)}
        return pd.DataFrame(
            {
                c.name: identifiers(c, len(x), seed, first)
                if c.kind == "id"
                else c.to_series(x[:, place[c.name]])
                for c in self.columns
            }
        )

    def resolve_constraints(self, x: np.ndarray) -> Table:
        """Check every constraint on the data; fill in combinations that were left open."""
        resolved: list[Constraint] = []
        for constraint in self.constraints:
            rules.check_holds(constraint, x, self)
            if isinstance(constraint, Combinations):
                at = [self.column_index(name) for name in constraint.columns]
                if constraint.allowed is None:
                    seen = np.unique(x[:, at], axis=0)
                    if 2 * len(seen) > len(x):
                        raise BadData(
                            f"{constraint!r}: {len(seen)} combinations in {len(x)} rows; sampling them would "
                            "copy rows. Give `allowed`, or remove the constraint."
                        )
                    constraint = Combinations(*constraint.columns, allowed=seen.tolist())
                elif not all(isinstance(v, float) for row in constraint.allowed for v in row):
                    columns = [self.modeled[j] for j in at]
                    constraint = Combinations(
                        *constraint.columns,
                        allowed=[
                            [float("nan") if v is None else c.to_number(v) for c, v in zip(columns, row)]
                            for row in constraint.allowed
                        ],
                    )
            resolved.append(constraint)
        return replace(self, constraints=tuple(resolved))

    @property
    def undeclared(self) -> list[str]:
        """Columns of which anything was inferred from the data; private generators refuse them."""
        return [c.name for c in self.columns if not c.declared]

    @property
    def open_columns(self) -> list[str]:
        """Declared columns without a complete domain; it can be estimated privately (`Domains`)."""
        return [c.name for c in self.columns if c.is_open]

    def check_unspent(self, instead: str) -> None:
        """Refuse domains that were estimated for single rows, where a guarantee is for all rows of one."""
        if self.spent:
            raise BadData(
                "the domains of the table were estimated with an ε for one row, and here ε is for a person "
                f"or an entity, whose rows may be many: their noise would hide none of them. {instead}"
            )

    def to_dict(self) -> dict[str, Any]:
        return {
            "columns": [c.to_dict() for c in self.columns],
            "constraints": [rules.to_dict(c) for c in self.constraints],
            **({"spent": [asdict(s) for s in self.spent]} if self.spent else {}),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Table:
        return cls(
            tuple(map(Column.from_dict, data["columns"])),
            tuple(map(rules.from_dict, data["constraints"])),
            tuple(Spend(**s) for s in data.get("spent", ())),
        )


def check_frame(frame: Any) -> None:
    """Raise BadData unless this is a data frame with columns and at least two rows."""
    check_columns(frame)
    if len(frame) < MIN_ROWS:
        raise BadData(
            f"the table has {len(frame)} row{'' if len(frame) == 1 else 's'}; at least {MIN_ROWS} are needed "
            "to learn from."
        )


def check_columns(frame: Any) -> None:
    """Raise BadData unless this is a data frame with columns."""
    if not isinstance(frame, pd.DataFrame):
        raise BadData(f"expected a pandas DataFrame, got {type(frame).__name__}. pandas.read_csv reads one.")
    if not len(frame.columns):
        raise BadData("the table has no columns.")


def _apply_ranges(column: Column, constraints: Sequence[Constraint], declares: bool) -> Column:
    """Turn Range constraints into the column's domain, so that they hold by construction.

    `declares`: a range with both bounds declares the domain. It does not where the column was inferred: its
    kind, its step and whether values may be missing were read off the rows.
    """
    for c in constraints:
        if isinstance(c, Range) and c.column == column.name:
            if not column.is_number:
                raise BadParameter(
                    f"{c!r}: {column.name!r} is {column.kind}; a Range needs a numeric or datetime column."
                )
            low, high = (
                end if bound is None else column.to_number(bound)
                for bound, end in ((c.low, column.low), (c.high, column.high))
            )
            # an inferred domain is checked here; a declared one is narrowed, and checked with the rows later
            ends = () if column.declared else (column.low, column.high)
            outside = [
                end
                for end in ends
                if end is not None and ((low is not None and end < low) or (high is not None and end > high))
            ]
            if outside:
                raise BadData(
                    f"the table violates {c!r}: it contains {column.format_value(outside[0])}. Correct the "
                    "rows, or widen the range."
                )
            column = replace(
                column,
                low=low,
                high=high,
                declared=column.declared or (declares and c.low is not None and c.high is not None),
            )
    return column


def _column(series: pd.Series, name: str, override: str | Column | None) -> Column:
    if isinstance(override, str) and override not in KINDS:
        raise BadParameter(
            f"Table.infer: {name}={override!r} is not a kind of column. {nearest(override, list(KINDS))}"
        )
    kind = override.kind if isinstance(override, Column) else override or _kind(series, name)
    written = override.time_format if isinstance(override, Column) else None
    inferred = replace(_infer_domain(series, name, kind, written), inferred=True)
    if not isinstance(override, Column):
        return inferred
    if override.declared:
        # a format of dates that was read off the rows is no part of the declaration
        read = not override.dtype and inferred.dtype.startswith("text:")
        return replace(override, name=name, dtype=override.dtype or inferred.dtype, inferred=read)
    known = {k: v for k, v in override.__dict__.items() if v not in (None, (), "") and v is not False}
    return replace(inferred, **{**known, "name": name, "missing": inferred.missing or override.missing})


def _kind(series: pd.Series, name: str) -> str:
    t, present = series.dtype, series.dropna()
    if isinstance(t, pd.CategoricalDtype):
        return "ordinal" if t.ordered else "categorical"
    if pd.api.types.is_bool_dtype(t):
        return "boolean"
    if pd.api.types.is_datetime64_any_dtype(t):
        return "datetime"
    if not len(present):
        return "categorical"
    other = (
        next((v for v in present if not isinstance(v, str | int | float | np.generic | datetime.date)), None)
        if pd.api.types.is_object_dtype(t)
        else None
    )
    if other is not None:
        raise BadData(
            f"the column {name!r} contains {type(other).__name__} objects. Split it into columns of strings "
            "or numbers, or drop it."
        )
    distinct = present.nunique()
    if pd.api.types.is_numeric_dtype(t):
        x = as_float(present, name)
        whole = bool((x == np.round(x)).all())
        if (
            whole
            and distinct == len(series) > WORDS_OF_TEXT
            and (np.ptp(x) == len(x) - 1 or re.fullmatch(r"(?i)(.*[ _-])?(id|key|uuid)", name))
        ):
            return "id"  # 1, 2, 3, …, or unique values under such a name
        return "integer" if whole and distinct > 2 else "categorical" if whole else "continuous"
    kinds = {str} if isinstance(t, pd.StringDtype) else {type(v) for v in present}
    if kinds <= {bool, np.bool_}:
        return "boolean"
    if not kinds <= {str}:
        return _mixed_kind(present, name)
    if all(ISO.fullmatch(v) for v in present.unique()) or find_date_format(present.unique(), name):
        return "datetime"
    if distinct <= max(NEARLY_UNIQUE * len(present), 20):
        return "categorical"
    if is_medical_code(present, name):
        return "categorical"
    if np.mean([len(str(v).split()) for v in present.iloc[:1000]]) > WORDS_OF_TEXT:
        raise BadData(
            f"the column {name!r} is free text, which no generator models, and which may name people. "
            f"{_propose_fake_text(name)}"
        )
    return "id"


def _propose_fake_text(name: str) -> str:
    """Say what to do about free text, so that it can be pasted whatever the column's name is."""
    if proposes_lines():
        fake = to_toml({"kind": "id", "faker": "sentence"})
        return (
            "Drop it with --drop, convert it to categories, or replace it by fake text, with this line in "
            f"the file of --columns: {to_key(name)} = {fake}"
        )
    return (
        f"Drop it with frame.drop(columns=[{name!r}]), convert it to categories, or replace it by fake text: "
        f"columns={{{name!r}: identifier(faker='sentence')}}."
    )


def _mixed_kind(present: pd.Series, name: str) -> str:
    """Return the kind of a column with numbers and strings: a category if its values are few."""
    values = {scalar(v) for v in present.unique()}
    if all(isinstance(v, int | float) for v in values):
        return "continuous" if len(values) > 2 else "categorical"
    if len(values) > 20 and len(values) > 0.1 * len(present):
        raise BadData(
            f"the column {name!r} contains numbers and strings "
            f"({next(v for v in values if isinstance(v, str))!r}). Replace the strings by missing values "
            "(pandas.to_numeric(…, errors='coerce')), or declare it as categorical."
        )
    return "categorical"


def _infer_domain(series: pd.Series, name: str, kind: str, written: str | None = None) -> Column:
    """Infer a column of this kind, with the domain of the data; `written` is the format of dates."""
    present = series.dropna()
    missing, dtype = bool(series.isna().any()), str(series.dtype)
    if kind == "id":
        return Column("id", name, dtype="" if dtype.startswith(("float", "object")) else dtype)
    if kind == "boolean":
        # not declared: whether values may be missing was inferred from the data
        return Column(
            "boolean", name, (False, True), missing=missing, dtype="object" if dtype == "object" else dtype
        )
    if kind in DISCRETE:
        if isinstance(series.dtype, pd.CategoricalDtype):
            return Column(
                kind, name, tuple(map(scalar, series.cat.categories)), missing=missing, dtype="category"
            )
        values = {scalar(v) for v in present.unique()}
        return Column(
            kind,
            name,
            tuple(sorted(values, key=lambda v: (isinstance(v, str), v))),
            missing=missing,
            dtype=dtype,
        )
    if kind == "datetime":
        if written is None and pd.api.types.is_object_dtype(series.dtype) | isinstance(
            series.dtype, pd.StringDtype
        ):
            written = find_date_format([v for v in present.unique() if isinstance(v, str)], name)
        x = seconds(present, name, written)
        if written is not None:
            dtype = f"text:{written}"
        elif not pd.api.types.is_datetime64_any_dtype(series.dtype):
            widths = {len(str(v)) for v in present.unique()[:1000]}
            between = "T" if "T" in str(present.iloc[0]) else " "
            dtype = "text:" + (
                ISO_FORMATS[widths.pop()].format(between)
                if len(widths) == 1 and widths <= set(ISO_FORMATS)
                else "%Y-%m-%d %H:%M:%S"
            )
        step = next((s for s in (86_400.0, 60.0, 1.0) if (x % s == 0).all()), None)
    else:
        x = as_float(present, name)
        dtype = "float64" if dtype == "object" else dtype
        step = (
            1.0
            if kind == "integer"
            else next(
                (
                    10.0**-p
                    for p in range(7)
                    if np.allclose(x, np.round(x, p), rtol=1e-9, atol=10.0 ** -(p + 6))
                ),
                None,
            )
        )
    return Column(
        kind,
        name,
        low=float(x.min()) if len(x) else None,
        high=float(x.max()) if len(x) else None,
        step=step,
        missing=missing,
        dtype=dtype,
    )
