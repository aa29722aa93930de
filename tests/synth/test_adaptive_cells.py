"""Cells that follow a column's distribution: what is asked of the rows, what it costs, what comes out."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from tacit.accounting import discrete
from tacit.parties.secret import SeededSecret
from tacit.synth import AIM, DPARGN, MST, categorical, continuous, integer, timestamp
from tacit.synth.adaptive_cells import CellEstimate, estimate_cells
from tacit.synth.domains import NoisyAnswers
from tacit.synth.dpargn import grid_cells
from tacit.synth.encode import Layout
from tacit.synth.marginals import Grid
from tacit.synth.table import Table
from tests.synth.counted import DOMAIN, named, people
from tests.synth.test_neighbors import DECLARED, REVEALING, with_row

ROWS = 2000
CLAIMS = {
    "claim": continuous(0, 100_000),
    "rate": continuous(0, 10),
    "age": integer(0, 120),
    "day": timestamp("2020-01-01", "2030-01-01", days=True),
    "sex": categorical(["F", "M"]),
}


def claims() -> pd.DataFrame:
    """Half of the claims are 0 and others skewed; a third of the rates are 2.375; few days."""
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "claim": np.where(rng.random(ROWS) < 0.5, 0, rng.lognormal(6, 1, ROWS).clip(0, 1e5)),
            "rate": np.where(rng.random(ROWS) < 1 / 3, 2.375, rng.random(ROWS) * 10),
            "age": rng.integers(18, 80, ROWS),
            "day": pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 300, ROWS), unit="D"),
            "sex": rng.choice(["F", "M"], ROWS),
        }
    )


class Recorded(NoisyAnswers):
    """Keeps the exact questions; answers without noise, so that later questions are the same."""

    def __init__(self) -> None:
        super().__init__(SeededSecret(0), math.inf)
        self.counts: list[np.ndarray] = []

    def count(self, exact: np.ndarray, rho: float) -> tuple[np.ndarray, Fraction]:
        self.counts.append(exact)
        return exact, Fraction(25)


def questions(monkeypatch: pytest.MonkeyPatch, frame: pd.DataFrame) -> tuple[list[np.ndarray], CellEstimate]:
    recorded = Recorded()
    monkeypatch.setattr("tacit.synth.adaptive_cells.NoisyAnswers", lambda secret, rho: recorded)
    columns = named({name: c for name, c in DECLARED.items() if c.kind != "id"})
    found = estimate_cells(frame, Grid(columns), 0.1, 1e-6, SeededSecret(0))
    return recorded.counts, found


@pytest.mark.parametrize(("column", "value"), [*REVEALING, ("income", 123.456789), ("x", 99)])
def test_one_row_changes_one_count_of_each_histogram_by_one(monkeypatch, column, value):
    """The premise of the proof, on the rows that reveal most. 600 rows: their values are far from a threshold."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "x": rng.integers(0, 100, 600),
            "income": np.where(rng.random(600) < 0.5, 40.0, rng.integers(0, 1000, 600) / 2),
            "sex": "F",
            "smoker": True,
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 300, 600), unit="D"),
            "person": np.arange(600),
        }
    )
    (before, found), (after, _) = (questions(monkeypatch, f) for f in (frame, with_row(frame, column, value)))
    assert sorted(found.grid.knots) == [0, 1, 4]  # x, income and day
    assert len(before) == len(after) == 9  # three histograms each
    for a, b in zip(before, after):
        assert abs(int(b.sum()) - int(a.sum())) <= 1
        if len(a) == len(b):
            assert np.abs(b - a).sum() <= 1
        else:  # a new value is one more count, of one
            assert len(b) == len(a) + 1
            assert sorted([*a, 1]) == sorted(b)


def test_a_value_of_one_row_is_listed_with_probability_at_most_delta():
    """All 2,000 values occur once. At δ = 1/2 for the column a value is listed with probability at most 1/2, at
    δ = 1e-9 none is: the threshold is 6 standard deviations of the noise above one.
    """
    frame = pd.DataFrame({"x": np.random.default_rng(0).random(ROWS)})
    grid = Grid(named({"x": continuous(0, 1)}))
    for seed in range(5):
        found = estimate_cells(frame, grid, 0.1, 1e-9, SeededSecret(seed))
        assert not np.isin(found.grid.knots[0][:, 0], frame["x"]).any()
    loose = estimate_cells(frame, Grid(grid.columns, 1024), 0.1, 0.5, SeededSecret(0)).grid.knots[0]
    assert np.isin(loose[:, 0], frame["x"]).sum() > 0  # the test would notice a value that is listed


