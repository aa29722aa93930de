"""The cells of a column: numbers, text, dates and times, and how each is recognized and read.

Nothing is read as something else in silence. A column that is nearly numeric, a date in an undeclared form or
a time of day is refused, with the declaration that settles it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadData
from ..parameters import propose
from .table_files import CODE, DECIMAL_COMMA

if TYPE_CHECKING:
    from pandas import DataFrame, Series

DATE_PARTS = ("year", "month", "weekday", "hour", "days")
CYCLES = {"month": 12, "weekday": 7, "hour": 24}  # encoded as sine and cosine: December is next to January
SINCE = "days since "  # and a day, YYYY-MM-DD; "days" alone counts from 1970-01-01
MIXED_VALUES = 20  # a half-numeric column with more different numbers than this is not a list of categories
# words that say that there is no value
UNKNOWN = r"(unknown|unk|none|missing|not (known|available|done|recorded)|n\.?a\.?|n/k|nk|-+|\.+|x+|tbd)"
FORMS = " | "  # between several forms of the dates of one column
TIME = r"\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?"
ZONE = r"(?<=\d)\s?(Z|[+-]\d{2}:?\d{2})$"  # of a time: the hour of the clock on the wall is kept
ISO = r"\d{4}-\d{1,2}-\d{1,2}([T ]\d{1,2}:\d{2}.*)?"
DOTTED = r"\d{1,2}\.\d{1,2}\.\d{4}"  # written in this order only: day, month, year
SLASHED = r"(\d{1,2}[/-]\d{1,2}[/-]\d{2,4}|\d{4}/\d{1,2}/\d{1,2})( \d{1,2}:\d{2}.*)?"
MONTH = "(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"  # 3-Mar-2015, March 3, 2015
NAMED = rf"(?i:\d{{1,2}}[- ]{MONTH}[- ]\d{{2,4}}|{MONTH} \d{{1,2}},? \d{{4}})( \d{{1,2}}:\d{{2}}.*)?"
# of the years 2100 to 9999, in place of a day that is not known or has not come: 99991231
FAR_DAY = r"(2[1-9]\d\d|[3-9]\d{3})(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])|9{8}"
MOST_FAR_DAYS = 2  # different ones in a column; more are numbers of another kind
DAY = r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])"  # written as a number: 20150301


def with_columns(frame: DataFrame, columns: Mapping[str, Any]) -> DataFrame:
    """Return the frame with these columns added or replaced.

    `DataFrame.assign(**columns)` fails for a column called "self", as in surveys of the self-employed.
    """
    frame = frame.copy(deep=False)
    for name, values in columns.items():
        frame[name] = values
    return frame


def show_row(place: int) -> str:
    """Name a row as its owner counts it: from 1, below the line of column names."""
    return f"row {place + 1} (line {place + 2} of a CSV file)"


def to_text(column: Series) -> np.ndarray:
    """Return values as text; integers without '.0', even if pandas stored them as floats."""
    values = column.to_numpy(dtype=object, na_value="")
    return np.array(
        [str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in values], dtype=object
    )


def float_texts(values: Sequence[str]) -> dict[str, str]:
    """Return {value: the same with ".0"} of the integers among values, where that is not a value itself."""
    whole = (v for v in values if re.fullmatch(r"-?(0|[1-9]\d*)", v))
    return {v: f"{v}.0" for v in whole if f"{v}.0" not in values}


def to_numbers(column: Series) -> np.ndarray:
    """Return values as float64; what is missing or not a number is NaN."""
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce")
    return np.asarray(numbers.to_numpy(dtype=np.float64, na_value=np.nan))


def without_codes(column: Series, codes: Sequence[float | str]) -> Series:
    """Return the column with the codes that mean "missing" (-9999, "unknown") as missing values."""
    if not codes:
        return column
    words = {*code_texts(codes), *(c for c in codes if isinstance(c, str))}  # "unknown " as it is, too
    numbers = {float(w) for w in words if _is_plain_number(w)}
    hit = np.isin(to_text(column), list(words))
    if numbers:
        hit |= np.isin(to_numbers(column), list(numbers))
    return column.mask(hit)


def code_texts(codes: Sequence[float | str]) -> tuple[str, ...]:
    """Return codes that mean "missing" as text, as `without_codes` compares them."""
    return tuple(str(int(c)) if isinstance(c, float) and c.is_integer() else str(c).strip() for c in codes)


def _is_plain_number(word: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", word, re.IGNORECASE) is not None


def is_counter(column: Series) -> bool:
    """Whether a number is an integer that differs in every row."""
    values = to_numbers(column)  # in 32 bits long ids would collide
    return bool(
        np.isfinite(values).all()
        and (values == np.floor(values)).all()
        and len(np.unique(values)) == len(values)
    )


def has_codes(column: Series) -> bool:
    """Whether there are codes: 007 is not the number 7, and a float has no 17 digits."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return False
    return bool(column.dropna().astype(str).str.fullmatch(CODE).any())


