"""Exact sums of float64 numbers in a ring of integers.

    x = sign(x) · Σ_j limb_j(x) · 2^(32·j − 80),   0 ≤ limb_j(x) < 2^32,   j = 0 … 5

A number becomes six integers of 32 bits, its limbs, and limbs are added like any other integers, under masks
too. So a sum needs no agreed range and no rounding, and its bits do not depend on the order in which parties
are added: a simulation and real parties get the same sum. Digits below 2^-80 (8e-25) are dropped; numbers of
2^112 (5e33) and more are refused.
"""

from __future__ import annotations

import numpy as np

from ..errors import BadData

LIMBS = 6
BOUND = (1 << 32) - 1  # of one limb: the bound of a secure sum
_SHIFTS = [32 * j - 80 for j in range(LIMBS)]
_AT_ONCE = 1 << 20  # numbers per step: 48 MiB of limbs
_LARGEST = 2.0 ** (_SHIFTS[-1] + 32)


def encode(values: np.ndarray) -> np.ndarray:
    """Return the limbs of float64 numbers as one vector of int64, six for each number."""
    rest = np.abs(np.asarray(values, dtype=np.float64).reshape(-1))
    if not np.isfinite(rest).all():
        raise BadData("a number to be summed is NaN or infinite. Remove or replace missing values first.")
    if (rest >= _LARGEST).any():
        raise BadData(
            f"a number to be summed is {rest.max():.3g}; at most {_LARGEST:.0e} can be summed. Numbers are "
            f"often summed with their squares, so a cell above {_LARGEST**0.5:.0e} is too large: correct an "
            "outlier, or use a larger unit."
        )
    limbs = np.empty((len(rest), LIMBS), dtype=np.int64)
    for j in reversed(range(LIMBS)):  # every step is exact: powers of two, and parts of a mantissa
        limb = np.floor(np.ldexp(rest, -_SHIFTS[j]))
        limbs[:, j] = limb
        rest = rest - np.ldexp(limb, _SHIFTS[j])
    return (limbs * np.where(np.signbit(values), -1, 1).reshape(-1, 1)).reshape(-1)


def encode_sum(rows: np.ndarray) -> np.ndarray:
    """Return the limbs of the sum over the rows of a matrix, six for each column, as one vector of int64.

    The sum is exact, and its limbs are carried, so they do not depend on the order of the rows, and none
    exceeds `BOUND`: this is what one party contributes, however many rows it has.
    """
    rows = np.asarray(rows, dtype=np.float64)
    columns = rows.shape[1]
    limbs = np.zeros((columns, LIMBS), dtype=np.int64)
    at_once = max(1, _AT_ONCE // max(columns, 1))
    for first in range(0, len(rows), at_once):
        part = rows[first : first + at_once]
        limbs += encode(part).reshape(len(part), columns, LIMBS).sum(axis=0)
        _carry(limbs)
    if (np.abs(limbs) > BOUND).any():
        raise BadData(f"the sum of a column is above {_LARGEST:.0e}. Use a larger unit.")
    return limbs.reshape(-1)


def decode(total: np.ndarray) -> np.ndarray:
    """Return the numbers of a sum of encoded vectors, as float64.

    The result depends on the exact sum only, not on how it was split into limbs.
    """
    limbs = np.array(total, dtype=np.int64).reshape(-1, LIMBS)
    negative = _carry(limbs) < 0
    limbs[negative] *= -1
    _carry(limbs)
    out = np.zeros(len(limbs))
    for j in range(LIMBS):  # from the smallest: the larger ones lose nothing
        out += np.ldexp(limbs[:, j].astype(np.float64), _SHIFTS[j])
    return np.where(negative, -out, out)


def _carry(limbs: np.ndarray) -> np.ndarray:
    """Carry in place: all limbs but the last are then in [0, 2^32). Return the last, which has the sign."""
    for j in range(LIMBS - 1):
        carry = limbs[:, j] >> 32  # rounds down, so that the rest is not negative
        limbs[:, j] -= carry << 32
        limbs[:, j + 1] += carry
    return limbs[:, -1]