@pytest.mark.parametrize("generator", [MST, AIM, DPARGN])
def test_values_that_many_rows_share_come_out_and_skewed_columns_keep_their_shape(generator):
    """With cells of equal width no claim is 0, no rate 2.375, and nearly all claims are in one cell."""
    frame = claims()
    made = generator(epsilon=6.0, insecure_seed=0).fit(frame, CLAIMS).sample(ROWS, seed=1)
    assert (made["claim"] == 0).mean() == pytest.approx(0.5, abs=0.1)
    assert (made["rate"] == 2.375).mean() == pytest.approx(1 / 3, abs=0.1)
    real, drawn = (f.loc[f["claim"] > 0, "claim"] for f in (frame, made))
    assert drawn.median() == pytest.approx(real.median(), rel=0.5)  # equal width: above 1,500, real: 400
    equal = generator(epsilon=6.0, cells=0, insecure_seed=0).fit(frame, CLAIMS).sample(ROWS, seed=1)
    assert not (equal["claim"] == 0).any()
    assert equal["claim"].median() > 1000


def test_values_of_few_rows_do_not_come_out():
    frame = claims()
    frame.loc[:4, "rate"] = 7.8125
    made = MST(epsilon=6.0, insecure_seed=0).fit(frame, CLAIMS).sample(20_000, seed=1)
    assert not (made["rate"] == 7.8125).any()
    own = set(frame.loc[frame["claim"] > 0, "claim"])
    assert not made["claim"].isin(own).any()


def test_cells_and_back_stay_in_their_cell_and_in_the_domain():
    columns = named({name: c for name, c in CLAIMS.items()})
    grid = estimate_cells(claims(), Grid(columns), 0.5, 1e-6, SeededSecret(0)).grid
    assert sorted(grid.knots) == [0, 1, 2, 3]
    for j, knots in grid.knots.items():
        assert (np.diff(knots, axis=1) >= 0).all()
        assert (knots[1:, 0] >= knots[:-1, -1]).all()
        assert knots[0, 0] == (0 if columns[j].step else columns[j].low)
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, s, 20_000) for s in grid.sizes], axis=1)
    table = Table(columns)
    frame = table.to_frame(grid.to_numbers(codes, rng))
    assert (grid.codes(frame) == codes).all()
    # the network's cells are the same
    layout = Layout(table)
    cells = grid_cells(layout, grid)
    assert tuple(cells.sizes) == grid.sizes
    drawn = table.to_frame(table.fit_to_domain(layout.decode(cells.decode(codes, rng))))
    assert (grid.codes(drawn) == codes).all()
    assert "0" in grid.labels(0, np.arange(grid.sizes[0]))
    assert "2.375" in grid.labels(1, np.arange(grid.sizes[1]))


@pytest.mark.parametrize("generator", [MST, AIM, DPARGN])
def test_epsilon_is_kept_and_the_ledger_says_so(generator):
    fitted = generator(epsilon=2.0, delta=1e-6, insecure_seed=0).fit(
        claims()[["claim", "sex"]], {name: CLAIMS[name] for name in ("claim", "sex")}
    )
    (line,) = fitted.ledger.spent
    assert line.epsilon <= 2.0
    assert line.delta == 1e-6
    if generator is DPARGN:
        assert "0.4 for their cells" in line.note
    else:
        spent = float(line.note.split("ρ = ")[1].split(" ")[0])
        assert 0.98 * discrete.rho_of(2.0, 1e-6) < spent < discrete.rho_of(2.0, 1e-6)
        assert "(5e-08 of it for values that a single row has)" in line.note


def test_columns_with_a_cell_for_each_value_cost_nothing():
    grid = Grid(named({"x": integer(0, 31), "sex": categorical(["F", "M"]), "one": continuous(1, 1)}))
    found = estimate_cells(people(50).assign(x=1, one=1.0), grid, 0.1, 1e-6, SeededSecret(0))
    assert found == CellEstimate(grid)


def test_without_rows_above_the_noise_cells_have_equal_width():
    frame = people(0)
    grid = Grid(named(DOMAIN))
    found = estimate_cells(frame, grid, 1e-4, 1e-6, SeededSecret(0))
    assert found.grid.sizes == grid.sizes
    assert 0 < found.rho <= 1e-4
    assert len(MST(insecure_seed=0).fit(frame, DOMAIN).sample(10)) == 10


def test_more_noise_of_pairs_makes_fewer_cells():
    frame = pd.DataFrame({"x": np.random.default_rng(0).random(20_000)})
    grid = Grid(named({"x": continuous(0, 1)}))
    sizes = [
        estimate_cells(frame, grid, 0.1, 1e-6, SeededSecret(0), noise).grid.sizes[0]
        for noise in (1, 100, 1000)
    ]
    assert sizes[0] > sizes[1] > sizes[2] >= 2
    assert sizes[1] == pytest.approx(math.sqrt(20_000 / 300), abs=2)
