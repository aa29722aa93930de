"""Gaussian copula with empirical marginals.

R. B. Nelsen, *An Introduction to Copulas*, 2006; for categories the extended rank likelihood of P. D. Hoff,
*Extending the rank likelihood for semiparametric copula estimation*, 2007.

Every column is a monotone function of one coordinate of a Gaussian vector; the function is its own
distribution, so only correlations are learned. Unordered categories are ordered by their loading on the first
common factor, which captures most of their dependence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..parameters import flag, real, whole
from .encode import EVEN, Conditions, Discretizer, Layout
from .generator import Generator, GeneratorState, Watch
from .independent import inverse


@dataclass(frozen=True)
class GaussianCopula(Generator):
    """One correlation matrix, and each column's marginal distribution."""

    bins: int = whole(256, least=2, doc="cells of a numeric column")
    shrinkage: float = real(
        1e-3,
        least=0,
        most=1,
        doc="weight of the identity in the correlation matrix, which keeps it invertible",
    )
    even: bool = flag(True, doc=EVEN)
    seed: int = whole(0, least=0, doc="random seed of the fit")

    federated: ClassVar[bool] = True

    def learn(self, v: np.ndarray, layout: Layout, rng: np.random.Generator, watch: Watch) -> GeneratorState:
        cells = Discretizer.from_data(layout.variables, v, self.bins)
        codes = cells.encode(v)
        shares = [np.bincount(codes[:, i], minlength=size) / len(v) for i, size in enumerate(cells.sizes)]
        loading = first_factor(codes, cells.sizes)
        scores, spread, orders = np.empty(v.shape), np.empty(v.shape[1]), []
        for i, (var, share) in enumerate(zip(layout.variables, shares)):
            order = np.arange(len(share)) if var.ordered else np.argsort(loading[i], kind="stable")
            z = normal_scores(share[order])
            scores[:, i] = z[np.argsort(order)][codes[:, i]]
            # standard deviation of the scores: below 1 if cells are coarse
            spread[i] = max(float(np.sqrt(share[order] @ z**2)), 1e-12)
            orders.append(order)
        # E[z | cell] is a projection: the covariances of the scores, divided by both standard deviations, are
        # those of the latent vector (exact for two-way normal cells)
        latent = np.cov(scores.T).reshape(len(shares), -1) / np.outer(spread, spread)
        return GeneratorState(self.pack(latent, cells, shares, orders))

    def pack(
        self, latent: np.ndarray, cells: Discretizer, shares: list[np.ndarray], orders: list[np.ndarray]
    ) -> dict[str, Tensor]:
        """Return the latent correlations, and the cells of each column with order and shares."""
        latent = _correlation((1 - self.shrinkage) * np.clip(latent, -0.999, 0.999))
        tensors: dict[str, Tensor] = {
            "factor": torch.from_numpy(np.linalg.cholesky(latent)),
            **cells.tensors(),
        }
        for i, (share, order) in enumerate(zip(shares, orders)):
            tensors |= {f"share.{i}": torch.from_numpy(share[order]), f"order.{i}": torch.from_numpy(order)}
        return tensors

    def learn_counts(self, counts: np.ndarray, cells: Discretizer, layout: Layout) -> GeneratorState:
        """Learn from two-way counts alone, so that several holders can add theirs up.

        `counts` is [all cells, all cells], with each column's own counts on the diagonal.
        """
        sizes = cells.sizes
        ends = np.cumsum([0, *sizes])
        own = np.diag(counts)
        rows = own[: sizes[0]].sum()
        loading = _first_factor_of_counts(counts, len(sizes), rows)
        z, spread, shares, orders = np.empty(ends[-1]), np.empty(len(sizes)), [], []
        for i, (var, a, b) in enumerate(zip(layout.variables, ends[:-1], ends[1:])):
            share = own[a:b] / rows
            order = np.arange(b - a) if var.ordered else np.argsort(loading[a:b], kind="stable")
            score = normal_scores(share[order])
            z[a:b] = score[np.argsort(order)]
            spread[i] = max(float(np.sqrt(share[order] @ score**2)), 1e-12)
            shares.append(share)
            orders.append(order)
        pick = np.repeat(np.eye(len(sizes)), sizes, axis=0) * z[:, None]
        latent = pick.T @ counts @ pick / rows / np.outer(spread, spread)
        return GeneratorState(self.pack(latent, cells, shares, orders))

    def draw(
        self, state: GeneratorState, layout: Layout, n: int, rng: np.random.Generator, conditions: Conditions
    ) -> np.ndarray:
        cells = Discretizer.from_tensors(layout.variables, state.tensors)
        z = rng.standard_normal((n, len(cells.sizes))) @ state.tensors["factor"].numpy().T
        codes = np.empty(z.shape, dtype=np.int64)
        for i in range(z.shape[1]):
            u = torch.special.ndtr(torch.from_numpy(z[:, i].copy())).numpy()
            if self.even:  # stratified: by rank instead of by value
                u[np.argsort(z[:, i])] = (np.arange(n) + rng.random(n)) / n
            codes[:, i] = state.tensors[f"order.{i}"].numpy()[inverse(state.tensors[f"share.{i}"].numpy(), u)]
        return cells.decode(codes, rng)


