"""Integer programs, solved to proven optimality by HiGHS through scipy."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadData, MissingExtra


def minimise(
    cost: np.ndarray,
    entries: tuple[np.ndarray, np.ndarray, np.ndarray],
    low: np.ndarray,
    high: np.ndarray,
    upper: np.ndarray,
    what: str,
    seconds: float,
) -> np.ndarray:
    """Whole x in [0, upper] with low ≤ A x ≤ high at the least cost·x; A as (values, rows, columns). Raises
    unless the optimum is proven.
    """
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_matrix
    except ImportError:
        raise MissingExtra(what, "anonymity", "scipy") from None
    values, rows, columns = entries
    matrix: Any = coo_matrix((values, (rows, columns)), shape=(len(low), len(cost))).tocsc()
    found = milp(
        cost,
        constraints=LinearConstraint(matrix, low, high),
        integrality=np.ones(len(cost)),
        bounds=Bounds(np.zeros(len(cost)), upper),
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    if found.status == 2:
        raise BadData(
            f"{what}: no table satisfies what is asked. Ask for a smaller k, or raise max_suppressed."
        )
    if found.status != 0:
        raise BadData(
            f"{what}: the optimum was not proven within {seconds:g} seconds. Take fewer rows, or "
            "method='cluster' or 'mondrian'."
        )
    return np.rint(found.x).astype(np.int64)
