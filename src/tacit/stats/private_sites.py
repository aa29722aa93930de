"""Models of sites with differential privacy: a random intercept, and a meta-analysis.

Random intercept. Every site has an intercept α_s of its own in the noisy scores and information of a step
(noisy_score.py); one row is in one site, and the noise of all parties is in the sums of each. At the last
point θ₀ the score is normal, g = H(θ* − θ₀) + e, and α_s ~ N(a, τ²): a linear mixed model with known errors,
which include the noise. (a, β) and τ² are its maximum likelihood. For a Gaussian outcome and without noise
this is the mixed model, given its residual variance; for others it is the normal approximation of the sites'
likelihoods, good for sites of some fifty rows.

Meta-analysis. Every site fits the noisy model of `private_regression.py` to its own rows, with all the noise
of its own, and its estimates are opened. Sites have different people, so one row is in one of them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from ..accounting.compose import Release
from ..crypto import exact
from ..errors import BadData
from ..parties.ledger import Spend
from ..protocols.sum_steps import END, Down, ideal
from . import design, noise_share, noisy_score
from .bounded_design import BoundedDesign, check_coefficients, declared_rows
from .families import make_family
from .meta_analysis import PARTY, SiteEstimates
from .newton import INTERCEPT
from .noise_share import BOUND, SCALE, Block
from .noisy_score import GroupSums, Limits
from .private_regression import ROUNDS, PrivateGlmProgram
from .recall import recall

EARLY = 0.08  # of the budget, for each round but the last
ROWS = 0.02  # of a round's budget, for the number of rows, and for Σy² of a linear model
VARIANCES = np.concatenate([[0.0], np.logspace(-5, 2, 141)])  # of sites, τ², on the scale of the predictor


@dataclass
class PrivateMixedEstimate:
    names: list[str]
    beta: np.ndarray
    covariance: np.ndarray
    scale: float
    rows: float
    rounds: int
    agreement: design.Agreement
    site_variance: float
    noise_share: float


@dataclass(frozen=True)
class PrivateMixedProgram:
    """The noisy sums of a model with a random intercept by site. All fields are plain values."""

    if_left: ClassVar[str] = END
    formula: str
    family: str
    parties: tuple[str, ...]
    epsilon: float
    delta: float
    bounds: Mapping[str, Sequence[float]]
    levels: Mapping[str, Sequence[Any]]

    @property
    def max_steps(self) -> int:
        return ROUNDS[self.family]

    @property
    def bound(self) -> int:
        return BOUND

    @property
    def columns(self) -> list[str]:
        v = design.read_formula(self.formula, response=True)
        return list(dict.fromkeys((*v.response, *v.names)))

    @property
    def response(self) -> str:
        return self.columns[0]

    @cached_property
    def bounded(self) -> BoundedDesign:
        return BoundedDesign(self.formula, tuple(self.columns), self.bounds, self.levels, is_free=True)

    # --- privacy

    @property
    def release(self) -> Release:
        return noise_share.release_of(self.epsilon, self.delta)

    @property
    def spend(self) -> Spend:
        what = f"the sites' scores and information of {self.max_steps} round{'s' * (self.max_steps > 1)}"
        return noise_share.spend_of(self.epsilon, self.delta, len(self.parties), what)

    def blocks(self, step: int) -> list[Block]:
        last = self.max_steps - 1
        share = 1 - EARLY * last if step == last else EARLY
        most = float(self.bounds[self.response][1])
        limits = {
            "gaussian": Limits(1.0, 1.0, 1.0),
            "binomial": Limits(1.0, 1.0, 0.25),
            "poisson": Limits(most, most, most),
        }[self.family]
        few = [Block(1, 1.0, share * ROWS)] * (2 if self.family == "gaussian" else 1)
        rest = share * (1 - ROWS * len(few))
        return noisy_score.count_blocks(len(self.parties), len(self.bounded.terms), limits, rest) + few

    def length(self, step: int, down: Down) -> int:
        return sum(block.length for block in self.blocks(step))

    # --- a party

    def _read(self, table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        design.check_columns(table, self.columns)
        y, x = self.bounded.read(declared_rows(table, self.columns, self.bounded.agreement.levels))
        assert y is not None
        low, high = self.bounds[self.response]
        y = np.clip(y, low, high)
        return (2 * y - low - high) / (high - low) if self.family == "gaussian" else y, x

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        if not 0 <= step < self.max_steps:
            raise BadData(f"the agreed model has {self.max_steps} rounds; step {step} was asked for.")
        y, x = recall(table, repr(self), lambda: self._read(table))
        groups, p = len(self.parties), len(self.bounded.terms)
        place = self.parties.index(str(table[PARTY].iloc[0]))
        point = check_coefficients(down["point"].numpy(), groups + p)
        if self.family == "gaussian":  # one round from 0: the sums do not depend on a point
            residual, weight = y, np.ones(len(y))
        else:
            mu = make_family(self.family, None, None).mean(point[place] + x @ point[groups:])
            if self.family == "poisson":
                mu = np.minimum(mu, float(self.bounds[self.response][1]))
            residual, weight = y - mu, mu * (1 - mu) if self.family == "binomial" else mu
        here = np.zeros(groups)
        here[place] = 1.0
        sums = GroupSums(
            residual.sum() * here,
            residual @ x,
            weight.sum() * here,
            np.outer(here, weight @ x),
            x.T @ (weight[:, None] * x),
        )
        parts = [*sums.parts(), np.array([float(len(y))])]
        if self.family == "gaussian":
            parts.append(np.array([float(y @ y)]))
        return noise_share.add_noise(parts, self.blocks(step), self.epsilon, self.delta, groups)

    # --- the coordinator

    def coordinate(self) -> Generator[Down, np.ndarray, PrivateMixedEstimate]:
        groups, p = len(self.parties), len(self.bounded.terms)
        point = np.zeros(groups + p)
        # early steps hold the sites' intercepts together, as if τ² were 1: one site's noise is not its own
        ridge = np.zeros((groups + p, groups + p))
        ridge[:groups, :groups] = np.eye(groups) - 1 / groups
        few = 2 if self.family == "gaussian" else 1
        for step in range(self.max_steps):
            total = np.asarray((yield {"point": torch.from_numpy(point.copy())}), dtype=np.float64) / SCALE
            sums = GroupSums.read(total[:-few], groups, p)
            private = self.epsilon, self.delta, groups
            blocks = self.blocks(step)[:5]
            if step < self.max_steps - 1:
                pulled = ridge @ point
                sums = sums._replace(score_a=sums.score_a - pulled[:groups])
                found = noisy_score.take_step(sums, blocks, *private, ridge)
                point = point + noisy_score.shorten(found.step, groups)
        found = noisy_score.take_step(sums, blocks, *private, 0 * ridge)
        return self._conclude(point, found, float(total[-few]), float(total[-1]))

    def _conclude(
        self, point: np.ndarray, last: noisy_score.Step, rows: float, squares: float
    ) -> PrivateMixedEstimate:
        groups, p = len(self.parties), len(self.bounded.terms)
        h, scale, factor, shift = last.information, 1.0, 1.0, 0.0
        if self.family == "gaussian":
            low, high = self.bounds[self.response]
            factor, shift = (high - low) / 2, (high + low) / 2
            left = squares - 2 * float(last.step @ last.score) + float(last.step @ h @ last.step)
            scale = max(left / max(rows - groups - p, 1.0), 1e-12)
        design_ = np.zeros((groups + p, 1 + p))
        design_[:groups, 0], design_[groups:, 1:] = 1.0, np.eye(p)
        target, x = last.score + h @ point, h @ design_
        error = scale * h + last.noise + h @ last.unknown @ h
        tau, gamma, covariance = _fit_variance(target, x, error, h[:, :groups])
        _, _, exact_only = _fit_at(tau, target, x, scale * h, h[:, :groups])
        share = float(np.max(1 - np.diag(exact_only) / np.diag(covariance)))
        middle, half = self.bounded.ranges
        back = np.diag(np.concatenate([[1.0], 1 / half]))
        back[0, 1:] = -middle / half
        beta = factor * back @ gamma
        beta[0] += shift
        return PrivateMixedEstimate(
            [INTERCEPT, *self.bounded.terms],
            beta,
            factor**2 * back @ covariance @ back.T,
            scale * factor**2,
            rows,
            self.max_steps,
            self.bounded.agreement,
            tau * factor**2,
            share,
        )


def _fit_at(
    tau: float, target: np.ndarray, x: np.ndarray, error: np.ndarray, sites: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the log-likelihood, the coefficients and their covariance for a variance τ² of sites."""
    v = error + tau * sites @ sites.T
    unit = np.sqrt(np.diag(v))
    inverse = np.linalg.inv(v / np.outer(unit, unit)) / np.outer(unit, unit)
    covariance = np.linalg.inv(x.T @ inverse @ x)
    gamma = covariance @ (x.T @ inverse @ target)
    rest = target - x @ gamma
    logdet = float(np.linalg.slogdet(v / np.outer(unit, unit))[1]) + 2 * float(np.log(unit).sum())
    return -0.5 * (logdet + float(rest @ inverse @ rest)), gamma, covariance


