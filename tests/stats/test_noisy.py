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
from tacit.stats.noisy_crosstab import NoisyCrosstab, independence_test
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
    """150 noisy sums of nothing: the mean square is between 0.4 and 1.9 σ² (χ², false alarm below 1e-9)."""
    program = NoisyProgram(2, 1.0, 1e-6, (("x", 0.0, 1.0),), wants=("moments",))
    empty = pd.DataFrame({"x": pd.Series([], dtype=float)})
    draws = np.stack([program.local(0, empty, {}) + program.local(0, empty, {}) for _ in range(150)])
    for i, (name, n, sensitivity) in enumerate(program.blocks):
        assert n == 1
        ratio = (draws[:, i].astype(float) ** 2).mean() / program.variance(1, sensitivity)
        assert 0.4 < ratio < 1.9, name
    assert SCALE in {s for _, _, s in program.blocks}


def test_means_counts_and_quantiles_are_near_and_in_their_intervals():
    """Four half-widths of a 95% interval are 7.8 standard deviations: a false alarm below 1e-13."""
    frames = {name: pd.concat([frame] * 20) for name, frame in heart().items()}
    everyone = pooled(frames)
    result = tacit.stats.describe(frames, ["age", "chol"], epsilon=2.0, bounds=BOUNDS)
    table = result.table.set_index("column")
    for column in BOUNDS:
        row, values = table.loc[column], everyone[column].dropna()
        half = (row["mean_high"] - row["mean_low"]) / 2
        assert abs(row["mean"] - values.mean()) < 4 * half
        assert half >= 1.96 * values.std() / math.sqrt(len(values)) * 0.9
        for q in (25, 50, 75):
            spread = row[f"q{q}_high"] - row[f"q{q}_low"]
            assert abs(row[f"q{q}"] - values.quantile(q / 100)) < 2 * spread
    [spent] = result.ledger.spent
    assert (spent.epsilon, spent.delta, spent.unit) == (2.0, 1e-6, "one row")
    assert "2 of 4 parties" in spent.adversary
    assert "noise for ε = 2" in str(result)


def test_the_median_of_1e5_rows_at_epsilon_1_has_a_rank_error_below_half_a_percent():
    """The noise of the rank has σ below 75 rows of 100,000 (below); 500 rows are more than 6.6 of them: a false
    alarm below 1e-10."""
    rng = np.random.default_rng(0)
    frames = {
        name: pd.DataFrame({"x": rng.gamma(4, 10, n)}) for name, n in {"a": 60_000, "b": 40_000}.items()
    }
    everyone = np.sort(pooled(frames)["x"])
    table = tacit.stats.quantile(frames, "x", [0.5], epsilon=1.0, bounds=(0, 500)).table
    rank = np.searchsorted(everyone, table["value"][0]) / len(everyone)
    assert abs(rank - 0.5) < 0.005


def test_a_rank_has_the_noise_of_few_counts_of_each_level():
    """Each of 4 levels has at most 7 counts below an edge: σ of a rank is at most √28 times that of a count."""
    program = NoisyProgram(2, 1.0, 1e-6, (("x", 0.0, 500.0),), bins=4096, wants=("histogram",))
    assert program.widths == (8, 64, 512, 4096)
    rng = np.random.default_rng(0)
    fine = rng.integers(0, 50, 4096)
    counts = np.concatenate([fine.reshape(w, -1).sum(1) for w in program.widths])
    below, noise = program._ranks(counts, 1.0)
    assert (below == np.concatenate([[0], np.cumsum(fine)])).all()
    assert noise.max() == 28
    assert noise[-1] == 8
    length, sensitivity = sum(program.widths), math.sqrt(4)
    name, n, changed = program.blocks[0]
    assert (n, changed) == (length, sensitivity), name
    # of the median's rank: its own noise and half of that of all rows
    assert math.sqrt(program.variance(length, sensitivity) * (28 + 8 / 4)) < 75


def test_intervals_of_quantiles_under_noise_cover_the_quantile_of_the_population():
    """200 noisy medians of 2,000 rows: about 190 are covered, and conservatively more."""
    program = NoisyProgram(2, 1.0, 1e-6, (("x", 0.0, 1.0),), bins=512, wants=("histogram",))
    variance = program.variance(sum(program.widths), math.sqrt(3))
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        fine = np.histogram(rng.beta(2, 3, 2000), 512, (0, 1))[0]
        counts = np.concatenate([fine.reshape(w, -1).sum(1) for w in program.widths])
        noisy = counts + rng.normal(0, math.sqrt(variance), len(counts))
        low, value, high = program._quantile(0.5, noisy, variance, 0.0, 1.0)
        covered += low <= 0.3857275681 <= high  # the median of Beta(2, 3)
        assert low <= value <= high
    assert 184 <= covered <= 200


