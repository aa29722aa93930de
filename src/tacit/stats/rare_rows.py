"""Which few rows a model matrix tells apart, whatever its columns are called or how they are coded.

A column of the span that differs from 0 in few rows only has a coefficient that is nearly theirs. Two kinds
are found from sums over all parties:

    cells     combinations of the levels of the categorical columns of a term: with any contrasts, the
              indicator of a level, or of a combination in an interaction, is in the span
    columns   with exactly two values, whatever they are: with the intercept (a baseline hazard), the
              indicator of each is in the span

Four power sums tell whether a column has two values, and how many rows have the rarer one: kurtosis equals
skewness² + 1 for two values, and for nothing else. Columns that are nearly so, and indicators that several
columns give together, are found in `concentration.py`. What is not found: few events in a frequent level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pandas as pd

from ..errors import QueryRefused
from . import design
from .newton import INTERCEPT

POWERS = 4
TWO = 1e-7  # of kurtosis: rounding errors of the power sums are far below, columns of three values far above


def cell_sets(formula: str, agreement: design.Agreement) -> list[tuple[str, ...]]:
    """The categorical columns of each term, without repetitions and without sets inside larger ones."""
    found = {tuple(n for n in names if n in agreement.levels) for names in _term_columns(formula)}
    largest = [s for s in found if s and not any(set(s) < set(other) for other in found)]
    return sorted(largest)


@lru_cache(maxsize=64)
def _term_columns(formula: str) -> tuple[tuple[str, ...], ...]:
    parsed = design.load_formulaic().Formula(formula)
    side = getattr(parsed, "rhs", parsed)
    return tuple(tuple(sorted(design.read_side([term], formula)[0])) for term in side)


def cell_shape(names: Sequence[str], agreement: design.Agreement) -> tuple[int, ...]:
    return tuple(len(agreement.levels[n]) for n in names)


def cells_length(formula: str, agreement: design.Agreement) -> int:
    return sum(math.prod(cell_shape(names, agreement)) for names in cell_sets(formula, agreement))


def count_cells(formula: str, agreement: design.Agreement, frame: pd.DataFrame) -> np.ndarray:
    """Return how many rows of one party each combination of levels has, set after set."""
    parts = [np.zeros(0, dtype=np.int64)]
    for names in cell_sets(formula, agreement):
        shape = cell_shape(names, agreement)
        codes = [design.to_levels(frame[n], agreement.levels[n], n).codes for n in names]
        place = np.ravel_multi_index([np.asarray(c, dtype=np.int64) for c in codes], shape)
        parts.append(np.bincount(place, minlength=math.prod(shape)))
    return np.concatenate(parts)


def check_cells(
    owner: str, formula: str, agreement: design.Agreement, counts: np.ndarray, least: int
) -> None:
    """Refuse a model with a level, or a combination of an interaction, of 1 to least − 1 rows."""
    few, start = [], 0
    for names in cell_sets(formula, agreement):
        shape = cell_shape(names, agreement)
        part = np.asarray(counts[start : start + math.prod(shape)]).reshape(shape)
        start += part.size
        for place in np.argwhere((part > 0) & (part < least)):
            levels = [f"{n}={agreement.levels[n][k]}" for n, k in zip(names, place)]
            few.append(" and ".join(levels))
    if few:
        _refuse(owner, few, least)


def sum_powers(x: np.ndarray) -> np.ndarray:
    """Return Σz, Σz², Σz³, Σz⁴ of each column, standardized by agreed numbers."""
    square = x * x
    return np.concatenate(
        [x.sum(axis=0), square.sum(axis=0), (square * x).sum(axis=0), (square**2).sum(axis=0)]
    )


def check_columns(owner: str, names: Sequence[str], powers: np.ndarray, rows: int, least: int) -> None:
    """Refuse a column with two values of which 1 to least − 1 rows have one."""
    m1, m2, m3, m4 = np.asarray(powers).reshape(POWERS, -1) / max(rows, 1)
    few = []
    for name, a, b, c, d in zip(names, m1, m2, m3, m4):
        variance = b - a * a
        if name == INTERCEPT or not variance > 1e-9 * max(b, 1e-300):
            continue
        skew = (c - 3 * a * b + 2 * a**3) / variance**1.5
        kurtosis = (d - 4 * a * c + 6 * a * a * b - 3 * a**4) / variance**2
        if abs(kurtosis - skew**2 - 1) > TWO * kurtosis:
            continue
        rarer = rows * (1 - abs(skew) / math.sqrt(4 + skew**2)) / 2
        if round(rarer) < least:
            few.append(name)
    if few:
        _refuse(owner, few, least)


def _refuse(owner: str, few: Sequence[str], least: int) -> None:
    more = f" and {len(few) - 5} more" if len(few) > 5 else ""
    raise QueryRefused(
        f"{owner}: of all parties' rows, 1 to {least - 1} alone have another value in "
        f"{', '.join(map(repr, few[:5]))}{more}, and figures about so few are nearly theirs. Merge the level "
        "with another, leave the column out, or set min_count=1 if they may be shown."
    )
