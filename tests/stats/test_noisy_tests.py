"""Tests and intervals under noise: they keep their level, and one row changes a sum by its sensitivity at most.

Noise here comes from a seed: what is tested is the statistics, not the generator (test_noisy.py).
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.errors import BadParameter
from tacit.stats.description import ColumnMoments
from tacit.stats.noisy import NoisyHistogram, NoisyProgram, Z
from tacit.stats.noisy_tests import NoisyCorrelation, compare_means, correlate, rank_test
from tests.stats.tables import heart

GROUPS = ("g", ("a", "b"))


def rejections(draw, times=200):
    """How many of these p-values are below 0.05."""
    return sum(draw() < 0.05 for _ in range(times))


def test_equal_means_are_rejected_in_one_case_of_twenty():
    """Sums of 300 and 200 uniform numbers in [0, 1] with noise: 10 of 200 rejections are expected."""
    rng = np.random.default_rng(0)
    program = NoisyProgram(2, 1.0, 1e-6, (("x", 0.0, 1.0),), by=GROUPS, wants=("moments",))
    noise = {name: program.variance(n, s) for name, n, s in program.blocks}

    def draw():
        counts = {"rows": np.array([300.0, 200.0, 0.0])}
        x = [rng.random(300), rng.random(200), np.zeros(0)]
        counts["count x"] = counts["rows"]
        counts["sum x"] = 65536 * np.array([v.sum() for v in x])
        counts["squares x"] = 65536 * np.array([(v**2).sum() for v in x])
        noisy = {k: v + rng.normal(0, math.sqrt(noise[k]), 3) for k, v in counts.items()}
        parts = [program._moments("x", g, 0, 0.0, 1.0, noisy, noise) for g in range(2)]
        return compare_means(parts).p

    assert 1 <= rejections(draw) <= 22


def test_a_difference_is_found_and_small_groups_have_no_result():
    def moments(n, mean, se):
        return ColumnMoments(n, 0, mean, 1.0, {}, (mean - Z * se, mean + Z * se), se)

    assert compare_means([moments(500, 0.0, 0.1), moments(500, 1.0, 0.1)]).p < 1e-6
    three = compare_means([moments(500, 0.0, 0.1), moments(500, 0.1, 0.1), moments(500, 1.0, 0.1)])
    assert three.p < 1e-6
    assert three.df == 2
    assert math.isnan(compare_means([moments(1, 0.0, 0.1), moments(500, 1.0, 0.1)]).p)
    # without noise it is Welch's test
    table = heart()
    exact = tacit.stats.ttest(table, "age", "sex")
    parts = [
        ColumnMoments(int(r.n), 0, r["mean"], r.sd, {}, (0, 0), r.sd / math.sqrt(r.n))
        for _, r in exact.table.iterrows()
    ]
    assert compare_means(parts).p == pytest.approx(exact.p)
    assert compare_means(parts).df == pytest.approx(exact.statistics["df"])


def test_a_rank_test_of_equal_groups_keeps_its_level():
    rng = np.random.default_rng(1)
    shares = rng.dirichlet(np.ones(30))

    def draw():
        a, b = (rng.multinomial(n, shares) + rng.normal(0, 6, 30) for n in (400, 300))
        return rank_test(a, b, 36.0, rng)[2]

    assert 1 <= rejections(draw, 100) <= 14
    a, b = (rng.multinomial(2000, s) + rng.normal(0, 6, 30) for s in (np.sort(shares), np.sort(shares)[::-1]))
    assert rank_test(a, b, 36.0, rng)[2] < 0.001
    assert math.isnan(rank_test(a / 100, b / 100, 36.0, rng)[2])  # 20 rows in noise of 33


def test_the_interval_of_a_correlation_covers_it():
    """200 samples of 500 rows with r = 0.6, noise of deviation 2 in each sum: about 190 intervals cover it."""
    rng = np.random.default_rng(2)
    covered = 0
    for _ in range(200):
        a = rng.normal(0, 0.3, 500)
        b = 0.6 * a + rng.normal(0, 0.3 * 0.8, 500)
        sums = np.array([500, a.sum(), b.sum(), a @ a, b @ b, a @ b]) + rng.normal(0, 2.0, 6)
        _, _, low, high = correlate(sums, 4.0)
        covered += low <= 0.6 <= high
    assert 178 <= covered <= 200
    assert math.isnan(correlate(np.array([5.0, 0, 0, 1, 1, 0]), 64.0)[1])


def test_one_row_changes_the_sums_of_a_correlation_by_the_sensitivity_at_most():
    program = NoisyCorrelation(3, 1.0, 1e-6, (("a", 0.0, 10.0), ("b", -1.0, 1.0), ("c", 0.0, 1.0)))
    base = pd.DataFrame({"a": [1.0, 5.0], "b": [0.5, np.nan], "c": [0.1, 0.2]})
    before = program.sums(base)
    worst = 0.0
    for row in ([1e9, -1e9, 5.0], [0.0, 1.0, 0.0], [math.nan, 1.0, 1.0], [math.nan] * 3):
        after = program.sums(pd.concat([base, pd.DataFrame([row], columns=list("abc"))]))
        worst = max(worst, float(np.linalg.norm(after - before)))
        assert np.linalg.norm(after - before) <= program.block.sensitivity + 1e-9
    assert worst > 0.9 * program.block.sensitivity


def test_one_row_changes_one_count_of_a_noisy_histogram():
    program = NoisyHistogram(2, 1.0, 1e-6, (("x", 0.0, 10.0),), by=GROUPS, bins=8, wants=("histogram",))
    base = pd.DataFrame({"x": [1.0, 4.0], "g": ["a", "b"]})
    (before,) = program._count(base)
    assert len(before) == program.length(0, {}) == 24
    for x, g in ((-5.0, "a"), (1e9, "zzz"), (math.nan, "b")):
        (after,) = program._count(pd.concat([base, pd.DataFrame({"x": [x], "g": [g]})]))
        assert np.abs(after - before).sum() <= 1


def test_the_smallest_and_largest_number_are_inside_their_intervals():
    """The value is at most what noise lets be seen, and the interval ends at the declared bound."""
    rng = np.random.default_rng(3)
    program = NoisyProgram(2, 1.0, 1e-6, (("x", 0.0, 1.0),), quantiles=(0.0, 1.0), bins=64)
    variance = program.variance(64, 1)
    misses = 0
    for _ in range(100):
        x = rng.uniform(0.3, 0.8, 3000)
        counts = np.histogram(x, 64, (0, 1))[0] + rng.normal(0, math.sqrt(variance), 64)
        low, value, high = program._quantile(0.0, counts, variance, 0.0, 1.0)
        assert low == 0.0
        misses += not low <= x.min() <= high
        assert value < 0.5
        low, value, high = program._quantile(1.0, counts, variance, 0.0, 1.0)
        assert high == 1.0
        misses += not low <= x.max() <= high
        assert value > 0.6
    assert misses <= 12  # of 200, at most 2.5% expected


def test_private_comparisons_run_and_are_charged():
    frames = {name: pd.concat([frame] * 20) for name, frame in heart().items()}
    bounds, levels = {"age": (20, 80), "chol": (0, 600)}, {"sex": [0, 1], "disease": ["no", "yes"]}
    t = tacit.stats.ttest(frames, "age", "sex", groups=[0, 1], epsilon=4.0, bounds=(20, 80))
    u = tacit.stats.mann_whitney(frames, "age", "sex", (20, 80), groups=[0, 1], epsilon=4.0)
    r = tacit.stats.correlation(frames, ["age", "chol"], epsilon=4.0, bounds=bounds)
    d = tacit.stats.describe(
        frames, ["age", "disease"], by="sex", categories=levels, epsilon=4.0, bounds=bounds,
        runtime="inprocess",
    )  # fmt: skip
    for found in (t, u, r, d):
        assert found.ledger.spent[0].epsilon == 4.0
    exact = tacit.stats.ttest(frames, "age", "sex")
    # four times the half of a 95% interval: 7.8 standard deviations
    half = (t.statistics["high"] - t.statistics["low"]) / 2
    assert abs(t.statistics["difference"] - exact.statistics["difference"]) < 4 * half
    assert 0 <= u.statistics["p"] <= 1
    assert r.statistics["low age, chol"] <= r.table.loc["age", "chol"] <= r.statistics["high age, chol"]
    assert list(d.comparisons["test"]) == ["Welch t, with noise", "χ², simulated"]
    assert "p" in d.table1().columns


def test_frequent_values_are_found_under_noise_and_rare_ones_are_not():
    """Frequent values have thousands of rows in noise of about 15. A rare one of 9 rows would have to pass the
    threshold of 4 deviations in each of six steps: below 1e-15.
    """
    words = ["C18.1"] * 2000 + ["J45.0"] * 3000 + ["Z99.9"] * 3
    fed = {k: pd.DataFrame({"code": words}) for k in "abc"}
    found = tacit.stats.heavy_hitters(fed, "code", 50, longest=5, epsilon=2.0)
    assert {"C18.1", "J45.0"} <= set(found.table.index)
    assert "Z99.9" not in found.table.index
    assert abs(found.table.loc["J45.0", "n"] - 9000) < 5 * found.statistics["margin"]
    assert found.ledger.spent[0].epsilon == 2.0


def test_one_row_changes_one_count_of_a_step_of_noisy_frequent_values(monkeypatch):
    from tacit.accounting import discrete
    from tacit.stats import noise_share
    from tacit.stats.noisy_frequent import NoisyFrequentProgram

    monkeypatch.setattr(discrete, "gaussian", lambda variance, n, source=None: np.zeros(n, dtype=np.int64))
    program = NoisyFrequentProgram("code", 5, longest=4, parties=3, epsilon=1.0, delta=1e-6)
    first = program.coordinate().send(None)
    for value in ("abc", "", "é", None, 12.0):
        part = program.local(0, pd.DataFrame({"code": [value]}), first) / noise_share.SCALE
        assert part.sum() <= 1
        assert len(part) == program.length(0, first)
    assert program.block(257).share * program.max_steps == 1.0


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda f: tacit.stats.ttest(f, "age", "sex", epsilon=1.0, bounds=(0, 9)), "the levels of 'sex'"),
        (lambda f: tacit.stats.ttest(f, "age", "sex", groups=[0, 1], epsilon=1.0), "the range of 'age' too"),
        (
            lambda f: tacit.stats.ttest(
                f, "age", "sex", groups=[0, 1], epsilon=1.0, bounds=(0, 9), equal_var=True
            ),
            "equal_var is True",
        ),
        (lambda f: tacit.stats.mann_whitney(f, "age", "sex", (0, 9), epsilon=1.0), "the levels of 'sex'"),
        (
            lambda f: tacit.stats.quantile(f, "age", by="sex", epsilon=1.0, bounds=(0, 9)),
            "the levels of 'sex'",
        ),
        (
            lambda f: tacit.stats.correlation(f, ["age", "chol"], epsilon=1.0),
            "the range of 'age', 'chol' too",
        ),
        (
            lambda f: tacit.stats.describe(f, ["age"], by="sex", epsilon=1.0, bounds={"age": (0, 9)}),
            "the levels of 'sex' with epsilon",
        ),
    ],
)
def test_what_is_not_declared_is_asked_for(call, match):
    with pytest.raises(BadParameter, match=match):
        call(heart())