def test_a_private_histogram_has_intervals_around_its_counts():
    frames = heart()
    table = tacit.stats.histogram(frames, "age", (20, 80), 6, epsilon=1.0, runtime="inprocess").table
    counts, _ = np.histogram(pooled(frames)["age"].clip(20, 80), bins=6, range=(20, 80))
    margin = table["high_n"].max() - table["n"].max()
    assert (abs(table["n"] - counts) < 4 * margin).all()  # 7.8 standard deviations


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


LEVELS = {"sex": [0, 1], "disease": ["no", "yes"]}


def test_a_private_crosstab_has_noise_of_the_declared_size_and_is_charged():
    frames = heart()
    exact = tacit.stats.crosstab(frames, "sex", "disease", categories=LEVELS)
    found = tacit.stats.crosstab(
        frames, "sex", "disease", categories=LEVELS, epsilon=1.0, runtime="inprocess"
    )
    # four counts within four times the margin (7.8 standard deviations of the noise)
    errors = found.table.iloc[:2, :2].to_numpy() - exact.table.iloc[:2, :2].to_numpy()
    assert np.abs(errors).max() < 4 * found.statistics["margin"]
    assert found.p < 0.01  # p is 1e-20 without noise
    spent = found.ledger.spent[0]
    assert (spent.epsilon, spent.unit) == (1.0, "one row")
    program = NoisyCrosstab(4, 1.0, 1e-6, categories=(("sex", ("0", "1")), ("disease", ("no", "yes"))))
    rho = 1 / (2 * program.honest * program.sigma(16, 1) ** 2)
    assert discrete.epsilon_of(rho, 1e-6) <= 1.0 + 1e-6


def test_one_row_changes_one_count_of_a_private_crosstab():
    program = NoisyCrosstab(2, 1.0, 1e-6, categories=(("sex", ("f", "m")), ("arm", ("a", "b"))))
    base = pd.DataFrame({"sex": ["f", "m", None], "arm": ["a", "zzz", "b"]})
    (before,) = program._count(base)
    for sex, arm in (("f", "b"), ("other", None), (None, None)):
        (after,) = program._count(pd.concat([base, pd.DataFrame({"sex": [sex], "arm": [arm]})]))
        assert sorted(after - before)[-2:] == [0, 1]
        assert len(after) == program.length(0, {}) == 16


def test_the_test_of_independence_under_noise_keeps_its_level():
    """100 independent tables with noise of deviation 15: plain χ² rejects far more than 5 of them. At level
    0.05, more than 16 rejections have probability below 1e-5.
    """
    rng = np.random.default_rng(1)
    shares = np.outer([0.5, 0.5], [0.3, 0.7]).reshape(-1)
    rejected = plain = 0
    for _ in range(100):
        counts = rng.multinomial(400, shares).reshape(2, 2) + rng.normal(0, 15, (2, 2))
        statistic, p = independence_test(counts, 15.0**2, rng)
        rejected, plain = rejected + (p < 0.05), plain + (statistic > 3.84)
    assert rejected <= 16 < plain
    dependent = np.array([[400.0, 100.0], [100.0, 400.0]])
    assert independence_test(dependent, 15.0**2, rng)[1] < 0.001
    assert math.isnan(independence_test(np.array([[3.0, 1.0], [2.0, -1.0]]), 1.0, rng)[1])


def test_a_private_crosstab_needs_declared_levels():
    with pytest.raises(BadParameter, match="the levels of 'disease' with epsilon"):
        tacit.stats.crosstab(heart(), "sex", "disease", categories={"sex": [0, 1]}, epsilon=1.0)
    with pytest.raises(BadParameter, match="epsilon"):
        tacit.stats.crosstab(heart(), "sex", "disease", categories=LEVELS, epsilon=-1)


def test_a_private_crosstab_from_a_job_file(tmp_path):
    from tacit.jobs.stats.deployed import run_here

    for name, frame in heart().items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    parties = "\n".join(f'{name} = "{tmp_path / name}.csv"' for name in heart())
    job = tmp_path / "counts.toml"
    job.write_text(
        '[stats]\nrows = "sex"\ncolumns = "disease"\nepsilon = 1.0\n'
        f'categories = {{ sex = [0, 1], disease = ["no", "yes"] }}\n[parties]\n{parties}\n'
    )
    found = run_here("crosstab", job)
    assert found.ledger.spent[0].epsilon == 1.0
    assert found.p < 0.01
