"""What is in a table, and what is wrong with it: kinds of columns, and every problem with its treatment.

`inspect_table` reads the whole table, so it is for the holder of the rows: it drafts a job file (`tacit job
new`), and nothing of it is sent anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadData
from ..parameters import nearest, to_line
from .cell_forms import show_codes, show_form
from .cells import (
    has_codes,
    is_unknown,
    kind_of_moment,
    show_row,
    to_numbers,
    to_text,
    whole_days,
    with_columns,
    without_codes,
)
from .column_names import (
    CODES,
    LABELS,
    NEVER_LABELS,
    NUMBERED,
    PEOPLE,
    PRIVATE,
    SITES,
    YEARS,
)
from .dropped_rows import as_read
from .inspection import Inspection
from .leak_findings import note_durations, note_leaks
from .moment_findings import note_moment
from .recipe import RARE_COUNT, RARE_SHARE, TOO_MANY
from .sentinels import FEW_VALUES, count_doubtful_zeros, find_sentinels, is_formatted_number
from .skews import USUAL_ROWS
from .spelling_findings import note_spellings, note_typos
from .totals import list_totals

if TYPE_CHECKING:
    from pandas import DataFrame, Series

EMPTY = 0.95  # a column with more missing values than this has too few values to learn from
IMBALANCED = 0.65
MANY_VALUES = 50  # categories with more values than this have hardly any rows for each
UNNAMED = r"Unnamed: \d+"  # what the reader calls a column without a name
CYCLES = {"hour": (0, 23), "month": (1, 12), "weekday": (0, 7), "dayofweek": (0, 7), "day_of_week": (0, 7)}


def inspect_table(
    frame: DataFrame,
    label: str | None = None,
    by: str | None = None,
    categories: Sequence[str] = (),
    locate: Callable[[int], str] = show_row,
    least: int = 0,
) -> Inspection:
    """Return everything about a table that a job for it must decide, with a proposal for each.

    `categories` are columns that the user knows to be codes; `locate` names a row by its position. A value
    is quoted if at least `least` rows have it.
    """
    frame = frame.rename(columns=str).reset_index(drop=True)
    names = list(frame.columns)
    for what, name in (("label", label), ("by", by), *(("categories", c) for c in categories)):
        if name is not None and name not in names:
            raise BadData(f"there is no column {name!r} ({what}). {nearest(name, names)}")
    totals, kept = list_totals(frame, by, least)
    frame = frame[kept].reset_index(drop=True)
    places = np.flatnonzero(kept)
    found = Inspection(label or guess_label(frame, by), by, least=least)
    for finding, values in totals:
        found.findings.append(finding)
        if values:
            found.add("drop_rows", {finding.column: values})
    frame = with_columns(frame, {c: as_read(frame[c]) for c in found.settings.get("drop_rows", {})})
    if label is None:
        found.note(
            *("label", found.label),
            f"No label was given; {found.label!r} is a guess.",
            "Set `label` if it is another column.",
        )
    if by is None:
        sites = [c for c in names if re.fullmatch(SITES, c, re.IGNORECASE) and c != found.label]
        sites = [c for c in sites if 2 <= frame[c].nunique() <= max(2, len(frame) // 10)]
        if sites:
            found.by = sites[0]
            found.note(
                *("parties", sites[0]),
                f"No column of parties was given; {sites[0]!r} looks like one.",
                "One party for each value; change `by` if it is another.",
            )
    note_spellings(found.label, frame, found)
    if found.by is not None:
        note_spellings(found.by, frame, found)
    _inspect_label(frame, found, lambda place: locate(int(places[place])))
    rows = frame[frame[found.label].notna()].copy()
    for name in names:
        if name in (found.label, found.by):
            continue
        if name in categories:
            note_spellings(name, rows, found)
            found.kinds[name] = f"category: {rows[name].nunique()} values"
            found.add("categories", name)
        else:
            note_spellings(name, rows, found)
            _inspect_column(name, rows[name], found, None if found.by is None else rows[found.by])
    _find_unnamed(names, found)
    _find_few_values(rows, found)
    _find_many_values(rows, found)
    note_leaks(rows, found)
    note_durations(rows, found)
    if found.by is not None:
        _inspect_parties(rows, found)
    repeated = int(frame.duplicated().sum())
    if repeated:
        found.note(
            *("duplicates", ""),
            f"Exact repetitions of other rows: {repeated}.",
            "They are kept; remove them from the file if they are mistakes.",
        )
    found.table = rows
    return found


def guess_label(frame: DataFrame, by: str | None = None) -> str:
    """Return the column that is probably the outcome: by its name, else the last with two values.

    It is not the column of parties. Otherwise it is the last that is not free text, and does not have the
    name of what identifies people.
    """
    import pandas as pd

    names = [c for c in map(str, frame.columns) if frame[c].nunique() > 1 and c != by]
    names = [c for c in names if not re.fullmatch(NEVER_LABELS, c, re.IGNORECASE)] or names
    names = [c for c in names if not _has_dates(frame[c])] or names  # `death_date` is no outcome
    if not names:
        raise BadData("no column has two different values, so there is nothing to learn.")
    named = [c for c in names if re.fullmatch(rf"(.*[_.])?{LABELS}([_.].*)?", c, re.IGNORECASE)]
    two = [c for c in reversed(names) if frame[c].nunique() == 2]
    both = [c for c in named if c in two]
    last = [
        c
        for c in reversed(names)
        if not re.fullmatch(f"{PRIVATE}|(.*_)?(id|uuid)", c, re.IGNORECASE)
        and (pd.api.types.is_numeric_dtype(frame[c]) or frame[c].nunique() <= TOO_MANY)
    ]
    found = next(iter([*both, *named, *two, *last]), None)
    if found is None:
        raise BadData(
            "no column looks like an outcome: each is free text, or has the name of what identifies people. "
            f"Name the column to predict with --label: {', '.join(map(repr, names))}."
        )
    return found


def _has_dates(column: Series) -> bool:
    return kind_of_moment(column) is not None or whole_days(column.dropna()) is not None


def _inspect_label(frame: DataFrame, found: Inspection, locate: Callable[[int], str]) -> None:
    import pandas as pd

    name, column = found.label, frame[found.label]
    codes = find_sentinels(column)
    if codes:
        found.add("missing_codes", {name: codes})
        found.note(
            *("sentinel", name),
            f"The label {name!r} has {found.show(codes, column)}, far from its other values.",
            "Declared as missing.",
        )
        column = frame[name] = without_codes(column, codes)
    if pd.api.types.is_numeric_dtype(column) and np.isinf(to_numbers(column)).any():
        _declare_infinite(name, column, found)
        column = frame[name] = column.mask(np.isinf(to_numbers(column)))
    gaps = int(column.isna().sum())
    if gaps:
        found.settings["missing_label"] = "drop"
        first = locate(int(column.isna().to_numpy().argmax()))  # a row number is no value of a row
        found.note(
            *("missing outcome", name),
            f"{gaps} of {len(frame)} rows have no {name!r}, the first is {first}.",
            "They are left out.",
        )
    known = column.dropna()
    if not len(known):
        raise BadData(f"the label {name!r} has no values. Give another with --label.")
    number = pd.api.types.is_numeric_dtype(known) and not pd.api.types.is_bool_dtype(known)
    counts = known.value_counts()
    whole = number and bool((to_numbers(known) % 1 == 0).all())
    if number and (len(counts) > 2 or (len(counts) == 2 and not whole)):
        found.kinds[name] = "label: a number (regression)"
        if whole and len(counts) <= 20:
            code = _find_unknown_code(known, found)
            advice = (
                f" If {code[0]} means not known, declare it as missing, remove `regression`, and set name = "
                '"logistic" in [model]: two classes are left.'
                if code
                else ""
            )
            found.note(
                *("integer outcome", name),
                f"The label {name!r} is an integer with {len(counts)} values.",
                f"It is a regression; set regression = false if the values are classes.{advice}",
                to_line("missing_codes", code, name) if code else "",
            )
        found.settings["regression"] = True
        return
    texts = sorted(set(to_text(known).tolist()))
    found.labels = texts
    found.majority = float(counts.iloc[0] / len(known))
    found.kinds[name] = f"label: {len(texts)} classes"
    if len(texts) < 2:
        raise BadData(f"every row has the label {texts[0]!r}. There is nothing to learn; give another label.")
    if len(texts) > TOO_MANY:
        raise BadData(
            f"the label {name!r} has {len(texts)} different texts: an identifier or free text. Give another "
            "with --label."
        )
    if found.majority > IMBALANCED:
        value = found.frequent([_most_frequent(known)], known)
        found.note(
            *("class balance", name),
            f"{found.majority:.1%} of the rows have the same {name!r}{f', {value[0]!r}' if value else ''}.",
            "An accuracy below that is worse than guessing; judge by the AUC.",
        )
    note_typos(name, known, found, "the classes are counted as different")


def _find_unknown_code(known: Series, found: Inspection) -> list[int]:
    """Return [9], or [-1], if it is beside the two values of an outcome: it may mean "not known"."""
    values = sorted(set(to_numbers(known)))
    if len(values) != 3:
        return []
    for code, first, second in (values[::-1][:1] + values[:2], values):
        if code in (9, 99, -1, -9, -99) and first in (0, 1) and second - first == 1:
            return found.frequent([int(code)], known)
    return []


def _inspect_column(name: str, column: Series, found: Inspection, owner: Series | None = None) -> None:
    import pandas as pd

    known = column.dropna()
    share = 1 - len(known) / max(len(column), 1)
    if share > EMPTY:
        what = f"only {len(known)} of {len(column)} rows have" if len(known) else "no row has"
        found.leave_out(name, "empty", f"{what[0].upper()}{what[1:]} a value of {name!r}.")
        return
    distinct = known.nunique()
    if distinct <= 1:
        value = found.frequent(to_text(known.iloc[:1]).tolist(), known)
        quoted = f"({value[0]!r}) " if value else ""
        what = (
            "in all rows" if len(known) == len(column) else f"{quoted}in {len(known)} of {len(column)} rows"
        )
        advice = "" if len(known) == len(column) else "If an empty cell means no, write it in the file."
        found.leave_out(name, "constant", f"{name!r} has one value {what}. {advice}".strip())
        return
    if moment := kind_of_moment(column):
        note_moment(name, column, moment, found)
        return
    if pd.api.types.is_numeric_dtype(known) and np.isinf(to_numbers(known)).any():
        known = _declare_infinite(name, column, found)
        distinct = known.nunique()
    if whole_days(known) is not None:
        note_moment(name, column, "date", found)
        return
    is_id_name = re.fullmatch(rf"(.*_)?(id|uuid|nr|mrn|number|{PEOPLE})", name, re.IGNORECASE)
    person = re.fullmatch(f"{PEOPLE}|{NUMBERED}", name, re.IGNORECASE)
    is_year = re.fullmatch(YEARS, name, re.IGNORECASE)  # differs in every row of a series, and is no id
    text = not pd.api.types.is_numeric_dtype(column)
    whole = not text and bool((to_numbers(known) % 1 == 0).all())
    if owner is not None and (text or whole) and _is_numbered_by_party(known, owner, person is not None):
        what = (
            f"{name!r} differs in every row of a party, and parties share values: each numbers its own rows."
        )
        found.leave_out(name, "identifier", what)
        return
    if person and 2 * distinct > 0.1 * len(known) and distinct < len(known) and "group" not in found.settings:
        found.settings["group"] = name
        found.kinds[name] = "person"
        found.note(
            *("several rows of one person", name),
            f"{name!r} has {distinct} values in {len(known)} rows: people or others with several rows.",
            "Their rows stay together in every split; it is not a feature.",
        )
        return
    if text and distinct > FEW_VALUES and is_formatted_number(known):
        form = show_form(known, found.least)
        what = f"{name!r} has numbers with signs{f', like {form},' if form else ''} which are text."
        found.leave_out(
            name,
            "formatted numbers",
            f"{what} Write plain numbers in the file, like 1234.5, to use it.",
        )
        return
    if (
        (is_id_name and distinct > 0.5 * len(known))
        or (distinct == len(known) > TOO_MANY and (text or whole) and not is_year)
        or (text and distinct > TOO_MANY and 2 * distinct > len(known) and not _is_numeric_text(known))
    ):
        what = f"{name!r} has {distinct} different values in {len(known)} rows: an identifier or free text."
        found.leave_out(name, "identifier", what)
        if whole and not is_id_name:
            keep = "take it out of `drop`" if found.least == 0 else "list it in `numbers`"
            found.findings[-1] = replace(
                found.findings[-1], treatment=f"Left out; {keep} if it is a quantity (costs, a volume)."
            )
        return
    if re.fullmatch(PRIVATE, re.sub(r"[ .-]+", "_", name), re.IGNORECASE) and distinct > FEW_VALUES:
        what = f"{name!r} has {distinct} different values and the name of what identifies people."
        found.leave_out(name, "identifier", what)
        return
    if text and has_codes(column):
        found.kinds[name] = f"category: {distinct} codes"
        found.add("categories", name)
        what = show_codes(known)
        found.note(
            *(what.split(",")[0], name),
            f"{name!r} has codes with {what}.",
            "They stay text, and are categories.",
        )
        return
    if text and _is_numeric_text(known):
        _inspect_mixed(name, known, found)
    elif text:
        found.kinds[name] = f"category: {distinct} values"
        note_typos(name, known, found, "rare ones are read as 'other'")
    elif whole and distinct > 2 and re.fullmatch(CODES, name, re.IGNORECASE):
        found.kinds[name] = f"category: {distinct} codes"
        found.add("categories", name)
        found.note(
            *("codes", name),
            f"{name!r} has whole numbers and the name of a code.",
            "It is a category; take it out of `categories` if it is a quantity.",
        )
    else:
        found.kinds[name] = "number"
        _inspect_number(name, column, known, found)
    if share > 0.5:
        found.note(
            *("missing values", name),
            f"{share:.0%} of the rows have no {name!r}.",
            "They are imputed, with an indicator; leave the column out if it says nothing.",
        )


def _inspect_number(name: str, column: Series, known: Series, found: Inspection) -> None:
    """Find codes among the values of a number that mean something else."""

    def in_rows(values: Sequence[Any]) -> str:
        hit = int(np.isin(to_numbers(column), values).sum())
        return f"{found.show(values, column)} in {hit} {'row' if hit == 1 else 'rows'}"

    def propose(values: Sequence[Any]) -> str:
        shown = found.frequent(values, column)
        return to_line("missing_codes", shown, name) if shown else ""

    # real parties agree on the columns that may have missing values
    where = "`missing_codes`" if not found.least else "`missing_codes`, and the column in `missing`"
    if codes := find_sentinels(column):
        found.add("missing_codes", {name: codes})
        what = f"{name!r} has {in_rows(codes)}, far from its other values."
        found.note("sentinel", name, what, "Declared as missing.")
    elif doubtful := find_sentinels(column, doubtful=True):
        found.note(
            *("doubtful sentinel", name),
            f"{name!r} has {in_rows(doubtful)}, beyond its other values: a code for missing, a limit, or a "
            "large value.",
            f"Kept as numbers; if it means missing, declare it in {where}.",
            propose(doubtful),
        )
    elif count_doubtful_zeros(known):
        least = to_text(known[known > 0].nsmallest(1))[0]  # one row's value
        others = f"and at least {least} in all others" if not found.least else "far below all others"
        found.note(
            *("zeros", name),
            f"{name!r} is {in_rows([0])}, {others}.",
            f"Kept as numbers; if it means missing, declare it in {where}.",
            propose([0]),
        )


def _is_numbered_by_party(known: Series, owner: Series, dense: bool) -> bool:
    """Whether a column numbers the rows of each party, beginning anew at each.

    `dense` also asks that the numbers of a party have few gaps: ids of people that parties share have many.
    """
    import pandas as pd

    of = owner[known.index]
    sizes = of.value_counts()
    if len(sizes) < 2 or sizes.iloc[0] <= TOO_MANY or known.nunique() == len(known):
        return False
    if known.groupby(of).nunique().sum() != sizes.sum():
        return False
    if not dense:
        return True
    digits = pd.Series(to_text(known), index=known.index, dtype=str).str.extract(r"(\d{1,15})\D*$")[0]
    span = digits.astype(float).groupby(of).agg(lambda v: v.max() - v.min() + 1)
    return bool((span <= 2 * sizes[span.index]).all())


def _declare_infinite(name: str, column: Series, found: Inspection) -> Series:
    """Declare infinite numbers as missing; return the others."""
    infinite = np.isinf(to_numbers(column))
    codes = [*found.settings.get("missing_codes", {}).get(name, ()), *sorted(set(to_text(column[infinite])))]
    found.add("missing_codes", {name: codes})
    found.note(
        *("infinite", name),
        f"{name!r} is infinite in {int(infinite.sum())} {'row' if infinite.sum() == 1 else 'rows'}.",
        "Declared as missing.",
    )
    return column[~infinite].dropna()


def _is_numeric_text(known: Series) -> bool:
    """Whether at least half of the values of a text column are numbers."""
    import pandas as pd

    return bool(pd.to_numeric(known.astype(str), errors="coerce").notna().mean() >= 0.5)


def _inspect_mixed(name: str, known: Series, found: Inspection) -> None:
    import pandas as pd

    numbers = pd.to_numeric(known.astype(str), errors="coerce")
    numbers = numbers[np.isfinite(numbers)].reindex(known.index)  # an infinite one is no value either
    words = sorted(set(known[numbers.isna()].astype(str)))
    if not words:
        found.kinds[name] = "number"
        return
    what = (
        f"{name!r} has numbers and text: {found.show(words, known)} in {int(numbers.isna().sum())} of "
        f"{len(known)} rows."
    )
    if len(words) <= 10 and (numbers.nunique() > 20 or all(is_unknown(w) for w in words)):
        found.kinds[name] = "number"
        found.add("missing_codes", {name: words})
        found.note("mixed", name, what, "The texts are declared as missing.")
        return
    found.kinds[name] = "category"
    found.add("categories", name)
    found.note("mixed", name, what, "It is a category; rare values are read as 'other'.")


def _find_unnamed(names: Sequence[str], found: Inspection) -> None:
    """Find features without a name in the file: they are found by their place alone."""
    left_out = found.settings.get("drop", ())
    unnamed = [c for c in names if re.fullmatch(UNNAMED, c) and c not in (*left_out, found.by)]
    for name in unnamed:
        found.note(
            *("no name", name),
            f"Column {names.index(name) + 1} has no name in the file; it is called {name!r}.",
            "Kept; name it in the file, or leave it out if it numbers the rows.",
        )


def _find_few_values(rows: DataFrame, found: Inspection) -> None:
    """Find numbers with few whole values: codes of categories, or counts."""
    numbers = [name for name, kind in found.kinds.items() if kind == "number"]
    cyclic = [name for name in numbers if _is_cyclic(name, rows[name])]
    if cyclic:
        found.note(
            *("cycle", cyclic[0] if len(cyclic) == 1 else ""),
            f"Numbers that begin again after their largest: {', '.join(map(repr, cyclic))}.",
            "Read as numbers, so the ends are far apart; list them in `categories` (or --categories) to give "
            "each value a weight of its own.",
        )
    values = {
        name: without_codes(rows[name], found.settings.get("missing_codes", {}).get(name, ()))
        for name in numbers
    }
    few = [
        name
        for name, column in values.items()
        if name not in cyclic
        and 2 < column.nunique() <= FEW_VALUES
        and (to_numbers(column.dropna()) % 1 == 0).all()
    ]
    if few:
        found.note(
            *("few values", few[0] if len(few) == 1 else ""),
            f"Whole numbers with 3 to {FEW_VALUES} different values: {', '.join(map(repr, few))}.",
            "Read as numbers; list those that are codes in `categories` (or --categories).",
        )


def _is_cyclic(name: str, column: Series) -> bool:
    """Whether a number is an hour, a month or a weekday."""
    words = name.casefold().replace(" ", "_").split("_")
    low, high = next((CYCLES[w] for w in (name.casefold(), words[-1]) if w in CYCLES), (1, 0))
    values = to_numbers(column.dropna())
    return bool(len(values) and low <= values.min() and values.max() <= high and (values % 1 == 0).all())


def _find_many_values(rows: DataFrame, found: Inspection) -> None:
    """Find categories with so many values that one column for each learns little."""
    for name, kind in found.kinds.items():
        distinct = rows[name].nunique() if kind.startswith("category") else 0
        if distinct > MANY_VALUES:
            counts = rows[name].value_counts()
            few = int(((counts < RARE_COUNT) & (counts < RARE_SHARE * len(rows))).sum())
            if few == distinct:
                _leave_out_rare(name, distinct, rows, found)
                continue
            found.note(
                *("many values", name),
                f"{name!r} has {distinct} categories; {few} of them are in few rows.",
                "Kept: each frequent one is a feature, rare ones are read as 'other'. Shorten the codes (the "
                'first digits), leave the column out, or use name = "table_network" in [model].',
            )


def _leave_out_rare(name: str, distinct: int, rows: DataFrame, found: Inspection) -> None:
    """Leave out a column all of whose categories would be "other"; its rows may be of one firm or ward."""
    settings = found.settings
    if name in settings.get("categories", ()):
        settings["categories"].remove(name)
    found.findings[:] = [f for f in found.findings if f.column != name]
    found.leave_out(
        *(name, "rare values"),
        f"{name!r} has {distinct} categories, each of them in few rows: all would be read as 'other'.",
    )
    advice = "Shorten the codes in the file (the first digits) to use it."
    proposal = ""
    if "group" not in settings and 2 * distinct < len(rows):
        advice += " If it says whose a row is, its rows can stay together in every split."
        proposal = to_line("group", name)
    found.findings[-1] = replace(found.findings[-1], treatment=f"Left out. {advice}", proposal=proposal)


def _inspect_parties(rows: DataFrame, found: Inspection) -> None:
    assert found.by is not None
    values = rows[found.by]
    found.kinds[found.by] = "party"
    gaps = int(values.isna().sum())
    if gaps:
        found.settings["missing_party"] = "drop"
        found.note(
            *("missing party", found.by),
            f"{gaps} of {len(rows)} rows have no {found.by!r}, so they belong to no party.",
            "They are left out.",
        )
    note_typos(found.by, values.dropna(), found, "they are parties of their own")
    sizes = values.dropna().value_counts()
    small = sizes[sizes < USUAL_ROWS]
    if len(small) == len(sizes) > 1:  # merged, they would be one party, and none could be left out
        found.note(
            *("tiny parties", found.by),
            f"All {len(sizes)} parties have fewer than {USUAL_ROWS} rows, the largest {sizes.iloc[0]}.",
            "Each is a party; a coarser column (a region instead of a city) makes larger ones.",
        )
    elif len(small):
        found.settings |= {"min_rows": USUAL_ROWS, "small": "merge"}
        names = found.show(to_text(small.index.to_series()).tolist(), values.dropna())
        found.note(
            *("tiny parties", found.by),
            f"{len(small)} of {len(sizes)} parties have fewer than {USUAL_ROWS} rows: {names}.",
            'They are merged into one party; small = "drop" leaves them out.',
        )
    if found.labels is not None and not found.least:  # others read a draft with a floor
        classes = rows.groupby(found.by)[found.label].nunique()
        single = sorted(map(str, classes.index[(classes == 1) & (sizes[classes.index] >= USUAL_ROWS)]))
        if single:
            found.note(
                *("one class", found.by),
                f"{len(single)} of {len(sizes)} parties {'has' if len(single) == 1 else 'have'} one value of "
                f"{found.label!r} only: {found.show(single, values)}.",
                "Kept; such a party's update shows the label of its rows, and its own AUC is not defined.",
            )


def _most_frequent(known: Series) -> str:
    return str(to_text(known.mode().iloc[:1])[0])
