"""Utility of a published table, measured from the original and the published table alone.

The original has n rows and q quasi-identifiers; f_j rows are published in class j of J. A row that is
missing or has * in every quasi-identifier is suppressed. The losses are defined in `losses.py`; sources are
given there.

    discernibility       Σ f_j² + n · suppressed
    average class size   published rows / J                          (C_avg of Mondrian without the divisor k)
    granularity          mean over cells of (leaves below − 1) / (all − 1), suppressed 1
    entropy              Σ −log₂ n(value) / n(generalized), divided by the same sum if every cell is *
    precision            1 − mean over cells of level / height       (Sweeney, IJUFKS 2002, section 4)

The values that a published word covers are read from the hierarchies if they are known, and otherwise from
the rows themselves, original and published. This requires that the rows of the two tables can be matched: by
their index, or by their order if none is missing. What cannot be determined is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .classes import classes_of
from .codes import encode_used
from .hierarchies import STAR, Hierarchy
from .losses import discernibility, domain_share, lost_bits

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Utility:
    """Losses: lower is better; precision: higher is better. NaN: cannot be determined from the input."""

    discernibility: float
    class_size: float
    granularity: float
    entropy: float
    precision: float
    suppressed: int

    def to_dict(self) -> dict[str, float]:
        """The measures by the names of the risk table."""
        return {
            "discernibility": self.discernibility,
            "average class size": self.class_size,
            "granularity loss": self.granularity,
            "entropy loss": self.entropy,
            "precision": self.precision,
        }


@dataclass(frozen=True)
class Recoding:
    """How one column was recoded: its original values, its published words, and the values each word covers.

    A published word that is not a key of `covers` is unknown; likewise for `level` and `share`.
    """

    name: str
    codes: np.ndarray  # value of each original row
    values: list[str]
    published: np.ndarray  # word of each published row
    words: list[str]
    covers: dict[int, np.ndarray]  # published word → original values
    level: dict[int, float]  # published word → level / height
    share: dict[int, float]  # published word → share of the domain

    @property
    def counts(self) -> np.ndarray:
        """Original rows of each value."""
        return np.bincount(self.codes, minlength=len(self.values))


def match_rows(before: DataFrame, after: DataFrame) -> np.ndarray | None:
    """The position in the original of each published row, or None if it cannot be determined.

    A shorter table with index 0, 1, 2, … was read from a file or renumbered: its index does not tell which
    rows are missing.
    """
    import pandas as pd

    if not (before.index.is_unique and after.index.is_unique):
        return None
    is_default = isinstance(after.index, pd.RangeIndex) and after.index.start == 0 and after.index.step == 1
    if len(after) < len(before) and is_default:
        return None
    position = before.index.get_indexer(after.index)
    if not (position >= 0).all():
        return None
    return position if not is_default or _is_same_order(before, after) else None


def _is_same_order(before: DataFrame, after: DataFrame) -> bool:
    """Whether rows that were matched by their numbers can be the same rows.

    In every column, a published word that is also an original value stands where that value was.
    """
    for name in before.columns:
        if name in after.columns:
            codes, values = encode_used(before[name])
            words, published = encode_used(after[name])
            place = {v: i for i, v in enumerate(values)}
            original = np.array([place.get(w, -1) for w in published], np.int64)[words]
            if ((original >= 0) & (original != codes[: len(original)])).any():
                return False
    return True


def compare_column(
    before: DataFrame,
    after: DataFrame,
    name: str,
    position: np.ndarray | None,
    hierarchy: Hierarchy | None,
    level_used: int | None,
) -> Recoding:
    """Find what the published words of a column cover."""
    codes, values = encode_used(before[name])
    published, words = encode_used(after[name])
    index = {v: i for i, v in enumerate(values)}
    covers: dict[int, np.ndarray] = {}
    level: dict[int, float] = {}
    share: dict[int, float] = {}
    if hierarchy is not None:
        for i, column in enumerate(hierarchy.levels):
            if level_used is not None and i != level_used:
                continue
            groups: dict[str, list[str]] = {}
            for value, word in zip(hierarchy.values, column):
                groups.setdefault(word, []).append(value)
            for w, word in enumerate(words):
                if word in groups and w not in level:  # the lowest level that has the word
                    level[w] = i / hierarchy.height
                    share[w] = domain_share(len(groups[word]), len(hierarchy))
                    covers[w] = np.array([index[v] for v in groups[word] if v in index], dtype=np.int64)
    if position is not None:
        pairs = np.unique(published.astype(np.int64) * len(values) + codes[position])
        for w in range(len(words)):
            if w not in covers:
                covers[w] = pairs[pairs // len(values) == w] % len(values)
                share[w] = domain_share(len(covers[w]), len(values))
    for w, word in enumerate(words):
        if word == STAR:
            covers[w], level[w], share[w] = np.arange(len(values)), 1.0, 1.0
        elif hierarchy is None and word in index and (position is None or len(covers[w]) == 1):
            covers.setdefault(w, np.array([index[word]]))  # unchanged
            share.setdefault(w, 0.0)
    return Recoding(str(name), codes, values, published, words, covers, level, share)


def measure_utility(
    before: DataFrame,
    after: DataFrame,
    quasi: Sequence[str],
    position: np.ndarray | None,
    columns: Sequence[Recoding],
) -> Utility:
    classes = classes_of(after, quasi)
    n, rows = len(before), classes.rows
    inside = classes.label >= 0
    return Utility(
        discernibility(classes.sizes, n - rows, n),
        rows / classes.number if classes.number else math.nan,
        _mean_price(columns, [c.share for c in columns], inside, n),
        _mean_entropy(columns, position, inside, n),
        1 - _mean_price(columns, [c.level for c in columns], inside, n),
        n - rows,
    )


def _mean_price(
    columns: Sequence[Recoding], prices: Sequence[dict[int, float]], inside: np.ndarray, n: int
) -> float:
    """Mean price over cells; a suppressed row costs 1 in every column. NaN if a price is unknown."""
    total = 0.0
    for c, price in zip(columns, prices):
        array = np.array([price.get(w, math.nan) for w in range(len(c.words))])
        total += float(array[c.published[inside]].sum())
    return (total + (n - int(inside.sum())) * len(columns)) / (n * len(columns)) if n else math.nan


def _mean_entropy(
    columns: Sequence[Recoding], position: np.ndarray | None, inside: np.ndarray, n: int
) -> float:
    """Non-uniform entropy. NaN if published rows cannot be matched to original ones."""
    if position is None:
        return math.nan
    paid = most = 0.0
    is_suppressed = np.ones(n, dtype=bool)
    is_suppressed[position[inside]] = False
    for c in columns:
        counts = c.counts
        bits = lost_bits(np.array(n), counts)  # of a suppressed cell, by value
        most += float(bits[c.codes].sum())
        group = np.array([counts[c.covers[w]].sum() if w in c.covers else 0 for w in range(len(c.words))])
        published = group[c.published[inside]]
        if not published.all():
            return math.nan
        paid += float(
            lost_bits(published, counts[c.codes[position[inside]]]).sum() + bits[c.codes[is_suppressed]].sum()
        )
    return paid / most if most else 0.0
