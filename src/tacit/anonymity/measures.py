"""What a published table is still good for: measured from the two tables, whoever made the second one.

n rows were given, in q quasi-identifiers; f_j rows are published in class j of J; a row that is missing or
shows * everywhere is suppressed.

    discernibility       Σ f_j² + n · suppressed                  Bayardo, Agrawal: Data privacy through optimal k-anonymization, ICDE 2005
    average class size   published rows / J                       LeFevre, DeWitt, Ramakrishnan: Mondrian, ICDE 2006 (there divided by k)
    granularity          mean over cells of (leaves below − 1) / (all − 1), suppressed 1     Iyengar: Transforming data to satisfy privacy constraints, KDD 2002
    entropy              Σ −log₂ n(value) / n(generalised), over the same sum with everything *    Gionis, Tassa: k-Anonymization with minimal loss, TKDE 2009
    precision            1 − mean over cells of level / height    Sweeney: Achieving k-anonymity privacy protection, IJUFKS 2002, section 4

Which values lie below a published one is read from the hierarchies where they are given, and else from the
rows themselves, original beside published. For that the tables must hold the same rows: by their index, or
by their order where none is missing. What cannot be known is NaN, not a guess.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .classes import Classes, classes_of, numbered
from .hierarchies import STAR, Hierarchy

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Utility:
    """Losses: lower is better; precision: higher is. NaN: not to be known from what was given."""

    discernibility: float
    class_size: float
    granularity: float
    entropy: float
    precision: float
    suppressed: int


@dataclass(frozen=True)
class Column:
    """One quasi-identifier before and after. `below[w]` are the originals (by number) a published word stands
    for; a word that is not in it is unknown.
    """

    name: str
    codes: np.ndarray  # of the original rows
    words: list[str]  # what an original's number stands for
    published: np.ndarray  # per published row, the number of its word
    said: list[str]  # published words
    below: dict[int, np.ndarray]  # published word → originals
    level: dict[int, float]  # published word → level / height
    leaves: dict[int, float]  # published word → (leaves − 1) / (all − 1)

    @property
    def counts(self) -> np.ndarray:
        return np.bincount(self.codes, minlength=len(self.words))


def aligned(before: DataFrame, after: DataFrame) -> np.ndarray | None:
    """For each published row its position in the original, or None where that cannot be told.

    A shorter table whose rows are numbered 0, 1, 2, … was read from a file or numbered anew: its numbers say
    nothing about which rows are missing.
    """
    import pandas as pd

    if not (before.index.is_unique and after.index.is_unique):
        return None
    fresh = isinstance(after.index, pd.RangeIndex) and after.index.start == 0 and after.index.step == 1
    if len(after) < len(before) and fresh:
        return None
    at = before.index.get_indexer(after.index)
    return at if (at >= 0).all() else None


def columns(
    before: DataFrame,
    after: DataFrame,
    quasi: Sequence[str],
    at: np.ndarray | None,
    hierarchies: Mapping[str, Hierarchy] | None = None,
    levels: Mapping[str, int | None] | None = None,
) -> list[Column]:
    out = []
    for name in quasi:
        codes, words = numbered(before[name])
        published, said = numbered(after[name])
        known = {w: i for i, w in enumerate(words)}
        below, level, leaves = {}, {}, {}
        given = (hierarchies or {}).get(name)
        if given is not None:
            at_level = (levels or {}).get(name)
            for i, column in enumerate(given.levels):
                if at_level is not None and i != at_level:
                    continue
                groups: dict[str, list[str]] = {}
                for value, word in zip(given.values, column):
                    groups.setdefault(word, []).append(value)
                for w, word in enumerate(said):
                    if word in groups and w not in level:  # the lowest level with this word
                        level[w] = i / given.height
                        leaves[w] = (len(groups[word]) - 1) / max(1, len(given) - 1)
                        below[w] = np.array([known[v] for v in groups[word] if v in known], dtype=np.int64)
        if at is not None:
            pairs = np.unique(published.astype(np.int64) * len(words) + codes[at])
            for w in range(len(said)):
                if w not in below:
                    below[w] = pairs[pairs // len(words) == w] % len(words)
                    leaves[w] = (len(below[w]) - 1) / max(1, len(words) - 1)
        for w, word in enumerate(said):
            if word == STAR:
                below[w], level[w], leaves[w] = np.arange(len(words)), 1.0, 1.0
            elif given is None and word in known and (at is None or len(below[w]) == 1):
                below.setdefault(w, np.array([known[word]]))  # unchanged
                leaves.setdefault(w, 0.0)
        out.append(Column(str(name), codes, words, published, said, below, level, leaves))
    return out


def utility(
    before: DataFrame,
    after: DataFrame,
    quasi: Sequence[str],
    at: np.ndarray | None,
    cells: Sequence[Column],
    found: Classes | None = None,
) -> Utility:
    found = found or classes_of(after, quasi)
    n, shown = len(before), found.of >= 0
    lost = n - found.rows
    f = found.sizes.astype(float)
    size = found.rows / len(f) if len(f) else math.nan
    total = n * len(quasi)

    def mean(prices: list[dict[int, float]]) -> float:
        """Mean over cells; a suppressed row is charged 1 in every column."""
        if any(
            w not in price
            for column, price in zip(cells, prices)
            for w in np.unique(column.published[shown]).tolist()
        ):
            return math.nan
        kept = sum(
            float(np.array([price.get(w, 0.0) for w in range(len(c.said))])[c.published[shown]].sum())
            for c, price in zip(cells, prices)
        )
        return (kept + lost * len(quasi)) / total if total else math.nan

    precision = 1 - mean([c.level for c in cells])
    return Utility(
        float((f**2).sum()) + float(lost) * n,
        size,
        mean([c.leaves for c in cells]),
        _entropy(cells, at, shown, n),
        precision,
        lost,
    )


def _entropy(cells: Sequence[Column], at: np.ndarray | None, shown: np.ndarray, n: int) -> float:
    """Non-uniform entropy: needs to know of each published row which original it was."""
    if at is None:
        return math.nan
    paid = most = 0.0
    missing = np.ones(n, dtype=bool)
    missing[at[shown]] = False
    for c in cells:
        bits = math.log2(n) - np.log2(c.counts) if n else c.counts.astype(float)
        most += float(bits[c.codes].sum())
        group = np.array(
            [c.counts[c.below[w]].sum() if w in c.below else 0 for w in range(len(c.said))], dtype=float
        )
        if not group[c.published[shown]].all():
            return math.nan
        paid += float(
            (np.log2(group[c.published[shown]]) - np.log2(c.counts[c.codes[at[shown]]])).sum()
            + bits[c.codes[missing]].sum()
        )
    return paid / most if most else 0.0


def as_dict(measured: Utility) -> dict[str, Any]:
    return {
        "discernibility": measured.discernibility,
        "average class size": measured.class_size,
        "granularity loss": measured.granularity,
        "entropy loss": measured.entropy,
        "precision": measured.precision,
    }
