"""The private autoregressive network: declared cells, noisy counts, the budget, and what it learns."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from tacit import synth
from tacit.errors import BadData
from tacit.parties.secret import SeededSecret
from tacit.synth.conformance import example
from tacit.synth.constraints import Combinations
from tacit.synth.dpargn import COLUMNS, DPARGN, grid_cells
from tacit.synth.encode import Layout
from tacit.synth.marginals import Grid
from tacit.synth.table import Table

DOMAIN = {
    "a": synth.categorical(["x", "y"]),
    "b": synth.categorical(["x", "y"]),
    "n": synth.integer(0, 99),
}


def coins(n: int) -> pd.DataFrame:
    """b equals a, and n is above 50 only with y."""
    a = np.random.default_rng(0).integers(0, 2, n)
    name = np.where(a, "y", "x")
    return pd.DataFrame({"a": name, "b": name, "n": np.where(a, 75, 25)})


def test_cells_are_those_of_the_grid():
    """Every declared number lies in the grid's cell, and a drawn one comes back to its cell."""
    frame, table = example()
    table = Table(table.columns, tuple(c for c in table.constraints if not isinstance(c, Combinations)))
    layout, grid = Layout(table), Grid(table.modeled, 32)
    cells = grid_cells(layout, grid)
    assert tuple(cells.sizes) == grid.sizes
    codes = grid.codes(frame)
    assert np.array_equal(cells.encode(layout.encode(grid.values(frame))), codes)
    drawn = table.fit_to_domain(layout.decode(cells.decode(codes, np.random.default_rng(0))))
    again = grid.codes(table.to_frame(drawn))
    assert np.array_equal(again, codes)


def test_every_value_of_a_cell_is_equally_likely():
    """100 ages in 32 cells of 3 or 4: 40,000 draws from cells of equal weight per value.

    Each value is expected 400 times; the largest of 100 deviations is below 110 (5.5 σ: chance 4e-6, and the
    seed is fixed).
    """
    layout = Layout(Table.declare({"n": synth.integer(0, 99)}))
    grid = Grid(layout.table.modeled, 32)
    values = np.tile(np.arange(100.0), 400)[:, None]
    cells = grid_cells(layout, grid)
    drawn = layout.table.fit_to_domain(cells.decode(cells.encode(values), np.random.default_rng(0)))
    assert np.abs(np.bincount(drawn[:, 0].astype(int), minlength=100) - 400).max() < 110


def test_counts_have_laplace_noise_of_the_number_of_columns_over_their_part_of_epsilon():
    """Scale b = ⌈3 / (.3 ε)⌉ = 10 at ε = 1; a single column of 1,000 cells: mean |noise| near b."""
    assert math.ceil(3 / (COLUMNS * 1.0)) == 10
    generator = DPARGN(epsilon=1.0)
    grid = Grid(Layout(Table.declare(DOMAIN)).table.modeled, 32)
    codes = np.zeros((100_000, 3), dtype=np.int64)
    first = np.array(
        [generator.count_columns(codes, grid, SeededSecret(seed))[0][0] - 100_000 for seed in range(300)]
    )
    assert np.abs(first).mean() == pytest.approx(10, rel=0.3)  # a standard error is .58
    assert len(set(first.tolist())) > 10


def test_the_ledger_states_no_more_than_epsilon_and_what_it_was_spent_on():
    made = DPARGN(epsilon=2.0, delta=1e-6, epochs=2, insecure_seed=1).fit(coins(500), DOMAIN)
    (spend,) = made.ledger.spent
    assert spend.epsilon <= 2.0
    assert spend.epsilon > 1.8
    assert "for counts of single columns" in spend.note
    assert "for the number of rows" in spend.note
    assert "steps of DP-SGD" in spend.note
    assert "Poisson" in spend.sampling
    assert all(set(row) == {"epoch"} for row in made.history)  # a loss would be a fact about the rows


def test_it_learns_a_dependence_under_a_generous_epsilon():
    made = DPARGN(epsilon=20.0, epochs=20, batch=256, insecure_seed=1).fit(coins(4000), DOMAIN)
    rows = made.sample(2000, seed=1)
    assert (rows["a"] == rows["b"]).mean() > 0.85  # independent columns: .5
    given = made.sample(500, conditions={"b": "y"}, seed=1)  # a later column
    assert (given["a"] == "y").mean() > 0.8
    filled = made.impute(pd.DataFrame({"a": [None] * 100, "b": ["x"] * 100, "n": [25] * 100}))
    assert (filled["a"] == "x").mean() > 0.8


def test_inferred_columns_are_refused():
    frame = coins(100)
    with pytest.raises(BadData, match="needs declared domains"):
        DPARGN().fit(frame)
    with pytest.raises(BadData, match="inferred from the data"):
        DPARGN().fit(frame, Table.infer(frame))
