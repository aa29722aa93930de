"""Statistics instead of rows: a workload of marginals, each cell with a stated error, under one ε.

    released = tacit.synth.Statistics([("sex",), ("sex", "job")], epsilon=1.0).release(frame, table={…})
    released.table("sex", "job")        # count, standard error and 95% interval of each cell
    released.ledger

The budget is dealt so that the expected total squared error, over all cells of all marginals, is least:
variance 1/(2ρ_r) in n_r cells is least in sum for ρ_r ∝ √n_r. Consistent answers (`consistent=True`) come
from the graphical model fitted to the noisy ones, as post-processing: they agree with each other, are never
negative, and are usually nearer, but their error has no closed form; the stated one is that of the noisy
answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from ..accounting.discrete import rho_of
from ..errors import BadParameter
from ..parameters import bad, check, flag, nearest, real, whole
from ..parties.ledger import Ledger
from .columns import Column
from .graphical import Clique, Measurement, Model, cells, fit
from .marginals import Curator, Grid, ledger_of, secret_of
from .private import declared
from .table import Table

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_CELLS = 5_000_000  # a marginal of more would be noise in nearly every cell, and a file nobody opens


@dataclass(frozen=True)
class Statistics:
    """Release these marginals. Unit, domains, noise and seed as for MST."""

    workload: Sequence[Sequence[str]]
    epsilon: float = real(1.0, above=0, doc="ε for all marginals together")
    delta: float = real(1e-9, above=0, below=1, doc="δ: the probability that ε does not hold")
    bins: int = whole(32, least=2, most=1024, doc="cells of a column of numbers")
    consistent: bool = flag(
        False, doc="also fit a graphical model to the answers, so that they agree with each other"
    )
    seed: int | None = whole(
        None,
        least=0,
        none=True,
        doc="None: noise from the operating system; a number: replayable, and stamped NOT PRIVATE",
    )

    def release(self, frame: DataFrame, table: Table | Mapping[str, Column] | None = None) -> Released:
        check(self)
        if not isinstance(self.workload, list | tuple):
            raise bad(
                "Statistics",
                "workload",
                self.workload,
                "a list of lists of columns, such as [('sex',), ('sex', 'job')]",
            )
        table = declared(table, frame, "Statistics")
        grid = Grid(table.modelled, self.bins)
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
            if cells(clique, grid.sizes) > MOST_CELLS:
                raise BadParameter(
                    f"Statistics: the marginal of {', '.join(names[c] for c in clique)} has "
                    f"{cells(clique, grid.sizes):,} cells, more than "
                    f"{MOST_CELLS:,}; nearly all of it would be noise. Ask for fewer columns, or fewer bins."
                )
        frame = frame.set_axis([str(n) for n in frame.columns], axis=1)
        curator = Curator(
            grid.codes(frame), grid.sizes, rho_of(self.epsilon, self.delta), secret_of(self.seed)
        )
        shares = {c: math.sqrt(cells(c, grid.sizes)) for c in cliques}
        measured = [curator.measure(c, curator.rho * shares[c] / sum(shares.values())) for c in cliques]
        ledger = ledger_of(
            f"{len(cliques)} marginals with discrete Gaussian noise", self.epsilon, self.delta, curator
        )
        model = fit(measured, grid.sizes, steps=1000) if self.consistent else None
        return Released(grid, measured, ledger, model)

    def _clique(self, columns: Sequence[str], names: list[str]) -> Clique:
        if isinstance(columns, str) or not columns:
            raise bad(
                "Statistics",
                "workload",
                self.workload,
                "a list of lists of columns",
                "One column is written as ('sex',).",
            )
        for name in columns:
            if name not in names:
                raise BadParameter(
                    f"Statistics: there is no declared column {name!r}. {nearest(str(name), names)}"
                )
        return tuple(sorted({names.index(name) for name in columns}))


@dataclass
class Released:
    """Noisy counts, and how far they may be off. All of it may be published."""

    grid: Grid
    measured: list[Measurement] = field(repr=False)
    ledger: Ledger
    model: Model | None = field(default=None, repr=False)

    def _measurement(self, columns: Sequence[str]) -> tuple[Measurement, Clique]:
        names = [c.name for c in self.grid.columns]
        asked = tuple(names.index(c) for c in columns if c in names)
        for m in self.measured:
            if len(asked) == len(columns) and m.clique == tuple(sorted(asked)):
                return m, asked
        known = "; ".join(", ".join(names[c] for c in m.clique) for m in self.measured)
        raise BadParameter(
            f"the marginal of {', '.join(map(str, columns)) or 'no column'} was not released. Released: "
            f"{known}."
        )

    def table(self, *columns: str, level: float = 0.95) -> DataFrame:
        """One row a cell: its values, the noisy count, its standard error, and an interval that holds the
        true count with this probability.
        """
        import pandas as pd

        m, asked = self._measurement(columns)
        z = NormalDist().inv_cdf(0.5 + level / 2)
        half = math.ceil(
            z * math.sqrt(m.variance)
        )  # P(|X| > ⌈zσ⌉) of the discrete Gaussian is below P(|N| > zσ): Canonne et al., Proposition 25
        counts = np.transpose(m.counts, [m.clique.index(c) for c in asked])
        cell = np.indices(counts.shape).reshape(len(asked), -1)
        out = pd.DataFrame(
            {self.grid.columns[c].name: self.grid.labels(c, cell[k]) for k, c in enumerate(asked)}
        )
        out["count"] = counts.ravel()
        if self.model is not None:
            out["consistent"] = (self.model.marginal(asked) * self.model.total).ravel()
        out["error"] = math.sqrt(m.variance)
        out["low"], out["high"] = counts.ravel() - half, counts.ravel() + half
        return out

    def errors(self) -> DataFrame:
        """What was stated before anybody looked: each marginal's cells, the standard error of a cell, the
        expected L1 error of all, and the largest error of any cell that is exceeded with probability 5% at
        most (union bound).
        """
        import pandas as pd

        rows = []
        for m in self.measured:
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
