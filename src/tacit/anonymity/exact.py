"""Integer programs, solved to proven optimality by HiGHS through SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadData, MissingExtra


def minimize(
    cost: np.ndarray,
    entries: tuple[np.ndarray, np.ndarray, np.ndarray],
    low: np.ndarray,
    high: np.ndarray,
    upper: np.ndarray,
    owner: str,
    seconds: float,
) -> np.ndarray:
    """Minimize cost·x over integers x in [0, upper] with low ≤ A x ≤ high; A as (values, rows, columns).

    Raise unless the optimum is proven.
    """
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_matrix
    except ImportError:
        raise MissingExtra(owner, "anonymity", "scipy") from None
    values, rows, columns = entries
    matrix: Any = coo_matrix((values, (rows, columns)), shape=(len(low), len(cost))).tocsc()
    solution = milp(
        cost,
        constraints=LinearConstraint(matrix, low, high),
        integrality=np.ones(len(cost)),
        bounds=Bounds(np.zeros(len(cost)), upper),
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    if solution.status == 2:
        raise BadData(f"{owner}: no table satisfies the request. Use a smaller k, or raise max_suppressed.")
    if solution.status != 0:
        raise BadData(
            f"{owner}: the optimum was not proven within {seconds:g} seconds. Use fewer rows, or "
            "method='cluster' or 'mondrian'."
        )
    return np.asarray(np.rint(solution.x).astype(np.int64))
