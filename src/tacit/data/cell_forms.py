"""How the cells of a column are written, shown without quoting one: YYYY-MM-DD, codes of 5 digits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .cells import DAY, DOTTED, FORMS, ISO, TIME, to_text
from .table_files import CODE

if TYPE_CHECKING:
    from pandas import Series

DAYS = (
    *("%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%m/%d/%y", "%d/%m/%y", "%d-%m-%Y", "%m-%d-%Y"),
    *("%Y%m%d", "%d-%b-%Y", "%d %b %Y", "%d-%b-%y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y"),
)
ISO_DAY = r"\d{4}-\d{1,2}-\d{1,2}"
KNOWN_FORMS = (
    (ISO_DAY, "YYYY-MM-DD"),
    (ISO, "YYYY-MM-DD and a time"),
    (DOTTED, "D.M.YYYY"),
    (TIME, "HH:MM"),
    (DAY, "YYYYMMDD"),
)


def show_form(known: Series, least: int = 0) -> str:
    """Return the most frequent form of a column, such as "YYYY-MM-DD" or "$N,NNN.NN", in quotes.

    N is a digit and A a letter. Empty if fewer than `least` rows have it: the form would be nearly a cell.
    """
    forms = to_form(known).value_counts()
    return repr(str(forms.index[0])) if len(forms) and forms.iloc[0] >= least else ""


def to_form(known: Series) -> Series:
    """Return the form of each cell."""
    import pandas as pd

    texts = pd.Series(to_text(known), dtype=str).str.strip()
    masked = texts.str.replace(r"[^\W\d_]", "A", regex=True)
    masked = masked.str.replace(r"(?<!\d)\d{4}(?!\d)", "YYYY", regex=True) if _are_dates(texts) else masked
    forms = masked.str.replace(r"\d", "N", regex=True)
    for pattern, form in KNOWN_FORMS:
        forms = forms.mask(texts.str.fullmatch(pattern) & ~forms.isin([f for _, f in KNOWN_FORMS]), form)
    return forms


def _are_dates(texts: Series) -> bool:
    return bool(texts.str.contains(r"\d[/. -]", regex=True).all() and texts.str.contains(r"\d{4}").all())


def show_codes(known: Series) -> str:
    """Return what codes have, and how long they are: "leading zeros, of 5 digits"."""
    texts = known.astype(str)
    codes = texts[texts.str.fullmatch(CODE)]
    low, high = int(codes.str.len().min()), int(codes.str.len().max())
    what = "leading zeros" if codes.str.startswith("0").any() else "many digits"
    return f"{what}, of {low} digits" if low == high else f"{what}, of {low} to {high} digits"


def find_date_format(values: Series) -> str | None:
    """Return the only form of dates that all values have, or None.

    Where some have a form that is read in one way only (2015-03-01, 1.3.2015), it is one of several forms.
    """
    import pandas as pd

    clear = []
    for pattern, form in ((ISO_DAY, "%Y-%m-%d"), (DOTTED, "%d.%m.%Y")):
        fits = values.str.fullmatch(pattern)
        if fits.any():
            clear.append(form)
            values = values[~fits]

    forms = [
        f"{day}{time}" for day in DAYS for time in ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
    ]
    fit = [f for f in forms if not pd.to_datetime(values, format=f, errors="coerce").isna().any()]
    return FORMS.join([*fit, *clear]) if len(fit) == 1 else None
