"""Which columns single people out: uniqueness of every combination of quasi-identifiers, and the minimal
ones.

A row is a *minimal sample unique* on a set of columns when it is unique on them and on no smaller part of
them (M. Elliot, A. Manning, R. Ford: A computational algorithm for handling the special uniques problem, Int.
J. of Uncertainty, Fuzziness and Knowledge-Based Systems 10(5), 2002: SUDA). A row that is unique on two
columns is found by whoever knows those two, whatever else the table hides.

Sets are visited with one column more at a time: a set's classes are its parent's, split by the new column, so
each costs one pass over the rows. Only rows that are different, with how often each occurs, are looked at. A
row that is unique on a set stays so on every larger one and is never minimal there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..parameters import bad
from .classes import compact, joined, numbered
from .hierarchies import STAR

if TYPE_CHECKING:
    from pandas import DataFrame

MOST = 20_000  # sets of columns; 20 columns three at a time are 1,350


class Combination(NamedTuple):
    """One set of columns. `minimal` are rows unique on it and on no part of it."""

    columns: tuple[str, ...]
    classes: int
    smallest: int
    unique: int
    minimal: int
    average: float  # prosecutor risk of somebody who knows these columns


def by_combination(frame: DataFrame, quasi: Sequence[str], most: int = 3) -> list[Combination]:
    """Every set of at most `most` quasi-identifiers, the smallest sets first. Suppressed rows (all *) are
    left out.
    """
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise bad(
            "risk",
            "combinations",
            most,
            "a whole number of at least 1: how many columns a combination may have",
        )
    most = min(most, len(quasi))
    sets = sum(comb(len(quasi), m) for m in range(1, most + 1))
    if sets > MOST:
        raise bad(
            "risk",
            "combinations",
            most,
            f"such that there are at most {MOST:,} sets of columns",
            f"{len(quasi)} columns have {sets:,} of them; give a smaller number.",
        )
    columns = [numbered(frame[c]) for c in quasi]
    kept = ~np.logical_and.reduce(
        [codes == (words.index(STAR) if STAR in words else -1) for codes, words in columns]
    )
    key, kinds = np.zeros(int(kept.sum()), dtype=np.int64), 1
    for codes, words in columns:
        key, kinds = joined(key, kinds, codes[kept], len(words))
    times = np.bincount(key, minlength=kinds) if len(key) else np.zeros(0, dtype=np.int64)
    first = np.zeros(len(times), dtype=np.int64)
    first[key] = np.arange(len(key))  # one row of each kind
    distinct = [compact(codes[kept][first]) for codes, _ in columns]
    rows = int(times.sum())

    found: list[Combination] = []
    parents: dict[tuple[int, ...], tuple[np.ndarray, int]] = {(): (np.zeros(len(times), dtype=np.int64), 1)}
    seen_unique: dict[tuple[int, ...], np.ndarray] = {
        (): np.zeros((len(times) + 7) // 8, dtype=np.uint8)
    }  # a bit a row
    for size in range(1, most + 1):
        here: dict[tuple[int, ...], tuple[np.ndarray, int]] = {}
        uniques: dict[tuple[int, ...], np.ndarray] = {}
        for chosen in combinations(range(len(quasi)), size):
            parent, many = parents[chosen[:-1]]
            codes, kinds = joined(parent, many, *distinct[chosen[-1]])
            counts = (
                np.bincount(codes, times, minlength=kinds).astype(np.int64)
                if len(codes)
                else np.zeros(0, dtype=np.int64)
            )
            alone = np.packbits(counts[codes] == 1)
            before = np.bitwise_or.reduce([seen_unique[chosen[:i] + chosen[i + 1 :]] for i in range(size)])
            minimal = int(np.unpackbits(alone & ~before).sum())
            unique = int((counts == 1).sum())
            found.append(
                Combination(
                    tuple(str(quasi[i]) for i in chosen),
                    len(counts),
                    int(counts.min(initial=rows)),
                    unique,
                    minimal,
                    len(counts) / rows if rows else 0.0,
                )
            )
            if size < most:
                here[chosen] = (codes.astype(np.int32) if kinds < 2**31 else codes, kinds)
            uniques[chosen] = alone
        parents, seen_unique = here, uniques
    return found


def by_column(found: Sequence[Combination]) -> dict[str, float]:
    """For each column, the share of minimal uniques that need it: what to generalise first."""
    total = sum(c.minimal for c in found)
    names = dict.fromkeys(name for c in found for name in c.columns)
    return {
        name: sum(c.minimal for c in found if name in c.columns) / total if total else 0.0 for name in names
    }
