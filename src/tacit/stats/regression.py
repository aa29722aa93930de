"""Generalized linear models by sums over parties: iteratively reweighted least squares and Newton's method.

    step 0   every party: kinds and levels of its columns, number of rows          → the columns are agreed
    step 1   Σ w x, Σ w x², Σ XᵀWX, Σ XᵀWz at the starting means                    → the first coefficients β
    step 2…  log-likelihood, deviance, Pearson's χ², XᵀW(y−μ)/…, XᵀWX at β          → the next β
    last     only for robust errors and gamma models: sums at the final β

P. McCullagh and J. Nelder, "Generalized Linear Models", 2nd edition, 1989. D. Firth, "Bias reduction of
maximum likelihood estimates", Biometrika 1993. Every vector is a sum over all parties; XᵀWX of one party is
not opened.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from ..crypto import exact
from ..errors import BadData, ProtocolError
from ..protocols.sum_steps import BEGIN_AGAIN, Down
from . import design, families, rare_rows
from .ascent import Ascent
from .concentration import sum_leverages
from .disclosure import LEAST, check_concentration, check_saturated, count_values
from .glm_sums import Pieces, count_third, firth_pieces, newton_pieces
from .level_sketch import LEVEL_ROWS
from .newton import Scaling, check_columns, invert, is_positive, solve, symmetric, upper
from .outcomes import find_event
from .recall import recall

AGREE, START, NEWTON, FINISH = 0, 1, 2, 3
FIRST_NEWTON = 2  # the step whose sums show whether columns rest on few rows
WHITENING = "whitening"
SITES = 3  # with fewer, the products of the sites' scores show each of them


@dataclass
class GlmRows:
    """One party's rows as a model sees them."""

    y: np.ndarray
    x: np.ndarray
    variance_weights: np.ndarray
    frequency: np.ndarray
    offset: np.ndarray
    cells: np.ndarray  # rows by combination of levels
    standardized: dict[bytes, np.ndarray] = field(default_factory=dict)
    powers: dict[bytes, np.ndarray] = field(default_factory=dict)

    @property
    def weights(self) -> np.ndarray:
        return self.variance_weights * self.frequency  # type: ignore[no-any-return]

    def scaled(self, scaling: Scaling) -> np.ndarray:
        key = scaling.center.tobytes() + scaling.scale.tobytes()
        if key not in self.standardized:
            self.standardized = {key: scaling.apply(self.x)}
            self.powers = {key: rare_rows.sum_powers(self.standardized[key])}
        return self.standardized[key]

    def power_sums(self, scaling: Scaling) -> np.ndarray:
        self.scaled(scaling)
        return self.powers[scaling.center.tobytes() + scaling.scale.tobytes()]


