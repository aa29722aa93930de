"""Regression with differential privacy: Newton's method on noisy gradients and Hessians.

    gaussian           one sum: XᵀX, Xᵀy, Σy², rows                       (noisy sufficient statistics)
    binomial, poisson  a sum in each round: gradient, Hessian, rows        → the next coefficients

Columns are clipped to declared bounds and scaled to [−1, 1], and every row of the model matrix is clipped to
the norm √p, so one row changes a sum by a known amount whatever the formula computes. Earlier rounds only
find the neighborhood of the maximum; the last has most of the budget, and its noise is in the standard
errors:

    Cov = H⁻¹ (H + σ_g² I + σ_H² |step|² I) H⁻¹ + what noise hides (noisy_score.py)
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from ..accounting.compose import Release
from ..errors import BadData
from ..parties.ledger import Spend
from ..protocols.sum_steps import END, Down
from . import design, noise_share
from .bounded_design import BoundedDesign, check_coefficients, declared_rows
from .families import Family, make_family
from .newton import INTERCEPT, symmetric, upper
from .noise_share import BOUND, SCALE, Block
from .noisy_score import HIDDEN, make_positive
from .recall import recall

EARLY = 0.08  # of the budget, for each round but the last
ROUNDS = {"gaussian": 1, "binomial": 5, "poisson": 6}
HIDDEN_LINEAR = 2.0  # of a linear coefficient: from end to end of its column twice the outcome's range
ROWS = 0.02  # of a round's budget, for the number of rows


@dataclass
class PrivateEstimate:
    names: list[str]
    beta: np.ndarray
    covariance: np.ndarray
    scale: float
    rows: float
    rounds: int
    agreement: design.Agreement
    noise_share: float  # the largest part of a variance that is noise


@dataclass(frozen=True)
class PrivateGlmProgram:
    """The noisy sums of a regression. All fields are plain values."""

    if_left: ClassVar[str] = END
    formula: str
    family: str
    parties: int
    epsilon: float
    delta: float
    bounds: Mapping[str, Sequence[float]]
    levels: Mapping[str, Sequence[Any]]
    l2: float = 0.0

    @property
    def max_steps(self) -> int:
        return ROUNDS[self.family]

    @property
    def bound(self) -> int:
        return BOUND

    @property
    def model(self) -> Family:
        return make_family(self.family, None, None)

    @property
    def columns(self) -> list[str]:
        v = design.read_formula(self.formula, response=True)
        return list(dict.fromkeys((*v.response, *v.names)))

    @property
    def response(self) -> str:
        return design.read_formula(self.formula, response=True).response[0]

    @cached_property
    def bounded(self) -> BoundedDesign:
        return BoundedDesign(self.formula, tuple(self.columns), self.bounds, self.levels)

    @property
    def agreement(self) -> design.Agreement:
        return self.bounded.agreement

    @property
    def terms(self) -> list[str]:
        return self.bounded.terms

    @property
    def ranges(self) -> tuple[np.ndarray, np.ndarray]:
        return self.bounded.ranges

    # --- privacy

    @property
    def release(self) -> Release:
        return noise_share.release_of(self.epsilon, self.delta)

    @property
    def spend(self) -> Spend:
        what = f"the gradients and Hessians of {self.max_steps} round{'s' * (self.max_steps > 1)}"
        return noise_share.spend_of(self.epsilon, self.delta, self.parties, what)

    def blocks(self, step: int) -> list[Block]:
        """The numbers of a step: gradient, Hessian, rows; for a linear model also Σy²."""
        p, last = len(self.terms), self.max_steps - 1
        share = 1 - EARLY * last if step == last else EARLY
        size = float(np.sqrt(p))  # of a row of the scaled model matrix
        triangle = p * (p + 1) // 2
        if self.family == "gaussian":
            parts = [(p, size), (triangle, size**2), (1, 1.0), (1, 1.0)]
        elif self.family == "binomial":
            parts = [(p, size), (triangle, size**2 / 4), (1, 1.0)]
        else:
            most = float(self.bounds[self.response][1])
            parts = [(p, most * size), (triangle, most * size**2), (1, 1.0)]
        small = ROWS * (len(parts) - 2)
        shares = [(1 - small) / 2] * 2 + [ROWS] * (len(parts) - 2)
        return [Block(n, s, share * part) for (n, s), part in zip(parts, shares)]

    def length(self, step: int, down: Down) -> int:
        return sum(block.length for block in self.blocks(step))

    # --- a party

    def _read(self, table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        design.check_columns(table, self.columns)
        y, x = self.bounded.read(declared_rows(table, self.columns, self.agreement.levels))
        assert y is not None
        low, high = self.bounds[self.response]
        return np.clip(y, low, high), x

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        if not 0 <= step < self.max_steps:
            raise BadData(f"the agreed model has {self.max_steps} rounds; step {step} was asked for.")
        y, x = recall(table, repr(self), lambda: self._read(table))
        blocks = self.blocks(step)
        if self.family == "gaussian":
            low, high = self.bounds[self.response]
            unit = (2 * y - low - high) / (high - low)
            parts = [unit @ x, upper(x.T @ x), [len(y)], [float(unit @ unit)]]
        else:
            mu = self._mean(x @ check_coefficients(down["point"].numpy(), x.shape[1]))
            weight = mu * (1 - mu) if self.family == "binomial" else mu
            parts = [(y - mu) @ x, upper(x.T @ (weight[:, None] * x)), [len(y)]]
        return noise_share.add_noise(
            [np.asarray(part, dtype=np.float64) for part in parts],
            blocks,
            self.epsilon,
            self.delta,
            self.parties,
        )

    def _mean(self, eta: np.ndarray) -> np.ndarray:
        """The mean; of counts at most the declared bound, on which the sensitivity depends."""
        mu = self.model.mean(eta)
        return mu if self.family == "binomial" else np.minimum(mu, float(self.bounds[self.response][1]))

    # --- the coordinator

    def coordinate(self) -> Generator[Down, np.ndarray, PrivateEstimate]:
        p = len(self.terms)
        point, step = np.zeros(p), np.zeros(p)
        gradient, hessian, rows, extra = point, np.eye(p), 0.0, 0.0
        for k in range(self.max_steps):
            total = np.asarray((yield {"point": torch.from_numpy(point.copy())}), dtype=np.float64) / SCALE
            triangle = p * (p + 1) // 2
            gradient, hessian = total[:p], symmetric(total[p : p + triangle], p)
            rows = float(total[p + triangle])
            extra = float(total[-1])
            noise = self._noise(k)
            hessian, hidden = make_positive(hessian, noise[1])
            ridge = self._ridge(rows)
            step = np.linalg.solve(hessian + ridge, gradient - ridge @ point)
            if self.family != "gaussian":  # a noisy step is no reason to leave the range of scores
                step *= min(1.0, 4.0 / max(float(np.abs(step).sum()), 1e-300))
            point = point + step
        return self._conclude(point, step, hessian, hidden, noise, rows, extra, gradient)

    def _ridge(self, rows: float) -> np.ndarray:
        _, half = self.ranges
        diagonal = max(rows, 1.0) * self.l2 / half**2
        return np.diag([0.0 if name == INTERCEPT else d for name, d in zip(self.terms, diagonal)])

    def _noise(self, step: int) -> list[float]:
        return [
            noise_share.total_variance(self.epsilon, self.delta, self.parties, b) for b in self.blocks(step)
        ]

    def _conclude(
        self,
        point: np.ndarray,
        step: np.ndarray,
        hessian: np.ndarray,
        hidden: np.ndarray,
        noise: list[float],
        rows: float,
        extra: float,
        gradient: np.ndarray,
    ) -> PrivateEstimate:
        p = len(self.terms)
        inverse = np.linalg.inv(hessian + self._ridge(rows))
        moved = float(step @ step)
        variance, factor, shift = 1.0, 1.0, 0.0
        if self.family == "gaussian":
            low, high = self.bounds[self.response]
            factor, shift = (high - low) / 2, (high + low) / 2
            residual = extra - 2 * float(point @ gradient) + float(point @ hessian @ point)
            variance = max(residual / max(rows - p, 1.0), 1e-12)
        added = (noise[0] + noise[1] * moved) * np.eye(p)
        exact = variance * inverse @ hessian @ inverse
        # what noise hides is not known, rather than near the point where the estimate stayed
        unknown = (HIDDEN_LINEAR if self.family == "gaussian" else HIDDEN) ** 2 * hidden @ hidden.T
        covariance = exact + inverse @ added @ inverse + unknown
        share = float(np.max(1 - np.diag(exact) / np.diag(covariance)))
        middle, half = self.ranges
        back = np.diag(1 / half)
        beta = point / half
        if INTERCEPT in self.terms:
            k = self.terms.index(INTERCEPT)
            back[k] -= middle / half
            back[k, k] = 1.0
            beta = back @ point
            beta = beta * factor
            beta[k] += shift
        else:
            beta = beta * factor
        covariance = factor**2 * back @ covariance @ back.T
        return PrivateEstimate(
            self.terms, beta, covariance, variance * factor**2, rows, self.max_steps, self.agreement, share
        )
