"""Columns: kind, domain, and the conversion of values to float64 and back.

    continuous, integer, datetime   numbers in [low, high]; a datetime is seconds since 1970 (UTC)
    categorical, ordinal, boolean   one of a list of values; the number is the index in the list
    id                              generated for every synthetic row, never learned

NaN is a missing value in every kind. A column is `declared` if the user wrote down its domain. Private
generators require that, because an inferred domain reveals facts about single rows: a category that one
person has, or the largest income.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..data.cells import show_row
from ..errors import BadData, BadParameter, MissingExtra, TacitError
from ..parameters import bad, nearest

KINDS = ("continuous", "integer", "categorical", "ordinal", "datetime", "boolean", "id")
NUMERIC = ("continuous", "integer", "datetime")
DISCRETE = ("categorical", "ordinal", "boolean")


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Create it with `continuous(…)`, `categorical(…)` and so on, or let `Table.infer` infer it.
    """

    kind: str
    name: str = ""
    values: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None
    step: float | None = (
        None  # numbers are multiples of it: 1 for integers, 0.01 for cents, 86,400 s for days
    )
    missing: bool = False
    dtype: str = ""  # of pandas: that of the real column
    faker: str = ""
    declared: bool = False
    inferred: bool = False  # kind, domain or whether values are missing were read off the rows
    other: str = ""  # the one of `values` that stands for all that are not listed

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise bad("Column", "kind", self.kind, "one of " + ", ".join(map(repr, KINDS)))
        if self.low is not None and self.high is not None and not self.low <= self.high:
            raise bad("Column", "low and high", (self.low, self.high), "two numbers in order")
        if len(set(self.values)) != len(self.values):
            raise bad("Column", "values", self.values, "values that differ from each other")
        if self.other and self.other not in self.values:
            raise bad(
                "Column", "other", self.other, "one of `values`, which stands for all that are not listed"
            )

    @property
    def is_open(self) -> bool:
        """Whether a part of the domain was left open by its declaration, to be estimated privately."""
        return not self.declared and not self.inferred

    @property
    def is_number(self) -> bool:
        return self.kind in NUMERIC

    @property
    def ends(self) -> tuple[float, float]:
        """Both bounds of a number, which must be declared."""
        assert self.low is not None
        assert self.high is not None
        return self.low, self.high

    def to_dict(self) -> dict[str, Any]:
        return {
            k: list(v) if k == "values" else v
            for k, v in self.__dict__.items()
            if v not in (None, "", ()) and v is not False
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Column:
        return cls(**{**data, "values": tuple(data.get("values", ()))})

    def to_numbers(self, series: pd.Series) -> np.ndarray:
        """Convert a series to float64; BadData names the first row outside the domain."""
        missing = series.isna().to_numpy()
        if self.kind in DISCRETE:
            index = {value: i for i, value in enumerate(self.values)}
            unlisted = index.get(self.other, -1) if self.other else -1
            x = map_values(series, lambda v: index.get(scalar(v), unlisted)).astype(np.float64)
            self._reject(series, (x < 0) & ~missing, "is not one of the allowed values")
            x[missing] = np.nan
        else:
            x = self.to_numbers_unchecked(series)
        if not self.missing:
            self._reject(series, missing, "is missing")
        if self.is_number and self.low is not None and self.high is not None:
            slack = (self.step or 0) * 1e-6
            with np.errstate(invalid="ignore"):
                self._reject(
                    series,
                    (x < self.low - slack) | (x > self.high + slack),
                    f"is outside [{self.format_value(self.low)}, {self.format_value(self.high)}]",
                )
        return x

    def _reject(self, series: pd.Series, wrong: np.ndarray, why: str) -> None:
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            value = series.iloc[row]
            raise BadData(
                f"the column {self.name!r}: {value.item() if isinstance(value, np.generic) else value!r} in "
                f"{show_row(row)} {why} ({int(wrong.sum())} such rows). Declare a wider domain, or correct "
                "the rows."
            )

    def fit_to_domain(self, x: np.ndarray) -> np.ndarray:
        """Clip numbers to the domain and round them to multiples of `step`."""
        if not self.is_number:
            return x
        low, high = -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high
        x = np.clip(x, low, high)
        if self.step:
            places = decimals(self.step)
            x = np.round(x, places) if places is not None else np.round(x / self.step) * self.step
            if self.declared:  # a declared bound need not be a multiple of step
                x = np.where(x > high, x - self.step, np.where(x < low, x + self.step, x))
        return x

    def to_series(self, x: np.ndarray) -> Any:
        """Convert numbers to values, with the dtype of the real column."""
        missing = np.isnan(x)
        if self.kind in DISCRETE:
            pool = np.empty(len(self.values) + 1, dtype=object)
            pool[:-1], pool[-1] = self.values, None
            out: Any = pd.Series(pool[np.where(missing, len(self.values), x).astype(np.int64)], dtype=object)
            if self.dtype == "category":
                return pd.Series(
                    pd.Categorical(out, categories=list(self.values), ordered=self.kind == "ordinal")
                )
        elif self.kind == "datetime":
            out = pd.Series(pd.to_datetime(np.where(missing, np.nan, np.round(x * 1e6)), unit="us"))
            if self.dtype.startswith("text:"):
                return out.dt.strftime(self.dtype[5:]).where(~out.isna(), None)
            if "," in self.dtype:  # datetime64[us, Europe/Zurich]
                out = out.dt.tz_localize("UTC")
        else:
            out = pd.Series(x)
        if not self.dtype:
            return out
        if missing.any() and self.dtype.startswith(("int", "uint", "bool")):
            return out  # numpy integers have no missing value
        return out.astype(self.dtype)

    def format_value(self, x: float) -> str:
        """Format a number of this column as the user writes it."""
        if self.kind != "datetime":
            return f"{x:g}"
        time = str(np.datetime64(round(x * 1e6), "us"))
        return time.removesuffix(".000000").removesuffix("T00:00:00")

    def to_number(self, value: Any) -> float:
        """Convert one value to its number, or raise BadData."""
        if self.kind in DISCRETE:
            if scalar(value) not in self.values:
                raise BadData(
                    f"{value!r} is not a value of the column {self.name!r}. Allowed: "
                    f"{', '.join(map(repr, self.values[:20]))}."
                )
            return float(self.values.index(scalar(value)))
        return float(self.to_numbers_unchecked(pd.Series([value]))[0])

    def to_numbers_unchecked(self, series: pd.Series) -> np.ndarray:
        """Convert a numeric series without checking the domain."""
        if self.kind == "datetime":
            return seconds(series, self.name, self.time_format)
        return as_float(series, self.name)

    @property
    def time_format(self) -> str | None:
        """How a date is written if it is text and not as in ISO 8601, like "%d.%m.%Y"."""
        return self.dtype[5:] if self.dtype.startswith("text:") and self.dtype[5:7] != "%Y" else None

    def to_numbers_or_nan(self, series: pd.Series) -> np.ndarray:
        """Convert each cell independently; NaN where it cannot be read, never an error.

        For private generators: no cell may influence how another is read, as the first one does where pandas
        infers a time format.
        """
        if self.kind == "datetime":
            written = self.time_format or "mixed"
            return _seconds_since_1970(
                pd.to_datetime(series, errors="coerce", format=written, utc=True).dt.tz_localize(None)
            )
        try:
            return np.array(series.to_numpy(dtype=np.float64, na_value=np.nan))
        except (TypeError, ValueError, OverflowError):
            return np.array([_float_or_nan(v) for v in series])


def continuous(
    low: float | None = None, high: float | None = None, *, step: float | None = None, missing: bool = False
) -> Column:
    """A number; declared if `low` and `high` are given."""
    return Column(
        "continuous",
        low=low,
        high=high,
        step=step,
        missing=missing,
        declared=low is not None and high is not None,
    )


def integer(low: int | None = None, high: int | None = None, *, missing: bool = False) -> Column:
    """A whole number; declared if `low` and `high` are given."""
    return Column(
        "integer",
        low=low,
        high=high,
        step=1.0,
        missing=missing,
        declared=low is not None and high is not None,
    )


def categorical(values: Sequence[Any] = (), *, missing: bool = False, other: str = "") -> Column:
    """One of a list of unordered values; declared if `values` is given.

    `other` is the one of them that stands for all values that are not listed.
    """
    listed = tuple(map(scalar, values))
    return Column("categorical", values=listed, missing=missing, declared=bool(values), other=other)


def ordinal(values: Sequence[Any] = (), *, missing: bool = False) -> Column:
    """One of a list of ordered values; declared if `values` is given."""
    return Column("ordinal", values=tuple(map(scalar, values)), missing=missing, declared=bool(values))


def boolean(*, missing: bool = False) -> Column:
    """True or False."""
    return Column("boolean", values=(False, True), missing=missing, declared=True)


def timestamp(
    low: Any = None, high: Any = None, *, days: bool = False, missing: bool = False, format: str = ""
) -> Column:
    """A date and time; `days` restricts it to whole days.

    Bounds are anything that pandas parses as a time. `format` is how text is written, like "%d.%m.%Y"
    (default: ISO 8601, or inferred).
    """
    ends = [
        None if end is None else float(seconds(pd.Series([pd.Timestamp(end)]), "bound")[0])
        for end in (low, high)
    ]
    return Column(
        "datetime",
        low=ends[0],
        high=ends[1],
        step=86_400.0 if days else 1.0,
        missing=missing,
        dtype=f"text:{format}" if format else "",
        declared=None not in ends,
    )


def identifier(faker: str = "") -> Column:
    """An identifier, generated for every synthetic row: 1, 2, 3, …, or from Faker.

    `faker` names a Faker provider ("name", "email", "iban", …).
    """
    return Column("id", faker=faker, declared=True)


def declared_dtype(column: Column) -> str:
    """Return the dtype of a synthetic column, from its declaration alone.

    `Table.infer` reads the dtype off the rows, where one missing age turns all ages into floats.
    """
    if column.dtype == "category" or column.dtype.startswith("datetime64"):
        return column.dtype  # no single row changes these
    if column.dtype.startswith("text:") and not column.inferred:
        return column.dtype  # timestamp(format=…)
    if column.kind in ("categorical", "ordinal"):
        return str(pd.Series(list(column.values)).dtype)
    return "" if column.missing else {"integer": "int64", "boolean": "bool"}.get(column.kind, "")


def identifiers(column: Column, n: int, seed: int, first: int) -> pd.Series:
    """Return `n` identifiers, distinct from the first `first` ones of this seed."""
    if column.faker:
        return pd.Series(_generate_fakes(column, n, seed, first), dtype=object)
    counted = np.arange(first + 1, first + n + 1)
    if column.dtype.startswith(("int", "uint", "Int", "UInt")):
        return pd.Series(counted).astype(column.dtype)
    return pd.Series([f"{column.name}-{i}" for i in counted], dtype=object)


def _generate_fakes(column: Column, n: int, seed: int, first: int) -> list[Any]:
    try:
        from faker import Faker
    except ImportError:
        raise MissingExtra(
            f"the column {column.name!r} with faker={column.faker!r}", "fake", "faker"
        ) from None

    fake = Faker()
    fake.seed_instance(f"{seed} {first} {column.name}")
    try:
        make = getattr(fake, column.faker)
    except AttributeError:
        raise BadParameter(
            f"identifier: faker={column.faker!r} is not a Faker provider. Examples: 'name', 'email', "
            "'address', 'phone_number', 'iban', 'ssn', 'uuid4'."
        ) from None
    return [str(make()) for _ in range(n)]  # names may repeat, as among people


def check_known(
    wanted: Iterable[Any],
    known: Sequence[str],
    before: str,
    after: str = "",
    error: type[TacitError] = BadData,
) -> None:
    """Raise `error`, with a suggestion, for the first name that is not known: '{before} {name}{after}'."""
    for name in wanted:
        if name not in known:
            raise error(f"{before} {name!r}{after}. {nearest(str(name), list(known))}")


def map_values(series: pd.Series, code: Callable[[Any], int]) -> np.ndarray:
    """Apply a function to each distinct value of a series, int64; −1 where a value is missing."""
    codes, distinct = pd.factorize(series)
    return np.asarray(np.array([*map(code, distinct), -1], np.int64)[codes])


def scalar(value: Any) -> Any:
    """Convert a category to a JSON type: str, int, float or bool."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, datetime.date | np.datetime64):
        return str(value)
    raise BadData(
        f"{value!r} ({type(value).__name__}) cannot be a category. Categories are strings, numbers, True or "
        "False."
    )


CODE = re.compile(r"[+-]?0\d+")  # its zeros mean something: 01201 is not 1201


def text_of(value: Any) -> str:
    """Write a category so that it does not depend on the type of its column.

    One person's "x" among numbers turns all of them into text. So 1, 1.0, "1" and "1.0" are one category, and
    so are True and "True"; "01" stays "01".
    """
    value = scalar(value)
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, str):
        text = value.strip()
        number = math.nan if CODE.fullmatch(text) or "_" in text else _float_or_nan(text)
        if not math.isfinite(number):
            return text
        value = number
    if isinstance(value, int) or (abs(value) < 2**53 and value == int(value)):
        return str(int(value))
    return repr(value)


def is_number_text(text: str) -> bool:
    """Whether a category written by `text_of` may be read as a number or a boolean."""
    return text in ("True", "False") or (not CODE.fullmatch(text) and math.isfinite(_float_or_nan(text)))


def is_missing(value: Any) -> bool:
    """Whether one cell is missing; a list in a cell is not."""
    return bool(pd.api.types.is_scalar(value) and pd.isna(value))


def _float_or_nan(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        return math.nan


def as_float(series: pd.Series, name: str) -> np.ndarray:
    """Convert a series to float64; NaN where missing, BadData where it is not a finite number."""
    try:
        x = np.array(series.to_numpy(dtype=np.float64, na_value=np.nan))
    except (TypeError, ValueError):
        raise BadData(
            f"the column {name!r} contains the non-numeric value "
            f"{next((v for v in series if isinstance(v, str)), series.iloc[0])!r}. Declare it as "
            "categorical, or correct the values."
        ) from None
    if np.isinf(x).any():
        raise BadData(
            f"the column {name!r} contains an infinite number in {show_row(int(np.isinf(x).argmax()))}. "
            "Replace it by a finite number or a missing value."
        )
    return x


def seconds(series: pd.Series, name: str, written: str | None = None) -> np.ndarray:
    """Convert times to seconds since 1970, UTC; float64 keeps microseconds for 285 years.

    `written` is the format of text.
    """
    try:
        times = pd.to_datetime(series, format=written)
    except (ValueError, TypeError) as error:
        raise BadData(
            f"the column {name!r} cannot be parsed as times: {error}. Convert it with pandas.to_datetime "
            "first."
        ) from None
    if times.dt.tz is not None:
        times = times.dt.tz_convert("UTC").dt.tz_localize(None)
    return _seconds_since_1970(times)


def _seconds_since_1970(times: pd.Series) -> np.ndarray:
    # microseconds: nanoseconds end in 2262, and the year 9999 often stands for "never"
    us = times.to_numpy(dtype="datetime64[us]")
    return np.where(np.isnat(us), np.nan, us.astype(np.int64) / 1e6)


def decimals(step: float) -> int | None:
    """Return the decimal places of a step: 2 for 0.01, 0 for 1, None if not a power of ten."""
    places = -math.log10(step)
    return round(places) if abs(places - round(places)) < 1e-9 and places >= 0 else None


def column_from_toml(name: str, about: str | dict[str, Any]) -> Column | str:
    """Parse a column declaration of a TOML file.

    A kind, or a table with kind, low, high, values, step, missing, other, faker.
    """
    return about if isinstance(about, str) else _construct_column(name, about)


def complete_kind(name: str, about: Column | str) -> Column:
    """Return the column of a declaration that may be a kind alone."""
    return about if isinstance(about, Column) else _construct_column(name, {"kind": about})


def _construct_column(name: str, about: dict[str, Any]) -> Column:
    constructors: dict[str, Callable[..., Column]] = {
        "continuous": continuous,
        "integer": integer,
        "categorical": categorical,
        "ordinal": ordinal,
        "boolean": boolean,
        "datetime": timestamp,
        "id": identifier,
    }
    kind = about.get("kind")
    if kind not in constructors:
        raise bad(name, "kind", kind, "one of " + ", ".join(map(repr, KINDS)))
    return constructors[kind](**{k: v for k, v in about.items() if k != "kind"})
