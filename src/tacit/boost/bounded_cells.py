"""Cuts of a number from noisy counts in equal cells between its declared bounds; no row sets a cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

CELLS = 64  # of a number, from which its bins are chosen


def count_cells(values: np.ndarray, bounds: Sequence[float]) -> np.ndarray:
    """Count the rows in each cell. Values beyond the bounds are in the outer cells; NaN is in none."""
    low, high = bounds
    unit = (values[~np.isnan(values)] - low) / (high - low)
    cells = np.clip(np.floor(unit * CELLS), 0, CELLS - 1).astype(np.int64)
    return np.bincount(cells, minlength=CELLS)


def choose_cuts(counts: np.ndarray, bounds: Sequence[float], bins: int) -> tuple[float, ...]:
    """Return cuts between cells, such that at most `bins` bins have about equally many rows."""
    low, high = (float(v) for v in bounds)
    upto = np.cumsum(counts) / max(counts.sum(), 1e-9)
    ends = np.unique(np.searchsorted(upto, np.arange(1, bins) / bins)) + 1
    edges = [float(np.float32(low + (high - low) * e / CELLS)) for e in ends.tolist() if e < CELLS]
    return tuple(dict.fromkeys(edges))
