"""Find numbers that are no measurements: codes such as -9999, zeros, and numbers written with signs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .cells import to_numbers

if TYPE_CHECKING:
    from pandas import Series

# surveys have several beside each other: refused, does not know, does not apply
SENTINELS: tuple[int, ...] = (-9999, -9998, -9997, -999, -998, -997, -99, -98, -97, -9, -8, -7, -1)
SENTINELS += (97, 98, 99, 997, 998, 999, 9997, 9998, 9999, 99999, 999999)
FEW_VALUES = 10  # a whole number with so few different values may be a code
FAR = 3  # spreads between other values and a code like 999 that a tail hardly reaches
# 1,234.50 and 1.234,50 and 1 234; a currency or % before or after; 12 kg
GROUPED = r"[+-]?\d{1,3}([,.' \u00a0\u202f]\d{3})+([.,]\d+)?"
SIGNED = rf"[(]?[+-]?\s?[$€£¥]?\s?([+-]?\d+([.,]\d+)?|{GROUPED})\s?([%$€£¥]|(?<=\s)[A-Za-z]{{1,4}})?[)]?"


def find_sentinels(column: Series, doubtful: bool = False) -> list[float | int]:
    """Return codes such as -9999 that are far from all other values of a number.

    A code above all other values may be a limit, or the largest of a heavy tail (99999 as a capital gain). It
    counts if it is `FAR` spreads away; `doubtful` returns those that are not.
    """
    import pandas as pd

    if not pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return []
    values = to_numbers(column)
    values = values[~np.isnan(values)]
    codes: list[float | int] = []
    for code in SENTINELS:
        rest = values[~np.isin(values, [*SENTINELS])] if code in values else values[:0]
        if len(rest) < 2 or code not in values:
            continue
        low, high = rest.min(), rest.max()
        wide = max(high - low, 1e-12)
        gap = low - code if code < low else code - high if code > high else 0.0
        only_negative = code < -1 and low >= 0
        far = gap > wide or (only_negative and gap > 0.1 * wide and (values == code).sum() > 1)
        unclear = far and code > high and gap <= FAR * wide
        if far and unclear == doubtful:
            codes.append(code)
    return codes


def count_doubtful_zeros(known: Series) -> int:
    """Return how many values are 0, if 0 is far below all others; it may mean missing, or nothing."""
    values = to_numbers(known)
    rest = np.unique(values[values != 0])
    if len(rest) <= FEW_VALUES or rest[0] <= 0:
        return 0
    gap, spread = rest[0], rest[-1] - rest[0]
    is_far = gap > 0.1 * spread and gap > 10 * np.median(np.diff(rest))
    return int((values == 0).sum()) if is_far else 0


def is_formatted_number(known: Series) -> bool:
    """Whether nearly all cells are numbers and most have a sign, like $1,234.50 or 45%."""
    texts = known.astype(str).str.strip()
    if texts.str.fullmatch(SIGNED).mean() < 0.95:
        return False
    plain = texts.str.fullmatch(r"[+-]?\d+(\.\d+)?")
    units = set(texts.str.extract(r"\s([A-Za-z]{1,4})$")[0].dropna())
    return bool(plain.mean() <= 0.5 and len(units) <= 1)
