"""What a party adds to a round of a generalized linear model: values, gradients and Hessians of its rows."""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from ..errors import QueryRefused
from .disclosure import check_concentration
from .families import Family, load_scipy
from .newton import symmetric, upper


class Pieces(NamedTuple):
    """The layout of a round's numbers: log-likelihood, deviance, Pearson's χ², log weights, gradient, …

    Three numbers more for a negative binomial whose α is estimated: Σ((y−μ)²−μ), Σμ², and α's row and column
    of the Hessian.
    """

    family: Family
    estimates_alpha: bool

    def count(self, p: int) -> int:
        p += self.estimates_alpha
        triangles = 1 if self.family.is_canonical else 2
        return 7 + p + triangles * (p * (p + 1) // 2)

    def read(self, total: np.ndarray, p: int) -> NewtonSums:
        q = p + self.estimates_alpha
        triangle = q * (q + 1) // 2
        head, rest = total[:7], total[7 : self.count(p)]
        information = symmetric(rest[q : q + triangle], q)
        observed = information if self.family.is_canonical else symmetric(rest[q + triangle :], q)
        valid, loglik, deviance, pearson, log_weights, excess, squares = (float(v) for v in head)
        return NewtonSums(
            valid, loglik, deviance, pearson, log_weights, excess, squares, rest[:q], information, observed
        )


class NewtonSums(NamedTuple):
    valid: float  # how many parties' means left the range of the family
    loglik: float
    deviance: float
    pearson: float
    log_weights: float
    excess: float  # Σ (y−μ)² − μ
    squares: float  # Σ μ²
    gradient: np.ndarray
    information: np.ndarray  # expected
    observed: np.ndarray


OUT_OF_RANGE = (
    "the coefficients of this step predict means outside the range of the family for rows of this party. Use "
    "another link (gamma: link='log'), or fewer terms. Nothing was sent"
)


def newton_pieces(
    sizes: Pieces,
    x: np.ndarray,
    y: np.ndarray,
    variance_weights: np.ndarray,
    frequency: np.ndarray,
    offset: np.ndarray,
    point: np.ndarray,
) -> np.ndarray:
    """Return one party's part of a round, for coefficients `point` (and log α as the last number)."""
    p = x.shape[1]
    family = sizes.family
    if sizes.estimates_alpha:
        family = Family(family.name, family.link, float(np.exp(point[p])))
    weights = variance_weights * frequency
    eta = x @ point[:p] + offset
    mu = family.mean(eta)
    out = np.zeros(sizes.count(p))
    if not family.is_valid(mu):
        # zeros would leave this party out of the sum: of two such sums the difference is one party's
        refusal = QueryRefused(f"{OUT_OF_RANGE}.")
        refusal.outside = OUT_OF_RANGE  # it says nothing that the coordinator's coefficients do not say
        raise refusal
    slope, variance = family.slope(eta, mu), family.variance(mu)
    check_concentration(weights * slope**2 / variance)  # the point is the coordinator's choice
    residual = y - mu
    out[2] = float((weights * family.deviance(y, mu)).sum())
    out[3] = float((weights * residual**2 / variance).sum())
    out[4] = float((frequency * np.log(variance_weights)).sum())
    if not family.has_scale:  # otherwise at the end, when the scale is known
        out[1] = float((frequency * family.log_likelihood(y, mu, variance_weights, 1.0)).sum())
    if sizes.estimates_alpha:
        out[5] = float((weights * (residual**2 - mu)).sum())
        out[6] = float((weights * mu**2).sum())
        gradient, information, observed = _negative_binomial(x, y, weights, mu, family.alpha)
    else:
        gradient = (weights * residual * slope / variance) @ x
        information = x.T @ ((weights * slope**2 / variance)[:, None] * x)
        observed = information
        if not family.is_canonical:
            bend = family.bend(eta, mu) / variance - slope**2 * family.variance_slope(mu) / variance**2
            observed = information - x.T @ ((weights * residual * bend)[:, None] * x)
    triangles = [upper(information)] if family.is_canonical else [upper(information), upper(observed)]
    out[7:] = np.concatenate([gradient, *triangles])
    return out


def _negative_binomial(
    x: np.ndarray, y: np.ndarray, w: np.ndarray, mu: np.ndarray, a: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradient, block-diagonal and full Hessian in (β, log α), for variance μ + αμ²."""
    special, r = load_scipy(), 1.0 / a
    one = 1 + a * mu
    digamma = special.digamma(y + r) - special.digamma(r)
    trigamma = special.polygamma(1, y + r) - special.polygamma(1, r)
    d_alpha = -(r**2) * digamma + r**2 * np.log(one) + (y - mu) / (a * one)
    d_alpha2 = (
        2 * r**3 * digamma
        + r**4 * trigamma
        - 2 * r**3 * np.log(one)
        + r**2 * mu / one
        - (y - mu) * (1 + 2 * a * mu) / (a * one) ** 2
    )
    gradient = np.append((w * (y - mu) / one) @ x, a * float(w @ d_alpha))
    last = -(a**2 * float(w @ d_alpha2) + a * float(w @ d_alpha))
    p = x.shape[1]
    information, observed = np.zeros((p + 1, p + 1)), np.zeros((p + 1, p + 1))
    information[:p, :p] = x.T @ ((w * mu / one)[:, None] * x)
    observed[:p, :p] = x.T @ ((w * mu * (1 + a * y) / one**2)[:, None] * x)
    observed[:p, p] = observed[p, :p] = a * ((w * (y - mu) * mu / one**2) @ x)
    observed[p, p] = last
    information[p, p] = abs(last)
    return gradient, information, observed


def count_third(p: int) -> int:
    return p * (p + 1) * (p + 2) // 6


def firth_pieces(
    x: np.ndarray, weights: np.ndarray, offset: np.ndarray, point: np.ndarray, inverse: np.ndarray
) -> np.ndarray:
    """Return Σ w' x_a x_b x_c (a ≤ b ≤ c) and Σ w'' (xᵀJx) x xᵀ of a logistic model, J an inverse
    information.
    """
    special = load_scipy()
    mu = special.expit(x @ point + offset)
    w = mu * (1 - mu)
    first = weights * w * (1 - 2 * mu)
    second = weights * w * (1 - 6 * w) * np.einsum("ia,ab,ib->i", x, inverse, x)
    p = x.shape[1]
    thirds = [
        (x[:, a:].T @ ((first * x[:, a])[:, None] * x[:, a:]))[np.triu_indices(p - a)] for a in range(p)
    ]
    return np.concatenate([*thirds, upper(x.T @ (second[:, None] * x))])


def read_third(vector: np.ndarray, p: int) -> np.ndarray:
    """Return the symmetric tensor of `firth_pieces`."""
    out = np.zeros((p, p, p))
    for value, (a, b, c) in zip(vector, combinations_with_replacement(range(p), 3)):
        for i, j, k in {(a, b, c), (a, c, b), (b, a, c), (b, c, a), (c, a, b), (c, b, a)}:
            out[i, j, k] = value
    return out
