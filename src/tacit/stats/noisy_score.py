"""Noisy scores and information of a model with many intercepts and a few slopes: θ = (α_1 … α_G, β).

An intercept is that of a site, or the log-hazard of an interval of time. A row has few of them, so the
information has a diagonal block, and the sums are far fewer than those of G + p columns:

    Σ r (G), Σ r x (p), Σ w (G), Σ w x (G × p), Σ w x xᵀ (p × p)

At the point θ₀ the score is g = H(θ* − θ₀) + e, where e has the variance of the model, φH, and that of the
noise in g and in H(θ* − θ₀). Estimates and errors follow from this line.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from . import noise_share
from .newton import symmetric, upper
from .noise_share import Block

SHARES = (0.2, 0.3, 0.05, 0.2, 0.25)  # of a step's budget, for its five sums: least error in simulations
CLEAR = 2.5  # standard deviations of noise that information exceeds, or it may be noise
HIDDEN = 5.0  # of a coefficient over half of its declared range: a ratio of exp(10) from end to end
FARTHEST = 2.0  # an early step of an intercept, or of all slopes together, on the scale of the predictor


class Limits(NamedTuple):
    """What one row has at most: residuals as a vector, their sum, and its weight."""

    residuals: float
    residual: float
    weight: float


class GroupSums(NamedTuple):
    score_a: np.ndarray
    score_b: np.ndarray
    info_a: np.ndarray
    info_ab: np.ndarray  # G × p
    info_b: np.ndarray

    def parts(self) -> list[np.ndarray]:
        return [self.score_a, self.score_b, self.info_a, self.info_ab.reshape(-1), upper(self.info_b)]

    @classmethod
    def read(cls, total: np.ndarray, groups: int, p: int) -> GroupSums:
        a, b, c, d, e = np.split(total, np.cumsum([groups, p, groups, groups * p]))
        return cls(a, b, c, d.reshape(groups, p), symmetric(e, p))


def count_blocks(groups: int, p: int, limits: Limits, share: float) -> list[Block]:
    """The blocks of `GroupSums.parts`; rows of x have at most the norm √p."""
    size = float(np.sqrt(p))
    sensitivities = (
        limits.residuals,
        limits.residual * size,
        limits.weight,
        limits.weight * size,
        limits.weight * size**2,
    )
    lengths = (groups, p, groups, groups * p, p * (p + 1) // 2)
    return [Block(n, s, share * part) for n, s, part in zip(lengths, sensitivities, SHARES)]


class Step(NamedTuple):
    """Newton's step from θ₀, and what its errors are made of."""

    step: np.ndarray
    score: np.ndarray
    information: np.ndarray
    noise: np.ndarray  # the covariance of the noise in g − H·step
    unknown: np.ndarray  # the covariance of what noise hides altogether

    def covariance(self, ridge: np.ndarray, of: slice, scale: float = 1.0) -> tuple[np.ndarray, float]:
        """Return the covariance of θ₀ + step, and the largest part `of` its variances that is noise."""
        inverse = np.linalg.inv(self.information + ridge)
        exact = scale * inverse @ self.information @ inverse
        total = exact + inverse @ self.noise @ inverse + self.unknown
        return total, float(np.max((1 - np.diag(exact) / np.diag(total))[of]))


def take_step(
    sums: GroupSums, blocks: list[Block], epsilon: float, delta: float, parties: int, ridge: np.ndarray
) -> Step:
    """Return the step of noisy sums; the matrix `ridge` is added to the information (a penalty)."""
    groups, p = sums.info_ab.shape
    variances = [noise_share.total_variance(epsilon, delta, parties, b) for b in blocks]
    va, vb, ha, hab, hb = variances
    score = np.concatenate([sums.score_a, sums.score_b])
    information, unknown = _make_positive(sums, ha, hab, hb)
    step = np.linalg.solve(information + ridge, score)
    a, b = step[:groups], step[groups:]
    noise = np.diag(np.concatenate([np.full(groups, va), np.full(p, vb)]))
    noise[:groups, :groups] += np.diag(ha * a**2 + hab * (b @ b))
    noise[groups:, groups:] += hb * (np.outer(b, b) - np.diag(b**2) + (b @ b) * np.eye(p))
    noise[groups:, groups:] += hab * (a @ a) * np.eye(p)
    noise[:groups, groups:] += hab * np.outer(a, b)
    noise[groups:, :groups] += hab * np.outer(b, a)
    return Step(step, score, information, noise, unknown)


def shorten(step: np.ndarray, groups: int) -> np.ndarray:
    """Return an early step that noise cannot carry away."""
    a, b = np.clip(step[:groups], -FARTHEST, FARTHEST), step[groups:]
    return np.concatenate([a, b * min(1.0, FARTHEST / max(float(np.abs(b).sum()), 1e-300))])


def _make_positive(sums: GroupSums, ha: float, hab: float, hb: float) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy information as a positive matrix, and the covariance of what its noise hides.

    Intercepts are eliminated; what is left for the slopes is S = H_b − Σ_k m_k m_kᵀ h_k, m_k the mean of x in
    group k. Directions whose information is below `CLEAR` standard deviations of its noise are not seen: the
    estimate stays near its start there, and has the standard deviation `HIDDEN`, more than coefficients have.
    """
    groups, p = sums.info_ab.shape
    own = np.maximum(sums.info_a, CLEAR * np.sqrt(ha))
    means = sums.info_ab / own[:, None]
    # the noise of m_k enters squared: its mean is added back
    left = sums.info_b - means.T @ sums.info_ab + hab * float((1 / own).sum()) * np.eye(p)
    values, u = np.linalg.eigh((left + left.T) / 2)
    along = (means @ u) ** 2  # groups × directions
    more = 4 * hab * along.sum(axis=0) + ha * (along**2).sum(axis=0)
    left, hidden = _raise_values(values, u, hb, more)
    information = np.block([[np.diag(own), sums.info_ab], [sums.info_ab.T, left + means.T @ sums.info_ab]])
    slopes = np.concatenate([-means @ hidden, hidden])
    unknown = HIDDEN**2 * slopes @ slopes.T
    unknown[:groups, :groups] += HIDDEN**2 * np.diag(sums.info_a < own)
    return information, unknown


def make_positive(matrix: np.ndarray, variance: float) -> tuple[np.ndarray, np.ndarray]:
    """Return a noisy Hessian as a positive matrix, and the directions that its noise hides."""
    values, u = np.linalg.eigh(matrix)
    return _raise_values(values, u, variance, np.zeros(len(values)))


def _raise_values(
    values: np.ndarray, u: np.ndarray, variance: float, more: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrix with eigenvalues above its noise, and the directions in which they were not.

    uᵀNu has variance σ²(2 − Σu⁴) if the upper triangle of N has independent noise of variance σ².
    """
    least = CLEAR * np.sqrt(variance * (2 - (u**4).sum(axis=0)) + more)
    raised = (u * np.maximum(values, np.maximum(least, 1e-9 * values.max(initial=0.0)))) @ u.T
    return raised, u[:, values < least]
