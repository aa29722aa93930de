"""The coordinator of a generalized linear model: from sums to coefficients, errors and goodness of fit."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import numpy as np
import torch

from ..crypto import exact
from ..errors import BadData
from ..protocols.sum_steps import Down
from . import concentration, design, rare_rows
from .ascent import NEARLY, Ascent
from .disclosure import check_values
from .glm_sums import NewtonSums, count_third, read_third
from .newton import Scaling, check_columns, invert, solve, symmetric
from .outcomes import find_event
from .regression import FINISH, NEWTON, SITES, START, WHITENING, GlmEstimate, GlmProgram, write_scaling

OWNER = "glm"
Sums = Generator[Down, np.ndarray, GlmEstimate]


class Counts(NamedTuple):
    parties: int
    rows: int
    dropped: int


def coordinate(program: GlmProgram) -> Sums:
    """Ask for sums until the coefficients stay, and return the estimate."""
    total = yield {}
    counts = Counts(*(int(v) for v in total[:3]))
    agreement = design.agree(total[3:], program.columns, program.levels or {}, OWNER, program.min_level_rows)
    find_event(program.owner, program.positive, program.family, program.variables, agreement)
    names = program._terms(agreement)
    _check_size(program, counts, len(names))
    levels = {"levels": agreement.to_tensor(), "rows": torch.tensor(counts.rows)}
    p = len(names)

    total = exact.decode((yield {**levels, "phase": torch.tensor(START)}))
    weight, frequency, mean_y = total[0], total[1], total[2] / total[0]
    first, second, moment = (total[3 + k * p : 3 + (k + 1) * p] for k in range(3))
    triangle = p * (p + 1) // 2
    grams = triangle * (1 + program._tests_span)
    numbers, cells = np.split(total, [3 + 3 * p + grams + 2 * (p + 1)])
    gram = symmetric(numbers[3 + 3 * p : 3 + 3 * p + triangle], p)
    if program.model.name == "binomial" and mean_y in (0.0, 1.0):
        raise BadData(f"{OWNER}: the outcome {program.variables.response[0]!r} is {mean_y:g} in all rows.")
    columns = [*names, program.variables.response[0]]
    rare_rows.check_cells(OWNER, program.formula, agreement, cells, program.min_count)
    check_values(OWNER, columns, numbers[-2 * (p + 1) :], counts.rows, program.min_count)
    scaling = Scaling.from_moments(weight, first, second, names)
    back = scaling.back
    is_penalized = program.l2 > 0 or program.l1 > 0
    if not is_penalized:
        check_columns(back.T @ gram @ back, names, OWNER)
    start = solve(back.T @ gram @ back + np.diag(_ridge(program, frequency, scaling)), back.T @ moment)

    whitening = None
    if program._tests_span:
        unweighted = symmetric(numbers[3 + 3 * p + triangle : 3 + 3 * p + 2 * triangle], p)
        whitening = concentration.whiten(back.T @ unweighted @ back)

    state = _State(program, scaling, names, counts, frequency)
    state.begin(start, mean_y)
    base = {**levels, **write_scaling(scaling), "phase": torch.tensor(NEWTON)}
    sums, rounds = None, 2
    while rounds < program.max_rounds:
        rounds += 1
        down = {**base, "point": _tensor(state.fit.point), "null": _tensor(state.null.point)}
        if program.firth:
            down["inverse"] = _tensor(state.inverse)
        tested, whitening = whitening, None
        if tested is not None:
            down[WHITENING] = _tensor(tested)
        total = exact.decode((yield down))
        if tested is not None:
            total, leverages = np.split(total, [-2 * triangle])
        total, powers = np.split(total, [-rare_rows.POWERS * p])
        rare_rows.check_columns(OWNER, names, powers, counts.rows, program.min_count)
        if tested is not None:
            concentration.check_span(OWNER, names, tested, leverages, frequency, program.min_count)
        sums = state.take(total, p, is_penalized) or sums
        if state.is_done:
            break
        if state.fit.has_stalled:
            break
    if not state.fit.is_converged and not state.fit.distance < NEARLY:
        raise state.explain()
    assert sums is not None
    estimate = state.estimate(sums, agreement, rounds)
    if program._has_finish:
        point = estimate_point(state)
        total = yield {
            **base,
            "phase": torch.tensor(FINISH),
            "point": _tensor(point),
            "null": _tensor(state.null.best if state.null.best is not None else state.null.point),
            "scale": torch.tensor(estimate.scale, dtype=torch.float64),
        }
        state.finish(estimate, exact.decode(total))
    return estimate


def _check_size(program: GlmProgram, counts: Counts, p: int) -> None:
    if p == 0:
        raise BadData(f"{OWNER}: the formula {program.formula!r} has no terms and no intercept.")
    if counts.rows <= p + program._estimates_alpha:
        raise BadData(
            f"{OWNER}: {counts.rows} complete rows at all parties together, and {p} coefficients. A "
            "model with as many "
            "coefficients as rows shows every outcome, and is refused. Use fewer terms."
        )
    if program.robust == "site" and counts.parties < SITES:
        raise BadData(
            f"{OWNER}: robust='site' needs at least {SITES} parties: with {counts.parties} the "
            "sum shows each site's own."
        )


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))


def _ridge(program: GlmProgram, n: float, scaling: Scaling) -> np.ndarray:
    out = n * program.l2 / scaling.scale**2
    if scaling.intercept is not None:
        out[scaling.intercept] = 0.0
    return out


def estimate_point(state: _State) -> np.ndarray:
    """The maximum: the last evaluated point and one step more, which is below rounding."""
    best = state.fit.best
    assert best is not None
    return best + state.fit.step if np.isfinite(state.fit.step).all() else best


class _State:
    """Two maximizations side by side: the model, and the model with an intercept only."""

    def __init__(
        self, program: GlmProgram, scaling: Scaling, names: list[str], counts: Counts, total: float
    ) -> None:
        self.program, self.scaling, self.names, self.counts, self.total = (
            program, scaling, names, counts, total,
        )  # fmt: skip
        self.inverse = np.eye(len(names))
        self.is_first = True
        self.null_sums: NewtonSums | None = None

    def begin(self, start: np.ndarray, mean_y: float) -> None:
        program, family = self.program, self.program.model
        extra = [0.0] if program._estimates_alpha else []
        ridge = _ridge(program, self.total, self.scaling)
        lasso = self.total * program.l1 / self.scaling.scale
        if self.scaling.intercept is not None:
            lasso[self.scaling.intercept] = 0.0
        self.fit = Ascent(np.concatenate([start, extra]), np.append(ridge, extra), np.append(lasso, extra))
        inside = np.clip(mean_y, 1e-9, 1 - 1e-9) if family.name == "binomial" else mean_y
        origin = float(family.predictor(np.array([inside]))[0]) if inside else 0.0
        none = np.zeros(1 + len(extra))
        self.null = Ascent(np.concatenate([[origin], extra]), none, none)

    @property
    def is_done(self) -> bool:
        return self.fit.is_converged and (self.null.is_converged or self.null.has_stalled)

    def take(self, total: np.ndarray, p: int, is_penalized: bool) -> NewtonSums | None:
        """Take a round's sums; return those of the model if its point improved."""
        sizes = self.program._sizes
        sums, null = sizes.read(total, p), sizes.read(total[sizes.count(p) :], 1)
        if self.is_first and self.program._estimates_alpha:  # the first α by moments, at the first β
            self.is_first = False
            for ascent, s in ((self.fit, sums), (self.null, null)):
                alpha = np.clip(s.excess / max(s.squares, 1e-300), 0.02, 50.0)
                q = len(ascent.point) - 1
                ascent.point = np.append(
                    ascent.point[:q] + solve(s.information[:q, :q], s.gradient[:q]), np.log(alpha)
                )
            return None
        if not is_penalized and not sums.valid:
            check_columns(sums.information, [*self.names, "alpha"][: len(sums.information)], OWNER)
        third = total[sizes.count(p) + sizes.count(1) :]
        improved = self._step(self.fit, sums, third if self.program.firth else None)
        if not self.null.is_converged and self._step(self.null, null, None):
            self.null_sums = null
        return sums if improved else None

    def _step(self, ascent: Ascent, sums: NewtonSums, third: np.ndarray | None) -> bool:
        family = self.program.model
        if sums.valid:
            return ascent.update(-np.inf, sums.gradient, sums.information)
        value = sums.loglik if self.program._estimates_alpha else -sums.deviance / 2
        scale = sums.pearson / max(self.total - len(sums.gradient), 1.0) if family.has_scale else 1.0
        gradient, hessian = sums.gradient, sums.observed
        if third is not None:
            p = len(gradient)
            tensor, second = read_third(third[: count_third(p)], p), symmetric(third[count_third(p) :], p)
            inverse = invert(sums.information)
            products = np.einsum("ab,bcd->acd", inverse, tensor)
            gradient = gradient + 0.5 * np.einsum("aac->c", products)
            hessian = hessian - 0.5 * (second - np.einsum("abc,bad->cd", products, products))
            value += 0.5 * float(np.linalg.slogdet(sums.information)[1])
            self.inverse = inverse
        return ascent.update(value, gradient, hessian, max(scale, 1e-300), sums.information)

    def explain(self) -> BadData:
        """The error of a model without a maximum, or that did not reach it."""
        step = np.abs(self.fit.step[: len(self.names)])
        rounds = self.program.max_rounds
        if self.program.model.name in ("binomial", "poisson") and (
            self.fit.diverging or not np.isfinite(step).all()
        ):
            columns = [n for n, s in zip(self.names, step) if np.isfinite(s) and s > 0.25 * np.nanmax(step)]
            columns = [c for c in columns if c != "Intercept"] or columns
            return BadData(
                f"{OWNER}: the outcomes are separated by "
                f"{', '.join(map(repr, columns)) or 'the columns'}: the "
                "likelihood has no maximum, and coefficients grow without limit. Use firth=True or l2=, "
                "or leave "
                "the column out."
            )
        return BadData(
            f"{OWNER}: not converged after {rounds} rounds (the coefficients are still "
            f"{np.sqrt(max(self.fit.distance, 0)):.2g} standard errors from the maximum). "
            "Raise max_rounds, or use l2= or fewer terms."
        )

    def estimate(self, sums: NewtonSums, agreement: design.Agreement, rounds: int) -> GlmEstimate:
        program, family, p = self.program, self.program.model, len(self.names)
        point = estimate_point(self)
        freedom = self.total - p
        scale = sums.pearson / freedom if family.has_scale else 1.0
        alpha = alpha_se = None
        if program._estimates_alpha:
            inverse = invert(sums.observed)
            alpha = float(np.exp(point[p]))
            alpha_se = alpha * float(np.sqrt(inverse[p, p]))
            inverse = inverse[:p, :p]
        else:
            ridge = np.diag(self.fit.ridge)
            inverse = invert(sums.information + ridge)
            if program.l2 > 0:
                inverse = inverse @ sums.information @ inverse
        # the sandwich is made with the observed Hessian, as in statsmodels; it differs for other links
        self.bread = inverse if family.is_canonical or program.robust is None else invert(sums.observed)
        covariance = scale * inverse
        if program.l1 > 0:
            covariance = np.full_like(inverse, np.nan)
        null = self.null_sums
        loglik, loglik_null = sums.loglik, null.loglik if null else np.nan
        deviance, null_deviance = sums.deviance, null.deviance if null else np.nan
        if family.name == "gaussian":
            concentrated = deviance / self.total
            used = concentrated if family.link == "identity" else scale
            loglik = _gaussian(deviance, used, sums.log_weights, self.total)
            loglik_null = _gaussian(null_deviance, scale, sums.log_weights, self.total)
        back = self.scaling.back
        return GlmEstimate(
            self.names,
            back @ point[:p],
            back @ covariance @ back.T,
            scale,
            loglik,
            loglik_null,
            deviance,
            null_deviance,
            sums.pearson,
            self.counts.rows,
            self.counts.dropped,
            self.total,
            self.counts.parties,
            rounds,
            agreement,
            alpha,
            alpha_se,
        )

    def finish(self, estimate: GlmEstimate, total: np.ndarray) -> None:
        """Add what the last round gave: the log-likelihoods of a gamma model, and robust errors."""
        estimate.rounds += 1
        if self.program.model.name == "gamma":
            estimate.loglik, estimate.loglik_null = float(total[0]), float(total[1])
        if self.program.robust is None:
            return
        p, n, k = len(self.names), self.total, self.counts.parties
        meat = symmetric(total[2:], p)
        factor = {"HC0": 1.0, "HC1": n / (n - p)}
        if self.program.robust == "site":
            factor["site"] = k / (k - 1) * (n - 1) / (n - p)
        back = self.scaling.back @ self.bread
        estimate.covariance = factor[self.program.robust] * back @ meat @ back.T


def _gaussian(deviance: float, scale: float, log_weights: float, n: float) -> float:
    return float(-0.5 * (deviance / scale + n * np.log(2 * np.pi * scale) - log_weights))
