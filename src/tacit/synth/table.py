"""A table: its columns, and what must hold between them. It holds no rows and does not know how many there
were.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadData, BadParameter
from ..parameters import nearest
from . import constraints as rules
from .columns import KINDS, LISTED, Column, as_float, scalar, seconds
from .constraints import Combinations, Constraint, Range

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from .encode import Cells

LEAST_ROWS = 2  # one row says nothing about how values vary; a generator of it could only repeat it
ISO = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2})?)?")
ISO_FORMATS = {10: "%Y-%m-%d", 16: "%Y-%m-%d{}%H:%M", 19: "%Y-%m-%d{}%H:%M:%S"}
WORDS_OF_TEXT = 3  # values of more words than this on average, nearly all different, are sentences
NEARLY_ALL = 0.9  # of the values differ: no category is learnt from values seen once


@dataclass(frozen=True)
class Table:
    """The columns in order, and the constraints. `Table.infer(frame)` reads it off a data frame; overrides
    say what you know better.
    """

    columns: tuple[Column, ...]
    constraints: tuple[Constraint, ...] = ()

    def __post_init__(self) -> None:
        names = [c.name for c in self.columns]
        doubles = sorted({n for n in names if names.count(n) > 1})
        if doubles:
            raise BadData(f"the table has more than one column {doubles[0]!r}. Rename one of them.")
        for constraint in self.constraints:
            rules.known_columns(constraint, [c.name for c in self.modelled])
        grouped = [n for c in self.constraints if isinstance(c, Combinations) for n in c.columns]
        if len(set(grouped)) != len(grouped):
            raise BadParameter("a column stands in two Combinations; put all its columns into one.")

    @classmethod
    def infer(
        cls,
        frame: DataFrame,
        /,
        constraints: Sequence[Constraint] = (),
        columns: Mapping[str, str | Column] | None = None,
        **overrides: str | Column,
    ) -> Table:
        """Read kinds and domains off the data. Override a column by name: `Table.infer(frame,
        zip="categorical", age=integer(0, 120))`, or, where a name is no Python word, `columns={"zip code":
        "categorical"}`.
        """
        check_frame(frame)
        told = {**(columns or {}), **overrides}
        names = [str(n) for n in frame.columns]
        for name in told:
            if name not in names:
                raise BadParameter(f"Table.infer: there is no column {name!r}. {nearest(str(name), names)}")
        made = [_column(frame.iloc[:, i], name, told.get(name)) for i, name in enumerate(names)]
        table = cls(tuple(_ranged(c, constraints) for c in made), tuple(constraints))
        if not table.modelled:
            raise BadData(
                "every column is an identifier, so there is nothing to learn. Declare one otherwise, or "
                "give a table with more columns."
            )
        return table

    @classmethod
    def declare(cls, columns: Mapping[str, Column], constraints: Sequence[Constraint] = ()) -> Table:
        """Columns as you write them down, with nothing read off any data; whole numbers come back as such."""
        made = [
            replace(c, name=name, dtype=c.dtype or ("int64" if c.kind == "integer" and not c.missing else ""))
            for name, c in columns.items()
        ]
        return cls(tuple(_ranged(c, constraints) for c in made), tuple(constraints))

    @property
    def modelled(self) -> tuple[Column, ...]:
        """All but the identifiers: the columns of the numbers that generators learn."""
        return tuple(c for c in self.columns if c.kind != "id")

    def at(self, name: str) -> int:
        """The place of a column among the modelled ones."""
        names = [c.name for c in self.modelled]
        if name not in names:
            raise BadParameter(f"there is no column {name!r} to be modelled. {nearest(str(name), names)}")
        return names.index(name)

    def numbers(self, frame: DataFrame) -> np.ndarray:
        """The modelled columns as float64 [rows, columns]: codes, numbers, seconds; NaN where missing. Values
        outside a domain are refused.
        """
        check_frame(frame)
        names = [str(n) for n in frame.columns]
        for c in self.columns:
            if c.name not in names:
                raise BadData(f"the table has no column {c.name!r}. {nearest(c.name, names)}")
        return np.column_stack([c.numbers(frame.iloc[:, names.index(c.name)]) for c in self.modelled])

    def tidied(self, x: np.ndarray) -> np.ndarray:
        """Numbers into their domains and onto their grids."""
        return np.column_stack([c.tidied(x[:, j]) for j, c in enumerate(self.modelled)])

    def frame(self, x: np.ndarray, seed: int = 0, first: int = 0) -> DataFrame:
        """Numbers as a data frame, with identifiers made anew; `first` is how many rows came before."""
        import pandas as pd

        from .fakes import identifiers

        place = {c.name: j for j, c in enumerate(self.modelled)}
        return pd.DataFrame(
            {
                c.name: identifiers(c, len(x), seed, first)
                if c.kind == "id"
                else c.series(x[:, place[c.name]])
                for c in self.columns
            }
        )

    def settled(self, x: np.ndarray) -> Table:
        """With combinations that were left open filled in from the data, and every constraint checked on
        it.
        """
        made: list[Constraint] = []
        for constraint in self.constraints:
            rules.held_by_data(constraint, x, self)
            if isinstance(constraint, Combinations):
                at = [self.at(name) for name in constraint.columns]
                if constraint.allowed is None:
                    seen = np.unique(x[:, at], axis=0)
                    if 2 * len(seen) > len(x):
                        raise BadData(
                            f"{constraint!r}: {len(seen)} combinations in {len(x)} rows; drawing from them "
                            "would copy rows. "
                            "Give `allowed`, or leave the constraint out."
                        )
                    constraint = Combinations(*constraint.columns, allowed=seen.tolist())
                else:
                    columns = [self.modelled[j] for j in at]
                    if not all(isinstance(v, float) for row in constraint.allowed for v in row):
                        constraint = Combinations(
                            *constraint.columns,
                            allowed=[
                                [float("nan") if v is None else c.number_of(v) for c, v in zip(columns, row)]
                                for row in constraint.allowed
                            ],
                        )
            made.append(constraint)
        return replace(self, constraints=tuple(made))

    @property
    def undeclared(self) -> list[str]:
        """Columns whose domain was read off the data: no private generator may use them."""
        return [c.name for c in self.modelled if not c.declared]

    def discretise(self, frame: DataFrame | None = None, bins: int = 32) -> Cells:
        """Every column as a few cells. With a frame the cells follow its quantiles. Without one they come
        from the declared domains alone, numbers in `bins` cells of equal width, and a column that is not
        declared is refused: that is the private way. What is cut are the variables of `Layout(table)`:
        `cells.encode(layout.forward(table.numbers(frame)))`.
        """
        from .encode import Cells, Layout

        if frame is not None:
            x = self.numbers(frame)
            layout = Layout(self.settled(x))
            return Cells.of_data(layout.variables, layout.forward(x), bins)
        if self.undeclared:
            raise BadData(
                f"the domain of {', '.join(map(repr, self.undeclared))} was read off the data, which gives "
                "away facts about single rows "
                "(a category that one person has, the largest income). Declare it, like age=integer(0, 120) "
                "or "
                "job=categorical(['cook', 'nurse'])."
            )
        return Cells.of_domain(Layout(self).variables, bins)

    def to_dict(self) -> dict[str, Any]:
        return {
            "columns": [c.to_dict() for c in self.columns],
            "constraints": [rules.to_dict(c) for c in self.constraints],
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Table:
        return cls(
            tuple(map(Column.from_dict, data["columns"])), tuple(map(rules.from_dict, data["constraints"]))
        )


def check_frame(frame: Any) -> None:
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise BadData(
            f"this is no table but {type(frame).__name__}. Give a pandas DataFrame (pandas.read_csv reads "
            "one)."
        )
    if not len(frame.columns):
        raise BadData("the table has no columns.")
    if len(frame) < LEAST_ROWS:
        raise BadData(
            f"the table has {len(frame)} row{'' if len(frame) == 1 else 's'}; there is nothing to learn "
            f"from fewer than {LEAST_ROWS}, "
            "and a copy of one row is no synthetic table."
        )


def _ranged(column: Column, constraints: Sequence[Constraint]) -> Column:
    """A Range becomes the column's domain, so that it holds by construction."""
    for c in constraints:
        if isinstance(c, Range) and c.column == column.name:
            if not column.is_number:
                raise BadParameter(
                    f"{c!r}: {column.name!r} is {column.kind}; a range needs numbers or times."
                )
            low, high = (
                end if given is None else column.number_of(given)
                for given, end in ((c.low, column.low), (c.high, column.high))
            )
            ends = (
                () if column.declared else (column.low, column.high)
            )  # read off the data; a declared domain is narrowed, and held against the rows later
            outside = [
                end
                for end in ends
                if end is not None and ((low is not None and end < low) or (high is not None and end > high))
            ]
            if outside:
                raise BadData(
                    f"the table itself breaks {c!r}: it has {column.shown(outside[0])}. Put the rows right, "
                    "or widen the range."
                )
            column = replace(
                column,
                low=low,
                high=high,
                declared=column.declared or (c.low is not None and c.high is not None),
            )
    return column


