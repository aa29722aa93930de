"""One maximization by Newton's method, fed with sums: the point to evaluate next, halved steps,
convergence.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .newton import lasso_step, solve

CONVERGED = 1e-14  # of the squared distance to the maximum, in standard errors
NEARLY = 1e-10  # accepted if rounding errors allow no better
HALVINGS = 12  # 2^-12 of a Newton step that does not improve: there is no improvement


@dataclass
class Ascent:
    """The state of a maximization: `point` is where the next sums are wanted."""

    point: np.ndarray
    ridge: np.ndarray  # of the objective −½ Σ ridge_j x_j²
    lasso: np.ndarray  # of the objective −Σ lasso_j |x_j|
    best: np.ndarray | None = None
    value: float = -np.inf
    step: np.ndarray = field(default_factory=lambda: np.zeros(0))
    before: np.ndarray = field(default_factory=lambda: np.zeros(0))  # the step before
    distance: float = np.inf  # squared, in standard errors, from `best` to the maximum
    halvings: int = 0
    is_converged: bool = False
    has_stalled: bool = False

    def update(
        self,
        value: float,
        gradient: np.ndarray,
        hessian: np.ndarray,
        scale: float = 1.0,
        fallback: np.ndarray | None = None,
    ) -> bool:
        """Take the sums at `point`; return whether the point improved (or was the first).

        `hessian` is that of the negative objective; `fallback` is used where it is not positive definite.
        """
        value -= 0.5 * float(self.ridge @ self.point**2) + float(self.lasso @ np.abs(self.point))
        if self.best is not None and not value >= self.value - 1e-9 * (abs(self.value) + 1):
            self._halve()
            return False
        from .newton import is_positive

        gradient = gradient - self.ridge * self.point
        curvature = hessian + np.diag(self.ridge)
        if fallback is not None and not is_positive(curvature):
            curvature = fallback + np.diag(self.ridge)
        if self.lasso.any():
            step = lasso_step(curvature, gradient, self.point, self.lasso)
            distance = float(step @ curvature @ step) / scale
        else:
            try:
                step = solve(curvature, gradient)
            except np.linalg.LinAlgError:
                step = np.full_like(gradient, np.nan)
            distance = float(gradient @ step) / scale
        stalled = distance < NEARLY and not distance < 0.1 * self.distance
        self.before, self.step = self.step, step
        self.best, self.value, self.distance, self.halvings = self.point, value, distance, 0
        self.is_converged = bool(distance < CONVERGED) or bool(stalled)
        self.has_stalled = not np.isfinite(step).all()
        self.point = self.best + step if np.isfinite(step).all() else self.best
        return True

    def _halve(self) -> None:
        assert self.best is not None
        self.halvings += 1
        if self.halvings > HALVINGS:
            self.has_stalled = True
        self.point = (self.best + self.point) / 2

    @property
    def diverging(self) -> bool:
        """Whether the last two steps had about the same direction and length: there is no maximum."""
        if len(self.before) != len(self.step) or not len(self.step):
            return False
        a, b = np.linalg.norm(self.before), np.linalg.norm(self.step)
        return bool(a > 0 and b > 0.4 * a and self.before @ self.step > 0.8 * a * b)