def is_number(name: str, column: Series) -> bool:
    """Whether a column is numeric. Raises BadData if it mixes numbers and text."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        infinite = np.isinf(column.to_numpy(dtype=np.float64, na_value=np.nan))
        if infinite.any():
            raise BadData(
                f"the column {name!r} has an infinite value in {show_row(int(infinite.argmax()))}. Fill or "
                "drop it."
            )
        return True
    known = column.dropna()
    if pd.api.types.is_datetime64_any_dtype(column) or not len(known):
        return not len(known)
    numbers = pd.to_numeric(known.astype(str), errors="coerce")
    wrong = numbers.isna()
    words = known[wrong].astype(str)
    if wrong.any() and not wrong.all() and _mixes(numbers, words):
        first = column.index.get_loc(wrong[wrong].index[0])
        raise BadData(
            f"the column {name!r} contains numbers, but {int(wrong.sum())} of {len(known)} values are not "
            f"numeric, the first {words.iloc[0]!r} in {show_row(first)}. Correct them, or declare the texts "
            f"as missing with {propose('missing_codes', sorted(words.unique())[:3], name)}, or the column as "
            f"a category with {propose('categories', [name])}."
        )
    return not wrong.any()


def _mixes(numbers: Series, words: Series) -> bool:
    """Whether numbers and words in one column are no list of categories, such as 1, 2, 3A.

    `numbers` is NaN where `words` are. A typing error is rare; measurements have many values or fractions.
    """
    few = len(words) <= 0.1 * len(numbers)
    measured = numbers.nunique() > MIXED_VALUES and bool((numbers.dropna() % 1 != 0).any())
    many = numbers.nunique() > MIXED_VALUES and len(words) <= 0.5 * len(numbers)
    return few or many or measured or all(is_unknown(word) for word in words.unique())


def is_unknown(word: str) -> bool:
    """Whether a word says that there is no value, like "unknown"."""
    return re.fullmatch(UNKNOWN, word.strip(), re.IGNORECASE) is not None


def kind_of_moment(column: Series) -> str | None:
    """Return "date" or "time" if all cells of a text or date column are one, and None otherwise."""
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(column):
        return "date"
    if pd.api.types.is_numeric_dtype(column):
        return None
    values = column.dropna().astype(str).str.strip()
    if not len(values):
        return None
    if values.str.fullmatch(TIME).all():
        return "time"
    return "date" if values.str.fullmatch(f"{ISO}|{DOTTED}|{SLASHED}|{NAMED}").all() else None


def whole_days(known: Series) -> Series | None:
    """Return numbers like 20150301 as text, if all cells of a column of many values are such days.

    A few stand-ins such as 99991231 may be among them.
    """
    import pandas as pd

    if not pd.api.types.is_integer_dtype(known) and not pd.api.types.is_float_dtype(known):
        return None
    texts = pd.Series(to_text(known), dtype=str)
    are_days = texts.str.fullmatch(DAY)
    if texts[are_days].nunique() <= MIXED_VALUES or not (are_days | texts.str.fullmatch(FAR_DAY)).all():
        return None
    return texts if texts[~are_days].nunique() <= MOST_FAR_DAYS else None


def to_moments(name: str, column: Series, format: str | None = None, can_declare: bool = True) -> Series:
    """Return the dates or times of a column, NaT where missing.

    ISO dates (2015-03-01), dates with dots (1.3.2015), also both in one column, and times of day (14:30) are
    read without a format. A date with slashes can be read in two ways, so its format must be declared, such
    as "%m/%d/%Y"; several forms as "%m/%d/%Y | %Y-%m-%d". Rows to predict have the form of training: an error
    does not propose another (`can_declare`).
    """
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(column):
        return column.dt.tz_localize(None) if column.dt.tz is not None else column
    known = column.dropna()
    text = pd.Series(to_text(known), index=known.index, dtype=str).str.strip()
    if format is not None:
        read = _read_forms(name, column, text, format)
    elif text.str.fullmatch(TIME).all():
        since = pd.to_timedelta(text.where(text.str.count(":") > 1, text + ":00"), errors="coerce")
        read = pd.Timestamp(0) + since.where(since < pd.Timedelta(days=1))
    elif text.str.fullmatch(DOTTED).all():
        read = pd.to_datetime(text, format="%d.%m.%Y", errors="coerce")
    elif text.str.fullmatch(SLASHED).any():
        example = text[text.str.fullmatch(SLASHED)].iloc[0]
        raise BadData(
            f"the column {name!r} has dates like {example!r}, which can be read in two ways. Declare their "
            f"form: {propose('date_formats', '%m/%d/%Y', name)} or '%d/%m/%Y'."
        )
    else:
        dotted = text.str.fullmatch(DOTTED)
        has_time = text.str.contains(":", regex=False)
        text = text.mask(has_time, text.str.replace(ZONE, "", regex=True))
        read = pd.to_datetime(text.mask(dotted), format="ISO8601", errors="coerce")
        if text.str.fullmatch(NAMED).any():
            example = text[text.str.fullmatch(NAMED)].iloc[0]
            raise BadData(
                f"the column {name!r} has dates like {example!r}. Declare their form: "
                f"{propose('date_formats', '%d-%b-%Y', name)} (%b: Mar, %B: March)."
            )
        if dotted.any():
            read = read.fillna(pd.to_datetime(text.where(dotted), format="%d.%m.%Y", errors="coerce"))
    wrong = read.isna()
    if wrong.any():
        first = column.index.get_loc(wrong[wrong].index[0])
        expected = f"of the form {format!r}" if format else "like 2015-03-01, 1.3.2015 or 14:30"
        advice = (
            f"Correct it, or declare the form with {propose('date_formats', '%Y-%m-%d', name)}."
            if can_declare
            else "Write it as in training, or leave the cell empty if the date is not known."
        )
        raise BadData(
            f"the column {name!r} has {text[wrong].iloc[0]!r} in {show_row(first)}, which is not a date or "
            f"time {expected}. {advice}"
        )
    return read.reindex(column.index)


def _read_forms(name: str, column: Series, text: Series, format: str) -> Series:
    """Return the dates of a column, each in the declared form that fits; refuse one that fits two forms."""
    import pandas as pd

    read = pd.Series(pd.NaT, index=text.index, dtype="datetime64[ns]")
    for form in format.split(FORMS):
        dates = pd.to_datetime(text, format=form, errors="coerce").astype("datetime64[ns]")
        unclear = read.notna() & dates.notna() & (read != dates)
        if unclear.any():
            first = unclear[unclear].index[0]
            where = show_row(column.index.get_loc(first))
            raise BadData(
                f"the column {name!r} has {text[first]!r} in {where}, which fits two of the declared forms "
                f"{format!r} and is another day in each. Keep one of them, or write the dates alike."
            )
        read = read.fillna(dates)
    return read


def date_columns(name: str, parts: Sequence[str]) -> list[str]:
    """Return the names of the features of a date: month, weekday and hour have two, sine and cosine."""
    out = []
    for part in parts:
        out += [f"{name} {part} sin", f"{name} {part} cos"] if part in CYCLES else [f"{name} {part}"]
    return out


def date_features(moments: Series, parts: Sequence[str]) -> np.ndarray:
    """Return the features of dates, [row, feature] as float64; NaN where missing."""
    import pandas as pd

    known = moments.notna().to_numpy()
    out = []
    for part in parts:
        if part in CYCLES:
            hours = moments.dt.hour + moments.dt.minute / 60 + moments.dt.second / 3600
            place = {"month": moments.dt.month - 1, "weekday": moments.dt.day_of_week, "hour": hours}[part]
            angle = place.to_numpy(dtype=np.float64) * (2 * np.pi / CYCLES[part])
            # rounded: the last digits of sine and cosine differ between machines, and sums are exact
            out += [np.round(np.sin(angle), 12), np.round(np.cos(angle), 12)]
        elif part == "year":
            out.append(moments.dt.year.to_numpy(dtype=np.float64))
        else:
            origin = pd.Timestamp(part.removeprefix(SINCE) if part.startswith(SINCE) else 0)
            out.append((moments - origin).dt.days.to_numpy(dtype=np.float64))
    return np.where(known[:, None], np.stack(out, axis=1), np.nan)


def check_date_parts(name: str, parts: Any) -> str | None:
    """Return what is wrong with the declared parts of a date, or None."""
    import pandas as pd

    fine = isinstance(parts, list | tuple) and bool(parts) and len(set(map(str, parts))) == len(parts)
    for part in parts if fine else ():
        day = str(part).removeprefix(SINCE)
        if str(part).startswith(SINCE):
            fine = fine and not pd.isna(pd.to_datetime(day, format="%Y-%m-%d", errors="coerce"))
        else:
            fine = fine and part in DATE_PARTS
    if fine:
        return None
    return (
        f"dates[{name!r}] is {parts!r}; it must be a list of different parts of "
        f"{', '.join(map(repr, DATE_PARTS))} and 'days since YYYY-MM-DD'."
    )


def describe_many(values: np.ndarray) -> str:
    """Say what text with very many different values is, and what to do about it."""
    import pandas as pd

    first = pd.Series(values[:50], dtype=str)
    if first.str.fullmatch(CODE).any():
        return "codes with leading zeros or very many digits, which are not numbers."
    if not pd.to_numeric(first.str.replace(",", ".", regex=False), errors="coerce").isna().any():
        return DECIMAL_COMMA.format(str(first[0]))
    return "an identifier or free text, not a category."
