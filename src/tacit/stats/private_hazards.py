"""Cox's model with differential privacy: hazards that are constant between the points of a declared grid.

T. Holford, "The analysis of rates and of survivorship using log-linear models", Biometrics 1980; N. Laird and
D. Olivier, "Covariance analysis of censored survival data using log-linear analysis techniques", JASA 1981.
The hazard of row i in interval k is exp(α_k + x_i β). The log-likelihood is a sum over rows, which the
partial likelihood is not, and on a fine grid its β is Cox's.

    step 0   deaths and time at risk by interval, rows                       → α at β = 0
    step 1…  scores and information of (α, β) (noisy_score.py)               → the next α, β

One row is one person. What a person changes is bounded by the expected number of their events, Λ_i: a person
is followed until Λ_i = ∫ exp(α + xβ) under the coefficients of the step reaches `max_hazard`, and later
events are not counted. The moment depends on no outcome, so the score stays a martingale: its mean at the
true coefficients is 0, and no bias follows. Of those who are followed to an event, exp(−max_hazard) are cut
off.
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
from . import design, noise_share, noisy_score
from .bounded_design import BoundedDesign, check_coefficients, declared_exits
from .hazards_coordinator import CoxEstimate
from .lifetimes import _codes, read_events, read_times
from .noise_share import BOUND, SCALE, Block
from .noisy_score import GroupSums, Limits
from .recall import recall

STEPS = 6  # counts, and five steps of Newton's method: from β = 0 enough for hazard ratios up to about 10
EARLY = 0.06  # of the budget, for each step but the last
ROWS = 0.04  # of the first step's budget, for the number of rows
MOST = 30.0  # of a predictor: exp(30) expected events are more than any max_hazard


@dataclass
class PersonTime:
    """One party's rows: their intervals up to the end of the grid, as shares of the interval's width."""

    x: np.ndarray
    at_risk: np.ndarray  # n × K
    event: np.ndarray  # n × K: 1 in the interval of the event
    stratum: np.ndarray


@dataclass(frozen=True)
class PrivateCoxProgram:
    """The noisy sums of a Cox model. All fields are plain values."""

    if_left: ClassVar[str] = END
    formula: str
    time: str
    event: str
    grid: Sequence[float]
    parties: int
    epsilon: float
    delta: float
    bounds: Mapping[str, Sequence[float]]
    levels: Mapping[str, Sequence[Any]]
    strata: tuple[str, ...] = ()
    l2: float = 0.0
    max_hazard: float = 1.0

    by_site = False
    ties = "none: hazards are constant in an interval"

    @property
    def max_steps(self) -> int:
        return STEPS

    @property
    def bound(self) -> int:
        return BOUND

    @property
    def columns(self) -> list[str]:
        return list(design.read_formula(self.formula, response=False).names)

    @property
    def used(self) -> list[str]:
        return list(dict.fromkeys([self.time, self.event, *self.columns, *self.strata]))

    @cached_property
    def bounded(self) -> BoundedDesign:
        return BoundedDesign(self.formula, tuple(self.columns), self.bounds, self.levels, is_free=True)

    @cached_property
    def strata_agreement(self) -> design.Agreement:
        return design.Agreement(
            {name: tuple(design.plain_level(v) for v in self.levels[name]) for name in self.strata}
        )

    @property
    def strata_levels(self) -> list[tuple[Any, ...]]:
        out: list[tuple[Any, ...]] = [()]
        for name in self.strata:
            out = [(*s, level) for s in out for level in self.strata_agreement.levels[name]]
        return out

    @property
    def intervals(self) -> int:
        return len(self.grid)

    @property
    def groups(self) -> int:
        return self.intervals * len(self.strata_levels)

    # --- privacy

    @property
    def release(self) -> Release:
        return noise_share.release_of(self.epsilon, self.delta)

    @property
    def spend(self) -> Spend:
        what = f"deaths, time at risk, and the scores and information of {STEPS - 1} steps"
        return noise_share.spend_of(self.epsilon, self.delta, self.parties, what)

    def blocks(self, step: int) -> list[Block]:
        if step == 0:
            rest = EARLY * (1 - ROWS) / 2
            return [
                Block(self.groups, 1.0, rest),
                Block(self.groups, float(np.sqrt(self.intervals)), rest),
                Block(1, 1.0, EARLY * ROWS),
            ]
        most = self.max_hazard
        limits = Limits(float(np.hypot(1.0, most)), max(1.0, most), most)
        share = 1 - EARLY * (STEPS - 1) if step == STEPS - 1 else EARLY
        return noisy_score.count_blocks(self.groups, len(self.bounded.terms), limits, share)

    def length(self, step: int, down: Down) -> int:
        return sum(block.length for block in self.blocks(step))

    # --- a party

    def local(self, step: int, table: pd.DataFrame, down: Down) -> np.ndarray:
        if not 0 <= step < STEPS:
            raise BadData(f"the agreed model has {STEPS} steps; step {step} was asked for.")
        rows = recall(table, repr(self), lambda: self._read(table))
        blocks = self.blocks(step)
        parts = self._count(rows) if step == 0 else self._score(rows, down).parts()
        return noise_share.add_noise(parts, blocks, self.epsilon, self.delta, self.parties)

    def _read(self, table: pd.DataFrame) -> PersonTime:
        design.check_columns(table, self.used)
        declared = {**self.bounded.agreement.levels, **self.strata_agreement.levels}
        frame = declared_exits(table, self.used, declared, self.time, self.event, (1,))
        _, x = self.bounded.read(frame)
        edges = np.concatenate([[0.0], np.asarray(self.grid, dtype=float)])
        times = read_times(frame, self.time)
        at_risk = np.clip((times[:, None] - edges[:-1]) / np.diff(edges), 0.0, 1.0)
        event = np.zeros_like(at_risk)
        happened = (read_events(frame, self.event, (1,)) > 0) & (times <= edges[-1])
        place = np.searchsorted(edges[1:], times[happened])
        event[np.flatnonzero(happened), place] = 1.0
        stratum = np.zeros(len(frame), dtype=np.int64)
        for name in self.strata:
            levels = self.strata_agreement.levels[name]
            stratum = stratum * len(levels) + _codes(frame, name, self.strata_agreement)
        return PersonTime(x, at_risk, event, stratum)

    def _by_group(self, rows: PersonTime, values: np.ndarray) -> np.ndarray:
        """Sum n × K numbers by stratum and interval."""
        if not self.strata:
            return values.sum(axis=0)  # type: ignore[no-any-return]
        every = range(len(self.strata_levels))
        return np.concatenate([values[rows.stratum == s].sum(axis=0) for s in every])

    def _count(self, rows: PersonTime) -> list[np.ndarray]:
        counts = [self._by_group(rows, values) for values in (rows.event, rows.at_risk)]
        return [*counts, np.array([float(len(rows.x))])]

    def _score(self, rows: PersonTime, down: Down) -> GroupSums:
        p, g = len(self.bounded.terms), self.groups
        alpha = check_coefficients(down["alpha"].numpy(), g)
        beta = check_coefficients(down["beta"].numpy(), p)
        eta = alpha.reshape(-1, self.intervals)[rows.stratum] + (rows.x @ beta)[:, None]
        hazard = rows.at_risk * np.exp(np.minimum(eta, MOST))
        reached = np.minimum(np.cumsum(hazard, axis=1), self.max_hazard)
        expected = np.diff(reached, axis=1, prepend=0.0)
        is_followed = hazard.sum(axis=1) <= self.max_hazard
        residual = rows.event * is_followed[:, None] - expected
        weight = expected.sum(axis=1)
        return GroupSums(
            self._by_group(rows, residual),
            residual.sum(axis=1) @ rows.x,
            self._by_group(rows, expected),
            np.stack([self._by_group(rows, expected * rows.x[:, [j]]) for j in range(p)], axis=1),
            rows.x.T @ (weight[:, None] * rows.x),
        )

    # --- the coordinator

    def coordinate(self) -> Generator[Down, np.ndarray, CoxEstimate]:
        g, p = self.groups, len(self.bounded.terms)
        private = self.epsilon, self.delta, self.parties
        total = np.asarray((yield {}), dtype=np.float64) / SCALE
        least = [np.sqrt(noise_share.total_variance(*private, b)) for b in self.blocks(0)]
        deaths, at_risk = (np.maximum(total[k * g : (k + 1) * g], least[k]) for k in (0, 1))
        counted, rows = float(total[:g].sum()), float(total[2 * g])
        _, half = self.bounded.ranges
        ridge = np.diag(np.concatenate([np.zeros(g), max(rows, 1.0) * self.l2 / half**2]))
        point = np.concatenate([np.log(deaths / at_risk), np.zeros(p)])
        for step in range(1, STEPS):
            down = {"alpha": torch.from_numpy(point[:g].copy()), "beta": torch.from_numpy(point[g:].copy())}
            total = np.asarray((yield down), dtype=np.float64) / SCALE
            sums = GroupSums.read(total, g, p)
            sums = sums._replace(score_b=sums.score_b - ridge[g:, g:] @ point[g:])
            found = noisy_score.take_step(sums, self.blocks(step), *private, ridge)
            is_last = step == STEPS - 1
            point = point + (found.step if is_last else noisy_score.shorten(found.step, g))
        return self._conclude(point, found, ridge, rows, counted)

    def _conclude(
        self, point: np.ndarray, last: noisy_score.Step, ridge: np.ndarray, rows: float, deaths: float
    ) -> CoxEstimate:
        g, terms = self.groups, self.bounded.terms
        covariance, share = last.covariance(ridge, slice(g, None))
        middle, half = self.bounded.ranges
        return CoxEstimate(
            terms,
            point[g:] / half,
            covariance[g:, g:] / np.outer(half, half),
            float("nan"),
            float("nan"),
            max(round(rows), 0),
            0,
            self.parties,
            max(round(deaths), 0),
            STEPS,
            design.Agreement({**self.strata_agreement.levels, **self.bounded.agreement.levels}),
            middle,
            f"{self.intervals} declared times from {self.grid[0]:g} to {self.grid[-1]:g}",
            0,
            self.intervals,
            self._baseline(point[:g]),
            noise_share=share,
        )

    def _baseline(self, alpha: np.ndarray) -> pd.DataFrame:
        """The hazard of a row whose terms are in the middle of their ranges."""
        grid = np.asarray(self.grid, dtype=float)
        tables = []
        for levels, part in zip(self.strata_levels, alpha.reshape(-1, self.intervals)):
            cumulative = np.cumsum(np.exp(part))
            table = pd.DataFrame(
                {
                    "time": grid,
                    "hazard": np.exp(part),
                    "cumulative_hazard": cumulative,
                    "survival": np.exp(-cumulative),
                }
            )
            if self.strata:
                table.insert(0, "stratum", ", ".join(map(str, levels)))
            tables.append(table)
        return pd.concat(tables, ignore_index=True)
