"""Compatibility of published and original rows, for k-ambiguity: there, counting equal rows is not
meaningful.

A published row is compatible with an original one if every cell of it covers the original's value (S.
Vinterbo: Privacy: a machine learning view, TKDE 16(8), 2004). An attacker who knows a person finds the
compatible published rows; an attacker who knows everybody finds the originals that are compatible with a
published row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .codes import pack_keys, tally_keys
from .measures import Recoding

MAX_PAIRS = 4 * 10**8  # of different originals and different published rows: some seconds per column
BLOCK = 2**24  # pairs processed together


class Compatibility(NamedTuple):
    """How many rows are compatible with each other."""

    published: int  # the smallest number of published rows compatible with an original
    originals: int  # the smallest number of originals compatible with a published row
    average: float  # the average probability of choosing the right published row


def measure_compatibility(columns: Sequence[Recoding]) -> Compatibility | None:
    """Count compatible rows; rows of * are compatible with all originals.

    None if it is unknown what a word covers, or there are too many pairs.
    """
    if any(w not in c.covers for c in columns for w in range(len(c.words))) or not len(columns[0].published):
        return None
    originals, original_counts = _distinct_rows([c.codes for c in columns], [len(c.values) for c in columns])
    published, counts = _distinct_rows([c.published for c in columns], [len(c.words) for c in columns])
    if len(originals) * len(published) > MAX_PAIRS:
        return None
    covers = []
    for c in columns:
        table = np.zeros((len(c.words), len(c.values)), dtype=bool)
        for w, values in c.covers.items():
            table[w, values] = True
        covers.append(table)
    per_original = np.zeros(len(originals), dtype=np.int64)
    per_published = np.zeros(len(published), dtype=np.int64)
    step = max(1, BLOCK // max(1, len(originals)))
    for start in range(0, len(published), step):
        block = slice(start, start + step)
        fits = np.ones((len(published[block]), len(originals)), dtype=bool)
        for j, table in enumerate(covers):
            fits &= table[published[block, j]][:, originals[:, j]]
        per_original += counts[block] @ fits
        per_published[block] = fits @ original_counts
    average = float((original_counts / np.maximum(per_original, 1)).sum() / original_counts.sum())
    return Compatibility(int(per_original.min()), int(per_published.min()), average)


def _distinct_rows(columns: Sequence[np.ndarray], sizes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """(the distinct rows in order of appearance, how often each occurs)."""
    first, _, counts = tally_keys(*pack_keys(columns, sizes))
    order = np.argsort(first)
    return np.stack([codes[first[order]] for codes in columns], axis=1), counts[order]
