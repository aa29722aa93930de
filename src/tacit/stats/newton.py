"""Newton's method from opened sums: the coordinator's arithmetic for regression.

Columns are centered and scaled by agreed numbers before their products are summed, so that the solution loses
no digits; `Scaling` translates coefficients and covariances back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import BadData

DEPENDENT = 1e-10  # the part of a standardized column's variance that no other columns explain
INTERCEPT = "Intercept"


def upper(matrix: np.ndarray) -> np.ndarray:
    """Return the upper triangle of a symmetric matrix as a vector."""
    return matrix[np.triu_indices(len(matrix))]


def symmetric(vector: np.ndarray, p: int) -> np.ndarray:
    """Return the symmetric matrix with this upper triangle."""
    out = np.zeros((p, p))
    out[np.triu_indices(p)] = vector
    return out + np.triu(out, 1).T


@dataclass(frozen=True)
class Scaling:
    """Standardized columns: (x − center) / scale. Without an intercept the centers are 0."""

    center: np.ndarray
    scale: np.ndarray
    intercept: int | None  # the position of the intercept

    @classmethod
    def from_moments(
        cls, total: float, first: np.ndarray, second: np.ndarray, names: Sequence[str]
    ) -> Scaling:
        """Return the scaling by sums of weights, of columns and of their squares."""
        where = list(names).index(INTERCEPT) if INTERCEPT in names else None
        mean = first / total
        center = mean.copy() if where is not None else np.zeros_like(mean)
        spread = np.sqrt(np.maximum(second / total - center**2, 0.0))
        if where is not None:
            center[where], spread[where] = 0.0, 1.0
        size = np.sqrt(second / total)
        is_constant = spread <= 1e-9 * np.maximum(
            size, 1e-300
        )  # found later, as collinear with the intercept
        center = np.where(is_constant, 0.0, center)
        spread = np.where(is_constant, np.where(size > 0, size, 1.0), spread)
        return cls(center, spread, where)

    def apply(self, x: np.ndarray) -> np.ndarray:
        return (x - self.center) / self.scale  # type: ignore[no-any-return]

    @property
    def back(self) -> np.ndarray:
        """The matrix B with (coefficients of the columns) = B (coefficients of standardized columns)."""
        out = np.diag(1.0 / self.scale)
        if self.intercept is not None:
            out[self.intercept] -= self.center / self.scale
            out[self.intercept, self.intercept] = 1.0
        return out

    def standardize(self, beta: np.ndarray) -> np.ndarray:
        """Return coefficients of standardized columns."""
        return np.linalg.solve(self.back, beta)


def check_columns(gram: np.ndarray, names: Sequence[str], owner: str) -> None:
    """Raise BadData that names the columns if some are zero or linear combinations of others."""
    size = np.sqrt(np.diag(gram))
    empty = [name for name, s in zip(names, size) if not s > 0]
    if empty:
        raise BadData(
            f"{owner}: no row of any party has a value other than 0 in {', '.join(map(repr, empty))}. "
            "Leave the column out, or merge the level with another."
        )
    scaled = gram / np.outer(size, size)
    values, vectors = np.linalg.eigh(scaled)
    if values[0] >= DEPENDENT:
        return
    involved = np.abs(vectors[:, values < DEPENDENT]).max(axis=1) > 1e-4
    columns = [name for name, i in zip(names, involved) if i]
    raise BadData(
        f"{owner}: the columns {', '.join(map(repr, columns))} are collinear: one is a linear combination of "
        "the others, so their coefficients are not determined. Leave one out, or use l2=."
    )


def solve(hessian: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Return the solution of a symmetric system, after scaling its diagonal to 1."""
    size = 1.0 / np.sqrt(np.maximum(np.diag(hessian), 1e-300))
    return np.linalg.solve(hessian * np.outer(size, size), gradient * size) * size


def invert(hessian: np.ndarray) -> np.ndarray:
    """Return the inverse of a symmetric matrix, after scaling its diagonal to 1."""
    size = 1.0 / np.sqrt(np.maximum(np.diag(hessian), 1e-300))
    inverse = np.linalg.inv(hessian * np.outer(size, size)) * np.outer(size, size)
    return (inverse + inverse.T) / 2


def is_positive(matrix: np.ndarray) -> bool:
    """Whether a symmetric matrix is positive definite."""
    size = np.diag(matrix)
    if not (size > 0).all():
        return False
    return bool(np.linalg.eigvalsh(matrix / np.sqrt(np.outer(size, size)))[0] > 1e-13)


def lasso_step(
    hessian: np.ndarray, gradient: np.ndarray, beta: np.ndarray, penalty: np.ndarray, sweeps: int = 10_000
) -> np.ndarray:
    """Minimize −gradient·d + ½ dᵀ hessian d + Σ penalty_j |beta_j + d_j| over d, by coordinate descent.

    J. Friedman, T. Hastie and R. Tibshirani, "Regularization Paths for Generalized Linear Models", 2010.
    """
    d = np.zeros_like(beta)
    slack = gradient.copy()  # gradient − hessian d
    diagonal = np.diag(hessian)
    for _ in range(sweeps):
        largest = 0.0
        for j in range(len(beta)):
            if diagonal[j] <= 0:
                continue
            here = beta[j] + d[j]
            target = here + slack[j] / diagonal[j]
            new = np.sign(target) * max(abs(target) - penalty[j] / diagonal[j], 0.0)
            change = new - here
            if change != 0.0:
                d[j] += change
                slack -= hessian[:, j] * change
                largest = max(largest, abs(change) * np.sqrt(diagonal[j]))
        if largest < 1e-12 * max(1.0, float(np.abs(gradient).max())):
            break
    return d
