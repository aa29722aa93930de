"""Cell suppression: hide small counts, and others so that the small ones cannot be recovered from totals.

A reader knows the published cells, the sums between cells, and that a hidden cell is not empty: empty cells
are never hidden, since a reader may know that they must be empty. What this says about a hidden cell is two
linear programs: its smallest and its largest value. A small cell (0 < count < k) is *protected* if they are 1
and at least `interval`: it cannot be told from a cell of one person, nor from one of `interval` people. (A
small total is at least the number of cells in it that are not empty.)

M. Fischetti, J. J. Salazar-González: "Solving the Cell Suppression Problem on Tabular Data with Linear
Constraints", Management Science 47, 2001. The quick solution protects one cell after the other by the
cheapest table that differs from the true one as required (J. P. Kelly, B. L. Golden, A. A. Assad: "Cell
Suppression: Disclosure Protection for Sensitive Tabular Data", Networks 22, 1992), then shows cells again
that are not needed. The exact one is a mixed-integer program with cuts from the dual of the reader's
programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import BadData
from .cube import CountTable

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

TOLERANCE = 1e-6  # of the linear programs
MAX_ROUNDS = 1000  # of the exact solution, each with at least one new cut


@dataclass(frozen=True)
class Need:
    """A small cell must be able to move by this much: up (positive) or down (negative)."""

    cell: int
    change: int


def cell_weights(table: CountTable) -> np.ndarray:
    """The loss if a cell is hidden: small cells and cells inside the table first, totals last."""
    return np.asarray(1 + np.log2(1 + table.counts))


def find_small(table: CountTable, k: int) -> np.ndarray:
    return np.flatnonzero((table.people > 0) & (table.people < k))


def bound_cells(table: CountTable, hidden: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """[cells, 2]: what a reader can conclude about hidden cells: their smallest and largest count.

    With whole numbers where linear programs do not give them already (three dimensions, two hierarchies).
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    index = np.flatnonzero(hidden)
    position = {int(c): i for i, c in enumerate(index)}
    matrix, _ = _reduce(table, index)
    shown = np.where(hidden, 0, table.counts)
    right = -(table.equations[_touched(table, index)] @ shown)
    bounds = np.zeros((len(cells), 2))
    for row, cell in enumerate(cells):
        for column, sign in enumerate((1, -1)):
            objective = np.zeros(len(index))
            objective[position[int(cell)]] = sign
            solved = milp(
                objective,
                constraints=LinearConstraint(matrix, right, right),
                bounds=Bounds(table.least[index], np.inf),
                integrality=np.full(len(index), 0 if table.is_network else 1),
            )
            if not solved.success:
                raise RuntimeError(f"internal error (please report it): {solved.message}")
            bounds[row, column] = sign * solved.fun
    return np.rint(bounds).astype(np.int64)


