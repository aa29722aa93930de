"""Findings about values that are written in several ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..parameters import to_key, to_line
from .cells import kind_of_moment
from .inspection import Inspection
from .misspellings import find_misspellings
from .recipe import TOO_MANY
from .spellings import find_spellings, is_answer, respell

if TYPE_CHECKING:
    from pandas import DataFrame, Series


def note_spellings(name: str, frame: DataFrame, found: Inspection) -> None:
    """Declare spellings that are one value beyond doubt, and read the column of `frame` so."""
    import pandas as pd

    column = frame[name]
    is_long = column.nunique() > TOO_MANY and name != found.by
    if pd.api.types.is_numeric_dtype(column) or is_long or kind_of_moment(column):
        return
    spellings = find_spellings(column.dropna())
    if not spellings:
        return
    frame[name] = respell(column, spellings)
    known = column.dropna()
    shown = {
        w: m for w, m in spellings.items() if _may_quote(w, known, found) and _may_quote(m, known, found)
    }
    meanings: dict[str, list[str]] = {}
    for written, meant in shown.items():
        meanings.setdefault(meant, []).append(repr(written))
    words = [f"{' and '.join(written)} for {meant!r}" for meant, written in meanings.items()]
    treatment = "They are read as one."
    if hidden := len(spellings) - len(shown):
        words.append(f"{hidden} of few rows, not shown")
        treatment = "Those that are shown are read as one; correct the others in every file."
    found.note(
        "spellings", name, f"{name!r} has several spellings of one value: {', '.join(words)}.", treatment
    )
    if shown:
        found.add("spellings", {name: shown})


def _may_quote(value: str, known: Series, found: Inspection) -> bool:
    return is_answer(value) or bool(found.frequent([value], known))


def note_typos(name: str, known: Series, found: Inspection, treatment: str) -> None:
    pairs = find_misspellings(known)  # those of spellings that are declared are not among them
    quoted = [pair for pair in pairs if len(found.frequent(pair, known)) == 2]
    shown = [f"{value!r} for {meant!r}" for value, meant in quoted]
    if pairs:
        words = [", ".join(shown[:5]) + (", …" if len(shown) > 5 else "")] if shown else []
        if hidden := len(pairs) - len(shown):
            words.append(f"{hidden} {'value' if hidden == 1 else 'values'} of few rows, not shown")
        found.note(
            *("typos", name),
            f"{name!r} has probable typos: {' and '.join(words)}.",
            f"Correct them in the file, or declare them in `spellings`; until then {treatment}.",
            "\n".join(to_line(f"spellings.{to_key(name)}", m, w) for w, m in quoted),
        )
