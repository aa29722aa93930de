"""Find dates that are none: days that do not exist, stand-ins such as 9999-12-31, and days to come."""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..errors import BadData
from .cells import to_moments, to_text

if TYPE_CHECKING:
    from pandas import Series, Timestamp

STAND_INS = (
    *("0001-01-01", "1111-11-11", "1800-01-01", "1899-12-30", "1899-12-31", "1900-01-01", "1901-01-01"),
    *("1970-01-01", "2222-02-22"),
)
LATEST = 2100  # dates from this year on are stand-ins for "never" or "not known"


class OddDates(NamedTuple):
    """The cells of a column of dates that are odd, as they are written, and how many rows have them."""

    impossible: list[str]  # no day of the calendar
    stand_ins: list[str]  # far from all other dates
    future: list[str]  # after today
    rows: dict[str, int]  # by cell


def find_odd_dates(name: str, known: Series, form: str | None, today: date | None = None) -> OddDates:
    """Return the odd cells of a column whose form is known. Days to come are odd if most are past."""
    import pandas as pd

    texts, counts = np.unique(to_text(known).astype(str), return_counts=True)
    rows = dict(zip(texts.tolist(), counts.tolist()))
    now = pd.Timestamp(today or date.today())
    days = _read(name, list(rows), form)
    impossible = sorted(t for t, day in days.items() if day is None and not _is_far(t))
    stand_ins = {t for t, day in days.items() if (day is None and _is_far(t)) or _is_stand_in(day)}
    rest = [day for t, day in days.items() if day is not None and t not in stand_ins]
    if rest:
        low, high = min(rest), max([day for day in rest if day <= now], default=max(rest))
        wide = max(high - low, pd.Timedelta(days=1))
        kept = set()
        for text in stand_ins:  # 1900-01-01 is a date of birth among others, and no stand-in
            day = days[text]
            if day is not None and day.year < LATEST and not (low - day > wide or day - high > wide):
                kept.add(text)
        stand_ins -= kept
    future = sorted(t for t, d in days.items() if d is not None and d > now and t not in stand_ins)
    if 2 * sum(rows[t] for t in future) > len(known):
        future = []
    return OddDates(impossible, sorted(stand_ins), future, rows)


def _read(name: str, texts: list[str], form: str | None) -> dict[str, Timestamp | None]:
    """Return the day of each text, None where it is no date; halves find the few that are none."""
    import pandas as pd

    try:
        days = to_moments(name, pd.Series(texts, dtype=object), form)
    except (BadData, ValueError, OverflowError):
        if len(texts) == 1:
            return {texts[0]: None}
        middle = len(texts) // 2
        return _read(name, texts[:middle], form) | _read(name, texts[middle:], form)
    return {text: None if pd.isna(day) else day for text, day in zip(texts, days)}


def _is_far(text: str) -> bool:
    """Whether a date that cannot be read has a year that no date of people has: 9999, 0001."""
    if re.fullmatch(r"\d{8}", text):  # written as a number: 99991231
        return not 1600 <= int(text[:4]) < LATEST
    digits = "".join(c if c.isdigit() else " " for c in text).split()
    return any(len(d) == 4 and not 1600 <= int(d) < LATEST for d in digits)


def _is_stand_in(day: Timestamp | None) -> bool:
    return day is not None and (day.year >= LATEST or day.strftime("%Y-%m-%d") in STAND_INS)
