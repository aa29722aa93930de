"""What a column is: its kind, its domain, and how its values become one float64 each and come back.

    continuous, integer, datetime   numbers in [low, high]; a datetime is seconds since 1970 (UTC)
    categorical, ordinal, boolean   one of a list of values; the number is the place in the list
    id                              made anew for every synthetic row, never learnt

NaN is a missing value in every kind. A column whose domain the user wrote down is `declared`; one whose
domain was read off the data is not, and private generators refuse it, because a category that one person
holds, or a largest income, is a fact about that person.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadData
from ..parameters import bad

if TYPE_CHECKING:
    from pandas import Series

KINDS = ("continuous", "integer", "categorical", "ordinal", "datetime", "boolean", "id")
NUMBERS = ("continuous", "integer", "datetime")
LISTED = ("categorical", "ordinal", "boolean")


@dataclass(frozen=True)
class Column:
    """One column. Make it with `continuous(…)`, `categorical(…)` and their kin, or let `Table.infer` read it
    off the data.
    """

    kind: str
    name: str = ""
    values: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None
    step: float | None = None  # numbers are multiples of it: 1 for integers, 0.01 for cents, 86,400 for days
    missing: bool = False
    dtype: str = ""  # of pandas, so that a synthetic column comes back as the real one was
    faker: str = ""
    declared: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise bad("Column", "kind", self.kind, "one of " + ", ".join(map(repr, KINDS)))
        if self.low is not None and self.high is not None and not self.low <= self.high:
            raise bad("Column", "low and high", (self.low, self.high), "two numbers in order")
        if len(set(self.values)) != len(self.values):
            raise bad("Column", "values", self.values, "values that differ from each other")

    @property
    def is_number(self) -> bool:
        return self.kind in NUMBERS

    def to_dict(self) -> dict[str, Any]:
        return {
            k: list(v) if k == "values" else v
            for k, v in self.__dict__.items()
            if v not in (None, "", ()) and v is not False
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Column:
        return cls(**{**data, "values": tuple(data.get("values", ()))})

    def numbers(self, series: Series) -> np.ndarray:
        """The column as float64; BadData names the first row that is not of this column."""
        import pandas as pd

        absent = series.isna().to_numpy()
        if self.kind in LISTED:
            place = {value: i for i, value in enumerate(self.values)}
            codes, distinct = pd.factorize(series)
            codes_of = np.array([place.get(scalar(v), -1) for v in distinct] + [-1], dtype=np.float64)
            x = codes_of[codes]
            self._refuse(series, (x < 0) & ~absent, "is none of the values it may have")
            x[absent] = np.nan
        elif self.kind == "datetime":
            x = seconds(series, self.name)
        else:
            x = as_float(series, self.name)
        if not self.missing:
            self._refuse(series, absent, "is missing")
        if self.is_number and self.low is not None and self.high is not None:
            slack = (self.step or 0) * 1e-6
            with np.errstate(invalid="ignore"):
                self._refuse(
                    series,
                    (x < self.low - slack) | (x > self.high + slack),
                    f"is outside [{self.shown(self.low)}, {self.shown(self.high)}]",
                )
        return x

    def _refuse(self, series: Series, wrong: np.ndarray, why: str) -> None:
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            value = series.iloc[row]
            value = value.item() if isinstance(value, np.generic) else value
            raise BadData(
                f"the column {self.name!r}: {value!r} in row {row} {why} ({int(wrong.sum())} such rows). "
                "Declare a wider column, or put the rows right."
            )

    def tidied(self, x: np.ndarray) -> np.ndarray:
        """Into the domain, and on the grid of `step`."""
        if not self.is_number:
            return x
        low, high = -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high
        x = np.clip(x, low, high)
        if self.step:
            places = decimals(self.step)
            x = np.round(x, places) if places is not None else np.round(x / self.step) * self.step
            if self.declared:  # a declared bound need not lie on the grid; rounding must not leave the domain
                x = np.where(x > high, x - self.step, np.where(x < low, x + self.step, x))
        return x

    def series(self, x: np.ndarray) -> Any:
        """The numbers as values, of the dtype the real column had."""
        import pandas as pd

        absent = np.isnan(x)
        if self.kind in LISTED:
            pool = np.empty(len(self.values) + 1, dtype=object)
            pool[:-1], pool[-1] = self.values, None
            out: Any = pd.Series(pool[np.where(absent, len(self.values), x).astype(np.int64)], dtype=object)
            if self.dtype == "category":
                return pd.Series(
                    pd.Categorical(out, categories=list(self.values), ordered=self.kind == "ordinal")
                )
        elif self.kind == "datetime":
            out = pd.Series(pd.to_datetime(np.where(absent, np.nan, np.round(x * 1e6)), unit="us"))
            if self.dtype.startswith("text:"):
                return out.dt.strftime(self.dtype[5:]).where(~out.isna(), None)
            if "," in self.dtype:  # datetime64[us, Europe/Zurich]
                out = out.dt.tz_localize("UTC")
        else:
            out = pd.Series(x)
        if not self.dtype:
            return out
        if absent.any() and self.dtype.startswith(("int", "uint", "bool")):
            return out  # numpy's integers cannot be missing
        return out.astype(self.dtype)

    def shown(self, x: float) -> str:
        """A number of this column as the user writes it."""
        return str(np.datetime64(round(x * 1e6), "us")) if self.kind == "datetime" else f"{x:g}"

    def number_of(self, value: Any) -> float:
        """One value of this column as its number, or BadData."""
        import pandas as pd

        if self.kind in LISTED:
            if scalar(value) not in self.values:
                raise BadData(
                    f"{value!r} is no value of the column {self.name!r}. It has: "
                    f"{', '.join(map(repr, self.values[:20]))}."
                )
            return float(self.values.index(scalar(value)))
        return float(self.numbers_unchecked(pd.Series([value]))[0])

    def numbers_unchecked(self, series: Series) -> np.ndarray:
        return seconds(series, self.name) if self.kind == "datetime" else as_float(series, self.name)

    def numbers_apart(self, series: Series) -> np.ndarray:
        """Each cell read by itself, for who may learn nothing of a single one: NaN where it cannot be read,
        and never an error. No cell says how another one is read, as the first of a column does where pandas
        guesses the format of its times.
        """
        import pandas as pd

        if self.kind == "datetime":
            return _since_1970(
                pd.to_datetime(series, errors="coerce", format="mixed", utc=True).dt.tz_localize(None)
            )
        try:
            return series.to_numpy(dtype=np.float64, na_value=np.nan).copy()
        except (TypeError, ValueError, OverflowError):
            return np.array([_float_or_nan(v) for v in series])


def continuous(
    low: float | None = None, high: float | None = None, *, step: float | None = None, missing: bool = False
) -> Column:
    """A number; with `low` and `high` its domain is declared."""
    return Column(
        "continuous",
        low=low,
        high=high,
        step=step,
        missing=missing,
        declared=low is not None and high is not None,
    )


def integer(low: int | None = None, high: int | None = None, *, missing: bool = False) -> Column:
    return Column(
        "integer",
        low=low,
        high=high,
        step=1.0,
        missing=missing,
        declared=low is not None and high is not None,
    )


def categorical(values: Sequence[Any] = (), *, missing: bool = False) -> Column:
    """One of a list of values, in no order; with `values` its domain is declared."""
    return Column("categorical", values=tuple(map(scalar, values)), missing=missing, declared=bool(values))


def ordinal(values: Sequence[Any] = (), *, missing: bool = False) -> Column:
    """One of a list of values, in this order."""
    return Column("ordinal", values=tuple(map(scalar, values)), missing=missing, declared=bool(values))


def boolean(*, missing: bool = False) -> Column:
    return Column("boolean", values=(False, True), missing=missing, declared=True)


def moment(low: Any = None, high: Any = None, *, days: bool = False, missing: bool = False) -> Column:
    """A datetime; `days` keeps whole days. Bounds are anything pandas reads as a time."""
    import pandas as pd

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
        declared=None not in ends,
    )


def identifier(faker: str = "") -> Column:
    """Made anew for every synthetic row: 1, 2, 3, …, or what a provider of Faker gives ("name", "email",
    "iban", …).
    """
    return Column("id", faker=faker, declared=True)


def scalar(value: Any) -> Any:
    """A category as JSON keeps it: str, int, float or bool."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, datetime.date | np.datetime64):
        return str(value)
    raise BadData(
        f"{value!r} ({type(value).__name__}) cannot be a category. Categories are words, numbers, True or "
        "False."
    )


