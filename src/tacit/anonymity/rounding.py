"""Controlled rounding of a table of counts: every cell becomes one of the two nearest multiples of a base,
and all totals remain the sums of their cells.

L. H. Cox: "A Constructive Procedure for Unbiased Controlled Rounding", JASA 82, 1987. The fractions of the
cells walk at random along directions that keep all sums, until each is 0 or 1; a step goes up or down with
probabilities that keep the expectation. In a network (two dimensions, at most one hierarchy) the walk ends
at a whole table, and the expectation of each cell is its count. In other tables it may end at fractions; then
a mixed-integer program rounds the rest, and expectations hold approximately. Multiples of the base, and so
empty cells, stay as they are.
"""

from __future__ import annotations

import random

import numpy as np

from ..errors import BadData
from .cube import CountTable

WHOLE = 1e-7  # a fraction this close to 0 or 1 has arrived
MAX_CELLS = 3_000  # a step of the walk takes time by the square of the cells inside the table
TRIES = 20  # rounded tables that are drawn until no small cell is too well known


def round_counts(table: CountTable, base: int, draw: random.Random) -> np.ndarray:
    """A rounded table. All totals are the sums of their cells."""
    fraction = (table.counts % base) / base
    sums = _inner_sums(table)
    walked = _walk(fraction, sums, draw)
    if np.minimum(walked, 1 - walked).max(initial=0) > WHOLE:
        walked = _finish(table, base, walked)
    return np.asarray(base * (table.counts // base + np.rint(walked).astype(np.int64)))


def _inner_sums(table: CountTable) -> np.ndarray:
    """[cells, cells inside the table]: each cell as a sum of those that are no totals."""
    sums = np.ones((1, 1))
    for d in table.dimensions:
        sums = np.kron(sums, d.sums)
    return sums


def _walk(fraction: np.ndarray, sums: np.ndarray, draw: random.Random) -> np.ndarray:
    f = fraction.copy()
    free = f > WHOLE
    # directions of the cells inside that change no fixed cell: one column each
    basis = np.eye(sums.shape[1])
    for cell in np.flatnonzero(~free):
        basis = _fix(basis, sums[cell])
    while basis.shape[1]:
        step = sums @ basis[:, draw.randrange(basis.shape[1])]
        step[np.abs(step) < 1e-9] = 0
        with np.errstate(divide="ignore", invalid="ignore"):
            up = np.where(step > 0, (1 - f) / step, np.where(step < 0, -f / step, np.inf)).min()
            down = np.where(step > 0, f / step, np.where(step < 0, (f - 1) / step, np.inf)).min()
        f += step * (up if draw.random() < down / (up + down) else -down)
        for cell in np.flatnonzero(free & (np.minimum(f, 1 - f) < WHOLE)):
            free[cell] = False
            f[cell] = np.rint(f[cell])
            basis = _fix(basis, sums[cell])
    return f


def _fix(basis: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The directions that do not change a cell."""
    effect = row @ basis
    if not len(effect) or np.abs(effect).max() < 1e-9:
        return basis
    pivot = int(np.argmax(np.abs(effect)))
    rest = np.delete(basis, pivot, axis=1)
    return rest - np.outer(basis[:, pivot], np.delete(effect, pivot) / effect[pivot])


def _finish(table: CountTable, base: int, fraction: np.ndarray) -> np.ndarray:
    """The whole table nearest to fractions at which the walk ended."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    low = (table.counts // base).astype(float)
    right = -(table.equations @ low)
    upper = (table.counts % base > 0).astype(float)
    solved = milp(
        1 - 2 * fraction,
        constraints=LinearConstraint(table.equations, right, right),
        bounds=Bounds(0, upper),
        integrality=np.ones(len(low)),
    )
    if not solved.success:
        raise BadData(
            f"tabulate: no table of multiples of {base} keeps all sums. Use another base, fewer columns, or "
            "method='suppress'."
        )
    return np.asarray(np.rint(solved.x))


def bound_rounded(table: CountTable, rounded: np.ndarray, base: int, cells: np.ndarray) -> np.ndarray:
    """[cells, 2]: the smallest and largest true count, for a reader of the rounded table and of `base`."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    bounds = np.zeros((len(cells), 2))
    for row, cell in enumerate(cells):
        for column, sign in enumerate((1, -1)):
            objective = np.zeros(len(rounded))
            objective[cell] = sign
            solved = milp(
                objective,
                constraints=LinearConstraint(table.equations, 0, 0),
                bounds=Bounds(np.maximum(rounded - base + 1, 0), rounded + base - 1),
                integrality=np.full(len(rounded), 0 if table.is_network else 1),
            )
            if not solved.success:
                raise RuntimeError(f"internal error (please report it): {solved.message}")
            bounds[row, column] = sign * solved.fun
    return np.rint(bounds).astype(np.int64)


def round_safely(
    table: CountTable, base: int, small: np.ndarray, draw: random.Random
) -> tuple[np.ndarray, np.ndarray]:
    """(a rounded table, what a reader can conclude about its small cells).

    A table from which a small cell can be narrowed to fewer than `base` counts is drawn again.
    """
    if len(table.counts) > MAX_CELLS:
        raise BadData(
            f"tabulate: the table has {len(table.counts):,} cells with its totals; method='round' takes at "
            f"most {MAX_CELLS:,}. Use fewer columns, or method='suppress'."
        )
    for _ in range(TRIES):
        rounded = round_counts(table, base, draw)
        bounds = bound_rounded(table, rounded, base, small)
        if (bounds[:, 1] - bounds[:, 0] >= base - 1).all():
            return rounded, bounds
    raise BadData(
        f"tabulate: in {TRIES} rounded tables a small cell could be narrowed to fewer than {base} counts. "
        "Use a larger base, fewer columns, or method='suppress'."
    )