def _column(series: Series, name: str, told: str | Column | None) -> Column:
    if isinstance(told, str) and told not in KINDS:
        raise BadParameter(f"Table.infer: {name}={told!r} is no kind of column. {nearest(told, list(KINDS))}")
    kind = told.kind if isinstance(told, Column) else told or _kind(series, name)
    read = _read(series, name, kind)
    if not isinstance(told, Column):
        return read
    if told.declared:
        return replace(told, name=name, dtype=told.dtype or read.dtype)
    known = {k: v for k, v in told.__dict__.items() if v not in (None, (), "") and v is not False}
    return replace(read, **{**known, "name": name, "missing": read.missing or told.missing})


def _kind(series: Series, name: str) -> str:
    import pandas as pd

    t, there = series.dtype, series.dropna()
    if isinstance(t, pd.CategoricalDtype):
        return "ordinal" if t.ordered else "categorical"
    if pd.api.types.is_bool_dtype(t):
        return "boolean"
    if pd.api.types.is_datetime64_any_dtype(t):
        return "datetime"
    if not len(there):
        return "categorical"
    strange = (
        next((v for v in there if not isinstance(v, str | int | float | np.generic | datetime.date)), None)
        if pd.api.types.is_object_dtype(t)
        else None
    )
    if strange is not None:
        raise BadData(
            f"the column {name!r} holds {type(strange).__name__} objects, which are no table cells. Take it "
            "apart into columns, or drop it."
        )
    distinct = there.nunique()
    if pd.api.types.is_numeric_dtype(t):
        x = as_float(there, name)
        whole = bool((x == np.round(x)).all())
        if (
            whole
            and distinct == len(series) > WORDS_OF_TEXT
            and (np.ptp(x) == len(x) - 1 or re.fullmatch(r"(?i)(.*[ _-])?(id|key|uuid)", name))
        ):
            return "id"  # 1, 2, 3, …, or all different under a name that says so
        return "integer" if whole and distinct > 2 else "categorical" if whole else "continuous"
    kinds = {str} if isinstance(t, pd.StringDtype) else {type(v) for v in there}
    if kinds <= {bool, np.bool_}:
        return "boolean"
    if not kinds <= {str}:
        return _mixed(there, name)
    if all(ISO.fullmatch(v) for v in there.unique()):
        return "datetime"
    if distinct > NEARLY_ALL * len(there) and distinct > 20:
        return _name_or_text(there, name)
    return "categorical"


