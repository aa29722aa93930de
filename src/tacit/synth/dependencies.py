"""Functional dependencies between columns: found in the rows, and kept by sampling combinations.

A → B holds if every value of A occurs with one value of B, as a postal code with its town. A generator that
samples the two separately produces towns with the postal codes of others. The columns that one column
determines form a `Combinations` constraint with it, so that only pairs that occur are sampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .constraints import Combinations, Constraint, Unique
from .table import Table

ROWS_PER_VALUE = 5  # of the determining column, on average; with fewer, combinations would copy rows
CHANCE = math.log(1e-9)  # of a dependence between independent columns, at most
PROBE = 500  # rows on which most pairs are ruled out


def with_dependencies(table: Table, x: np.ndarray, floor: int = 1) -> Table:
    """Add constraints for the dependencies of rows `x` between columns that have no such constraint."""
    taken = {n for c in table.constraints if isinstance(c, Combinations | Unique) for n in _columns(c)}
    free = [
        j
        for j, c in enumerate(table.modeled)
        if c.name not in taken and (not c.is_number or c.kind == "integer") and not np.isnan(x[:, j]).any()
    ]
    groups = find_dependencies(x, free, floor)
    added = [Combinations(*(table.modeled[j].name for j in group)) for group in groups]
    return replace(table, constraints=(*table.constraints, *added))


def _columns(constraint: Constraint) -> Sequence[str]:
    return constraint.columns if isinstance(constraint, Combinations | Unique) else ()


def find_dependencies(x: np.ndarray, columns: Sequence[int], floor: int = 1) -> list[list[int]]:
    """Groups of columns, each a determining one and those it determines; no column is in two.

    Left out are columns with one value, dependencies that may be chance, and groups of which half of the rows
    or more have a combination that fewer than `floor` share: those are not published.
    """
    n = len(x)
    codes, counts = {}, {}
    for j in columns:
        _, code, count = np.unique(x[:, j], return_inverse=True, return_counts=True)
        if len(count) >= 2 and ROWS_PER_VALUE * len(count) <= n:
            codes[j], counts[j] = code.reshape(-1), count
    groups: list[list[int]] = []
    grouped: set[int] = set()
    for a in sorted(codes, key=lambda j: -len(counts[j])):
        if a in grouped or 2 * int(counts[a][counts[a] < floor].sum()) >= n:
            continue
        group = [
            b
            for b in codes
            if b != a
            and b not in grouped
            and len(counts[b]) <= len(counts[a])
            and _determines(codes[a][:PROBE], codes[b][:PROBE])
            and _determines(codes[a], codes[b])
            and _log_chance(counts[a], counts[b] / n) < CHANCE
        ]
        if group:
            groups.append(sorted([a, *group]))
            grouped.update(groups[-1])
    return groups


def _determines(a: np.ndarray, b: np.ndarray) -> bool:
    first = np.full(int(a.max()) + 1, -1, np.int64)
    first[a] = b  # any row of each value
    return bool((first[a] == b).all())


def _log_chance(counts: np.ndarray, shares: np.ndarray) -> float:
    """log P(every value of A occurs with one value of B) if both are independent: Π_a Σ_b p_b^(n_a)."""
    distinct, times = np.unique(counts, return_counts=True)
    log = np.log(shares)[:, None] * distinct
    top = log.max(axis=0)
    return float((times * (top + np.log(np.exp(log - top).sum(axis=0)))).sum())
