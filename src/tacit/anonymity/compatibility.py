"""Who fits whom: for tables whose rows need not look alike (k-ambiguity), where counting equal rows says
nothing.

A published row fits an original one when every cell of it stands for the original's value (S. Vinterbo:
Privacy: a machine learning view, TKDE 16(8), 2004). Somebody who knows a person finds the published rows that
fit; somebody who knows everybody finds the originals that fit a published row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .classes import compact, joined
from .measures import Column

MOST_PAIRS = 4 * 10**8  # of different originals and different published rows: some seconds a column
BLOCK = 2**24  # pairs looked at together


class Fits(NamedTuple):
    """The least number of published rows that fit an original, of originals that fit a published row, and the
    average chance to pick the right one.
    """

    published: int
    originals: int
    average: float


def fits(cells: Sequence[Column]) -> Fits | None:
    """A row of * alone fits everybody and counts. None where what a word stands for is unknown, or there are
    too many pairs.
    """
    if any(w not in c.below for c in cells for w in range(len(c.said))) or not len(cells[0].published):
        return None
    was, there = _different([c.codes for c in cells])
    now, here = _different([c.published for c in cells])
    if len(there) * len(here) > MOST_PAIRS:
        return None
    covers = []
    for c in cells:
        table = np.zeros((len(c.said), len(c.words)), dtype=bool)
        for w, originals in c.below.items():
            table[w, originals] = True
        covers.append(table)
    for_original, for_published = np.zeros(len(there), dtype=np.int64), np.zeros(len(here), dtype=np.int64)
    step = max(1, BLOCK // max(1, len(there)))
    for start in range(0, len(here), step):
        fit = np.ones((min(step, len(here) - start), len(there)), dtype=bool)
        for j in range(len(cells)):
            fit &= covers[j][now[start : start + step, j]][:, was[:, j]]
        for_original += here[start : start + step] @ fit
        for_published[start : start + step] = fit @ there
    chance = float((there / np.maximum(for_original, 1)).sum() / there.sum())
    return Fits(int(for_original.min()), int(for_published.min()), chance)


def _different(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The different rows, and how often each occurs."""
    key, kinds = np.zeros(len(columns[0]), dtype=np.int64), 1
    for codes in columns:
        own, many = compact(codes)
        key, kinds = joined(key, kinds, own, many)
    first = np.zeros(kinds, dtype=np.int64)
    first[key] = np.arange(len(key))
    return np.stack([codes[first] for codes in columns], axis=1), np.bincount(key, minlength=kinds)
