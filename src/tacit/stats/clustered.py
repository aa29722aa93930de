"""Models in which the rows of a site belong together: GEE and a random intercept.

K.-Y. Liang and S. Zeger, "Longitudinal data analysis using generalized linear models", Biometrika 1986: every
party weights its own residuals by the inverse of an exchangeable correlation matrix. N. Breslow and D.
Clayton, "Approximate Inference in Generalized Linear Mixed Models", JASA 1993: every party integrates its own
intercept out by Laplace's method. In both a site is inside one party, so only sums over all parties are
opened: scores, information, and (GEE) sums of products of residuals.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..crypto import exact
from ..errors import BadData, ProtocolError
from ..protocols.sum_steps import Down
from . import design
from .ascent import NEARLY, Ascent
from .disclosure import check_concentration
from .families import Family, check_outcome, make_family
from .newton import invert, solve, symmetric, upper
from .recall import recall

MEAN, FINAL = 0, 1
MOST_RHO = 0.999  # correlation of the rows of a site
NEWTON_MODE = 60  # steps to a party's mode; it is a one-dimensional concave function
UNROLLED = 3  # differentiable steps at the mode: two make second derivatives exact, one for rounding


@dataclass
class ClusterEstimate:
    beta: np.ndarray
    covariance: np.ndarray
    rounds: int
    sites: int
    loglik: float = float("nan")
    scale: float = 1.0
    correlation: float = float("nan")
    site_variance: float = float("nan")


@dataclass(frozen=True)
class _Clustered:
    """What both programs share: the rows of a model whose columns are agreed already."""

    formula: str
    family: str
    link: str | None
    levels: Mapping[str, Sequence[Any]]
    start: tuple[float, ...]
    missing: str = "drop"
    max_rounds: int = 40

    @property
    def max_steps(self) -> int:
        return self.max_rounds + 1

    @property
    def bound(self) -> int:
        return exact.BOUND

    @property
    def model(self) -> Family:
        return make_family(self.family, self.link, None)

    @property
    def columns(self) -> list[str]:
        v = design.read_formula(self.formula, response=True)
        return list(dict.fromkeys((*v.response, *v.names)))

    def read(self, table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        return recall(table, repr(self), lambda: self._read(table))

    def _read(self, table: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        frame = design.complete_cases(table, self.columns, self.missing)
        if not len(frame):
            return np.zeros(0), np.zeros((0, len(self.start)))
        agreement = design.Agreement({k: tuple(v) for k, v in self.levels.items()})
        y, x = design.model_matrix(self.formula, self.columns, agreement, frame)
        assert y is not None
        check_outcome(self.model, y)
        return y, x


@dataclass(frozen=True)
class GeeProgram(_Clustered):
    """Generalized estimating equations with exchangeable correlation inside a site."""

    def length(self, step: int, down: Down) -> int:
        p = len(self.start)
        triangle = p * (p + 1) // 2
        return exact.LIMBS * (5 + p + triangle * (1 + (int(down["phase"]) == FINAL)))

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        y, x = self.read(table)
        beta, rho = down["point"].numpy(), float(down["rho"])
        family, n = self.model, len(y)
        # near −1/(n − 1) the inverse of the correlations would make one site's part as large as one likes
        if not (rho * max(n - 1, 0) >= -0.5 and rho <= MOST_RHO):
            raise ProtocolError(
                "the coordinator sends a correlation that no fit of these rows has: it would single a site "
                "out. Nothing was sent."
            )
        eta = x @ beta
        mu = family.mean(eta)
        sd = np.sqrt(family.variance(mu))
        r = (y - mu) / sd
        weight = family.slope(eta, mu) / sd
        check_concentration(weight**2)  # the point is the coordinator's choice
        d = x * weight[:, None]
        c = rho / (1 - rho) / (1 + rho * (n - 1)) if n else 0.0

        def whiten(v: np.ndarray) -> np.ndarray:
            return v / (1 - rho) - c * v.sum(axis=0)  # type: ignore[no-any-return]

        score, bread = d.T @ whiten(r), d.T @ whiten(d)
        square = float(r @ r)
        pairs = float(r.sum()) ** 2 - square
        head = [float(n > 0), n, n * (n - 1) / 2, square, pairs / 2]
        parts = [head, score, upper((bread + bread.T) / 2)]
        if int(down["phase"]) == FINAL:
            parts.append(upper(np.outer(score, score)))
        return exact.encode(np.concatenate(parts))

    def coordinate(self) -> Generator[Down, np.ndarray, ClusterEstimate]:
        point, rho, p = np.array(self.start), 0.0, len(self.start)
        rounds, is_still = 0, False
        while not is_still:
            if rounds == self.max_rounds:
                raise BadData(
                    f"gee: not converged after {rounds} rounds. Raise max_rounds, or use fewer terms."
                )
            rounds += 1
            head, score, bread, _ = _split(exact.decode((yield self._down(point, rho, MEAN))), p)
            _check_sites(head[0])
            scale = head[3] / (head[1] - p)
            new_rho = head[4] / scale / (head[2] - p)
            change = solve(bread, score)
            distance = float(score @ change) / scale
            # below, the correlations of a site with nearly all rows would not be positive definite
            new_rho = float(np.clip(new_rho, -0.5 / head[1], MOST_RHO))
            is_still = distance < 1e-18 and abs(new_rho - rho) < 1e-11
            point, rho = point + change, new_rho
        head, _, bread, meat = _split(exact.decode((yield self._down(point, rho, FINAL))), p)
        inverse = invert(bread)
        dispersion = float(head[3] / (head[1] - p))
        return ClusterEstimate(
            point,
            inverse @ meat @ inverse,
            rounds + 1,
            int(head[0]),
            scale=dispersion if self.model.has_scale else 1.0,
            correlation=rho,
        )

    def _down(self, point: np.ndarray, rho: float, phase: int) -> Down:
        return {
            "point": torch.from_numpy(point.copy()),
            "rho": torch.tensor(rho, dtype=torch.float64),
            "phase": torch.tensor(phase),
        }


def _split(total: np.ndarray, p: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    triangle = p * (p + 1) // 2
    rest = total[5 + p :]
    meat = symmetric(rest[triangle:], p) if len(rest) > triangle else np.zeros((p, p))
    return total[:5], total[5 : 5 + p], symmetric(rest[:triangle], p), meat


def _check_sites(sites: float) -> None:
    if sites < 3:
        raise BadData(
            f"gee: {int(sites)} sites have rows. With fewer than 3 the sum of products of scores shows "
            "each site's own."
        )


@dataclass(frozen=True)
class MixedProgram(_Clustered):
    """A random intercept for each site: β, its standard deviation, and log σ of a linear model."""

    @property
    def _count(self) -> int:
        return len(self.start) + 1 + (self.family == "gaussian")

    def length(self, step: int, down: Down) -> int:
        q = self._count
        return exact.LIMBS * (2 + q + q * (q + 1) // 2)

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        y, x = self.read(table)
        q = self._count
        if not len(y):
            return exact.encode(np.zeros(2 + q + q * (q + 1) // 2))
        outcome, matrix = torch.tensor(y), torch.tensor(x)
        point = down["point"].to(torch.float64)
        if not point.isfinite().all():
            raise ProtocolError("the coordinator sends coefficients that are not numbers. Nothing was sent.")
        mode = self._mode(outcome, matrix, point)
        self._check_weights(matrix, point, mode)

        def value(theta: torch.Tensor) -> torch.Tensor:
            u = mode
            for _ in range(UNROLLED):
                _, first, second = self._joint(outcome, matrix, theta, u)
                u = u - first / second
            top, _, second = self._joint(outcome, matrix, theta, u)
            return top - 0.5 * torch.log(-second)

        gradient = torch.autograd.functional.jacobian(value, point)
        hessian = torch.autograd.functional.hessian(value, point)
        numbers = [[1.0, float(value(point))], gradient.numpy(), upper(-hessian.numpy())]
        return exact.encode(np.concatenate(numbers))

    def _check_weights(self, x: torch.Tensor, theta: torch.Tensor, u: torch.Tensor) -> None:
        """Refuse a point, which is the coordinator's choice, under which few rows have all the weight."""
        if self.family == "gaussian":
            return
        p = x.shape[1]
        mu = self.model.mean((x @ theta[:p] + theta[p] * u).numpy())
        check_concentration(mu * (1 - mu) if self.family == "binomial" else mu)

    def _joint(
        self, y: torch.Tensor, x: torch.Tensor, theta: torch.Tensor, u: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """log p(y, u) of a site and its first two derivatives in u, for an intercept σ_site·u."""
        p = x.shape[1]
        spread = theta[p]
        eta = x @ theta[:p] + spread * u
        if self.family == "gaussian":
            precision = torch.exp(-2 * theta[p + 1])
            r = y - eta
            log = -0.5 * precision * (r**2).sum() - len(y) * (theta[p + 1] + 0.5 * np.log(2 * np.pi))
            return log - u**2 / 2, spread * precision * r.sum() - u, -(spread**2) * precision * len(y) - 1
        if self.family == "binomial":
            mu = torch.sigmoid(eta)
            log = (y * eta - torch.nn.functional.softplus(eta)).sum()
            weight = mu * (1 - mu)
        else:
            mu = torch.exp(eta)
            log = (y * eta - mu - torch.lgamma(y + 1)).sum()
            weight = mu
        return log - u**2 / 2, spread * (y - mu).sum() - u, -(spread**2) * weight.sum() - 1

    def _mode(self, y: torch.Tensor, x: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        u = torch.zeros((), dtype=torch.float64)
        for _ in range(NEWTON_MODE):
            _, first, second = self._joint(y, x, theta, u)
            step = torch.clamp(first / second, -2.0, 2.0)  # far from the mode a full step may overshoot
            u = u - step
            if abs(float(step)) < 1e-13:
                break
        return u

    def coordinate(self) -> Generator[Down, np.ndarray, ClusterEstimate]:
        p, q = len(self.start), self._count
        none = np.zeros(q)
        ascent = Ascent(np.array([*self.start, 0.5, *([0.0] * (q - p - 1))]), none, none)
        rounds, sites = 0, 0
        best_hessian = np.eye(q)
        while rounds < self.max_rounds:
            rounds += 1
            total = exact.decode((yield {"point": torch.from_numpy(ascent.point.copy())}))
            sites = int(total[0])
            if sites < 2:
                raise BadData(f"mixed: {sites} site has rows. A random intercept needs at least 2.")
            hessian = symmetric(total[2 + q :], q)
            values, vectors = np.linalg.eigh(
                hessian / np.outer(s := np.sqrt(np.abs(np.diag(hessian)) + 1e-12), s)
            )
            fixed = (vectors * np.maximum(np.abs(values), 1e-6)) @ vectors.T * np.outer(s, s)
            if ascent.update(float(total[1]), total[2 : 2 + q], hessian, fallback=fixed):
                best_hessian = hessian
            if ascent.is_converged or ascent.has_stalled:
                break
        if not ascent.is_converged and not ascent.distance < NEARLY:
            raise BadData(
                f"mixed: not converged after {rounds} rounds. Raise max_rounds, or use C(site) instead."
            )
        assert ascent.best is not None
        theta = ascent.best + ascent.step
        inverse = invert(best_hessian)
        return ClusterEstimate(
            theta[:p],
            inverse[:p, :p],
            rounds,
            sites,
            loglik=ascent.value,
            scale=float(np.exp(2 * theta[p + 1])) if self.family == "gaussian" else 1.0,
            site_variance=float(theta[p] ** 2),
        )
