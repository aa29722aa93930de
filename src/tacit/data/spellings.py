"""Several spellings of one value, such as "yes", "Yes " and "Y", which a declaration reads as one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadData
from ..parameters import propose
from .cells import float_texts, to_text, with_columns

if TYPE_CHECKING:
    from pandas import DataFrame, Series

# two answers, and how people write each of them; 1 and 0 count beside words only
ANSWERS = (
    (
        frozenset({"yes", "y", "true", "t", "1", "j", "ja", "oui", "si", "sí"}),
        frozenset({"no", "n", "false", "f", "0", "nein", "non"}),
    ),
    (frozenset({"male", "m", "man"}), frozenset({"female", "f", "woman", "w"})),
    (frozenset({"positive", "pos", "+"}), frozenset({"negative", "neg", "-"})),
    (frozenset({"alive", "living"}), frozenset({"dead", "died", "deceased"})),
)


def fold(value: str) -> str:
    """Return a text without difference of case, and without spaces at its ends or several in a row."""
    return " ".join(value.casefold().split())


def is_answer(value: str) -> bool:
    """Whether a value is a word for one of two answers: it says nothing about a single row."""
    return any(fold(value) in words for pair in ANSWERS for words in pair)


def respell(column: Series, spellings: Mapping[str, str]) -> Series:
    """Return the column with the value that is meant in place of each declared spelling."""
    if not spellings:
        return column
    texts, written = to_text(column), all_spellings(spellings)
    hit = column.notna().to_numpy() & np.isin(texts, list(written))
    if not hit.any():
        return column
    meant = column.astype(object).to_numpy(copy=True)
    meant[hit] = [written[text] for text in texts[hit]]
    return type(column)(meant, index=column.index, name=column.name, dtype=object)


def all_spellings(spellings: Mapping[str, str]) -> dict[str, str]:
    """Return {written: meant}, also of whole numbers that are written with ".0": 1.0 beside 1."""
    same = float_texts([*spellings, *spellings.values()])
    return {**spellings, **{same[w]: meant for w, meant in spellings.items() if w in same}}


def respell_columns(frame: DataFrame, spellings: Mapping[str, Mapping[str, str]]) -> DataFrame:
    """Return the table with the declared spellings of all columns that it has."""
    return with_columns(frame, {c: respell(frame[c], s) for c, s in spellings.items() if c in frame.columns})


def check_spellings(spellings: Any, numbers: Collection[str] = ()) -> list[str]:
    """Return what is wrong with declared spellings: {column: {written: meant}}; `numbers` are columns.

    A number is no spelling of another one: a job that reads 57 as 1000 singles out who is 57, and an ONNX
    file, whose input is a number, does not know how it was written.
    """
    if not isinstance(spellings, Mapping) or not all(isinstance(s, Mapping) for s in spellings.values()):
        example = propose("spellings", {"Y": "yes"}, "ill")
        return [f"spellings is {spellings!r}; it must be a table by column, like {example}."]
    problems = []
    for name, table in spellings.items():
        if not all(isinstance(text, str) for pair in table.items() for text in pair):
            problems.append(f"spellings of {name!r} are {dict(table)!r}; they must be texts.")
        elif twice := [v for v in table.values() if v in table]:
            problems.append(
                f"spellings of {name!r}: {twice[0]!r} is a spelling of another value and the meaning of one. "
                "Name the value that is meant for each."
            )
        elif name in numbers and (odd := [w for w in table if _is_float(w)]):
            problems.append(
                f"spellings of {name!r}: {odd[0]!r} is a number already, and the column is one of numbers. "
                "Correct numbers in the file."
            )
    return problems


def refuse_spellings(spellings: Mapping[str, Any], owner: str) -> None:
    """Raise BadData if there are any: a model that does not keep them would misread new rows."""
    if spellings:
        raise BadData(
            f"{owner}: {', '.join(map(repr, spellings))} have declared spellings, which this model does not "
            "keep: it would read new rows differently. Correct them in the tables instead."
        )


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def find_spellings(known: Series) -> dict[str, str]:
    """Return {written: meant} of values that are one value beyond doubt.

    They differ in case and spaces only, or all values of the column are words for one of two answers. The
    most frequent word is meant, without spaces at its ends.
    """
    texts, rows = np.unique(to_text(known).astype(str), return_counts=True)
    counts = dict(zip(texts.tolist(), rows.tolist()))
    ranked = sorted(counts, key=lambda v: (-counts[v], v))
    folded = {fold(value) for value in counts}
    pairs = [p for p in ANSWERS if folded <= p[0] | p[1] and folded & p[0] and folded & p[1]]
    pair = pairs[0] if pairs and folded - {"0", "1"} else None
    same: dict[Any, list[str]] = {}  # the spellings of one value
    for value in ranked:
        word = fold(value)
        same.setdefault((word in pair[0]) if pair is not None else word, []).append(value)
    meant = {
        key: " ".join(next((v for v in values if not v.strip().isdigit()), values[0]).split())
        for key, values in same.items()
    }
    styles = {word.islower() for word in meant.values()}
    if pair is not None and len(styles) > 1 and len(ranked) > 2:
        # "Yes" beside "no" would sort before it, and the second class is the one that is looked for
        meant = {key: word.casefold() for key, word in meant.items()}
    return {
        value: meant[key]
        for key, values in same.items()
        for value in values
        if value != meant[key] and (len(values) > 1 or value.strip() != meant[key])
    }
