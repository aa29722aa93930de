"""Uniqueness of every combination of quasi-identifiers, and minimal sample uniques.

A row is a *minimal sample unique* on a set of columns if it is unique on them and on no proper subset of
them (M. Elliot, A. Manning, R. Ford: A computational algorithm for handling the special uniques problem,
Int. J. of Uncertainty, Fuzziness and Knowledge-Based Systems 10(5), 2002: SUDA). An attacker who knows two
columns finds every row that is unique on them, whatever else the table hides.

Sets are visited by increasing size. The classes of a set are those of its parent, split by the new column,
so each set costs one pass over the distinct rows. A row that is unique on a set is unique on every superset
and is never minimal there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..parameters import bad
from .codes import encode_column, key_rows, number_keys, pack_keys, tally_keys

if TYPE_CHECKING:
    from pandas import DataFrame

MAX_SETS = 20_000  # 20 columns up to three at a time are 1,350 sets

Columns = tuple[int, ...]


class Combination(NamedTuple):
    """Uniqueness on one set of columns."""

    columns: tuple[str, ...]
    classes: int
    smallest: int
    unique: int
    minimal: int  # rows that are unique on this set and on no proper subset
    average: float  # prosecutor risk if the attacker knows these columns


def measure_combinations(frame: DataFrame, quasi: Sequence[str], most: int = 3) -> list[Combination]:
    """Measure every set of at most `most` quasi-identifiers, smallest sets first, without suppressed rows."""
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise bad("risk", "combinations", most, "a whole number of at least 1: the largest number of columns")
    most = min(most, len(quasi))
    sets = sum(comb(len(quasi), m) for m in range(1, most + 1))
    if sets > MAX_SETS:
        raise bad(
            "risk",
            "combinations",
            most,
            f"such that there are at most {MAX_SETS:,} sets of columns",
            f"{len(quasi)} columns have {sets:,} of them; use a smaller number.",
        )
    keys = key_rows((frame[c] for c in quasi), len(frame))
    live = np.flatnonzero(~keys.is_starred)
    first, _, times = tally_keys(keys.key[live], keys.space)
    distinct = [number_keys(encode_column(frame[c].iloc[live[first]])[0]) for c in quasi]
    rows = int(times.sum())

    results: list[Combination] = []
    parents: dict[Columns, tuple[np.ndarray, int]] = {(): (np.zeros(len(times), dtype=np.int64), 1)}
    # for each set, one bit per distinct row: whether it is unique
    unique_bits: dict[Columns, np.ndarray] = {(): np.zeros((len(times) + 7) // 8, dtype=np.uint8)}
    for size in range(1, most + 1):
        current: dict[Columns, tuple[np.ndarray, int]] = {}
        current_bits: dict[Columns, np.ndarray] = {}
        for chosen in combinations(range(len(quasi)), size):
            (parent, classes), (codes, values) = parents[chosen[:-1]], distinct[chosen[-1]]
            label, number = number_keys(pack_keys([parent, codes], [classes, values])[0])
            counts = np.bincount(label, times, minlength=number).astype(np.int64)
            is_unique = np.packbits(counts[label] == 1)
            below = np.bitwise_or.reduce([unique_bits[chosen[:i] + chosen[i + 1 :]] for i in range(size)])
            results.append(
                Combination(
                    tuple(str(quasi[i]) for i in chosen),
                    number,
                    int(counts.min(initial=rows)),
                    int((counts == 1).sum()),
                    int(np.unpackbits(is_unique & ~below).sum()),
                    number / rows if rows else 0.0,
                )
            )
            if size < most:
                current[chosen] = (label.astype(np.int32) if number < 2**31 else label, number)
            current_bits[chosen] = is_unique
        parents, unique_bits = current, current_bits
    return results


def share_by_column(measured: Sequence[Combination]) -> dict[str, float]:
    """For each column, the share of minimal uniques that involve it: generalize the highest one first."""
    total = sum(c.minimal for c in measured)
    names = dict.fromkeys(name for c in measured for name in c.columns)
    return {
        name: sum(c.minimal for c in measured if name in c.columns) / total if total else 0.0
        for name in names
    }
