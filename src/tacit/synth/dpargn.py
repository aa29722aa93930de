"""DP-ARGN: the autoregressive network of `ARGN`, trained with DP-SGD on declared cells.

A part of ε pays for counts of every column in its declared cells, with Laplace noise: the network starts from
independent columns with these frequencies. The rest trains it (`private/dpsgd.py`: per-example clipping,
Poisson sampling, exact noise, PLD accounting). As in DPGAN, the number of rows is estimated with noise that
the budget pays for. There are no held-out rows: the number of epochs is fixed.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch

from ..accounting import discrete
from ..accounting.discrete import rho_of
from ..parameters import flag, real, whole
from ..parties.ledger import Spend
from ..parties.secret import Secret
from .adaptive_cells import THRESHOLDS, estimate_cells
from .adversarial import CPU, torch_seed
from .argn import Autoregressive, pack_network
from .autoregressive import ColumnNetwork, draw_first, visible_columns
from .dpgan import COUNTING, overestimate_count, settings_of_steps
from .encode import EVEN, Discretizer, Layout
from .generator import GeneratorState, Watch
from .marginals import DECLARED, Grid
from .private import CELLS, AdaptiveGenerator, History, network_spend, pack_cells
from .table import Table

COLUMNS = 0.3  # share of ε for counts of single columns: noise there is in every row


@dataclass(frozen=True)
class DPARGN(Autoregressive, AdaptiveGenerator):
    """An autoregressive network trained with DP-SGD from privately released frequencies."""

    epochs: int = whole(10, least=1, doc="epochs of training; more epochs need more noise per step")
    batch: int = whole(1024, least=1, doc="expected batch size; large batches reduce the relative noise")
    lr: float = real(8e-3, above=0, doc="learning rate (Adam)")
    clip: float = real(1.0, above=0, doc="clipping norm of a row's gradient")
    embedding: int = whole(8, least=1, doc="width of a cell's embedding")
    width: int = whole(
        16, least=1, doc="width of a column's hidden layer; small, because every weight receives noise"
    )
    even: bool = flag(True, doc=EVEN)

    device = "cpu"  # no parameters

    def learn_private(
        self, frame: pd.DataFrame, table: Table, grid: Grid, secret: Secret, watch: Watch
    ) -> tuple[GeneratorState, Spend]:
        part, thresholds = self.cells * self.epsilon, self.delta * THRESHOLDS
        rho = rho_of(part, thresholds / 2) if part else 0.0
        found = estimate_cells(frame, grid, rho, thresholds / 2, secret)
        if not found.grid.knots:
            return self.learn_cells(frame, table, grid, secret, watch)
        rest = replace(self, epsilon=self.epsilon - part, delta=self.delta - thresholds)
        state, spend = rest.learn_cells(frame, table, found.grid, secret, watch)
        state.metadata[CELLS] = pack_cells(found.grid)
        note = spend.note.replace(
            "for counts of single columns", f"for counts of single columns, {part:.4g} for their cells"
        )
        return state, replace(spend, epsilon=spend.epsilon + part, delta=self.delta, note=note)

    def learn_cells(
        self, frame: pd.DataFrame, table: Table, grid: Grid, secret: Secret, watch: Watch
    ) -> tuple[GeneratorState, Spend]:
        """Learn the rows in these cells."""
        codes = grid.codes(frame)
        counts = self.count_columns(codes, grid, secret)
        rng = np.random.default_rng(int.from_bytes(secret.bytes(8), "big"))  # which columns come first
        with torch_seed(int.from_bytes(secret.bytes(8), "big") >> 2, CPU):
            network = self.build_network(grid_cells(Layout(table), grid), self.width)
            network.set_frequencies(counts)
            spend, history = self.train(network, codes, secret, rng, watch)
        return GeneratorState(pack_network(network), history=history), spend

    def count_columns(self, codes: np.ndarray, grid: Grid, secret: Secret) -> list[np.ndarray]:
        """Return noisy counts of each column's cells.

        A row is in one cell of each column, so the noise has scale columns/ε.
        """
        scale = math.ceil(len(grid.sizes) / (COLUMNS * self.epsilon))
        out = []
        for j, size in enumerate(grid.sizes):
            counts = np.bincount(codes[:, j], minlength=size) + discrete.laplace(scale, size, secret.bytes)
            # below the scale a count is mostly noise
            out.append(np.where(counts > scale, counts, scale / 8))
        return out

    def train(
        self,
        network: ColumnNetwork,
        codes: np.ndarray,
        secret: Secret,
        rng: np.random.Generator,
        watch: Watch,
    ) -> tuple[Spend, History]:
        """Train with the rest of ε; return what was spent and one history row per epoch."""

        budget = (1 - COLUMNS) * self.epsilon
        rows = torch.from_numpy(codes)
        estimate = overestimate_count(len(rows), COUNTING * budget, secret)
        batch = min(self.batch, estimate)
        per_epoch = math.ceil(estimate / batch)
        optimizer = torch.optim.Adam(network.parameters(), lr=self.lr)
        settings = settings_of_steps(budget, self.delta, self.clip)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the documentation of `delta` already states how small δ must be
            session = settings.attach(
                network,
                optimizer,
                estimate,
                steps=self.epochs * per_epoch,
                batch_size=batch,
                insecure_seed=int.from_bytes(secret.bytes(7), "big") if secret.replayable else None,
            )
        history: History = []
        d = rows.shape[1]
        for epoch in range(1, self.epochs + 1):
            for step in range(per_epoch):
                index = session.draw()
                drawn = rows[index[index < len(rows)]]  # the estimate exceeds the number of rows
                first = np.zeros(d, dtype=bool) if step % 2 else draw_first(d, rng)
                if len(drawn):
                    session.backward(network(drawn, torch.from_numpy(visible_columns(first))))
                optimizer.step()
            history.append({"epoch": epoch})
            watch({"kind": "epoch", "epochs": self.epochs, **history[-1]})
        spent = session.epsilon + COUNTING * budget + COLUMNS * self.epsilon
        session.close()
        note = (
            f"ε = {session.epsilon:.4g} for {self.epochs * per_epoch:,} steps of DP-SGD, "
            f"{COLUMNS * self.epsilon:.4g} for counts of single columns, {COUNTING * budget:.4g} for the "
            "number of rows. " + DECLARED
        )
        sampling = f"Poisson ({batch} of about {estimate:,})"
        return network_spend("DPARGN (DP-SGD)", spent, self.delta, sampling, note), history

    def get_cells(self, state: GeneratorState, layout: Layout) -> Discretizer:
        return grid_cells(layout, self.get_grid(state, layout.table))


def grid_cells(layout: Layout, grid: Grid) -> Discretizer:
    """Return the declared cells of a grid: numbers are uniform within a cell."""
    edges: dict[int, np.ndarray] = {}
    knots: dict[int, np.ndarray] = {}
    for i, var in enumerate(layout.variables):
        if var.levels:
            continue
        column = layout.table.modeled[var.columns[0]]
        ends = grid.get_knots(i)
        start = ends[:, :1]
        if column.step:
            # values are rounded: the ends of a cell are as likely as the others
            ends = column.ends[0] + column.step * np.where(ends[:, -1:] <= start + 1, start, ends - 0.5)
            start = column.ends[0] + column.step * (start - 0.5)
        edges[i], knots[i] = start[1:, 0], ends
    return Discretizer(layout.variables, edges, knots)
