"""The assignment problem, by shortest augmenting paths.

R. Jonker, A. Volgenant: "A Shortest Augmenting Path Algorithm for Dense and Sparse Linear Assignment
Problems", Computing 38, 1987; H. W. Kuhn: "The Hungarian Method for the Assignment Problem", 1955. It takes
O(n²·m) operations, of which NumPy computes a row of m at a time.
"""

from __future__ import annotations

import numpy as np


def assign(cost: np.ndarray) -> np.ndarray:
    """[n] a distinct column for each row of `cost` [n, m], with the least sum.

    `cost` must be finite and have no more rows than columns.
    """
    n, m = cost.shape
    if n > m or not np.isfinite(cost).all():
        raise ValueError(
            f"costs of shape {n} × {m}: rows must not outnumber columns, and costs must be finite"
        )
    of_row, of_column = np.zeros(n + 1), np.zeros(m + 1)  # the dual variables; index 0 is a dummy
    row = np.zeros(m + 1, dtype=np.int64)  # the row assigned to each column, counted from 1; 0: none
    for i in range(1, n + 1):
        row[0], column = i, 0
        least, before = np.full(m + 1, np.inf), np.zeros(m + 1, dtype=np.int64)
        seen = np.zeros(m + 1, dtype=bool)
        while row[column]:  # grow the tree of shortest paths from row i until it reaches a free column
            seen[column] = True
            here = row[column]
            reduced = cost[here - 1] - of_row[here] - of_column[1:]
            shorter = ~seen[1:] & (reduced < least[1:])
            least[1:][shorter] = reduced[shorter]
            before[1:][shorter] = column
            column = int(np.where(seen, np.inf, least)[1:].argmin()) + 1
            by = least[column]
            of_row[row[seen]] += by
            of_column[seen] -= by
            least[~seen] -= by
        while column:  # reassign the columns of the path, back to row i
            row[column] = row[before[column]]
            column = int(before[column])
    columns = np.empty(n, dtype=np.int64)
    assigned = np.flatnonzero(row[1:])
    columns[row[1:][assigned] - 1] = assigned
    return columns