def _mixed(there: Series, name: str) -> str:
    """An object column of numbers and words: a category while its values are few."""
    values = {scalar(v) for v in there.unique()}
    if all(isinstance(v, int | float) for v in values):
        return "continuous" if len(values) > 2 else "categorical"
    if len(values) > 20 and len(values) > 0.1 * len(there):
        raise BadData(
            f"the column {name!r} holds numbers and words "
            f"({next(v for v in values if isinstance(v, str))!r}). Replace the words by missing values "
            "(pandas.to_numeric(…, errors='coerce')), or declare it as categorical."
        )
    return "categorical"


def _name_or_text(there: Series, name: str) -> str:
    words = float(np.mean([len(str(v).split()) for v in there.iloc[:1000]]))
    if words > WORDS_OF_TEXT:
        raise BadData(
            f"the column {name!r} is free text (such as {str(there.iloc[0])[:40]!r}…): no generator here "
            "writes text, and sentences name people. "
            f"Drop it with frame.drop(columns=[{name!r}]), cut it into categories, or have it faked: "
            f"{name}=identifier(faker='sentence')."
        )
    return "id"


def _read(series: Series, name: str, kind: str) -> Column:
    """The column of this kind, with the domain that the data shows."""
    import pandas as pd

    there = series.dropna()
    missing, dtype = bool(series.isna().any()), str(series.dtype)
    if kind == "id":
        return Column("id", name, dtype="" if dtype.startswith(("float", "object")) else dtype, declared=True)
    if kind == "boolean":
        # both values are known beforehand; whether one may be missing was read off the data, so it is not
        # declared
        return Column(
            "boolean", name, (False, True), missing=missing, dtype="object" if dtype == "object" else dtype
        )
    if kind in LISTED:
        if isinstance(series.dtype, pd.CategoricalDtype):
            return Column(
                kind, name, tuple(map(scalar, series.cat.categories)), missing=missing, dtype="category"
            )
        values = {scalar(v) for v in there.unique()}
        return Column(
            kind,
            name,
            tuple(sorted(values, key=lambda v: (isinstance(v, str), v))),
            missing=missing,
            dtype=dtype,
        )
    if kind == "datetime":
        x = seconds(there, name)
        if not pd.api.types.is_datetime64_any_dtype(series.dtype):
            widths = {len(str(v)) for v in there.unique()[:1000]}
            between = "T" if "T" in str(there.iloc[0]) else " "
            dtype = "text:" + (
                ISO_FORMATS[widths.pop()].format(between)
                if len(widths) == 1 and widths <= set(ISO_FORMATS)
                else "%Y-%m-%d %H:%M:%S"
            )
        step = next((s for s in (86_400.0, 60.0, 1.0) if (x % s == 0).all()), None)
    else:
        x = as_float(there, name)
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
