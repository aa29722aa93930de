"""Findings about dates and times: their form, and days that are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..parameters import to_line
from .cell_forms import find_date_format, show_form
from .cells import DOTTED, FORMS, ISO, TIME, to_text
from .inspection import Inspection
from .odd_dates import find_odd_dates
from .sentinels import FEW_VALUES

if TYPE_CHECKING:
    from pandas import Series


def note_moment(name: str, column: Series, moment: str, found: Inspection) -> None:
    import pandas as pd

    parts = ["hour"] if moment == "time" else ["year", "month", "weekday", "days"]
    known = column.dropna()
    is_text = not pd.api.types.is_datetime64_any_dtype(column)
    form = show_form(known, found.least) if is_text else ""
    text = f"{name!r} has {moment}s{f', like {form}' if form else ''}."
    if is_text:
        values = pd.Series(to_text(known), index=known.index, dtype=str).str.strip()
        if values.str.fullmatch(f"{ISO}|{DOTTED}").all():
            if 0 < values.str.fullmatch(DOTTED).sum() < len(values):
                text += " Some are written like YYYY-MM-DD and some like D.M.YYYY; both are read."
        elif not values.str.fullmatch(TIME).all():
            declared = find_date_format(values)
            if declared is None:
                what = "It can be read as month/day or day/month, or forms are mixed."
                found.leave_out(name, "date", f"{text} {what} Declare `dates` and `date_formats` to use it.")
                return
            found.add("date_formats", {name: declared})
            text += (
                f" They have several forms: {declared!r}."
                if FORMS in declared
                else f" All of them fit the form {declared!r}."
            )
    found.kinds[name] = moment
    found.add("dates", {name: parts})
    found.note(moment, name, text, f"Features: {', '.join(parts)}.")
    if moment == "date":
        _find_odd_dates(name, known, found)


def _find_odd_dates(name: str, known: Series, found: Inspection) -> None:
    """Find days that do not exist, stand-ins such as 9999-12-31, and days to come."""
    odd = find_odd_dates(name, known, found.settings.get("date_formats", {}).get(name))

    def in_rows(cells: Sequence[str]) -> str:
        hit = sum(odd.rows[cell] for cell in cells)
        return f"{found.show(cells, known)} in {hit} {'row' if hit == 1 else 'rows'}"

    codes = [*odd.impossible, *odd.stand_ins]
    if odd.impossible:
        what = f"{name!r} has days that are not in the calendar: {in_rows(odd.impossible)}."
        found.note("impossible dates", name, what, "Declared as missing.")
    if odd.stand_ins:
        what = f"{name!r} has {in_rows(odd.stand_ins)}, far from its other dates."
        found.note("stand-in dates", name, what, "Declared as missing.")
    if codes:
        found.add("missing_codes", {name: codes})
    if odd.future:
        cells, kept = found.frequent(odd.future, known), found.frequent(codes, known)
        proposal = to_line("missing_codes", [*kept, *cells], name) if 0 < len(cells) <= FEW_VALUES else ""
        found.note(
            *("future dates", name),
            f"{name!r} has dates in the future: {in_rows(odd.future)}.",
            "Kept; correct them in the file, or declare them as missing in `missing_codes`.",
            proposal,
        )
