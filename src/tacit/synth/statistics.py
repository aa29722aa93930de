"""Statistics instead of rows: marginals, each cell with a stated error, under one ε.

    released = tacit.synth.Statistics([("sex",), ("sex", "job")], epsilon=1.0).release(frame, table={…})
    released.table("sex", "job")        # count, standard error and 95% interval of each cell
    released.ledger

The budget is divided so that the expected total squared error over all cells is least: variance 1/(2ρ_r) in
n_r cells is minimized in sum by ρ_r ∝ √n_r. Consistent answers (`consistent=True`) come from a graphical
model fitted to the noisy ones, as post-processing. They agree with each other, are never negative and are
usually closer, but their error has no closed form; the stated error is that of the noisy answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
import pandas as pd

from ..accounting.discrete import rho_of
from ..errors import BadParameter
from ..parameters import bad, check, flag, real, whole
from ..parties.ledger import Ledger
from .columns import Column, check_known
from .graphical import Clique, Measurement, Model, count_cells, fit_model
from .marginals import Curator, Grid, make_secret, marginal_spend, private_ledger
from .private import INSECURE_SEED, declared_table
from .table import Table

MOST_CELLS = 5_000_000  # a larger marginal would be noise in nearly every cell


@dataclass(frozen=True)
class Statistics:
    """Releases marginals under differential privacy.

    Unit, domains, noise and `insecure_seed` are those of MST.
    """

    workload: Sequence[Sequence[str]]
    epsilon: float = real(1.0, above=0, doc="ε for all marginals together")
    delta: float = real(1e-9, above=0, below=1, doc="δ: the probability that ε does not hold")
    bins: int = whole(32, least=2, most=1024, doc="cells of a column of numbers")
    consistent: bool = flag(
        False, doc="also fit a graphical model to the answers, which makes them consistent"
    )
    insecure_seed: int | None = whole(None, least=0, none=True, doc=INSECURE_SEED)

    def release(
        self, frame: pd.DataFrame, table: Table | Mapping[str, Column] | None = None
    ) -> ReleasedStatistics:
        """Measure the workload on a frame with declared columns."""
        check(self)
        if not isinstance(self.workload, list | tuple):
            raise bad(
                "Statistics",
                "workload",
                self.workload,
                "a list of lists of columns, such as [('sex',), ('sex', 'job')]",
            )
        table = declared_table(table, frame, "Statistics")
        grid = Grid(table.modeled, self.bins)
        names = [c.name for c in grid.columns]
        cliques = [self._clique(columns, names) for columns in self.workload]
        if not cliques or len(set(cliques)) < len(cliques):
            raise bad(
                "Statistics",
                "workload",
                self.workload,
                "a list of different sets of columns, such as [('sex',), ('sex', 'job')]",
            )
        for clique in cliques:
            if count_cells(clique, grid.sizes) > MOST_CELLS:
                raise BadParameter(
                    f"Statistics: the marginal of {', '.join(names[c] for c in clique)} has "
                    f"{count_cells(clique, grid.sizes):,} cells, more than "
                    f"{MOST_CELLS:,}; nearly all of it would be noise. Use fewer columns or fewer bins."
                )
        frame = frame.set_axis([str(n) for n in frame.columns], axis=1)
        secret = make_secret(self.insecure_seed)
        curator = Curator(grid.codes(frame), grid.sizes, rho_of(self.epsilon, self.delta), secret)
        shares = {c: math.sqrt(count_cells(c, grid.sizes)) for c in cliques}
        measured = [curator.measure(c, curator.rho * shares[c] / sum(shares.values())) for c in cliques]
        mechanism = f"{len(cliques)} marginals with discrete Gaussian noise"
        ledger = private_ledger(marginal_spend(mechanism, self.epsilon, self.delta, curator), secret)
        ledger.spent[:0] = table.spent
        return ReleasedStatistics(
            grid, measured, ledger, fit_model(measured, grid.sizes, steps=1000) if self.consistent else None
        )

    def _clique(self, columns: Sequence[str], names: list[str]) -> Clique:
        if isinstance(columns, str) or not columns:
            raise bad(
                "Statistics",
                "workload",
                self.workload,
                "a list of lists of columns",
                "One column is written as ('sex',).",
            )
        check_known(columns, names, "Statistics: there is no declared column", error=BadParameter)
        return tuple(sorted({names.index(name) for name in columns}))


@dataclass
class ReleasedStatistics:
    """Noisy counts and their errors. All of it may be published."""

    grid: Grid
    measurements: list[Measurement] = field(repr=False)
    ledger: Ledger
    model: Model | None = field(default=None, repr=False)

    def _measurement(self, columns: Sequence[str]) -> tuple[Measurement, Clique]:
        names = [c.name for c in self.grid.columns]
        order = tuple(names.index(c) for c in columns if c in names)
        for m in self.measurements:
            if len(order) == len(columns) and m.clique == tuple(sorted(order)):
                return m, order
        known = "; ".join(", ".join(names[c] for c in m.clique) for m in self.measurements)
        raise BadParameter(
            f"the marginal of {', '.join(map(str, columns)) or 'no column'} was not released. "
            f"ReleasedStatistics: {known}."
        )

    def table(self, *columns: str, level: float = 0.95) -> pd.DataFrame:
        """Return one row per cell: values, noisy count, standard error and interval.

        The interval contains the true count with probability `level`.
        """
        m, order = self._measurement(columns)
        # for the discrete Gaussian, P(|X| > ⌈zσ⌉) < P(|N| > zσ): Canonne et al., Proposition 25
        half = math.ceil(NormalDist().inv_cdf(0.5 + level / 2) * math.sqrt(m.variance))
        counts = np.transpose(m.counts, [m.clique.index(c) for c in order])
        cell = np.indices(counts.shape).reshape(len(order), -1)
        out = pd.DataFrame(
            {self.grid.columns[c].name: self.grid.labels(c, cell[k]) for k, c in enumerate(order)}
        )
        out["count"] = counts.ravel()
        if self.model is not None:
            out["consistent"] = (self.model.marginal(order) * self.model.total).ravel()
        out["error"] = math.sqrt(m.variance)
        out["low"], out["high"] = counts.ravel() - half, counts.ravel() + half
        return out

    def errors(self) -> pd.DataFrame:
        """Return the errors known in advance, one row per marginal.

        Columns: number of cells, standard error of a cell, expected L1 error, and a bound on the largest
        error of any cell that holds with probability 95% (union bound).
        """
        rows = []
        for m in self.measurements:
            sigma, k = math.sqrt(m.variance), m.counts.size
            rows.append(
                {
                    "marginal": ", ".join(self.grid.columns[c].name for c in m.clique),
                    "cells": k,
                    "standard error": sigma,
                    "expected L1": math.sqrt(2 / math.pi) * sigma * k,
                    "largest (95%)": math.ceil(sigma * NormalDist().inv_cdf(1 - 0.025 / k)),
                }
            )
        return pd.DataFrame(rows)
