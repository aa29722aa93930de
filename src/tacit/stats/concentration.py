"""Whether a model rests on few rows, whatever its columns are and however they are combined.

A coefficient is Σ u_i y_i with weights u in the span of the columns, and rests on (Σu²)²/Σu⁴ rows: k, if u is
an indicator of k rows. No coding of the columns changes their span, so it is the span that is tested, by one
matrix that is summed over all parties:

    M = Σ h_i w_i w_iᵀ,    w the whitened columns, Σ w wᵀ = 1,    h_i = |w_i|² the leverage of row i

Rows of an indicator of k rows have leverages of 1/k and what the other p − 1 columns add, about (p − 1)/n. So
the largest eigenvalue of M is at least 1/k, and 1/(λ − (p − 1)/n) is near the smallest number of rows that a
combination of columns rests on; among fewer than some 200 rows it may say five where it is four. (M finds
sources: J.-F. Cardoso, "Source separation using higher order moments", ICASSP 1989.)

A long tail (a lognormal laboratory value) gives one row much weight too, and is no indicator: the other rows
have a part of the direction. So a direction is refused only if less than `REST` of it is in rows that could
not be among few, those of leverages below 1/least; their w wᵀ are a second matrix, R.

    step a   Σ v z zᵀ = G                        → W, with WᵀGW = 1
    step b   M, and R = Σ w wᵀ over rows with h_i < 1/least

v are variance weights; a row with frequency f counts f times. M is of fourth moments, as in `rare_rows`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np

from ..errors import QueryRefused
from .newton import INTERCEPT, symmetric, upper

# of a standardized column: for directions that penalized models have and no row shows; more, where columns
# are so far from 0 that their products have lost the digits
RIDGES = (1e-9, 1e-6, 1e-3)
REST = 0.1  # of a direction, in other rows: its coefficient is then not nearly that of the few
NAMED = 0.3  # of the largest part of a direction: columns that are named
AT_ONCE = 1 << 14  # rows


def whiten(gram: np.ndarray) -> np.ndarray:
    """Return W with WᵀGW = 1. Parties repeat it: a triangular factor is unique, eigenvectors are not."""
    size = 1 / np.sqrt(np.maximum(np.diag(gram), 1e-300))
    for ridge in RIDGES:
        scaled = gram * np.outer(size, size) + ridge * np.eye(len(gram))
        with contextlib.suppress(np.linalg.LinAlgError):
            out: np.ndarray = size[:, None] * np.linalg.inv(np.linalg.cholesky(scaled)).T
            return out
    return np.diag(size)


def sum_leverages(
    z: np.ndarray,
    whitening: np.ndarray,
    least: int,
    weights: np.ndarray | None = None,
    frequency: np.ndarray | None = None,
) -> np.ndarray:
    """Return a party's parts of M and of R, as upper triangles."""
    p = whitening.shape[1]
    moments, rest = np.zeros((p, p)), np.zeros((p, p))
    for first in range(0, len(z), AT_ONCE):
        rows = slice(first, first + AT_ONCE)
        white = z[rows] @ whitening
        if weights is not None:
            white *= np.sqrt(weights[rows])[:, None]
        leverage = np.einsum("ij,ij->i", white, white)
        copies = np.ones(len(white)) if frequency is None else frequency[rows]
        few = np.flatnonzero(leverage >= 1 / least)  # a few rows: R is what they leave
        moments += white.T @ ((copies * leverage)[:, None] * white)
        rest += white.T @ (copies[:, None] * white) - white[few].T @ (copies[few][:, None] * white[few])
    return np.concatenate([upper(moments), upper(rest)])


def check_span(
    owner: str, names: Sequence[str], whitening: np.ndarray, leverages: np.ndarray, rows: float, least: int
) -> None:
    """Refuse columns of which a combination rests on fewer than `least` rows, rounded."""
    p = len(names)
    moments, rest = (symmetric(part, p) for part in np.split(leverages, 2))
    values, vectors = np.linalg.eigh(moments)
    few = []
    for value, vector in zip(values[::-1], vectors.T[::-1]):
        found = 1 / max(float(value) - (p - 1) / max(rows, 1), 1e-300)
        if not found < least - 0.5:
            break
        if vector @ rest @ vector >= REST:
            continue
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
