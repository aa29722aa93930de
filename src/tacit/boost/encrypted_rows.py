"""Add the words of encrypted rows over cells: compiled with numba (the extra `boost`), or with numpy."""

from __future__ import annotations

import numpy as np

from ..crypto.bfv import add_rows_numpy
from .kernels import has_numba


def add_encrypted_rows(
    total: np.ndarray, block: np.ndarray, cells: np.ndarray, words: int, primes: np.ndarray
) -> None:
    """As `crypto.bfv.add_rows_numpy`."""
    if has_numba():
        from .lattice_loop import add_rows

        add_rows(total, block, np.ascontiguousarray(cells), words, primes)
    else:
        add_rows_numpy(total, block, cells, words, primes)