@dataclass
class GlmEstimate:
    """What the coordinator of a regression learns."""

    names: list[str]
    beta: np.ndarray
    covariance: np.ndarray
    scale: float
    loglik: float
    loglik_null: float
    deviance: float
    null_deviance: float
    pearson: float
    rows: int  # complete cases
    dropped: int
    total: float  # the sum of frequency weights
    parties: int
    rounds: int
    agreement: design.Agreement
    alpha: float | None = None
    alpha_se: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class GlmProgram:
    """The sums of a generalized linear model. All fields are plain values."""

    if_left: ClassVar[str] = BEGIN_AGAIN
    is_repeatable: ClassVar[bool] = True
    formula: str
    family: str = "binomial"
    link: str | None = None
    alpha: float | None = None
    weights: str | None = None
    weight_kind: str = "variance"
    offset: str | None = None
    exposure: str | None = None
    l2: float = 0.0
    l1: float = 0.0
    firth: bool = False
    robust: str | None = None
    levels: Mapping[str, Sequence[Any]] | None = None
    missing: str = "drop"
    max_rounds: int = 10
    min_count: int = LEAST
    positive: Any = None  # the level of a text outcome that is the event
    owner: str = "glm"  # the query that errors name
    min_level_rows: int = LEVEL_ROWS  # of one party, for a level that is found

    # --- what both sides know

    @property
    def max_steps(self) -> int:
        return self.max_rounds + self._has_finish

    @property
    def _has_finish(self) -> bool:
        return self.robust is not None or self.family == "gamma"

    @property
    def bound(self) -> int:
        return exact.BOUND

    @property
    def _tests_span(self) -> bool:
        """Whether sums show if a combination of columns rests on few rows (concentration.py)."""
        return self.min_count > 1

    @property
    def _estimates_alpha(self) -> bool:
        return self.family == "negative_binomial" and self.alpha is None

    @property
    def model(self) -> families.Family:
        return families.make_family(self.family, self.link, self.alpha)

    @property
    def variables(self) -> design.Variables:
        return design.read_formula(self.formula, response=True)

    @property
    def columns(self) -> list[str]:
        """The columns of the formula, the outcome first."""
        v = self.variables
        return list(dict.fromkeys((*v.response, *v.names)))

    @property
    def used(self) -> list[str]:
        more = [c for c in (self.weights, self.offset, self.exposure) if c]
        return list(dict.fromkeys([*self.columns, *more]))

    @property
    def _sizes(self) -> Pieces:
        return Pieces(self.model, self._estimates_alpha)

    def length(self, step: int, down: Down) -> int:
        if step == 0:
            return 3 + design.kinds_length(self.columns)
        p = self._count_terms(down)
        triangle = p * (p + 1) // 2
        phase = int(down["phase"])
        if phase == START:
            agreement = design.Agreement.from_tensor(down["levels"])
            numbers = (
                3
                + 3 * p
                + triangle * (1 + self._tests_span)
                + 2 * (p + 1)
                + rare_rows.cells_length(self.formula, agreement)
            )
        elif phase == NEWTON:
            numbers = self._sizes.count(p) + self._sizes.count(1) + rare_rows.POWERS * p
            numbers += (count_third(p) + triangle) if self.firth else 0
            numbers += 2 * triangle if WHITENING in down else 0
        else:
            numbers = 2 + triangle
        return exact.LIMBS * numbers

    def _count_terms(self, down: Down) -> int:
        return len(self._terms(design.Agreement.from_tensor(down["levels"])))

    def _terms(self, agreement: design.Agreement) -> list[str]:
        return design.term_names(self.formula, self.columns, agreement)

    # --- a party

    def row_sets(self, table: pd.DataFrame) -> dict[str, np.ndarray]:
        """All rows that the sums are about: complete cases, for the guard against differencing."""
        design.check_columns(table, self.used)
        return {"all rows": design.has_all(table, self.used)}

    def parameters(self, table: pd.DataFrame) -> tuple[int, int]:
        """Coefficients of the model with this party's levels, and its complete rows."""
        frame = design.complete_cases(table, self.used, "drop")
        agreement = design.own_agreement(frame, self.columns, self.variables.categorical, self.levels or {})
        return len(self._terms(agreement)) + self._estimates_alpha, len(frame)

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        if step == 0:
            return self._describe(table)
        agreement = design.Agreement.from_tensor(down["levels"])
        rows = recall(table, (repr(self), agreement.key), lambda: self._read(table, agreement))
        check_saturated(int(down["rows"]), rows.x.shape[1] + self._estimates_alpha)
        if int(down["rows"]) < len(rows.y):
            raise ProtocolError("the coordinator states fewer rows than this party has.")
        phase = int(down["phase"])
        if phase == START:
            return exact.encode(self._start(rows, down))
        scaling = _read_scaling(down)
        x = rows.scaled(scaling)
        if phase == NEWTON:
            parts = [self._newton(rows, x, down), rows.power_sums(scaling)]
            if WHITENING in down:
                if step != FIRST_NEWTON or not self._tests_span:
                    raise BadData(f"the agreed model has no test of its columns in step {step + 1}.")
                parts.append(
                    sum_leverages(
                        x, down[WHITENING].numpy(), self.min_count, rows.variance_weights, rows.frequency
                    )
                )
            return exact.encode(np.concatenate(parts))
        if phase != FINISH or not self._has_finish:
            raise BadData(f"the coordinator asked for phase {phase}, which is not part of the agreed model.")
        return exact.encode(self._finish(rows, x, down))

    def check_levels(self, table: pd.DataFrame, agreement: design.Agreement) -> None:
        design.check_columns(table, self.used)
        design.check_agreement(agreement, table, self.columns, self.variables.categorical, self.levels or {})

    def once(self, down: Down) -> str | None:
        """Robust errors are of one point: products of sites' scores at several would show each site's."""
        return "finish" if "phase" in down and int(down["phase"]) == FINISH else None

    def _describe(self, table: pd.DataFrame) -> np.ndarray:
        design.check_columns(table, self.used)
        complete = design.complete_cases(table, self.used, self.missing)
        kinds = design.count_kinds(
            complete, self.columns, self.variables.categorical, self.levels or {}, self.min_level_rows
        )
        return np.concatenate([np.array([1, len(complete), len(table) - len(complete)]), kinds])

    def _read(self, table: pd.DataFrame, agreement: design.Agreement) -> GlmRows:
        self.check_levels(table, agreement)
        frame = design.complete_cases(table, self.used, self.missing)
        design.check_found(frame, agreement, self.levels or {}, self.min_level_rows)
        n = len(frame)
        if n == 0:
            none = np.zeros(0)
            cells = np.zeros(rare_rows.cells_length(self.formula, agreement))
            return GlmRows(none, np.zeros((0, len(self._terms(agreement)))), none, none, none, cells)
        event = find_event(self.owner, self.positive, self.family, self.variables, agreement)
        y, x = design.model_matrix(self.formula, self.columns, agreement, frame, event=event)
        assert y is not None
        families.check_outcome(self.model, y)
        ones = np.ones(n)
        weights = _numbers(frame, self.weights, ones)
        if not (weights > 0).all():
            raise BadData(f"column {self.weights!r} has weights that are not above 0.")
        exposure = _numbers(frame, self.exposure, ones)
        if not (exposure > 0).all():
            raise BadData(f"column {self.exposure!r} has exposures that are not above 0.")
        offset = _numbers(frame, self.offset, np.zeros(n)) + np.log(exposure)
        is_frequency = self.weight_kind == "frequency"
        cells = rare_rows.count_cells(self.formula, agreement, frame)
        return GlmRows(
            y, x, ones if is_frequency else weights, weights if is_frequency else ones, offset, cells
        )

    def _start(self, rows: GlmRows, down: Down) -> np.ndarray:
        family, w, x, y = self.model, rows.weights, rows.x, rows.y
        own_mean = float(np.average(y, weights=w)) if len(y) else 1.0  # only where the first step starts
        mu = family.start(y, own_mean)
        eta = family.predictor(mu)
        slope = family.slope(eta, mu)
        weight = w * slope**2 / family.variance(mu)
        check_concentration(weight)
        z = eta - rows.offset + (y - mu) / slope
        return np.concatenate(
            [
                [w.sum(), rows.frequency.sum(), (w * y).sum()],
                w @ x,
                w @ x**2,
                x.T @ (weight * z),
                upper(x.T @ (weight[:, None] * x)),
                *([upper(x.T @ (w[:, None] * x))] if self._tests_span else []),
                count_values(np.column_stack([x, y])),
                rows.cells,
            ]
        )

    def _newton(self, rows: GlmRows, x: np.ndarray, down: Down) -> np.ndarray:
        point, null = down["point"].numpy(), down["null"].numpy()
        sizes, n = self._sizes, len(rows.y)
        parts = [
            newton_pieces(sizes, x, rows.y, rows.variance_weights, rows.frequency, rows.offset, point),
            newton_pieces(
                sizes, np.ones((n, 1)), rows.y, rows.variance_weights, rows.frequency, rows.offset, null
            ),
        ]
        if self.firth:
            parts.append(firth_pieces(x, rows.weights, rows.offset, point, down["inverse"].numpy()))
        return np.concatenate(parts)

    def _finish(self, rows: GlmRows, x: np.ndarray, down: Down) -> np.ndarray:
        family, scale = self.model, float(down["scale"])
        eta = x @ down["point"].numpy() + rows.offset
        mu = family.mean(eta)
        check_concentration(rows.weights * family.slope(eta, mu) ** 2 / family.variance(mu))
        null = family.mean(np.full(len(rows.y), float(down["null"][0])) + rows.offset)
        score = rows.weights * (rows.y - mu) * family.slope(eta, mu) / family.variance(mu)
        if self.robust == "site":
            total = score @ x
            meat = np.outer(total, total)
        else:
            meat = x.T @ ((score**2)[:, None] * x)
        lls = [
            float((rows.frequency * family.log_likelihood(rows.y, m, rows.variance_weights, scale)).sum())
            for m in (mu, null)
        ]
        return np.concatenate([lls, upper(meat)])

    # --- the coordinator

    def coordinate(self) -> Generator[Down, np.ndarray, GlmEstimate]:
        from .regression_coordinator import coordinate

        return (yield from coordinate(self))


def _numbers(frame: pd.DataFrame, name: str | None, default: np.ndarray) -> np.ndarray:
    if name is None:
        return default
    if not pd.api.types.is_numeric_dtype(frame[name].dtype):
        raise BadData(f"column {name!r} contains non-numeric values.")
    return frame[name].to_numpy(dtype=np.float64)  # type: ignore[no-any-return]


def _read_scaling(down: Down) -> Scaling:
    where = int(down["intercept"])
    return Scaling(down["center"].numpy(), down["scaled"].numpy(), where if where >= 0 else None)


def write_scaling(scaling: Scaling) -> dict[str, torch.Tensor]:
    return {
        "center": torch.from_numpy(scaling.center),
        "scaled": torch.from_numpy(scaling.scale),
        "intercept": torch.tensor(-1 if scaling.intercept is None else scaling.intercept),
    }


__all__ = [
    "AGREE", "FINISH", "NEWTON", "SITES", "START", "Ascent", "GlmEstimate", "GlmProgram", "check_columns",
    "invert", "is_positive", "solve", "symmetric", "write_scaling",
]  # fmt: skip
