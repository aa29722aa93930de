"""Whether a model rests on few rows, whatever its columns are and however they are combined.

A coefficient is Σ u_i y_i with weights u in the span of the columns, and rests on (Σu²)²/Σu⁴ rows: k, if u is
an indicator of k rows. No coding of the columns changes their span, so it is the span that is tested, by one
matrix that is summed over all parties:

    M = Σ h_i w_i w_iᵀ,    w the whitened columns, Σ w wᵀ = 1,    h_i = |w_i|² the leverage of row i

Rows of an indicator of k rows have leverages of 1/k and what the other p − 1 columns add, about (p − 1)/n. So
the largest eigenvalue of M is at least 1/k, and 1/(λ − (p − 1)/n) is near the smallest number of rows that a
combination of columns rests on; on data sets of statsmodels and lifelines it is within a tenth of it, or
smaller. (M finds sources: J.-F. Cardoso, "Source separation using higher order moments", ICASSP 1989.)

    step a   Σ v z zᵀ = G                        → W, with WᵀGW = 1
    step b   Σ v |Wᵀz|² (Wᵀz)(Wᵀz)ᵀ = M          → its largest eigenvalue

v are variance weights; a row with frequency f counts f times. M is of fourth moments, as in `rare_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import QueryRefused
from .newton import INTERCEPT, symmetric, upper

RIDGE = 1e-9  # of a standardized column: directions that penalized models have and no row shows
NAMED = 0.3  # of the largest part of a direction: columns that are named
AT_ONCE = 1 << 14  # rows


def whiten(gram: np.ndarray) -> np.ndarray:
    """Return W with WᵀGW = 1. Parties repeat it: a triangular factor is unique, eigenvectors are not."""
    size = 1 / np.sqrt(np.maximum(np.diag(gram), 1e-300))
    scaled = gram * np.outer(size, size) + RIDGE * np.eye(len(gram))
    out: np.ndarray = size[:, None] * np.linalg.inv(np.linalg.cholesky(scaled)).T
    return out


def sum_leverages(
    z: np.ndarray,
    whitening: np.ndarray,
    weights: np.ndarray | None = None,
    frequency: np.ndarray | None = None,
) -> np.ndarray:
    """Return a party's part of M, as an upper triangle."""
    p = whitening.shape[1]
    total = np.zeros((p, p))
    for first in range(0, len(z), AT_ONCE):
        rows = slice(first, first + AT_ONCE)
        white = z[rows] @ whitening
        leverage = np.einsum("ij,ij->i", white, white)
        if weights is not None:
            leverage *= weights[rows] ** 2
        if frequency is not None:
            leverage *= frequency[rows]
        total += white.T @ (leverage[:, None] * white)
    return upper(total)


def check_span(
    owner: str, names: Sequence[str], whitening: np.ndarray, leverages: np.ndarray, rows: float, least: int
) -> None:
    """Refuse columns of which a combination rests on fewer than `least` rows, rounded."""
    p = len(names)
    values, vectors = np.linalg.eigh(symmetric(leverages, p))
    few = []
    for value, vector in zip(values[::-1], vectors.T[::-1]):
        found = 1 / max(float(value) - (p - 1) / max(rows, 1), 1e-300)
        if not found < least - 0.5:
            break
        part = np.abs(whitening @ vector) / np.linalg.norm(whitening, axis=1)
        part[[name == INTERCEPT for name in names]] *= p == 1
        columns = [repr(n) for n, w in zip(names, part) if w >= NAMED * part.max()]
        few.append(f"{' and '.join(columns)} (about {max(round(found), 1)})")
    if few:
        raise QueryRefused(
            f"{owner}: coefficients rest on fewer than {least} rows of all parties: {', '.join(few[:5])}. "
            "Figures about so few are nearly theirs. Leave a column out, transform it (a logarithm, fewer "
            "levels), or set min_count=1 if they may be shown."
        )