def normal_scores(share: np.ndarray) -> np.ndarray:
    """Return E[z | z in the cell] for adjacent cells of these shares: (φ(a) − φ(b)) / share."""
    ends = np.clip(np.concatenate([[0.0], np.cumsum(share)]), 0, 1)
    a = torch.special.ndtri(torch.from_numpy(ends)).clamp(-12, 12).numpy()
    density = np.exp(-0.5 * a**2) / np.sqrt(2 * np.pi)
    mass = density[:-1] - density[1:]
    return np.asarray(np.divide(mass, share, out=np.zeros_like(share), where=share > 0))


def _correlation(matrix: np.ndarray) -> np.ndarray:
    """Project to a correlation matrix: raise eigenvalues, rescale the diagonal to 1."""
    np.fill_diagonal(matrix, 1.0)
    values, vectors = np.linalg.eigh(matrix)
    positive = (vectors * np.maximum(values, 1e-6)) @ vectors.T
    scale = np.sqrt(np.diag(positive))
    return np.asarray(positive / np.outer(scale, scale))


def first_factor(codes: np.ndarray, sizes: list[int], steps: int = 30) -> list[np.ndarray]:
    """Return a score for every cell: the first axis of multiple correspondence analysis.

    A row's score is the mean of its cells' scores, and a cell's score the mean of its rows' scores; repeated,
    this is power iteration. 30 steps determine the order.
    """
    row = np.linspace(-1, 1, len(codes))[
        np.argsort(np.argsort(codes.sum(axis=1) + codes[:, 0] * 1e-3, kind="stable"), kind="stable")
    ]
    scores = [np.zeros(size) for size in sizes]
    for _ in range(steps):
        for i, size in enumerate(sizes):
            counts = np.bincount(codes[:, i], minlength=size)
            scores[i] = np.divide(
                np.bincount(codes[:, i], weights=row, minlength=size),
                counts,
                out=np.zeros(size),
                where=counts > 0,
            )
        row = sum((s[codes[:, i]] for i, s in enumerate(scores)), np.zeros(len(codes)))
        row -= row.mean()  # remove the trivial axis
        row /= max(float(row.std()), 1e-12)
    return scores


def _first_factor_of_counts(counts: np.ndarray, columns: int, rows: float, steps: int = 30) -> np.ndarray:
    """Compute `first_factor` from two-way counts.

    A cell's score is the mean, over the rows that have it, of the sum of their cells' scores.
    """
    own = np.diag(counts)
    score = np.linspace(-1, 1, len(own))
    for _ in range(steps):
        score = np.divide(counts @ score, own, out=np.zeros(len(own)), where=own > 0)
        score -= own @ score / rows / columns  # remove the trivial axis
        score /= max(float(np.sqrt(score @ counts @ score / rows)), 1e-12)
    return score
