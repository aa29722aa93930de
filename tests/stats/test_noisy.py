"""Private statistics: how much noise there is, what is charged, and that intervals include it."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.accounting import discrete
from tacit.errors import BadParameter
from tacit.stats.noisy import SCALE, NoisyProgram
from tests.stats.tables import heart, pooled

BOUNDS = {"age": (0, 120), "chol": (0, 600)}


def test_the_noise_of_half_of_the_parties_gives_the_guarantee():
    for parties in (1, 2, 3, 10):
        program = NoisyProgram(parties, 0.7, 1e-6, (("x", 0.0, 1.0),), (("k", ("a",)),))
        rho = 0.0
        for _, n, sensitivity in program.blocks:
            variance = program.honest * program.sigma(n, sensitivity) ** 2
            rho += sensitivity**2 / (2 * variance)
        assert discrete.epsilon_of(rho, 1e-6) <= 0.7 * (1 + 1e-6)
        assert program.release.epsilon(1, 1e-6) == pytest.approx(0.7, rel=1e-3)


def test_one_row_changes_no_statistic_by_more_than_its_sensitivity():
    """Also numbers outside the declared bounds, missing values and other levels."""
    program = NoisyProgram(2, 1.0, 1e-6, (("x", 0.0, 10.0),), (("k", ("a", "b")),), ("g", ("u", "v")), bins=8)
    base = pd.DataFrame({"x": [1.0, 4.0], "k": ["a", "b"], "g": ["u", "v"]})
    before = program._count(base)
    for x in (-1e9, 0.0, 5.0, 10.0, 1e9, math.nan):
        for k, g in (("a", "u"), ("zzz", "v"), (None, None)):
            after = program._count(pd.concat([base, pd.DataFrame({"x": [x], "k": [k], "g": [g]})]))
            for (name, _, sensitivity), a, b in zip(program.blocks, before, after):
                assert np.linalg.norm(b - a) <= sensitivity, name


def test_the_noise_has_the_declared_variance():
    """150 noisy sums of nothing: the mean square is within 60% of σ², but with probability below 10⁻⁵."""
    program = NoisyProgram(2, 1.0, 1e-6, (("x", 0.0, 1.0),), wants=("moments",))
    empty = pd.DataFrame({"x": pd.Series([], dtype=float)})
    draws = np.stack([program.local(0, empty, {}) + program.local(0, empty, {}) for _ in range(150)])
    for i, (name, n, sensitivity) in enumerate(program.blocks):
        assert n == 1
        assert (draws[:, i].astype(float) ** 2).mean() == pytest.approx(
            program.variance(1, sensitivity), rel=0.6
        ), name
    assert SCALE in {s for _, _, s in program.blocks}


def test_means_counts_and_quantiles_are_near_and_in_their_intervals():
    """Intervals at 95%; the factor 2 makes a miss a matter of 10⁻⁴."""
    frames = {name: pd.concat([frame] * 20) for name, frame in heart().items()}
    everyone = pooled(frames)
    result = tacit.stats.describe(frames, ["age", "chol"], epsilon=2.0, bounds=BOUNDS)
    table = result.table.set_index("column")
    for column in BOUNDS:
        row, values = table.loc[column], everyone[column].dropna()
        half = (row["mean_high"] - row["mean_low"]) / 2
        assert abs(row["mean"] - values.mean()) < 2 * half
        assert half >= 1.96 * values.std() / math.sqrt(len(values)) * 0.9
        for q in (25, 50, 75):
            spread = row[f"q{q}_high"] - row[f"q{q}_low"]
            assert abs(row[f"q{q}"] - values.quantile(q / 100)) < 2 * spread
    [spent] = result.ledger.spent
    assert (spent.epsilon, spent.delta, spent.unit) == (2.0, 1e-6, "one row")
    assert "2 of 4 parties" in spent.adversary
    assert "noise for ε = 2" in str(result)


def test_the_median_of_1e5_rows_at_epsilon_1_has_a_rank_error_below_half_a_percent():
    """The noise of the rank has σ below 70 rows of 100,000; 500 rows are more than 7 of them."""
    rng = np.random.default_rng(0)
    frames = {
        name: pd.DataFrame({"x": rng.gamma(4, 10, n)}) for name, n in {"a": 60_000, "b": 40_000}.items()
    }
    everyone = np.sort(pooled(frames)["x"])
    table = tacit.stats.quantile(frames, "x", [0.5], epsilon=1.0, bounds=(0, 500)).table
    rank = np.searchsorted(everyone, table["value"][0]) / len(everyone)
    assert abs(rank - 0.5) < 0.005


def test_a_private_histogram_has_intervals_around_its_counts():
    frames = heart()
    table = tacit.stats.histogram(frames, "age", (20, 80), 6, epsilon=1.0, runtime="inprocess").table
    counts, _ = np.histogram(pooled(frames)["age"].clip(20, 80), bins=6, range=(20, 80))
    margin = table["high_n"].max() - table["n"].max()
    assert (abs(table["n"] - counts) < 3 * margin).all()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: tacit.stats.describe(heart(), ["age"], epsilon=1.0), "the range of 'age' too"),
        (lambda: tacit.stats.describe(heart(), ["age"], epsilon=0.0, bounds=BOUNDS), "epsilon is 0.0"),
        (lambda: tacit.stats.quantile(heart(), "age", epsilon=1.0), "the range of 'age' too"),
        (lambda: tacit.stats.quantile(heart(), "age", epsilon=1, delta=1, bounds=(0, 9)), "delta is 1"),
    ],
)
def test_epsilon_needs_declared_bounds(call, match):
    with pytest.raises(BadParameter, match=match):
        call()
