"""Mode-specific normalization of numeric columns for networks.

L. Xu, M. Skoularidou, A. Cuesta-Infante, K. Veeramachaneni, *Modeling Tabular Data using Conditional GAN*,
NeurIPS 2019, Section 4.2; modes are fitted by variational Bayes (C. M. Bishop, *Pattern Recognition and
Machine Learning*, 2006, Section 10.2).

A number becomes a one-hot mode and a scalar within it, (x − mean) / 4 standard deviations. Two kinds of mode
are additions: one for each value that many rows share (a capital gain of 0), which is reproduced exactly, and
one for missing values. A column with a heavy tail (an income, a claim) is first mapped to normal scores by
its quantiles: otherwise a few large values determine the scale, and one mode holds all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .encode import Layout

SPIKE = 0.03  # a value shared by at least this share of the rows is a mode of its own
POINTS = 1024  # weighted points that summarize a column before the mixture is fitted
# standard deviations per interquartile range from which a tail is heavy: .74 for normal values, .9 for
# lognormal ones with σ = .5, 1.5 with σ = 1
HEAVY = 1.2
KNOTS = 128  # points of the map to normal scores
TAIL_ROWS = 5  # rows beyond the outer points of the map, at least
MIN_WEIGHT = 0.005  # modes of lower weight are dropped, as in the authors' code


class Mixture(NamedTuple):
    """Means, standard deviations and weights of a Gaussian mixture."""

    mean: np.ndarray
    deviation: np.ndarray
    weight: np.ndarray


def fit_mixture(x: np.ndarray, most: int = 10, steps: int = 100) -> Mixture:
    """Fit a Gaussian mixture of at most `most` modes.

    A small Dirichlet prior (10⁻³ rows per mode) empties modes that are not needed.
    """
    points, mass = np.unique(x, return_counts=True)
    if len(points) > POINTS:
        parts = np.array_split(np.sort(x), POINTS)
        points, mass = np.array([p.mean() for p in parts]), np.array([len(p) for p in parts])
    center, scale = (
        float(np.average(points, weights=mass)),
        max(float(np.sqrt(np.average((points - x.mean()) ** 2, weights=mass))), 1e-12),
    )
    z, mass = (points - center) / scale, mass.astype(np.float64)
    k = min(most, len(points))
    start = np.quantile(z, (np.arange(k) + 0.5) / k)
    r = np.eye(k)[np.abs(z[:, None] - start).argmin(axis=1)]
    beta0, nu0, alpha0 = 1.0, 1.0, 1e-3  # priors of one row; inverse scale 1: the column's variance
    for _ in range(steps):
        n = mass @ r + 1e-10  # (10.51)
        mean = (mass * z) @ r / n  # (10.52)
        scatter = np.einsum("i,ik->k", mass, r * (z[:, None] - mean) ** 2)  # (10.53) times n
        beta, nu, alpha = beta0 + n, nu0 + n, alpha0 + n  # (10.60), (10.63), (10.58)
        m = n * mean / beta  # (10.61), the prior mean is 0
        inverse_w = 1.0 + scatter + beta0 * n / beta * mean**2  # (10.62)
        log_lambda = _digamma(nu / 2) + np.log(2 / inverse_w)  # (10.65)
        log_rho = (
            _digamma(alpha)
            - _digamma(alpha.sum())
            + 0.5 * (log_lambda - 1 / beta - nu / inverse_w * (z[:, None] - m) ** 2)
        )  # (10.46), (10.64)
        log_rho -= log_rho.max(axis=1, keepdims=True)
        new = np.exp(log_rho)
        new /= new.sum(axis=1, keepdims=True)  # (10.49)
        change, r = float(np.abs(new - r).max()), new
        if change < 1e-4:
            break
    weight = n / n.sum()
    heavy = weight > min(MIN_WEIGHT, weight.max() / 2)
    return Mixture(
        center + scale * m[heavy], scale * np.sqrt(inverse_w / nu)[heavy], weight[heavy] / weight[heavy].sum()
    )


def _digamma(x: np.ndarray) -> np.ndarray:
    return np.asarray(torch.special.digamma(torch.from_numpy(np.atleast_1d(x))))


class Block(NamedTuple):
    """Columns of the encoded row from `start`: a scalar if `scalar`, then `width` indicators."""

    variable: int
    scalar: bool
    start: int
    width: int

    @property
    def indicators(self) -> slice:
        return slice(self.start + self.scalar, self.start + self.scalar + self.width)


class Encoding:
    """Converts variables to rows of a matrix, and back.

    `modes[i]` [modes, 2] are mean and standard deviation; a deviation of 0 is a shared value; missing is
    last. `scores[i]` [2, points] maps values of a heavy-tailed column (second row) to normal scores (first),
    and its modes are those of the scores.
    """

    def __init__(
        self,
        layout: Layout,
        modes: Mapping[int, np.ndarray],
        scores: Mapping[int, np.ndarray] | None = None,
    ):
        self.layout, self.modes, self.scores = layout, dict(modes), dict(scores or {})
        self.blocks: list[Block] = []
        at = 0
        for i, v in enumerate(layout.variables):
            block = Block(i, not v.levels, at, v.levels or len(self.modes[i]) + v.missing)
            self.blocks.append(block)
            at = block.indicators.stop
        self.width = at
        self.discrete = [b for b in self.blocks if not b.scalar]
        self.scalars = [b.start for b in self.blocks if b.scalar]

    @classmethod
    def fit(cls, layout: Layout, v: np.ndarray, most: int = 10) -> Encoding:
        """Fit modes to all numeric variables."""
        modes, scores = {}, {}
        for i, var in enumerate(layout.variables):
            if not var.levels:
                modes[i], found = _fit_modes(v[:, i], most)
                if found is not None:
                    scores[i] = found
        return cls(layout, modes, scores)

    def encode(self, v: np.ndarray, rng: np.random.Generator) -> Tensor:
        """Convert variables to float32 rows; the mode of a number is drawn by its posterior."""
        out = np.zeros((len(v), self.width), dtype=np.float32)
        rows = np.arange(len(v))
        for b in self.blocks:
            x = v[:, b.variable]
            if not b.scalar:
                out[rows, b.start + x.astype(np.int64)] = 1
                continue
            z = x
            if b.variable in self.scores:
                grid, values = self.scores[b.variable]
                z = np.where(np.isnan(x), x, np.interp(x, values, grid))
            mode, place = _assign(x, z, self.modes[b.variable], rng)
            out[:, b.start] = place
            out[rows, b.start + 1 + mode] = 1
        return torch.from_numpy(out)

    def decode(self, encoded: np.ndarray) -> np.ndarray:
        """Convert encoded rows to variables."""
        v = np.empty((len(encoded), len(self.layout.variables)))
        for b in self.blocks:
            level = encoded[:, b.indicators].argmax(axis=1)
            if not b.scalar:
                v[:, b.variable] = level
                continue
            modes = self.modes[b.variable]
            at = np.minimum(level, len(modes) - 1)
            value = modes[at, 0] + 4 * modes[at, 1] * np.clip(encoded[:, b.start], -1, 1)
            if b.variable in self.scores:
                value = np.where(modes[at, 1] == 0, value, np.interp(value, *self.scores[b.variable]))
            v[:, b.variable] = np.where(level < len(modes), value, np.nan)
        return v

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{what}.{i}": torch.from_numpy(m)
            for what, parts in (("modes", self.modes), ("scores", self.scores))
            for i, m in parts.items()
        }

    @classmethod
    def from_tensors(cls, layout: Layout, tensors: Mapping[str, Tensor]) -> Encoding:
        numbers = [i for i, v in enumerate(layout.variables) if not v.levels]
        return cls(
            layout,
            {i: tensors[f"modes.{i}"].numpy() for i in numbers},
            {i: tensors[f"scores.{i}"].numpy() for i in numbers if f"scores.{i}" in tensors},
        )


def fit_scores(x: np.ndarray) -> np.ndarray | None:
    """Return the map of a heavy-tailed column to normal scores, [2, points]; None if its tails are not heavy.

    Points are equally spaced in scores, so that they are dense in the values of few rows.
    """
    if len(x) < 4 * TAIL_ROWS:
        return None
    low, high = np.quantile(x, [0.25, 0.75])
    if not x.std() > HEAVY * (high - low):
        return None
    end = float(torch.special.ndtri(torch.tensor(1 - TAIL_ROWS / len(x), dtype=torch.float64)))
    grid = np.linspace(-end, end, int(np.clip(len(x) // (2 * TAIL_ROWS), 2, KNOTS)))
    values = np.quantile(x, torch.special.ndtr(torch.from_numpy(grid)).numpy())
    values[0], values[-1] = x.min(), x.max()
    kept = np.r_[True, np.diff(values) > 0]  # where values repeat, the first point
    return np.stack([grid[kept], values[kept]]) if kept.sum() > 1 else None


def _fit_modes(x: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the modes of a column, and its map to normal scores if it has one."""
    present = x[~np.isnan(x)]
    if not len(present):
        return np.zeros((1, 2)), None
    values, counts = np.unique(present, return_counts=True)
    spikes = values[counts >= max(SPIKE * len(x), 2)]
    rest = present[~np.isin(present, spikes)]
    scores = fit_scores(rest)
    if scores is not None:
        rest = np.interp(rest, scores[1], scores[0])
    rest_modes = (
        fit_mixture(rest, most)
        if len(rest) > 1
        else Mixture(rest, np.full(len(rest), 1e-6 + np.abs(rest) * 1e-6), np.ones(len(rest)))
    )
    modes = np.concatenate(
        [
            np.column_stack([spikes, np.zeros(len(spikes))]),
            np.column_stack([rest_modes.mean, rest_modes.deviation]),
        ]
    )
    return modes, scores


def _assign(
    x: np.ndarray, z: np.ndarray, modes: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a mode for each number by its posterior; return the modes and scalars within them.

    `z` are the scores of the numbers, or themselves.
    """
    spike, missing = modes[:, 1] == 0, np.isnan(x)
    mean, deviation = modes[:, 0], np.where(spike, 1.0, modes[:, 1])
    y = np.where(missing, mean[0], z)
    score = -0.5 * ((y[:, None] - mean) / deviation) ** 2 - np.log(deviation)
    score[:, spike] = np.where(x[:, None] == mean[spike], np.inf, -np.inf)
    # the argmax with Gumbel noise is a draw
    score = np.where(np.isposinf(score), 1e9, score) - np.log(-np.log(rng.random(score.shape)))
    mode = score.argmax(axis=1)
    place = np.clip((y - mean[mode]) / (4 * deviation[mode]), -0.99, 0.99)
    return np.where(missing, len(modes), mode), np.where(missing | spike[mode], 0.0, place)
