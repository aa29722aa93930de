"""Cox's proportional hazards model by sums over parties.

    step 0     kinds and levels of columns, times by powers of two, rows, events, and how
               many times are rounded by the grid, and by finer ones                       → columns, grid
    step 1     events and departures on the grid, Σ x, Σ x xᵀ, Σ x over events
    step 2, 4… RISK  S0, S1 (Efron: E0, E1) at each grid point with an event, at β          → weights a, b
    step 3, 5… GRAM  Σ_k a_k S2_k + b_k E2_k, one matrix for all grid points               → the next β
    last       sums for the test of proportional hazards and for the concordance

S2 is not opened by grid point: a party weights its own rows by a and b and adds up. With strata="site" no
grid is opened at all: a stratum is inside one party, which sends the gradient and Hessian of its own partial
likelihood, and only their sums over parties are opened.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from ..crypto import exact
from ..errors import BadData, ProtocolError
from ..protocols.sum_steps import BEGIN_AGAIN, Down
from . import design, rare_rows, risk_sets
from .concentration import sum_leverages
from .disclosure import LEAST, check_concentration, check_saturated, count_values
from .level_sketch import LEVEL_ROWS
from .lifetimes import (
    COUNT_BOUND,
    FINER,
    _codes,
    check_cells,
    count_powers,
    count_rounded,
    read_events,
    read_times,
    to_cells,
)
from .newton import INTERCEPT, Scaling, upper
from .recall import recall
from .risk_sets import RiskRows

FIRST_NEWTON = 2  # the step whose sums show whether columns rest on few rows
WHITENING = "whitening"
COUNT, RISK, GRAM, SITE, TEST, BIN = 1, 2, 3, 4, 5, 6
POWERS = 41
HEAD = 4 + len(FINER)  # numbers of step 0 before the powers of two
MOST_BINS = 50_000  # cells of the table of scores by grid point


@dataclass
class CoxRows:
    """One party's complete rows."""

    x: np.ndarray
    cells: np.ndarray
    entry: np.ndarray  # cells; −1: from the beginning
    event: np.ndarray
    stratum: np.ndarray
    times: np.ndarray
    entry_times: np.ndarray | None
    weights: np.ndarray | None = None
    tallies: np.ndarray = field(default_factory=lambda: np.zeros(0))  # rows by combination of levels
    placed: dict[bytes, RiskRows] = field(default_factory=dict)