def suppress(
    table: CountTable, k: int, interval: int, exact: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(which cells are hidden, the small ones, what a reader can conclude about those).

    The bounds are computed from the published cells alone, after the choice of cells.
    """
    if int(table.counts[-1]) < max(k, interval):
        raise BadData(
            f"tabulate: the table counts {int(table.counts[-1]):,} rows, fewer than k = {k} or interval = "
            f"{interval}, so nothing can be published."
        )
    small = find_small(table, k)
    if table.people[-1] < k:
        raise _no_choice(table)
    hidden = np.zeros(len(table.counts), bool)
    if not len(small):
        return hidden, small, np.zeros((0, 2), np.int64)
    needs = [
        Need(int(c), int(change))
        for c in small
        for change in (max(interval - table.counts[c], 0), table.least[c] - table.counts[c])
        if change
    ]
    for _ in range(MAX_ROUNDS):
        hidden = _choose_exactly(table, small, needs) if exact else _choose(table, small, needs)
        bounds = bound_cells(table, hidden, small)
        # in whole numbers less may be possible than in fractions: ask for more
        short = {int(c): (low > table.least[c], high < interval) for c, (low, high) in zip(small, bounds)}
        if not any(any(s) for s in short.values()):
            return hidden, small, bounds
        needs = [Need(n.cell, n.change + 1) if n.change > 0 and short[n.cell][1] else n for n in needs]
        blocked = [c for c, (low, _) in short.items() if low]
        if blocked:  # below the least nothing can be asked for: hide the cells that share a sum with it
            hidden = _hide_neighbors(table, hidden, blocked)
            bounds = bound_cells(table, hidden, small)
            if not ((bounds[:, 0] > table.least[small]) | (bounds[:, 1] < interval)).any():
                return hidden, small, bounds
    raise _no_choice(table)


def _find_candidates(table: CountTable) -> np.ndarray:
    """The cells that may be hidden: neither empty ones nor the total of all."""
    return np.flatnonzero(table.counts[:-1] > 0)


def _touched(table: CountTable, index: np.ndarray) -> np.ndarray:
    return np.flatnonzero(np.diff(table.equations[:, index].tocsr().indptr))


def _reduce(table: CountTable, index: np.ndarray) -> tuple[csr_matrix, np.ndarray]:
    """The sums that contain one of these cells."""
    rows = _touched(table, index)
    return table.equations[rows][:, index], rows


def _hide_neighbors(table: CountTable, hidden: np.ndarray, cells: list[int]) -> np.ndarray:
    rows = np.unique(table.equations[:, cells].nonzero()[0])
    near = np.unique(table.equations[rows].nonzero()[1])
    more = hidden.copy()
    more[np.intersect1d(near, _find_candidates(table))] = True
    return more


def _move(table: CountTable, candidates: np.ndarray, cost: np.ndarray, need: Need) -> np.ndarray | None:
    """The cheapest change of the candidates that changes a cell as needed; None: there is none."""
    from scipy.optimize import linprog
    from scipy.sparse import hstack

    matrix, _ = _reduce(table, candidates)
    n = len(candidates)
    at = int(np.flatnonzero(candidates == need.cell)[0])
    spare = (table.counts - table.least)[candidates].astype(float)
    upper = np.concatenate([np.full(n, np.inf), spare])
    lower = np.zeros(2 * n)
    if need.change > 0:
        lower[at] = upper[at] = need.change
        upper[n + at] = 0
    else:
        upper[at] = 0
        lower[n + at] = upper[n + at] = -need.change
    solved = linprog(
        np.concatenate([cost, cost]),
        A_eq=hstack([matrix, -matrix]),
        b_eq=np.zeros(matrix.shape[0]),
        bounds=np.stack([lower, upper], axis=1),
        method="highs-ds",  # a vertex: few cells change
    )
    if not solved.success:
        return None
    change = np.zeros(len(table.counts))
    change[candidates] = solved.x[:n] - solved.x[n:]
    change[np.abs(change) < TOLERANCE] = 0
    return change


def _choose(table: CountTable, small: np.ndarray, needs: list[Need]) -> np.ndarray:
    """Protect one small cell after the other, then show what is not needed."""
    weights = cell_weights(table)
    hidden = np.zeros(len(table.counts), bool)
    hidden[small] = True
    candidates = _find_candidates(table)
    witness: dict[Need, np.ndarray] = {}
    # the largest change first: what it hides often serves the others
    for need in sorted(needs, key=lambda n: -abs(n.change)):
        if any(_serves(change, need) for change in witness.values()):
            continue
        cost = np.where(hidden[candidates], 1e-4, weights[candidates])
        change = _move(table, candidates, cost, need)
        if change is None:
            raise _no_choice(table)
        witness[need] = change
        hidden |= change != 0
    return _show_again(table, hidden, small, needs, weights, list(witness.values()))


def _serves(change: np.ndarray, need: Need) -> bool:
    """Whether a change that is possible shows that a need is satisfied."""
    return bool(change[need.cell] * np.sign(need.change) >= abs(need.change) - TOLERANCE)


def _show_again(
    table: CountTable,
    hidden: np.ndarray,
    small: np.ndarray,
    needs: list[Need],
    weights: np.ndarray,
    pool: list[np.ndarray],
) -> np.ndarray:
    """Show hidden cells again, the most valuable first, as long as every need is satisfied without them.

    `pool` are changes of the hidden cells that show that the needs are satisfied.
    """
    is_small = np.zeros(len(hidden), bool)
    is_small[small] = True

    def check(index: np.ndarray) -> list[np.ndarray] | None:
        inside = np.zeros(len(hidden), bool)
        inside[index] = True
        kept = [c for c in pool if not (c != 0)[~inside].any()]
        for need in needs:
            if not any(_serves(c, need) for c in kept):
                change = _move(table, index, np.ones(len(index)), need)
                if change is None:
                    return None
                kept.append(change)
        return kept

    for cell in sorted(np.flatnonzero(hidden & ~is_small), key=lambda c: -weights[c]):
        trial = hidden.copy()
        trial[cell] = False
        kept = check(np.flatnonzero(trial))
        if kept is not None:
            hidden, pool = trial, kept
    return hidden


def _choose_exactly(table: CountTable, small: np.ndarray, needs: list[Need]) -> np.ndarray:
    """The cells of least weight that protect the small ones: a master program with cuts.

    A reader's program max y_p with M y = 0, (least − count) · s ≤ y ≤ U · s has a dual solution (d) that is
    feasible for every choice s, so Σ s_i ((count_i − least_i) · max(d_i, 0) + U · max(−d_i, 0)) ≥ change is
    necessary.
    """
    from scipy.optimize import Bounds, LinearConstraint, linprog, milp

    candidates = _find_candidates(table)
    matrix, _ = _reduce(table, candidates)
    spare = (table.counts - table.least)[candidates].astype(float)
    most = float(table.counts[-1])
    fixed = np.isin(candidates, small).astype(float)
    weights = cell_weights(table)[candidates]
    at = {int(c): i for i, c in enumerate(candidates)}
    rows: list[np.ndarray] = []
    right: list[float] = []
    for _ in range(MAX_ROUNDS):
        constraints = [LinearConstraint(np.array(rows), np.array(right), np.inf)] if rows else []
        master = milp(
            weights, constraints=constraints, bounds=Bounds(fixed, 1), integrality=np.ones(len(candidates))
        )
        if not master.success:
            raise _no_choice(table)
        chosen = np.rint(master.x)
        found = False
        for need in needs:
            objective = np.zeros(len(candidates))
            objective[at[need.cell]] = -np.sign(need.change)
            solved = linprog(
                objective,
                A_eq=matrix,
                b_eq=np.zeros(matrix.shape[0]),
                bounds=np.stack([-spare * chosen, most * chosen], axis=1),
                method="highs-ds",
            )
            if -solved.fun < abs(need.change) - TOLERANCE:
                dual = solved.lower.marginals + solved.upper.marginals
                cut = spare * np.maximum(dual, 0) + most * np.maximum(-dual, 0)
                rows.append(np.minimum(cut, abs(need.change)))
                right.append(abs(need.change) - TOLERANCE)
                found = True
        if not found:
            hidden = np.zeros(len(table.counts), bool)
            hidden[candidates[chosen > 0]] = True
            return hidden
    raise _no_choice(table)


def _no_choice(table: CountTable) -> BadData:
    return BadData(
        f"tabulate: the table counts {int(table.counts[-1]):,} rows, so few that not even its total could be "
        "shown beside its small cells. Use fewer columns, columns with fewer values, or a smaller k."
    )