def _fit_variance(
    target: np.ndarray, x: np.ndarray, error: np.ndarray, sites: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return τ² of the largest likelihood, refined once between its neighbors, and what follows."""
    grid = VARIANCES
    for _ in range(2):
        values = [_fit_at(float(t), target, x, error, sites)[0] for t in grid]
        best = int(np.argmax(values))
        grid = np.linspace(grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)], 41)
    tau = float(grid[int(np.argmax([_fit_at(float(t), target, x, error, sites)[0] for t in grid]))])
    _, gamma, covariance = _fit_at(tau, target, x, error, sites)
    return tau, gamma, covariance


@dataclass
class PrivateSiteEstimates(SiteEstimates):
    rows: float = 0.0


@dataclass(frozen=True)
class PrivateMetaProgram:
    """Every site's own noisy estimates, in a place of its own in one sum."""

    formula: str
    family: str
    parties: tuple[str, ...]
    epsilon: float
    delta: float
    bounds: Mapping[str, Sequence[float]]
    levels: Mapping[str, Sequence[Any]]

    @property
    def max_steps(self) -> int:
        return 1

    @property
    def bound(self) -> int:
        return exact.BOUND

    @cached_property
    def own(self) -> PrivateGlmProgram:
        """The model of one site, which adds all the noise itself."""
        return PrivateGlmProgram(
            self.formula, self.family, 1, self.epsilon, self.delta, self.bounds, self.levels
        )

    @property
    def release(self) -> Release:
        return self.own.release

    @property
    def spend(self) -> Spend:
        return replace(self.own.spend, adversary="everyone: each site adds the noise of its own estimates")

    def length(self, step: int, down: Down) -> int:
        return exact.LIMBS * len(self.parties) * (1 + 2 * len(self.own.terms))

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        if step != 0:
            raise BadData(f"the agreed model has 1 step; step {step} was asked for.")
        out = np.zeros((len(self.parties), 1 + 2 * len(self.own.terms)))
        # also a site without any rows answers with noise, as one with a row does
        found = ideal(self.own, {"own": table})
        place = self.parties.index(str(table[PARTY].iloc[0]))
        out[place] = np.concatenate([[found.rows], found.beta, np.diag(found.covariance)])
        return exact.encode(out.reshape(-1))

    def coordinate(self) -> Generator[Down, np.ndarray, PrivateSiteEstimates]:
        p = len(self.own.terms)
        total = exact.decode((yield {})).reshape(len(self.parties), 1 + 2 * p)
        fitted = [bool((row > 0).all()) for row in total[:, 1 + p :]]
        if sum(fitted) < 2:
            raise BadData("meta: fewer than two sites have rows. Use glm.")
        return PrivateSiteEstimates(
            [n for n, f in zip(self.parties, fitted) if f],
            total[fitted, 1 : 1 + p],
            total[fitted, 1 + p :],
            [n for n, f in zip(self.parties, fitted) if not f],
            float(total[:, 0].sum()),
        )