@dataclass(frozen=True)
class CoxProgram:
    """The sums of a Cox model. All fields are plain values."""

    if_left: ClassVar[str] = BEGIN_AGAIN
    is_repeatable: ClassVar[bool] = True
    formula: str
    time: str
    event: str
    ties: str = "efron"
    strata: tuple[str, ...] = ()
    by_site: bool = False
    entry: str | None = None
    grid: Any = 1.0
    min_exits: int = 1
    l2: float = 0.0
    transform: str = "km"
    levels: Mapping[str, Sequence[Any]] | None = None
    missing: str = "drop"
    max_rounds: int = 25
    min_count: int = LEAST
    weights: str | None = None
    min_level_rows: int = LEVEL_ROWS  # of one party, for a level that is found

    # --- what both sides know

    @property
    def max_steps(self) -> int:
        return 4 + 2 * self.max_rounds

    @property
    def bound(self) -> int:
        return COUNT_BOUND

    @property
    def is_efron(self) -> bool:
        return self.ties == "efron"

    @property
    def is_weighted(self) -> bool:
        return self.weights is not None

    @property
    def variables(self) -> design.Variables:
        return design.read_formula(self.formula, response=False)

    @property
    def columns(self) -> list[str]:
        return list(self.variables.names)

    @property
    def categories(self) -> list[str]:
        """The columns whose levels are agreed: those of the formula, and the strata."""
        return list(dict.fromkeys([*self.columns, *self.strata]))

    @property
    def used(self) -> list[str]:
        more = [c for c in (self.time, self.event, self.entry, self.weights) if c]
        return list(dict.fromkeys([*more, *self.categories]))

    def terms(self, agreement: design.Agreement) -> list[str]:
        return [t for t in design.term_names(self.formula, self.columns, agreement) if t != INTERCEPT]

    def strata_levels(self, agreement: design.Agreement) -> list[tuple[Any, ...]]:
        out: list[tuple[Any, ...]] = [()]
        for name in self.strata:
            out = [(*s, level) for s in out for level in agreement.levels[name]]
        return out

    def length(self, step: int, down: Down) -> int:
        if step == 0:
            return HEAD + POWERS + design.kinds_length(self.categories)
        agreement = design.Agreement.from_tensor(down["levels"])
        p, phase = len(self.terms(agreement)), int(down["phase"])
        triangle = p * (p + 1) // 2
        if phase == COUNT:
            counts = 0 if self.by_site else 2 * len(self.strata_levels(agreement)) * int(down["cells"])
            more = self.is_weighted + rare_rows.cells_length(self.formula, agreement)
            return counts + exact.LIMBS * (2 * p + triangle + 2 * (p + 1) + more)
        if phase == GRAM:
            return exact.LIMBS * triangle
        more = 2 * triangle if WHITENING in down else 0
        if phase == SITE:
            return exact.LIMBS * (1 + p + triangle + rare_rows.POWERS * p + more)
        if phase == TEST and self.by_site:
            return exact.LIMBS * (3 + 2 * p + 3)
        k = int(down["starts"][-1])
        if phase == RISK:
            sums = k * ((1 + p) * (1 + self.is_efron) + self.is_weighted)
            return exact.LIMBS * (sums + rare_rows.POWERS * p + more)
        if phase == TEST:
            return exact.LIMBS * k * p
        if phase == BIN:
            return 2 * k * (len(down["edges"]) + 1)
        raise BadData(f"the coordinator asked for phase {phase}, which is not part of the agreed model.")

    # --- a party

    def row_sets(self, table: pd.DataFrame) -> dict[str, np.ndarray]:
        """All rows that the sums are about: complete cases, for the guard against differencing."""
        design.check_columns(table, self.used)
        return {"all rows": design.has_all(table, self.used)}

    def parameters(self, table: pd.DataFrame) -> tuple[int, int]:
        """Coefficients of the model with this party's levels, and its complete rows."""
        frame = design.complete_cases(table, self.used, "drop")
        agreement = design.own_agreement(
            frame, self.categories, self.variables.categorical, self.levels or {}
        )
        return len(self.terms(agreement)), len(frame)

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        if step == 0:
            return self._describe(table)
        agreement = design.Agreement.from_tensor(down["levels"])
        rows = recall(table, (repr(self), agreement.key), lambda: self._read(table, agreement))
        phase = int(down["phase"])
        if phase == COUNT:
            return self._count(rows, agreement, int(down["cells"]))
        check_saturated(int(down["rows"]), rows.x.shape[1])
        placed = self._place(rows, down)
        tested = []
        if WHITENING in down:
            if step != FIRST_NEWTON or phase not in (RISK, SITE):
                raise BadData(f"the agreed model has no test of its columns in step {step + 1}.")
            tested = [sum_leverages(placed.x, down[WHITENING].numpy(), self.min_count)]
        if self.by_site:
            return exact.encode(np.concatenate([self._own(rows, placed, down, phase), *tested]))
        beta = down["beta"].numpy()
        check_predictor(placed, beta)
        if phase == RISK:
            sums = risk_sets.sum_risk_sets(placed, beta, self.is_efron)
            parts = [*(sums if self.is_efron else sums[:2])]
            parts += [placed.sum_deaths()] if self.is_weighted else []
            parts += [placed.powers, *tested]
            return exact.encode(np.concatenate([part.reshape(-1) for part in parts]))
        if phase == GRAM:
            weights = risk_sets.gram_weights(placed, beta, down["a"].numpy(), down["b"].numpy())
            check_concentration(np.abs(weights))  # a and b are the coordinator's choice as well
            return exact.encode(upper(risk_sets.weighted_gram(placed.x, weights)))
        if phase == TEST:
            columns = [placed.sum_events(placed.x[placed.event, j]) for j in range(placed.x.shape[1])]
            return exact.encode(np.array(columns).T.reshape(-1))
        if phase == BIN:
            if len(down["edges"]) + 1 > count_bins(placed.count):
                raise ProtocolError(
                    f"the coordinator asks for counts in {len(down['edges']) + 1} bins of scores, of which "
                    f"the concordance needs {count_bins(placed.count)}. Nothing was sent."
                )
            return risk_sets.count_bins(placed, placed.x @ beta, down["edges"].numpy()).reshape(-1)
        raise BadData(f"the coordinator asked for phase {phase}, which is not part of the agreed model.")

    def once(self, down: Down) -> str | None:
        """Tests are about the final β: counts by score at many β of one's choice would show every row."""
        return {TEST: "test", BIN: "bin"}.get(int(down["phase"])) if "phase" in down else None

    def _describe(self, table: pd.DataFrame) -> np.ndarray:
        design.check_columns(table, self.used)
        frame = design.complete_cases(table, self.used, self.missing)
        kinds = design.count_kinds(
            frame,
            self.categories,
            [*self.variables.categorical, *self.strata],
            self.levels or {},
            self.min_level_rows,
        )
        cells, rounded = np.zeros(0, dtype=np.int64), np.zeros(len(FINER), dtype=np.int64)
        if not self.by_site:
            times = read_times(frame, self.time)
            cells, rounded = to_cells(times, self.grid, self.time), count_rounded(times, self.grid)
        events = int((read_events(frame, self.event, (1,)) > 0).sum())
        head = [1, len(frame), len(table) - len(frame), events]
        return np.concatenate([np.array(head), rounded, count_powers(cells), kinds])

    def _read(self, table: pd.DataFrame, agreement: design.Agreement) -> CoxRows:
        design.check_columns(table, self.used)
        design.check_agreement(
            agreement,
            table,
            self.categories,
            [*self.variables.categorical, *self.strata],
            self.levels or {},
        )
        frame = design.complete_cases(table, self.used, self.missing)
        design.check_found(frame, agreement, self.levels or {}, self.min_level_rows)
        names = design.term_names(self.formula, self.columns, agreement)
        keep = [k for k, name in enumerate(names) if name != INTERCEPT]
        n = len(frame)
        x = np.zeros((0, len(keep)))
        if n:
            x = design.model_matrix(self.formula, self.columns, agreement, frame)[1][:, keep]
        times = read_times(frame, self.time)
        starts = read_times(frame, self.entry) if self.entry else None
        if self.by_site:
            points, cells = np.unique(times, return_inverse=True)
            entry = np.full(n, -1) if starts is None else np.searchsorted(points, starts, side="right") - 1
        else:
            cells = to_cells(times, self.grid, self.time)
            entry = np.full(n, -1)
            if starts is not None:
                entry = np.where(starts > 0, to_cells(starts, self.grid, str(self.entry)), -1)
        if (entry >= cells).any():
            raise BadData(
                f"some rows enter ({self.entry!r}) at or after the grid point at which they leave "
                f"({self.time!r}). "
                "Use a finer grid."
            )
        strata = {s: k for k, s in enumerate(self.strata_levels(agreement))}
        codes = [_codes(frame, name, agreement) for name in self.strata]
        levels = [agreement.levels[name] for name in self.strata]
        stratum = np.zeros(n, dtype=np.int64)
        if codes:
            stratum = np.array([strata[tuple(v[c] for v, c in zip(levels, row))] for row in zip(*codes)])
        event = read_events(frame, self.event, (1,)) > 0
        weights = read_weights(frame, self.weights) if self.weights else None
        tallies = rare_rows.count_cells(self.formula, agreement, frame)
        return CoxRows(x, cells, entry, event, stratum.astype(np.int64), times, starts, weights, tallies)

    def _count(self, rows: CoxRows, agreement: design.Agreement, cells: int) -> np.ndarray:
        x, event = rows.x, rows.event
        seen = count_values(np.column_stack([x, event]))
        died = x[event] if rows.weights is None else x[event] * rows.weights[event][:, None]
        total = [] if rows.weights is None else [[rows.weights[event].sum()]]
        numbers = exact.encode(
            np.concatenate([x.sum(axis=0), died.sum(axis=0), upper(x.T @ x), *total, seen, rows.tallies])
        )
        if self.by_site:
            return numbers
        check_cells(cells, self.grid)
        if len(rows.cells) and int(rows.cells.max()) >= cells:
            raise BadData("the coordinator's grid ends before the last time of this party.")
        out = np.zeros((2, len(self.strata_levels(agreement)), cells), dtype=np.int64)
        np.add.at(out[0], (rows.stratum[event], rows.cells[event]), 1)
        np.add.at(out[1], (rows.stratum, rows.cells), 1)
        return np.concatenate([out.reshape(-1), numbers])

    def _place(self, rows: CoxRows, down: Down) -> RiskRows:
        """Return the rows with standardized columns, by position among the grid points with an event."""
        scaling = Scaling(down["center"].numpy(), down["scaled"].numpy(), None)
        key = b"".join(down[k].numpy().tobytes() for k in ("center", "scaled"))
        if not self.by_site:
            key += b"".join(down[k].numpy().tobytes() for k in ("cuts", "points", "starts"))
        if key in rows.placed:
            return rows.placed[key]
        x = scaling.apply(rows.x)
        if self.by_site:
            points = np.unique(rows.cells[rows.event])
            starts = np.array([0, len(points)])
            leave, enter = (np.searchsorted(points, c, side="right") for c in (rows.cells, rows.entry))
        else:
            cuts, points, starts = (down[k].numpy() for k in ("cuts", "points", "starts"))
            cells = np.searchsorted(cuts, rows.cells)  # the merged cell that ends at or after this one
            entry = np.searchsorted(cuts, rows.entry, side="right") - 1  # the last that ended before
            leave, enter = (np.zeros(len(cells), dtype=np.int64) for _ in range(2))
            for s, (a, b) in enumerate(pairwise(starts.tolist())):
                here = rows.stratum == s
                leave[here] = a + np.searchsorted(points[a:b], cells[here], side="right")
                enter[here] = a + np.searchsorted(points[a:b], entry[here], side="right")
            last = leave[rows.event] - 1
            if (last < 0).any() or (points[last] != cells[rows.event]).any():
                raise BadData("the coordinator's grid points do not include all events of this party.")
        rows.placed.clear()
        rows.placed[key] = RiskRows(x, enter, leave, rows.stratum, rows.event, starts, rows.weights)
        return rows.placed[key]

    def _own(self, rows: CoxRows, placed: RiskRows, down: Down, phase: int) -> np.ndarray:
        """What a party adds if it is a stratum of its own."""
        beta = down["beta"].numpy()
        check_predictor(placed, beta)
        sums = risk_sets.sum_risk_sets(placed, beta, self.is_efron)
        deaths = placed.sum_events(np.ones(int(placed.event.sum())))
        ties = risk_sets.sum_ties(sums, deaths, self.is_efron, placed.sum_deaths())
        died = placed.x[placed.event]
        event_x = died.sum(axis=0) if rows.weights is None else rows.weights[rows.event] @ died
        if phase == SITE:
            weights = risk_sets.gram_weights(placed, beta, ties.a, ties.b)
            gram = risk_sets.weighted_gram(placed.x, weights)
            part = risk_sets.partial_likelihood(sums, ties, gram, event_x, beta)
            return np.concatenate([[part.value], part.gradient, upper(part.hessian), placed.powers])
        if phase != TEST:
            raise BadData(f"the coordinator asked for phase {phase}, which is not part of the agreed model.")
        columns = [placed.sum_events(placed.x[placed.event, j]) for j in range(placed.x.shape[1])]
        shape = (placed.count, placed.x.shape[1])
        residuals = np.array(columns).T.reshape(shape) - ties.a[:, None] * sums.s1 - ties.b[:, None] * sums.e1
        when = np.unique(rows.times[rows.event])
        g = np.log(when) if self.transform == "log" else when
        pairs = risk_sets.count_pairs(placed, placed.x @ beta)
        head = [deaths.sum(), (deaths * g).sum(), (deaths * g**2).sum()]
        return np.concatenate([head, residuals.sum(axis=0), g @ residuals, pairs])

    # --- the coordinator

    def coordinate(self) -> Generator[Down, np.ndarray, Any]:
        from .hazards_coordinator import coordinate

        return (yield from coordinate(self))


def count_bins(points: int) -> int:
    """How many bins of scores the concordance has, if there are so many grid points with an event."""
    return int(np.clip(MOST_BINS // max(points, 1), 20, 1000))


def check_predictor(placed: RiskRows, beta: np.ndarray) -> None:
    """Refuse coefficients under which few rows have nearly all of the hazard exp(xβ)."""
    eta = placed.x @ beta
    risk = np.exp(eta - eta.max(initial=-np.inf))
    check_concentration(risk if placed.weights is None else placed.weights * risk)


def read_weights(frame: pd.DataFrame, name: str) -> np.ndarray:
    if not pd.api.types.is_numeric_dtype(frame[name].dtype):
        raise BadData(f"column {name!r} contains non-numeric values; weights are numbers.")
    weights: np.ndarray = frame[name].to_numpy(dtype=np.float64)
    if not (np.isfinite(weights) & (weights > 0)).all():
        raise BadData(f"column {name!r} has weights that are not above 0.")
    return weights


def write(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))