def _float_or_nan(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        return math.nan


def as_float(series: Series, name: str) -> np.ndarray:
    try:
        x = series.to_numpy(dtype=np.float64, na_value=np.nan).copy()
    except (TypeError, ValueError):
        raise BadData(
            f"the column {name!r} holds "
            f"{next((v for v in series if isinstance(v, str)), series.iloc[0])!r}, which is no number. "
            "Declare it as categorical, or put the values right."
        ) from None
    if np.isinf(x).any():
        raise BadData(
            f"the column {name!r} holds an infinite number in row {int(np.flatnonzero(np.isinf(x))[0])}. "
            "Replace it by a finite number, or leave it missing."
        )
    return x


def seconds(series: Series, name: str) -> np.ndarray:
    """Times as seconds since 1970, UTC; float64 keeps microseconds for 285 years."""
    import pandas as pd

    try:
        times = pd.to_datetime(series)
    except (ValueError, TypeError) as error:
        raise BadData(
            f"the column {name!r} cannot be read as times: {error}. Turn it into datetimes with pandas first."
        ) from None
    if getattr(times.dt, "tz", None) is not None:
        times = times.dt.tz_convert("UTC").dt.tz_localize(None)
    return _since_1970(times)


def _since_1970(times: Series) -> np.ndarray:
    whole = times.to_numpy(
        dtype="datetime64[us]"
    )  # nanoseconds would end in 2262, and 9999 is what many write for "never"
    return np.where(np.isnat(whole), np.nan, whole.astype(np.int64) / 1e6)


def decimals(step: float) -> int | None:
    """2 for 0.01, 0 for 1, None for a step that is no power of ten."""
    places = -math.log10(step)
    return round(places) if abs(places - round(places)) < 1e-9 and places >= 0 else None


def declared_from(name: str, about: str | dict[str, Any]) -> Column | str:
    """A column as a TOML file declares it: a kind, or a table with kind, low, high, values, step, missing,
    faker.
    """
    if isinstance(about, str):
        return about
    makers: dict[str, Callable[..., Column]] = {
        "continuous": continuous,
        "integer": integer,
        "categorical": categorical,
        "ordinal": ordinal,
        "boolean": boolean,
        "datetime": moment,
        "id": identifier,
    }
    kind = about.get("kind")
    if kind not in makers:
        raise bad(name, "kind", kind, "one of " + ", ".join(map(repr, KINDS)))
    return makers[kind](**{k: v for k, v in about.items() if k != "kind"})
